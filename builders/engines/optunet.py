r"""The engine for OptuNet: the whole step, forward and backward, as a few stacked matrix products.

A 3x3 pooling window sees a 6x6 patch of the input; its 2 channels times 9 positions before pooling are 18 numbers that
depend linearly on the patch's 36. So the first convolution of a member is one product (18, 36) x (36, 64 B), with each
kernel written 9 times into the matrix, and the maximum is taken over 9 of its rows. The second convolution, on 8x8
pictures, is a product (80, 64) x (64, B) for each of its two groups. That is 2.25 and 2.56 times the arithmetic of
direct convolutions, at many times their speed; the batch is the last axis throughout, so that every operation runs
along it. Gradients are the same products transposed, summed over the places that hold one weight.

Where several positions of a window share the maximum its gradient is split between them, where PyTorch's max-pooling
picks one; this differs only when equal outputs come from unequal patches.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from builders.engines import sgd
from builders.material import Material, steps
from builders.state import State, Tensors

_USED = 27
"""Rows and columns of the 28x28 input that pooling leaves in use."""


@dataclass(frozen=True, eq=False)
class _Tables:
    """Where each weight stands in the matrices of the two convolutions.

    Parameters
    ----------
    spread1 : (18 * 36,) index into a member's 32 first weights and a zero behind them.
    fold1 : (32 * 18,) index into the matrix: the 18 places of each weight.
    spread2 : (2 * 80 * 64,) index into the 250 second weights and a zero.
    fold2 : (250 * 16,) likewise.
    """

    spread1: torch.Tensor
    fold1: torch.Tensor
    spread2: torch.Tensor
    fold2: torch.Tensor


@lru_cache
def _tables(device: torch.device) -> _Tables:
    first = np.full((3, 3, 2, 6, 6), 32)
    for y, x, c, i, j in np.ndindex(3, 3, 2, 4, 4):
        first[y, x, c, y + i, x + j] = 16 * c + 4 * i + j
    second = np.full((10, 4, 4, 8, 8), 250)
    for o, y, x, i, j in np.ndindex(10, 4, 4, 5, 5):
        second[o, y, x, y + i, x + j] = 25 * o + 5 * i + j
    made: list[torch.Tensor] = []
    for spread, count in ((first.reshape(-1), 32), (second.reshape(-1), 250)):
        places = np.argsort(spread, kind="stable")[: (spread < count).sum()]
        made += [torch.from_numpy(spread).to(device), torch.from_numpy(places).to(device)]
    return _Tables(*made)


class _Room:
    """Memory for the large intermediate results, kept from step to step: fresh pages cost as much as the arithmetic."""

    def __init__(self, members: int, batch: int, material: Material) -> None:
        small = material.pixels.numel() < 2**31
        count, device = members * batch, material.device
        self._index = torch.empty(count * _USED**2, dtype=torch.int32 if small else torch.int64, device=device)
        self._images = torch.empty(count * _USED**2, device=device)
        self._patches = torch.empty(count * 36 * 64, device=device)
        self._before = torch.empty(count * 18 * 64, device=device)
        corner = torch.arange(_USED, device=device, dtype=self._index.dtype)
        self._window = (corner[:, None] * material.width + corner).reshape(-1, 1)

    def patches(self, pixels: torch.Tensor, corners: torch.Tensor) -> torch.Tensor:
        """(M, 36, 64 B): the overlapping 6x6 patches of the crops, 8x8 of them an image."""
        members, batch = corners.shape
        count = members * _USED**2 * batch
        index = self._index[:count].view(members, _USED**2, batch)
        torch.add(corners.to(index.dtype)[:, None], self._window, out=index)
        images = torch.index_select(pixels, 0, index.view(-1), out=self._images[:count])
        row = _USED * batch
        strides = (_USED * row, row, batch, 3 * row, 3 * batch, 1)
        patches = self._patches[: members * 36 * 64 * batch]
        patches.view(members, 6, 6, 8, 8, batch).copy_(images.as_strided((members, 6, 6, 8, 8, batch), strides))
        return patches.view(members, 36, 64 * batch)

    def before(self, members: int, batch: int) -> torch.Tensor:
        """(M, 18, 64 B) for the values before pooling."""
        return self._before[: members * 18 * 64 * batch].view(members, 18, 64 * batch)


def advance(material: Material, state: State, stop: int) -> None:
    """See ``builders.engines.Engine``; a group of 4 to 16 members is fastest on one CPU core, all of them on a GPU."""
    room = _Room(len(state), material.recipe.batch, material)
    for step in steps(material, state.keys, state.step, stop):
        patches = room.patches(material.pixels, step.corners)
        found = _gradients(state.weights, patches, step.labels, room)
        sgd.update(material.recipe, state, found, step.rate)
    state.step = stop


def _gradients(weights: Tensors, patches: torch.Tensor, labels: torch.Tensor, room: _Room) -> Tensors:
    """Gradients of the mean cross-entropy of each member's batch.

    Parameters
    ----------
    weights : ``{name: (M, *shape)}``.
    patches : (M, 36, 64 B).
    labels : (M, B).
    """
    tables = _tables(patches.device)
    members, batch = labels.shape
    kernel1, kernel2 = weights["conv1.weight"], weights["conv2.weight"]
    head, bias = weights["fc.weight"], weights["fc.bias"]

    matrix1 = _spread(kernel1, tables.spread1).view(members, 18, 36)
    before = torch.bmm(matrix1, patches, out=room.before(members, batch))
    windows = before.view(members, 9, 128 * batch)
    pooled = windows.amax(1)
    hidden1 = pooled.clamp_min(0).view(2 * members, 64, batch)
    matrix2 = _spread(kernel2, tables.spread2).view(2 * members, 80, 64)
    flat2 = torch.bmm(matrix2, hidden1).relu_()
    hidden2 = flat2.view(members, 10, 16, batch)
    features = hidden2.mean(2)
    logits = torch.baddbmm(bias[:, :, None], head, features)

    error = torch.softmax(logits, 1)
    error.scatter_add_(1, labels[:, None], error.new_full((1, 1, 1), -1.0).expand(members, 1, batch))
    error.div_(batch)
    back = torch.bmm(head.transpose(1, 2), error).div_(16)
    hidden2.sign_().mul_(back[:, :, None])
    back1 = torch.bmm(matrix2.transpose(1, 2), flat2)
    product2 = torch.bmm(flat2, hidden1.transpose(1, 2))
    back1.mul_(hidden1.sign_())

    torch.eq(windows, pooled[:, None], out=windows)
    share = back1.view(members, -1).div_(windows.sum(1))
    windows.mul_(share[:, None])
    product1 = torch.bmm(before, patches.transpose(1, 2))
    return {
        "conv1.weight": _fold(product1, tables.fold1, kernel1),
        "conv2.weight": _fold(product2, tables.fold2, kernel2),
        "fc.weight": torch.bmm(error, features.transpose(1, 2)),
        "fc.bias": error.sum(2),
    }


def _spread(kernel: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The matrix of a convolution from its kernels: each weight at all its places, 0 elsewhere."""
    return torch.nn.functional.pad(kernel.reshape(len(kernel), -1), (0, 1)).index_select(1, index)


def _fold(product: torch.Tensor, index: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The gradient of kernels from that of their matrix: the sum over each weight's places."""
    places = product.view(len(like), -1).index_select(1, index)
    return places.view(len(like), like[0].numel(), -1).sum(2).view_as(like)
