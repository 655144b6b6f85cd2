"""Elements of a network's symmetry group, K at a time: identity, random, compose, inverse."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ckptzoo.arguments import Size, checked
from ckptzoo.schema.groups import Group
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import as_array, beside, to_numpy
from ckptzoo.symmetry.kinds.kind import Kind, Part, refused
from ckptzoo.symmetry.kinds.registry import arithmetic, kinds_of, permutations_of
from ckptzoo.symmetry.tables import Arch, table_of
from ckptzoo.text import brief_repr

Parts = Mapping[Part, Mapping[str, Any]]
"""Values by part and group id."""


@dataclass(frozen=True, eq=False)
class GroupElement:
    """K elements of a symmetry group: ``new[i] = scale[i] * old[perm[i]]`` for the channels of each group.

    With matrices, ``new = matrix[b] @ old[perm[block b]]`` for block b of k channels.

    Parameters
    ----------
    perms
        group id to (K, n) integers, each row a permutation; whole blocks alone move where there are matrices.
    scales
        group id to (K, n) float64, for the groups that scale.
    matrices
        group id to (K, blocks, k, k) float64, for the groups with matrices, or (K, n, 2) real and imaginary parts of
        complex numbers.

    Notes
    -----
    All are of numpy, or all of torch on one device.
    """

    perms: Mapping[str, Any]
    scales: Mapping[str, Any]
    matrices: Mapping[str, Any] = field(default_factory=dict)

    __repr__ = brief_repr

    def __len__(self) -> int:
        # 0 where the table has no group
        return len(next(iter(self.perms.values()), ()))

    def __getitem__(self, rows: slice | np.ndarray) -> "GroupElement":
        """The elements of some of the K checkpoints."""
        return self._each(lambda _, value: value[rows])

    @property
    def parts(self) -> Parts:
        """Permutations, scales and matrices."""
        return {"perms": self.perms, "scales": self.scales, "matrices": self.matrices}

    def _each(self, made: Callable[[str, Any], Any]) -> "GroupElement":
        """An element whose values a function makes of those of this one."""
        return GroupElement(
            **{part: {name: made(name, value) for name, value in values.items()} for part, values in self.parts.items()}
        )

    def copy(self) -> "GroupElement":
        """The same elements in memory of their own, numpy."""
        return self._each(lambda _, value: value.copy())

    def put(self, rows: np.ndarray | slice, found: "GroupElement") -> None:
        """Put other elements on some rows, in place, for the groups that these have.

        Parameters
        ----------
        rows
            places or a mask of K elements.
        found
            as many elements as there are rows.
        """
        for part, values in found.parts.items():
            for name, value in values.items():
                self.parts[part][name][rows] = value

    @classmethod
    @checked
    def identity(cls, symmetry: Arch, K: Size) -> "GroupElement":
        """The K-fold identity.

        Parameters
        ----------
        symmetry
            the table of the network's groups, or whatever names a network, as for ``canonicalize``.
        K
            how many.
        """
        return cls._made(table_of(symmetry), lambda kind, group: kind.identity(group, K))

    @classmethod
    def _made(cls, symmetry: Symmetry, made: Callable[[Kind, Group], np.ndarray]) -> "GroupElement":
        """An element whose values a function makes for every kind of every group."""
        parts: dict[Part, dict[str, np.ndarray]] = {"perms": {}, "scales": {}, "matrices": {}}
        for group in symmetry.groups:
            for kind in kinds_of(group):
                parts[kind.part][group.id] = made(kind, group)
        return cls(**parts)

    @classmethod
    @checked
    def random(cls, symmetry: Arch, K: Size, rng: np.random.Generator, *, spread: float = 1.0) -> "GroupElement":
        """Uniform permutations; scales of sizes ``exp(spread * N(0, 1))`` and of signs by a fair coin, where free.

        Matrices are ``U diag(exp(spread * N(0, 1))) V`` with uniform orthogonal U and V, or uniform orthogonal ones;
        complex numbers have such a modulus and a uniform phase.

        Parameters
        ----------
        symmetry
            the table of the network's groups, or whatever names a network, as for ``canonicalize``.
        K
            how many.
        rng
            what they are drawn with.
        spread
            standard deviation of the logarithms of scales.
        """
        symmetry = table_of(symmetry)
        shared: dict[str, np.ndarray] = {}
        for group in symmetry.groups:
            permutations_of(group).draw_shared(group, K, rng, shared)

        def drawn(kind: Kind, group: Group) -> np.ndarray:
            value = kind.random(group, K, rng, spread, shared)
            if kind.part == "perms":
                shared[group.id] = value
            return value

        return cls._made(symmetry, drawn)

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
        return self._each(lambda _, value: beside(value, like))

    def compose(self, first: "GroupElement") -> "GroupElement":
        """``self`` after ``first``: ``(g h) . theta = g . (h . theta)``.

        Parameters
        ----------
        first
            the elements that act first, as many as these.
        """
        return GroupElement(
            **{
                part: {
                    name: (kind := arithmetic(part, value)).product(
                        value, kind.moved(first.parts[part][name], self.perms[name])
                    )
                    for name, value in values.items()
                }
                for part, values in self.parts.items()
            }
        )

    def inverse(self) -> "GroupElement":
        """The element that undoes this one: exactly for permutations, to rounding for scales and matrices."""
        perms = {name: arithmetic("perms", perm).inverse(perm) for name, perm in self.perms.items()}
        scales, matrices = (
            {
                name: (kind := arithmetic(part, value)).moved(kind.inverse(value), perms[name])
                for name, value in values.items()
            }
            for part, values in self.parts.items()
            if part != "perms"
        )
        return GroupElement(perms, scales, matrices)

    def check(self, symmetry: Arch) -> None:
        """Refuse what is no element of the table's group.

        Parameters
        ----------
        symmetry
            the table of the network's groups, or whatever names a network, as for ``canonicalize``.

        Raises
        ------
        SymmetryError
            A group is missing or unknown, a row is no permutation or breaks its blocks, groups that share a
            block permutation disagree, or a scale or a matrix is of the wrong kind.
        """
        symmetry = table_of(symmetry)
        kinds = [(group, kind) for group in symmetry.groups for kind in kinds_of(group)]
        for part, values in self.parts.items():
            expected = [group.id for group, kind in kinds if kind.part == part]
            if set(values) != set(expected):
                raise refused(part, ", ".join(expected) or "none", ", ".join(sorted(values)) or "none")
        shared: dict[str, np.ndarray] = {}
        for group in symmetry.groups:
            perm = shared[group.id] = to_numpy(self.perms[group.id])
            for kind in sorted(kinds_of(group), key=lambda kind: kind.part != "perms"):
                kind.check(group, to_numpy(self.parts[kind.part][group.id]), perm, len(self), shared)

    def to_tensors(self) -> dict[str, Any]:
        """The stacked tensors that a zoo stores: ``<group>.perm`` int32, ``<group>.scale`` and ``.matrix`` float64."""
        perms = {name: (array_namespace(perm), perm) for name, perm in self.perms.items()}
        stored: dict[str, Any] = {f"{name}.perm": xp.astype(perm, xp.int32) for name, (xp, perm) in perms.items()}
        stored |= {f"{name}.scale": scale for name, scale in self.scales.items()}
        return stored | {f"{name}.matrix": matrix for name, matrix in self.matrices.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any]) -> "GroupElement":
        """Return the element that ``to_tensors`` stored, from numpy, torch, or anything that numpy can read.

        Parameters
        ----------
        tensors
            ``<group>.perm``, ``<group>.scale`` of groups that scale, ``<group>.matrix`` of those with matrices.
        """
        found: dict[str, dict[str, Any]] = {"perm": {}, "scale": {}, "matrix": {}}
        for name, value in tensors.items():
            group, _, kind = name.rpartition(".")
            if kind not in found:
                raise refused(f"tensor {name!r}", "a name that ends in .perm, .scale or .matrix", repr(name))
            found[kind][group] = as_array(value)
        return cls(found["perm"], found["scale"], found["matrix"])
