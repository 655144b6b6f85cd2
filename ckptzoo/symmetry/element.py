"""Elements of a network's symmetry group, K at a time: identity, random, compose, inverse."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.symmetry import Fixed, Group, Like, Symmetry, Wreath
from ckptzoo.symmetry.arrays import as_array, beside, to_numpy


@dataclass(frozen=True, eq=False)
class GroupElement:
    """K elements of a symmetry group: ``new[i] = scale[i] * old[perm[i]]`` for the channels of each group.

    Parameters
    ----------
    perms
        group id to (K, n) integers, each row a permutation.
    scales
        group id to (K, n) float64, for the groups that scale.

    Notes
    -----
    All are of numpy, or all of torch on one device.
    """

    perms: Mapping[str, Any]
    scales: Mapping[str, Any]

    def __len__(self) -> int:
        return len(next(iter(self.perms.values())))

    def __getitem__(self, rows: slice | np.ndarray) -> "GroupElement":
        """The elements of some of the K checkpoints."""
        return GroupElement(
            {name: perm[rows] for name, perm in self.perms.items()},
            {name: scale[rows] for name, scale in self.scales.items()},
        )

    @classmethod
    def identity(cls, symmetry: Symmetry, K: int) -> "GroupElement":
        """The K-fold identity.

        Parameters
        ----------
        symmetry
            the table of the network's groups.
        K
            how many.
        """
        return cls(
            {group.id: np.tile(np.arange(group.n), (K, 1)) for group in symmetry.groups},
            {group.id: np.ones((K, group.n)) for group in symmetry.groups if group.scale != "none"},
        )

    @classmethod
    def random(cls, symmetry: Symmetry, K: int, rng: np.random.Generator, *, spread: float = 1.0) -> "GroupElement":
        """Uniform permutations; scales of sizes ``exp(spread * N(0, 1))`` and of signs by a fair coin, where free.

        Parameters
        ----------
        symmetry
            the table of the network's groups.
        K
            how many.
        rng
            what they are drawn with.
        spread
            standard deviation of the logarithms of scales.
        """
        outers = {
            perm.outer: _shuffles(rng, K, perm.g)
            for perm in (group.perm for group in symmetry.groups)
            if isinstance(perm, Wreath)
        }
        perms: dict[str, np.ndarray] = {}
        scales: dict[str, np.ndarray] = {}
        for group in symmetry.groups:
            if isinstance(group.perm, Like):
                perms[group.id] = perms[group.perm.group].copy()
            else:
                perms[group.id] = _random_perm(group, K, rng, outers)
            if group.resizes:
                scales[group.id] = np.exp(spread * rng.standard_normal((K, group.n)))
            if group.flips:
                scales[group.id] = scales.get(group.id, 1.0) * rng.choice([-1.0, 1.0], (K, group.n))
        return cls(perms, scales)

    def to(self, like: Any) -> "GroupElement":
        """The same elements in the framework and on the device of an array; they may share their memory with these.

        Parameters
        ----------
        like
            a numpy array or a torch tensor.

        Raises
        ------
        SymmetryError
            The device has no float64, which scales need.
        """
        perms = {name: beside(perm, like) for name, perm in self.perms.items()}
        return GroupElement(perms, {name: beside(scale, like) for name, scale in self.scales.items()})

    def compose(self, first: "GroupElement") -> "GroupElement":
        """``self`` after ``first``: ``(g h) . theta = g . (h . theta)``.

        Parameters
        ----------
        first
            the elements that act first, as many as these.
        """
        perms = {name: _taken(first.perms[name], perm) for name, perm in self.perms.items()}
        scales = {name: scale * _taken(first.scales[name], self.perms[name]) for name, scale in self.scales.items()}
        return GroupElement(perms, scales)

    def inverse(self) -> "GroupElement":
        """The element that undoes this one: exactly for permutations, to rounding for scales."""
        perms = {name: array_namespace(perm).argsort(perm, axis=1) for name, perm in self.perms.items()}
        return GroupElement(perms, {name: 1 / _taken(scale, perms[name]) for name, scale in self.scales.items()})

    def check(self, symmetry: Symmetry) -> None:
        """Refuse what is no element of the table's group.

        Parameters
        ----------
        symmetry
            the table of the network's groups.

        Raises
        ------
        SymmetryError
            A group is missing or unknown, a row is no permutation or breaks its blocks, groups that share a
            block permutation disagree, or a scale is of the wrong kind.
        """
        scaled = [group.id for group in symmetry.groups if group.scale != "none"]
        for what, found, expected in (
            ("perms", self.perms, [group.id for group in symmetry.groups]),
            ("scales", self.scales, scaled),
        ):
            if set(found) != set(expected):
                raise _refused(what, ", ".join(expected) or "none", ", ".join(sorted(found)) or "none")
        perms = {name: to_numpy(perm) for name, perm in self.perms.items()}
        outers: dict[str, np.ndarray] = {}
        for group in symmetry.groups:
            _check_perm(group, perms[group.id], len(self), outers)
            if (perms[group.id] != perms[leader := symmetry.leader(group.id).id]).any():
                raise _refused(f"group {group.id!r}: perm", f"that of {leader!r}, which it is like", "another one")
            if group.scale != "none":
                _check_scale(group, to_numpy(self.scales[group.id]), len(self))

    def to_tensors(self) -> dict[str, Any]:
        """The stacked tensors that a zoo stores: ``<group>.perm`` int32 and ``<group>.scale`` float64."""
        perms = {name: (array_namespace(perm), perm) for name, perm in self.perms.items()}
        stored: dict[str, Any] = {f"{name}.perm": xp.astype(perm, xp.int32) for name, (xp, perm) in perms.items()}
        return stored | {f"{name}.scale": scale for name, scale in self.scales.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any]) -> "GroupElement":
        """What ``to_tensors`` made, or what a zoo holds of it: numpy, torch, or anything that numpy can read.

        Parameters
        ----------
        tensors
            ``<group>.perm``, and ``<group>.scale`` of groups that scale.
        """
        found: dict[str, dict[str, Any]] = {"perm": {}, "scale": {}}
        for name, value in tensors.items():
            group, _, kind = name.rpartition(".")
            if kind not in found:
                raise _refused(f"tensor {name!r}", "a name that ends in .perm or .scale", repr(name))
            found[kind][group] = as_array(value)
        return cls(found["perm"], found["scale"])


def block_move(perm: Wreath, outer: np.ndarray) -> np.ndarray:
    """The (K, n) permutation that moves whole blocks by ``outer`` (K, g) and leaves their insides in order."""
    return (outer[:, :, None] * perm.k + np.arange(perm.k)).reshape(len(outer), perm.g * perm.k)


def _taken(values: Any, perm: Any) -> Any:
    """Every row in the order of its permutation."""
    xp = array_namespace(values, perm)
    return xp.take_along_axis(values, xp.astype(perm, xp.int64, copy=False), axis=1)


def _shuffles(rng: np.random.Generator, K: int, n: int) -> np.ndarray:
    return rng.permuted(np.tile(np.arange(n), (K, 1)), axis=1)


def _random_perm(group: Group, K: int, rng: np.random.Generator, outers: Mapping[str, np.ndarray]) -> np.ndarray:
    perm = group.perm
    if isinstance(perm, Fixed):
        return np.tile(np.arange(group.n), (K, 1))
    if isinstance(perm, Wreath):
        if perm.inner == "fixed":
            return block_move(perm, outers[perm.outer])
        inside = _shuffles(rng, K * perm.g, perm.k).reshape(K, perm.g, perm.k)
        return (outers[perm.outer][:, :, None] * perm.k + inside).reshape(K, group.n)
    return _shuffles(rng, K, group.n)


def _check_perm(group: Group, perm: np.ndarray, K: int, outers: dict[str, np.ndarray]) -> None:
    what = f"group {group.id!r}: perm"
    if perm.shape != (K, group.n) or perm.dtype.kind not in "iu":
        raise _refused(what, f"({K}, {group.n}) integers", f"{perm.shape} {perm.dtype}")
    if (np.sort(perm, axis=1) != np.arange(group.n)).any():
        raise _refused(what, f"each of 0 to {group.n - 1} once in every row", "another row")
    if isinstance(group.perm, Fixed) and (perm != np.arange(group.n)).any():
        raise _refused(what, "the identity, as the group is Fixed", "another permutation")
    if isinstance(group.perm, Wreath):
        blocks = (perm // group.perm.k).reshape(K, group.perm.g, group.perm.k)
        outer = blocks[:, :, 0]
        if (blocks != outer[:, :, None]).any():
            raise _refused(what, f"blocks of {group.perm.k} channels that stay together", "a channel across")
        if (outers.setdefault(group.perm.outer, outer) != outer).any():
            raise _refused(what, f"the block permutation {group.perm.outer!r} of the groups before", "another one")
        if group.perm.inner == "fixed" and (perm != block_move(group.perm, outer)).any():
            raise _refused(what, "channels that keep their order within their block", "another order")


def _check_scale(group: Group, scale: np.ndarray, K: int) -> None:
    what = f"group {group.id!r}: scale"
    if scale.shape != (K, group.n) or scale.dtype != np.float64:
        raise _refused(what, f"({K}, {group.n}) float64", f"{scale.shape} {scale.dtype}")
    if group.scale == "nonzero" and not (np.isfinite(scale) & (scale != 0)).all():
        got = str(scale[~(np.isfinite(scale) & (scale != 0))][0])
        raise _refused(what, "finite numbers other than 0", got)
    if group.scale == "sign" and (np.abs(scale) != 1).any():
        raise _refused(what, "+1 or -1", str(scale[np.abs(scale) != 1][0]))
    if group.scale == "positive" and not ((scale > 0) & (scale < np.inf)).all():
        raise _refused(what, "positive finite numbers", str(scale[~((scale > 0) & (scale < np.inf))][0]))


def _refused(what: str, expected: str, got: str) -> SymmetryError:
    return SymmetryError(
        f"group element: {what}: expected {expected}, got {got}. Make elements with GroupElement or canonicalize."
    )
