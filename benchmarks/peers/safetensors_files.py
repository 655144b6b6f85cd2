"""safetensors: one file a checkpoint, tensors on the mapped pages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from benchmarks.layers_weights import Weights
from benchmarks.peers.peer import Arrays, Shapes


@dataclass
class Handle:
    """The files, and those that are open; a file is opened when it is first read and then kept open."""

    paths: list[Path]
    files: dict[int, Any] = field(default_factory=dict)

    def file(self, member: int) -> Any:
        """The file of one checkpoint."""
        if member not in self.files:
            self.files[member] = safe_open(self.paths[member], framework="pt")
        return self.files[member]


@dataclass(frozen=True)
class SafetensorsPeer:
    """``framework="pt"`` hands out tensors on the mapped pages; ``"numpy"`` copies them and is slower."""

    label: str = "safetensors"
    how: str = "a file a checkpoint: safe_open(framework='pt').get_tensor(name).numpy(), which copies nothing"
    store: str = "safetensors"

    def write(self, folder: Path, weights: Weights) -> Iterator[int]:
        for member in range(weights.members):
            state = {name: torch.from_numpy(array) for name, array in weights.member(member).items()}
            save_file(state, folder / f"{member:05d}.safetensors")
            yield weights.arch.nbytes

    def catalogue(self, folder: Path) -> Shapes | None:
        handle = self.open(folder, ())
        shapes: dict[str, set[tuple[int, ...]]] = {}
        for member in range(len(handle.paths)):
            file = handle.file(member)
            for name in file.keys():  # noqa: SIM118
                shapes.setdefault(name, set()).add(tuple(file.get_slice(name).get_shape()))
        return {name: (len(handle.paths), *shape) for name, (shape,) in shapes.items()}

    def open(self, folder: Path, names: Sequence[str]) -> Handle:
        return Handle(sorted(folder.glob("*.safetensors")))

    def layer(self, handle: Handle, name: str) -> Arrays:
        return (handle.file(member).get_tensor(name).numpy() for member in range(len(handle.paths)))

    def checkpoint(self, handle: Handle, member: int) -> Arrays:
        file = handle.file(member)
        return (file.get_tensor(name).numpy() for name in file.keys())  # noqa: SIM118
