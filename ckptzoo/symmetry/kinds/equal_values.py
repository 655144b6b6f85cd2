"""Equal singular values or eigenvalues: where they are, and a basis of their space that other matrices determine.

Singular vectors and eigenvectors are determined up to signs where the values are distinct. The vectors of c equal
values span a space that is determined; the basis in it is that in which another symmetric matrix is diagonal.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_EQUAL = 64
"""Values that differ by less than this number of units of the stored precision of the largest are equal."""
_EQUAL_IN_SPACE = 1000
"""``_EQUAL`` for the eigenvalues of a matrix within the space of equal values, which is known to a few units only."""
COARSEST = float(np.finfo(np.float32).eps)
"""A coarser precision counts as this one where values are compared: 64 units of half precision are more than the
gaps between the values of a head, and a unit of bfloat16 is more than many of them."""


def equal_below(precision: float) -> float:
    """Return the difference of equal singular values or eigenvalues, over the largest modulus.

    ``precision`` is the machine epsilon of the stored dtype.
    """
    return _EQUAL * min(precision, COARSEST)


def runs(values: NDArray[np.float64], tolerance: float) -> list[tuple[int, int]]:
    """Return start and stop of each run of two or more equal values among descending values (n,) float64.

    Neighbours that differ by less than ``tolerance`` times the largest modulus are equal.
    """
    largest = np.abs(values).max(initial=0)
    breaks = np.flatnonzero(values[:-1] - values[1:] >= tolerance * largest) + 1 if largest else []
    return [(start, stop) for start, stop in pairwise((0, *map(int, breaks), len(values))) if stop - start > 1]


def margins(values: NDArray[np.float64], rank: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """Return the smallest gaps between neighbours among descending values (..., n) float64, over the largest modulus.

    Only the first ``rank`` (...) values count, all where it is None. The gap is 1 where fewer than two count.
    """
    if values.shape[-1] < 2:
        return np.ones(values.shape[:-1])
    largest = np.abs(values).max(axis=-1, keepdims=True)
    gaps = (values[..., :-1] - values[..., 1:]) / np.where(largest > 0, largest, 1)
    if rank is not None:
        gaps = np.where(np.arange(1, values.shape[-1]) < rank[..., None], gaps, 1)
    return gaps.min(axis=-1)


def diagonalising(forms: Sequence[NDArray[np.float64]], precision: float) -> tuple[NDArray[np.float64], bool]:
    """Return the orthogonal matrix O for which O N O^T is diagonal, and whether the forms determine it.

    N is the first of the symmetric matrices ``forms`` (c, c) float64; where it has equal eigenvalues the next one is
    made diagonal within their space. Eigenvalues are equal that differ by less than 1000 epsilons (``precision``, of
    the stored dtype) of the largest modulus. The rows of O (c, c) float64 are eigenvectors by descending eigenvalue,
    each up to its sign; they are determined where no space of equal eigenvalues is left.
    """
    size = len(forms[0])
    if size == 1:
        return np.eye(1), True
    values, vectors = np.linalg.eigh(forms[0])
    rotation, determined = np.ascontiguousarray(vectors.T[::-1]), True
    for start, stop in runs(values[::-1], _EQUAL_IN_SPACE * min(precision, COARSEST)):
        if len(forms) == 1:
            determined = False
            continue
        block = rotation[start:stop]
        turn, inner = diagonalising([block @ form @ block.T for form in forms[1:]], precision)
        rotation[start:stop] = turn @ block
        determined &= inner
    return rotation, determined
