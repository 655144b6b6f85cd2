"""Trajectories of small networks that are really trained, many seeds at once, and faults that are planted in them."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZES = (10, 32, 32, 4)
NAMES = tuple(f"{layer}.{kind}" for layer in ("fc1", "fc2", "fc3") for kind in ("weight", "bias"))
OPTIMISERS = {"sgd": 0.1, "momentum": 0.05, "adam": 3e-3, "adamw": 1e-2}
SCHEDULES = ("constant", "cosine", "steps", "linear", "cyclic", "restarts")
SPACINGS = {"linear": tuple(range(0, 401, 20)), "log": (0, *(2**power for power in range(10)))}
ROUNDINGS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Trajectory:
    """The steps of one run, and each tensor as (steps, *shape)."""

    steps: tuple[int, ...]
    tensors: dict[str, NDArray[Any]]

    def rounded(self, dtype: str) -> "Trajectory":
        """The same in another precision."""
        from ckptzoo.format.header import numpy_dtype

        return replace(self, tensors={name: array.astype(numpy_dtype(dtype)) for name, array in self.tensors.items()})

    def averaged(self, decay: float = 0.7) -> "Trajectory":
        """Its exponential moving averages."""
        tensors = {name: array.copy() for name, array in self.tensors.items()}
        for array in tensors.values():
            for at in range(1, len(array)):
                array[at] = decay * array[at - 1] + (1 - decay) * array[at]
        return replace(self, tensors=tensors)

    def frozen(self, *names: str) -> "Trajectory":
        """The same with tensors that stay as they were."""
        tensors = dict(self.tensors)
        for name in names:
            tensors[name] = np.repeat(tensors[name][:1], len(self.steps), axis=0)
        return replace(self, tensors=tensors)

    def reordered(self, order: Sequence[int]) -> "Trajectory":
        """The weights of other steps under the same ones."""
        return replace(self, tensors={name: array[list(order)] for name, array in self.tensors.items()})

    def without(self, at: int) -> "Trajectory":
        """The same without one step."""
        kept = [other for other in range(len(self.steps)) if other != at]
        return Trajectory(tuple(self.steps[other] for other in kept), self.reordered(kept).tensors)

    def flat(self) -> list[NDArray[np.float64]]:
        """Each tensor as (steps, numbers)."""
        return [array.reshape(len(self.steps), -1).astype(np.float64) for array in self.tensors.values()]


def _rate(schedule: str, at: float) -> float:
    """The learning rate after a share of the training, relative to the largest."""
    match schedule:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * at))
        case "steps":
            return 0.1 ** int(3 * at)
        case "linear":
            return min(1.0, at / 0.05) * (1 - at)
        case "cyclic":
            return 0.02 + 0.98 * (1 - abs(2 * ((at * 7.3) % 1) - 1))
        case "restarts":
            return 0.5 * (1 + math.cos(math.pi * ((at * 5) % 1)))
        case _:
            return 1.0


@cache
def trajectories(seed: int, count: int, optimiser: str, schedule: str, spacing: str) -> tuple[Trajectory, ...]:
    """Train ``count`` networks side by side, each on its own batches of one task, as if each were alone."""
    import torch

    steps, rate = SPACINGS[spacing], OPTIMISERS[optimiser]
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=source)

    pairs = list(itertools.pairwise(SIZES))
    weights = [
        ((torch.rand(*shape, generator=source) * 2 - 1) / inputs**0.5).requires_grad_()
        for inputs, outputs in pairs
        for shape in ((count, inputs, outputs), (count, 1, outputs))
    ]
    inputs = normal(512, SIZES[0])
    hidden = torch.tanh(inputs @ normal(SIZES[0], 16)) @ normal(16, SIZES[-1])
    labels = (hidden + 0.5 * normal(512, SIZES[-1])).argmax(1)
    first, second = ([torch.zeros_like(item) for item in weights] for _ in range(2))
    saved: list[list[NDArray[Any]]] = []
    for step in range(steps[-1] + 1):
        if step in steps:
            saved.append([item.detach().numpy().copy() for item in weights])
        chosen = torch.randint(0, 512, (count, 16), generator=source)
        outputs = inputs[chosen]
        for at in range(0, len(weights), 2):
            outputs = outputs @ weights[at] + weights[at + 1]
            outputs = torch.relu(outputs) if at < len(weights) - 2 else outputs
        loss = torch.nn.functional.cross_entropy(outputs.flatten(0, 1), labels[chosen].flatten(), reduction="sum") / 16
        now = rate * _rate(schedule, step / steps[-1])
        with torch.no_grad():
            for at, (item, slope) in enumerate(zip(weights, torch.autograd.grad(loss, weights), strict=True)):
                if optimiser in ("sgd", "momentum"):
                    first[at] = (0.9 if optimiser == "momentum" else 0.0) * first[at] + slope + 1e-3 * item
                    item -= now * first[at]
                    continue
                if optimiser == "adamw":
                    item *= 1 - now * 0.05
                first[at] = 0.9 * first[at] + 0.1 * slope
                second[at] = 0.999 * second[at] + 0.001 * slope**2
                scale = (second[at] / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
                item -= now * first[at] / (1 - 0.9 ** (step + 1)) / scale
    return tuple(
        Trajectory(steps, {name: np.stack([one[at][seed] for one in saved]) for at, name in enumerate(NAMES)})
        for seed in range(count)
    )
