r"""OptuNet's backward pass over sixteen images: from the shares of softmax to sums for the gradients of the weights.

With the loss :math:`L = -\frac1B \sum_b \log p_{b, y_b}` of B images, :math:`\partial L / \partial z_k = (p_k - [k =
y]) / B`; from there on each step is a sum of products transposed. A maximum passes its gradient on to the one place
that it came from, so the first convolution's weights have 2 x 64 patches of 4 x 4 pixels an image to add, of its
2 x 576.
``tests/builders/test_compiled.py`` compares the gradient with autograd in double precision.
"""

import numpy as np
from numba import njit

from builders.engines.compiled.lanes import LANES, load, patch, spread, store, total, where_positive
from builders.engines.compiled.options import INLINE
from builders.engines.compiled.workspace import (
    CLASSES,
    GROUP,
    OUTPUTS,
    PLACES,
    WEIGHTS2,
    WINDOWS,
    Lanes,
    Numbers,
    Pixels,
    Places,
    Workspace,
)

_L = LANES
_ZERO, _ONE, _SIXTEENTH = np.float32(0), np.float32(1), np.float32(1 / PLACES)


@njit(**INLINE)
def softmax_grad(workspace: Workspace, labels: Places, left: int, size: int) -> None:
    """Compute gradients of the outputs, of which only the first ``left`` images count, in a batch of ``size``."""
    powers = workspace.slope
    for lane in range(_L):
        total_power = _ZERO
        for k in range(CLASSES):
            total_power += powers[k * _L + lane]
        for k in range(CLASSES):
            error = powers[k * _L + lane] / total_power - (_ONE if k == labels[lane] else _ZERO)
            powers[k * _L + lane] = error / np.float32(size) if lane < left else _ZERO


@njit(**INLINE)
def linear_backward(workspace: Workspace, head: Numbers) -> None:
    """Propagate back through the head, the mean and ReLU, to the outputs of the second convolution."""
    for k in range(CLASSES):
        slope = load(workspace.slope, k * _L)
        _add(workspace.bias, k * _L, slope)
        for out in range(OUTPUTS):
            _add(workspace.head, (k * OUTPUTS + out) * _L, slope * load(workspace.features, out * _L))
    for out in range(OUTPUTS):
        back = spread(_ZERO)
        for k in range(CLASSES):
            back = back + spread(head[k * OUTPUTS + out]) * load(workspace.slope, k * _L)
        # a feature is the mean over 16 positions, so each of them gets a sixteenth of the gradient
        back = back * load(workspace.scales, out * _L) * spread(_SIXTEENTH)
        for place in range(PLACES):
            _where(workspace.hidden2, (out * PLACES + place) * _L, workspace.hidden2, back)


@njit(**INLINE)
def _add(sums: Numbers, offset: int, value: Lanes) -> None:
    store(sums, offset, load(sums, offset) + value)


@njit(**INLINE)
def _where(slopes: Numbers, offset: int, hidden: Numbers, value: Lanes) -> None:
    """Propagate back through ReLU."""
    store(slopes, offset, where_positive(load(hidden, offset), value))


