"""scikit-learn's handwritten digits, enlarged to the size of MNIST's and split."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.image_sets.image_set import Images, Labels
from ckptzoo.loader.permutation import derive_key, keyed_permutation

DIGITS_TEST = 360
"""The last 360 of scikit-learn's 1,797 digits are the test set, the 1,437 before them the training set."""
_LEVELS, _SIZE = 16, 28
"""scikit-learn's pixels are 0 to 16; pictures are enlarged from 8x8 to the size of MNIST's."""


def read_digits() -> tuple[Images, Labels] | None:
    """All digits in a fixed order: (N, 1, 28, 28) images, (N,) labels; None without scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        return None
    digits: Any = load_digits()
    images = enlarge(digits.images.astype(np.int64), _SIZE, _LEVELS)
    # the order depends on the key alone, so that recipes and reviews agree on the test set
    order = np.asarray(keyed_permutation(np.arange(len(images)), len(images), derive_key(0)))
    return images[order][:, None], digits.target.astype(np.int64)[order]


def enlarge(small: NDArray[np.int64], size: int, top: int) -> Images:
    """Bilinear enlargement of (N, s, s) integers 0..top to (N, size, size) pixels 0..255, exact up to one rounding.

    Pixel centres are aligned, as in ``torch.nn.functional.interpolate(mode="bilinear", align_corners=False)``: output i
    is at ``(i + 1/2) s / size - 1/2`` of the input, clamped to the picture. Integer arithmetic, halves rounded up.
    """
    old = small.shape[-1]
    position = np.clip((2 * np.arange(size) + 1) * old - size, 0, 2 * size * (old - 1))  # in units of 1 / (2 size)
    low = np.minimum(position // (2 * size), old - 2)
    weight = position - low * 2 * size
    rows = small[:, low] * (2 * size - weight)[:, None] + small[:, low + 1] * weight[:, None]
    both = rows[:, :, low] * (2 * size - weight) + rows[:, :, low + 1] * weight
    unit = (2 * size) ** 2 * top
    # 510 is twice 255: half a unit is added before the division, in integers
    return ((both * 510 + unit) // (2 * unit)).astype(np.uint8)
