"""Random group elements that follow from seed, epoch, id and view alone, whoever draws them and how many at a time."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.permutation import derive_key
from ckptzoo.schema import layout
from ckptzoo.schema.symmetry import Fixed, Group, Like, Symmetry, Wreath
from ckptzoo.symmetry import GAUGES, GroupElement
from ckptzoo.symmetry.arrays import by_channel, positions

_DOMAIN = 20
"""Keeps the keys of group elements apart from those that order rows."""
_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio, an odd number."""
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Augment:
    """Which symmetries random group elements are taken from.

    Parameters
    ----------
    permutations
        whether channels are permuted, uniformly; groups of blocks by whole blocks and within them.
    scales
        the largest logarithm of a scale: scales are log-uniform in ``[exp(-scales), exp(scales)]``, for the groups that
        scale. Where a channel is normalised by a running variance v, its scale is at least ``sqrt(eps / (v + eps))``,
        below which there is no variance that keeps the function. 0 for none.
    signs
        whether signs are drawn, by a fair coin, for the groups whose scales have signs.

    Raises
    ------
    ZooError
        ``scales`` is negative, not finite, or so large (above 80) that float32 overflows.

    Notes
    -----
    Permutations and signs are the same on every machine; scales to numpy's exponential, whose last bit may differ from
    one processor to another. On one machine all bits are the same for any batch size. Uniformity and independence are
    tested in tests/learning/test_augment.py.

    Examples
    --------
    >>> from ckptzoo import archs
    >>> table = archs.symmetry("mlp-4-8-2")
    >>> element = Augment(scales=0.3).element(table, ["net-0", "net-1"], seed=0, epoch=0)
    >>> element.perms["fc1"].shape, bool((abs(np.log(element.scales["fc1"])) <= 0.3).all())
    ((2, 8), True)
    """

    permutations: bool = True
    scales: float = 0.0
    signs: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.scales <= 80:
            problem = Problem("Augment", "scales", "a logarithm from 0 to 80", str(self.scales), "Choose about 0.3.")
            raise ZooError(problem)

    def element(self, symmetry: Symmetry, ids: Iterable[str], *, seed: int, epoch: int, view: int = 0) -> GroupElement:
        """The group elements that a stream applies to these checkpoints, before running variances bound scales.

        Parameters
        ----------
        symmetry
            the table.
        ids
            of K checkpoints.
        seed, epoch, view
            integers from 0 on.

        Returns
        -------
        GroupElement
            GroupElement of K elements: ``new[i] = scale[i] * old[perm[i]]``.
        """
        keys = element_keys(id_hashes(ids), seed, epoch, view)
        perms, scales = Draw.of(symmetry, self)(keys)
        whole = GroupElement.identity(symmetry, len(keys))
        moved = {**whole.perms, **perms}
        scaled = {name: np.take_along_axis(scale, moved[name], axis=1) for name, scale in scales.items()}
        return GroupElement(moved, {**whole.scales, **scaled})

    def require(self, symmetry: Symmetry | None, variant: str, *, location: str) -> Symmetry:
        """The table, where the elements may be applied to a variant's weights.

        Parameters
        ----------
        symmetry
            the zoo's table, or None.
        variant
            the gauge of the weights.
        location
            what messages call the zoo.

        Raises
        ------
        ZooError
            There is no table, or the variant is one from which these symmetries were removed.
        """
        if symmetry is None:
            step = "Declare one, ckptzoo.derive.declare(zoo, table), or leave out augment=."
            raise ZooError(Problem(location, "augment", "a zoo with a table of symmetries", "none", step))
        collapsed = " and ".join(GAUGES[variant].collapses if variant in GAUGES else ())
        if variant.startswith(layout.ALIGNED):
            collapsed = "scales and permutations"
        wanted = {"permutations": self.permutations, "scales": self.scales > 0 or self.signs}
        for name, asked in wanted.items():
            if asked and name in collapsed:
                step = f"Stream variant='raw', or leave out {name} in Augment."
                got = f"variant {variant!r}, which removed {collapsed}"
                raise ZooError(Problem(location, f"augment with {name}", "weights that still have them", got, step))
        return symmetry


