"""scikit-learn's 1,797 handwritten digits as images of 28x28 pixels, in a fixed order."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.loader.order import derive_key, keyed_permutation

TEST = 360
"""The last so many are the test set, the 1,437 before them the training set."""


def load() -> tuple[NDArray[np.uint8], NDArray[np.int64]] | None:
    """All images (N, 1, 28, 28) and labels (N,), shuffled once and for all; None without scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        return None
    bunch: Any = load_digits()
    images = enlarged(bunch.images.astype(np.int64), 28, 16)
    order = np.asarray(keyed_permutation(np.arange(len(images)), len(images), derive_key(0)))
    return images[order][:, None], bunch.target.astype(np.int64)[order]


def enlarged(small: NDArray[np.int64], size: int, top: int) -> NDArray[np.uint8]:
    """Bilinear enlargement of (N, s, s) integers 0..top to (N, size, size) pixels 0..255, exact up to one rounding.

    Pixel centres are aligned, as in ``torch.nn.functional.interpolate(mode="bilinear", align_corners=False)``: output i
    looks at ``(i + 1/2) s / size - 1/2``, clamped to the picture. Integer arithmetic, halves rounded up.
    """
    old = small.shape[-1]
    place = np.clip((2 * np.arange(size) + 1) * old - size, 0, 2 * size * (old - 1))
    low = np.minimum(place // (2 * size), old - 2)
    weight = place - low * 2 * size
    rows = small[:, low] * (2 * size - weight)[:, None] + small[:, low + 1] * weight[:, None]
    both = rows[:, :, low] * (2 * size - weight) + rows[:, :, low + 1] * weight
    unit = (2 * size) ** 2 * top
    return ((both * 510 + unit) // (2 * unit)).astype(np.uint8)
