"""The training set on a device, ``DataSource`` of images or ``TabularData`` of rows, and what each step takes of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from builders import rng
from builders.data import Data, require_images
from builders.recipe import ImageRecipe, Recipe
from builders.state import dtype_of
from builders.tables import Table

# numpy's cost of a call is spread over many numbers, and 256 KB of int64 fit the cache of a core
_DRAWN_AT_ONCE = 2**15
"""Random numbers that are drawn at a time."""


class TrainingBatch(NamedTuple):
    """The batches of M members in one optimiser step of B examples.

    ``inputs`` are (M, B, ...) float32, or float64 where the recipe's precision is; ``targets`` are (M, B). The inputs
    of the last linear layer are multiplied by ``scales`` (M, B, U) of the same dtype: 0 where dropout drops one, 1 / (1
    - p) elsewhere; None without dropout.
    """

    rate: float
    inputs: torch.Tensor
    targets: torch.Tensor
    scales: torch.Tensor | None = None


class Feed(Protocol):
    """A training set as engines read it."""

    @property
    def recipe(self) -> Recipe:
        """The recipe that is trained."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of the data."""
        ...

    def network_inputs(self, raw: torch.Tensor) -> torch.Tensor:
        """Return the inputs of the network in float32, from inputs as the source holds them."""
        ...

    def batches(self, keys: NDArray[np.uint64], start: int, stop: int) -> Iterator[TrainingBatch]:
        """Yield the steps from ``start`` to ``stop`` of the members with these keys."""
        ...


