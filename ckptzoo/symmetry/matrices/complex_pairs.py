r"""Complex factors of pairs of channels: rotary position embedding turns two channels as one complex number.

Of queries a and keys b of such a pair only ``a_i conj(b_j)`` counts, so that ``(c a, b / conj(c))`` is the same network
for every complex number c that is not 0 (Su et al., arXiv 2104.09864, for the rotation).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.symmetry.kinds.matrix import checked

_ROUNDING = 16
"""A sum counts as 0 below this number of units of the stored precision of the norm of its terms."""


@dataclass(frozen=True, eq=False)
class ComplexBalance:
    """The factors that balance complex pairs, and how well they are determined.

    Parameters
    ----------
    left, right
        (...) complex128, c and 1 / conj(c); both 0 where a or b is zero.
    margin
        (...) float64, the modulus of the sum that settles the phase over the sum of the moduli of its terms; the phase
        is known to about epsilon over the margin. 0 where nothing settles it.
    degenerate
        (...) bool, a or b is zero.
    unresolved
        (...) bool, no sum settles the phase of a pair that is not degenerate.
    """

    left: NDArray[np.complex128]
    right: NDArray[np.complex128]
    margin: NDArray[np.float64]
    degenerate: NDArray[np.bool_]
    unresolved: NDArray[np.bool_]


def balance_complex(a: NDArray[np.complex128], b: NDArray[np.complex128], precision: float) -> ComplexBalance:
    r"""Return the factors for which ``c a`` and ``b / conj(c)`` have equal norms and a fixed phase.

    .. math:: |c| = \sqrt{|b| / |a|}, \quad \sum_j (c a_j)^2 > 0,

    where that sum vanishes ``sum_j (b_j / conj(c))^2 > 0``, then ``sum_j j (c a_j)^2 > 0`` and ``sum_j j (b_j /
    conj(c))^2 > 0``. The sign of c is left open. Orthogonal matrices on the columns keep the first two sums.

    a and b are (..., m) and (..., n) complex128: all that c and its counterpart multiply, biases included.
    ``precision`` is the machine epsilon of the stored dtype. A sum vanishes where its modulus is at most 16 epsilons of
    the root of the sum of its terms' squared moduli. ``left a`` and ``right b`` of the result keep every product ``a_i
    conj(b_j)``. Raises ``SymmetryError`` for shapes that do not belong together, and for weights or sums of squares
    that are not finite.
    """
    if not (a.ndim and b.ndim) or a.shape[:-1] != b.shape[:-1] or 0 in (a.shape[-1], b.shape[-1]):
        expected, got = "(..., m) and (..., n) without empty axes", f"{a.shape} and {b.shape}"
        step = "Give both weights with the columns last, and the same stack."
        raise SymmetryError(Problem("balance_complex", "shapes of a and b", expected, got, step))
    # what is not finite in a or b is not finite in its norm
    with np.errstate(invalid="ignore", over="ignore"):
        norms = [np.sqrt(_moments(side, np.ones(side.shape[-1]))[1]) for side in (a, b)]
    checked("balance_complex", **{"norm of a": norms[0], "norm of b": norms[1]})
    degenerate = (norms[0] == 0) | (norms[1] == 0)
    settling, margin = np.zeros(a.shape[:-1], np.complex128), np.zeros(a.shape[:-1])
    for weighted in (False, True):
        for side in (a, b):
            open_phase = (margin == 0) & ~degenerate
            if open_phase.any():
                m = side.shape[-1]
                weights = np.arange(1, m + 1) / m if weighted else np.ones(m)
                rows = side[open_phase]
                moment, terms = _moments(rows, weights)
                rounding = np.linalg.norm((rows.real**2 + rows.imag**2) * weights, axis=-1)
                settles = np.abs(moment) > _ROUNDING * precision * rounding
                settling[open_phase] = np.where(settles, moment, 0)
                margin[open_phase] = np.where(settles, np.abs(moment) / terms, 0)
    phase = np.exp(-0.5j * np.angle(settling))
    size = np.sqrt(norms[1] / np.where(degenerate, 1, norms[0]))
    left = np.where(degenerate, 0, size * phase)
    right = np.where(degenerate, 0, phase / np.where(degenerate, 1, size))
    return ComplexBalance(left, right, margin, degenerate, (margin == 0) & ~degenerate)


def _moments(
    side: NDArray[np.complex128], weights: NDArray[np.float64]
) -> tuple[NDArray[np.complex128], NDArray[np.float64]]:
    """Return weighted sums (...) of the squares of side (..., m) and of the squared moduli."""
    real, imaginary = side.real, side.imag
    of_real, of_imaginary, of_both = (
        np.einsum("...m,...m,m->...", one, other, weights)
        for one, other in ((real, real), (imaginary, imaginary), (real, imaginary))
    )
    return of_real - of_imaginary + 2j * of_both, of_real + of_imaginary
