"""The data of a page as bytes: the length of a header, the header as JSON, and columns of little-endian numbers.

``u32 length, header, columns``, compressed by gzip. The header names each column with its type, its place and its
number of values; columns begin at multiples of 8 bytes, so that a browser's typed arrays can lie on them. A column
may be stored by planes: the first bytes of all values, then the second ones, which gzip makes smaller where values have
common exponents and no common digits.
"""

import gzip
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.schema.documents import canonical
from ckptzoo.text import size

MAX_PAYLOAD = 256 * 2**20
"""Bytes before compression: a browser holds them and the objects that it makes of them in one tab."""
TYPES = ("<f8", "<f4", "<i4", "<i2", "<u4", "|u1")
"""The types of columns, in numpy's notation."""
# A browser's Float64Array begins at a multiple of 8 bytes.
_ALIGNMENT = 8
_TRIED = 2**20
"""Bytes of a column that are compressed to see which order of its bytes is the shorter."""


@dataclass(frozen=True, eq=False)
class Payload:
    """The content of a page: a header of everything but the columns, as JSON, and one-dimensional arrays of ``TYPES``
    by name.
    """

    header: dict[str, Any]
    columns: dict[str, NDArray[Any]]


def encode(payload: Payload, *, location: str) -> bytes:
    """Return the bytes of a payload; the same payload gives the same bytes.

    Raises ZooError: there is more than ``MAX_PAYLOAD``.
    """
    places: dict[str, dict[str, Any]] = {}
    pieces: list[bytes] = []
    start = 0
    for name, array in payload.columns.items():
        data, planes = array.tobytes(), _planes(array)
        # a trial, because neither order is the shorter for all columns
        by_planes = array.dtype.itemsize > 1 and _compressed(planes) < _compressed(data)
        data = planes if by_planes else data
        places[name] = {"type": array.dtype.str, "start": start, "count": len(array), "planes": by_planes}
        pieces.append(data.ljust(_padded(len(data)), b"\0"))
        start += len(pieces[-1])
    header = canonical({**payload.header, "columns": places})
    # 4 bytes of the length stand before the header
    header = header.ljust(_padded(4 + len(header)) - 4)
    total = 4 + len(header) + start
    if total > MAX_PAYLOAD:
        step = "Show fewer layers with --layers, or fewer members with --max-rows or --where."
        raise ZooError(Problem(location, "data of the page", f"at most {size(MAX_PAYLOAD)}", size(total), step))
    # a time in gzip's header would give the same page other bytes
    return gzip.compress(b"".join([struct.pack("<I", len(header)), header, *pieces]), 9, mtime=0)


def decode(data: bytes, *, location: str) -> Payload:
    """Return the payload of some bytes.

    Raises IntegrityError: they are no payload.
    """
    try:
        whole = gzip.decompress(data)
        (length,) = struct.unpack_from("<I", whole)
        header: dict[str, Any] = json.loads(whole[4 : 4 + length])
        places: Mapping[str, Any] = header.pop("columns")
        columns = {name: _column(whole, place, 4 + length + place["start"]) for name, place in places.items()}
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise IntegrityError(
            Problem(location, "data of the page", "a payload", str(error), "Make it again.")
        ) from error
    return Payload(header, columns)


def _column(whole: bytes, place: Mapping[str, Any], start: int) -> NDArray[Any]:
    dtype, count = _type(place["type"]), place["count"]
    if not place["planes"]:
        return np.frombuffer(whole, dtype, count, start)
    planes = np.frombuffer(whole, np.uint8, count * dtype.itemsize, start).reshape(dtype.itemsize, count)
    return np.ascontiguousarray(planes.T).view(dtype).reshape(count)


def _planes(array: NDArray[Any]) -> bytes:
    """Return the first bytes of all values, then the second ones, and so on."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(len(array), array.dtype.itemsize).T.tobytes()


def _compressed(data: bytes) -> int:
    """Return the length of the first bytes when they are compressed."""
    return len(zlib.compress(data[:_TRIED], 1))


def _type(name: str) -> np.dtype[Any]:
    if name not in TYPES:
        raise ValueError(f"a column of type {name!r}")
    return np.dtype(name)


def _padded(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT
