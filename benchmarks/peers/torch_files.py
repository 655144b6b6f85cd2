"""torch.save: one file a checkpoint, storages mapped."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.layers_weights import Weights
from benchmarks.peers.peer import Arrays, Shapes


@dataclass
class Handle:
    """The files, and the state dicts that were loaded; each is loaded when it is first read and then kept."""

    paths: list[Path]
    states: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)

    def state(self, member: int) -> dict[str, torch.Tensor]:
        """The state dict of one checkpoint, its storages on the mapped pages."""
        if member not in self.states:
            self.states[member] = torch.load(self.paths[member], mmap=True, weights_only=True)
        return self.states[member]


@dataclass(frozen=True)
class TorchPeer:
    """``torch.load(mmap=True)``, as its tutorial on loading advises."""

    label: str = "torch.load"
    how: str = "a file a checkpoint: torch.load(mmap=True, weights_only=True)[name].numpy()"
    store: str = "torch"

    def write(self, folder: Path, weights: Weights) -> Iterator[int]:
        for member in range(weights.members):
            state = {name: torch.from_numpy(array) for name, array in weights.member(member).items()}
            torch.save(state, folder / f"{member:05d}.pt")
            yield weights.arch.nbytes

    def catalogue(self, folder: Path) -> Shapes | None:
        handle = self.open(folder, ())
        shapes: dict[str, set[tuple[int, ...]]] = {}
        for member in range(len(handle.paths)):
            for name, tensor in handle.state(member).items():
                shapes.setdefault(name, set()).add(tuple(tensor.shape))
        return {name: (len(handle.paths), *shape) for name, (shape,) in shapes.items()}

    def open(self, folder: Path, names: Sequence[str]) -> Handle:
        return Handle(sorted(folder.glob("*.pt")))

    def layer(self, handle: Handle, name: str) -> Arrays:
        return (handle.state(member)[name].numpy() for member in range(len(handle.paths)))

    def checkpoint(self, handle: Handle, member: int) -> Arrays:
        return (tensor.numpy() for tensor in handle.state(member).values())
