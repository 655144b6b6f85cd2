"""The engine for any architecture, with buffers too: one member at a time, its module trained by ``torch.optim.SGD``.

On a CPU a member is trained by one thread, with the same bits as a loop over ``torch.nn`` modules in the same memory
format; several members are trained side by side in threads of their own. On a GPU each thread has a stream.
``builders.engines.single.graph`` takes the same steps as CUDA graphs, ``builders.engines.single.compile`` with a
compiled module.

A member some of whose weights are not finite at the end of an epoch stops there: what is not finite never is again.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from builders import losses
from builders.data_source import Feed, TrainingBatch
from builders.engines.general import scale_head_inputs
from builders.engines.sgd import GradientStep
from builders.recipe import BFLOAT16, Recipe
from builders.state import STOPPED, Tensors, TrainingState, dtype_of
from ckptzoo import archs


class ModuleAndOptimizer:
    """A module and its optimiser, which hold the weights and the momentum of one member after another."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        # PyTorch's own types know no memory format here
        module: Any = archs.get(recipe.architecture)().to(device, dtype_of(recipe))
        self.memory_format = memory_format_of(module, device)
        self.module: nn.Module = module.to(memory_format=self.memory_format).train()
        self.forward: Callable[[torch.Tensor], torch.Tensor] = self.module
        self._scale_head_inputs = scale_head_inputs(self.module, recipe) if recipe.dropout else None
        self._mean = losses.get(recipe.loss).mean
        self.tensors: Tensors = {name: tensor.detach() for name, tensor in self.module.state_dict().items()}
        self.parameters = dict(self.module.named_parameters())
        # one kernel for all tensors of a GPU; on a CPU the plain loop, whose bits are what users expect
        self.optimizer = torch.optim.SGD(
            self.parameters.values(),
            recipe.learning_rate,
            recipe.momentum,
            weight_decay=recipe.weight_decay,
            nesterov=recipe.nesterov,
            fused=True if device.type == "cuda" else None,
        )
        self.momentum: Tensors = {}
        if recipe.momentum:
            # from zeros the first step is that of an optimiser without a buffer: 0 mu + g = g
            self.momentum = {name: torch.zeros_like(tensor) for name, tensor in self.parameters.items()}
            for name, tensor in self.parameters.items():
                self.optimizer.state[tensor]["momentum_buffer"] = self.momentum[name]

    def load(self, weights: Tensors, momentum: Tensors, member: int) -> None:
        """Take the weights and the momentum of a member, ``{name: (M, *shape)}``; buffers that are missing stay."""
        for name, tensor in weights.items():
            self.tensors[name].copy_(tensor[member])
        for name, tensor in momentum.items():
            self.momentum[name].copy_(tensor[member])

    def store(self, state: TrainingState, member: int) -> None:
        """Write the weights, the buffers and the momentum into a state."""
        for own, stacked in ((self.tensors, state.weights), (self.momentum, state.momentum)):
            for name, tensor in own.items():
                stacked[name][member].copy_(tensor)

    def is_finite(self) -> bool:
        """Return whether every weight and buffer is finite."""
        return all(bool(tensor.isfinite().all()) for tensor in self.tensors.values())

    def step(self, batch: TrainingBatch) -> None:
        """Take one step of SGD on the batch of one member."""
        self.differentiate(batch, 0)
        for group in self.optimizer.param_groups:
            group["lr"] = batch.rate
        self.optimizer.step()

    def differentiate(self, batch: TrainingBatch, member: int) -> None:
        """Set the parameters' ``grad`` to the gradient of the mean loss of a member's batch."""
        inputs, scales = batch.inputs[member], None if batch.scales is None else batch.scales[member]
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=self.memory_format)
        self.optimizer.zero_grad()
        self.backward(inputs, batch.targets[member], scales)

    def backward(self, inputs: torch.Tensor, targets: torch.Tensor, scales: torch.Tensor | None) -> None:
        """Add the gradient of the mean loss to the parameters' ``grad``."""
        if self._scale_head_inputs is not None and scales is not None:
            self._scale_head_inputs["scales"] = scales
        with self._autocast():
            loss = self._mean(self.forward(inputs), targets)
        loss.backward()

    def _autocast(self) -> AbstractContextManager[object]:
        """Compute products and convolutions in bfloat16 where the recipe's precision is; all else stays in float32."""
        if self.recipe.precision != BFLOAT16:
            return nullcontext()
        # casts that are cached would outlive a step that is captured as a graph
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)


