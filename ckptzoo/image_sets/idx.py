"""idx files, in which MNIST is stored, and data sets that were made to replace it."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from ckptzoo.errors import Problem, ZooError
from ckptzoo.image_sets.image_set import (
    FOLDER_VARIABLE,
    MAX_BYTES,
    Images,
    ImageSet,
    KnownSet,
    file_error,
    first_line,
)

_STEMS = {"train": "train", "test": "t10k"}
_SHAPE, _LARGEST_LABEL = (28, 28), 9


def read_idx_files(known: KnownSet, split: str, folder: Path) -> ImageSet | None:
    """28x28 grey images and labels from 0 to 9; see ``Form``."""
    # Fashion-MNIST's files have the names of MNIST's, so the folder's name has to say which they are
    is_named = known.is_named_by(folder) or (known.name == "mnist" and folder.absolute().name != "fashion-mnist")
    names = [f"{_STEMS[split]}-{item}-ubyte" for item in ("images-idx3", "labels-idx1")]
    if not is_named or not any((folder / f"{name}{end}").is_file() for name in names for end in ("", ".gz")):
        return None
    count = known.counts.get(split)
    if count is None:
        count = _stated_count(folder, names[0])
    images = read_idx(folder, names[0], (count, *_SHAPE))
    labels = read_idx(folder, names[1], (count,), largest=_LARGEST_LABEL)
    return known.image_set(split, images[:, None], labels, folder.name)


def read_idx(folder: Path, name: str, shape: tuple[int, ...], *, largest: int = 255) -> Images:
    """One array of unsigned bytes from ``<name>.gz``, or from ``<name>`` where it is there unpacked.

    An idx file is ``00 00 08 d``, d sizes as big-endian 32-bit integers, and the bytes in C order. ``shape`` is the
    expected shape; nothing beyond that is read; ``largest`` is the largest byte allowed. Raises ``ZooError`` if there
    is no such file and ``IntegrityError`` if it is not a sound idx file of this shape.
    """
    path = _path_of(folder, name)
    if not path.is_file():
        step = f"Name the folder of the four idx files with --data or {FOLDER_VARIABLE}."
        raise ZooError(Problem(str(folder), "data", f"{name}.gz", "no such file", step))
    header_bytes = 4 + 4 * len(shape)
    size = math.prod(shape)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(header_bytes + size + 1)  # one more, to notice a file that is longer
    except (OSError, EOFError, zlib.error) as error:
        raise file_error(path, "gzip stream", "a whole one", first_line(error)) from error
    header = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    if data[:header_bytes] != header:
        expected, got = f"{header.hex()} (unsigned bytes {shape})", data[:header_bytes].hex() or "nothing"
        raise file_error(path, "header", expected, got)
    if len(data) != header_bytes + size:
        got = f"{len(data) - header_bytes}" if len(data) < header_bytes + size else "more"
        raise file_error(path, "bytes behind the header", str(size), got)
    # a copy, because frombuffer's array is read-only
    array = np.frombuffer(data, dtype=np.uint8, offset=header_bytes).reshape(shape).copy()
    if array.max(initial=0) > largest:
        raise file_error(path, "values", f"0 to {largest}", str(array.max()))
    return array


def _path_of(folder: Path, name: str) -> Path:
    packed, plain = folder / f"{name}.gz", folder / name
    return packed if packed.is_file() or not plain.is_file() else plain


def _stated_count(folder: Path, name: str) -> int:
    """How many images an idx file says that it has; ``read_idx`` compares the rest of the file with it."""
    path = _path_of(folder, name)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            (count,) = struct.unpack(">4xI", file.read(8))
    except (OSError, EOFError, struct.error, zlib.error) as error:
        raise file_error(path, "header", "that of an idx file", first_line(error)) from error
    return min(count, MAX_BYTES // math.prod(_SHAPE))
