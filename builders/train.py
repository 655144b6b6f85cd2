"""``open_trainer`` and ``Trainer``: train members side by side on one device, and measure them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from builders import engines, losses, sources
from builders.data_source import Feed
from builders.recipe import TF32, Recipe
from builders.sources import Source
from builders.state import STOPPED, Tensors, TrainingState, as_stored
from ckptzoo import archs
from ckptzoo.errors import Problem, ZooError

_IMAGE_BYTES = 28 * 28 * 4
"""Bytes of an input of 28x28 pixels, in which memory is counted."""
_GROUP_BYTES = 512 * _IMAGE_BYTES
"""Inputs, of several members, that one CPU core trains on at once: they fit its cache."""
_MEASURED_BYTES = 8 * 256 * _IMAGE_BYTES
"""Inputs that members are measured on at once, of all of them together; and the examples of each:"""
_MEASURED_EXAMPLES = {"cpu": 256, "cuda": 8192}
_STACKED_MEMBERS = {"cpu": 32, "cuda": 64}
"""Members, and examples of each on a CPU, where ``ckptzoo.archs`` has a function for the outputs of many at once."""
_STACKED_EXAMPLES = 1024
_MEASURING_THREADS = 8
"""Threads that turn outputs into losses beside a GPU without workers: 64 OptuNets' outputs on MNIST are 360 MB, which
a GPU has in a tenth of a second and a core turns into losses in one to two.
"""
_MEASURED_RESULT_BYTES = {"cpu": 2**21, "cuda": 2**28}
"""The largest intermediate result of a network with buffers, of all examples that it is measured on at once."""
_UNIT_BYTES = {"cpu": 64 * _IMAGE_BYTES, "cuda": 1024 * _IMAGE_BYTES}
"""One input of each member of a unit."""


@dataclass(frozen=True, eq=False)
class Trainer:
    """Trains and measures states of one recipe.

    ``workers`` are ``threads`` threads, each of which trains groups of members on its own core, or on its own stream of
    a GPU; None on a GPU whose engine trains all members at once, and then ``threads`` is 1. With ``one_at_a_time`` the
    engine trains members one after another. With ``few_groups`` each worker trains one group: for steps whose cost
    hardly grows with the members of a group.
    """

    data_source: Feed
    source: Source
    engine: engines.Engine
    workers: Executor | None
    threads: int
    one_at_a_time: bool = False
    few_groups: bool = False

    @property
    def recipe(self) -> Recipe:
        return self.data_source.recipe

    def start(self, seeds: Sequence[int], weights: Mapping[str, NDArray[Any]] | None = None) -> TrainingState:
        """Return members before their first step, freshly initialised or at these weights, ``{name: (M, *shape)}``."""
        state = TrainingState.initial(self.recipe, list(seeds), str(self.data_source.device), weights)
        if self.one_at_a_time:
            state.extra[STOPPED] = torch.zeros(len(state), dtype=torch.bool)
        return state

    def advance(self, state: TrainingState, stop: int) -> None:
        """Train every member up to ``stop`` optimiser steps, in place."""
        with self._synchronized():
            if self.workers is None:
                self.engine(self.data_source, state, stop)
                return
            groups = state.split(self._group_size(len(state)))
            for done in [self.workers.submit(self.engine, self.data_source, group, stop) for group in groups]:
                # raises what a worker raised
                done.result()
            state.step = stop

    @contextmanager
    def _synchronized(self) -> Iterator[None]:
        """Synchronise a GPU before and after, because its streams are independent and the caller takes the time."""
        device = self.data_source.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def _group_size(self, members: int) -> int:
        """Return the members that a core trains at once, such that every core gets the same number of groups."""
        max_members = max(1, _GROUP_BYTES // (self.recipe.batch * sources.input_bytes(self.source)))
        if self.few_groups:
            max_members = members
        elif self.one_at_a_time:
            return 1
        rounds = -(-members // (max_members * self.threads))
        return -(-members // (rounds * self.threads))

    @property
    def first_span(self) -> int:
        """Steps that are taken at first, when the duration of one is not known yet."""
        return 1 if self.one_at_a_time else 8

    def measure(self, weights: Tensors, limit: int | None = None) -> dict[str, NDArray[Any]]:
        """Return every measured column of the metadata, ``{column: (M,)}``; with a limit, of the first examples of each
        half. Training loss and accuracy are those of the whole training set without augmentation, in float32 whatever
        the recipe's precision. The loss determines which columns there are.
        """
        weights = as_stored(weights)
        count = len(next(iter(weights.values())))
        if self._has_buffers:
            size = 1
        elif self._stacked_outputs() is None:
            size = max(1, _MEASURED_BYTES // (_MEASURED_EXAMPLES["cpu"] * sources.input_bytes(self.source)))
        else:
            size = _STACKED_MEMBERS[self.data_source.device.type]
        groups = [{name: weights[name][start : start + size] for name in weights} for start in range(0, count, size)]
        with self._synchronized():
            measure = partial(self._measure_group, limit=limit)
            with nullcontext(self.workers) if self.workers else ThreadPoolExecutor(_MEASURING_THREADS) as workers:
                columns_by_group = list(workers.map(measure, groups))
        return {column: np.concatenate([part[column] for part in columns_by_group]) for column in columns_by_group[0]}

    def _measure_group(self, weights: Tensors, limit: int | None) -> dict[str, NDArray[Any]]:
        train, test = (self._predict(weights, half, limit) for half in ("train", "test"))
        return losses.get(self.recipe.loss).columns(train, test)

    def _predict(self, weights: Tensors, half: str, limit: int | None) -> losses.MemberOutputs:
        """Return outputs by the architecture's own forward function, so that no engine measures its own work."""
        device = self.data_source.device
        outputs, size = self._stacked_outputs(), _MEASURED_EXAMPLES[device.type]
        raw, targets = (array[:limit] for array in self.source.half(half))
        if self._has_buffers:
            # stacked convolutions are grouped ones, which are slower than one network after another
            module: Any = archs.get(self.recipe.architecture)()
            module = module.to(device, memory_format=torch.channels_last).eval()
            largest = largest_result(self.recipe.architecture, raw.shape[1:])
            outputs = partial(_one_by_one, module)
            size = min(size, max(1, _MEASURED_RESULT_BYTES[device.type] // largest))
        elif outputs is None:
            outputs = _vmapped(archs.get(self.recipe.architecture)().to(device).eval())
        elif device.type == "cpu":
            size = _STACKED_EXAMPLES
        batches: list[NDArray[np.float64]] = []
        with torch.inference_mode():
            for start in range(0, len(raw), size):
                # torch warns of what is read-only, as a memory map is
                some = torch.from_numpy(np.require(raw[start : start + size], requirements="W"))
                inputs = self.data_source.network_inputs(some.to(device))
                batches.append(outputs(weights, inputs).double().cpu().numpy())
        return losses.MemberOutputs(np.concatenate(batches, axis=1), targets)

    @property
    def _has_buffers(self) -> bool:
        return any(tensor.kind == "buffer" for tensor in self.recipe.arch.tensors)

    def _stacked_outputs(self) -> "archs.StackedOutputs | None":
        return archs.stacked(self.recipe.architecture, self.source.half("test")[0].shape[1:])


def _vmapped(model: torch.nn.Module) -> "archs.StackedOutputs":
    def outputs(member: Mapping[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, dict(member), (inputs,))

    return torch.func.vmap(outputs, in_dims=(0, None))


def _one_by_one(module: torch.nn.Module, weights: Mapping[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    """Return the outputs (M, B, K) of every member on the same inputs."""
    if inputs.ndim == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    members = [{name: tensor[i] for name, tensor in weights.items()} for i in range(len(next(iter(weights.values()))))]
    return torch.stack([torch.func.functional_call(module, member, (inputs,)) for member in members])


@cache
def largest_result(architecture: str, input_shape: tuple[int, ...]) -> int:
    """Return the bytes of the largest output of a module within a network, for one example in float32."""
    measured: list[int] = []

    def note(module: torch.nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        measured.append(4 * output.numel())

    # tensors of the device "meta" have shapes and no numbers
    with torch.device("meta"), torch.inference_mode():
        network = archs.get(architecture)().eval()
        for module in network.modules():
            module.register_forward_hook(note)
        network(torch.empty(1, *input_shape))
    return max(measured)


@contextmanager
def open_trainer(
    recipe: Recipe,
    source: Source,
    *,
    device: str = "cpu",
    engine: str | None = None,
    threads: int | None = None,
    deterministic: bool = True,
    feed: Feed | None = None,
) -> Iterator[Trainer]:
    """Open a trainer on a device, ``"cpu"`` or ``"cuda"``. ``feed`` is the data there, by default made from ``source``.

    Raises ZooError: there is no such device, the engine cannot train the recipe, or the architecture does not fit the
    data.

    On a CPU there are by default as many ``threads`` as cores for this process; within, torch runs single-threaded. On
    a GPU they are the streams on which an engine that trains one member at a time has members side by side, by default
    1. With ``deterministic`` a GPU takes the same kernels each time, whose order of addition is fixed.
    """
    kind = device_kind(device)
    name = choose_engine(recipe, kind, engine)
    advance, one_at_a_time = engines.get(name), engines.is_one_at_a_time(name)
    if kind == "cuda":
        with _cuda_settings(recipe, deterministic):
            data_source = feed or sources.data_source(recipe, source, device)
            _check_shapes(recipe, source)
            if not one_at_a_time:
                yield Trainer(data_source, source, advance, None, 1)
                return
            count = threads or 1
            with ThreadPoolExecutor(count, initializer=_take_own_stream, initargs=(device,)) as workers:
                yield Trainer(data_source, source, advance, workers, count, one_at_a_time)
        return
    data_source = feed or sources.data_source(recipe, source, device)
    _check_shapes(recipe, source)
    count = threads or available_cores()
    before_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # OpenMP has a number of threads for each thread that calls it, so that each worker sets its own
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as workers:
            yield Trainer(data_source, source, advance, workers, count, one_at_a_time)
    finally:
        torch.set_num_threads(before_threads)


@contextmanager
def _cuda_settings(recipe: Recipe, deterministic: bool) -> Iterator[None]:
    """Set the precision of products and convolutions, and kernels that give the same bits each time."""
    cudnn: Any = torch.backends.cudnn
    products = torch.backends.cuda.matmul
    before = cudnn.allow_tf32, products.allow_tf32, cudnn.deterministic, cudnn.benchmark
    # cuBLAS reads it when it is first used; two workspaces of 4 MiB make its products deterministic (its manual, 2.1.4)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # TensorFloat-32 keeps 10 bits of the mantissa; convolutions would use it by default
    cudnn.allow_tf32 = products.allow_tf32 = recipe.precision == TF32
    # a benchmark chooses kernels by measured times, which differ from run to run
    cudnn.deterministic, cudnn.benchmark = deterministic, not deterministic
    try:
        yield
    finally:
        cudnn.allow_tf32, products.allow_tf32, cudnn.deterministic, cudnn.benchmark = before


def _take_own_stream(device: str) -> None:
    """Run this thread's work on a stream of its own."""
    torch.cuda.set_stream(torch.cuda.Stream(device))


def choose_engine(recipe: Recipe, device: str, engine: str | None = None) -> str:
    """Return the name of the engine that trains a recipe on a device: the requested one, else the fastest.

    Raises UnknownNameError: no such engine. Raises MissingExtraError: a package that it needs is not installed. Raises
    ZooError: it cannot train the recipe on the device, or no engine can.
    """
    if engine is None:
        return engines.fastest(recipe, device)
    engines.get(engine)
    if engine not in engines.usable(recipe, device):
        raise engines.refusal(recipe, device, engine)
    return engine


def default_unit_size(source: Source, device: str, engine: str, threads: int | None = None) -> int:
    """Return the default number of members of a unit: 64 where an input has 28x28 pixels, 1024 on a GPU; for an engine
    that trains one member at a time, as many as are trained side by side.
    """
    kind = device_kind(device)
    if engines.is_one_at_a_time(engine):
        return threads or (available_cores() if kind == "cpu" else 1)
    return max(1, _UNIT_BYTES[kind] // sources.input_bytes(source))


def _check_shapes(recipe: Recipe, source: Source) -> None:
    """Check that the architecture takes the inputs and has as many outputs as the loss needs."""
    raw, targets = source.half("train")
    expected = (1, losses.get(recipe.loss).outputs(targets))
    try:
        with torch.inference_mode():
            got = str(tuple(archs.get(recipe.architecture)()(torch.zeros(1, *raw.shape[1:])).shape))
    # torch's error for shapes that do not fit
    except RuntimeError as error:
        got = f"{type(error).__name__}: {error}"
    if got != str(expected):
        wanted = f"outputs {expected} from an input (1, {', '.join(map(str, raw.shape[1:]))}) with {recipe.loss}"
        what = f"architecture {recipe.architecture}"
        raise ZooError(Problem(f"recipe {recipe.name!r}", what, wanted, got, "Correct the recipe."))


def device_kind(device: str) -> str:
    """Return the kind of an available device, ``"cpu"`` or ``"cuda"``. Raises ZooError: there is no such device."""
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ZooError(Problem("build", "device", "cpu or cuda", device, "Choose one of them with --device."))
    if kind == "cuda" and not torch.cuda.is_available():
        got, step = "none that torch can use", "Train with --device cpu."
        raise ZooError(Problem("build", "device", "a CUDA device", got, step))
    return kind


def available_cores() -> int:
    """Return the number of processor cores that this process may use."""
    # cpu_count() also counts cores that a container or taskset keeps from the process; macOS has no affinity
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
