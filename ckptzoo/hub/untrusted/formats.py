"""Tells which format a file has, checks zip archives before anything is unpacked, and reads .npz files."""

import zipfile
from dataclasses import dataclass
from math import prod
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ckptzoo.hub.untrusted.errors import reject
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.schema.architecture import ITEMSIZE
from ckptzoo.text import excerpt

FileFormat = Literal["safetensors", "torch", "npz"]

SUFFIXES: dict[str, FileFormat] = {
    ".safetensors": "safetensors",
    ".pt": "torch",
    ".pth": "torch",
    ".th": "torch",
    ".bin": "torch",
    ".ckpt": "torch",
    ".npz": "npz",
}
"""The suffixes that are accepted, and the format of each."""

HEAD_BYTES = 512
"""First bytes of a file that ``format_of`` needs: a block of a tar archive, the longest of the magic numbers."""
LEGACY_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
"""First bytes of a file of torch.save that is not a zip archive (before torch 1.6): ``MAGIC_NUMBER`` of
``torch.serialization``, pickled."""
_OTHER_MAGICS = {
    b"\x93NUMPY": "a .npy file: an array without a name",
    b"\x89HDF\r\n": "an HDF5 file",
    b"GGUF": "a GGUF file",
    b"\x1f\x8b": "gzip-compressed bytes",
    b"\xfd7zXZ": "xz-compressed bytes",
    b"BZh": "bzip2-compressed bytes",
    b"\x28\xb5\x2f\xfd": "zstd-compressed bytes",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"\x7fELF": "a program",
    b"#!": "a script",
    b"version https://git-lfs": "a pointer to a file that git-lfs has not fetched",
    b"<": "a web page or XML",
}
FORMAT_NAMES = {
    "safetensors": "a safetensors file",
    "torch": "a file of torch.save",
    "npz": "an .npz archive",
    "zip": "a zip archive",
}


def format_of(name: str, head: bytes, *, location: str) -> FileFormat:
    """The format of a file from its name and its first ``HEAD_BYTES`` bytes; ``check_archive`` tells archives apart.

    Raises
    ------
    IntegrityError
        The suffix is none of ``SUFFIXES``, or the content is something else than the suffix says.
    """
    suffix = "." + name.rpartition(".")[2].lower() if "." in name else ""
    if suffix not in SUFFIXES:
        step = "Give a state dict in one of these formats."
        reject(location, "format", "one of " + ", ".join(SUFFIXES), repr(suffix) if suffix else "no suffix", step)
    file_format, content = SUFFIXES[suffix], _describe_content(head)
    accepted = {"safetensors": ("safetensors",), "torch": ("torch", "zip"), "npz": ("zip",)}[file_format]
    if content not in accepted:
        right_suffix = next((end for end, its in SUFFIXES.items() if its == content), None)
        step = (
            f"Rename it to end in {right_suffix}." if right_suffix else f"Give a state dict as {', '.join(SUFFIXES)}."
        )
        reject(
            location,
            "format",
            f"{FORMAT_NAMES[file_format]}, as {suffix} says",
            FORMAT_NAMES.get(content, content),
            step,
        )
    return file_format


def _describe_content(head: bytes) -> str:
    """A format's name, or words for what else the bytes are."""
    if not head:
        return "an empty file"
    # safetensors: the length of the header in 8 bytes, then a JSON object.
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32:
        return "safetensors"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if head.startswith(LEGACY_MAGIC):
        return "torch"
    for magic, words in _OTHER_MAGICS.items():
        if head.startswith(magic):
            return words
    if head[257:262] == b"ustar":
        return "a tar archive (torch.save before 0.1.10 wrote such)"
    if head[:1] == b"\x80" and head[1:2] in b"\x00\x01\x02\x03\x04\x05":
        return "a plain pickle, which torch.save did not write"
    return "unknown bytes"


_LOCAL, _ENTRY, _END, _END64 = 30, 46, 22, 76
"""Bytes in a zip archive: a member's header, its entry in the directory (both without its name), the record at the end,
and what is before that in zip64 (a record of 56 bytes and a locator of 20)."""
_UTF8, _ENCRYPTED = 0x800, 0x2041
"""Flags of a member: its name is UTF-8; bits 0, 6 and 13, of which any means that something is encrypted."""


@dataclass(frozen=True)
class CheckedArchive:
    """A zip archive whose directory was checked: what it is, and its members by name."""

    archive: zipfile.ZipFile
    file_format: Literal["torch", "npz"]
    folder: str
    """The folder that holds all members of a torch file, with its slash; empty for .npz."""
    infos: dict[str, zipfile.ZipInfo]


