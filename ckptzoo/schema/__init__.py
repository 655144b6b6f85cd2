"""The declarations of a zoo: architecture, symmetry table, card, metadata columns, layout. Standard library only."""

from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.card import Card, Picture
from ckptzoo.schema.folds import Fold, Part, Target
from ckptzoo.schema.groups import AxisAction, Fixed, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.split import HashSplit, ListSplit
from ckptzoo.schema.symmetry import Symmetry

__all__ = [
    "Architecture",
    "AxisAction",
    "Card",
    "Fixed",
    "Fold",
    "Group",
    "HashSplit",
    "Like",
    "ListSplit",
    "Part",
    "Picture",
    "Segment",
    "Sym",
    "Symmetry",
    "Target",
    "Tensor",
    "Wreath",
]
