"""What a zoo is: architecture, symmetry table, card, metadata columns, layout. Standard library only."""

from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.card import Card, Picture
from ckptzoo.schema.split import HashSplit, ListSplit
from ckptzoo.schema.symmetry import AxisAction, Fixed, Group, Like, Segment, Sym, Symmetry, Wreath

__all__ = [
    "Architecture",
    "AxisAction",
    "Card",
    "Fixed",
    "Group",
    "HashSplit",
    "Like",
    "ListSplit",
    "Picture",
    "Segment",
    "Sym",
    "Symmetry",
    "Tensor",
    "Wreath",
]
