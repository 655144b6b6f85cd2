"""Losses and accuracies of many networks on the same labelled inputs. Needs torch."""

import copy
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.archs.gaussian_spec import STD
from ckptzoo.derive.batch_norm import renewed_statistics, statistics_names
from ckptzoo.derive.concurrency import ACTIVATIONS_BYTES, in_order
from ckptzoo.derive.forward import Forward, StackedForward, Weights, full_precision, one_thread
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import Problem, ZooError
from ckptzoo.schema.architecture import Architecture

_MAX_THREADS = 64
"""The maximum of stacks that are evaluated at a time, one per core."""
_STATISTICS_BATCH = 512
"""The number of inputs whose BatchNorm statistics are computed at once."""


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of G predictions.

    ``loss`` is (G,) float64, the mean negative log-likelihood of the labels in nats; NaN where an output is NaN;
    ``accuracy`` is the (G,) share of the inputs whose label is the likeliest.
    """

    loss: NDArray[np.float64]
    accuracy: NDArray[np.float64]

    def reshape(self, *shape: int) -> "Scores":
        """Return both in another shape."""
        return Scores(self.loss.reshape(shape), self.accuracy.reshape(shape))


class Evaluator:
    """Scores networks of one architecture, stacks of them at a time, on every core.

    Raises ``ZooError`` if the network does not take such inputs, or labels are not classes of it. Tested in
    tests/derive/test_evaluation.py. ``arch`` has a forward function in ``ckptzoo.archs``, or a ``module`` is given;
    outputs are computed on ``device``.
    """

    def __init__(
        self,
        arch: Architecture,
        labelled: Labelled,
        *,
        module: torch.nn.Module | None = None,
        device: str = "cpu",
    ) -> None:
        single = np.ascontiguousarray(labelled.inputs, np.float32)
        forward = Forward(arch, module, device=device)
        classes = forward.features(single.shape[1:])
        labels = np.asarray(labelled.targets)
        fits = labels.shape == (len(single),) and labels.dtype.kind in "iu" and len(labels)
        if not fits or int(labels.min()) < 0 or int(labels.max()) >= classes:
            expected, step = f"{len(single)} integers from 0 to {classes - 1}", "Pass a label for every input."
            raise ZooError(Problem(arch.name, "labels", expected, f"{labels.dtype} {labels.shape}", step))
        self._forward, self._device = StackedForward(forward, arch, single), device
        self._targets = torch.from_numpy(labels.astype(np.int64))
        self._buffers = [name for name in statistics_names(forward.module()) if name in arch]
        self._statistics = None
        if labelled.statistics is not None and self._buffers:
            training = torch.from_numpy(np.ascontiguousarray(labelled.statistics, np.float32))
            self._statistics = training.split(_STATISTICS_BATCH)
        self._arch, self._module, self._local = arch, module, threading.local()

    @property
    def stack_size(self) -> int:
        """The number of networks that are evaluated at once."""
        return self._forward.size

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the running statistics that ``renewed`` computes; none where there are no training inputs."""
        return () if self._statistics is None else tuple(self._buffers)

    def outputs(self, weights: Weights) -> NDArray[np.float32]:
        """(K, N, classes) of K networks, tensor name to (K, *shape); in memory at once."""
        stacks = (
            {name: array[start : start + self.stack_size] for name, array in weights.items()}
            for start in range(0, len(next(iter(weights.values()))), self.stack_size)
        )

        def evaluate(stack: Weights) -> NDArray[np.float32]:
            return np.concatenate(list(self._forward.outputs(self.renewed(stack))), axis=1)

        ahead = in_order(evaluate, stacks, max_threads=_MAX_THREADS, mapped_bytes=ACTIVATIONS_BYTES)
        with one_thread(), full_precision(), closing(ahead) as results:
            return np.concatenate(list(results))

    def scores(self, stacks: Iterable[Weights], *, ensemble: int = 1) -> list[Scores]:
        """The scores of each of some stacks of networks, in their order.

        ``stacks`` map tensor names to (G * ``ensemble``, *shape); ``ensemble`` is the number of consecutive networks
        that make one prediction, the mean of their likelihoods.
        """
        with one_thread(), full_precision(), closing(self._scored(stacks, ensemble)) as results:
            return list(results)

    def _scored(self, stacks: Iterable[Weights], ensemble: int) -> Any:
        def score(weights: Weights) -> Scores:
            return self._score(weights, ensemble)

        return in_order(score, stacks, max_threads=_MAX_THREADS, mapped_bytes=ACTIVATIONS_BYTES)

    def _score(self, weights: Weights, ensemble: int) -> Scores:
        K, N = len(next(iter(weights.values()))), len(self._targets)
        loss, right = np.zeros(K // ensemble), np.zeros(K // ensemble)
        # whole predictions together: each is done before the next stack begins
        at_once = max(1, self.stack_size // ensemble) * ensemble
        for first in range(0, K, at_once):
            some = {name: np.asarray(array[first : first + at_once]) for name, array in weights.items()}
            groups = slice(first // ensemble, (first + at_once) // ensemble)
            for start, likelihoods in self._log_likelihoods(self.renewed(some), ensemble):
                labels = self._targets[start : start + likelihoods.shape[1]]
                loss[groups] -= (
                    likelihoods.gather(2, labels.expand(len(likelihoods), -1)[..., None]).sum((1, 2)).numpy()
                )
                right[groups] += (likelihoods.argmax(2) == labels).sum(1).numpy()
        return Scores(loss / N, right / N)

    def _log_likelihoods(self, weights: Weights, ensemble: int) -> Iterator[tuple[int, torch.Tensor]]:
        """(G, B, C) float64 for each batch of the inputs, and where it starts."""
        K, start = len(next(iter(weights.values()))), 0
        parts = [
            self._forward.outputs({name: array[first : first + self.stack_size] for name, array in weights.items()})
            for first in range(0, K, self.stack_size)
        ]
        for outputs in zip(*parts, strict=True):
            logs = torch.from_numpy(np.concatenate(outputs)).double().log_softmax(2)
            if ensemble > 1:
                logs = logs.unflatten(0, (-1, ensemble)).logsumexp(1) - np.log(ensemble)
            yield start, logs
            start += logs.shape[1]

    def renewed(self, weights: Weights) -> Weights:
        """The networks as they are scored: with the running statistics of the training inputs, where there are some.

        ``weights`` maps tensor names to (K, *shape).
        """
        if self._statistics is None:
            return weights
        inputs = self._statistics
        # torch.from_numpy does not take bfloat16
        arrays = {
            name: np.ascontiguousarray(array, np.float32 if array.dtype.name == "bfloat16" else None)
            for name, array in weights.items()
        }
        tensors = {name: torch.from_numpy(array).to(self._device) for name, array in arrays.items()}
        renewed = renewed_statistics(
            self._network(), self._buffers, tensors, lambda: (batch.to(self._device) for batch in inputs)
        )
        return {name: tensor.cpu().numpy() for name, tensor in renewed.items()}

    def _network(self) -> torch.nn.Module:
        """The thread's own network."""
        if not hasattr(self._local, "network"):
            forward = self._arch.forward
            assert self._module is not None or forward is not None
            self._local.network = archs.get(str(forward))() if self._module is None else copy.deepcopy(self._module)
        return self._local.network


def along_lines(
    evaluator: Evaluator, first: Weights, second: Weights, points: Sequence[float], noise: Weights | None = None
) -> Scores:
    """Scores (P, T) of the networks ``(1 - t) first + t second`` at T points of the lines between P pairs.

    ``first`` and ``second`` map tensor names to (P, *shape); buffers, too, are joined by lines; ``noise`` is as in
    ``combined``.

    Examples
    --------
    >>> from ckptzoo.derive.labelled import Labelled
    >>> zoo, inputs = ckptzoo.open("cards/mnist-optunet"), np.zeros((5, 1, 28, 28), np.float32)
    >>> evaluator = Evaluator(zoo.arch, Labelled("zeros", inputs, np.arange(5)))
    >>> first, second = ({name: zoo[name][rows] for name in zoo.arch.names} for rows in (slice(8), slice(8, 16)))
    >>> along_lines(evaluator, first, second, [0.0, 0.5, 1.0]).loss.shape
    (8, 3)
    """
    pairs, taus = len(next(iter(first.values()))), np.asarray(points, np.float64)
    corners = {name: np.stack([first[name], second[name]], 1) for name in first}
    shares = np.stack([1 - taus, taus], 1)
    return combined(evaluator, corners, np.broadcast_to(shares, (pairs, *shares.shape)), noise)


def combined(
    evaluator: Evaluator, corners: Weights, shares: NDArray[np.float64], noise: Weights | None = None
) -> Scores:
    """Scores (P, T) of weighted means of networks: T for each of P groups of k networks.

    ``corners`` maps tensor names to (P, k, *shape); ``shares`` are (P, T, k), which sum to 1 over the last axis;
    ``noise`` is for Gaussians, whose tensors ``<name>_std`` are deviations, and maps tensor names to (S, *shape)
    standard normal numbers. A prediction is then the mean of the likelihoods of S draws ``mean + std * noise``, the
    same noise for all (arXiv 2310.10171, section 4).
    """
    places = list(np.ndindex(*shares.shape[:2]))
    draws = 1 if noise is None else len(next(iter(noise.values())))
    size = max(1, evaluator.stack_size // draws)
    stacks = (
        _drawn(_means(corners, shares, places[start : start + size]), noise) for start in range(0, len(places), size)
    )
    found = evaluator.scores(stacks, ensemble=draws)
    scores = Scores(np.concatenate([item.loss for item in found]), np.concatenate([item.accuracy for item in found]))
    return scores.reshape(*shares.shape[:2])


def standard_noise(arch: Architecture, draws: int, seed: int) -> dict[str, NDArray[np.float32]]:
    """Standard normal numbers (S, *shape) for every parameter of an architecture: ``noise`` of ``combined``."""
    rng = np.random.default_rng(seed)
    parameters = [tensor for tensor in arch.tensors if tensor.kind != "buffer"]
    return {tensor.name: rng.standard_normal((draws, *tensor.shape), np.float32) for tensor in parameters}


def _means(corners: Weights, shares: NDArray[np.float64], places: Sequence[tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    """Map tensor names to (len(places), *shape): the weighted means at some places (group, point)."""
    found: dict[str, NDArray[Any]] = {}
    for name, array in corners.items():
        if array.dtype.kind in "iub":  # counters
            found[name] = np.stack([array[group, 0] for group, _ in places])
            continue
        sums = [np.tensordot(shares[group, point], array[group].astype(np.float64), 1) for group, point in places]
        found[name] = np.stack(sums).astype(np.float32)
    return found


def _drawn(weights: dict[str, NDArray[Any]], noise: Weights | None) -> Weights:
    """Draw G * S networks from G Gaussians; without noise the networks are returned as they are."""
    if noise is None:
        return weights
    draws, found = len(next(iter(noise.values()))), dict[str, NDArray[Any]]()
    for name, mean in weights.items():
        if name in noise:
            made = mean[:, None] + weights[f"{name}{STD}"][:, None] * noise[name]
            found[name] = made.reshape(-1, *mean.shape[1:])
        elif not name.endswith(STD):
            found[name] = mean.repeat(draws, 0)
    return found
