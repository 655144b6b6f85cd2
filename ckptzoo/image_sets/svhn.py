"""Street View House Numbers, cropped digits, from ``train_32x32.mat`` and ``test_32x32.mat`` (Netzer et al., 2011).

MATLAB files of version 5 are read here and not by ``scipy.io.loadmat``, which ends the process on some damaged ones: it
looks up the type of an element in a table without comparing it with the table's size (scipy 1.17). What is read is a
dense array of real numbers, as in "MAT-File Format" (MathWorks): elements of a tag (type, bytes) and as many bytes,
padded to 8; a matrix is an element with four others (flags, sizes, name, numbers), and may be packed by zlib.
"""

import math
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptzoo.image_sets.image_set import MAX_BYTES, ImageSet, KnownSet, file_error, first_line

_HEADER_BYTES, _TAG_BYTES = 128, 8
_MATRIX, _PACKED = 14, 15
_TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
"""Types of numbers as numpy dtypes."""
_BYTES, _UINT32, _INT32 = 1, 6, 5
"""Types of the name, the flags and the sizes of a matrix."""
_LITTLE_ENDIAN = b"IM"
"""The end of the header of a little-endian file, as any common machine writes it."""
_CLASSES = range(6, 16)
"""Classes of matrices that hold numbers, and not cells, texts or objects."""
_CLASS_MASK, _COMPLEX = 0xFF, 0x800
_BEGINNING = 512
"""Bytes of a matrix that are unpacked to identify it."""


class _Element(NamedTuple):
    kind: int
    data: memoryview
    end: int


def read_mat(known: KnownSet, split: str, folder: Path) -> ImageSet | None:
    """``X`` (32, 32, 3, N) uint8 and ``y`` (N, 1) from 1 to 10, where 10 is the digit 0; see ``Form``."""
    path = folder / f"{split}_32x32.mat"
    if not path.is_file():
        return None
    side, count = known.size, known.counts.get(split)
    try:
        file = np.memmap(path, np.uint8, "r").data
        arrays = _matrices(file, {"X": (side, side, 3, count), "y": (count, 1)})
    except (OSError, ValueError, zlib.error) as error:
        got = str(error) if type(error) is ValueError else first_line(error)
        raise file_error(path, "file", "a MATLAB file of version 5 with X and y", got, known.step) from error
    pixels, labels = arrays["X"], arrays["y"].reshape(-1)
    if pixels.dtype != np.uint8:
        raise file_error(path, "variable X", "uint8", str(pixels.dtype), known.step)
    if not ((labels >= 1) & (labels <= 10) & (labels == np.floor(labels))).all():
        expected, got = "digits as 1 to 10, where 10 is 0", f"{labels.min()} to {labels.max()}"
        raise file_error(path, "labels", expected, got, known.step)
    images = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    return known.image_set(split, images, labels.astype(np.int64) % 10, path.name)


def _matrices(file: memoryview, shapes: dict[str, tuple[int | None, ...]]) -> dict[str, NDArray[Any]]:
    """The matrices of these names, of these shapes; None stands for any size. Raises ``ValueError`` if something is
    missing, or is not what it should be; the message says what was found.
    """
    if bytes(file[_HEADER_BYTES - 2 : _HEADER_BYTES]) != _LITTLE_ENDIAN:
        raise ValueError("another header")
    found: dict[str, NDArray[Any]] = {}
    place = _HEADER_BYTES
    while place < len(file):
        element = _element(file, place)
        place = element.end
        packed = element.kind == _PACKED
        beginning = memoryview(zlib.decompressobj().decompress(element.data, _BEGINNING)) if packed else element.data
        if not packed and element.kind != _MATRIX:
            continue
        start = _TAG_BYTES if packed else 0  # the tag of the matrix is packed with it
        flags = _element(beginning, start)
        sizes = _element(beginning, flags.end)
        name = _element(beginning, sizes.end)
        if (flags.kind, sizes.kind, name.kind) != (_UINT32, _INT32, _BYTES):
            raise ValueError("a matrix without flags, sizes and name")
        title = bytes(name.data).decode("latin-1")
        if title not in shapes or title in found:
            continue
        shape = tuple(_numbers(sizes).tolist())
        if len(shape) != len(shapes[title]) or any(
            size != expected and expected is not None for size, expected in zip(shape, shapes[title], strict=True)
        ):
            expected = " x ".join("N" if size is None else str(size) for size in shapes[title])
            raise ValueError(f"{title} of {' x '.join(map(str, shape))} instead of {expected}")
        (mask,) = _numbers(flags)[:1].tolist() or [0]
        if mask & _CLASS_MASK not in _CLASSES or mask & _COMPLEX:
            raise ValueError(f"{title} that is no array of real numbers")
        # at most 8 bytes a number, and padding
        limit = name.end + 2 * _TAG_BYTES + 8 * math.prod(shape)
        if min(shape) < 0 or limit > MAX_BYTES:
            raise ValueError(f"{title} of {' x '.join(map(str, shape))} numbers")
        whole = memoryview(zlib.decompressobj().decompress(element.data, limit)) if packed else element.data
        numbers = _numbers(_element(whole, name.end))
        if len(numbers) != math.prod(shape):
            raise ValueError(f"{title} with {len(numbers):,} numbers instead of {math.prod(shape):,}")
        # MATLAB stores columns
        found[title] = numbers.reshape(shape, order="F")
    if missing := shapes.keys() - found.keys():
        raise ValueError(f"no {min(missing)}")
    return found


def _element(data: memoryview, place: int) -> _Element:
    """The element at a place; the next one is at ``end``."""
    if place + _TAG_BYTES > len(data):
        raise ValueError("a file that ends early")
    kind, nbytes = np.frombuffer(data[place : place + _TAG_BYTES], "<u4").tolist()
    if kind >> 16:  # up to four bytes stand within the tag
        kind, nbytes = kind & 0xFFFF, kind >> 16
        start, end = place + 4, place + _TAG_BYTES
    else:
        start = place + _TAG_BYTES
        end = start + nbytes + (-nbytes % 8 if kind != _PACKED else 0)
    if start + nbytes > len(data) or (start + nbytes > end):
        raise ValueError("a file that ends early")
    return _Element(kind, data[start : start + nbytes], end)


def _numbers(element: _Element) -> NDArray[Any]:
    if element.kind not in _TYPES:
        raise ValueError(f"an element of type {element.kind}")
    return np.frombuffer(element.data, _TYPES[element.kind])
