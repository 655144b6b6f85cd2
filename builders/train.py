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

from builders import data, engines
from builders.material import Material
from builders.recipe import Recipe
from builders.state import State, Tensors
from ckptzoo import archs
from ckptzoo.errors import ZooError
from ckptzoo.measure import uncertainty

_GROUP_IMAGES = 512
"""Images, of several members, that one CPU core trains on at once: what its cache holds."""
_MEASURED_GROUP = 8
"""Members that are measured at once."""
_IMAGES_AT_ONCE = {"cpu": 256, "cuda": 8192}
"""Images that a group is measured on at once: on a CPU what its cache holds."""


@dataclass(frozen=True, eq=False)
class Trainer:
    """Trains and measures states of one recipe.

    Parameters
    ----------
    material, source : the data on the device and as loaded.
    engine : how steps are taken.
    workers : threads, each of which trains groups of members on its own core; None on a GPU.
    """

    material: Material
    source: data.Data
    engine: engines.Engine
    workers: Executor | None
    threads: int

    @property
    def recipe(self) -> Recipe:
        """What is trained."""
        return self.material.recipe

    def start(self, seeds: Sequence[int]) -> State:
        """Freshly initialised members."""
        return State.initial(self.recipe, list(seeds), str(self.material.device))

    def advance(self, state: State, stop: int) -> None:
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
        most = max(1, _GROUP_IMAGES // self.recipe.batch)
        rounds = -(-members // (most * self.threads))
        return -(-members // (rounds * self.threads))

    def measure(self, weights: Tensors) -> dict[str, NDArray[Any]]:
        """Every measured column of the metadata, ``{column: (M,)}``.

        Training loss and accuracy are those of the whole training set without augmentation.
        """
        count, size = len(next(iter(weights.values()))), _MEASURED_GROUP
        groups = [{name: weights[name][at : at + size] for name in weights} for at in range(0, count, size)]
        found = list(self.workers.map(self._measured, groups)) if self.workers else [self._measured(g) for g in groups]
        return {column: np.concatenate([part[column] for part in found]) for column in found[0]}

    def _measured(self, weights: Tensors) -> dict[str, NDArray[Any]]:
        source = self.source
        train = self._log_probabilities(weights, source.train_images)
        test = self._log_probabilities(weights, source.test_images)
        loss, test_nll = uncertainty.nll(train, source.train_labels), uncertainty.nll(test, source.test_labels)
        return {
            "train_loss": loss,
            "train_accuracy": uncertainty.accuracy(train, source.train_labels),
            "test_loss": test_nll,
            "test_accuracy": uncertainty.accuracy(test, source.test_labels),
            "test_nll": test_nll,
            "test_brier": uncertainty.brier(test, source.test_labels),
            "test_ece": uncertainty.ece(test, source.test_labels),
            "diverged": ~(loss <= np.log(source.classes)),
        }

    def _log_probabilities(self, weights: Tensors, images: data.Images) -> NDArray[np.float64]:
        """(M, N, C) with the architecture's own forward function, so that no engine is its own judge."""
        device = self.material.device
        model = archs.get(self.recipe.architecture)().to(device).eval()
        size = _IMAGES_AT_ONCE[device.type]

        def logits(one: Tensors, inputs: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(model, one, (inputs,))

        made: list[NDArray[np.float64]] = []
        with torch.inference_mode():
            for at in range(0, len(images), size):
                inputs = self.material.seen(torch.from_numpy(images[at : at + size, None]).to(device))
                outputs = torch.func.vmap(logits, in_dims=(0, None))(weights, inputs)
                made.append(torch.log_softmax(outputs.double(), -1).cpu().numpy())
        return np.concatenate(made, axis=1)


@contextmanager
def trainer(
    recipe: Recipe, source: data.Data, *, device: str = "cpu", engine: str | None = None, threads: int | None = None
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
        There is no such device.
    """
    kind = checked(device)
    advance = engines.get(engine or engines.best(recipe))
    material = Material.of(recipe, source, device)
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