def check_archive(file: IO[bytes], *, location: str, limits: Limits) -> CheckedArchive:
    """Check an archive's directory and say which format it is.

    Raises
    ------
    IntegrityError
        Not a whole zip archive; members that overlap, have the same name, lead out of the archive or are encrypted;
        too many members, too many bytes unpacked, or too many for their packed size; neither torch's nor numpy's.

    Notes
    -----
    Bytes before the first member or a comment behind the directory are refused: two readers could then find two
    different directories in one file. Tested in tests/hub/untrusted/test_rejected.py.
    """
    try:
        archive = zipfile.ZipFile(file)
        infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, UnicodeDecodeError) as error:
        reject(location, "archive", "a whole zip archive", f"{type(error).__name__}: {error}")
    size = file.seek(0, 2)
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
    return CheckedArchive(archive, file_format, folder, names)


def _check_member(info: zipfile.ZipInfo, *, location: str) -> None:
    name = info.filename
    parts = name.removesuffix("/").split("/")
    if not name.isprintable() or "\\" in name or ":" in parts[0] or any(part in ("", ".", "..") for part in parts):
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
    """Members must follow one another, from the file's first byte."""
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
    """The directory must reach to its end record, which must count its entries and end the file."""
    names = sum(len(info.filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")) for info in infos)
    stop = start + names + sum(_ENTRY + len(info.extra) + len(info.comment) for info in infos)
    file.seek(-_END, 2)
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
        if f"{folder}constants.pkl" in names:
            step = "Save model.state_dict() with torch.save: a program cannot be contributed."
            reject(location, "format", "a state dict", "a TorchScript program (torch.jit.save)", step)
        return "torch", folder
    if all(name.endswith(".npy") for name in names):
        return "npz", ""
    if any(name.endswith(".pkl") for name in names):
        reject(location, "archive", "one data.pkl as torch.save writes, or .npy members", f"{', '.join(names)}")
    reject(location, "archive", "a file of torch.save or of numpy.savez", f"a zip of {', '.join(list(names)[:5])}")


_MAX_HEADER = 10_000
"""Characters of an array's header; numpy's own default."""
_NPZ_STEP = "Save it again with numpy.savez and plain arrays of numbers."


def load_npz(archive: CheckedArchive, *, location: str, limits: Limits) -> dict[str, NDArray[Any]]:
    """The arrays of a checked archive, by name, in the archive's order.

    Raises
    ------
    IntegrityError
        The archive is torch's; a member is no array, holds objects or another dtype, or is larger than it declares.
    """
    if archive.file_format != "npz":
        reject(
            location,
            "format",
            f"{FORMAT_NAMES['npz']}, as .npz says",
            FORMAT_NAMES["torch"],
            "Rename it to end in .pt.",
        )
    arrays: dict[str, NDArray[Any]] = {}
    total = 0
    for info in archive.infos.values():
        name = info.filename.removesuffix(".npy")
        what = f"array {excerpt(name)!r}"
        with archive.archive.open(info) as stream:
            try:
                shape, fortran, dtype = _read_array_header(stream)
            except Exception as error:  # numpy parses the header with ast; what that raises is not documented
                reject(location, what, "a header of numpy.save", f"{type(error).__name__}: {error}", _NPZ_STEP)
            if dtype.hasobject:
                reject(location, what, "plain numbers", "Python objects, which are pickled", _NPZ_STEP)
            if dtype.name not in ITEMSIZE:
                reject(location, f"dtype of {excerpt(name)!r}", "one of " + ", ".join(ITEMSIZE), dtype, _NPZ_STEP)
            if len(shape) > 32 or any(type(length) is not int or length < 0 for length in shape):
                reject(location, f"shape of {excerpt(name)!r}", "at most 32 integers from 0", shape, _NPZ_STEP)
            nbytes = prod(shape) * dtype.itemsize
            total += nbytes
            if nbytes != info.file_size - stream.tell():
                got = f"{info.file_size - stream.tell()} in the archive"
                reject(location, what, f"{nbytes} bytes from its shape", got, _NPZ_STEP)
            if total > limits.tensor_bytes:
                reject(location, "arrays", f"at most {limits.tensor_bytes} bytes", f"{total} bytes or more")
            data = _read_exactly(stream, nbytes, location=location, what=what)
        array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
        arrays[name] = np.ascontiguousarray(array, dtype.newbyteorder("=")).reshape(shape)
    return arrays


def _read_array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream, max_header_size=_MAX_HEADER)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream, max_header_size=_MAX_HEADER)
    raise ValueError(f"version {version}")


def _read_exactly(stream: IO[bytes], nbytes: int, *, location: str, what: str) -> bytearray:
    data = bytearray(nbytes)
    view, done = memoryview(data), 0
    while done < nbytes:
        try:
            chunk = stream.read(min(nbytes - done, 2**24))
        except Exception as error:  # zlib.error, BadZipFile, EOFError
            reject(location, what, "bytes as they were packed", f"{type(error).__name__}: {error}")
        if not chunk:
            reject(location, what, f"{nbytes} bytes", f"{done} bytes")
        view[done : done + len(chunk)] = chunk
        done += len(chunk)
    return data
