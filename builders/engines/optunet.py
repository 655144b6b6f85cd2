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

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from builders.data_source import DataSource, Step, steps
from builders.engines import sgd
from builders.engines.sgd import GradientStep
from builders.state import Tensors, TrainingState, dtype_of

# A 4x4 kernel on 28x28 pixels gives 25x25 outputs, of which 3x3 windows use 24x24: these see 27x27 pixels.
_USED = 27
"""Rows and columns of the 28x28 input that pooling leaves in use."""


class _Workspace:
    """Memory for the large intermediate results, kept from step to step: fresh pages cost as much as the arithmetic."""

    def __init__(self, members: int, batch: int, data_source: DataSource) -> None:
        self._data_source = data_source
        # indices of 4 bytes, where they reach every pixel, are half as much to write and read
        small = data_source.pixels.numel() < 2**31
        count, device, dtype = members * batch, data_source.device, dtype_of(data_source.recipe)
        self._index = torch.empty(count * _USED**2, dtype=torch.int32 if small else torch.int64, device=device)
        self._raw = torch.empty(count * _USED**2, dtype=torch.uint8, device=device)
        # bytes are gathered first and converted then: a quarter of the memory is read at random
        self._images = torch.empty(count * _USED**2, dtype=dtype, device=device)
        self._patches = torch.empty(count * 36 * 64, dtype=dtype, device=device)
        self._before = torch.empty(count * 18 * 64, dtype=dtype, device=device)
        corner = torch.arange(_USED, device=device, dtype=self._index.dtype)
        self._window = (corner[:, None] * data_source.width + corner).reshape(-1, 1)
        self._mirrored = (corner[:, None] * data_source.width + data_source.crop_shape[1] - 1 - corner).reshape(-1, 1)
        self.matrix1 = torch.zeros(members, 18, 36, dtype=dtype, device=device)
        self.matrix2 = torch.zeros(2 * members, 80, 64, dtype=dtype, device=device)

    def patches(self, step: Step) -> torch.Tensor:
        """Return (M, 36, 64 B): the overlapping 6x6 patches of the crops, 8x8 of them an image."""
        corners = step.corners
        members, batch = corners.shape
        window = self._window
        if step.flips is not None:
            window = torch.where(step.flips[:, None], self._mirrored, self._window)
        count = members * _USED**2 * batch
        index = self._index[:count].view(members, _USED**2, batch)
        torch.add(corners.to(index.dtype)[:, None], window, out=index)
        raw = torch.index_select(self._data_source.pixels, 0, index.view(-1), out=self._raw[:count])
        images = self._data_source.network_inputs(raw, out=self._images[:count])
        row = _USED * batch
        # patches begin every 3 pixels and overlap by 3
        strides = (_USED * row, row, batch, 3 * row, 3 * batch, 1)
        patches = self._patches[: members * 36 * 64 * batch]
        patches.view(members, 6, 6, 8, 8, batch).copy_(images.as_strided((members, 6, 6, 8, 8, batch), strides))
        return patches.view(members, 36, 64 * batch)

    def before(self, members: int, batch: int) -> torch.Tensor:
        """Return (M, 18, 64 B) for the values before pooling."""
        return self._before[: members * 18 * 64 * batch].view(members, 18, 64 * batch)


def advance(data_source: DataSource, state: TrainingState, stop: int) -> None:
    """Take the steps; a group of 4 to 16 members is fastest on one CPU core, all of them on a GPU."""
    sgd.advance(data_source.recipe, state, gradient_steps(data_source, state.keys, state.step, stop))


def gradient_steps(data_source: DataSource, keys: NDArray[np.uint64], start: int, stop: int) -> Iterator[GradientStep]:
    """Yield the steps with their gradients."""
    workspace = _Workspace(len(keys), data_source.recipe.batch, data_source)
    for step in steps(data_source, keys, start, stop):
        patches = workspace.patches(step)
        yield GradientStep(step.rate, partial(_gradients, patches=patches, step=step, workspace=workspace))


