"""The formats in which zoos are published: each adapter finds the checkpoints of one, and what is known about them."""

from ckptzoo.hub.imports.adapters.adapter import Adapter, FoundCheckpoints, Options
from ckptzoo.hub.imports.adapters.files import CheckpointFiles
from ckptzoo.hub.imports.adapters.haiku import Haiku
from ckptzoo.hub.imports.adapters.inr import ImplicitRepresentations
from ckptzoo.hub.imports.adapters.model_j import ModelJungle
from ckptzoo.hub.imports.adapters.nws import NeuralWeightSpace
from ckptzoo.hub.imports.adapters.ray_tune import RayTune
from ckptzoo.hub.imports.adapters.safetensors_archive import SafetensorsArchive
from ckptzoo.hub.imports.adapters.small_cnn import SmallCnn
from ckptzoo.hub.imports.adapters.small_transformer import SmallTransformer
from ckptzoo.hub.imports.adapters.wild_park import WildPark

ADAPTERS: dict[str, Adapter] = {
    adapter.name: adapter
    for adapter in (
        SafetensorsArchive(),
        RayTune(),
        WildPark(),
        SmallCnn(),
        ImplicitRepresentations(),
        SmallTransformer(),
        ModelJungle(),
        Haiku(),
        NeuralWeightSpace(),
        CheckpointFiles(),
    )
}
"""Every adapter by its name."""

__all__ = ["ADAPTERS", "Adapter", "FoundCheckpoints", "Options"]
