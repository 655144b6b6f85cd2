"""Reads .npz archives of plain arrays; nothing in them is unpickled."""

from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.hub.intake.archives import Members
from ckptzoo.hub.intake.found import Limits, refuse, shown, storable
from ckptzoo.hub.intake.kinds import NAMES
from ckptzoo.spec.architecture import ITEMSIZE

_MAX_HEADER = 10_000
_STEP = "Save it again with numpy.savez and plain arrays of numbers."


def load_npz(members: Members, *, where: str, limits: Limits) -> dict[str, NDArray[Any]]:
    """The arrays of a checked archive, by name, in the archive's order.

    Raises
    ------
    IntegrityError
        The archive is torch's; a member is no array, holds objects or another dtype, or is larger than it declares.
    """
    if members.kind != "npz":
        refuse(where, "format", f"{NAMES['npz']}, as .npz says", NAMES["torch"], "Rename it to end in .pt.")
    made: dict[str, NDArray[Any]] = {}
    total = 0
    for info in members.infos.values():
        name = info.filename.removesuffix(".npy")
        what = f"array {shown(name)!r}"
        with members.archive.open(info) as stream:
            try:
                shape, fortran, dtype = _header(stream)
            except Exception as error:  # numpy parses the header with ast; what that raises is not documented
                refuse(where, what, "a header of numpy.save", f"{type(error).__name__}: {error}", _STEP)
            if dtype.hasobject:
                refuse(where, what, "plain numbers", "Python objects, which are pickled", _STEP)
            if storable(dtype) is None:
                refuse(where, f"dtype of {shown(name)!r}", "one of " + ", ".join(ITEMSIZE), dtype, _STEP)
            if len(shape) > 32 or any(type(many) is not int or many < 0 for many in shape):
                refuse(where, f"shape of {shown(name)!r}", "at most 32 integers from 0", shape, _STEP)
            count = 1
            for many in shape:
                count *= many
            nbytes = count * dtype.itemsize
            total += nbytes
            if nbytes != info.file_size - stream.tell():
                got = f"{info.file_size - stream.tell()} in the archive"
                refuse(where, what, f"{nbytes} bytes from its shape", got, _STEP)
            if total > limits.tensor_bytes:
                refuse(where, "arrays", f"at most {limits.tensor_bytes} bytes", f"{total} bytes or more")
            data = _exactly(stream, nbytes, where=where, what=what)
        array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
        made[name] = np.ascontiguousarray(array, dtype.newbyteorder("=")).reshape(shape)
    return made


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream, max_header_size=_MAX_HEADER)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream, max_header_size=_MAX_HEADER)
    raise ValueError(f"version {version}")


def _exactly(stream: IO[bytes], nbytes: int, *, where: str, what: str) -> bytearray:
    data = bytearray(nbytes)
    view, at = memoryview(data), 0
    while at < nbytes:
        try:
            piece = stream.read(min(nbytes - at, 2**24))
        except Exception as error:  # zlib.error, BadZipFile, EOFError
            refuse(where, what, "bytes as they were packed", f"{type(error).__name__}: {error}")
        if not piece:
            refuse(where, what, f"{nbytes} bytes", f"{at} bytes")
        view[at : at + len(piece)] = piece
        at += len(piece)
    return data
