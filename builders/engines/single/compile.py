"""The steps of ``builders.engines.single`` with the module compiled by ``torch.compile``.

Without autotuning, whose choice of kernels, and with it the last bits of weights, would depend on measured times.
Compiling takes a minute for each size of a batch.
"""

import torch

from builders.data_source import Feed
from builders.engines import single
from builders.engines.single import ModuleAndOptimizer
from builders.recipe import Recipe
from builders.state import TrainingState


class CompiledNetwork(ModuleAndOptimizer):
    """A network whose module is compiled."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        super().__init__(recipe, device)
        # an epoch has two sizes of batches: two compilations, instead of kernels for any size
        self.forward = torch.compile(self.module, dynamic=False)


def advance(data_source: Feed, state: TrainingState, stop: int) -> None:
    """Take the steps up to ``stop`` by the compiled module."""
    single.advance(data_source, state, stop, CompiledNetwork)
