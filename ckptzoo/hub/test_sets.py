"""Test sets of images that are on this machine, found by the name of their data set, bounded in size and checked.

Networks are measured on them: by those who contribute checkpoints, and again by those who review a contribution.
"""

import gzip
import hashlib
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.loader.permutation import derive_key, keyed_permutation

FOLDER_VARIABLE = "CKPTZOO_DATA"
"""The environment variable with the folder of the test sets."""
MAX_BYTES = 8 * 2**30
"""Of the images of a test set."""
DIGITS_TEST = 360
"""The last 360 of scikit-learn's 1,797 digits are the test set, the 1,437 before them the training set."""
_DIGITS_LEVELS, _DIGITS_SIZE = 16, 28
"""scikit-learn's pixels are 0 to 16; pictures are enlarged from 8x8 to the size of MNIST's."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
_LABELS = ("labels", "fine_labels")
"""Names of the labels in an .npz file; CIFAR-100 calls its 100 classes fine labels."""
_IDX = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
"""MNIST's test set, and that of data sets which were made to replace it."""
_IDX_PIXELS, _IDX_LABELS = (28, 28), 9
_REWRITE = "Fetch it again, or write it with numpy.savez(images=..., labels=...)."
_REFETCH = "Fetch the file again."


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A test set.

    Parameters
    ----------
    name : of the data set, such as ``mnist``.
    images : (N, C, H, W) uint8, raw pixels.
    labels : (N,) int64, from 0.
    """

    name: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def digest(self) -> str:
        """``sha256:...`` of shapes and bytes of images and labels."""
        total = hashlib.sha256()
        for array in (self.images, self.labels):
            total.update(f"{array.shape} {array.dtype.str}\n".encode())
            total.update(np.ascontiguousarray(array).tobytes())
        return "sha256:" + total.hexdigest()

    def normalized(self, mean: Sequence[float], std: Sequence[float], limit: int | None = None) -> NDArray[np.float32]:
        """(N, C, H, W): ``(pixel / 255 - mean) / std``, computed in float64 and rounded once.

        Parameters
        ----------
        mean, std : one number for all channels or one a channel.
        limit : take only the first ``limit`` images.
        """
        images = self.images[:limit]
        scale = [np.broadcast_to(np.array(values, np.float64), images.shape[1]) for values in (mean, std)]
        inputs = np.empty(images.shape, np.float32)
        for channel, (centre, width) in enumerate(zip(*scale, strict=True)):
            # There are 256 different pixels, so all values are computed once and looked up.
            inputs[:, channel] = ((np.arange(256) / 255 - centre) / width).astype(np.float32)[images[:, channel]]
        return inputs


def find(name: str, folder: str | Path | None = None) -> HeldOut | None:
    """The test set of a data set, where it is on this machine; None where it is not.

    Parameters
    ----------
    name : such as ``mnist`` or ``ylecun/mnist``; case does not matter, and what is no plain name is not looked for.
    folder : holds ``<name>_test.npz`` with ``images`` (uint8; NHW, NHWC or NCHW) and ``labels``, or MNIST's idx files
        ``t10k-images-idx3-ubyte.gz`` and ``t10k-labels-idx1-ubyte.gz``, which Fashion-MNIST has too; or a folder
        ``<name>`` that does. By default the one that the environment variable ``CKPTZOO_DATA`` names. ``digits``
        needs no folder where scikit-learn is installed.

    Raises
    ------
    IntegrityError
        A file is there, and is not what it should be.

    Notes
    -----
    The arrays are held in memory, 8 GiB at most.
    """
    name, root = name.lower().rpartition("/")[2], folder_of(folder)
    if not _NAME.fullmatch(name):
        return None
    for candidate in () if root is None else (root / name, root):
        if (archive := candidate / f"{name}_test.npz").is_file():
            return _read_npz(archive, name)
        # Fashion-MNIST's files have the names of MNIST's, so the folder's name has to say which they are.
        is_named = candidate.name == name or (name == "mnist" and candidate.name != "fashion-mnist")
        if is_named and all(any((candidate / f"{file}{end}").is_file() for end in ("", ".gz")) for file in _IDX):
            count = _idx_count(candidate)
            images = read_idx(candidate, _IDX[0], (count, *_IDX_PIXELS))
            labels = read_idx(candidate, _IDX[1], (count,), largest=_IDX_LABELS)
            return HeldOut(name, images[:, None], labels.astype(np.int64))
    if name != "digits" or (digits := read_digits()) is None:
        return None
    images, labels = digits
    return HeldOut(name, images[-DIGITS_TEST:], labels[-DIGITS_TEST:])


def folder_of(folder: str | Path | None) -> Path | None:
    """The folder, else the one that the environment names, else none."""
    folder = folder if folder is not None else os.environ.get(FOLDER_VARIABLE) or None
    return None if folder is None else Path(folder)


def read_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]] | None:
    """scikit-learn's handwritten digits in a fixed order: (N, 1, 28, 28) images, (N,) labels; None without it."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        return None
    digits: Any = load_digits()
    images = enlarge(digits.images.astype(np.int64), _DIGITS_SIZE, _DIGITS_LEVELS)
    # The order depends on the key alone, so recipes and reviews agree on the test set.
    order = np.asarray(keyed_permutation(np.arange(len(images)), len(images), derive_key(0)))
    return images[order][:, None], digits.target.astype(np.int64)[order]


