"""Loss barriers between networks, from losses along the line that joins their weights."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, ZooError

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Barriers:
    """Barriers of P pairs.

    Parameters
    ----------
    height
        (P,) the largest rise above the line between the losses of both ends; 0 or more.
    at
        (P,) where it is, from 0 to 1.
    middle
        (P,) the rise halfway, which may be negative; NaN where 0.5 is none of the points.
    """

    height: Values
    at: Values
    middle: Values


@checked
def barriers(losses: ArrayLike, points: ArrayLike) -> Barriers:
    r"""The barrier between two networks, for P pairs.

    .. math:: B = \max_\tau \; L(\theta_\tau) - (1 - \tau) L(\theta_0) - \tau L(\theta_1),
              \qquad \theta_\tau = (1 - \tau) \theta_0 + \tau \theta_1

    (Frankle et al., arXiv 1912.05671; Entezari et al., arXiv 2110.06296, definition 1.) A convex loss has none.

    Parameters
    ----------
    losses
        (..., T) at T points of each line; lower is better, so that of accuracies their negatives are taken.
    points
        (T,) rising from 0 to 1.

    Raises
    ------
    ZooError
        The points do not rise from 0 to 1, or the losses are of another number of points.

    Notes
    -----
    NaN where a loss is none; an infinite loss between the ends is an infinite barrier.

    Examples
    --------
    >>> points = np.linspace(0, 1, 11)
    >>> weights = 2 * points - 1  # from -1 to 1
    >>> found = barriers((weights**2 - 1) ** 2, points)
    >>> float(found.height), float(found.at), float(found.middle)
    (1.0, 0.5, 1.0)
    """
    taus, values = np.asarray(points, np.float64), np.asarray(losses, np.float64)
    if taus.ndim != 1 or len(taus) < 2 or taus[0] != 0 or taus[-1] != 1 or not (np.diff(taus) > 0).all():
        got, step = np.array2string(taus, threshold=8), "Take np.linspace(0, 1, 11)."
        raise ZooError(Problem("barriers", "points", "numbers that rise from 0 to 1", got, step))
    if values.shape[-1:] != taus.shape:
        step = "Give a loss for every point."
        raise ZooError(Problem("barriers", "losses", f"{len(taus)} a line", str(values.shape), step))
    with np.errstate(invalid="ignore"):
        rises = values - (1 - taus) * values[..., :1] - taus * values[..., -1:]
        # the ends are on the line between them; computed, they would be off by rounding
        rises[..., [0, -1]] = np.where(np.isfinite(values[..., [0, -1]]), 0, np.nan)
    height = rises.max(axis=-1)
    # argmax takes the first NaN for the largest
    at = taus[np.where(np.isnan(rises), -np.inf, rises).argmax(axis=-1)]
    half = np.flatnonzero(taus == 0.5)
    middle = rises[..., half[0]] if len(half) else np.full(height.shape, np.nan)
    return Barriers(height, np.where(np.isnan(height), np.nan, at), middle)
