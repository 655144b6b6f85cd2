"""Reads weights that lie in files of others: never out of the folders that may be followed, and each file compared."""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.format.references import References, TensorPlace, inode_of
from ckptzoo.schema.architecture import ITEMSIZE

_READ_BYTES = 2**30
"""Linux reads at most 2**31 - 4096 bytes at once."""
_KNOWN_HEADERS = 4096
"""The number of headers that are known to fit their layouts, of each opened zoo."""
_KEPT_HEADER = 2**20
"""The number of bytes up to which the last header of a layout is kept."""
_CHANGED = "Restore the file that was linked, or link what is there now into a new zoo."


class ReferencedFiles:
    """Reads the bytes that references name; every file is compared with its reference each time it is opened.

    ``folders`` has for each source the folder on this machine, or the file that the source is; ``zoo`` is for messages.
    """

    def __init__(self, references: References, folders: Mapping[str, Path], zoo: str) -> None:
        self.references, self._folders, self._zoo = references, dict(folders), zoo
        # headers that fit their layouts, and for each layout the last one with its digest: most files have the same
        self._known = dict[tuple[int, bytes], None]()
        self._last = dict[int, tuple[bytes, bytes]]()

    def read(self, pieces: Sequence[int], offsets: Sequence[int], nbytes: int, out: memoryview) -> None:
        """Read ``nbytes`` bytes at an offset of each of these references' files into ``out``, one behind the other.

        Raises ``IntegrityError``, which names the file, where one is not what was linked.
        """
        with _Folders(self) as folders:
            for at, (piece, offset) in enumerate(zip(pieces, offsets, strict=True)):
                file, own = self._open(folders, piece), out[at * nbytes : (at + 1) * nbytes]
                try:
                    if os.preadv(file, [own], offset) < nbytes:
                        self._read(file, piece, offset, own)
                    # what was read is what was linked, if nothing was written meanwhile
                    self._require_same(os.fstat(file), piece)
                except OSError as error:  # of a disk, or of a file system whose server is gone
                    self._changed(piece, "file", "bytes that can be read", error.strerror or type(error).__name__)
                finally:
                    os.close(file)

    def blocks(self, piece: int, blocks: Iterable[Sequence[TensorPlace]]) -> Iterator[tuple[bytes, bool]]:
        """Yield the sha256 of some blocks of a reference, and whether all their numbers are finite."""
        arch, start = self.references.arch, self.references.facts[piece][1]
        with _Folders(self) as folders:
            file = self._open(folders, piece)
            try:
                for block in blocks:
                    digest, finite = hashlib.sha256(), True
                    for tensor, _, offset in block:
                        data = np.empty(arch[tensor].nbytes, np.uint8)
                        self._read(file, piece, start + offset, data.data)
                        digest.update(data.data)
                        finite = finite and _is_finite(data, arch[tensor].dtype)
                    yield digest.digest(), finite
                self._require_same(os.fstat(file), piece)
            except OSError as error:
                self._changed(piece, "file", "bytes that can be read", error.strerror or type(error).__name__)
            finally:
                os.close(file)

    def folder(self, source: str) -> Path:
        """The folder of a source on this machine; ZooError where none is to be followed."""
        if (folder := self._folders.get(source)) is None:
            step = (
                f"Where you trust the zoo and have these files, run ckptzoo link FOLDER --to {self._zoo}, "
                "or open it with follow=FOLDER."
            )
            if "://" in self._zoo:
                step = "Ask whoever made it for a copy that holds its weights: ckptzoo materialize makes one."
            what = f"folder of the files of {source!r}"
            raise ZooError(Problem(self._zoo, what, "one that was linked on this machine", "none", step))
        return folder

    def location(self, piece: int) -> str:
        """The path of a reference's file, for messages."""
        references = self.references
        folder = self._folders.get(name := references.kinds[piece][0])
        path = references.paths[piece]
        return f"{name}: {path}" if folder is None else str(folder if folder.name == path else folder / path)

    def _open(self, folders: "_Folders", piece: int) -> int:
        """Open a reference's file, which is as it was linked; the caller closes it."""
        references = self.references
        try:
            parent, name = folders.parent(references.kinds[piece][0], references.paths[piece])
            # a link is none of the files that were linked; opening a pipe would wait without O_NONBLOCK
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(name, flags, dir_fd=parent)
        except OSError as error:
            got = error.strerror or type(error).__name__
            problem = Problem(self.location(piece), "file", "the file that was linked", got, _CHANGED)
            raise IntegrityError(problem) from error
        try:
            self._require_same(os.fstat(file), piece)
            self._check_header(file, piece)
        except BaseException:
            os.close(file)
            raise
        return file

    def _require_same(self, status: os.stat_result, piece: int) -> None:
        """Raise IntegrityError where a file is not the one that was linked, by what the system says of it."""
        _, _, size, inode, mtime = self.references.facts[piece]
        if status.st_size == size and status.st_mtime_ns == mtime and inode_of(status) == inode:
            if stat.S_ISREG(status.st_mode):
                return
            self._changed(piece, "kind", "a regular file", "another")
        for what, expected, got in (
            ("size", size, status.st_size),
            ("modification time in ns", mtime, status.st_mtime_ns),
            ("inode", inode, inode_of(status)),
        ):
            if expected != got:
                self._changed(piece, what, str(expected), str(got))

    def _check_header(self, file: int, piece: int) -> None:
        """Raise IntegrityError where the header is another than when the file was linked, or contradicts its layout."""
        references = self.references
        number, (base, start, *_) = references.kinds[piece][1], references.facts[piece]
        layout, expected = references.layouts[number], references.headers[piece]
        if layout.header is None:
            header = os.pread(file, start - base, base)
        else:
            header = b"".join([os.pread(file, count, base + offset) for offset, count in layout.header])
        if self._last.get(number) == (expected, header):
            return
        if (digest := hashlib.sha256(header).digest()) != expected:
            self._changed(piece, "sha256 of the header", expected.hex(), digest.hex())
        if (number, digest) not in self._known:
            if problem := layout.check(header, references.arch):
                self._changed(piece, "header", "the tensors that were linked", problem)
            if len(self._known) >= _KNOWN_HEADERS:
                self._known.clear()
            self._known[number, digest] = None
        if len(header) <= _KEPT_HEADER:
            if len(self._last) >= _KNOWN_HEADERS:
                self._last.clear()
            self._last[number] = expected, header

    def _read(self, file: int, piece: int, offset: int, out: memoryview) -> None:
        done = 0
        while done < len(out):
            count = os.preadv(file, [out[done : done + _READ_BYTES]], offset + done)
            if not count:
                self._changed(piece, "file", f"{len(out)} bytes at {offset}", f"{done}")
            done += count

    def _changed(self, piece: int, what: str, expected: str, got: str) -> NoReturn:
        raise IntegrityError(Problem(self.location(piece), what, expected, got, _CHANGED))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}, "_last": {}}


