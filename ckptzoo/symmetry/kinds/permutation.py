"""Permutations: of all channels, of blocks and within them, those of another group, and none.

The permutations of ``g`` blocks of ``k`` channels are the wreath product of those of k things with those of g: whole
blocks move, by a permutation that all groups with the same ``outer`` share, and channels within theirs, so that a group
has ``(k!)^g`` of its own. Channels that matrices mix keep their order within a block, as a matrix permutes them too.
"""

from collections.abc import Mapping

import numpy as np

from ckptzoo.schema.groups import Group, Like, Wreath
from ckptzoo.symmetry.kinds.assignment import assign, greatest
from ckptzoo.symmetry.kinds.kind import Counts, PermutationKind, Shared, Ties, refused


class Symmetric(PermutationKind):
    """All permutations."""

    def random(self, group: Group, K: int, rng: np.random.Generator, spread: float, shared: Shared) -> np.ndarray:
        """Draw uniform permutations; the identity where matrices mix all channels."""
        return self.identity(group, K) if _mixed(group) else shuffles(rng, K, group.n)

    def factorials(self, group: Group, counted: set[str]) -> Counts:
        """Return ``n!``; complex numbers are permuted one by one."""
        return [] if _keeps_within_matrices(group) else [(group.n, 1)]

    def generators(self, group: Group) -> Mapping[str, np.ndarray]:
        """Return a cycle and an exchange."""
        return {f"{group.id} {number}": perm for number, perm in enumerate(cycle_and_exchange(group.n))}

    def exchangeable(self, group: Group) -> list[tuple[int, int]]:
        """Return all channels as one run, unless matrices mix them, whose permutations are such matrices."""
        return [] if _keeps_within_matrices(group) else [(0, group.n)]

    def best(self, group: Group, gains: np.ndarray) -> np.ndarray:
        """Return the permutations of a linear assignment."""
        return assign(gains)

    def greatest(self, group: Group, gains: np.ndarray) -> np.ndarray:
        """Return the sums of the linear assignment."""
        return greatest(gains)

    def settle(self, group: Group, keys: np.ndarray, shared: Shared) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the permutation by ascending keys."""
        perm = np.argsort(keys, axis=1, kind="stable")
        return perm, [np.diff(np.take_along_axis(keys, perm, 1), axis=1)]

    def ties(self, group: Group) -> Ties:
        """Return a structure without further vertices and edges: the weights alone tell channels apart."""
        return Ties(np.zeros(group.n, np.int64))

    def by_ranks(self, group: Group, ranks: np.ndarray, shared: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the permutation by ascending ranks."""
        return np.argsort(ranks)


