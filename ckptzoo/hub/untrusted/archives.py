"""Checks zip archives before anything is unpacked, and reads their members."""

import io
import struct
import zipfile
import zlib
from dataclasses import dataclass
from io import BytesIO
from typing import IO, Any, Literal, NoReturn

from ckptzoo.hub.untrusted.errors import reject
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.text import excerpt

# APPNOTE.TXT of PKWARE, sections 4.3.7, 4.3.12, 4.3.16, 4.3.14 and 4.3.15.
_LOCAL, _ENTRY, _END, _END64 = 30, 46, 22, 76
"""Bytes in a zip archive: a member's header, its entry in the directory (both without its name), the record at the end,
and what is before that in zip64 (a record of 56 bytes and a locator of 20)."""
_NAME_LENGTH = 26
"""The offset in a member's header of the lengths of its name and of the field after the name."""
_ASIDE = frozenset(("", ".", ".."))
"""Parts that no path inside an archive has."""
_UTF8, _ENCRYPTED = 0x800, 0x2041
"""Flags of a member: its name is UTF-8; bits 0, 6 and 13, each of which means that something is encrypted."""


class View(io.RawIOBase):
    """A stream of bytes in memory that are not copied."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence])
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        piece = self._data[self._at : self._at + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def stream_of(data: bytes | memoryview) -> IO[bytes]:
    """Return a stream of a file's bytes; those of one that is mapped are read as they are asked for."""
    return io.BufferedReader(View(data)) if isinstance(data, memoryview) else BytesIO(data)


@dataclass(frozen=True)
class CheckedArchive:
    """A zip archive whose directory was checked: what it is, and its members by name."""

    data: memoryview
    location: str
    file_format: Literal["torch", "npz"]
    folder: str
    """The folder that holds all members of a torch file, with its slash; empty for .npz."""
    infos: dict[str, zipfile.ZipInfo]
    compared: int | None = None
    """Bytes of a stored member up to which its checksum is compared, where only what is looked at is read; else
    None."""

    def read(self, name: str) -> memoryview | bytes:
        """Return the bytes of a member, which have the checksum that the directory has; a view where they are
        stored.

        Raises ``IntegrityError`` where its own header names another member, or the checksum differs.
        """
        info = self.infos[name]
        header = self.data[info.header_offset : info.header_offset + _LOCAL]
        # a member's own header may be longer than what the directory says of it: torch aligns numbers to 64 bytes
        name_length, extra_length = struct.unpack_from("<HH", header, _NAME_LENGTH)
        start = info.header_offset + _LOCAL + name_length
        own_name = bytes(self.data[start - name_length : start])
        packed = self.data[start + extra_length : start + extra_length + info.compress_size]
        if bytes(header[:4]) != b"PK\x03\x04" or own_name != info.orig_filename.encode(_encoding(info)):
            self._reject(name, "a header of its own with its name", "another one")
        try:
            content = packed if info.compress_type == zipfile.ZIP_STORED else _inflated(packed, info.file_size)
        except zlib.error as error:
            self._reject(name, "bytes as they were packed", f"zlib.error: {error}")
        is_stored = self.compared is not None and info.compress_type == zipfile.ZIP_STORED
        is_compared = not is_stored or len(content) <= (self.compared or 0)
        if len(content) != info.file_size or (is_compared and zlib.crc32(content) != info.CRC):
            self._reject(name, "bytes as they were packed", "others: their checksum is wrong")
        return content

    def _reject(self, name: str, expected: str, got: str) -> NoReturn:
        reject(self.location, f"member {excerpt(name)!r}", expected, got)


def _encoding(info: zipfile.ZipInfo) -> str:
    # APPNOTE.TXT, appendix D: without the flag a name is in IBM code page 437
    return "utf-8" if info.flag_bits & _UTF8 else "cp437"


def _inflated(packed: memoryview, size: int) -> bytes:
    """Unpack at most one byte more than ``size``, so that a wrong size is noticed and no more memory is used."""
    # negative: deflate without a header of zlib
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, size + 1)