class _Folders:
    """Folders that are open while some files are read, each opened within the one above it and never through a link.

    So no path leads out of the folder that was linked, whatever was renamed or put in the place of something since.
    """

    _MOST = 64

    def __init__(self, files: ReferencedFiles) -> None:
        self._files, self._open = files, dict[tuple[str, str], int]()

    def __enter__(self) -> "_Folders":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def parent(self, source: str, path: str) -> tuple[int, str]:
        """The descriptor of the folder that a file is in, and the file's name there."""
        folder, _, name = path.rpartition("/")
        if (known := self._open.get((source, folder))) is not None:
            return known, name
        if len(self._open) >= self._MOST:
            self._close()
        place = self._files.folder(source)
        if not place.is_dir():
            # the source is one file
            if path != place.name:
                raise OSError(2, "not a file of this source")
            place = place.parent
        # links above the folder that was linked were resolved then
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(place, flags)
        for part in folder.split("/") if folder else ():
            try:
                inner = os.open(part, flags, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = inner
        self._open[source, folder] = descriptor
        return descriptor, name


def _is_finite(data: NDArray[np.uint8], dtype: str) -> bool:
    """Whether all numbers in these bytes are finite."""
    if "float" not in dtype:
        return True
    # an exponent of ones is an infinity or NaN (IEEE 754); bfloat16 has the exponent of float32
    bits = ITEMSIZE[dtype] * 8
    mask = {16: 0x7C00 if dtype == "float16" else 0x7F80, 32: 0x7F800000, 64: 0x7FF0000000000000}[bits]
    words = data.view(f"<u{bits // 8}")
    return not bool(((words & words.dtype.type(mask)) == mask).any())
