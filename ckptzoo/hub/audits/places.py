"""Where the tensors of a checkpoint file are, from its header alone: safetensors, and files of torch.save."""

import lzma
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from math import prod
from typing import Any

import numpy as np

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format.header import header_length, numpy_dtype
from ckptzoo.hub.untrusted import Limits
from ckptzoo.hub.untrusted.process import ReadingProcess
from ckptzoo.hub.untrusted.protocol import Job
from ckptzoo.hub.untrusted.results import Fact
from ckptzoo.hub.untrusted.safetensors import read_entries
from ckptzoo.hub.untrusted.torch_files import PLACES
from ckptzoo.schema.architecture import ITEMSIZE
from ckptzoo.text import excerpt

Fetch = Callable[[int, int], bytes]
_LOCAL, _SPARE = 30, 256
"""Bytes of a zip member's own header (APPNOTE.TXT of PKWARE, 4.3.7), and those that its name and padding may take:
torch aligns numbers to 64 bytes.
"""
_DIRECTORY, _BLOCK = 2**24, 2**14
"""Bytes of an archive's directory that are read at most, and how many are read at a time."""
_STEP = "Fetch it again."


@dataclass(frozen=True)
class Place:
    """The bytes of one tensor in a file; with ``in_member`` the offset is that of a zip member, header included."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    skipped: int = 0
    in_member: bool = False

    def read(self, fetch: Fetch, count: int, location: str) -> np.ndarray[Any, Any]:
        """Return the first numbers."""
        wanted = count * ITEMSIZE[self.dtype]
        if not self.in_member:
            data = fetch(self.offset, self.offset + wanted)
        elif self.skipped:
            start = self.offset + _ahead(fetch(self.offset, self.offset + _LOCAL), location) + self.skipped
            data = fetch(start, start + wanted)
        else:
            data = fetch(self.offset, self.offset + _LOCAL + _SPARE + wanted)
            start = _ahead(data, location)
            data = data[start : start + wanted] if start <= _LOCAL + _SPARE else b""
        if len(data) != wanted:
            raise IntegrityError(Problem(location, "numbers", f"{wanted} bytes", f"{len(data)}", _STEP))
        return np.frombuffer(data, numpy_dtype(self.dtype))


def _ahead(header: bytes, location: str) -> int:
    """Return the bytes of a zip member before its content."""
    if header[:4] != b"PK\x03\x04" or len(header) < _LOCAL:
        raise IntegrityError(Problem(location, "member", "a header of its own", repr(header[:4]), _STEP))
    return _LOCAL + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")


def safetensors_places(
    head: bytes, fetch: Fetch, size: int, location: str
) -> tuple[dict[str, Place], Mapping[str, Fact]]:
    """Return the tensors of a safetensors file by name, and its metadata; ``head`` are its first bytes."""
    length = header_length(head[:8], file_size=size, location=location)
    if length > (most := Limits().header_bytes):
        raise IntegrityError(Problem(location, "header length", f"at most {most} bytes", str(length), _STEP))
    if len(head) < 8 + length:
        head += fetch(len(head), 8 + length)
    entries, metadata = read_entries(head[8 : 8 + length], size=size, location=location)
    return {entry.name: Place(entry.dtype, entry.shape, entry.offset) for entry in entries}, metadata


def torch_places(
    fetch: Fetch, size: int, location: str, process: ReadingProcess
) -> tuple[dict[str, Place], dict[str, tuple[str, tuple[int, ...]]], Mapping[str, Fact]]:
    """Return the tensors of a file of torch.save by name, dtype and shape of those without a place, and the scalars
    beside them.

    Its directory and its ``data.pkl`` are read; the latter in ``process``. Tensors whose numbers are not in one piece,
    or are packed, have no place. Raises ``IntegrityError`` where a member ends before a tensor in it does.
    """
    limited = _Limited(fetch, size, location)
    try:
        with zipfile.ZipFile(BufferedReader(limited, _BLOCK)) as archive:
            infos = {info.filename: info for info in archive.infolist()}
            (pickle,) = [info for name, info in infos.items() if name.endswith("/data.pkl") and name.count("/") == 1]
            if pickle.file_size > (most := Limits().pickle_bytes):
                raise IntegrityError(Problem(location, "data.pkl", f"at most {most} bytes", str(pickle.file_size), ""))
            limited.left += pickle.file_size + _BLOCK
            data = archive.read(pickle)
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        ValueError,
        EOFError,
        OSError,
        zlib.error,
        lzma.LZMAError,
    ) as error:
        got = f"{type(error).__name__}: {error}"[:200]
        raise IntegrityError(Problem(location, "archive", "a whole file of torch.save", got, _STEP)) from None
    (answer,), arrays = process.read([Job(location, PLACES, len(data), strict=False)], [data])
    if isinstance(answer, IntegrityError):
        raise answer
    places, facts, dtypes = dict[str, Place](), dict[str, Fact](), list(ITEMSIZE)
    elsewhere = dict[str, tuple[str, tuple[int, ...]]]()
    for result in answer:
        state = result.state_dict(location.rpartition("/")[2], arrays)
        key = state.source.partition("#")[2]
        facts |= state.facts
        for name, numbers in state.tensors.items():
            storage, skipped, dtype, *shape = (int(number) for number in numbers)
            member = infos.get(f"{pickle.filename.removesuffix('data.pkl')}data/{storage}")
            full = f"{key}.{name}" if key else name
            if member is None or member.compress_type != zipfile.ZIP_STORED:
                elsewhere[full] = dtypes[dtype], tuple(shape)
                continue
            stop = skipped + prod(shape) * ITEMSIZE[dtypes[dtype]]
            # a member that says less of itself than lies there would show bytes of the next one
            if stop > min(member.file_size, member.compress_size):
                got = f"{min(member.file_size, member.compress_size)} bytes in the archive"
                raise IntegrityError(Problem(location, f"tensor {excerpt(full, 80)!r}", f"{stop} bytes", got, _STEP))
            places[full] = Place(dtypes[dtype], tuple(shape), member.header_offset, skipped, in_member=True)
    return places, elsewhere, facts


class _Limited(RawIOBase):
    """A file that is read by ranges, up to a limit; its last bytes, which zipfile asks for several times, by one."""

    def __init__(self, fetch: Fetch, size: int, location: str) -> None:
        self._fetch, self._size, self._location, self._position = fetch, size, location, 0
        self.left = _DIRECTORY
        self._tail: bytes | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = max(0, (0, self._position, self._size)[whence] + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        start = self._position
        stop = min(start + len(buffer), self._size)
        ahead = max(0, self._size - _BLOCK)
        if start >= ahead:
            if self._tail is None:
                self._tail = self._fetch(ahead, self._size)
            data = self._tail[start - ahead : stop - ahead]
        else:
            data = self._fetch(start, stop) if stop > start else b""
        self.left -= len(data)
        if self.left < 0:
            step = "Read the whole file: --all."
            raise IntegrityError(Problem(self._location, "directory", f"at most {_DIRECTORY} bytes", "more", step))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
