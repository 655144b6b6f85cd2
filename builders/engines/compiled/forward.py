"""OptuNet's forward pass over sixteen images at once, one in each lane.

The arithmetic is that of direct convolutions. A row of neighbouring outputs is summed in registers, so that a pixel
that is loaded goes into several of them; and the maximum of a pooling window is taken as its nine sums are made, so
that the first convolution's 2 x 24 x 24 outputs are never stored.
"""

import numpy as np
from numba import njit

from builders.engines.compiled.lanes import LANES, crops, exponential, greater, load, spread, store, where_positive
from builders.engines.compiled.options import INLINE
from builders.engines.compiled.workspace import (
    CLASSES,
    GROUP,
    OUTPUTS,
    PITCH,
    PLACES,
    ROWS,
    WEIGHTS1,
    WEIGHTS2,
    WINDOWS,
    Lanes,
    Numbers,
    Pixels,
    Places,
    Workspace,
)

_L = LANES
_ZERO, _LEAST, _SIXTEENTH = np.float32(0), np.float32(-np.inf), np.float32(1 / PLACES)
Three = tuple[Lanes, Lanes, Lanes]


@njit(**INLINE)
def load_crop(
    workspace: Workspace, pixels: Pixels, corners: Places, width: int, shift: np.float32, scale: np.float32
) -> None:
    """Load the crops of sixteen images as the network sees them, ``(pixel - shift) * scale``."""
    a, b = spread(shift), spread(scale)
    for row in range(ROWS):
        for column in range(0, PITCH, 4):
            # 28 columns are 7 words of four bytes, each loaded at once
            p0, p1, p2, p3 = crops(pixels, corners, row * width + column)
            offset = (row * PITCH + column) * _L
            store(workspace.images, offset, (p0 - a) * b)
            store(workspace.images, offset + _L, (p1 - a) * b)
            store(workspace.images, offset + 2 * _L, (p2 - a) * b)
            store(workspace.images, offset + 3 * _L, (p3 - a) * b)


@njit(**INLINE)
def _row(sums: Three, kernel: Numbers, offset: int, images: Numbers, start: int) -> Three:
    """Add one row of a kernel, from ``kernel[offset]`` on, to three neighbouring sums."""
    s0, s1, s2 = sums
    x0, x1 = load(images, start), load(images, start + _L)
    for j in range(4):
        weight, x2 = spread(kernel[offset + j]), load(images, start + (j + 2) * _L)
        s0, s1, s2 = s0 + weight * x0, s1 + weight * x1, s2 + weight * x2
        x0, x1 = x1, x2
    return s0, s1, s2


@njit(**INLINE)
def _best(best: Lanes, place: Lanes, sums: Three, offset: int) -> tuple[Lanes, Lanes]:
    """Return the larger of a maximum and three sums, and its place; the first where they are equal."""
    s0, s1, s2 = sums
    # a place is kept as a float32, exact to 2^24, so that one vector type holds all
    place, best = greater(s0, best, spread(np.float32(offset)), place), greater(s0, best, s0, best)
    place, best = greater(s1, best, spread(np.float32(offset + 1)), place), greater(s1, best, s1, best)
    return greater(s2, best, s2, best), greater(s2, best, spread(np.float32(offset + 2)), place)


@njit(**INLINE)
def pool(workspace: Workspace, kernel: Numbers, width: int) -> None:
    """Apply the first convolution, its maximum over each window, and ReLU; store the places of the maxima."""
    zero, least = spread(_ZERO), spread(_LEAST)
    for window in range(WINDOWS):
        corner = 3 * (window // 8 * PITCH + window % 8)
        best0, best1, place0, place1 = least, least, zero, zero
        for y in range(3):
            sums0, sums1 = (zero, zero, zero), (zero, zero, zero)
            for i in range(4):
                start = (corner + (y + i) * PITCH) * _L
                sums0 = _row(sums0, kernel, 4 * i, workspace.images, start)
                sums1 = _row(sums1, kernel, WEIGHTS1 + 4 * i, workspace.images, start)
            # places count in the padded picture, whose rows are ``width`` apart, since backward reads pixels from there
            best0, place0 = _best(best0, place0, sums0, y * width)
            best1, place1 = _best(best1, place1, sums1, y * width)
        offset, other = window * _L, (WINDOWS + window) * _L
        store(workspace.hidden1, offset, where_positive(best0, best0))
        store(workspace.winners, offset, place0)
        store(workspace.hidden1, other, where_positive(best1, best1))
        store(workspace.winners, other, place1)


@njit(**INLINE)
def convolve(workspace: Workspace, kernel: Numbers) -> None:
    """Apply the second convolution, ReLU, and the mean over its positions."""
    zero = spread(_ZERO)
    for out in range(OUTPUTS):
        total = zero
        for y in range(4):
            s0, s1, s2, s3 = zero, zero, zero, zero
            for i in range(5):
                start, offset = (out // GROUP * WINDOWS + (y + i) * 8) * _L, out * WEIGHTS2 + 5 * i
                x0, x1, x2 = (
                    load(workspace.hidden1, start),
                    load(workspace.hidden1, start + _L),
                    load(workspace.hidden1, start + 2 * _L),
                )
                for j in range(5):
                    weight, x3 = spread(kernel[offset + j]), load(workspace.hidden1, start + (j + 3) * _L)
                    s0, s1, s2, s3 = s0 + weight * x0, s1 + weight * x1, s2 + weight * x2, s3 + weight * x3
                    x0, x1, x2 = x1, x2, x3
            s0, s1 = where_positive(s0, s0), where_positive(s1, s1)
            s2, s3 = where_positive(s2, s2), where_positive(s3, s3)
            offset = (out * PLACES + 4 * y) * _L
            store(workspace.hidden2, offset, s0)
            store(workspace.hidden2, offset + _L, s1)
            store(workspace.hidden2, offset + 2 * _L, s2)
            store(workspace.hidden2, offset + 3 * _L, s3)
            # in pairs: additions that do not wait for one another
            total = total + ((s0 + s1) + (s2 + s3))
        store(workspace.features, out * _L, total * spread(_SIXTEENTH) * load(workspace.scales, out * _L))


@njit(**INLINE)
def classify(workspace: Workspace, head: Numbers, bias: Numbers) -> None:
    """Store :math:`e^{z_k - max z}` of the outputs z in ``workspace.slope``; softmax is their share in the sum."""
    largest = spread(_LEAST)
    for k in range(CLASSES):
        z = spread(bias[k])
        for out in range(OUTPUTS):
            z = z + spread(head[k * OUTPUTS + out]) * load(workspace.features, out * _L)
        store(workspace.slope, k * _L, z)
        largest = greater(z, largest, z, largest)
    for k in range(CLASSES):
        # less the largest, so that no power overflows; the shares stay the same
        store(workspace.slope, k * _L, exponential(load(workspace.slope, k * _L) - largest))
