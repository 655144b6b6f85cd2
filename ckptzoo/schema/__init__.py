"""The declarations of a zoo, such as architecture, symmetry table and card, and the catalogue of published sets.

They need the standard library only.
"""

from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.card import Card, Picture
from ckptzoo.schema.catalogue import Paper, PublishedSet
from ckptzoo.schema.folds import Fold, Target, TensorPart
from ckptzoo.schema.groups import AxisAction, Fixed, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.release import Release
from ckptzoo.schema.reproduction import Reproduction
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
    "Paper",
    "Picture",
    "PublishedSet",
    "Release",
    "Reproduction",
    "Segment",
    "Sym",
    "Symmetry",
    "Target",
    "Tensor",
    "TensorPart",
    "Wreath",
]
