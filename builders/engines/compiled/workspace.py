"""The memory of a member's step for intermediate results: small enough to stay in the cache of a core."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from builders.engines.compiled.lanes import LANES

Numbers = NDArray[np.float32]
"""A contiguous float32 array of one dimension."""
Places = NDArray[np.int64]
"""A contiguous int64 array of one dimension."""
Pixels = NDArray[np.uint8]
Lanes = Any
"""Sixteen numbers; see ``builders.engines.compiled.lanes``."""
# a 4x4 kernel on 28x28 pixels gives 25x25 outputs, of which 3x3 windows use 24x24: these see 27 rows
ROWS, PITCH = 27, 28
"""Rows of a crop that pooling leaves in use, and its columns."""
WINDOWS, PLACES, OUTPUTS, GROUP, CLASSES = 64, 16, 10, 5, 10
"""Pooling windows; positions of the second convolution; its outputs, and the number of them for each input channel."""
WEIGHTS1, WEIGHTS2 = 16, 25
"""Weights of one kernel of the convolutions."""


class Workspace(NamedTuple):
    """Arrays (n * 16,) float32: n numbers of each of sixteen images, those of one number side by side.

    ``images`` (27, 28) are pixels as the network sees them; ``hidden1`` (2, 64) is pooled and rectified, ``winners``
    (2, 64) is the place of the largest in its window, as a distance in the picture, and ``slope1`` (2, 64) the gradient
    before pooling at that place, times the scale of the pixels. ``hidden2`` (10, 16) is the second convolution,
    rectified, then the gradient before that; ``features`` (10,) are the head's inputs, ``slope`` (10,) its outputs,
    then their gradient, and ``scales`` (10,) the factors by which dropout multiplies the inputs, 1 without. ``conv1``
    (2,), ``conv2`` (250,), ``head`` (100,) and ``bias`` (10,) are sums for the gradient: the lanes of ``conv1`` are the
    weights of a kernel, and the first numbers of the others are the gradient when it is done.
    """

    images: Numbers
    hidden1: Numbers
    winners: Numbers
    slope1: Numbers
    hidden2: Numbers
    features: Numbers
    slope: Numbers
    scales: Numbers
    conv1: Numbers
    conv2: Numbers
    head: Numbers
    bias: Numbers

    @classmethod
    def empty(cls) -> "Workspace":
        """Allocate memory for one member, 150 KB."""
        channels = 2 * WINDOWS
        sizes = (ROWS * PITCH, channels, channels, channels, OUTPUTS * PLACES, OUTPUTS, CLASSES, OUTPUTS)
        sums = (2, OUTPUTS * WEIGHTS2, CLASSES * OUTPUTS, CLASSES)
        workspace = cls(*(np.zeros(size * LANES, np.float32) for size in (*sizes, *sums)))
        # without dropout nothing writes them again
        workspace.scales[:] = 1
        return workspace
