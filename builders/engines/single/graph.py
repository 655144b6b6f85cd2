"""The steps of ``builders.engines.single`` on a GPU, each launched as one CUDA graph.

A graph replays the kernels of a whole step at once, which helps where launching them takes longer than they do: small
images, narrow networks. One graph is captured for each size of a batch, that of the last batch of an epoch included;
the learning rate is a number on the device, in single precision, because torch's fused SGD reads it so. Buffers that
count batches do so on the device too.
"""

import threading
from dataclasses import dataclass

import torch

from builders.data_source import Feed, TrainingBatch
from builders.engines import single
from builders.engines.single import ModuleAndOptimizer
from builders.recipe import Recipe
from builders.state import TrainingState

_WARM_UP = 3
"""Steps before a capture, in which libraries allocate what they keep (torch.cuda.make_graphed_callables takes 3)."""
_capturing = threading.Lock()


@dataclass(frozen=True, eq=False)
class _Captured:
    """A captured step, and the memory that it reads: what ``TrainingBatch`` has of one member."""

    graph: torch.cuda.CUDAGraph
    inputs: torch.Tensor
    targets: torch.Tensor
    scales: torch.Tensor | None


class GraphNetwork(ModuleAndOptimizer):
    """A network whose steps are CUDA graphs."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        super().__init__(recipe, device)
        # SGD's fused kernel reads a rate that is a tensor of the device when it runs
        self._rate = torch.zeros((), device=device)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate
        self._captured: dict[int, _Captured] = {}

    def step(self, batch: TrainingBatch) -> None:
        size = batch.targets.shape[1]
        if size not in self._captured:
            self._captured[size] = self._capture(batch)
        captured = self._captured[size]
        captured.inputs.copy_(batch.inputs[0])
        captured.targets.copy_(batch.targets[0])
        if captured.scales is not None and batch.scales is not None:
            captured.scales.copy_(batch.scales[0])
        # a replay reads the memory of the capture, so that everything is copied there
        self._rate.fill_(batch.rate)
        captured.graph.replay()

    def _capture(self, batch: TrainingBatch) -> _Captured:
        """Capture a step on batches of this size; weights, buffers and momentum stay as they are."""
        memory_format = self.memory_format if batch.inputs.ndim == 5 else torch.contiguous_format
        captured = _Captured(
            torch.cuda.CUDAGraph(),
            batch.inputs[0].clone(memory_format=memory_format),
            batch.targets[0].clone(),
            None if batch.scales is None else batch.scales[0].clone(),
        )
        before = {name: tensor.clone() for name, tensor in self.tensors.items()}
        momentum = {name: tensor.clone() for name, tensor in self.momentum.items()}
        # an allocation in another thread would fail while one captures; each thread may still do what it likes
        with _capturing:
            torch.cuda.synchronize(self.device)
            for _ in range(_WARM_UP):
                self.optimizer.zero_grad()
                self.backward(captured.inputs, captured.targets, captured.scales)
                self.optimizer.step()
            # the capture allocates gradients in the memory of the graph
            self.optimizer.zero_grad()
            with torch.cuda.graph(
                captured.graph, stream=torch.cuda.Stream(self.device), capture_error_mode="thread_local"
            ):
                self.backward(captured.inputs, captured.targets, captured.scales)
                self.optimizer.step()
            torch.cuda.synchronize(self.device)
        for own, saved in ((self.tensors, before), (self.momentum, momentum)):
            for name, tensor in own.items():
                tensor.copy_(saved[name])
        return captured


def advance(data_source: Feed, state: TrainingState, stop: int) -> None:
    """Take the steps up to ``stop``, each launched as one CUDA graph."""
    single.advance(data_source, state, stop, GraphNetwork)