def check_archive(data: bytes | memoryview, *, location: str, limits: Limits) -> CheckedArchive:
    """Check an archive's directory and return its format.

    Bytes before the first member or a comment behind the directory are refused: two readers could then find two
    different directories in one file. Raises ``IntegrityError``: not a whole zip archive; members that overlap, have
    the same name, lead out of the archive or are encrypted; too many members, too many bytes unpacked, or too many for
    their packed size; neither torch's nor numpy's.
    """
    file = stream_of(data)
    try:
        archive = zipfile.ZipFile(file)
        infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, UnicodeDecodeError) as error:
        reject(location, "archive", "a whole zip archive", f"{type(error).__name__}: {error}")
    size = len(data)
    max_members = limits.tensors + 1000
    if not 1 <= len(infos) <= max_members:
        reject(location, "archive", f"1 to {max_members} members", len(infos))
    if archive.comment:
        reject(location, "archive", "no comment", f"a comment of {len(archive.comment)} bytes")
    names: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        _check_member(info, location=location)
        if names.setdefault(info.filename, info) is not info:
            reject(location, "archive", "every member once", f"{info.filename!r} twice")
    _check_no_overlap(infos, archive.start_dir, location=location)
    _check_directory(file, infos, archive.start_dir, size, location=location)
    unpacked = sum(info.file_size for info in infos)
    allowed = limits.tensor_bytes + limits.pickle_bytes
    if unpacked > allowed:
        reject(location, "archive", f"at most {allowed} bytes unpacked", f"{unpacked} bytes declared")
    if unpacked > max(limits.always_allowed, limits.expansion * size):
        got = f"{unpacked} bytes declared in a file of {size}"
        reject(location, "archive", f"at most {limits.expansion} times its size unpacked", got)
    file_format, folder = _format_and_folder(names, location=location)
    compared = limits.compared if isinstance(data, memoryview) else None
    return CheckedArchive(memoryview(data), location, file_format, folder, names, compared)


def _check_member(info: zipfile.ZipInfo, *, location: str) -> None:
    name = info.filename
    parts = name.removesuffix("/").split("/")
    # a colon may follow a drive of Windows
    if not name.isprintable() or "\\" in name or ":" in parts[0] or not _ASIDE.isdisjoint(parts):
        reject(location, "member name", "a relative path inside the archive", ascii(name))
    # zipfile cuts a name off at its first NUL.
    if info.orig_filename != name:
        reject(location, "member name", "printable characters", ascii(info.orig_filename))
    if info.flag_bits & _ENCRYPTED:
        reject(location, f"member {excerpt(name)!r}", "unencrypted bytes", "an encrypted member")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        reject(location, f"member {excerpt(name)!r}", "stored or deflated bytes", f"method {info.compress_type}")
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        got = f"{info.file_size} declared, {info.compress_size} there"
        reject(location, f"member {excerpt(name)!r}", "as many bytes as are stored", got)


def _check_no_overlap(infos: list[zipfile.ZipInfo], stop: int, *, location: str) -> None:
    """Check that members follow one another, from the file's first byte."""
    # members that share bytes are how a small file unpacks to a huge one (D. Fifield, A better zip bomb, 2019)
    end = 0
    for info in sorted(infos, key=lambda item: item.header_offset):
        if info.header_offset < end or (end == 0 and info.header_offset != 0):
            got = "overlapping members" if end else f"{info.header_offset} bytes before the first member"
            reject(
                location, f"member {excerpt(info.filename)!r}", f"to begin at byte {end} or later, the first at 0", got
            )
        end = info.header_offset + _LOCAL + len(info.filename.encode()) + info.compress_size
    if end > stop:
        reject(location, "archive", f"members that end before the directory at byte {stop}", f"an end at {end}")


def _check_directory(file: IO[bytes], infos: list[zipfile.ZipInfo], start: int, size: int, *, location: str) -> None:
    """Check that the directory reaches to its end record, which must count its entries and end the file."""
    names = sum(len(info.filename.encode(_encoding(info))) for info in infos)
    stop = start + names + sum(_ENTRY + len(info.extra) + len(info.comment) for info in infos)
    file.seek(-_END, 2)
    # the total number of entries
    declared = int.from_bytes(file.read(_END)[10:12], "little")
    # 0xFFFF: zip64 keeps the number of entries in its own record.
    if stop not in (size - _END, size - _END - _END64) or declared not in (len(infos), 0xFFFF):
        got = f"{len(infos)} of {declared} entries, up to byte {stop} of {size}"
        reject(location, "archive", "a whole directory at its end", got)


def _format_and_folder(names: dict[str, zipfile.ZipInfo], *, location: str) -> tuple[Literal["torch", "npz"], str]:
    pickles = [name for name in names if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) == 1:
        folder = pickles[0].removesuffix("data.pkl")
        if stray := [name for name in names if not name.startswith(folder)]:
            reject(location, "archive", f"every member in {folder!r}, as torch.save writes", repr(stray[0]))
        # torch.jit.save writes it beside data.pkl, torch.save does not
        if f"{folder}constants.pkl" in names:
            step = "Save model.state_dict() with torch.save: a program cannot be contributed."
            reject(location, "format", "a state dict", "a TorchScript program (torch.jit.save)", step)
        return "torch", folder
    if all(name.endswith(".npy") for name in names):
        return "npz", ""
    if any(name.endswith(".pkl") for name in names):
        reject(location, "archive", "one data.pkl as torch.save writes, or .npy members", f"{', '.join(names)}")
    reject(location, "archive", "a file of torch.save or of numpy.savez", f"a zip of {', '.join(list(names)[:5])}")
