"""The training set on a device, and what each step takes from it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from builders import draws
from builders.data import Data
from builders.recipe import Recipe

_DRAWN_AT_ONCE = 2**15


@dataclass(frozen=True, eq=False)
class Material:
    """A training set as engines read it.

    Parameters
    ----------
    recipe : what is trained.
    pixels : (N * H * W,) uint8: raw images padded by ``recipe.crop_pad``, one behind the other.
    labels : (N,) int64.
    height, width : H and W of a padded image.
    """

    recipe: Recipe
    pixels: torch.Tensor
    labels: torch.Tensor
    height: int
    width: int

    @classmethod
    def of(cls, recipe: Recipe, source: Data, device: str) -> Self:
        """Pad with raw 0, move to the device."""
        pad = recipe.crop_pad
        padded = np.pad(source.train_images, ((0, 0), (pad, pad), (pad, pad)))
        pixels = torch.from_numpy(padded).reshape(-1).to(device)
        labels = torch.from_numpy(source.train_labels).to(device)
        return cls(recipe, pixels, labels, *padded.shape[1:])

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.pixels.device

    def seen(self, raw: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """What the network sees of raw pixels, float32: ``(pixel - 255 mean) / (255 std)``, in float32 arithmetic.

        It may differ from ``builders.data.inputs`` by the last bit.
        """
        made = raw.float() if out is None else out.copy_(raw)
        return made.sub_(255 * self.recipe.mean).mul_(1 / (255 * self.recipe.std))


@dataclass(frozen=True, eq=False)
class Step:
    """What M members take for one optimiser step of B images.

    Parameters
    ----------
    rate : the learning rate.
    corners : (M, B) int64: the place in ``Material.pixels`` of the first pixel of each crop.
    labels : (M, B) int64.
    """

    rate: float
    corners: torch.Tensor
    labels: torch.Tensor


def steps(material: Material, keys: NDArray[np.uint64], start: int, stop: int) -> Iterator[Step]:
    """The steps from ``start`` to ``stop`` of the members with these keys.

    The numbers are drawn for many steps at once, in numpy where the material is on the CPU and else on its device.
    """
    recipe = material.recipe
    count, batch = recipe.train, recipe.batch
    at_once = max(1, _DRAWN_AT_ONCE // (len(keys) * batch))
    lanes = keys if material.device.type == "cpu" else torch.from_numpy(keys.view(np.int64)).to(material.device)
    while start < stop:
        epoch, first = divmod(start, recipe.epoch_steps)
        last = min(first + at_once, first + stop - start, recipe.epoch_steps)
        positions = np.arange(first * batch, min(last * batch, count))
        if isinstance(lanes, torch.Tensor):
            positions = torch.from_numpy(positions).to(material.device)
        items = torch.as_tensor(draws.order(lanes, epoch, positions, count))
        down, right = draws.crops(lanes, epoch, positions, recipe.crop_pad)
        corners = items * (material.height * material.width) + torch.as_tensor(down * material.width + right)
        labels = material.labels[items]
        for at in range(0, len(positions), batch):
            yield Step(recipe.rate(epoch), corners[:, at : at + batch], labels[:, at : at + batch])
        start += last - first