def enlarge(small: NDArray[np.int64], size: int, top: int) -> NDArray[np.uint8]:
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
    return ((both * 510 + unit) // (2 * unit)).astype(np.uint8)


def read_idx(folder: Path, name: str, shape: tuple[int, ...], *, largest: int = 255) -> NDArray[np.uint8]:
    """One array of unsigned bytes from ``<name>.gz``, or from ``<name>`` where it is there unpacked.

    An idx file is ``00 00 08 d``, d sizes as big-endian 32-bit integers, and the bytes in C order.

    Parameters
    ----------
    shape : what it must hold; nothing beyond that is read.
    largest : no byte may be above it.

    Raises
    ------
    ZooError
        No such file.
    IntegrityError
        It is not a sound idx file of this shape.
    """
    packed, plain = folder / f"{name}.gz", folder / name
    path = packed if packed.is_file() or not plain.is_file() else plain
    if not path.is_file():
        step = f"Name the folder of the four idx files with --data or {FOLDER_VARIABLE}."
        raise ZooError(Problem(str(folder), "data", packed.name, "no such file", step))
    header_bytes = 4 + 4 * len(shape)
    size = math.prod(shape)
    try:
        with gzip.open(path) if path == packed else path.open("rb") as file:
            data = file.read(header_bytes + size + 1)  # one more, to notice a file that is longer
    except (OSError, EOFError, zlib.error) as error:
        got = f"{type(error).__name__}: {error}"
        raise IntegrityError(Problem(path.name, "gzip stream", "a whole one", got, _REFETCH)) from error
    header = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    if data[:header_bytes] != header:
        expected, got = f"{header.hex()} (unsigned bytes {shape})", data[:header_bytes].hex() or "nothing"
        raise IntegrityError(Problem(path.name, "header", expected, got, _REFETCH))
    if len(data) != header_bytes + size:
        got = f"{len(data) - header_bytes}" if len(data) < header_bytes + size else "more"
        raise IntegrityError(Problem(path.name, "bytes behind the header", str(size), got, _REFETCH))
    array = np.frombuffer(data, dtype=np.uint8, offset=header_bytes).reshape(shape).copy()
    if array.max(initial=0) > largest:
        raise IntegrityError(Problem(path.name, "values", f"0 to {largest}", str(array.max()), _REFETCH))
    return array


def _idx_count(folder: Path) -> int:
    """How many images an idx file says that it has; ``read_idx`` compares the rest of the file with it."""
    packed, plain = folder / f"{_IDX[0]}.gz", folder / _IDX[0]
    try:
        with gzip.open(packed) if packed.is_file() else plain.open("rb") as file:
            (count,) = struct.unpack(">4xI", file.read(8))
    except (OSError, EOFError, struct.error) as error:
        problem = Problem(packed.name, "header", "that of an idx file", type(error).__name__, _REFETCH)
        raise IntegrityError(problem) from error
    return min(count, MAX_BYTES // math.prod(_IDX_PIXELS))


def _read_npz(path: Path, name: str) -> HeldOut:
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(member.file_size for member in archive.infolist())
        if total > MAX_BYTES:  # before numpy unpacks it
            raise IntegrityError(Problem(path.name, "size", f"at most {MAX_BYTES} bytes", f"{total} bytes", _REWRITE))
        with np.load(path, allow_pickle=False) as arrays:
            key = next((key for key in _LABELS if key in arrays.files), None)
            if "images" not in arrays.files or key is None:
                got = ", ".join(arrays.files)[:120] or "none"
                raise IntegrityError(Problem(path.name, "arrays", "images and labels", got, _REWRITE))
            images, labels = arrays["images"], arrays[key]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        got = f"{type(error).__name__}: {error}"[:160]
        raise IntegrityError(Problem(path.name, "file", "an .npz file", got, _REWRITE)) from error
    return HeldOut(name, _channels_first(path, images), _checked_labels(path, labels, len(images)))


def _channels_first(path: Path, images: NDArray[Any]) -> NDArray[np.uint8]:
    fits = images.dtype == np.uint8 and images.ndim in (3, 4) and images.size > 0
    if fits and images.ndim == 3:
        return images[:, None]
    if fits and images.shape[1] in (1, 3):
        return images
    if fits and images.shape[3] in (1, 3):
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    expected = "uint8 of (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels"
    raise IntegrityError(Problem(path.name, "images", expected, f"{images.dtype} {images.shape}", _REWRITE))


def _checked_labels(path: Path, labels: NDArray[Any], count: int) -> NDArray[np.int64]:
    if labels.shape != (count,) or labels.dtype.kind not in "iu" or labels.min() < 0:
        expected, got = f"{count} integers from 0", f"{labels.dtype} {labels.shape}"
        raise IntegrityError(Problem(path.name, "labels", expected, got, _REWRITE))
    return labels.astype(np.int64)
