"""Files of a source that are mapped and not read, so that each tensor is known by its place in its file."""

import errno
import io
import mmap
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.imports.sources import FileSource, FolderSource, ImportSource, SourceFile, WholeSource, open_path
from ckptzoo.hub.untrusted.formats import HEAD_BYTES
from ckptzoo.hub.untrusted.forms import form_of

FLAT = ("safetensors",)
"""Forms of files whose tensors may lie in them as they are in memory."""
_COPY = "Copy the files with ckptzoo import instead."


class MappedFile(mmap.mmap):
    """A file of a source in memory, as the system has it, so that only what is looked at is read.

    ``path`` is the file's in its source; ``status`` is what the system said of it when it was opened.
    """

    path: str
    status: os.stat_result
    address: int

    @classmethod
    def of(cls, descriptor: int, path: str) -> "MappedFile":
        """Map an open file."""
        status = os.fstat(descriptor)
        made = cls(descriptor, status.st_size, access=mmap.ACCESS_READ)
        made.path, made.status = path, status
        made.address = address_of(np.frombuffer(made, np.uint8))
        return made


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


class _MappedStream(io.BufferedReader):
    """An open file; what may be linked comes as a view of its map where all of it is read."""

    def __init__(self, descriptor: int, path: str) -> None:
        super().__init__(io.FileIO(descriptor))
        self._path, self._size = path, os.fstat(descriptor).st_size

    def read(self, size: int | None = -1, /) -> bytes:
        is_whole = size == self._size and size and not self.tell()
        if not is_whole or form_of(self.peek(HEAD_BYTES)[:HEAD_BYTES], self._path).name not in FLAT:
            return super().read(size)
        return memoryview(MappedFile.of(self.fileno(), self._path))  # pyright: ignore[reportReturnType]


def open_mapped(path: Path) -> ImportSource:
    """Open a local folder or file whose files are mapped; raise ``ZooError`` where nothing is there."""
    if path.is_dir():
        return MappedFolder(path)
    if path.is_file():
        root = Path(os.path.realpath(path))
        opener = partial(_open_inside, root.parent, root.name)
        return FileSource(WholeSource(str(path), root.name, path.stat().st_size, opener))
    return open_path(path)


class MappedFolder(FolderSource):
    """A folder, as ``FolderSource``; links are followed to files inside it."""

    def file(self, path: str) -> SourceFile:
        return SourceFile(path, self.sizes[path], self._opener(path))

    def _opener(self, path: str) -> Callable[[], IO[bytes]]:
        return partial(_open_inside, self._path, path)


def _open_inside(root: Path, path: str) -> IO[bytes]:
    """Open a regular file in a folder; one that a link leads out of the folder to is refused, by ``ZooError``."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(f"{root}/{path}", flags)
    except OSError as error:
        # the errors of a last part that is a link: Linux and macOS, FreeBSD
        if error.errno not in (errno.ELOOP, errno.EMLINK):
            raise
        real, whole = os.path.realpath(f"{root}/{path}"), os.path.realpath(root)
        if not real.startswith(f"{whole}/"):
            step = f"Link the folder that holds both. {_COPY}"
            problem = Problem(f"{root}/{path}", "file", "one in the folder that is linked", f"a link to {real}", step)
            raise ZooError(problem) from None
        path = real[len(whole) + 1 :]
        descriptor = os.open(real, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ZooError(Problem(f"{root}/{path}", "file", "a regular file", "another", "Leave it out."))
    return _MappedStream(descriptor, path)
