"""Reading a zoo: the zoo, its stacked tensors, streams, checkpoints."""

from ckptzoo.loader.checkpoint import Checkpoint
from ckptzoo.loader.collection import Collection, ZooEntry
from ckptzoo.loader.lazy_tensor import StackedTensor
from ckptzoo.loader.predictions import Predictions
from ckptzoo.loader.stream import Batch, Stream
from ckptzoo.loader.zoo import Zoo

__all__ = [
    "Batch",
    "Checkpoint",
    "Collection",
    "Predictions",
    "StackedTensor",
    "Stream",
    "Zoo",
    "ZooEntry",
]
