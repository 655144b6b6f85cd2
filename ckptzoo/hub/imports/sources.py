"""Where checkpoints are imported from: folders, files, tar and zip archives, read member by member, never unpacked."""

import contextlib
import gzip
import io
import lzma
import os
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NoReturn

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.text import excerpt

_TAR_SUFFIXES = (".tar", ".tgz", ".tar.gz", ".txz", ".tar.xz")
_ARCHIVE_SUFFIXES = (*_TAR_SUFFIXES, ".zip")
_EXPANSION, _ALWAYS_ALLOWED = 1000, 2**30
"""An archive may unpack to so many times its size, and to so much in any case: deflate reaches 1,032."""
_ENCRYPTED = 0x1
"""Bit of a zip member's flags."""
_READ_BYTES = 2**16
"""What is asked of the unpacker at a time; tarfile copies what it has not used yet."""
_FETCH_AGAIN = "Fetch the archive again."


@dataclass(frozen=True)
class SourceFile:
    """One file of a source.

    Parameters
    ----------
    path : inside the source, with slashes; never absolute, never with ``..``.
    size : bytes.
    open : its bytes as a stream; for archives that are read in order only until the next file is asked for.
    """

    path: str
    size: int
    open: Callable[[], IO[bytes]] = field(repr=False)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The path without its last part; empty at the top."""
        return self.path.rpartition("/")[0]

    def read(self, limit: int) -> bytes:
        """All bytes.

        Raises
        ------
        ZooError
            There are more than ``limit``, or fewer than ``size``.
        """
        if self.size > limit:
            step = "Leave it out, or raise the limit."
            raise ZooError(Problem(self.path, "size", f"at most {limit} bytes", f"{self.size} bytes", step))
        with self.open() as stream:
            data = stream.read(self.size)
        if len(data) != self.size:
            raise IntegrityError(Problem(self.path, "file", f"{self.size} bytes", f"{len(data)} bytes", _FETCH_AGAIN))
        return data


class Source(ABC):
    """Something with files in it that can be read from the first to the last, as often as one likes.

    Attributes
    ----------
    nbytes : bytes in all, as ``position`` counts them.
    position : bytes that the last pass has read or skipped.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.position = path, 0
        self.nbytes = path.stat().st_size

    @cached_property
    def name(self) -> str:
        """The folder's or the archive's name without suffixes: the same for a folder and an archive of it."""
        return stem(self.path.resolve().name)

    @property
    def address(self) -> str:
        """As it was given."""
        return str(self.path)

    @abstractmethod
    def files(self) -> Iterator[SourceFile]:
        """A pass over all files: folders and zip archives in order of their paths, tar archives in their own."""


def open_source(address: str | os.PathLike[str]) -> Source:
    """The source at an address: a folder, a tar or zip archive, or a single file.

    Raises
    ------
    ZooError
        Nothing is there.
    """
    path = Path(address)
    if path.is_dir():
        return FolderSource(path)
    if not path.is_file():
        step = "Give a folder, an archive (.tar .tgz .tar.xz .zip) or a checkpoint file."
        raise ZooError(Problem(str(address), "source", "a folder or a file", "nothing", step))
    if path.name.lower().endswith(_TAR_SUFFIXES):
        return TarSource(path)
    if path.name.lower().endswith(".zip"):
        return ZipSource(path)
    return FileSource(path)


