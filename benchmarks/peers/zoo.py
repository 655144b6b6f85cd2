"""ckptzoo: one zoo, views of the mapped shards."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import ckptzoo
from benchmarks.layers_weights import Weights
from benchmarks.peers.peer import Arrays, Shapes
from ckptzoo.loader.lazy_tensor import StackedTensor
from ckptzoo.loader.zoo import Zoo


@dataclass(frozen=True)
class Handle:
    """An open zoo and the lazy arrays that were asked for."""

    zoo: Zoo
    tensors: dict[str, StackedTensor]


@dataclass(frozen=True)
class ZooPeer:
    """A zoo, read through its public interface."""

    label: str = "ckptzoo"
    how: str = "zoo[name].views(), dict(zoo.checkpoint(id))"
    store: str = "zoo"

    def write(self, folder: Path, weights: Weights) -> Iterator[int]:
        with ckptzoo.create(folder / "resnet18", arch=weights.arch) as writer:
            for member in range(weights.members):
                writer.add(weights.member(member), {"id": identity(member), "seed": member})
                yield weights.arch.nbytes

    def catalogue(self, folder: Path) -> Shapes | None:
        zoo = ckptzoo.open(folder / "resnet18")
        return {tensor.name: (len(zoo), *tensor.shape) for tensor in zoo.arch.tensors}

    def open(self, folder: Path, names: Sequence[str]) -> Handle:
        zoo = ckptzoo.open(folder / "resnet18")
        return Handle(zoo, {name: zoo[name] for name in names})

    def layer(self, handle: Handle, name: str) -> Arrays:
        return handle.tensors[name].views()

    def checkpoint(self, handle: Handle, member: int) -> Arrays:
        return iter(dict(handle.zoo.checkpoint(identity(member))).values())


def identity(member: int) -> str:
    """The id of a member."""
    return f"m{member:05d}"
