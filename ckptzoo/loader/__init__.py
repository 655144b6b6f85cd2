"""Reading a zoo: the zoo, its stacked tensors, streams, checkpoints."""

from typing import TYPE_CHECKING

from ckptzoo.lazy_names import lazy_names

__all__ = [
    "Batch",
    "Checkpoint",
    "Citation",
    "Collection",
    "Predictions",
    "Rebuilt",
    "RebuiltMember",
    "StackedTensor",
    "Stream",
    "Zoo",
    "ZooEntry",
]

if TYPE_CHECKING:
    from ckptzoo.loader.checkpoint import Checkpoint as Checkpoint
    from ckptzoo.loader.citation import Citation as Citation
    from ckptzoo.loader.collection import Collection as Collection
    from ckptzoo.loader.collection import ZooEntry as ZooEntry
    from ckptzoo.loader.lazy_tensor import StackedTensor as StackedTensor
    from ckptzoo.loader.predictions import Predictions as Predictions
    from ckptzoo.loader.rebuilding import Rebuilt as Rebuilt
    from ckptzoo.loader.rebuilding import RebuiltMember as RebuiltMember
    from ckptzoo.loader.stream import Batch as Batch
    from ckptzoo.loader.stream import Stream as Stream
    from ckptzoo.loader.zoo import Zoo as Zoo

_MODULES = {
    "Batch": "stream",
    "Checkpoint": "checkpoint",
    "Citation": "citation",
    "Collection": "collection",
    "Predictions": "predictions",
    "Rebuilt": "rebuilding",
    "RebuiltMember": "rebuilding",
    "StackedTensor": "lazy_tensor",
    "Stream": "stream",
    "Zoo": "zoo",
    "ZooEntry": "collection",
}

__getattr__, __dir__ = lazy_names(__name__, {name: f"{__name__}.{module}" for name, module in _MODULES.items()})