def _gradients(weights: Tensors, patches: torch.Tensor, step: Step, workspace: _Workspace) -> Tensors:
    """Return gradients of the mean cross-entropy of each member's batch, from weights ``{name: (M, *shape)}``, patches
    (M, 36, 64 B), and the labels (M, B) and dropout of the step.
    """
    labels = step.labels
    members, batch = labels.shape
    scales = None if step.scales is None else step.scales.transpose(1, 2)
    head, bias = weights["fc.weight"], weights["fc.bias"]

    _kernel1_places(workspace.matrix1).copy_(weights["conv1.weight"].view(members, 1, 1, 2, 4, 4))
    before = torch.bmm(workspace.matrix1, patches, out=workspace.before(members, batch))
    windows = before.view(members, 9, 128 * batch)
    pooled = windows.amax(1)
    hidden1 = pooled.clamp_min(0).view(2 * members, 64, batch)
    _kernel2_places(workspace.matrix2).copy_(weights["conv2.weight"].view(members, 10, 1, 1, 5, 5))
    flat2 = torch.bmm(workspace.matrix2, hidden1).relu_()
    hidden2 = flat2.view(members, 10, 16, batch)
    features = hidden2.mean(2)
    if scales is not None:
        features.mul_(scales)
    logits = torch.baddbmm(bias[:, :, None], head, features)

    error = torch.softmax(logits, 1)
    # softmax less 1 at the label, which is the gradient of cross-entropy
    error.scatter_add_(1, labels[:, None], error.new_full((1, 1, 1), -1.0).expand(members, 1, batch))
    error.div_(batch)
    back = torch.bmm(head.transpose(1, 2), error).div_(16)  # the features are means over 16 places
    if scales is not None:
        back.mul_(scales)
    # What ReLU returns is 0 or positive, so that its sign is ReLU's derivative.
    hidden2.sign_().mul_(back[:, :, None])
    back1 = torch.bmm(workspace.matrix2.transpose(1, 2), flat2)
    product2 = torch.bmm(flat2, hidden1.transpose(1, 2))
    back1.mul_(hidden1.sign_())

    # 1 where a value is its window's maximum, which shares the gradient with the others that are.
    torch.eq(windows, pooled[:, None], out=windows)
    share = back1.view(members, -1).div_(windows.sum(1))
    windows.mul_(share[:, None])
    product1 = torch.bmm(before, patches.transpose(1, 2))
    return {
        "conv1.weight": _kernel1_places(product1).sum((1, 2))[:, :, None],
        "conv2.weight": _kernel2_places(product2).sum((2, 3))[:, :, None],
        "fc.weight": torch.bmm(error, features.transpose(1, 2)),
        "fc.bias": error.sum(2),
    }


def _kernel1_places(matrix: torch.Tensor) -> torch.Tensor:
    """View matrices (M, 18, 36) as (M, 3, 3, 2, 4, 4), the first kernels at each of their places. Row (y, x, c) and
    column (y + i, x + j) hold the weight (i, j) of channel c.
    """
    # rows of 36, 6 of them for a y and 2 for an x; y and x each move the 4x4 weights by a row of 6 or a column
    return matrix.as_strided((len(matrix), 3, 3, 2, 4, 4), (648, 216 + 6, 72 + 1, 36, 6, 1))


def _kernel2_places(matrix: torch.Tensor) -> torch.Tensor:
    """View matrices (2 M, 80, 64) as (M, 10, 4, 4, 5, 5), the second kernels at each of their places. Row (o, y, x) and
    column (y + i, x + j) hold the weight (i, j) of output o.
    """
    # rows of 64, 16 of them for an o and 4 for a y; y and x each move the 5x5 weights by a row of 8 or a column
    return matrix.as_strided((len(matrix) // 2, 10, 4, 4, 5, 5), (10240, 1024, 256 + 8, 64 + 1, 8, 1))
