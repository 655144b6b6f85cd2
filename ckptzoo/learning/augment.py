"""Random group elements determined by seed, epoch, id and view alone, however many are drawn at a time."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.arguments import is_number
from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.permutation import derive_key
from ckptzoo.schema import layout
from ckptzoo.schema.groups import MATRICES, Fixed, Group, Like, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GAUGES, GroupElement
from ckptzoo.symmetry.arrays import by_channel, positions
from ckptzoo.symmetry.gauges import gauge_of
from ckptzoo.symmetry.kinds.matrix import uniform_orthogonal
from ckptzoo.symmetry.kinds.orthogonal import keeping_ones
from ckptzoo.symmetry.matrices.tables import among, lifted

_DOMAIN = 20
"""A word that keeps the keys of group elements apart from those that order rows."""
_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio, an odd number."""
INVERTIBLE, ORTHOGONAL = ("linear", "complex"), ("orthogonal", "orthogonal_mean")
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
    matrices
        the largest logarithm of a singular value of the invertible matrices of heads and low-rank updates, ``U S V``
        with uniform orthogonal U and V and log-uniform S in ``[exp(-matrices), exp(matrices)]``, and of the modulus of
        complex numbers, whose phase is uniform; from 0 on. None for none: the channels of their blocks are permuted,
        scaled and change signs as others do.
    rotations
        whether uniform orthogonal matrices turn the streams that RMSNorm or LayerNorm reads; of weights whose gains are
        1 alone, and others are refused where they are streamed. Else their channels are permuted.

    Raises
    ------
    ZooError
        ``scales`` or ``matrices`` is negative, not finite, or so large (above 80) that float32 overflows.

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
    matrices: float | None = None
    rotations: bool = False

    def __post_init__(self) -> None:
        for name, value in (("scales", self.scales), ("matrices", 0 if self.matrices is None else self.matrices)):
            # e^80 is 5.5e34, and float32 ends at 3.4e38
            if not (is_number(value) and 0 <= value <= 80):
                problem = Problem("Augment", name, "a logarithm from 0 to 80", str(value), "Choose about 0.3.")
                raise ZooError(problem)

    def table(self, symmetry: Symmetry) -> Symmetry:
        """The table of the symmetries that are drawn: matrices that are not drawn leave permutations and scales.

        Parameters
        ----------
        symmetry
            the network's table.

        Returns
        -------
        Symmetry
            that one, or one of a subgroup.
        """
        kept = (*(() if self.matrices is None else INVERTIBLE), *(ORTHOGONAL if self.rotations else ()))
        return among(symmetry, keep=lambda group: group.scale in kept)

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
            GroupElement of K elements: ``new[i] = scale[i] * old[perm[i]]``, and ``matrix[b] @ old[perm[block b]]``.
        """
        keys = element_keys(id_hashes(ids), seed, epoch, view)
        drawn = self.table(symmetry)
        draw = ElementDraw.of(drawn, self)
        (perms, scales), matrices = draw(keys), draw.matrices(keys)
        whole = GroupElement.identity(drawn, len(keys))
        moved = {**whole.perms, **perms}
        scaled = {name: np.take_along_axis(scale, moved[name], axis=1) for name, scale in scales.items()}
        turned = {name: in_new_order(matrix, moved[name]) for name, matrix in matrices.items()}
        element = GroupElement(moved, {**whole.scales, **scaled}, {**whole.matrices, **turned})
        return element if drawn is symmetry else lifted(element, symmetry)

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
            There is no table, or the variant is one from which these symmetries were removed; or matrices are asked for
            and the table has none.
        """
        if symmetry is None:
            step = "Declare one, ckptzoo.derive.declare(zoo, table), or leave out augment=."
            raise ZooError(Problem(location, "augment", "a zoo with a table of symmetries", "none", step))
        collapsed = " and ".join(GAUGES[variant].collapses if variant in GAUGES else ())
        if variant.startswith(layout.ALIGNED):
            collapsed = "scales and permutations"
        wanted = {"permutations": self.permutations, "scales": self.scales > 0 or self.signs}
        removed = {name: name in collapsed for name in wanted}
        if symmetry.has_matrices:
            wanted |= {"matrices": self.matrices is not None, "rotations": self.rotations}
            if variant in GAUGES:
                collapsed = " and ".join(gauge_of(GAUGES[variant].name, symmetry).collapses)
            elif variant.startswith(layout.ALIGNED):
                collapsed = "scales, permutations and matrices"
            every = collapsed.replace("invertible matrices", "")
            # channels of a block are permuted and scaled by matrices too
            removed = {name: name in collapsed or "matrices" in collapsed for name in removed}
            removed |= {"matrices": "matrices" in collapsed or "scales" in collapsed, "rotations": "matrices" in every}
        elif self.matrices is not None or self.rotations:
            step = "Leave out matrices and rotations in Augment."
            raise ZooError(Problem(location, "augment with matrices", "a table that has some", "another", step))
        for name, asked in wanted.items():
            if asked and removed[name]:
                step = f"Stream variant='raw', or leave out {name} in Augment."
                got = f"variant {variant!r}, which removed {collapsed}"
                raise ZooError(Problem(location, f"augment with {name}", "weights that still have them", got, step))
        return symmetry


