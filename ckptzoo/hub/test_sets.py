"""Test sets of images that lie on this machine, read in bounded memory and checked.

Networks are measured on them: by who contributes checkpoints, and again by who reviews a contribution.

A test set by the name of its data set.

The idx files of MNIST, read in bounded memory and checked.

scikit-learn's 1,797 handwritten digits as images of 28x28 pixels, in a fixed order.
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

_REFETCH = "Fetch the file again."


def read(folder: Path, name: str, shape: tuple[int, ...], *, largest: int = 255) -> NDArray[np.uint8]:
    """One array of unsigned bytes from ``<name>.gz``, or from ``<name>`` where it lies there unpacked.

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
        step = "Name the folder of the four idx files with --data or CKPTZOO_DATA."
        raise ZooError(f"{folder}: data: expected {packed.name}, got no such file. {step}")
    head = 4 + 4 * len(shape)
    size = math.prod(shape)
    try:
        with gzip.open(path) if path == packed else path.open("rb") as file:
            data = file.read(head + size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise _bad_idx_file(path, "gzip stream", "a whole one", f"{type(error).__name__}: {error}") from error
    expected = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    if data[:head] != expected:
        raise _bad_idx_file(
            path, "header", f"{expected.hex()} (unsigned bytes {shape})", data[:head].hex() or "nothing"
        )
    if len(data) != head + size:
        found = f"{len(data) - head}" if len(data) < head + size else "more"
        raise _bad_idx_file(path, "bytes behind the header", str(size), found)
    array = np.frombuffer(data, dtype=np.uint8, offset=head).reshape(shape).copy()
    if array.max(initial=0) > largest:
        raise _bad_idx_file(path, "values", f"0 to {largest}", str(array.max()))
    return array


def _bad_idx_file(path: Path, what: str, expected: str, got: str) -> IntegrityError:
    return IntegrityError(Problem(path.name, what, expected, got, _REFETCH))


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


FOLDER_VARIABLE = "CKPTZOO_DATA"
MAX_BYTES = 8 * 2**30
"""Of the images of a test set."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
_LABELS = ("labels", "fine_labels")
_IDX = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
_STEP = "Fetch it again, or write it with numpy.savez(images=..., labels=...)."


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
        limit : only the first so many images.
        """
        images = self.images[:limit]
        scale = [np.broadcast_to(np.array(values, np.float64), images.shape[1]) for values in (mean, std)]
        made = np.empty(images.shape, np.float32)
        for channel, (centre, width) in enumerate(zip(*scale, strict=True)):
            made[:, channel] = ((np.arange(256) / 255 - centre) / width).astype(np.float32)[images[:, channel]]
        return made


def folder_of(folder: str | Path | None) -> Path | None:
    """The folder, else the one that the environment names, else none."""
    folder = folder if folder is not None else os.environ.get(FOLDER_VARIABLE) or None
    return None if folder is None else Path(folder)


def find(name: str, folder: str | Path | None = None) -> HeldOut | None:
    """The test set of a data set, where it is at hand; None where it is not.

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
    name, place = name.lower().rpartition("/")[2], folder_of(folder)
    if not _NAME.fullmatch(name):
        return None
    for here in () if place is None else (place / name, place):
        if (packed := here / f"{name}_test.npz").is_file():
            return _unpacked(packed, name)
        own = here.name == name or (name == "mnist" and here.name != "fashion-mnist")
        if own and all(any((here / f"{file}{end}").is_file() for end in ("", ".gz")) for file in _IDX):
            count = _count(here)
            images = read(here, _IDX[0], (count, 28, 28))
            labels = read(here, _IDX[1], (count,), largest=9)
            return HeldOut(name, images[:, None], labels.astype(np.int64))
    if name != "digits" or (found := load()) is None:
        return None
    images, labels = found
    return HeldOut(name, images[-TEST:], labels[-TEST:])


def _count(folder: Path) -> int:
    """How many images an idx file says that it has; the reader holds the rest of the file against it."""
    packed, plain = folder / f"{_IDX[0]}.gz", folder / _IDX[0]
    try:
        with gzip.open(packed) if packed.is_file() else plain.open("rb") as file:
            (count,) = struct.unpack(">4xI", file.read(8))
    except (OSError, EOFError, struct.error) as error:
        problem = Problem(packed.name, "header", "that of an idx file", type(error).__name__, "Fetch the file again.")
        raise IntegrityError(problem) from error
    return min(count, MAX_BYTES // 784)


def _unpacked(path: Path, name: str) -> HeldOut:
    try:
        with zipfile.ZipFile(path) as members:
            total = sum(member.file_size for member in members.infolist())
        if total > MAX_BYTES:
            raise _bad_image_set(path, "size", f"at most {MAX_BYTES} bytes", f"{total} bytes")
        with np.load(path, allow_pickle=False) as held:
            key = next((key for key in _LABELS if key in held.files), None)
            if "images" not in held.files or key is None:
                raise _bad_image_set(path, "arrays", "images and labels", ", ".join(held.files)[:120] or "none")
            images, labels = held["images"], held[key]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _bad_image_set(path, "file", "an .npz file", f"{type(error).__name__}: {error}"[:160]) from error
    return HeldOut(name, _channels_first(path, images), _labels(path, labels, len(images)))


def _channels_first(path: Path, images: NDArray[Any]) -> NDArray[np.uint8]:
    fits = images.dtype == np.uint8 and images.ndim in (3, 4) and images.size > 0
    if fits and images.ndim == 3:
        return images[:, None]
    if fits and images.shape[1] in (1, 3):
        return images
    if fits and images.shape[3] in (1, 3):
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    expected = "uint8 of (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels"
    raise _bad_image_set(path, "images", expected, f"{images.dtype} {images.shape}")


def _labels(path: Path, labels: NDArray[Any], count: int) -> NDArray[np.int64]:
    if labels.shape != (count,) or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise _bad_image_set(path, "labels", f"{count} integers from 0", f"{labels.dtype} {labels.shape}")
    return labels.astype(np.int64)


def _bad_image_set(path: Path, what: str, expected: str, got: str) -> IntegrityError:
    return IntegrityError(Problem(path.name, what, expected, got, _STEP))
