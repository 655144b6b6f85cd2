"""Which format a file has: what its name says, and what its first bytes say.

Zip archives from strangers: everything that is declared is checked before a member is unpacked.

Reads .npz archives of plain arrays; nothing in them is unpickled.
"""

import zipfile
from dataclasses import dataclass
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ckptzoo.hub.untrusted.limits import Limits, reject, shown, storable
from ckptzoo.schema.architecture import ITEMSIZE

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
"""The suffixes that are accepted, and the format each stands for."""

HEAD = 512
"""So many first bytes are needed."""
LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
"""What a file of torch.save begins with that is not a zip archive (before torch 1.6)."""
_OTHERS = {
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
NAMES = {
    "safetensors": "a safetensors file",
    "torch": "a file of torch.save",
    "npz": "an .npz archive",
    "zip": "a zip archive",
}


def kind_of(name: str, head: bytes, *, location: str) -> FileFormat:
    """The format of a file from its name and its first ``HEAD`` bytes; zip archives are told apart once unpacked.

    Raises
    ------
    IntegrityError
        The suffix is none of ``SUFFIXES``, or the content is something else than the suffix says.
    """
    suffix = "." + name.rpartition(".")[2].lower() if "." in name else ""
    if suffix not in SUFFIXES:
        step = "Give a state dict in one of these formats."
        reject(location, "format", "one of " + ", ".join(SUFFIXES), repr(suffix) if suffix else "no suffix", step)
    kind, content = SUFFIXES[suffix], _content(head)
    fits = {"safetensors": ("safetensors",), "torch": ("torch", "zip"), "npz": ("zip",)}[kind]
    if content not in fits:
        other = next((end for end, its in SUFFIXES.items() if its == content), None)
        step = f"Rename it to end in {other}." if other else f"Give a state dict as {', '.join(SUFFIXES)}."
        reject(location, "format", f"{NAMES[kind]}, as {suffix} says", NAMES.get(content, content), step)
    return kind


def _content(head: bytes) -> str:
    """A format's name, or words for what else the bytes are."""
    if not head:
        return "an empty file"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32:
        return "safetensors"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if head.startswith(LEGACY):
        return "torch"
    for magic, words in _OTHERS.items():
        if head.startswith(magic):
            return words
    if head[257:262] == b"ustar":
        return "a tar archive (torch.save before 0.1.10 wrote such)"
    if head[:1] == b"\x80" and head[1:2] in b"\x00\x01\x02\x03\x04\x05":
        return "a plain pickle, which torch.save did not write"
    return "unknown bytes"


_SMALL = 64 * 2**20
_LOCAL, _ENTRY, _END, _END64 = 30, 46, 22, 76
"""Bytes of a member's header, of its entry in the directory (both without its name), and of the records at the end."""


@dataclass(frozen=True)
class Members:
    """A checked archive: what it is, and its members by name."""

    archive: zipfile.ZipFile
    kind: Literal["torch", "npz"]
    folder: str
    """The folder that holds all members of a torch file, with its slash; empty for .npz."""
    infos: dict[str, zipfile.ZipInfo]


def members_of(file: IO[bytes], *, location: str, limits: Limits) -> Members:
    """Check an archive's directory and say which format it is.

    Raises
    ------
    IntegrityError
        Not a whole zip archive; members that overlap, have the same name, lead out of the archive or are encrypted;
        too many members, too many bytes unpacked, or too many for their packed size; neither torch's nor numpy's.

    Notes
    -----
    Bytes before the first member or a comment behind the directory are refused: two readers could then find two
    different directories in one file. Held by tests/hub/untrusted/test_rejected.py.
    """
    try:
        archive = zipfile.ZipFile(file)
        infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, UnicodeDecodeError) as error:
        reject(location, "archive", "a whole zip archive", f"{type(error).__name__}: {error}")
    size = file.seek(0, 2)
    most = limits.tensors + 1000
    if not 1 <= len(infos) <= most:
        reject(location, "archive", f"1 to {most} members", len(infos))
    if archive.comment:
        reject(location, "archive", "no comment", f"a comment of {len(archive.comment)} bytes")
    names: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        _check(info, location=location)
        if names.setdefault(info.filename, info) is not info:
            reject(location, "archive", "every member once", f"{info.filename!r} twice")
    _apart(infos, archive.start_dir, location=location)
    _ends(file, infos, archive.start_dir, size, location=location)
    unpacked = sum(info.file_size for info in infos)
    allowed = limits.tensor_bytes + limits.pickle_bytes
    if unpacked > allowed:
        reject(location, "archive", f"at most {allowed} bytes unpacked", f"{unpacked} bytes declared")
    if unpacked > max(_SMALL, limits.expansion * size):
        got = f"{unpacked} bytes declared in a file of {size}"
        reject(location, "archive", f"at most {limits.expansion} times its size unpacked", got)
    kind, folder = _kind(names, location=location)
    return Members(archive, kind, folder, names)