@dataclass(frozen=True, eq=False)
class ElementDraw:
    """The random draw of one element of a table's group, as columns of a matrix of 64-bit words.

    ``constants`` are (T,), one for every word, which follows from the group, what is drawn for it and the channel
    alone; ``sorts`` maps lengths n to the first of their columns and the (name, m) that take ``m * n`` of them each;
    ``scales`` has each group and its first column; ``mixing`` has the groups whose matrices are drawn, and the
    constants of the words for each.
    """

    augment: Augment
    table: Symmetry
    constants: Words
    sorts: Mapping[int, tuple[int, tuple[tuple[str, int], ...]]]
    scales: tuple[tuple[Group, int], ...]
    mixing: tuple[tuple[Group, Words], ...] = ()

    @classmethod
    def of(cls, table: Symmetry, augment: Augment) -> "ElementDraw":
        """The words for a table."""
        lengths: dict[int, list[tuple[str, int]]] = {}
        outers: dict[str, int] = {}
        for group in table.groups if augment.permutations else ():
            if isinstance(group.perm, Wreath):
                outers[group.perm.outer] = group.perm.g
                if _moves_inside(group):
                    lengths.setdefault(group.perm.k, []).append((f"inner:{group.id}", group.perm.g))
            elif not isinstance(group.perm, Fixed | Like) and group.n > 1 and group.scale not in MATRICES:
                lengths.setdefault(group.n, []).append((f"perm:{group.id}", 1))
        for outer, g in outers.items():
            lengths.setdefault(g, []).append((f"outer:{outer}", 1))
        constants: list[Words] = []
        sorts: dict[int, tuple[int, tuple[tuple[str, int], ...]]] = {}
        start = 0
        # permutations of equal length are drawn by one sort
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
        mixing = tuple((group, _constants(f"matrix:{group.id}", _words_of(group))) for group in _mixing(table))
        return cls(augment, table, joined, sorts, tuple(scales), mixing)

    def __call__(self, keys: Words) -> tuple[dict[str, NDArray[np.int64]], dict[str, NDArray[np.float64]]]:
        """Permutations, and scales of the channels in their old order, (K, n) of each group that is not left alone."""
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
                inner = drawn[f"inner:{group.id}"] if _moves_inside(group) else np.broadcast_to(np.arange(k), (K, g, k))
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

    def matrices(self, keys: Words) -> dict[str, NDArray[np.float64]]:
        """Matrices of the blocks in their old order, group to (K, blocks, k, k) or (K, n, 2)."""
        size = self.augment.matrices or 0.0
        found: dict[str, NDArray[np.float64]] = {}
        for group, constants in self.mixing:
            # one checkpoint at a time: the words of a wide stream are as many as a layer's weights
            made = [_matrices_of(group, mixed(key + constants), size) for key in keys]
            shape = group.matrix_shape
            assert shape is not None
            found[group.id] = np.stack(made) if made else np.zeros((0, *shape))
        return found


