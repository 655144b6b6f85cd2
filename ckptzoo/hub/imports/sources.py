"""Sources of an import: folders, files, tar and zip archives, read member by member, never unpacked."""

import errno
import io
import os
import re
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.hub.imports.packed import PACKED, first_bytes, unpacked
from ckptzoo.hub.imports.tar import ArchivePaths, TarReader
from ckptzoo.hub.untrusted.formats import HEAD_BYTES, is_tar
from ckptzoo.hub.untrusted.forms import form_of
from ckptzoo.text import excerpt

_TAR_SUFFIXES = (".tar", ".tgz", ".tar.gz", ".txz", ".tar.xz", ".tbz2", ".tar.bz2")
_ARCHIVE_SUFFIXES = (*_TAR_SUFFIXES, ".zip", ".keras")
_EXPANSION, _ALWAYS_ALLOWED = 1000, 2**30
"""Bounds of an archive: unpacked size as a multiple of its size (deflate reaches 1,032), and the bytes that are allowed
in any case.
"""
_ENCRYPTED = 0x1
"""Bit of a zip member's flags."""
_READ_BYTES = 2**16
"""Bytes that are asked from the unpacker at a time."""
_MAX_PATH = 4096
"""Characters of a member's path: PATH_MAX of Linux."""
_DIRECTORY_BYTES, _DIRECTORY_MEMBERS, _ENTRY = 2**24, 2**16, b"PK\x01\x02"
"""Bounds of a zip archive's directory, which zipfile reads whole and where an entry takes up to a kilobyte, and the
start of each entry.
"""
_FETCH_AGAIN = "Fetch the archive again."


