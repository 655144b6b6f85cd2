"""Members trained side by side on one device, and what is measured of them."""

import os
from collections.abc import Iterator, Sequence
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
from builders.state import Tensors, TrainingState
from ckptzoo import archs
from ckptzoo.errors import ZooError

_IMAGE = 28 * 28 * 4
"""Bytes of an input of 28x28 pixels, the measure of what fits."""
_GROUP_BYTES = 512 * _IMAGE
"""Inputs, of several members, that one CPU core trains on at once: what its cache holds."""
_MEASURED_BYTES = 8 * 256 * _IMAGE
"""Inputs that members are measured on at once, each of them on so many:"""
_MEASURED_AT_ONCE = {"cpu": 256, "cuda": 8192}
_UNIT_BYTES = {"cpu": 64 * _IMAGE, "cuda": 1024 * _IMAGE}
"""One input of each member of a unit."""


@dataclass(frozen=True, eq=False)
class Trainer:
    """Trains and measures states of one recipe.

    Parameters
    ----------
    material, source : the data on the device and as loaded.
    engine : how steps are taken.
    workers : threads, each of which trains groups of members on its own core; None on a GPU.
    """

    material: Feed
    source: Source
    engine: engines.Engine
    workers: Executor | None
    threads: int

    @property
    def recipe(self) -> Recipe:
        """What is trained."""
        return self.material.recipe

    def start(self, seeds: Sequence[int]) -> TrainingState:
        """Freshly initialised members."""
        return TrainingState.initial(self.recipe, list(seeds), str(self.material.device))

    def advance(self, state: TrainingState, stop: int) -> None:
        """Train every member up to ``stop`` optimiser steps, in place."""
        if self.workers is None:
            self.engine(self.material, state, stop)
            torch.cuda.synchronize(self.material.device)
            return
        groups = state.split(self._group(len(state)))
        for done in [self.workers.submit(self.engine, self.material, group, stop) for group in groups]:
            done.result()
        state.step = stop

    def _group(self, members: int) -> int:
        """Members that a core trains at once, so that every core gets as many groups."""
        most = max(1, _GROUP_BYTES // (self.recipe.batch * sources.input_bytes(self.source)))
        rounds = -(-members // (most * self.threads))
        return -(-members // (rounds * self.threads))

    def measure(self, weights: Tensors) -> dict[str, NDArray[Any]]:
        """Every measured column of the metadata, ``{column: (M,)}``.

        Training loss and accuracy are those of the whole training set without augmentation. Which columns there are
        is for the loss to say.
        """
        count = len(next(iter(weights.values())))
        size = max(1, _MEASURED_BYTES // (_MEASURED_AT_ONCE["cpu"] * sources.input_bytes(self.source)))
        groups = [{name: weights[name][at : at + size] for name in weights} for at in range(0, count, size)]
        found = list(self.workers.map(self._measured, groups)) if self.workers else [self._measured(g) for g in groups]
        return {column: np.concatenate([part[column] for part in found]) for column in found[0]}

    def _measured(self, weights: Tensors) -> dict[str, NDArray[Any]]:
        return losses.get(self.recipe.loss).columns(self._predicted(weights, "train"), self._predicted(weights, "test"))

    def _predicted(self, weights: Tensors, half: str) -> losses.MemberOutputs:
        """With the architecture's own forward function, so that no engine is its own judge."""
        device = self.material.device
        model = archs.get(self.recipe.architecture)().to(device).eval()
        size = _MEASURED_AT_ONCE[device.type]
        raw, targets = self.source.half(half)

        def outputs(one: Tensors, inputs: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(model, one, (inputs,))

        made: list[NDArray[np.float64]] = []
        with torch.inference_mode():
            for at in range(0, len(raw), size):
                inputs = self.material.seen(torch.from_numpy(raw[at : at + size]).to(device))
                made.append(torch.func.vmap(outputs, in_dims=(0, None))(weights, inputs).double().cpu().numpy())
        return losses.MemberOutputs(np.concatenate(made, axis=1), targets)


@contextmanager
def trainer(
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
        There is no such device, the engine cannot train the architecture, or it does not fit the data.
    """
    kind = checked(device)
    advance = engines.get(chosen(recipe, kind, engine))
    material = sources.material(recipe, source, device)
    _check(recipe, source)
    if kind == "cuda":
        before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield Trainer(material, source, advance, None, 1)
        finally:
            torch.backends.cudnn.allow_tf32 = before
        return
    count = threads or cores()
    before_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as workers:
            yield Trainer(material, source, advance, workers, count)
    finally:
        torch.set_num_threads(before_threads)


def chosen(recipe: Recipe, device: str, engine: str | None = None) -> str:
    """The name of the engine that trains a recipe on a device: the one that is asked for, else the fastest.

    Raises
    ------
    UnknownNameError
        No such engine.
    MissingExtraError
        A package that it needs is not installed.
    ZooError
        It cannot train the architecture on the device.
    """
    if engine is None:
        return engines.best(recipe, device)
    engines.get(engine)
    if engine not in (able := engines.able(recipe, device)):
        step = "Choose one of them."
        raise ZooError(f"{recipe.architecture}: engine: expected {' or '.join(able)}, got {engine}. {step}")
    return engine


def unit_size(source: Source, device: str) -> int:
    """Members that a unit has unless something else is asked for: 64 where an input has 28x28 pixels, 1024 on a GPU."""
    return max(1, _UNIT_BYTES[checked(device)] // sources.input_bytes(source))


def _check(recipe: Recipe, source: Source) -> None:
    """That the architecture takes the inputs and has as many outputs as the loss needs."""
    raw, targets = source.half("train")
    expected = (1, losses.get(recipe.loss).outputs(targets))
    try:
        with torch.inference_mode():
            found = str(tuple(archs.get(recipe.architecture)()(torch.zeros(1, *raw.shape[1:])).shape))
    except RuntimeError as error:
        found = f"{type(error).__name__}: {error}"
    if found != str(expected):
        raise ZooError(
            f"recipe {recipe.name!r}: architecture {recipe.architecture}: expected outputs {expected} from an input "
            f"(1, {', '.join(map(str, raw.shape[1:]))}) with {recipe.loss}, got {found}. Correct the recipe."
        )


def checked(device: str) -> str:
    """``"cpu"`` or ``"cuda"``, the kind of a device that is there.

    Raises
    ------
    ZooError
        There is no such device.
    """
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ZooError(f"device: expected cpu or cuda, got {device}. Choose one of them with --device.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ZooError("device: expected a CUDA device, got none that torch can use. Train with --device cpu.")
    return kind


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
