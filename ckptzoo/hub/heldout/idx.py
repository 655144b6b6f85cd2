"""The idx files of MNIST, read in bounded memory and checked."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem, ZooError

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
        raise _refused(path, "gzip stream", "a whole one", f"{type(error).__name__}: {error}") from error
    expected = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    if data[:head] != expected:
        raise _refused(path, "header", f"{expected.hex()} (unsigned bytes {shape})", data[:head].hex() or "nothing")
    if len(data) != head + size:
        found = f"{len(data) - head}" if len(data) < head + size else "more"
        raise _refused(path, "bytes behind the header", str(size), found)
    array = np.frombuffer(data, dtype=np.uint8, offset=head).reshape(shape).copy()
    if array.max(initial=0) > largest:
        raise _refused(path, "values", f"0 to {largest}", str(array.max()))
    return array


def _refused(path: Path, what: str, expected: str, got: str) -> IntegrityError:
    return IntegrityError(Problem(path.name, what, expected, got, _REFETCH))
