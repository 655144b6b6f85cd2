"""The least cost of putting one channel in the place of another one, over all scales.

Let p and q be the squared norms of what writes channel j of B and of what reads it, u and v the products of these with
what writes and reads channel i of A. With scale s the channels are at the squared distance, but for the norms of A,

    c(s) = p s^2 - 2 u s + q / s^2 - 2 v / s,    c'(s) s^3 / 2 = p s^4 - u s^3 + v s - q.

For p, q > 0 let s = (q / p)^(1/4) t, a = u / (p^(3/4) q^(1/4)) and b = v / (p^(1/4) q^(3/4)): stationary points are the
positive roots of f(t) = t^4 - a t^3 + b t - 1, one or three. f(0) < 0, so f rises through the greatest and through the
least of them, which are the minima; that between is a maximum. The least is 1 over the greatest for b and a in the
others' places. A root through which f rises is at least a / 2, or 1 over it at least b / 2 (else both f'(t) >= 0 and
f(t) = 0 could not hold), and of three roots the greatest and 1 over the least are so. From a / 2 on f is convex, so
that Newton's method from a bound above falls to the greatest root if it is there. Both points are compared by their
costs, whatever they are, so that one that is no root does no harm.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MAX_STEPS = 100
"""The largest number of Newton steps; ten are usual, and 50 are needed for a double root."""


def least_costs(
    p: ArrayLike, u: ArrayLike, q: ArrayLike, v: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the scales s > 0 of least cost ``c(s) = p s^2 - 2 u s + q / s^2 - 2 v / s``, and these costs.

    p and q are positive; with u and v they broadcast to one shape.

    Examples
    --------
    >>> scale, cost = least_costs(1.0, 1.0, 1.0, 1.0)
    >>> float(scale), float(cost)
    (1.0, -2.0)
    """
    p, u, q, v = np.broadcast_arrays(*(np.asarray(value, np.float64) for value in (p, u, q, v)))
    unit, size = (q / p) ** 0.25, np.sqrt(p) * np.sqrt(q)
    a, b = u * unit / size, v / unit / size
    large, small = _greatest_root(a, b), 1 / _greatest_root(b, a)
    costs = [t * t - 2 * a * t + 1 / (t * t) - 2 * b / t for t in (large, small)]
    first = costs[0] <= costs[1]
    return np.where(first, large, small) * unit, np.where(first, *costs) * size


def _greatest_root(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the greatest root of ``t^4 - a t^3 + b t - 1`` where it is at least a / 2, else some t > 0."""
    t = 2 * np.maximum(1, np.maximum(np.abs(a), np.cbrt(np.abs(b))))
    done = np.zeros(t.shape, bool)
    for _ in range(_MAX_STEPS):
        value = ((t - a) * t * t + b) * t - 1
        slope = (4 * t - 3 * a) * t * t + b
        step = np.divide(value, slope, out=np.zeros_like(t), where=slope > 0)
        done |= t - step < np.maximum(a / 2, 0)
        t = np.where(done, t, t - step)
        # converged entries stay, so that a root does not depend on how long others take
        done |= np.abs(step) <= 4 * np.finfo(np.float64).eps * t
        if done.all():
            break
    return t
