"""Files of a source that are mapped and not read, so that each tensor is known by its place in its file.

A page of a map whose file has become shorter ends the process (mmap(2), SIGBUS). So what is looked at is read, by
``MappedFile`` and ``loaded``, and the map gives places alone.
"""

import bisect
import errno
import io
import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.hub.imports.sources import (
    FileSource,
    FolderSource,
    ImportSource,
    SourceFile,
    TarSource,
    WholeSource,
    open_path,
)
from ckptzoo.hub.untrusted.formats import HEAD_BYTES, is_tar
from ckptzoo.hub.untrusted.forms import form_of

FLAT = ("safetensors", "torch", "npz", "npy", "gguf")
"""Forms of files whose tensors may lie in them as they are in memory."""
COMPARED_BYTES = 2**20
"""Bytes of a tensor on another machine up to which it is compared with others of its file."""
HEAD_NUMBERS = 16
"""Bytes of the first two numbers of a tensor, by which most are told from others."""
_COPY = "Copy the files with ckptzoo import instead."


class MappedFile(mmap.mmap):
    """A file of a source in memory, as the system has it, so that only what is looked at is read.

    ``path`` is the file's in its source, ``place`` on this machine; ``status`` is what the system said of it when it
    was opened; ``address`` is where its first byte is in memory. ``forms`` has the form and the size of what is read as
    a file, by its first byte: of the file itself, or of members of an archive.
    """

    path: str
    place: str
    status: os.stat_result
    address: int
    forms: dict[int, tuple[str, int]]
    _bases: list[int]
    _file = -1
    is_remote = False
    """Whether numbers are fetched from another machine when they are looked at."""

    @classmethod
    def of(cls, descriptor: int, path: str, place: str) -> "MappedFile":
        """Map an open file."""
        status = os.fstat(descriptor)
        made = cls(descriptor, status.st_size, access=mmap.ACCESS_READ)
        made.path, made.place, made.status, made.forms, made._bases = path, place, status, {}, []
        made._file = os.dup(descriptor)
        made.address = address_of(np.frombuffer(made, np.uint8))
        return made

    def __del__(self) -> None:
        # what mmap does for its own descriptor
        if self._file >= 0:
            os.close(self._file)

    def __getitem__(self, key: slice) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Bytes of the file, which are read; raise ``IntegrityError`` where it ends before."""
        start, stop, _ = key.indices(len(self))
        data = os.pread(self._file, max(0, stop - start), start)
        while len(data) < stop - start:
            # one call reads at most 2**31 - 4096 bytes (read(2))
            piece = os.pread(self._file, stop - start - len(data), start + len(data))
            if not piece:
                self._refuse_changed()
            data += piece
        return data

    def require_same(self) -> None:
        """Raise ``IntegrityError`` where something was written to the file since it was opened."""
        self._compare(os.fstat(self._file))

    def offset_of(self, view: memoryview) -> int:
        """The first byte of a view of the file."""
        return address_of(np.frombuffer(view, np.uint8)) - self.address

    def member_at(self, offset: int) -> int:
        """The first byte of what is read as a file and has a byte of this file."""
        return self._bases[bisect.bisect_right(self._bases, offset) - 1]

    def stream(self, start: int, size: int) -> IO[bytes]:
        """A stream of a part of the file."""
        return io.BufferedReader(_Part(self, start, size))

    def view(self, start: int, size: int, form: str) -> memoryview:
        """A view of the bytes that are read as a file of a form."""
        if start not in self.forms:
            bisect.insort(self._bases, start)
        self.forms[start] = form, size
        return memoryview(self)[start : start + size]

    def fetch(self, spans: Sequence[tuple[int, int]]) -> None:
        """Fetch parts of the file, given by their first bytes and those behind them; all of this one are there."""

    def piece(self, start: int, stop: int) -> bytes:
        """Bytes of the file that say what is where in it."""
        return self[start:stop]

    def reopen(self) -> int:
        """Open the file again, for another process; raise ``IntegrityError`` where another one is there now."""
        descriptor = os.open(self.place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._compare(os.fstat(descriptor))
        except IntegrityError:
            os.close(descriptor)
            raise
        return descriptor

    def _compare(self, now: os.stat_result) -> None:
        facts = ("st_dev", "st_ino", "st_size", "st_mtime_ns")
        if any(getattr(now, fact) != getattr(self.status, fact) for fact in facts):
            self._refuse_changed()

    def _refuse_changed(self) -> NoReturn:
        expected, step = "the same file all the time", "Link it when nothing is written to it."
        raise IntegrityError(Problem(self.place, "file", expected, "one that changed while it was read", step))


def address_of(array: NDArray[Any]) -> int:
    """Where the first byte of an array is in memory."""
    return array.__array_interface__["data"][0]


def mapped_file(array: NDArray[Any]) -> MappedFile | None:
    """The file that an array is a view of; None for one that was computed or read."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return base if isinstance(base, MappedFile) else None


