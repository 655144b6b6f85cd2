"""Reads weights that lie in files of others, and compares each file with what was linked.

It reads nothing outside of the folders on this machine that may be followed, and asks no servers but those that may be.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ckptzoo.environment import cache_limit
from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.format.references import SAFETENSORS, References, TensorPlace, inode_of
from ckptzoo.format.sources import RangeReader, Servers
from ckptzoo.schema.architecture import ITEMSIZE
from ckptzoo.schema.layout import Span

_READ_BYTES = 2**30
"""Linux reads at most 2**31 - 4096 bytes at once."""
_KNOWN_HEADERS = 4096
"""The number of headers that are known to fit their layouts, of each opened zoo."""
_KEPT_HEADER = 2**20
"""The number of bytes up to which the last header of a layout is kept."""
_CHANGED = (
    "Restore the file that was linked, with its time (cp -p); or run ckptzoo link of its source again, which takes a "
    "file whose weights have the digests that ckptzoo verify recorded; or leave its checkpoints out, by "
    "where(\"id != '...'\"), or link what is there now into a new zoo."
)
_PREFETCHED = 128 * 2**20
"""Bytes up to which what is read next, or headers that are compared, are fetched at once."""
_HEADERS_AT_ONCE = 1024
"""Files on other machines whose headers are compared together."""


class ReferencedFiles:
    """Reads the bytes that references name; every file is compared with its reference each time it is opened.

    ``folders`` has for each source the folder on this machine, or the file that the source is; ``servers`` say how
    those on other machines are read; ``zoo`` is for messages. Sources that are in neither are not followed.
    ``accepted`` are the inode and time of files that were found to hold what was linked, by source and path.
    """

    def __init__(
        self,
        references: References,
        folders: Mapping[str, Path],
        zoo: str,
        servers: Mapping[str, Servers] | None = None,
        accepted: Mapping[tuple[str, str], tuple[int, int]] | None = None,
    ) -> None:
        self.references, self._folders, self._zoo = references, dict(folders), zoo
        self._servers, self._accepted = dict(servers or {}), dict(accepted or {})
        self._readers = dict[Servers, RangeReader]()
        self._added, self._checked = set[int](), set[int]()
        # headers that fit their layouts, and for each layout the last one with its digest: most files have the same
        self._known = dict[tuple[int, bytes], None]()
        self._last = dict[int, tuple[bytes, bytes]]()

    def read(self, pieces: Sequence[int], offsets: Sequence[int], nbytes: int, out: memoryview) -> None:
        """Read ``nbytes`` bytes at an offset of each of these references' files into ``out``, one behind the other.

        Raises ``IntegrityError``, which names the file, where one is not what was linked.
        """
        is_remote = self.references.is_remote[np.asarray(pieces, np.int64)]
        if is_remote.any():
            self._read_remote(pieces, offsets, nbytes, out, np.flatnonzero(is_remote).tolist())
        local = range(len(pieces)) if not is_remote.any() else np.flatnonzero(~is_remote).tolist()
        with _Folders(self) as folders:
            for at in local:
                piece, offset = pieces[at], offsets[at]
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
        if self.references.is_remote[piece]:
            yield from self._remote_blocks(piece, list(blocks))
            return
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

    def prefetch(self, wanted: Iterable[tuple[int, int, int]]) -> None:
        """Fetch bytes of files on other machines that are read next into the cache, by as few requests as possible.

        ``wanted`` has references, with first bytes in their files and numbers of bytes. Nothing is fetched where
        these are more than ``_PREFETCHED``, or than the cache holds for long enough.
        """
        places = [item for item in wanted if item[2] and self.references.is_remote[item[0]]]
        if not places or sum(nbytes for *_, nbytes in places) > min(_PREFETCHED, cache_limit() // 2):
            return
        self._check_headers(sorted({piece for piece, *_ in places}))
        spans = dict[Servers, dict[Span, None]]()
        for piece, offset, nbytes in places:
            span = Span(self.references.remote_files[piece].address, offset, offset + nbytes, b"")
            spans.setdefault(self._servers_of(self.references.kinds[piece][0]), {})[span] = None
        for servers, unique in spans.items():
            for _ in self._readers[servers].as_ready(list(unique)):
                pass

    def prefetch_spans(self, wanted: Iterable[Span]) -> None:
        """Fetch as ``prefetch``, where spans have the addresses of files."""
        self.prefetch((self._by_address[span.name], span.start, span.stop - span.start) for span in wanted)

    @cached_property
    def _by_address(self) -> dict[str, int]:
        """A reference to each file on another machine."""
        remote = np.flatnonzero(self.references.is_remote).tolist()
        return {self.references.remote_files[piece].address: piece for piece in remote}

    def require_followed(self) -> None:
        """Raise ZooError where a source is not to be followed, or an address is one that no reference may have."""
        references = self.references
        remote = set(references.source_of[references.is_remote].tolist())
        for number, source in enumerate(references.sources):
            if number in remote:
                self._servers_of(source)
            else:
                self.folder(source)
        for piece in np.flatnonzero(references.is_remote).tolist():
            self._reader(piece)

    def _read_remote(
        self, pieces: Sequence[int], offsets: Sequence[int], nbytes: int, out: memoryview, places: Sequence[int]
    ) -> None:
        """Read from files on other machines, as ``read``, at these places of ``pieces``."""
        wanted = dict[Servers, dict[Span, list[int]]]()
        for at in places:
            piece, offset = pieces[at], offsets[at]
            self._reader(piece)
            span = Span(self.references.remote_files[piece].address, offset, offset + nbytes, b"")
            servers = self._servers_of(self.references.kinds[piece][0])
            # one file may be of several checkpoints
            wanted.setdefault(servers, {}).setdefault(span, []).append(at)
        # headers are compared while the bytes come, and before any of them is handed out
        with ThreadPoolExecutor(1, "ckptzoo-headers") as pool:
            compared = pool.submit(self._check_headers, sorted({pieces[at] for at in places}))
            for servers, spans in wanted.items():
                listed = list(spans.values())
                for place, data in self._readers[servers].as_ready(list(spans)):
                    for at in listed[place]:
                        out[at * nbytes : (at + 1) * nbytes] = data
                    if compared.done():
                        compared.result()
            compared.result()

    def _remote_blocks(self, piece: int, blocks: Sequence[Sequence[TensorPlace]]) -> Iterator[tuple[bytes, bool]]:
        arch, start = self.references.arch, self.references.facts[piece][1]
        address, reader = self.references.remote_files[piece].address, self._reader(piece)
        self._check_headers([piece])
        # by tensors, as they are read later, so that each comes once
        places = [[(start + place.offset, arch[place.tensor]) for place in block] for block in blocks]
        spans = [Span(address, at, at + own.nbytes, b"") for block in places for at, own in block if own.nbytes]
        data = iter(reader.in_order(spans))
        for block in places:
            digest, finite = hashlib.sha256(), True
            for _, tensor in block:
                if tensor.nbytes:
                    own = np.frombuffer(next(data), np.uint8)
                    digest.update(own.data)
                    finite = finite and _is_finite(own, tensor.dtype)
            yield digest.digest(), finite

    def _check_headers(self, pieces: Sequence[int]) -> None:
        """Compare headers of files on other machines that were not compared yet by this object."""
        unchecked = [piece for piece in pieces if piece not in self._checked]
        for some in self._header_batches(unchecked):
            wanted = dict[Servers, list[tuple[int, Span]]]()
            for piece in some:
                self._reader(piece)
                servers = self._servers_of(self.references.kinds[piece][0])
                wanted.setdefault(servers, []).extend((piece, span) for span in self._header_spans(piece))
            headers = dict.fromkeys(some, b"")
            for servers, spans in wanted.items():
                unique = dict.fromkeys(span for _, span in spans)
                read = dict(zip(unique, map(bytes, self._readers[servers].in_order(list(unique))), strict=True))
                for piece, span in spans:
                    headers[piece] += read[span]
            for piece, header in headers.items():
                self._require_header(piece, header)
            self._checked.update(some)

    def _header_batches(self, pieces: Sequence[int]) -> Iterator[list[int]]:
        """Yield references whose headers are in memory together: ``_PREFETCHED`` bytes of them, or a larger one."""
        batch, total = list[int](), 0
        for piece in pieces:
            nbytes = sum(span.stop - span.start for span in self._header_spans(piece))
            if batch and (total + nbytes > _PREFETCHED or len(batch) == _HEADERS_AT_ONCE):
                yield batch
                batch, total = [], 0
            batch.append(piece)
            total += nbytes
        if batch:
            yield batch

    def _header_spans(self, piece: int) -> list[Span]:
        references = self.references
        layout, (base, start, *_) = references.layouts[references.kinds[piece][1]], references.facts[piece]
        address = references.remote_files[piece].address
        pieces = ((0, start - base),) if layout.header is None else layout.header
        return [Span(address, base + at, base + at + count, b"") for at, count in pieces if count]

    def _servers_of(self, source: str) -> Servers:
        """The servers of a source on other machines; ZooError where it is not to be followed."""
        if (servers := self._servers.get(source)) is None:
            step = (
                "Where you trust the zoo, open it with follow=True, or copy it by ckptzoo materialize ZOO --to NEWZOO "
                "--follow public: public servers are asked by https, and the hub with your token. Or name servers, "
                "follow='http://host'."
            )
            what = f"servers of the files of {source!r}"
            raise ZooError(Problem(self._zoo, what, "a source that was linked on this machine", "none", step))
        return servers

    def _reader(self, piece: int) -> RangeReader:
        """The reader of a reference's file, which it knows from then on."""
        references = self.references
        source, number = references.kinds[piece]
        servers, layout = self._servers_of(source), references.layouts[number]
        reader = self._readers.get(servers)
        if reader is None:
            # of two threads one makes the reader of both
            reader = self._readers.setdefault(servers, servers.reader(self._zoo))
        if piece not in self._added:
            # which refuses an address that must not be shown
            reader.add([references.remote_files[piece]])
            self._added.add(piece)
        is_whole = layout.header is None and references.facts[piece][0] == 0
        if not servers.is_linked and not (layout.form == SAFETENSORS and is_whole):
            # of other forms, and of parts of files, nothing tells that the bytes are numbers of such a file
            step = "Link the file yourself, or ask whoever made the zoo for a copy that holds its weights."
            raise ZooError(
                Problem(
                    self.location(piece),
                    "file",
                    "safetensors, in a zoo of others",
                    layout.form if layout.form != SAFETENSORS else "a part of a file",
                    step,
                )
            )
        return reader

    def folder(self, source: str) -> Path:
        """The folder of a source on this machine; ZooError where none is to be followed."""
        if (folder := self._folders.get(source)) is None:
            step = (
                f"Where you trust the zoo and have these files, run ckptzoo link FOLDER --to {quote(self._zoo)}, "
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
        if references.is_remote[piece]:
            return references.remote_files[piece].address
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
        if not stat.S_ISREG(status.st_mode):
            self._changed(piece, "kind", "a regular file", "another")
        if self.references.is_same(piece, status):
            return
        _, _, size, _, mtime = self.references.facts[piece]
        if status.st_size != size:
            self._changed(piece, "size", f"{size} bytes, as when it was linked", f"{status.st_size}")
        place = self.references.kinds[piece][0], self.references.paths[piece]
        if self._accepted.get(place) == (inode_of(status), status.st_mtime_ns):
            return
        if status.st_mtime_ns != mtime:
            expected = f"{_moment(mtime)}, as when it was linked"
            self._changed(piece, "modification time", expected, f"{_moment(status.st_mtime_ns)}: it was changed since")
        got = "another inode, and a time in whole seconds or of another file, which does not tell"
        self._changed(piece, "file", "the one that was linked", got)

    def _check_header(self, file: int, piece: int) -> None:
        """Raise IntegrityError where the header is another than when the file was linked, or contradicts its layout."""
        references = self.references
        number, (base, start, *_) = references.kinds[piece][1], references.facts[piece]
        layout = references.layouts[number]
        if layout.header is None:
            header = os.pread(file, start - base, base)
        else:
            header = b"".join([os.pread(file, count, base + offset) for offset, count in layout.header])
        self._require_header(piece, header)

    def _require_header(self, piece: int, header: bytes) -> None:
        """Raise IntegrityError where this is not the header of a reference's file, or contradicts its layout."""
        references = self.references
        number, expected = references.kinds[piece][1], references.headers[piece]
        layout = references.layouts[number]
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
        return {**self.__dict__, "_known": {}, "_last": {}, "_readers": {}, "_added": set(), "_checked": set()}


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
                raise OSError(2, "not a file of this source" if place.exists() else f"no folder {str(place)!r}")
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


def _moment(nanoseconds: int) -> str:
    """A time for messages."""
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"


def _is_finite(data: NDArray[np.uint8], dtype: str) -> bool:
    """Whether all numbers in these bytes are finite."""
    if "float" not in dtype:
        return True
    # an exponent of ones is an infinity or NaN (IEEE 754); bfloat16 has the exponent of float32
    bits = ITEMSIZE[dtype] * 8
    mask = {16: 0x7C00 if dtype == "float16" else 0x7F80, 32: 0x7F800000, 64: 0x7FF0000000000000}[bits]
    words = data.view(f"<u{bits // 8}")
    return not bool(((words & words.dtype.type(mask)) == mask).any())