@dataclass(frozen=True, eq=False)
class DataSource:
    """A training set of images. ``pixels`` (N * C * H * W,) uint8 holds raw images padded by ``recipe.crop_pad``, one
    after another; ``labels`` is (N,) int64; ``channels``, ``height`` and ``width`` are C, H and W of a padded image.
    """

    recipe: ImageRecipe
    pixels: torch.Tensor
    labels: torch.Tensor
    channels: int
    height: int
    width: int

    @classmethod
    def of(cls, recipe: Recipe, source: Data, device: str) -> Self:
        """Pad the images with raw 0 and move them; raises ZooError if the recipe has other inputs or channels."""
        recipe = require_images(recipe)
        raw, targets = source.half("train")
        recipe.statistics(raw.shape[1])
        pad = recipe.crop_pad
        # raw 0, before normalisation: the padding is black, as torchvision's RandomCrop makes it, and not the mean
        padded = np.pad(raw, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        pixels = torch.from_numpy(padded).reshape(-1).to(device)
        labels = torch.from_numpy(np.require(targets, requirements="W")).to(device)
        return cls(recipe, pixels, labels, *padded.shape[1:])

    @property
    def device(self) -> torch.device:
        return self.pixels.device

    @property
    def image_size(self) -> int:
        """Pixels of a padded image, over all channels."""
        return self.channels * self.height * self.width

    @property
    def crop_shape(self) -> tuple[int, int]:
        """Height and width of a crop, those of an image that is not padded."""
        pad = self.recipe.crop_pad
        return self.height - 2 * pad, self.width - 2 * pad

    def network_inputs(self, raw: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the network's inputs from raw pixels: ``(pixel - 255 mean) / (255 std)``, in the arithmetic of their
        dtype.

        ``raw`` is uint8 (..., C, H, W), or of any shape where all channels have the same mean and deviation. The dtype
        of ``out`` decides that of the result; by default it is new memory in float32.

        float32 inputs may differ from those of ``builders.data.inputs`` by the last bit.
        """
        pixels = raw.float() if out is None else out.copy_(raw)
        means, stds = self.recipe.statistics(self.channels)
        # one number for all channels also takes pixels of any shape, as the engine for OptuNet gathers them
        if len(set(means)) == len(set(stds)) == 1:
            return pixels.sub_(255 * means[0]).mul_(1 / (255 * stds[0]))
        shift, scale = (
            torch.tensor(values, dtype=pixels.dtype, device=pixels.device)[:, None, None]
            for values in ([255 * value for value in means], [1 / (255 * value) for value in stds])
        )
        return pixels.sub_(shift).mul_(scale)

    def batches(self, keys: NDArray[np.uint64], start: int, stop: int) -> Iterator[TrainingBatch]:
        """Yield batches whose inputs (M, B, C, H, W) are crops, mirrored if the recipe flips, and normalised last."""
        windows = self._windows()
        for step in steps(self, keys, start, stop):
            raw = windows[step.corners]
            if step.flips is not None:
                raw = torch.where(step.flips[:, :, None, None, None], raw.flip(-1), raw)
            images = self.network_inputs(raw, torch.empty(raw.shape, dtype=dtype_of(self.recipe), device=self.device))
            yield TrainingBatch(step.rate, images, step.labels, step.scales)

    def _windows(self) -> torch.Tensor:
        """Return (P, C, H, W): a view of the crop that starts at each place of ``pixels``, except those too near the
        end. An index into it copies whole rows of a crop, at a tenth of the time of an index into ``pixels`` for each
        pixel.
        """
        height, width = self.crop_shape
        plane = self.height * self.width
        # as_strided checks nothing but the end of the memory: places behind the last whole crop are left out
        last = (self.channels - 1) * plane + (height - 1) * self.width + width - 1
        size = (len(self.pixels) - last, self.channels, height, width)
        return self.pixels.as_strided(size, (1, plane, self.width, 1))


@dataclass(frozen=True, eq=False)
class TabularData:
    """A training set of rows: (N, D) ``inputs`` in the precision of the recipe, (N,) float32 ``targets``."""

    recipe: Recipe
    inputs: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def of(cls, recipe: Recipe, source: Table, device: str) -> Self:
        inputs, targets = (torch.from_numpy(array).to(device) for array in source.half("train"))
        return cls(recipe, inputs.to(dtype_of(recipe)), targets)

    @property
    def device(self) -> torch.device:
        return self.inputs.device

    def network_inputs(self, raw: torch.Tensor) -> torch.Tensor:
        """Return the inputs unchanged: a table holds what the network sees."""
        return raw

    def batches(self, keys: NDArray[np.uint64], start: int, stop: int) -> Iterator[TrainingBatch]:
        """Yield batches with inputs (M, B, D)."""
        batch, rates = self.recipe.batch, self.recipe.rates
        for epoch, positions, items in _draw_order(self.recipe, keys, self.device, start, stop):
            scales = _dropout_scales(self.recipe, _lanes(keys, self.device), epoch, positions)
            for first in range(0, items.shape[1], batch):
                taken = items[:, first : first + batch]
                yield TrainingBatch(
                    rates.learning_rate_at(epoch),
                    self.inputs[taken],
                    self.targets[taken],
                    None if scales is None else scales[:, first : first + batch],
                )


@dataclass(frozen=True, eq=False)
class Step:
    """The batches of M members in one optimiser step of B images, as places of crops.

    ``corners`` (M, B) int64 is the place in ``DataSource.pixels`` of the first pixel of each crop, ``labels`` are (M,
    B) int64, ``scales`` are as in ``TrainingBatch``, and ``flips`` (M, B) bool tells which crops are mirrored; it is
    None where the recipe does not flip.
    """

    rate: float
    corners: torch.Tensor
    labels: torch.Tensor
    scales: torch.Tensor | None
    flips: torch.Tensor | None = None


def steps(data_source: DataSource, keys: NDArray[np.uint64], start: int, stop: int) -> Iterator[Step]:
    """Yield the steps from ``start`` to ``stop`` of the members with these keys, as places of crops."""
    recipe = data_source.recipe
    batch, lanes = recipe.batch, _lanes(keys, data_source.device)
    for epoch, positions, items in _draw_order(recipe, keys, data_source.device, start, stop):
        down, right = rng.crops(lanes, epoch, positions, recipe.crop_pad)
        # torch.as_tensor: the draws are numpy on a CPU, and share their memory
        corners = items * data_source.image_size + torch.as_tensor(down * data_source.width + right)
        flips = torch.as_tensor(rng.flips(lanes, epoch, positions)) if recipe.flip else None
        labels = data_source.labels[items]
        scales = _dropout_scales(recipe, lanes, epoch, positions)
        for first in range(0, len(positions), batch):
            yield Step(
                recipe.rates.learning_rate_at(epoch),
                corners[:, first : first + batch],
                labels[:, first : first + batch],
                None if scales is None else scales[:, first : first + batch],
                None if flips is None else flips[:, first : first + batch],
            )


def _dropout_scales(recipe: Recipe, lanes: Any, epoch: int, positions: Any) -> torch.Tensor | None:
    """Return scales (M, P, U) as in ``TrainingBatch``."""
    if not recipe.dropout:
        return None
    units = recipe.arch[recipe.head].shape[1]
    kept = torch.as_tensor(rng.kept_units(lanes, epoch, positions, units, recipe.dropout))
    return kept.to(dtype_of(recipe)).mul_(1 / (1 - recipe.dropout))


def _draw_order(
    recipe: Recipe, keys: NDArray[np.uint64], device: torch.device, start: int, stop: int
) -> Iterator[tuple[int, Any, torch.Tensor]]:
    """Yield an epoch, positions (P,) in it, which begin with a batch, and the items (M, P) that members meet there. The
    numbers are drawn for many steps at once, in numpy where the device is the CPU and else on the device; the positions
    are of that kind.
    """
    count, batch = recipe.train, recipe.batch
    # whole batches, so that a batch never lies in two draws
    at_once = max(1, _DRAWN_AT_ONCE // (len(keys) * batch))
    lanes = _lanes(keys, device)
    while start < stop:
        epoch, first = divmod(start, recipe.epoch_steps)
        last = min(first + at_once, first + stop - start, recipe.epoch_steps)
        positions = np.arange(first * batch, min(last * batch, count))
        if isinstance(lanes, torch.Tensor):
            positions = torch.from_numpy(positions).to(device)
        yield epoch, positions, torch.as_tensor(rng.order(lanes, epoch, positions, count))
        start += last - first


def _lanes(keys: NDArray[np.uint64], device: torch.device) -> Any:
    """Return the keys where the numbers are drawn: numpy on a CPU, int64 torch of the same bits elsewhere."""
    # torch has hardly any arithmetic on uint64
    return keys if device.type == "cpu" else torch.from_numpy(keys.view(np.int64)).to(device)