def memory_format_of(module: nn.Module, device: torch.device) -> torch.memory_format:
    """Return the memory format of a module's images and kernels."""
    convolutions = (layer for layer in module.modules() if isinstance(layer, nn.Conv2d))
    strided = (layer for layer in convolutions if layer.kernel_size == (1, 1) != layer.stride)
    if device.type == "cpu" and any(layer.in_channels % 16 for layer in strided):
        # oneDNN's kernels for the gradient of such a convolution write beyond their memory in the channels-last format
        # where the channels are no multiple of a vector's floats: of 8 with AVX2 (torch 2.13, found with valgrind),
        # of 16 with AVX-512 (8 to 16 channels of 64 x 64 pixels end the process)
        return torch.contiguous_format
    return torch.channels_last


_idle: WeakKeyDictionary[Feed, dict[type[ModuleAndOptimizer], deque[ModuleAndOptimizer]]] = WeakKeyDictionary()
"""Networks that no thread uses; they are reused, because a span of steps takes only about a second."""


@contextmanager
def borrowed(data_source: Feed, kind: type[ModuleAndOptimizer]) -> Iterator[ModuleAndOptimizer]:
    """Yield a network for the recipe of a data source, exclusively until the end of the block."""
    # each operation on a deque or dictionary is atomic, so that threads need no lock
    networks = _idle.setdefault(data_source, {}).setdefault(kind, deque())
    try:
        network = networks.pop()
    except IndexError:
        network = kind(data_source.recipe, data_source.device)
    yield network
    networks.append(network)


def advance(
    data_source: Feed, state: TrainingState, stop: int, kind: type[ModuleAndOptimizer] = ModuleAndOptimizer
) -> None:
    """Take the steps of one member after another."""
    stopped, epoch_steps = state.extra.get(STOPPED), data_source.recipe.epoch_steps
    for member in range(len(state)):
        if stopped is not None and stopped[member]:
            continue
        with borrowed(data_source, kind) as network:
            network.load(state.weights, state.momentum, member)
            step = state.step
            for batch in data_source.batches(state.keys[member : member + 1], state.step, stop):
                # at epochs alone, so that where a member stops does not depend on when states are saved
                if stopped is not None and step % epoch_steps == 0 and not network.is_finite():
                    stopped[member] = True
                    break
                network.step(batch)
                step += 1
            network.store(state, member)
    state.step = stop


def gradient_steps(data_source: Feed, keys: NDArray[np.uint64], start: int, stop: int) -> Iterator[GradientStep]:
    """Yield the steps with their gradients; BatchNorm normalises by the batch, and its running statistics stay."""
    with borrowed(data_source, ModuleAndOptimizer) as network:
        for batch in data_source.batches(keys, start, stop):
            yield GradientStep(batch.rate, partial(_gradients, network, batch))


def _gradients(network: ModuleAndOptimizer, batch: TrainingBatch, weights: Tensors) -> Tensors:
    slopes = {name: torch.empty_like(weights[name]) for name in network.parameters}
    for member in range(len(batch.targets)):
        network.load(weights, {}, member)
        network.differentiate(batch, member)
        for name, parameter in network.parameters.items():
            assert parameter.grad is not None
            slopes[name][member].copy_(parameter.grad)
    return slopes
