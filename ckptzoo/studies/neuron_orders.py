"""The orders of neurons: of channels of each group within their blocks, and of blocks, and their keys."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema.groups import ROLES, AxisAction, Fixed, Group, Like, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import canonicalize, ordering_keys
from ckptzoo.symmetry.arrays import Stacked, by_channel, positions

Keys = dict[str, NDArray[np.float64]]
"""Group id to (K, n), for raw channels in their raw order; groups that are ``Like`` another are left out."""


@dataclass(frozen=True)
class NeuronOrder:
    """One or several orders of n things in every checkpoint.

    ``label`` names what is ordered: ``fc1``, ``conv2 within its 2 blocks``, ``blocks of conv1 and conv2``. The
    permutation of ``group`` holds the order, and its keys decide it; the group has ``g`` blocks of ``k`` channels, 1
    and n where it has none. ``blocks`` is True where whole blocks are ordered, by the smallest or the largest key of
    each, and False for the channels within each.
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

        ``perms`` are the group's (K, g * k) permutations: channel i of the variant is channel ``perms[:, i]`` of raw.
        Returns (K, v, n): v is 1 for blocks, else the number of blocks; each last axis holds 0 to n - 1.
        """
        # argsort of a permutation is its inverse, from raw places to those of the variant
        ranks = np.argsort(perms, axis=1).reshape(len(perms), self.g, self.k)
        # blocks move as a whole: the first channel of each shows where it goes
        return ranks[:, None, :, 0] // self.k if self.blocks else ranks % self.k

    def keys(self, keys: NDArray[np.float64], *, largest: bool = False) -> NDArray[np.float64]:
        """The keys of what is ordered, (K, v, n), from those of the group's raw channels, (K, g * k). ``largest`` says
        whether a block goes by the largest of its keys; by default by the smallest, as in gauges.
        """
        by_block = keys.reshape(len(keys), self.g, self.k)
        if not self.blocks:
            return by_block
        return (by_block.max(axis=2) if largest else by_block.min(axis=2))[:, None]


def orders(symmetry: Symmetry) -> tuple[NeuronOrder, ...]:
    """The orders of a table, from input to output, without those of a single thing and those of Fixed groups. Groups
    that are ``Like`` another share its order. The first group that names a block permutation decides it.
    """
    ordered: list[NeuronOrder] = []
    outers: set[str] = set()
    for group in symmetry.groups:
        perm = group.perm
        if isinstance(perm, Fixed | Like):
            continue
        if not isinstance(perm, Wreath):
            perm = Wreath("", 1, group.n)  # a plain symmetric group is a single block
        elif perm.outer not in outers:
            outers.add(perm.outer)
            if perm.g > 1:
                ordered.append(
                    NeuronOrder(f"blocks of {_groups_of(perm.outer, symmetry)}", group.id, perm.g, perm.k, True)
                )
        if perm.k > 1 and perm.inner == "free":
            label = group.id if perm.g == 1 else f"{group.id} within its {perm.g} blocks"
            ordered.append(NeuronOrder(label, group.id, perm.g, perm.k, False))
    return tuple(ordered)


def _groups_of(outer: str, symmetry: Symmetry) -> str:
    """The groups that share a block permutation, in words."""

    def shares(group: Group) -> bool:
        return isinstance(group.perm, Wreath) and group.perm.outer == outer

    first, *others = [group.id for group in symmetry.groups if shares(group)]
    if len(others) > 1:
        return f"{first} and {len(others)} more"
    return f"{first} and {others[0]}" if others else first


def keys_of(variant: str) -> Callable[[Stacked, Symmetry], Keys]:
    """The keys that decide a variant's orders: first weights for ``first-weight``, else those of ``canonical``."""
    return first_weights if variant == "first-weight" else ordering_keys


def first_weights(weights: Stacked, symmetry: Symmetry) -> Keys:
    """The first of each channel's incoming weights of unit norm, the channels before it in order.

    ``weights`` maps names to raw tensors, (K, *shape), all finite. Raises ``SymmetryError`` if the gauge
    ``first-weight`` is not defined for the table.
    """
    canonical = canonicalize(weights, symmetry, gauge="first-weight")
    keys_by_group: Keys = {}
    for group, writers in _writers(symmetry):
        # the tensor that the gauge looks at: weights or a gain before biases (as ckptzoo.symmetry.moments sorts them)
        action = min(writers, key=lambda action: action.role not in ("out", "gain"))
        channels = by_channel(np.asarray(canonical.weights[action.tensor]), action)
        places = next(places for name, places in positions(action, symmetry) if name == group.id)
        first = channels.reshape(len(channels), channels.shape[1] * channels.shape[2], -1)[:, places[:, 0], 0]
        keys = np.empty(first.shape)
        # channel i of the gauge is channel perms[i] of raw: put each key back where its raw channel is
        np.put_along_axis(keys, canonical.element.perms[group.id], first.astype(np.float64), 1)
        keys_by_group[group.id] = keys
    return keys_by_group


def _writers(symmetry: Symmetry) -> Iterator[tuple[Group, list[AxisAction]]]:
    """Each group that has an order of its own, and the axes that write its channels."""
    for group in symmetry.groups:
        if not isinstance(group.perm, Like):
            yield (
                group,
                [
                    action
                    for action in symmetry.actions
                    if action.exponent == 1 and any(item.group == group.id for item in action.segments)
                ],
            )


def largest_weights(weights: Stacked, symmetry: Symmetry) -> Keys:
    """The largest of each channel's incoming weights as they are, neither scaled nor without their sign.

    After arXiv 2310.08287, section 5.2. A channel that several tensors write to, as those of residual paths are, goes
    by the largest weight in all of them; gains and biases count where no tensor has other weights. ``weights`` maps
    names to raw tensors, (K, *shape).
    """
    keys_by_group: Keys = {}
    for group, writers in _writers(symmetry):
        # weights first; running means of BatchNorm and shifts are there, too
        role = min((action.role for action in writers), key=("out", "gain", "bias", *ROLES).index)
        largest: list[NDArray[np.float64]] = []
        for action in (item for item in writers if item.role == role):
            channels = by_channel(np.asarray(weights[action.tensor]), action)
            flat = channels.reshape(len(channels), channels.shape[1] * channels.shape[2], -1).astype(np.float64).max(2)
            listings = positions(action, symmetry)
            largest += [flat[:, places].max(axis=2) for name, places in listings if name == group.id]
        keys_by_group[group.id] = np.maximum.reduce(largest)
    return keys_by_group
