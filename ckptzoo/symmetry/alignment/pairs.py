"""Distances of all pairs of many networks modulo permutations, where one assignment each decides them."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ckptzoo.arguments import Count, checked
from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.symmetry.alignment.align import comparable
from ckptzoo.symmetry.alignment.blocks import greatest_jointly
from ckptzoo.symmetry.alignment.joint_groups import Arrays, JointGroups, joint_groups_of, products
from ckptzoo.symmetry.arrays import Stacked, stack_of
from ckptzoo.symmetry.tables import Arch, finite, fits, table_of

_TILE_BYTES = 8 * 2**20
"""Bytes of gains that a thread holds, at least those of one pair."""


@checked
def pair_distances(weights: Stacked, arch: Arch, *, threads: Count | None = None) -> NDArray[np.float64]:
    r"""The distances of all pairs of K networks, each the least over all permutations of channels.

    .. math:: d(A, B) = \min_{g \in P} \| A - g B \|

    over all floating tensors but running statistics.

    Parameters
    ----------
    weights
        tensor name to (K, *shape), numpy or torch.
    arch
        as in ``align``: of a network whose groups of channels do not meet in a tensor, so that one assignment is exact,
        such as OptuNet or a perceptron of one hidden layer. Scales stay: bring the networks into a gauge before.
    threads
        at most this number; None for one a core.

    Returns
    -------
    NDArray[np.float64]
        (K, K) float64, symmetric, with zeros on the diagonal; NaN for networks that are not finite.

    Raises
    ------
    SymmetryError
        Groups of channels meet in a tensor, or the table has matrices: align the pairs that matter with ``align``. Or
        the weights do not fit.
    MissingExtraError
        scipy is not installed, and a group has more than 5 channels.

    Notes
    -----
    K (K - 1) / 2 products of matrices and assignments; memory for the result and 8 MiB a thread. Squares are rounded
    at 1e-6 of the squared norms for weights in single precision. Tested in tests/symmetry/alignment/test_pairs.py.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> zoo = {"fc1.weight": rng.random((3, 8, 4)), "fc1.bias": rng.random((3, 8)), "fc2.weight": rng.random((3, 2, 8))}
    >>> zoo["fc2.bias"] = rng.random((3, 2))
    >>> found = pair_distances(zoo, "mlp-4-8-2")
    >>> found.shape, bool((found == found.T).all())
    ((3, 3), True)
    """
    table = table_of(arch)
    if table.has_matrices:
        step = "Align the pairs that matter, or compare by permutations: ckptzoo.symmetry.monomial(table)."
        raise SymmetryError(Problem("pairs", "symmetry table", "one without matrices", "one with matrices", step))
    given, K = stack_of(weights, table)
    fits(given, table, arch)
    names = comparable(given, table)
    arrays = {name: given[name].astype(np.result_type(given[name], np.float32), copy=False) for name in names}
    joint_groups = joint_groups_of(table, set(names))
    meeting = [group.id for joint in joint_groups if not joint.is_alone for group in joint.groups][:4]
    if meeting:
        expected = "one, or several that meet in no tensor"
        got = f"several that meet, {' and '.join(map(repr, meeting))}"
        step = (
            "Align the pairs that matter with ckptzoo study barriers, which joins them too, or ckptzoo.symmetry.align: "
            "exact distances need one hidden layer."
        )
        raise SymmetryError(Problem("pairs", "hidden layers", expected, got, step))
    usable = finite(arrays, K)
    rows, result = np.flatnonzero(usable), np.full((K, K), np.nan)
    if not len(rows):
        return result
    arrays = {name: array[rows] for name, array in arrays.items()}
    moving = {name for joint in joint_groups for name in joint.tensors}
    still = [array.reshape(len(rows), -1) for name, array in arrays.items() if name not in moving]
    slices = [(joint, group.id, _slices(joint, group.id, arrays)) for joint in joint_groups for group in joint.groups]
    squares = sum((products(array, array) for array in arrays.values()), np.zeros(len(rows)))
    found = np.zeros((len(rows), len(rows)))

    def fill(tile: tuple[slice, slice]) -> None:
        one, other = tile
        total = sum((array[one] @ array[other].T for array in still), np.zeros((1, 1)))
        value = np.broadcast_to(total, (len(squares[one]), len(squares[other]))).astype(np.float64)
        for joint in joint_groups:
            gains = {name: _gains(array, one, other) for own, name, array in slices if own is joint}
            value = value + greatest_jointly(joint, gains).reshape(value.shape)
        square = squares[one, None] + squares[None, other] - 2 * value
        found[one, other] = np.sqrt(np.maximum(square, 0))

    per_pair = 3 * 4 * max((sum(group.n**2 for group in joint.groups) for joint in joint_groups), default=1)
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        list(pool.map(fill, _tiles(len(rows), max(1, int((_TILE_BYTES / per_pair) ** 0.5)))))
    found = np.triu(found, 1)
    result[np.ix_(rows, rows)] = found + found.T
    return result


def _slices(joint: JointGroups, group: str, arrays: Arrays) -> NDArray[np.floating]:
    """Return the slices (K, n, features) of a group; no features where it has no tensor of its own."""
    parts = [view.slices(arrays[view.action.tensor]) for view in joint.views[group]]
    if parts:
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)
    n = next(item.n for item in joint.groups if item.id == group)
    K = len(next(iter(arrays.values())))
    return np.zeros((K, n, 0), np.float32)


def _gains(slices: NDArray[np.floating], one: slice, other: slice) -> NDArray[np.floating]:
    """Return the gains (pairs, n, n) of all pairs of some networks and some others."""
    first, second = slices[one], slices[other]
    n, features = first.shape[1:]
    products_of_all = first.reshape(-1, features) @ second.reshape(-1, features).T
    split = products_of_all.reshape(len(first), n, len(second), n)
    return split.transpose(0, 2, 1, 3).reshape(-1, n, n)


def _tiles(count: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Yield the tiles on and above the diagonal of a square."""
    starts = range(0, count, size)
    for row in starts:
        yield from ((slice(row, row + size), slice(column, column + size)) for column in starts if column >= row)