def _check(info: zipfile.ZipInfo, *, location: str) -> None:
    name = info.filename
    parts = name.removesuffix("/").split("/")
    if not name.isprintable() or "\\" in name or ":" in parts[0] or any(part in ("", ".", "..") for part in parts):
        reject(location, "member name", "a relative path inside the archive", ascii(name))
    if info.orig_filename != name:
        reject(location, "member name", "printable characters", ascii(info.orig_filename))
    if info.flag_bits & 0x2041:
        reject(location, f"member {shown(name)!r}", "unencrypted bytes", "an encrypted member")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        reject(location, f"member {shown(name)!r}", "stored or deflated bytes", f"method {info.compress_type}")
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        got = f"{info.file_size} declared, {info.compress_size} there"
        reject(location, f"member {shown(name)!r}", "as many bytes as are stored", got)


def _apart(infos: list[zipfile.ZipInfo], stop: int, *, location: str) -> None:
    """Members must lie one after another, from the file's first byte."""
    end = 0
    for info in sorted(infos, key=lambda item: item.header_offset):
        if info.header_offset < end or (end == 0 and info.header_offset != 0):
            kind = "overlapping members" if end else f"{info.header_offset} bytes before the first member"
            reject(
                location, f"member {shown(info.filename)!r}", f"to begin at byte {end} or later, the first at 0", kind
            )
        end = info.header_offset + _LOCAL + len(info.filename.encode()) + info.compress_size
    if end > stop:
        reject(location, "archive", f"members that end before the directory at byte {stop}", f"an end at {end}")


def _ends(file: IO[bytes], infos: list[zipfile.ZipInfo], start: int, size: int, *, location: str) -> None:
    """The directory must reach to its end record, which must count its entries and end the file."""
    names = sum(len(info.filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437")) for info in infos)
    stop = start + names + sum(_ENTRY + len(info.extra) + len(info.comment) for info in infos)
    file.seek(-_END, 2)
    many = int.from_bytes(file.read(_END)[10:12], "little")
    if stop not in (size - _END, size - _END - _END64) or many not in (len(infos), 0xFFFF):
        got = f"{len(infos)} of {many} entries, up to byte {stop} of {size}"
        reject(location, "archive", "a whole directory at its end", got)


def _kind(names: dict[str, zipfile.ZipInfo], *, location: str) -> tuple[Literal["torch", "npz"], str]:
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
_STEP = "Save it again with numpy.savez and plain arrays of numbers."


def load_npz(members: Members, *, location: str, limits: Limits) -> dict[str, NDArray[Any]]:
    """The arrays of a checked archive, by name, in the archive's order.

    Raises
    ------
    IntegrityError
        The archive is torch's; a member is no array, holds objects or another dtype, or is larger than it declares.
    """
    if members.kind != "npz":
        reject(location, "format", f"{NAMES['npz']}, as .npz says", NAMES["torch"], "Rename it to end in .pt.")
    made: dict[str, NDArray[Any]] = {}
    total = 0
    for info in members.infos.values():
        name = info.filename.removesuffix(".npy")
        what = f"array {shown(name)!r}"
        with members.archive.open(info) as stream:
            try:
                shape, fortran, dtype = _header(stream)
            except Exception as error:  # numpy parses the header with ast; what that raises is not documented
                reject(location, what, "a header of numpy.save", f"{type(error).__name__}: {error}", _STEP)
            if dtype.hasobject:
                reject(location, what, "plain numbers", "Python objects, which are pickled", _STEP)
            if storable(dtype) is None:
                reject(location, f"dtype of {shown(name)!r}", "one of " + ", ".join(ITEMSIZE), dtype, _STEP)
            if len(shape) > 32 or any(type(many) is not int or many < 0 for many in shape):
                reject(location, f"shape of {shown(name)!r}", "at most 32 integers from 0", shape, _STEP)
            count = 1
            for many in shape:
                count *= many
            nbytes = count * dtype.itemsize
            total += nbytes
            if nbytes != info.file_size - stream.tell():
                got = f"{info.file_size - stream.tell()} in the archive"
                reject(location, what, f"{nbytes} bytes from its shape", got, _STEP)
            if total > limits.tensor_bytes:
                reject(location, "arrays", f"at most {limits.tensor_bytes} bytes", f"{total} bytes or more")
            data = _exactly(stream, nbytes, location=location, what=what)
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


def _exactly(stream: IO[bytes], nbytes: int, *, location: str, what: str) -> bytearray:
    data = bytearray(nbytes)
    view, at = memoryview(data), 0
    while at < nbytes:
        try:
            piece = stream.read(min(nbytes - at, 2**24))
        except Exception as error:  # zlib.error, BadZipFile, EOFError
            reject(location, what, "bytes as they were packed", f"{type(error).__name__}: {error}")
        if not piece:
            reject(location, what, f"{nbytes} bytes", f"{at} bytes")
        view[at : at + len(piece)] = piece
        at += len(piece)
    return data
