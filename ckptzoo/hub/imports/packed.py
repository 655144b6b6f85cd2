"""Streams of what is packed in files by gzip, bzip2, xz, lzma or zlib, within bounded memory."""

import bz2
import gzip
import io
import lzma
import zlib
from typing import IO, Any

_XZ_MEMORY = 80 * 2**20
"""Bytes of memory for unpacking: ``xz -9`` needs 65 MiB, a hostile stream asks for up to 4 GiB."""
_READ_BYTES = 2**16
PACKED = ("gzip", "bzip2", "xz", "lzma", "zlib")
"""Names of the forms."""
PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".lzma", ".z")
"""Suffixes that their tools add to a file's name."""
ERRORS = (EOFError, OSError, lzma.LZMAError, zlib.error)
"""Errors that reading a damaged one raises."""


def unpacked(packed: IO[bytes], form: str) -> IO[bytes]:
    """Return the stream of what is packed in another; reading it raises one of ``ERRORS`` where that is damaged."""
    if form == "gzip":
        return gzip.GzipFile(fileobj=packed)  # pyright: ignore[reportReturnType]
    if form == "bzip2":
        return bz2.BZ2File(packed)
    return io.BufferedReader(XzFile(packed) if form in ("xz", "lzma") else _ZlibFile(packed), _READ_BYTES)


def first_bytes(packed: IO[bytes], form: str, count: int) -> bytes:
    """Return the first bytes of what is packed; fewer where it is damaged, which reading it tells."""
    try:
        return unpacked(packed, form).read(count)
    except ERRORS:
        return b""


class _ZlibFile(io.RawIOBase):
    """The content of a stream of zlib, as joblib writes it."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._packed, self._unpacker = packed, zlib.decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        unpacked = b""
        while not unpacked and not self._unpacker.eof:
            # what decompress() left out for the sake of the length has to be given to it again
            data = self._unpacker.unconsumed_tail or self._packed.read(_READ_BYTES)
            if not data:
                raise EOFError("it ends within a stream")
            unpacked = self._unpacker.decompress(data, len(buffer))
        if not unpacked and (self._unpacker.unused_data or self._packed.read(1)):
            raise zlib.error("bytes behind its end")
        buffer[: len(unpacked)] = unpacked
        return len(unpacked)


class XzFile(io.RawIOBase):
    """The content of a file of xz or lzma streams in sequence; unlike ``lzma.open``, in bounded memory."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._packed, self._data = packed, b""
        self._unpacker = lzma.LZMADecompressor(memlimit=_XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes; return their number, 0 at the end.

        Raises ``lzma.LZMAError`` where it is damaged or needs more memory, ``EOFError`` where it is cut off.
        """
        unpacked = b""
        while not unpacked and self._begin_stream():
            if self._unpacker.needs_input and not self._data:
                self._data = self._packed.read(_READ_BYTES)
                if not self._data:
                    raise EOFError("it ends within a stream")
            unpacked, self._data = self._unpacker.decompress(self._data, len(buffer)), b""
        buffer[: len(unpacked)] = unpacked
        return len(unpacked)

    def _begin_stream(self) -> bool:
        """Begin the next stream where one has ended; False after the last. Zeros may be between them."""
        if not self._unpacker.eof:
            return True
        # streams may have zeros behind them (The .xz File Format, section 2.2)
        self._data = self._unpacker.unused_data.lstrip(b"\0")
        while not self._data and (more := self._packed.read(_READ_BYTES)):
            self._data = more.lstrip(b"\0")
        if self._data:
            self._unpacker = lzma.LZMADecompressor(memlimit=_XZ_MEMORY)
        return bool(self._data)
