"""Files on other machines of which what says where tensors are is mapped, and zeros stand for all else."""

import bisect
import errno
import hashlib
import os
import struct
import tempfile
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn, cast

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.hub.imports.mapped import MappedFile
from ckptzoo.hub.untrusted.gguf_files import tensor_places
from ckptzoo.hub.untrusted.numpy_files import MAGIC, array_extent
from ckptzoo.remote.headers import MAX_MEMBERS, TorchOutline
from ckptzoo.remote.referenced import COPY, HEAD_BYTES, MAX_READ, RangeFile, RecordedFile, RemoteReferences
from ckptzoo.schema.layout import Span

READ_STORAGE = 256
"""Bytes of a storage of torch.save up to which it is fetched: it may hold a fact about the network."""
_READ_ARRAY = 4096
"""Bytes of an array of numpy up to which it is fetched, with its header; of larger ones the header is in the first."""
_NAMED = 16
"""Bytes that mark a tensor which was not fetched as one that is equal to no other."""
_LOCAL, _LOCAL_BYTES = b"PK\x03\x04", 30
"""How the header of a zip member begins, and its bytes without the name (APPNOTE.TXT of PKWARE, 4.3.7)."""


class RemoteMap(MappedFile):
    """A file on another machine, of which parts are in memory; ``recorded`` is what is recorded of it.

    What is not there is fetched when it is read.
    """

    recorded: RecordedFile
    is_remote = True
    _files: RemoteReferences
    _there: list[int]
    _lock: threading.Lock

    @classmethod
    def made(cls, files: RemoteReferences, opened: RangeFile, path: str) -> "RemoteMap":
        """Map a file with what was read of it."""
        recorded = opened.recorded
        try:
            descriptor, name = tempfile.mkstemp()
            try:
                Path(name).unlink()
                os.truncate(descriptor, recorded.size)
                made = cast(RemoteMap, cls.of(descriptor, path, recorded.address))
            finally:
                os.close(descriptor)
        except OSError as error:  # no more descriptors, or a file system without files of this size
            _no_room(recorded.address, error)
        # the first byte of each part that is there, and the one behind it, in order
        made.recorded, made._files, made._there, made._lock = recorded, files, [], threading.Lock()
        for start, data in opened.windows:
            made.put(start, data)
        return made

    def __getitem__(self, key: slice) -> bytes:
        """Bytes of the file, which are fetched where they are not there."""
        start, stop, _ = key.indices(len(self))
        self.fetch([(start, stop)])
        return super().__getitem__(key)

    def put(self, start: int, data: bytes) -> None:
        """Write bytes of the file that were fetched, or that are taken for them."""
        self._write(start, data)
        stop = start + len(data)
        with self._lock:
            low, high = bisect.bisect_left(self._there, start), bisect.bisect_right(self._there, stop)
            # an odd place is within a part that is there, or at its end
            self._there[low:high] = [start] * (low % 2 == 0) + [stop] * (high % 2 == 0)

    def _write(self, start: int, data: bytes) -> None:
        remaining = memoryview(data)
        try:
            while remaining:
                written = os.pwrite(self._file, remaining, start)  # may write less than it was given
                remaining, start = remaining[written:], start + written
        except OSError as error:
            _no_room(self.recorded.address, error)

    def mark(self, start: int, count: int) -> None:
        """Let a tensor that was not fetched begin as no other one does, for a process that cannot fetch it."""
        if not self.has(start, start + count):
            name = hashlib.sha256(f"{self.recorded.address} {start}".encode()).digest()
            self._write(start, name[: min(_NAMED, count)])

    def has(self, start: int, stop: int) -> bool:
        """Whether a part is there."""
        with self._lock:
            place = bisect.bisect_right(self._there, start)
            return place % 2 == 1 and stop <= self._there[place]

    def fetch(self, spans: Sequence[tuple[int, int]]) -> None:
        missing = [
            Span(self.recorded.address, start, stop, b"")
            for start, stop in dict.fromkeys(spans)
            if start < stop and not self.has(start, stop)
        ]
        for place, data in self._files.as_ready(missing):
            self.put(missing[place].start, bytes(data))

    def piece(self, start: int, stop: int) -> bytes:
        data = self[start:stop]
        # reading finds what says where tensors are in the cache
        self._files.keep(self.recorded.address, start, data)
        return data

    def require_same(self) -> None:
        """Each answer of its server was compared with what is recorded."""

    def reopen(self) -> int:
        return os.dup(self._file)


def _no_room(address: str, error: OSError) -> NoReturn:
    got = error.strerror or type(error).__name__
    step = "Make room in the folder for temporary files, or name another one in TMPDIR, and repeat the call."
    if error.errno in (errno.EMFILE, errno.ENFILE):
        step = "Raise the limit of open files (ulimit -n), and repeat the call."
    raise ZooError(Problem(address, "temporary file", "one that can be made and written", got, step)) from error


