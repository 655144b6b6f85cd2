"""The checkpoints that every store holds: ResNet-18 in its CIFAR form, random weights from a seed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema.architecture import Architecture, Tensor

LAYERS = ("bn1.weight", "layer1.0.conv1.weight", "layer4.1.conv2.weight")
"""The layers that are read one by one: 256 B, 147 kB and 9.4 MB a checkpoint at width 64."""


def resnet18(*, width: int = 64, classes: int = 10) -> Architecture:
    """The state dict of torchvision's ``resnet18`` with a 3x3 stem: 62 parameters and 60 buffers, in order.

    Parameters
    ----------
    width
        channels of the first stage; the next three have 2, 4 and 8 times as many.
    """
    stages = [width, 2 * width, 4 * width, 8 * width]
    tensors = [Tensor("conv1.weight", (width, 3, 3, 3)), *_norm("bn1", width)]
    before = width
    for stage, channels in enumerate(stages, start=1):
        for block in range(2):
            prefix = f"layer{stage}.{block}"
            for number, incoming in ((1, before), (2, channels)):
                tensors.append(Tensor(f"{prefix}.conv{number}.weight", (channels, incoming, 3, 3)))
                tensors.extend(_norm(f"{prefix}.bn{number}", channels))
            if before != channels:
                tensors.append(Tensor(f"{prefix}.downsample.0.weight", (channels, before, 1, 1)))
                tensors.extend(_norm(f"{prefix}.downsample.1", channels))
            before = channels
    tensors += [Tensor("fc.weight", (classes, before)), Tensor("fc.bias", (classes,))]
    return Architecture("resnet18-cifar", tuple(tensors), None, (3, 32, 32))


def _norm(name: str, channels: int) -> Iterator[Tensor]:
    for part in ("weight", "bias"):
        yield Tensor(f"{name}.{part}", (channels,))
    for part in ("running_mean", "running_var"):
        yield Tensor(f"{name}.{part}", (channels,), kind="buffer")
    yield Tensor(f"{name}.num_batches_tracked", (), "int64", "buffer")


@dataclass(frozen=True)
class Weights:
    """The tensors of ``members`` checkpoints, made when asked for: the same bytes in every store."""

    arch: Architecture
    members: int
    seed: int

    def tensor(self, name: str, member: int) -> NDArray[Any]:
        """One tensor of one checkpoint."""
        place = self.arch.names.index(name)
        generator = np.random.default_rng([self.seed, member, place])
        tensor = self.arch[name]
        if tensor.dtype == "int64":
            return generator.integers(0, 2**40, tensor.shape, dtype=np.int64)
        return np.asarray(generator.random(tensor.shape, dtype=np.float32))

    def member(self, member: int) -> dict[str, NDArray[Any]]:
        """One checkpoint, as a state dict."""
        return {name: np.asarray(self.tensor(name, member)) for name in self.arch.names}

    @property
    def nbytes(self) -> int:
        """Bytes of all checkpoints."""
        return self.members * self.arch.nbytes
