"""How studies read the weights of a zoo: which tensors, in which pieces, with which progress.

What a gauge puts in order: the channels of each group, within their blocks, and the blocks themselves.

Some of many, without chance.

Whether a zoo has what a study of its symmetries needs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.errors import SymmetryError, UnknownNameError, ZooError
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.symmetry import Fixed, Group, Like, Symmetry, Wreath
from ckptzoo.symmetry import GAUGES

BATCH_BYTES = 16 * 2**20
"""Weights that are read at a time, as far as whole rows allow."""


def parameter_names(arch: Architecture) -> list[str]:
    """Floating-point parameters; buffers, such as running statistics, are not among them."""
    return [tensor.name for tensor in arch.tensors if tensor.kind == "parameter" and "float" in tensor.dtype]


def weight_names(arch: Architecture) -> list[str]:
    """Floating-point parameters with two axes or more; all of them where there are none such."""
    floats = parameter_names(arch)
    return [name for name in floats if len(arch[name].shape) > 1] or floats


def batches(zoo: Zoo, name: str, variant: str) -> Iterator[NDArray[np.generic]]:
    """A tensor of all checkpoints in zoo order, (K, *shape) at a time, about ``BATCH_BYTES`` each."""
    row_bytes = max(1, zoo[name, variant].nbytes // len(zoo))
    for batch in zoo.stream(name, variant=variant, batch_size=max(1, BATCH_BYTES // row_bytes)):
        yield batch[name]


@dataclass(frozen=True)
class NeuronOrder:
    """One or several orders of n things in every checkpoint.

    Parameters
    ----------
    label : what is ordered: ``fc1``, ``conv2 within its 2 blocks``, ``blocks of conv1 and conv2``.
    group : whose permutation holds the order, and whose keys decide it.
    g, k : the group has g blocks of k channels; 1 and n where it has none.
    blocks : True where whole blocks are ordered, by their smallest key; False for the channels within each.
    """

    label: str
    group: str
    g: int
    k: int
    blocks: bool

    @property
    def n(self) -> int:
        """How many things an order holds."""
        return self.g if self.blocks else self.k

    def ranks(self, perms: NDArray[np.integer]) -> NDArray[np.int64]:
        """The place of each raw channel or block in the variant.

        Parameters
        ----------
        perms : (K, g * k) the group's permutations: channel i of the variant is channel ``perms[:, i]`` of raw.

        Returns
        -------
        (K, v, n): v is 1 for blocks, else the number of blocks; each last axis holds 0 to n - 1.
        """
        ranks = np.argsort(perms, axis=1).reshape(len(perms), self.g, self.k)
        return ranks[:, None, :, 0] // self.k if self.blocks else ranks % self.k

    def keys(self, keys: NDArray[np.float64]) -> NDArray[np.float64]:
        """The keys of what is ordered, (K, v, n), from those of the group's raw channels, (K, g * k)."""
        found = keys.reshape(len(keys), self.g, self.k)
        return found.min(axis=2)[:, None] if self.blocks else found


def orders(symmetry: Symmetry) -> tuple[NeuronOrder, ...]:
    """The orders of a table, from input to output; those of a single thing and of Fixed groups are none.

    Groups that are ``Like`` another share its order. The first group that names a block permutation decides it.
    """
    found: list[NeuronOrder] = []
    outers: set[str] = set()
    for group in symmetry.groups:
        perm = group.perm
        if isinstance(perm, Fixed | Like):
            continue
        if not isinstance(perm, Wreath):
            perm = Wreath("", 1, group.n)
        elif perm.outer not in outers:
            outers.add(perm.outer)
            if perm.g > 1:
                found.append(NeuronOrder(f"blocks of {_sharing(perm.outer, symmetry)}", group.id, perm.g, perm.k, True))
        if perm.k > 1:
            label = group.id if perm.g == 1 else f"{group.id} within its {perm.g} blocks"
            found.append(NeuronOrder(label, group.id, perm.g, perm.k, False))
    return tuple(found)


def _sharing(outer: str, symmetry: Symmetry) -> str:
    def names(group: Group) -> bool:
        return isinstance(group.perm, Wreath) and group.perm.outer == outer

    first, *others = [group.id for group in symmetry.groups if names(group)]
    if len(others) > 1:
        return f"{first} and {len(others)} more"
    return f"{first} and {others[0]}" if others else first


_T = TypeVar("_T")


def evenly(number: int, most: int) -> NDArray[np.int64]:
    """At most so many of the places 0 to number - 1, evenly spaced from the first to the last; ascending."""
    return np.unique(np.linspace(0, number - 1, min(number, most)).round().astype(np.int64))


def thinned(items: Sequence[_T], most: int) -> tuple[list[_T], int]:
    """At most so many of the items, evenly spaced from the first to the last, and how many are left out."""
    places = evenly(len(items), most)
    return [items[at] for at in places], len(items) - len(places)


def table_of(zoo: Zoo, variant: str) -> Symmetry:
    """The symmetry table of a zoo that has checkpoints and this variant.

    Raises
    ------
    UnknownNameError
        There is neither a variant nor a gauge of this name.
    SymmetryError, ZooError
        What is missing, and the command that makes it.
    """
    if not len(zoo):
        raise ZooError(f"{zoo.name}: checkpoints: expected at least one, got none. Select others.")
    derived = [name for name in zoo.variants if name != layout.RAW]
    if variant not in derived and variant not in GAUGES:
        raise UnknownNameError(zoo.name, "variant", variant, list(dict.fromkeys([*derived, *GAUGES])))
    folder = zoo.contents.files.here
    command = f"{'Run' if folder else 'Pull the zoo, then run'} ckptzoo derive {folder or 'FOLDER'} --gauge {variant}"
    if zoo.symmetry is None:
        step = command
        if not archs.known(zoo.arch.forward):
            step = f"Declare one with ckptzoo.derive.declare({str(folder or 'FOLDER')!r}, table). {command}"
        raise SymmetryError(f"{zoo.name}: symmetry table: expected one, got none. {step}.")
    if variant not in derived:
        had = ", ".join(zoo.variants)
        raise ZooError(f"{zoo.name}: variants: expected {variant!r} among them, got {had}. {command}.")
    return zoo.symmetry


def own_table(zoo: Zoo) -> Symmetry:
    """The zoo's table, or where it has none that of its architecture in ``ckptzoo.archs``.

    Raises
    ------
    SymmetryError
        There is neither.
    """
    if zoo.symmetry is not None:
        return zoo.symmetry
    if archs.known(zoo.arch.forward):
        return archs.symmetry(zoo.arch.forward)
    raise SymmetryError(
        f"{zoo.name}: symmetry table: expected one, got none. "
        f"Declare one with ckptzoo.derive.declare({str(zoo.contents.files.here or 'FOLDER')!r}, table)."
    )