def put_torch(file: RemoteMap, outline: TorchOutline) -> None:
    """Fetch what is no weights, and write headers of members that were not fetched, as their places say."""
    with zipfile.ZipFile(file.stream(0, len(file))) as archive:
        infos = archive.infolist()
    folder = next(info.filename for info in infos if info.filename.endswith("/data.pkl")).removesuffix("data.pkl")
    members = [(info, *outline.members[info.filename.removeprefix(folder)]) for info in infos]
    large = {info.filename for info, _, count in members if count > READ_STORAGE and "/data/" in info.filename}
    others = [(info.header_offset, start + count) for info, start, count in members if info.filename not in large]
    _fetch(file, others)
    for info, start, count in members:
        name = info.orig_filename.encode()
        between = start - info.header_offset - _LOCAL_BYTES - len(name)
        header = _LOCAL.ljust(_LOCAL_BYTES - 4, b"\0") + struct.pack("<HH", len(name), between) + name
        if not file.has(info.header_offset, start):
            file.put(info.header_offset, header.ljust(start - info.header_offset, b"\0"))
        file.mark(start, count)


def _put_npz(files: RemoteReferences, opened: RangeFile, path: str) -> RemoteMap:
    """Map an archive of arrays: its directory, the headers of its arrays, and those that are small or no numbers."""
    try:
        with zipfile.ZipFile(cast(IO[bytes], opened)) as archive:
            infos, behind = sorted(archive.infolist(), key=lambda info: info.header_offset), archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        _refuse(opened.recorded, "a whole archive of numpy.savez", f"{type(error).__name__}: {error}"[:160])
    packed = next((info.filename for info in infos if info.compress_type != zipfile.ZIP_STORED), None)
    if packed is not None or len(infos) > MAX_MEMBERS:
        got = f"{packed[:80]!r}, which is packed" if packed is not None else f"{len(infos)} arrays"
        _refuse(opened.recorded, f"at most {MAX_MEMBERS} arrays that are not packed", got)
    file, stops = RemoteMap.made(files, opened, path), [*(info.header_offset for info in infos[1:]), behind]
    begins = [info.header_offset for info in infos]
    _fetch(file, [(begin, min(stop, begin + _READ_ARRAY)) for begin, stop in zip(begins, stops, strict=True)])
    others = list[tuple[int, int]]()
    for begin, stop in zip(begins, stops, strict=True):
        if stop - begin <= _READ_ARRAY:
            continue
        head = file[begin : begin + _READ_ARRAY]
        start = _LOCAL_BYTES + sum(struct.unpack_from("<HH", head, _LOCAL_BYTES - 4))
        if (extent := array_extent(head[start:])) is None:
            others.append((begin, stop))
        else:
            file.mark(begin + start + extent[0], extent[1])
    _fetch(file, others)
    return file


def _put_npy(files: RemoteReferences, opened: RangeFile, path: str) -> RemoteMap:
    """Map a file of arrays behind one another: their headers; from one that is no numbers on all of it."""
    file = RemoteMap.made(files, opened, path)
    head = file[: min(HEAD_BYTES, len(file))]
    at, count = 0 if head.startswith(MAGIC) else head.find(b"\n" + MAGIC) + 1, 0
    while at < len(file):
        extent, count = array_extent(file[at : min(at + _READ_ARRAY, len(file))]), count + 1
        if extent is None or count > MAX_MEMBERS:
            _fetch(file, [(at, len(file))])
            break
        file.mark(at + extent[0], extent[1])
        at += sum(extent)
    return file


def _put_gguf(files: RemoteReferences, opened: RangeFile, path: str) -> RemoteMap:
    """Map a file of ggml: its header, whose end is known once it was read."""
    size, places = HEAD_BYTES, None
    while places is None:
        opened.seek(0)
        # which bounds what is read
        places = tensor_places(opened.read(min(size, opened.recorded.size)))
        if size >= opened.recorded.size:
            break
        size *= 2
    file = RemoteMap.made(files, opened, path)
    for start, nbytes in places or ():
        if start + nbytes <= len(file):
            file.mark(start, nbytes)
    return file


PUT: Mapping[str, Callable[[RemoteReferences, RangeFile, str], RemoteMap]] = {
    "npz": _put_npz,
    "npy": _put_npy,
    "gguf": _put_gguf,
}
"""The functions that map a file, by the name of its form."""


def _fetch(file: RemoteMap, spans: Sequence[tuple[int, int]]) -> None:
    """Fetch parts of a file, of a bounded number of bytes."""
    if (nbytes := sum(stop - start for start, stop in spans)) > MAX_READ:
        _refuse(file.recorded, f"at most {MAX_READ} bytes beside its weights", f"{nbytes}")
    file.fetch(spans)


def _refuse(file: RecordedFile, expected: str, got: str) -> NoReturn:
    raise IntegrityError(Problem(file.address, "file", expected, got, COPY))