def in_new_order(matrices: NDArray[np.float64], perm: NDArray[np.int64]) -> NDArray[np.float64]:
    """The matrices of every block where the permutation (K, n) of the channels brings it."""
    blocks = matrices.shape[1]
    order = perm[:, :: perm.shape[1] // blocks] // (perm.shape[1] // blocks)
    return np.take_along_axis(matrices, order.reshape(*order.shape, *[1] * (matrices.ndim - 2)), axis=1)


def _moves_inside(group: Group) -> bool:
    perm = group.perm
    return isinstance(perm, Wreath) and perm.k > 1 and perm.inner == "free" and group.scale not in MATRICES


def _mixing(table: Symmetry) -> list[Group]:
    return [group for group in table.groups if group.scale in MATRICES]


def _words_of(group: Group) -> int:
    """How many words make the matrices of one element: two for each pair of normal numbers."""
    shape = group.matrix_shape
    assert shape is not None
    if group.scale == "complex":
        return 2 * group.n
    blocks, k, _ = shape
    even = blocks * k * k + blocks * k * k % 2
    return 2 * even + blocks * k if group.scale == "linear" else even


def _matrices_of(group: Group, words: Words, size: float) -> NDArray[np.float64]:
    """Matrices (blocks, k, k), or complex numbers (n, 2), from words of their own."""
    shape = group.matrix_shape
    assert shape is not None
    uniform: NDArray[np.float64] = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    if group.scale == "complex":
        # a complex number acts on a pair as a rotation times a factor
        moduli, phases = np.exp((2 * uniform[: group.n] - 1) * size), 2 * np.pi * uniform[group.n :]
        return np.stack([moduli * np.cos(phases), moduli * np.sin(phases)], axis=-1)
    blocks, k, _ = shape
    count = blocks * k * k
    even = count + count % 2
    first = _normal(uniform[:even])[:count].reshape(shape)
    if group.scale == "linear":
        second = _normal(uniform[even : 2 * even])[:count].reshape(shape)
        # singular values from e^-size to e^size between two uniform orthogonal matrices
        values = np.exp((2 * uniform[2 * even :] - 1) * size).reshape(blocks, 1, k)
        return (uniform_orthogonal(first) * values) @ uniform_orthogonal(second)
    if group.scale == "orthogonal":
        return uniform_orthogonal(first)
    # those that keep the vector of ones are the orthogonal matrices of its k - 1 dimensional complement
    return keeping_ones(uniform_orthogonal(first[..., 1:, 1:]))


def _normal(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    """Independent normal numbers from as many uniform ones in [0, 1) (Box and Muller 1958)."""
    half = len(uniform) // 2
    # log(1 - u), which is finite: u is below 1 and may be 0
    radius, angle = np.sqrt(-2 * np.log1p(-uniform[:half])), 2 * np.pi * uniform[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


def bounded(
    scales: Mapping[str, NDArray[np.float64]], read: Callable[[str], NDArray[Any]], table: Symmetry
) -> dict[str, NDArray[np.float64]]:
    """The scales, of which none makes a running variance negative. ``scales`` maps groups to (K, n), one for each of
    the channels in the order of the tensors; ``read`` returns a running variance by its name, (K, *shape).
    """
    made = dict(scales)
    for action in table.actions:
        if action.exponent != 2 or not action.eps or not action.groups & made.keys():
            continue
        variance = by_channel(np.asarray(read(action.tensor), np.float64), action)
        variance = np.maximum(variance, 0).reshape(len(variance), variance.shape[1] * variance.shape[2], -1)
        for name, places in positions(action, table):
            if name in made:
                # (v + eps) s^2 - eps is 0 or more for s^2 of eps / (v + eps) or more
                least = np.sqrt(action.eps / (variance[:, places].min(axis=(2, 3)) + action.eps))
                made[name] = np.copysign(np.maximum(np.abs(made[name]), least), made[name])
    return made


def id_hashes(ids: Iterable[str]) -> Words:
    """(N,) the first 64 bits of the sha256 of every id."""
    # Python's own hash of a text differs from process to process
    digests = b"".join(hashlib.sha256(id.encode()).digest()[:8] for id in ids)
    # little-endian on every machine
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
    # as SplitMix64 steps its state, from a start that follows from the name
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
