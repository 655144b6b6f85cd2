"""Distances of all pairs of many networks modulo permutations, where one assignment each decides them."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.arguments import Count, checked
from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.action import apply
from ckptzoo.symmetry.alignment.align import comparable
from ckptzoo.symmetry.alignment.blocks import assign_jointly, greatest_jointly
from ckptzoo.symmetry.alignment.joint_groups import Arrays, JointGroups, joint_groups_of, products, put
from ckptzoo.symmetry.alignment.joint_signs import signed_groups
from ckptzoo.symmetry.arrays import Stacked, stack_of
from ckptzoo.symmetry.element import GroupElement
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
    given, K = stack_of(weights, table)
    alone_groups(table, comparable(given, table))
    fits(given, table, arch)
    usable = finite(given, K)
    rows, result = np.flatnonzero(usable), np.full((K, K), np.nan)
    if not len(rows):
        return result
    stack = _Stack.of({name: array[rows] for name, array in given.items()}, table)
    found = np.zeros((len(rows), len(rows)))

    def fill(tile: tuple[slice, slice]) -> None:
        one, other = tile
        found[one, other] = stack.distances(one, stack, other)

    size = stack.tile_size
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        list(pool.map(fill, _tiles(len(rows), size)))
    found = np.triu(found, 1)
    result[np.ix_(rows, rows)] = found + found.T
    return result


def distances_between(first: Arrays, second: Arrays, table: Symmetry) -> NDArray[np.float64]:
    """Return the distances (K, L) of two sets of finite networks modulo permutations and the signs of channels.

    Rounded as those of ``pair_distances``, and refused for the same tables.
    """
    one, other = (_Stack.of(weights, table, signs=True) for weights in (first, second))
    found, size = np.empty((len(one.squares), len(other.squares))), one.tile_size
    for row in range(0, len(found), size):
        for column in range(0, found.shape[1], size):
            rows, columns = slice(row, row + size), slice(column, column + size)
            found[rows, columns] = one.distances(rows, other, columns)
    return found


def aligned_distances(first: Arrays, second: Arrays, table: Symmetry) -> NDArray[np.float64]:
    """Return the distances (P,) of pairs of finite networks modulo permutations and the signs of channels.

    As ``distances_between``, but of the differences of the weights, so that copies have distance 0.
    """
    one, other = (_Stack.of(weights, table, signs=True) for weights in (first, second))
    P = len(one.squares)
    element = GroupElement.identity(table, P)
    for joint in one.joint_groups:
        gains = {
            name: mine @ its.swapaxes(1, 2)
            for (of, name, mine), (_, _, its) in zip(one.slices, other.slices, strict=True)
            if of is joint
        }
        chosen = assign_jointly(joint, {name: one.signed(name, gain) for name, gain in gains.items()}, (), None)[0]
        put(element, GroupElement(chosen.perms, {}), slice(None), table)
        for name in one.flipping & gains.keys():
            # of channels whose products vanish either sign is as good
            at_best = np.take_along_axis(gains[name], chosen.perms[name][:, :, None], 2)[:, :, 0]
            element.scales[name][:] = np.where(at_best < 0, -1.0, 1.0)
    moved = apply(element, {name: np.asarray(array, np.float64) for name, array in second.items()}, table, threads=1)
    total = np.zeros(P)
    for name in one.names:
        difference = np.asarray(first[name], np.float64) - moved[name]
        total += products(difference, difference)
    return np.sqrt(total)


@dataclass(frozen=True, eq=False)
class _Stack:
    """Networks, taken apart as their distances need it.

    ``names`` are the tensors that are compared, ``squares`` (K,) the sums of their squares, ``still`` the tensors that
    nothing moves, and ``slices`` those of the channels of each group. The signs of ``flipping`` groups are free.
    """

    names: list[str]
    squares: NDArray[np.float64]
    still: list[NDArray[np.floating]]
    joint_groups: tuple[JointGroups, ...]
    slices: list[tuple[JointGroups, str, NDArray[np.floating]]]
    flipping: frozenset[str]

    @classmethod
    def of(cls, weights: Arrays, table: Symmetry, *, signs: bool = False) -> "_Stack":
        """Take some networks (K, *shape) apart.

        Raises ``SymmetryError`` where one assignment does not decide a distance.
        """
        names = comparable(weights, table)
        joint_groups = alone_groups(table, names)
        arrays = {name: weights[name].astype(np.result_type(weights[name], np.float32), copy=False) for name in names}
        K = len(next(iter(arrays.values())))
        moving = {name for joint in joint_groups for name in joint.tensors}
        free = {name for joint in joint_groups for name in signed_groups(joint)} if signs else set[str]()
        return cls(
            names,
            sum((products(array, array) for array in arrays.values()), np.zeros(K)),
            [array.reshape(K, -1) for name, array in arrays.items() if name not in moving],
            joint_groups,
            [(joint, group.id, _slices(joint, group.id, arrays)) for joint in joint_groups for group in joint.groups],
            # of groups that are like another one the signs do not multiply all slices
            frozenset(name for name in free if len(table.family(name)) == 1),
        )

    @property
    def tile_size(self) -> int:
        """The number of networks on either side whose gains fit into ``_TILE_BYTES``."""
        per_pair = 3 * 4 * max((sum(group.n**2 for group in joint.groups) for joint in self.joint_groups), default=1)
        return max(1, int((_TILE_BYTES / per_pair) ** 0.5))

    def signed(self, name: str, gains: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the gains of a group's channels with the best sign of each."""
        return np.abs(gains) if name in self.flipping else gains

    def distances(self, one: slice, others: "_Stack", other: slice) -> NDArray[np.float64]:
        """Return the distances of some of these from some of others."""
        total = sum(
            (mine[one] @ its[other].T for mine, its in zip(self.still, others.still, strict=True)), np.zeros((1, 1))
        )
        squares = self.squares[one, None], others.squares[None, other]
        value = np.broadcast_to(total, (len(squares[0]), squares[1].shape[1])).astype(np.float64)
        for joint in self.joint_groups:
            gains = {
                name: self.signed(name, _gains(mine[one], its[other]))
                for (of, name, mine), (_, _, its) in zip(self.slices, others.slices, strict=True)
                if of is joint
            }
            value = value + greatest_jointly(joint, gains).reshape(value.shape)
        return np.sqrt(np.maximum(squares[0] + squares[1] - 2 * value, 0))


