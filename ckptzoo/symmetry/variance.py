"""The action on a running variance, with the normalisation's eps unchanged.

A channel before its BatchNorm that is scaled by s keeps the function when its variance v becomes
``s^2 (v + eps) - eps``. That is computed as ``s (s v) + (s - 1)(s + 1) eps``, in which both terms have small
relative errors whatever the size of v beside eps: the result is that of a v and an eps that are off by a few units
of float64's precision, and v itself where s is 1. For s of at least 1 nothing cancels.

There is a variance for ``s >= a_min = sqrt(eps / (v + eps))`` alone. A little below, where rounding accounts for
the difference, the result is 0.
"""

from typing import Any

from array_api_compat import array_namespace

from ckptzoo.errors import SymmetryError

ROUNDING = 8
"""A result counts as 0 down to so many units of the stored precision below it, relative to s^2 (v + eps)."""


def scaled_variance(variance: Any, scale: Any, eps: float, precision: float, tensor: str) -> Any:
    """``scale^2 (variance + eps) - eps`` in float64, and exactly 0 where that is negative by rounding alone.

    Parameters
    ----------
    variance, scale : float64 arrays that broadcast.
    eps : the normalisation's; with 0 this is ``scale^2 variance``.
    precision : machine epsilon of the dtype that derived variances are stored in.
    tensor : the name in errors.

    Raises
    ------
    SymmetryError
        A scale is below a_min by more than rounding.

    Notes
    -----
    A negative variance follows the formula and is not refused: it is wrong already. Law:
    tests/symmetry/test_variance.py.
    """
    made = scale * (scale * variance)
    if not eps:
        return made
    xp = array_namespace(variance)
    made = made + (scale - 1) * (scale + 1) * eps
    below = (made < 0) & (variance >= 0)
    if not bool(xp.any(below)):
        return made
    if bool(xp.any(refused := below & (made < -ROUNDING * precision * (scale * scale * (variance + eps))))):
        raise SymmetryError(
            f"tensor {tensor!r}: scales: expected at least sqrt(eps / (variance + eps)), "
            f"got a variance of {float(xp.min(made[refused])):.3g} after scaling. Use larger scales."
        )
    return xp.where(below, xp.zeros_like(made), made)