@dataclass(frozen=True)
class SourceFile:
    """One file of a source: its path inside it, with slashes, never absolute and never with ``..``, and its size in
    bytes.

    In archives that are read in order ``open`` works only until the next file is asked for. ``fetch`` returns the bytes
    from one offset to another without reading others, None where that is not possible; ``digest`` is that of the whole
    file where the hub says it, as in ``FileEntry``. ``start`` is the first byte of a member of a tar archive there,
    unpacked; None of other files.
    """

    path: str
    size: int
    open: Callable[[], IO[bytes]] = field(repr=False)
    fetch: Callable[[int, int], bytes] | None = field(default=None, repr=False)
    digest: str | None = None
    start: int | None = field(default=None, kw_only=True)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The path without its last part; empty at the top."""
        return self.path.rpartition("/")[0]

    def read(self, limit: int) -> bytes:
        """Return all bytes; raise ``ZooError`` where there are more than ``limit``, or fewer than ``size``."""
        if self.size > limit:
            step = "Leave it out, or raise the limit."
            raise ZooError(Problem(self.path, "size", f"at most {limit} bytes", f"{self.size} bytes", step))
        with self.open() as stream:
            data = stream.read(self.size)
        if len(data) != self.size:
            raise IntegrityError(Problem(self.path, "file", f"{self.size} bytes", f"{len(data)} bytes", _FETCH_AGAIN))
        return data


@dataclass(frozen=True)
class WholeSource:
    """The bytes of a source that is one file, here or on another machine.

    ``open`` gives a stream from the start, which can seek; ``address`` is for messages; with ``is_local`` several
    threads may read at once.
    """

    address: str
    name: str
    size: int
    open: Callable[[], IO[bytes]] = field(repr=False)
    is_local: bool = True

    @classmethod
    def of(cls, path: Path) -> "WholeSource":
        return cls(str(path), path.resolve().name, path.stat().st_size, _opener(path))


class ImportSource(ABC):
    """A source whose files can be read from first to last any number of times.

    ``name`` is the folder's or the archive's name without suffixes, the same for a folder and an archive of it.
    ``nbytes`` are bytes in all, as ``position`` counts those that the last pass has read or skipped. ``is_local`` says
    that looking into a file costs no request, ``is_reopened`` that a file may be opened again during a pass,
    ``in_order`` that all of it has to be read to know its files. ``dangling`` has the paths of links that lead to no
    file; ``repository`` is the address of the hub's repository that it is or is in, empty where there is none, and
    ``root`` what its paths begin with besides those in the repository. ``broken`` has the archives among several
    sources that the last pass could not read to their end, and why.
    """

    is_local = True
    repository = root = ""
    is_reopened = False
    in_order = False
    dangling: Sequence[str] = ()

    def __init__(self, address: str, name: str, nbytes: int) -> None:
        self.address, self.name, self.nbytes, self.position = address, stem(name), nbytes, 0
        self.broken = list[tuple[str, ZooError]]()

    @abstractmethod
    def files(self) -> Iterator[SourceFile]:
        """Iterate over all files: folders and zip archives in order of their paths, tar archives in their own."""

    def repository_of(self, path: str) -> str:
        """Return the address of the repository that holds a file; empty where none does."""
        return self.repository


def open_path(path: Path) -> ImportSource:
    """Open a local folder, archive or file; raise ``ZooError`` where nothing is there."""
    if path.is_dir():
        return FolderSource(path)
    if not path.is_file():
        step = "Give a folder, an archive (.tar .tgz .tar.xz .zip), a checkpoint file, or an address https:// or hf://."
        raise ZooError(Problem(str(path), "source", "a folder or a file", "nothing", step))
    return open_blob(WholeSource.of(path))


def open_blob(blob: WholeSource) -> ImportSource:
    """Return an archive, by its content, or a single file."""

    def inner_head(form: str) -> bytes:
        with blob.open() as stream:
            return first_bytes(stream, form, HEAD_BYTES)

    with blob.open() as stream:
        head = stream.read(HEAD_BYTES)
    kind = archive_kind(head, blob.name, inner_head)
    return TarSource(blob) if kind == "tar" else ZipSource(blob) if kind == "zip" else FileSource(blob)


def archive_kind(head: bytes, name: str, inner_head: Callable[[str], bytes]) -> str:
    """Return what holds the files of an archive, ``tar`` or ``zip``; empty for any other file.

    A file that has the name of an archive and no known format counts as an archive, so that it is refused as one.
    ``inner_head`` returns the first bytes of what is packed in it by a form.
    """
    form, lower = form_of(head, name), name.lower()
    is_called_tar = lower.endswith(_TAR_SUFFIXES)
    if form.name in PACKED:
        inner = inner_head(form.name)
        is_file = not is_called_tar or form_of(inner, name).read is not None  # checkpoint.pth.tar.gz
        return "tar" if is_tar(inner) or not is_file else ""
    if form.name in ("tar", "zip"):
        return form.name
    if form.read is not None or form.name == "git-lfs":  # checkpoint.pth.tar
        return ""
    return "tar" if is_called_tar else "zip" if lower.endswith(".zip") else ""


def stem(name: str) -> str:
    """Return a name without the suffix of an archive.

    >>> stem("zoo.tar.xz"), stem("zoo.v2")
    ('zoo', 'zoo.v2')
    """
    ending = next((suffix for suffix in _ARCHIVE_SUFFIXES if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(ending)] if len(ending) < len(name) else name


def natural(path: str) -> tuple[list[Any], str]:
    """Return a key that sorts numbers in paths by their size.

    >>> sorted(["fold_10/a", "fold_2/a", "fold_2"], key=natural)
    ['fold_2', 'fold_2/a', 'fold_10/a']
    """
    # int() refuses texts of more than 4,300 digits
    parts = re.split(r"([0-9]{1,18})", path)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], path


class FolderSource(ImportSource):
    """A folder and those inside it, ``sizes`` in bytes by path; links to files are followed, those to folders are
    not.
    """

    is_reopened = True

    def __init__(self, path: Path) -> None:
        self._dangling = list[str]()
        files = dict(self._walk(path, ""))
        super().__init__(str(path), path.resolve().name, sum(files.values()))
        self.dangling = tuple(sorted(self._dangling))
        self._path, self.sizes = path, {name: files[name] for name in sorted(files, key=natural)}

    def _walk(self, folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield the files below a folder, with their sizes."""
        with os.scandir(folder) as entries:
            for entry in entries:
                path = f"{prefix}{entry.name}"
                try:
                    # links to folders may lead back to one above them
                    if entry.is_dir(follow_symlinks=False):
                        yield from self._walk(Path(entry.path), f"{path}/")
                    elif entry.is_file():
                        yield path, entry.stat().st_size
                    elif entry.is_symlink() and not entry.is_dir():
                        self._dangling.append(path)
                except OSError as error:  # links that lead to one another, folders that may not be read
                    if error.errno != errno.ELOOP:
                        step = "Leave it out, or let it be read."
                        got = error.strerror or type(error).__name__
                        raise ZooError(Problem(entry.path, "folder", "one that can be read", got, step)) from None
                    self._dangling.append(path)

    def files(self) -> Iterator[SourceFile]:
        self.position = 0
        for path, size in self.sizes.items():
            yield self.file(path)
            self.position += size

    def file(self, path: str) -> SourceFile:
        """One of its files."""
        return SourceFile(path, self.sizes[path], _opener(self._path / path), partial(_read_at, self._path / path))


