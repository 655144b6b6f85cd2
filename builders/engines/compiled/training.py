"""A member's steps, one after another, before the next member's: its weights never leave the cache."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from builders.engines.compiled import backward, forward, rng
from builders.engines.compiled.lanes import LANES
from builders.engines.compiled.options import OPTIONS
from builders.engines.compiled.workspace import OUTPUTS, Numbers, Pixels, Places, Workspace

Tensors = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]
"""Arrays (M, 32), (M, 250), (M, 100) and (M, 10) float32; absent momentum is (M, 0)."""


class Images(NamedTuple):
    """A training set of images, padded, one after another.

    ``pixels`` and ``labels`` are as in ``builders.data_source.DataSource``; ``height`` and ``width`` are those of a
    padded image, ``pad`` of which are padding on each side. The network sees ``(pixel - shift) * scale``.
    """

    pixels: Pixels
    labels: Places
    height: int
    width: int
    pad: int
    shift: np.float32
    scale: np.float32


class SGDSettings(NamedTuple):
    """The settings of SGD.

    ``items`` counts those of an epoch, ``batch`` those of a step; ``side`` is ``rng.side(items)``. ``rates`` is the
    rate of each epoch from that of the first step on; ``decay`` is weight decay, ``friction`` momentum. ``threshold``
    is ``builders.rng.dropout_threshold``, 0 without dropout; kept units are multiplied by ``scale``, 1 without.
    """

    items: int
    batch: int
    side: int
    rates: Numbers
    decay: np.float32
    friction: np.float32
    threshold: int
    scale: np.float32


class LaneBatch(NamedTuple):
    """The batch of a member in a step; longer than the batch by up to fifteen examples, which are computed and ignored.

    ``corners`` are the first pixels of the crops; ``scales`` (lanes, 10) are the factors by which dropout multiplies
    the head's inputs.
    """

    corners: Places
    labels: Places
    scales: NDArray[np.float32]

    @classmethod
    def empty(cls, size: int) -> "LaneBatch":
        """Allocate batches of up to ``size`` examples."""
        lanes = -(-size // LANES) * LANES
        return cls(np.empty(lanes, np.int64), np.empty(lanes, np.int64), np.ones((lanes, OUTPUTS), np.float32))


@njit(**OPTIONS)
def gradients(
    workspace: Workspace, images: Images, weights: tuple[Numbers, ...], batch: LaneBatch, size: int, dropout: bool
) -> None:
    """Compute gradients of the mean cross-entropy of ``size`` images, into the first numbers of four arrays."""
    conv1, conv2, head, bias = weights
    for sums in (workspace.conv1, workspace.conv2, workspace.head, workspace.bias):
        # most sums grow over the blocks of sixteen images, and the memory is that of the last step
        sums[:] = 0
    # always blocks of sixteen from the first image on: the order of additions depends on nothing else
    for first in range(0, size, LANES):
        places = batch.corners[first : first + LANES]
        if dropout:
            for unit in range(OUTPUTS):
                for lane in range(LANES):
                    workspace.scales[unit * LANES + lane] = batch.scales[first + lane, unit]
        forward.load_crop(workspace, images.pixels, places, images.width, images.shift, images.scale)
        forward.pool(workspace, conv1, images.width)
        forward.convolve(workspace, conv2)
        forward.classify(workspace, head, bias)
        backward.softmax_grad(workspace, batch.labels[first : first + LANES], size - first, size)
        backward.linear_backward(workspace, head)
        backward.conv2_weight_grad(workspace)
        backward.conv2_input_grad(workspace, conv2, images.scale)
        backward.conv1_weight_grad(workspace, images.pixels, places, images.width, images.shift)
    backward.reduce_lanes(workspace)


@njit(**OPTIONS)
def sgd_step(weights: Numbers, momentum: Numbers, slopes: Numbers, rate: np.float32, rule: SGDSettings) -> None:
    """Take a step as ``builders.engines.sgd.update``."""
    for k in range(len(weights)):
        slope = slopes[k]
        # the order of torch.optim.SGD: decay goes into the velocity, too
        if rule.decay:
            slope += rule.decay * weights[k]
        if len(momentum):
            slope += rule.friction * momentum[k]
            momentum[k] = slope
        weights[k] -= rate * slope


@njit(**OPTIONS)
def draw(key: Any, epoch: int, first: int, images: Images, rule: SGDSettings, keys: Any, batch: LaneBatch) -> int:
    """Draw the batch of a member in the step that starts at position ``first`` of an epoch; return how many images. The
    places behind a short batch repeat its first image.
    """
    corners, labels = batch.corners, batch.labels
    size = min(rule.batch, rule.items - first)
    rng.items(first, rule.items, rule.side, keys, labels[:size])
    rng.corners(key, epoch, first, images.pad, images.width, corners[:size])
    for k in range(size):
        item = labels[k]
        corners[k] += item * images.height * images.width
        labels[k] = images.labels[item]
    # addresses that may be read; softmax_grad gives these lanes the gradient 0
    corners[size:] = corners[0]
    labels[size:] = labels[0]
    if rule.threshold:
        rng.dropout_scales(key, epoch, first, rule.threshold, rule.scale, batch.scales[:size])
    return size


def _training_loop(sources: str) -> Callable[..., str]:
    def train(
        workspace: Workspace,
        images: Images,
        rule: SGDSettings,
        batch: LaneBatch,
        keys: NDArray[np.uint64],
        weights: Tensors,
        momenta: Tensors,
        start: int,
        stop: int,
    ) -> str:
        """Train every member from step ``start`` to ``stop``, in place; return the digest of the compiled sources."""
        rounds = np.empty(rng.ROUNDS, np.uint64)
        steps = -(-rule.items // rule.batch)
        for member in range(len(keys)):
            conv1, conv2, head, bias = weights[0][member], weights[1][member], weights[2][member], weights[3][member]
            # no epoch: the first step draws its round keys
            epoch = -1
            for step in range(start, stop):
                if step // steps != epoch:
                    epoch = step // steps
                    rng.round_keys(keys[member], epoch, rounds)
                first = (step - epoch * steps) * rule.batch
                size = draw(keys[member], epoch, first, images, rule, rounds, batch)
                gradients(workspace, images, (conv1, conv2, head, bias), batch, size, rule.threshold > 0)
                rate = rule.rates[epoch - start // steps]
                sgd_step(conv1, momenta[0][member], workspace.conv1, rate, rule)
                sgd_step(conv2, momenta[1][member], workspace.conv2, rate, rule)
                sgd_step(head, momenta[2][member], workspace.head, rate, rule)
                sgd_step(bias, momenta[3][member], workspace.bias, rate, rule)
        return sources

    return train


def _gradient_loop(sources: str) -> Callable[..., str]:
    def batch_gradients(
        workspace: Workspace,
        images: Images,
        rule: SGDSettings,
        batch: LaneBatch,
        keys: NDArray[np.uint64],
        weights: Tensors,
        slopes: Tensors,
        step: int,
    ) -> str:
        """Write the gradient of every member at ``step`` into ``slopes``; return the digest of the compiled sources."""
        rounds = np.empty(rng.ROUNDS, np.uint64)
        steps = -(-rule.items // rule.batch)
        epoch = step // steps
        for member in range(len(keys)):
            conv1, conv2, head, bias = weights[0][member], weights[1][member], weights[2][member], weights[3][member]
            rng.round_keys(keys[member], epoch, rounds)
            first = (step - epoch * steps) * rule.batch
            size = draw(keys[member], epoch, first, images, rule, rounds, batch)
            gradients(workspace, images, (conv1, conv2, head, bias), batch, size, rule.threshold > 0)
            slopes[0][member] = workspace.conv1[: len(conv1)]
            slopes[1][member] = workspace.conv2[: len(conv2)]
            slopes[2][member] = workspace.head[: len(head)]
            slopes[3][member] = workspace.bias[: len(bias)]
        return sources

    return batch_gradients


def compile_loops() -> tuple[Callable[..., str], Callable[..., str]]:
    """Return ``train`` and ``batch_gradients``, compiled when first called; kept in Numba's cache on disk, or in
    memory.

    Numba finds what it keeps by the file of a function and by what the function encloses, not by what it calls;
    therefore these enclose a digest of the folder.
    """
    # sorted, since a folder's order differs between file systems
    files = sorted(Path(__file__).parent.glob("*.py"))
    sources = sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    train, batch_gradients = _training_loop(sources), _gradient_loop(sources)
    try:
        # without the interpreter's lock, so that the workers run at the same time
        options: dict[str, Any] = {"nogil": True, "cache": True, **OPTIONS}
        return njit(train, **options), njit(batch_gradients, **options)
    except RuntimeError:  # "no locator available": Numba has no folder that it may write to
        return njit(train, nogil=True, **OPTIONS), njit(batch_gradients, nogil=True, **OPTIONS)


train, batch_gradients = compile_loops()
"""The compiled functions that every thread shares."""
