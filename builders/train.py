"""``open_trainer`` and ``Trainer``: train members side by side on one device, and measure them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from builders import engines, losses, sources
from builders.data_source import Feed
from builders.recipe import Recipe
from builders.sources import Source
from builders.state import Tensors, TrainingState, as_stored
from ckptzoo import archs
from ckptzoo.errors import Problem, ZooError

_IMAGE_BYTES = 28 * 28 * 4
"""Bytes of an input of 28x28 pixels, the measure of what fits."""
_GROUP_BYTES = 512 * _IMAGE_BYTES
"""Inputs, of several members, that one CPU core trains on at once: what its cache holds."""
_MEASURED_BYTES = 8 * 256 * _IMAGE_BYTES
"""Inputs that members are measured on at once, of all of them together; and the examples of each:"""
_MEASURED_EXAMPLES = {"cpu": 256, "cuda": 8192}
_STACKED_MEMBERS = {"cpu": 32, "cuda": 64}
"""Members, and examples of each on a CPU, where ``ckptzoo.archs`` has a function for the outputs of many at once."""
_STACKED_EXAMPLES = 1024
_UNIT_BYTES = {"cpu": 64 * _IMAGE_BYTES, "cuda": 1024 * _IMAGE_BYTES}
"""One input of each member of a unit."""


@dataclass(frozen=True, eq=False)
class Trainer:
    """Trains and measures states of one recipe.

    Parameters
    ----------
    data_source, source : the data on the device, and as loaded.
    engine : how steps are taken.
    workers : threads, each of which trains groups of members on its own core; None on a GPU.
    threads : how many of them; 1 on a GPU.
    few_groups : whether each worker trains one group: for steps whose cost hardly grows with the members of a group.
    """

    data_source: Feed
    source: Source
    engine: engines.Engine
    workers: Executor | None
    threads: int
    few_groups: bool = False

    @property
    def recipe(self) -> Recipe:
        """What is trained."""
        return self.data_source.recipe

    def start(self, seeds: Sequence[int]) -> TrainingState:
        """Freshly initialised members."""
        return TrainingState.initial(self.recipe, list(seeds), str(self.data_source.device))

    def advance(self, state: TrainingState, stop: int) -> None:
        """Train every member up to ``stop`` optimiser steps, in place."""
        if self.workers is None:
            self.engine(self.data_source, state, stop)
            # a launch returns before the device is done, and the caller takes the time
            torch.cuda.synchronize(self.data_source.device)
            return
        groups = state.split(self._group_size(len(state)))
        for done in [self.workers.submit(self.engine, self.data_source, group, stop) for group in groups]:
            done.result()
        state.step = stop

    def _group_size(self, members: int) -> int:
        """Members that a core trains at once, such that every core gets the same number of groups."""
        max_members = max(1, _GROUP_BYTES // (self.recipe.batch * sources.input_bytes(self.source)))
        if self.few_groups:
            max_members = members
        rounds = -(-members // (max_members * self.threads))
        return -(-members // (rounds * self.threads))

    def measure(self, weights: Tensors) -> dict[str, NDArray[Any]]:
        """Every measured column of the metadata, ``{column: (M,)}``.

        Training loss and accuracy are those of the whole training set without augmentation, in float32 whatever the
        recipe's precision. Which columns there are is for the loss to say.
        """
        weights = as_stored(weights)
        count = len(next(iter(weights.values())))
        if self._stacked_outputs() is None:
            size = max(1, _MEASURED_BYTES // (_MEASURED_EXAMPLES["cpu"] * sources.input_bytes(self.source)))
        else:
            size = _STACKED_MEMBERS[self.data_source.device.type]
        groups = [{name: weights[name][start : start + size] for name in weights} for start in range(0, count, size)]
        columns_by_group = (
            list(self.workers.map(self._measure_group, groups))
            if self.workers
            else [self._measure_group(g) for g in groups]
        )
        return {column: np.concatenate([part[column] for part in columns_by_group]) for column in columns_by_group[0]}

    def _measure_group(self, weights: Tensors) -> dict[str, NDArray[Any]]:
        return losses.get(self.recipe.loss).columns(self._predict(weights, "train"), self._predict(weights, "test"))

    def _predict(self, weights: Tensors, half: str) -> losses.MemberOutputs:
        """Outputs by the architecture's own forward function, so that no engine measures its own work."""
        device = self.data_source.device
        outputs, size = self._stacked_outputs(), _MEASURED_EXAMPLES[device.type]
        if outputs is None:
            outputs = _vmapped(archs.get(self.recipe.architecture)().to(device).eval())
        elif device.type == "cpu":
            size = _STACKED_EXAMPLES
        raw, targets = self.source.half(half)
        batches: list[NDArray[np.float64]] = []
        with torch.inference_mode():
            for start in range(0, len(raw), size):
                # torch warns of what is read-only, as a memory map is
                some = torch.from_numpy(np.require(raw[start : start + size], requirements="W"))
                inputs = self.data_source.network_inputs(some.to(device))
                batches.append(outputs(weights, inputs).double().cpu().numpy())
        return losses.MemberOutputs(np.concatenate(batches, axis=1), targets)

    def _stacked_outputs(self) -> "archs.StackedOutputs | None":
        return archs.stacked(self.recipe.architecture, self.source.half("test")[0].shape[1:])


