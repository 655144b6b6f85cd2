"""Zip archives from strangers: everything that is declared is checked before a member is unpacked."""

import zipfile
from dataclasses import dataclass
from typing import IO, Literal

from ckptzoo.hub.intake.found import Limits, refuse, shown

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


def members_of(file: IO[bytes], *, where: str, limits: Limits) -> Members:
    """Check an archive's directory and say which format it is.

    Raises
    ------
    IntegrityError
        Not a whole zip archive; members that overlap, have the same name, lead out of the archive or are encrypted;
        too many members, too many bytes unpacked, or too many for their packed size; neither torch's nor numpy's.

    Notes
    -----
    Bytes before the first member or a comment behind the directory are refused: two readers could then find two
    different directories in one file. Held by tests/hub/intake/test_intake_refused.py.
    """
    try:
        archive = zipfile.ZipFile(file)
        infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, UnicodeDecodeError) as error:
        refuse(where, "archive", "a whole zip archive", f"{type(error).__name__}: {error}")
    size = file.seek(0, 2)
    most = limits.tensors + 1000
    if not 1 <= len(infos) <= most:
        refuse(where, "archive", f"1 to {most} members", len(infos))
    if archive.comment:
        refuse(where, "archive", "no comment", f"a comment of {len(archive.comment)} bytes")
    names: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        _check(info, where=where)
        if names.setdefault(info.filename, info) is not info:
            refuse(where, "archive", "every member once", f"{info.filename!r} twice")
    _apart(infos, archive.start_dir, where=where)
    _ends(file, infos, archive.start_dir, size, where=where)
    unpacked = sum(info.file_size for info in infos)
    allowed = limits.tensor_bytes + limits.pickle_bytes
    if unpacked > allowed:
        refuse(where, "archive", f"at most {allowed} bytes unpacked", f"{unpacked} bytes declared")
    if unpacked > max(_SMALL, limits.expansion * size):
        got = f"{unpacked} bytes declared in a file of {size}"
        refuse(where, "archive", f"at most {limits.expansion} times its size unpacked", got)
    kind, folder = _kind(names, where=where)
    return Members(archive, kind, folder, names)


def _check(info: zipfile.ZipInfo, *, where: str) -> None:
    name = info.filename
    parts = name.removesuffix("/").split("/")
    if not name.isprintable() or "\\" in name or ":" in parts[0] or any(part in ("", ".", "..") for part in parts):
        refuse(where, "member name", "a relative path inside the archive", ascii(name))
    if info.orig_filename != name:
        refuse(where, "member name", "printable characters", ascii(info.orig_filename))
    if info.flag_bits & 0x2041:
        refuse(where, f"member {shown(name)!r}", "unencrypted bytes", "an encrypted member")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        refuse(where, f"member {shown(name)!r}", "stored or deflated bytes", f"method {info.compress_type}")
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        got = f"{info.file_size} declared, {info.compress_size} there"
        refuse(where, f"member {shown(name)!r}", "as many bytes as are stored", got)


def _apart(infos: list[zipfile.ZipInfo], stop: int, *, where: str) -> None:
    """Members must lie one after another, from the file's first byte."""
    end = 0
    for info in sorted(infos, key=lambda item: item.header_offset):
        if info.header_offset < end or (end == 0 and info.header_offset != 0):
            kind = "overlapping members" if end else f"{info.header_offset} bytes before the first member"
            refuse(where, f"member {shown(info.filename)!r}", f"to begin at byte {end} or later, the first at 0", kind)
        end = info.header_offset + _LOCAL + len(info.filename.encode()) + info.compress_size
    if end > stop:
        refuse(where, "archive", f"members that end before the directory at byte {stop}", f"an end at {end}")


def _ends(file: IO[bytes], infos: list[zipfile.ZipInfo], start: int, size: int, *, where: str) -> None:
    """The directory must reach to its end record, which must count its entries and end the file."""
    names = sum(len(info.filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437")) for info in infos)
    stop = start + names + sum(_ENTRY + len(info.extra) + len(info.comment) for info in infos)
    file.seek(-_END, 2)
    many = int.from_bytes(file.read(_END)[10:12], "little")
    if stop not in (size - _END, size - _END - _END64) or many not in (len(infos), 0xFFFF):
        got = f"{len(infos)} of {many} entries, up to byte {stop} of {size}"
        refuse(where, "archive", "a whole directory at its end", got)


def _kind(names: dict[str, zipfile.ZipInfo], *, where: str) -> tuple[Literal["torch", "npz"], str]:
    pickles = [name for name in names if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) == 1:
        folder = pickles[0].removesuffix("data.pkl")
        if stray := [name for name in names if not name.startswith(folder)]:
            refuse(where, "archive", f"every member in {folder!r}, as torch.save writes", repr(stray[0]))
        if f"{folder}constants.pkl" in names:
            step = "Save model.state_dict() with torch.save: a program cannot be contributed."
            refuse(where, "format", "a state dict", "a TorchScript program (torch.jit.save)", step)
        return "torch", folder
    if all(name.endswith(".npy") for name in names):
        return "npz", ""
    if any(name.endswith(".pkl") for name in names):
        refuse(where, "archive", "one data.pkl as torch.save writes, or .npy members", f"{', '.join(names)}")
    refuse(where, "archive", "a file of torch.save or of numpy.savez", f"a zip of {', '.join(list(names)[:5])}")