def alone_groups(table: Symmetry, names: Sequence[str]) -> tuple[JointGroups, ...]:
    """Return the joint groups of a table in which one assignment each decides the distance of these tensors.

    Raises ``SymmetryError`` for other tables.
    """
    if table.has_matrices:
        step = "Align the pairs that matter, or compare by permutations: ckptzoo.symmetry.monomial(table)."
        raise SymmetryError(Problem("pairs", "symmetry table", "one without matrices", "one with matrices", step))
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
    return joint_groups


def _slices(joint: JointGroups, group: str, arrays: Arrays) -> NDArray[np.floating]:
    """Return the slices (K, n, features) of a group; no features where it has no tensor of its own."""
    parts = [view.slices(arrays[view.action.tensor]) for view in joint.views[group]]
    if parts:
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)
    n = next(item.n for item in joint.groups if item.id == group)
    K = len(next(iter(arrays.values())))
    return np.zeros((K, n, 0), np.float32)


def _gains(first: NDArray[np.floating], second: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the gains (pairs, n, n) of all pairs of some networks and some others."""
    n, features = first.shape[1:]
    products_of_all = first.reshape(-1, features) @ second.reshape(-1, features).T
    split = products_of_all.reshape(len(first), n, len(second), n)
    return split.transpose(0, 2, 1, 3).reshape(-1, n, n)


def _tiles(count: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Yield the tiles on and above the diagonal of a square."""
    starts = range(0, count, size)
    for row in starts:
        yield from ((slice(row, row + size), slice(column, column + size)) for column in starts if column >= row)