@dataclass(frozen=True, eq=False)
class Draw:
    """What is drawn for one element of a table's group, as columns of a matrix of 64-bit words.

    Parameters
    ----------
    augment
        what is drawn.
    table
        the symmetries.
    constants
        (T,) one for every word; it follows from the group, what is drawn for it and the channel alone.
    sorts
        length n to the first of its columns and the (name, m) that take ``m * n`` of them each.
    scales
        the group and its first column.
    """

    augment: Augment
    table: Symmetry
    constants: Words
    sorts: Mapping[int, tuple[int, tuple[tuple[str, int], ...]]]
    scales: tuple[tuple[Group, int], ...]

    @classmethod
    def of(cls, table: Symmetry, augment: Augment) -> "Draw":
        """The words for a table."""
        lengths: dict[int, list[tuple[str, int]]] = {}
        outers: dict[str, int] = {}
        for group in table.groups if augment.permutations else ():
            if isinstance(group.perm, Wreath):
                outers[group.perm.outer] = group.perm.g
                if group.perm.k > 1 and group.perm.inner == "free":
                    lengths.setdefault(group.perm.k, []).append((f"inner:{group.id}", group.perm.g))
            elif not isinstance(group.perm, Fixed | Like) and group.n > 1:
                lengths.setdefault(group.n, []).append((f"perm:{group.id}", 1))
        for outer, g in outers.items():
            lengths.setdefault(g, []).append((f"outer:{outer}", 1))
        constants: list[Words] = []
        sorts: dict[int, tuple[int, tuple[tuple[str, int], ...]]] = {}
        start = 0
        for n, items in lengths.items():
            sorts[n] = start, tuple(items)
            constants += [_constants(name, m * n) for name, m in items]
            start += sum(m * n for _, m in items)
        scales: list[tuple[Group, int]] = []
        for group in table.groups:
            if (augment.scales and group.resizes) or (augment.signs and group.flips):
                scales.append((group, start))
                constants.append(_constants(f"scale:{group.id}", group.n))
                start += group.n
        joined = np.concatenate(constants) if constants else np.zeros(0, np.uint64)
        return cls(augment, table, joined, sorts, tuple(scales))

    def __call__(self, keys: Words) -> tuple[dict[str, NDArray[np.int64]], dict[str, NDArray[np.float64]]]:
        """Permutations, group to (K, n), and the scales of the channels in their old order, group to (K, n).

        Groups that are left alone are missing.
        """
        K = len(keys)
        words = mixed(keys[:, None] + self.constants)
        drawn: dict[str, NDArray[np.int64]] = {}
        for n, (start, items) in self.sorts.items():
            total = sum(m for _, m in items)
            orders = _orders(words[:, start : start + total * n].reshape(K, total, n))
            at = 0
            for name, m in items:
                drawn[name] = orders[:, at : at + m]
                at += m
        perms: dict[str, NDArray[np.int64]] = {}
        for group in self.table.groups if self.augment.permutations else ():
            if isinstance(group.perm, Wreath):
                g, k = group.perm.g, group.perm.k
                outer = drawn[f"outer:{group.perm.outer}"][:, 0]
                free = k > 1 and group.perm.inner == "free"
                inner = drawn[f"inner:{group.id}"] if free else np.broadcast_to(np.arange(k), (K, g, k))
                perms[group.id] = (outer[:, :, None] * k + inner).reshape(K, group.n)
            elif isinstance(group.perm, Like):
                if group.perm.group in perms:
                    perms[group.id] = perms[group.perm.group]
            elif f"perm:{group.id}" in drawn:
                perms[group.id] = drawn[f"perm:{group.id}"][:, 0]
        scales: dict[str, NDArray[np.float64]] = {}
        for group, start in self.scales:
            found = words[:, start : start + group.n]
            scale = np.ones(found.shape)
            if self.augment.scales and group.resizes:
                # the 53 high bits make the scale, the lowest one the sign
                uniform = (found >> np.uint64(11)) * 2.0**-53
                scale = np.exp((2 * uniform - 1) * self.augment.scales)
            if self.augment.signs and group.flips:
                scale = np.where(found & np.uint64(1), -scale, scale)
            scales[group.id] = scale
        return perms, scales


def bounded(
    scales: Mapping[str, NDArray[np.float64]], read: Callable[[str], NDArray[Any]], table: Symmetry
) -> dict[str, NDArray[np.float64]]:
    """The scales, of which none makes a running variance negative.

    Parameters
    ----------
    scales
        group to (K, n), of the channels in the order of the tensors.
    read
        a running variance by its name, (K, *shape).
    """
    made = dict(scales)
    for action in table.actions:
        if action.exponent != 2 or not action.eps or not action.groups & made.keys():
            continue
        variance = by_channel(np.asarray(read(action.tensor), np.float64), action)
        variance = np.maximum(variance, 0).reshape(len(variance), variance.shape[1] * variance.shape[2], -1)
        for name, places in positions(action, table):
            if name in made:
                least = np.sqrt(action.eps / (variance[:, places].min(axis=(2, 3)) + action.eps))
                made[name] = np.copysign(np.maximum(np.abs(made[name]), least), made[name])
    return made


def id_hashes(ids: Iterable[str]) -> Words:
    """(N,) the first 64 bits of the sha256 of every id."""
    digests = b"".join(hashlib.sha256(id.encode()).digest()[:8] for id in ids)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def element_keys(hashes: Words, seed: int, epoch: int, view: int) -> Words:
    """(N,) the keys from which the words of these checkpoints follow."""
    return mixed(hashes ^ _stream_key(seed, epoch, view))


@lru_cache(1024)
def _stream_key(seed: int, epoch: int, view: int) -> np.uint64:
    return derive_key(seed, epoch, view, _DOMAIN)


def mixed(words: Words) -> Words:
    """Words of which every bit depends on every bit: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    made = words ^ (words >> np.uint64(30))
    made *= np.uint64(0xBF58476D1CE4E5B9)
    made ^= made >> np.uint64(27)
    made *= np.uint64(0x94D049BB133111EB)
    made ^= made >> np.uint64(31)
    return made


def _constants(name: str, count: int) -> Words:
    return mixed(id_hashes([name]) + np.uint64(_GOLDEN) * np.arange(1, count + 1, dtype=np.uint64))


def _orders(words: Words) -> NDArray[np.int64]:
    """(..., n) the order of the words of every row.

    The low bits of a word give way to its place, so that a sort of plain numbers, which is several times faster than
    an argsort, brings the places along and no two are equal. For n channels 64 - log2(n) bits decide.
    """
    n = words.shape[-1]
    low = np.uint64((1 << (n - 1).bit_length()) - 1)
    packed = (words & ~low) | np.arange(n, dtype=np.uint64)
    packed.sort(axis=-1)
    packed &= low
    return packed.view(np.int64)