class Blocks(PermutationKind):
    """Permutations of whole blocks, and of channels within their block where these are free."""

    def random(self, group: Group, K: int, rng: np.random.Generator, spread: float, shared: Shared) -> np.ndarray:
        """Draw blocks as all groups with the same ``outer`` have them, and uniform permutations within each."""
        perm = _wreath(group)
        outer = shared[f"*{perm.outer}"]
        if perm.inner == "fixed" or _mixed(group):
            return block_move(perm, outer)
        inside = shuffles(rng, K * perm.g, perm.k).reshape(K, perm.g, perm.k)
        return (outer[:, :, None] * perm.k + inside).reshape(K, group.n)

    def draw_shared(self, group: Group, K: int, rng: np.random.Generator, shared: Shared) -> None:
        """Draw the permutation of the blocks; of several groups that share one the last one's stays."""
        perm = _wreath(group)
        shared[f"*{perm.outer}"] = shuffles(rng, K, perm.g)

    def check(self, group: Group, value: np.ndarray, perm: np.ndarray, K: int, shared: Shared) -> None:
        """Raise for permutations that break blocks, or move them otherwise than the groups before."""
        super().check(group, value, perm, K, shared)
        what, shape = f"group {group.id!r}: perm", _wreath(group)
        blocks = (value // shape.k).reshape(K, shape.g, shape.k)
        outer = blocks[:, :, 0]
        if (blocks != outer[:, :, None]).any():
            raise refused(what, f"blocks of {shape.k} channels that stay together", "a channel across")
        if (shared.setdefault(f"*{shape.outer}", outer) != outer).any():
            raise refused(what, f"the block permutation {shape.outer!r} of the groups before", "another one")
        if shape.inner == "fixed" and (value != block_move(shape, outer)).any():
            raise refused(what, "channels that keep their order within their block", "another order")

    def factorials(self, group: Group, counted: set[str]) -> Counts:
        """Return ``(k!)^g``, times ``g!`` where no group before shares the permutation of the blocks."""
        perm = _wreath(group)
        found = [] if f"*{perm.outer}" in counted else [(perm.g, 1)]
        counted.add(f"*{perm.outer}")
        keeps = perm.inner == "fixed" or _keeps_within_matrices(group)
        return found if keeps else [(perm.k, perm.g), *found]

    def generators(self, group: Group) -> Mapping[str, np.ndarray]:
        """Return a cycle and an exchange within the first block, and of the blocks."""
        perm = _wreath(group)
        found = {
            f"*{perm.outer} {number}": block_move(perm, outer[None])[0]
            for number, outer in enumerate(cycle_and_exchange(perm.g))
        }
        if perm.inner == "free":
            rest = np.arange(perm.k, group.n)
            for number, inside in enumerate(cycle_and_exchange(perm.k)):
                found[f"{group.id} {number}"] = np.concatenate([inside, rest])
        return found

    def exchangeable(self, group: Group) -> list[tuple[int, int]]:
        """Return the channels of each block as a run, unless they are in order or matrices mix them."""
        perm = _wreath(group)
        free = perm.inner == "free" and perm.k > 1 and not _keeps_within_matrices(group)
        return [(block * perm.k, perm.k) for block in range(perm.g)] if free else []

    def together(self, group: Group) -> str:
        """Return the name that all groups which share the permutation of the blocks have."""
        return f"*{_wreath(group).outer}"

    def blocks(self, group: Group) -> int:
        """Return the blocks that the table declares."""
        return _wreath(group).g

    def keeps_order(self, group: Group) -> bool:
        """Return the table's declaration."""
        return _wreath(group).inner == "fixed"

    def best(self, group: Group, gains: np.ndarray) -> np.ndarray:
        """Return a linear assignment within every block, or the order that channels keep."""
        return in_order(gains) if self.keeps_order(group) else assign(gains)

    def greatest(self, group: Group, gains: np.ndarray) -> np.ndarray:
        """Return the sums of the linear assignment."""
        return np.trace(gains, axis1=-2, axis2=-1) if self.keeps_order(group) else greatest(gains)

    def settle(self, group: Group, keys: np.ndarray, shared: Shared) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return channels by ascending keys within blocks, and blocks by their smallest key unless they are settled."""
        perm, K, gaps = _wreath(group), len(keys), list[np.ndarray]()
        keys = keys.reshape(K, perm.g, perm.k)
        inside = np.argsort(keys, axis=2, kind="stable")
        keys = np.take_along_axis(keys, inside, 2)
        if perm.inner == "fixed":
            inside = np.broadcast_to(np.arange(perm.k), keys.shape)
        else:
            gaps.append(np.diff(keys, axis=2))
        outer = shared.get(f"*{perm.outer}")
        if outer is None:
            outer = shared[f"*{perm.outer}"] = np.argsort(keys[:, :, 0], axis=1, kind="stable")
            gaps.append(np.diff(np.take_along_axis(keys[:, :, 0], outer, 1), axis=1))
        blocks = np.take_along_axis(inside, outer[:, :, None], 1)
        return (blocks + perm.k * outer[:, :, None]).reshape(K, group.n), gaps

    def moved_along(self, group: Group, shared: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Return the permutation of whole blocks, with channels in order."""
        perm = _wreath(group)
        outer = shared.get(f"*{perm.outer}")
        return None if outer is None else block_move(perm, outer)

    def ties(self, group: Group) -> Ties:
        """Return blocks as vertices, each joined to its channels; where these keep their order each place is apart."""
        perm, channels = _wreath(group), np.arange(group.n)
        places = perm.k if perm.inner == "fixed" else 1
        edges = [(f"*{perm.outer}", channels // perm.k, channels)]
        return Ties(channels % places, {f"*{perm.outer}": perm.g}, edges, places)

    def by_ranks(self, group: Group, ranks: np.ndarray, shared: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the permutation by ascending ranks within blocks, and of blocks."""
        perm = _wreath(group)
        outer = np.argsort(shared[f"*{perm.outer}"])
        inside = np.argsort(ranks.reshape(perm.g, perm.k), axis=1)[outer] + perm.k * outer[:, None]
        return inside.reshape(group.n)


class Unmoved(PermutationKind):
    """The identity alone."""

    def random(self, group: Group, K: int, rng: np.random.Generator, spread: float, shared: Shared) -> np.ndarray:
        return self.identity(group, K)

    def check(self, group: Group, value: np.ndarray, perm: np.ndarray, K: int, shared: Shared) -> None:
        """Raise for all permutations but the identity."""
        super().check(group, value, perm, K, shared)
        if not self.is_identity(value):
            raise refused(f"group {group.id!r}: perm", "the identity, as the group is Fixed", "another permutation")

    def together(self, group: Group) -> None:
        """Return None: nothing moves."""

    def keeps_order(self, group: Group) -> bool:
        return True

    def best(self, group: Group, gains: np.ndarray) -> np.ndarray:
        """Return channels in order."""
        return in_order(gains)


class OfAnother(Unmoved):
    """The permutation of another group, which comes before and is used in its place."""

    def random(self, group: Group, K: int, rng: np.random.Generator, spread: float, shared: Shared) -> np.ndarray:
        """Return a copy, so that a change in place in one group does not reach the other."""
        return shared[_like(group).group].copy()

    def check(self, group: Group, value: np.ndarray, perm: np.ndarray, K: int, shared: Shared) -> None:
        """Raise for another permutation than that of the other group."""
        PermutationKind.check(self, group, value, perm, K, shared)
        if (value != shared[_like(group).group]).any():
            expected = f"that of {_like(group).group!r}, which it is like"
            raise refused(f"group {group.id!r}: perm", expected, "another one")


def block_move(perm: Wreath, outer: np.ndarray) -> np.ndarray:
    """Return the (K, n) permutation that moves whole blocks by ``outer`` (K, g) and leaves their insides in order."""
    return (outer[:, :, None] * perm.k + np.arange(perm.k)).reshape(len(outer), perm.g * perm.k)


def in_order(gains: np.ndarray) -> np.ndarray:
    """Return the identity (..., k) for gains (..., k, k)."""
    return np.tile(np.arange(gains.shape[-1]), (*gains.shape[:-2], 1))


def shuffles(rng: np.random.Generator, K: int, n: int) -> np.ndarray:
    """Draw uniform permutations (K, n)."""
    return rng.permuted(np.tile(np.arange(n), (K, 1)), axis=1)


def cycle_and_exchange(n: int) -> list[np.ndarray]:
    """Return two permutations that generate all those of n things."""
    if n < 2:
        return []
    exchange = np.arange(n)
    exchange[:2] = 1, 0
    return [np.roll(np.arange(n), 1), exchange]


def _mixed(group: Group) -> bool:
    """Whether matrices act on the channels, which then keep their order within a block."""
    return group.matrix_shape is not None


def _keeps_within_matrices(group: Group) -> bool:
    """Whether channels keep their order as matrices of blocks mix them; single numbers are permuted with theirs."""
    return group.matrix_shape is not None and len(group.matrix_shape) == 3


def _wreath(group: Group) -> Wreath:
    assert isinstance(group.perm, Wreath)
    return group.perm


def _like(group: Group) -> Like:
    assert isinstance(group.perm, Like)
    return group.perm
