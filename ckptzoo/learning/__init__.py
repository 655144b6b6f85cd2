"""Weights as training data: streams with random group elements, statistics, targets, mixes of zoos.

>>> import ckptzoo
>>> from ckptzoo import learning
>>> zoo = ckptzoo.open("cards/mnist-optunet")
>>> stream = learning.stream(zoo, target="test_accuracy", augment=learning.Augment(scales=0.3))
>>> next(iter(stream)).y.shape
(64,)
"""

from ckptzoo.learning.augment import Augment
from ckptzoo.learning.augmented_stream import Stream, stream, to_torch
from ckptzoo.learning.forms import Form
from ckptzoo.learning.mixing import Mix, mix
from ckptzoo.learning.preparation import Batch
from ckptzoo.learning.standardization import PER, Statistics, statistics
from ckptzoo.learning.target_values import targets

__all__ = [
    "PER",
    "Augment",
    "Batch",
    "Form",
    "Mix",
    "Statistics",
    "Stream",
    "mix",
    "statistics",
    "stream",
    "targets",
    "to_torch",
]