def stem(name: str) -> str:
    """A name without the suffix of an archive.

    >>> stem("zoo.tar.xz"), stem("zoo.v2")
    ('zoo', 'zoo.v2')
    """
    ending = next((suffix for suffix in _ARCHIVE_SUFFIXES if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(ending)] if len(ending) < len(name) else name


class FolderSource(Source):
    """A folder and those inside it; links to files are followed, links to folders are not."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        found = {item.relative_to(path).as_posix(): item.stat().st_size for item in _walk(path)}
        self._sizes = {name: found[name] for name in sorted(found)}
        self.nbytes = sum(found.values())

    def files(self) -> Iterator[SourceFile]:
        """A pass over all files."""
        self.position = 0
        for path, size in self._sizes.items():
            yield SourceFile(path, size, _opener(self.path / path))
            self.position += size


def _walk(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path))
            elif entry.is_file():
                yield Path(entry.path)


def _opener(path: Path) -> Callable[[], IO[bytes]]:
    return lambda: path.open("rb")


class FileSource(Source):
    """A single file."""

    def files(self) -> Iterator[SourceFile]:
        """A pass over all files."""
        self.position = 0
        yield SourceFile(self.path.name, self.nbytes, _opener(self.path))
        self.position = self.nbytes


class ZipSource(Source):
    """A zip archive."""

    def files(self) -> Iterator[SourceFile]:
        """A pass over all files."""
        self.position = 0
        try:
            archive = zipfile.ZipFile(self.path)
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            _refuse(self.address, "archive", "a whole zip archive", f"{type(error).__name__}: {error}", _FETCH_AGAIN)
        with archive:
            seen: set[str] = set()
            for info in sorted(archive.infolist(), key=lambda item: item.filename):
                if info.is_dir():
                    continue
                path = _checked_path(info.filename, self.address)
                if path in seen:
                    _refuse(self.address, "member", "every path once", f"{excerpt(path)!r} twice", "Repack it.")
                seen.add(path)
                if info.flag_bits & _ENCRYPTED:
                    step = "Decrypt the archive, and import that."
                    _refuse(self.address, f"member {excerpt(path)!r}", "unencrypted bytes", "an encrypted one", step)
                if info.file_size > max(_ALWAYS_ALLOWED, _EXPANSION * info.compress_size):
                    _refuse_expansion(self.address, path, info.file_size, info.compress_size)
                yield SourceFile(path, info.file_size, self._opener(archive, info))
                self.position += info.compress_size
        self.position = self.nbytes

    def _opener(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[], IO[bytes]]:
        def open_member() -> IO[bytes]:
            try:
                return _Checked(archive.open(info), f"{self.address}: {excerpt(info.filename)}")
            except (zipfile.BadZipFile, NotImplementedError, OSError) as error:
                _refuse(self.address, f"member {excerpt(info.filename)!r}", "readable bytes", str(error), _FETCH_AGAIN)

        return open_member


class TarSource(Source):
    """A tar archive, as it is or packed by gzip or xz, read in its own order."""

    def files(self) -> Iterator[SourceFile]:
        """A pass over all files."""
        with self.path.open("rb") as packed, _unpacked(self.path, packed) as stream:
            yield from self._members(stream, packed)
            self.position = self.nbytes

    def _members(self, stream: IO[bytes], packed: IO[bytes]) -> Iterator[SourceFile]:
        seen: set[str] = set()
        try:
            with tarfile.open(fileobj=stream, mode="r|", bufsize=_READ_BYTES) as archive:
                for info in archive:
                    archive.members = []  # pyright: ignore[reportAttributeAccessIssue]  # which would grow for ever
                    if info.isdir():
                        continue
                    path = _checked_path(info.name, self.address)
                    if not info.isreg():
                        got = "a link" if info.issym() or info.islnk() else "a device or a pipe"
                        step = "Repack it with the files themselves: tar --dereference."
                        _refuse(self.address, f"member {excerpt(path)!r}", "a file", got, step)
                    if path in seen:
                        _refuse(self.address, "member", "every path once", f"{excerpt(path)!r} twice", "Repack it.")
                    seen.add(path)
                    consumed = self.position = packed.tell()
                    if info.offset_data + info.size > max(_ALWAYS_ALLOWED, _EXPANSION * max(consumed, _READ_BYTES)):
                        _refuse_expansion(self.address, path, info.offset_data + info.size, consumed)
                    yield SourceFile(path, info.size, self._opener(archive, info))
        except (tarfile.TarError, EOFError, OSError, lzma.LZMAError, ValueError, RuntimeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            got = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            _refuse(self.address, "archive", "a whole tar archive", got, _FETCH_AGAIN)

    def _opener(self, archive: tarfile.TarFile, info: tarfile.TarInfo) -> Callable[[], IO[bytes]]:
        def open_member() -> IO[bytes]:
            stream = archive.extractfile(info)
            assert stream is not None
            return stream

        return open_member


class _Checked(io.RawIOBase, IO[bytes]):
    """A zip member's bytes; what zipfile raises on damaged ones names the member."""

    def __init__(self, stream: IO[bytes], location: str) -> None:
        self._stream, self._location = stream, location

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; returns how much of it."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes."""
        try:
            return self._stream.read(size)
        except (zipfile.BadZipFile, EOFError, zlib.error) as error:
            _refuse(self._location, "member", "bytes as they were packed", str(error), _FETCH_AGAIN)

    def close(self) -> None:
        """Close the member."""
        self._stream.close()
        super().close()


@contextlib.contextmanager
def _unpacked(path: Path, packed: IO[bytes]) -> Iterator[IO[bytes]]:
    """The tar archive's own bytes."""
    name = path.name.lower()
    if name.endswith((".xz", ".txz")):
        with lzma.open(packed) as stream:
            yield stream
    elif name.endswith((".gz", ".tgz")):
        with _gunzip(packed) as stream:
            yield stream
    else:
        yield packed


def _gunzip(packed: IO[bytes]) -> Any:
    """Unpacks gzip, with rapidgzip on all cores where it is installed."""
    try:
        import rapidgzip
    except ImportError:
        return gzip.open(packed)
    return rapidgzip.open(packed, parallelization=os.cpu_count() or 1)


def _checked_path(name: str, location: str) -> str:
    """A member's path, which must stay inside the archive."""
    path = name.removeprefix("./")
    parts = path.split("/")
    if not path.isprintable() or "\\" in path or any(part in ("", ".", "..") for part in parts) or ":" in parts[0]:
        _refuse(location, "member", "a relative path inside the archive", ascii(name), "Do not use this archive.")
    return path


def _refuse_expansion(location: str, path: str, size: int, packed: int) -> NoReturn:
    got = f"{size} bytes of {packed} with {excerpt(path)!r}"
    _refuse(location, "archive", f"at most {_EXPANSION} times its size unpacked", got, "Do not use this archive.")


def _refuse(location: str, what: str, expected: str, got: str, step: str) -> NoReturn:
    raise IntegrityError(Problem(location, what, expected, excerpt(got), step))