def _vmapped(model: torch.nn.Module) -> "archs.StackedOutputs":
    def outputs(member: Mapping[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, dict(member), (inputs,))

    return torch.func.vmap(outputs, in_dims=(0, None))


@contextmanager
def open_trainer(
    recipe: Recipe, source: Source, *, device: str = "cpu", engine: str | None = None, threads: int | None = None
) -> Iterator[Trainer]:
    """A trainer on a device.

    Parameters
    ----------
    device : ``"cpu"`` or ``"cuda"``.
    engine : a name in ``builders.engines``; by default the fastest for the recipe.
    threads : on a CPU, by default as many as there are cores for this process. Within, torch runs single-threaded.

    Raises
    ------
    ZooError
        There is no such device, the engine cannot train the recipe, or the architecture does not fit the data.
    """
    kind = device_kind(device)
    advance = engines.get(choose_engine(recipe, kind, engine))
    data_source = sources.data_source(recipe, source, device)
    _check_shapes(recipe, source)
    if kind == "cuda":
        # TensorFloat-32 keeps 10 bits of the mantissa; convolutions would use it by default.
        before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield Trainer(data_source, source, advance, None, 1)
        finally:
            torch.backends.cudnn.allow_tf32 = before
        return
    count = threads or available_cores()
    before_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # OpenMP has a number of threads for each thread that calls it, so that each worker sets its own
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as workers:
            yield Trainer(data_source, source, advance, workers, count)
    finally:
        torch.set_num_threads(before_threads)


def choose_engine(recipe: Recipe, device: str, engine: str | None = None) -> str:
    """The name of the engine that trains a recipe on a device: the one that is asked for, else the fastest.

    Raises
    ------
    UnknownNameError
        No such engine.
    MissingExtraError
        A package that it needs is not installed.
    ZooError
        It cannot train the recipe on the device, or no engine can.
    """
    if engine is None:
        return engines.fastest(recipe, device)
    engines.get(engine)
    if engine not in engines.usable(recipe, device):
        raise engines.refusal(recipe, device, engine)
    return engine


def default_unit_size(source: Source, device: str) -> int:
    """Members that a unit has unless something else is asked for: 64 where an input has 28x28 pixels, 1024 on a GPU."""
    return max(1, _UNIT_BYTES[device_kind(device)] // sources.input_bytes(source))


def _check_shapes(recipe: Recipe, source: Source) -> None:
    """Check that the architecture takes the inputs and has as many outputs as the loss needs."""
    raw, targets = source.half("train")
    expected = (1, losses.get(recipe.loss).outputs(targets))
    try:
        with torch.inference_mode():
            got = str(tuple(archs.get(recipe.architecture)()(torch.zeros(1, *raw.shape[1:])).shape))
    except RuntimeError as error:
        got = f"{type(error).__name__}: {error}"
    if got != str(expected):
        wanted = f"outputs {expected} from an input (1, {', '.join(map(str, raw.shape[1:]))}) with {recipe.loss}"
        what = f"architecture {recipe.architecture}"
        raise ZooError(Problem(f"recipe {recipe.name!r}", what, wanted, got, "Correct the recipe."))


def device_kind(device: str) -> str:
    """The kind of an available device, ``"cpu"`` or ``"cuda"``.

    Raises
    ------
    ZooError
        There is no such device.
    """
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ZooError(Problem("build", "device", "cpu or cuda", device, "Choose one of them with --device."))
    if kind == "cuda" and not torch.cuda.is_available():
        got, step = "none that torch can use", "Train with --device cpu."
        raise ZooError(Problem("build", "device", "a CUDA device", got, step))
    return kind


def available_cores() -> int:
    """Processor cores that this process may use."""
    # cpu_count() also counts cores that a container or taskset keeps from the process; macOS has no affinity
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