@njit(**INLINE)
def conv2_weight_grad(workspace: Workspace) -> None:
    """Add to the sums for the weights of the second convolution, five of a row at a time."""
    for out in range(OUTPUTS):
        for i in range(5):
            offset = (out * WEIGHTS2 + 5 * i) * _L
            s0, s1, s2 = (
                load(workspace.conv2, offset),
                load(workspace.conv2, offset + _L),
                load(workspace.conv2, offset + 2 * _L),
            )
            s3, s4 = load(workspace.conv2, offset + 3 * _L), load(workspace.conv2, offset + 4 * _L)
            for y in range(4):
                start, here = (out // GROUP * WINDOWS + (y + i) * 8) * _L, (out * PLACES + 4 * y) * _L
                x0, x1 = load(workspace.hidden1, start), load(workspace.hidden1, start + _L)
                x2, x3 = load(workspace.hidden1, start + 2 * _L), load(workspace.hidden1, start + 3 * _L)
                for x in range(4):
                    slope, x4 = load(workspace.hidden2, here + x * _L), load(workspace.hidden1, start + (x + 4) * _L)
                    s0, s1, s2, s3, s4 = (
                        s0 + slope * x0,
                        s1 + slope * x1,
                        s2 + slope * x2,
                        s3 + slope * x3,
                        s4 + slope * x4,
                    )
                    # the window moves by one column: four of its five inputs are in registers already
                    x0, x1, x2, x3 = x1, x2, x3, x4
            store(workspace.conv2, offset, s0)
            store(workspace.conv2, offset + _L, s1)
            store(workspace.conv2, offset + 2 * _L, s2)
            store(workspace.conv2, offset + 3 * _L, s3)
            store(workspace.conv2, offset + 4 * _L, s4)


@njit(**INLINE)
def conv2_input_grad(workspace: Workspace, kernel: Numbers, scale: np.float32) -> None:
    """Propagate back through the second convolution and ReLU to the maxima of the first, times the pixels' scale."""
    zero, b = spread(_ZERO), spread(scale)
    # 8 rows of each of the 2 channels; their 8 sums stay in registers over all outputs and rows of a kernel
    for row in range(16):
        channel, y = row // 8, row % 8
        s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
        # the rows of a 5 x 5 kernel through which row y of 8 enters the four rows of outputs
        for i in range(max(0, y - 3), min(4, y) + 1):
            for out in range(channel * GROUP, (channel + 1) * GROUP):
                here, offset = (out * PLACES + 4 * (y - i)) * _L, out * WEIGHTS2 + 5 * i
                d0, d1 = load(workspace.hidden2, here), load(workspace.hidden2, here + _L)
                d2, d3 = load(workspace.hidden2, here + 2 * _L), load(workspace.hidden2, here + 3 * _L)
                w = spread(kernel[offset])
                s0, s1, s2, s3 = s0 + w * d0, s1 + w * d1, s2 + w * d2, s3 + w * d3
                w = spread(kernel[offset + 1])
                s1, s2, s3, s4 = s1 + w * d0, s2 + w * d1, s3 + w * d2, s4 + w * d3
                w = spread(kernel[offset + 2])
                s2, s3, s4, s5 = s2 + w * d0, s3 + w * d1, s4 + w * d2, s5 + w * d3
                w = spread(kernel[offset + 3])
                s3, s4, s5, s6 = s3 + w * d0, s4 + w * d1, s5 + w * d2, s6 + w * d3
                w = spread(kernel[offset + 4])
                s4, s5, s6, s7 = s4 + w * d0, s5 + w * d1, s6 + w * d2, s7 + w * d3
        offset = row * 8 * _L
        _where(workspace.slope1, offset, workspace.hidden1, s0 * b)
        _where(workspace.slope1, offset + _L, workspace.hidden1, s1 * b)
        _where(workspace.slope1, offset + 2 * _L, workspace.hidden1, s2 * b)
        _where(workspace.slope1, offset + 3 * _L, workspace.hidden1, s3 * b)
        _where(workspace.slope1, offset + 4 * _L, workspace.hidden1, s4 * b)
        _where(workspace.slope1, offset + 5 * _L, workspace.hidden1, s5 * b)
        _where(workspace.slope1, offset + 6 * _L, workspace.hidden1, s6 * b)
        _where(workspace.slope1, offset + 7 * _L, workspace.hidden1, s7 * b)


@njit(**INLINE)
def conv1_weight_grad(workspace: Workspace, pixels: Pixels, corners: Places, width: int, shift: np.float32) -> None:
    """Add to the sums for the weights of the first convolution, which are their lanes."""
    a = spread(shift)
    s0, s1 = load(workspace.conv1, 0), load(workspace.conv1, _L)
    for lane in range(_L):
        for window in range(WINDOWS):
            # one image after another: lanes are the 16 weights here, since the places of maxima differ from image to
            # image
            corner, offset = corners[lane] + 3 * (window // 8 * width + window % 8), window * _L + lane
            seen = patch(pixels, corner + np.int64(workspace.winners[offset]), width) - a
            s0 = s0 + spread(workspace.slope1[offset]) * seen
            offset += WINDOWS * _L
            seen = patch(pixels, corner + np.int64(workspace.winners[offset]), width) - a
            s1 = s1 + spread(workspace.slope1[offset]) * seen
    store(workspace.conv1, 0, s0)
    store(workspace.conv1, _L, s1)


@njit(**INLINE)
def reduce_lanes(workspace: Workspace) -> None:
    """Add up the lanes, where they are images."""
    for sums in (workspace.conv2, workspace.head, workspace.bias):
        for k in range(len(sums) // _L):
            # k <= 16 k: what is overwritten has been added up already
            sums[k] = total(load(sums, k * _L))
