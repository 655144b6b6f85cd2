"""What a gauge puts in order: the channels of each group, within their blocks, and the blocks themselves."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.spec.symmetry import Fixed, Group, Like, Symmetry, Wreath


@dataclass(frozen=True)
class Order:
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


def orders(symmetry: Symmetry) -> tuple[Order, ...]:
    """The orders of a table, from input to output; those of a single thing and of Fixed groups are none.

    Groups that are ``Like`` another share its order. The first group that names a block permutation decides it.
    """
    found: list[Order] = []
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
                found.append(Order(f"blocks of {_sharing(perm.outer, symmetry)}", group.id, perm.g, perm.k, True))
        if perm.k > 1:
            label = group.id if perm.g == 1 else f"{group.id} within its {perm.g} blocks"
            found.append(Order(label, group.id, perm.g, perm.k, False))
    return tuple(found)


def _sharing(outer: str, symmetry: Symmetry) -> str:
    def names(group: Group) -> bool:
        return isinstance(group.perm, Wreath) and group.perm.outer == outer

    first, *others = [group.id for group in symmetry.groups if names(group)]
    if len(others) > 1:
        return f"{first} and {len(others)} more"
    return f"{first} and {others[0]}" if others else first