def is_compared(array: NDArray[Any]) -> bool:
    """Whether an array is compared with others of its file: not a large one on another machine."""
    file = mapped_file(array)
    return file is None or not file.is_remote or array.nbytes <= COMPARED_BYTES


def fetch_heads(arrays: Iterable[NDArray[Any]]) -> None:
    """Fetch the first numbers of arrays in files on other machines, which are looked at next, by few requests."""
    spans = dict[int, tuple[MappedFile, list[tuple[int, int]]]]()
    for array in arrays:
        if (file := mapped_file(array)) is not None and file.is_remote:
            start = address_of(array) - file.address
            spans.setdefault(id(file), (file, []))[1].append((start, start + min(HEAD_NUMBERS, array.nbytes)))
    for file, wanted in spans.values():
        file.fetch(wanted)


def loaded(array: NDArray[Any]) -> NDArray[Any]:
    """The numbers of an array, which are read where it is a view of a mapped file."""
    file = mapped_file(array)
    if file is None or not array.size:
        return array
    if not array.flags.c_contiguous:
        file.require_same()
        return array
    start = address_of(array) - file.address
    return np.frombuffer(file[start : start + array.nbytes], array.dtype).reshape(array.shape)


class _Part(io.RawIOBase):
    """A stream of a part of a mapped file, which is read."""

    def __init__(self, file: MappedFile, start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        first = min(self._at, self._size)
        piece = self._file[self._start + first : self._start + min(first + len(buffer), self._size)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class MappedStream(io.BufferedReader):
    """A file that is open, or a member of a tar archive; what may be linked comes as a view of its map, read whole.

    ``file`` gives the map of the file, in which it has ``size`` bytes from ``start``.
    """

    def __init__(self, raw: io.RawIOBase, file: Callable[[], MappedFile], path: str, start: int, size: int) -> None:
        super().__init__(raw)
        self._file, self._path, self._start, self._size = file, path, start, size

    def read(self, size: int | None = -1, /) -> bytes:
        if size != self._size or not size or self.tell():
            return super().read(size)
        form = form_of(self.peek(HEAD_BYTES)[:HEAD_BYTES], self._path).name
        if form not in FLAT:
            return super().read(size)
        return self._file().view(self._start, size, form)  # pyright: ignore[reportReturnType]

    def member(self, start: int, size: int, path: str) -> IO[bytes]:
        """Return the stream of a member of this archive."""
        file = self._file()
        return MappedStream(_Part(file, start, size), lambda: file, path, start, size)


def open_mapped(path: Path) -> ImportSource:
    """Open a local folder, tar archive or file that is mapped; raise ``ZooError`` where nothing is there."""
    if path.is_dir():
        return MappedFolder(path)
    if not path.is_file():
        return open_path(path)
    root = Path(os.path.realpath(path))
    blob = WholeSource(str(path), root.name, path.stat().st_size, partial(_open_inside, root.parent, root.name))
    with blob.open() as stream:
        is_archive = is_tar(stream.read(HEAD_BYTES))
    return MappedTar(blob) if is_archive else FileSource(blob)


class MappedTar(TarSource):
    """A tar archive that is not packed, whose members are mapped."""

    def files(self) -> Iterator[SourceFile]:
        with self._blob.open() as whole:
            assert isinstance(whole, MappedStream)
            for file in super().files():
                assert file.start is not None
                yield replace(file, open=partial(whole.member, file.start, file.size, file.path))


class MappedFolder(FolderSource):
    """A folder, as ``FolderSource``; links are followed to files inside it."""

    def file(self, path: str) -> SourceFile:
        return SourceFile(path, self.sizes[path], self._opener(path))

    def _opener(self, path: str) -> Callable[[], IO[bytes]]:
        return partial(_open_inside, self._path, path)


def _open_inside(root: Path, path: str) -> IO[bytes]:
    """Open a regular file in a folder; one that a link leads out of the folder to is refused, by ``ZooError``."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    place = f"{root}/{path}"
    try:
        descriptor = os.open(place, flags)
    except OSError as error:
        # the errors of a last part that is a link: Linux and macOS, FreeBSD
        if error.errno not in (errno.ELOOP, errno.EMLINK):
            raise
        real, whole = os.path.realpath(f"{root}/{path}"), os.path.realpath(root)
        if not real.startswith(f"{whole}/"):
            step = f"Link the folder that holds both. {_COPY}"
            problem = Problem(f"{root}/{path}", "file", "one in the folder that is linked", f"a link to {real}", step)
            raise ZooError(problem) from None
        path, place = real[len(whole) + 1 :], real
        descriptor = os.open(real, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ZooError(Problem(f"{root}/{path}", "file", "a regular file", "another", "Leave it out."))
    raw, made = io.FileIO(descriptor), list[MappedFile]()

    def mapped() -> MappedFile:
        if not made:
            made.append(MappedFile.of(descriptor, path, place))
        return made[0]

    return MappedStream(raw, mapped, path, 0, os.fstat(descriptor).st_size)
