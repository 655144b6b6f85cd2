r"""Largest eigenvalues and traces of symmetric matrices, many at once, from their products with vectors alone.

Lanczos' method with full reorthogonalisation gives an orthonormal basis Q and the tridiagonal :math:`T = Q^T H Q`. With
its largest eigenvalue :math:`\theta` and eigenvector s, H has an eigenvalue within :math:`\beta_m |s_m|` of
:math:`\theta` (Parlett, "The symmetric eigenvalue problem", theorem 4.5.1 and section 13.2).

Hutchinson's estimate of a trace is the mean of :math:`z^T H z` over vectors z of random signs. Here only what is left
outside of Q is estimated,

.. math:: \mathrm{tr} H = \mathrm{tr}\, T + \mathrm{tr} (I - Q Q^T) H (I - Q Q^T),

as in Hutch++ (Meyer et al., arXiv 2010.09649): Q does not depend on the signs, so that the estimate has no bias, and
the largest eigenvalues, of which the variance mostly comes, are in T.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Product = Callable[[Values], Values]
"""Maps vectors (K, D, P) to the products with each of K matrices (P, P), of the same shape."""

_NORMAL = 1.959963984540054
"""The 0.975 quantile of the normal distribution."""
_ROUNDING = 1e-12
"""A norm below this part of that of the product is rounding: the basis spans an invariant subspace."""


@dataclass(frozen=True, eq=False)
class Lanczos:
    """What Lanczos' method found of K matrices.

    ``values`` are the (K,) largest eigenvalues of the projections, and ``bounds`` (K,): each matrix has an eigenvalue
    that near. ``basis`` (K, m, P) has orthonormal rows, and zeros behind those that a matrix needed; ``traces`` are the
    (K,) traces of the projections.
    """

    values: Values
    bounds: Values
    basis: Values
    traces: Values


def lanczos(product: Product, starts: Values, *, steps: int, tolerance: float) -> Lanczos:
    """Return the largest eigenvalues of K matrices, from random vectors ``starts`` (K, P), in at most ``steps`` steps.

    Each matrix has no more steps once its bound is ``tolerance`` times its value or less, whatever the others need.
    """
    K, P = starts.shape
    steps = min(steps, P)
    basis, tridiagonal = np.zeros((K, steps, P)), np.zeros((K, steps, steps))
    values, bounds = np.full(K, np.nan), np.full(K, np.nan)
    going = np.ones(K, bool)
    following = starts / np.linalg.norm(starts, axis=1, keepdims=True)
    for step in range(steps):
        basis[:, step] = np.where(going[:, None], following, 0)
        vectors = product(basis[:, step : step + 1])[:, 0]
        size = np.linalg.norm(vectors, axis=1)
        tridiagonal[:, step, step] = (basis[:, step] * vectors).sum(1)
        known = basis[:, : step + 1]
        for _ in range(2):  # twice is enough (Parlett, section 6.9)
            vectors = vectors - np.einsum("ksp,ks->kp", known, np.einsum("ksp,kp->ks", known, vectors))
        rest = np.linalg.norm(vectors, axis=1)
        # a matrix that is not finite has no eigenvalues
        ended = ~np.isfinite(rest)
        rest = np.where(rest <= _ROUNDING * size, 0, rest)
        found, eigenvectors = np.linalg.eigh(np.nan_to_num(tridiagonal[:, : step + 1, : step + 1]))
        bound = rest * np.abs(eigenvectors[:, -1, -1])
        values[going], bounds[going] = found[going, -1], bound[going]
        values[going & ended] = bounds[going & ended] = np.nan
        going &= ~ended & (bound > tolerance * np.abs(found[:, -1])) & (rest > 0)
        if not going.any() or step + 1 == steps:
            basis, tridiagonal = known, tridiagonal[:, : step + 1, : step + 1]
            break
        tridiagonal[going, step + 1, step] = tridiagonal[going, step, step + 1] = rest[going]
        following = vectors / np.where(going, rest, 1)[:, None]
    return Lanczos(values, bounds, basis, np.trace(tridiagonal, axis1=1, axis2=2))


def traces(
    product: Product, found: Lanczos, generators: Sequence[np.random.Generator], *, probes: int, at_once: int = 1
) -> tuple[Values, Values]:
    """Return the (K,) traces of matrices, estimated outside of the basis that was found, and their standard errors.

    ``generators`` has one for each matrix; ``probes`` vectors of random signs are drawn from each, ``at_once`` of them
    multiplied together. ``interval_factor`` has what makes an interval of the errors.
    """
    K, _, P = found.basis.shape
    samples = np.empty((K, probes))
    for start in range(0, probes, at_once):
        stop = min(start + at_once, probes)
        bits = [rng.integers(0, 2, (stop - start, P), dtype=np.int8) for rng in generators]
        signs = 2.0 * np.stack(bits) - 1
        signs -= np.einsum("kds,ksp->kdp", np.einsum("kdp,ksp->kds", signs, found.basis), found.basis)
        samples[:, start:stop] = (signs * product(signs)).sum(2)
    return found.traces + samples.mean(1), samples.std(1, ddof=1) / np.sqrt(probes)


def interval_factor(probes: int) -> float:
    """Return what the standard error of ``probes`` samples is multiplied by for half a 95 % interval: Student's t.

    Five digits from 9 probes on (Abramowitz and Stegun, 26.7.5).

    >>> round(interval_factor(33), 4)
    2.0369
    """
    z, degrees = _NORMAL, probes - 1
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / degrees**power for power, term in enumerate(terms))
