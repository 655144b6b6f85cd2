"""A test set by the name of its data set."""

import gzip
import hashlib
import os
import re
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.hub.heldout import digits, idx

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

    def seen(self, mean: Sequence[float], std: Sequence[float], limit: int | None = None) -> NDArray[np.float32]:
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
            images = idx.read(here, _IDX[0], (count, 28, 28))
            labels = idx.read(here, _IDX[1], (count,), largest=9)
            return HeldOut(name, images[:, None], labels.astype(np.int64))
    if name != "digits" or (found := digits.load()) is None:
        return None
    images, labels = found
    return HeldOut(name, images[-digits.TEST :], labels[-digits.TEST :])


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
            raise _refused(path, "size", f"at most {MAX_BYTES} bytes", f"{total} bytes")
        with np.load(path, allow_pickle=False) as held:
            key = next((key for key in _LABELS if key in held.files), None)
            if "images" not in held.files or key is None:
                raise _refused(path, "arrays", "images and labels", ", ".join(held.files)[:120] or "none")
            images, labels = held["images"], held[key]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _refused(path, "file", "an .npz file", f"{type(error).__name__}: {error}"[:160]) from error
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
    raise _refused(path, "images", expected, f"{images.dtype} {images.shape}")


def _labels(path: Path, labels: NDArray[Any], count: int) -> NDArray[np.int64]:
    if labels.shape != (count,) or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise _refused(path, "labels", f"{count} integers from 0", f"{labels.dtype} {labels.shape}")
    return labels.astype(np.int64)


def _refused(path: Path, what: str, expected: str, got: str) -> IntegrityError:
    return IntegrityError(Problem(path.name, what, expected, got, _STEP))