def _read_at(path: Path, start: int, stop: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(stop - start)


def _opener(path: Path) -> Callable[[], IO[bytes]]:
    return lambda: path.open("rb")


class FileSource(ImportSource):
    """A single file."""

    is_reopened = True

    def __init__(self, blob: WholeSource) -> None:
        super().__init__(blob.address, blob.name, blob.size)
        self._blob = blob

    def files(self) -> Iterator[SourceFile]:
        self.position = 0
        fetch = partial(_read_at, Path(self.address)) if self._blob.is_local else None
        yield SourceFile(self._blob.name, self.nbytes, self._blob.open, fetch)
        self.position = self.nbytes


class ZipSource(ImportSource):
    """A zip archive; ``sizes`` are in bytes by path, once a pass has begun."""

    is_reopened = True

    def __init__(self, blob: WholeSource) -> None:
        super().__init__(blob.address, blob.name, blob.size)
        self._blob = blob
        self.sizes = dict[str, int]()

    def files(self) -> Iterator[SourceFile]:
        self.position = 0
        with self._blob.open() as packed:
            limited = _ZipBytes(packed, self.address)
            try:
                archive = zipfile.ZipFile(cast("IO[bytes]", limited))
            # NotImplementedError: a version or a compression that zipfile does not know
            except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
                got = f"{type(error).__name__}: {error}"
                _refuse(self.address, "archive", "a whole zip archive", got, _FETCH_AGAIN)
            limited.opened = True
            total = sum(info.file_size for info in archive.infolist())
            if total > max(_ALWAYS_ALLOWED, _EXPANSION * self.nbytes):
                _refuse_expansion(self.address, archive.infolist()[0].filename, total, self.nbytes)
            paths = ArchivePaths(self.address)
            infos = sorted(archive.infolist(), key=lambda item: natural(item.filename))
            self.sizes = {info.filename.removeprefix("./"): info.file_size for info in infos if not info.is_dir()}
            for info in infos:
                if not info.is_dir():
                    path = self._checked(info, paths)
                    yield SourceFile(path, info.file_size, self._opener(archive, info))
                    self.position += info.compress_size
        self.position = self.nbytes

    def _checked(self, info: zipfile.ZipInfo, paths: ArchivePaths) -> str:
        """Return a member's path, once its entry in the directory is checked."""
        path = _checked_path(info.filename, self.address)
        paths.add(path, self.nbytes)
        if info.flag_bits & _ENCRYPTED:
            step = "Decrypt the archive, and import that."
            _refuse(self.address, f"member {excerpt(path)!r}", "unencrypted bytes", "an encrypted one", step)
        # zipfile gives no more bytes of a member than its entry says, so that checking entries bounds what is read
        if info.file_size > max(_ALWAYS_ALLOWED, _EXPANSION * info.compress_size):
            _refuse_expansion(self.address, path, info.file_size, info.compress_size)
        return path

    def _opener(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[], IO[bytes]]:
        def open_member() -> IO[bytes]:
            try:
                return _Checked(archive.open(info), f"{self.address}: {excerpt(info.filename)}")
            except (zipfile.BadZipFile, NotImplementedError, OSError) as error:
                _refuse(self.address, f"member {excerpt(info.filename)!r}", "readable bytes", str(error), _FETCH_AGAIN)

        return open_member


class TarSource(ImportSource):
    """A tar archive, as it is or packed, read in its own order."""

    in_order = True

    def __init__(self, blob: WholeSource) -> None:
        super().__init__(blob.address, blob.name, blob.size)
        self._blob = blob

    def files(self) -> Iterator[SourceFile]:
        self.position = 0
        with self._blob.open() as packed:
            form = form_of(packed.read(HEAD_BYTES), "")
            packed.seek(0)
            stream = unpacked(packed, form.name) if form.name in PACKED else packed
            for file in tar_files(stream, packed.tell, self.address):
                self.position = packed.tell()
                yield file
        self.position = self.nbytes


def tar_files(stream: IO[bytes], consumed: Callable[[], int], location: str) -> Iterator[SourceFile]:
    """Yield the files of a tar archive.

    ``consumed`` returns how many bytes of the packed archive were used; ``location`` is for messages.
    """
    paths = ArchivePaths(location)
    for member in TarReader(stream, location):
        position = consumed()
        if member.end > max(_ALWAYS_ALLOWED, _EXPANSION * max(position, _READ_BYTES)):
            _refuse_expansion(location, member.path, member.end, position)
        if member.kind == "folder":
            continue
        path = _checked_path(member.path, location)
        if member.kind != "file":
            step = "Repack it with the files themselves: tar --dereference, without --sparse."
            _refuse(location, f"member {excerpt(path)!r}", "a file", member.kind, step)
        paths.add(path, position)
        yield SourceFile(path, member.size, partial(io.BufferedReader, member), start=member.end - member.size)


class _ZipBytes:
    """The bytes of a zip archive, for zipfile; ``opened`` is set once zipfile has read the directory, at once."""

    def __init__(self, packed: IO[bytes], location: str) -> None:
        self._packed, self._location, self.opened = packed, location, False
        self.seek, self.tell, self.seekable, self.close = packed.seek, packed.tell, packed.seekable, packed.close

    def read(self, size: int = -1) -> bytes:
        if self.opened:
            return self._packed.read(size)
        data = self._packed.read(_DIRECTORY_BYTES + 1 if size < 0 else min(size, _DIRECTORY_BYTES + 1))
        if len(data) > _DIRECTORY_BYTES or data.count(_ENTRY) > _DIRECTORY_MEMBERS:
            expected = f"a directory of at most {_DIRECTORY_MEMBERS} members and {_DIRECTORY_BYTES} bytes"
            _refuse(self._location, "archive", expected, "a larger one", "Repack it as a tar archive.")
        return data


class _Checked(io.RawIOBase, IO[bytes]):
    """A zip member's bytes; errors of zipfile on damaged ones name the member."""

    def __init__(self, stream: IO[bytes], location: str) -> None:
        self._stream, self._location = stream, location

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        try:
            return self._stream.read(size)
        except (zipfile.BadZipFile, EOFError, zlib.error) as error:
            _refuse(self._location, "member", "bytes as they were packed", str(error), _FETCH_AGAIN)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _checked_path(name: str, location: str) -> str:
    """Check that a member's path stays inside the archive."""
    if len(name) > _MAX_PATH:
        got = f"{len(name)} characters, {excerpt(name, 40)!r}"
        _refuse(location, "member", f"a path of at most {_MAX_PATH}", got, "Do not use this archive.")
    # others would unpack such members outside of their folder (CWE-22), on Windows by backslashes and drives too
    path = name.removeprefix("./")
    parts = path.split("/")
    if not path.isprintable() or "\\" in path or any(part in ("", ".", "..") for part in parts) or ":" in parts[0]:
        _refuse(location, "member", "a relative path inside the archive", ascii(name[:200]), "Do not use this archive.")
    return path


def _refuse_expansion(location: str, path: str, size: int, packed: int) -> NoReturn:
    got = f"{size} bytes of {packed} with {excerpt(path)!r}"
    _refuse(location, "archive", f"at most {_EXPANSION} times its size unpacked", got, "Do not use this archive.")


def _refuse(location: str, what: str, expected: str, got: str, step: str) -> NoReturn:
    raise IntegrityError(Problem(location, what, expected, excerpt(got), step))
