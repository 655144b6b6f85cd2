"""The training state of members that train side by side: weights, momentum and step, stacked along a leading axis."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from builders import rng
from builders.recipe import FLOAT64, Recipe

Tensors = dict[str, torch.Tensor]
STOPPED = "stopped"
"""The key in ``TrainingState.extra`` of engines that train one member at a time: (M,) bool, which members train no
further.
"""


@dataclass
class TrainingState:
    """Everything that training changes; engines change it in place.

    ``keys`` (M,) uint64, one a member, determine with the step every random number. ``weights`` ``{name: (M, *shape)}``
    are parameters and buffers, see ``dtype_of``; ``momentum`` is that of the parameters alone, empty where the recipe
    has none. ``extra`` ``{name: (M, ...)}`` is the further state of a posterior method.
    """

    keys: NDArray[np.uint64]
    weights: Tensors
    momentum: Tensors
    step: int = 0
    extra: Tensors = field(default_factory=dict)

    @classmethod
    def initial(
        cls, recipe: Recipe, seeds: list[int], device: str, weights: Mapping[str, NDArray[Any]] | None = None
    ) -> Self:
        """Return members with these seeds, freshly initialised or at these weights, ``{name: (M, *shape)}``."""
        keys = rng.member_keys(recipe.digest, seeds)
        arrays = rng.initial_weights(recipe.arch, keys) if weights is None else weights
        tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        return cls.of(recipe, keys, tensors)

    @classmethod
    def of(cls, recipe: Recipe, keys: NDArray[np.uint64], weights: Tensors) -> Self:
        """Return members before their first step, at these weights, which may be changed in place."""
        weights = {
            name: tensor.to(dtype_of(recipe)) if tensor.is_floating_point() else tensor
            for name, tensor in weights.items()
        }
        # buffers are no parameters of the optimiser
        moved = [tensor.name for tensor in recipe.arch.tensors if tensor.kind != "buffer"] if recipe.momentum else []
        return cls(keys, weights, {name: torch.zeros_like(weights[name]) for name in moved})

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self.keys)

    def split(self, size: int) -> list["TrainingState"]:
        """Return groups of at most ``size`` members over the same memory: changes of them are changes of this state."""
        return [
            TrainingState(
                self.keys[start : start + size],
                {name: tensor[start : start + size] for name, tensor in self.weights.items()},
                {name: tensor[start : start + size] for name, tensor in self.momentum.items()},
                self.step,
                {name: tensor[start : start + size] for name, tensor in self.extra.items()},
            )
            for start in range(0, len(self), size)
        ]


def dtype_of(recipe: Recipe) -> torch.dtype:
    """Return the dtype of a recipe's inputs, weights and momentum during training."""
    return torch.float64 if recipe.precision == FLOAT64 else torch.float32


def as_stored(weights: Tensors) -> Tensors:
    """Return the same weights as a zoo holds them: those in float64 rounded to float32."""
    return {name: tensor.float() if tensor.dtype == torch.float64 else tensor for name, tensor in weights.items()}
