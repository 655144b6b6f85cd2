"""The checkpoints of folders, archives and repositories for an audit: headers, and ranges of a few tensors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedReader, RawIOBase
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.audits.places import Place, safetensors_places, torch_places
from ckptzoo.hub.audits.steps import ROUNDS, Layout, Piece, PublishedStep, digest_of, layout_of, pieces_of
from ckptzoo.hub.imports.adapters import Adapter, FoundCheckpoints, Options
from ckptzoo.hub.imports.adapters.adapter import SUFFIXES, Broken, FoundArrays
from ckptzoo.hub.imports.choice import AUTO, chosen_adapter
from ckptzoo.hub.imports.opened import OpenedSource
from ckptzoo.hub.imports.reading import Reader
from ckptzoo.hub.imports.sources import ImportSource, SourceFile
from ckptzoo.hub.untrusted import Limits
from ckptzoo.hub.untrusted.process import ReadingProcess
from ckptzoo.hub.untrusted.results import Fact
from ckptzoo.hub.untrusted.runs import run_of, step_of
from ckptzoo.text import Progress

_HEAD, _LEAST_HEAD, _HEAD_SHARE = 2**16, 2**13, 512
"""First bytes of a file that are fetched at once: one part in so many, within these bounds."""
_WORKERS = 16
_SMALL = 2**20
"""Bytes of a file on another machine that is read whole where its form has no header that says where tensors are."""
_SIDE = 2**15
"""Bytes of a file of JSON on another machine that is read for what it says about a checkpoint."""
_PIECE = 2**24


@dataclass(frozen=True)
class Found:
    """The steps of a source, its files that cannot be read, and those that were not looked into, each with a reason."""

    steps: list[PublishedStep]
    unreadable: dict[str, str]
    passed: dict[str, str]


class Transfer:
    """Counts the bytes of files that were read, by several threads; of each file at most as many as it has.

    ``stored`` are the bytes of files that hold checkpoints.
    """

    def __init__(self) -> None:
        self.stored = 0
        self._read = dict[str, int]()
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        return sum(self._read.values())

    def counted(self, file: SourceFile, fetch: Callable[[int, int], bytes], start: int, stop: int) -> bytes:
        data = fetch(start, stop)
        with self._lock:
            # the head of a small file is read again with its numbers
            self._read[file.path] = min(file.size, self._read.get(file.path, 0) + len(data))
        return data


def steps_of(
    source: ImportSource,
    transfer: Transfer,
    *,
    include: Sequence[str],
    exclude: Sequence[str],
    everything: bool,
    progress: Progress | None,
) -> Found:
    """Return the steps of a source; of files whose form says where tensors are, headers alone are read."""
    with ThreadPoolExecutor(_WORKERS, "ckptzoo-audit") as pool, ReadingProcess(Limits()) as process:
        sparse = _SparseSource(source, transfer, pool)
        opened = OpenedSource(sparse, include, exclude)
        adapter = chosen_adapter(opened, AUTO)
        reading = _StepReader(sparse, opened, adapter, process, everything)
        for entry in adapter.checkpoints(opened, Options()):
            if progress is not None:
                progress(min(opened.position, opened.nbytes), opened.nbytes)
            reading.take(entry)
        for path, error in opened.broken:
            reading.found.unreadable[path] = str(error)
        transfer.stored += sum(reading.sizes)
        return reading.found


class _SparseSource(ImportSource):
    """A source whose files are read by ranges where that is possible, their first bytes once, many files at a time."""

    def __init__(self, source: ImportSource, transfer: Transfer, pool: ThreadPoolExecutor) -> None:
        super().__init__(source.address, source.name, source.nbytes)
        self.name, self.is_local, self.in_order = source.name, source.is_local, source.in_order
        self.is_reopened, self.repository, self.dangling = source.is_reopened, source.repository, source.dangling
        self._source, self._transfer, self._pool = source, transfer, pool
        self.by_path = dict[str, SourceFile]()
        self._heads = dict[str, Future[bytes]]()

    def files(self) -> Iterator[SourceFile]:
        for file in self._source.files():
            self.position = self._source.position
            if file.fetch is None:
                yield file
            elif not self.is_local and file.name.endswith(".json") and file.size > _SIDE:
                continue
            else:
                yield self._sparse(file)
        self.position = self._source.position

    def repository_of(self, path: str) -> str:
        return self._source.repository_of(path)

    def _sparse(self, file: SourceFile) -> SourceFile:
        if file.path not in self.by_path:
            assert file.fetch is not None
            fetch = partial(self._transfer.counted, file, file.fetch)
            if not self.is_local and (file.name.lower().endswith(SUFFIXES) or file.name.endswith(".json")):
                self._ask(file, fetch)
            known = replace(file, fetch=fetch)
            self.by_path[file.path] = replace(known, open=lambda: BufferedReader(_Ranges(known, self.head(known))))
        return self.by_path[file.path]

    def head(self, file: SourceFile) -> bytes:
        """Return the first bytes of a file."""
        if file.path not in self._heads:
            assert file.fetch is not None
            self._ask(file, file.fetch)
        return self._heads[file.path].result()

    def _ask(self, file: SourceFile, fetch: Callable[[int, int], bytes]) -> None:
        # settings of a run are the same file at every step
        key = f"{file.name}:{file.digest}" if file.digest and file.name.endswith(".json") else file.path
        if key not in self._heads:
            size = min(file.size, max(min(_HEAD, file.size // _HEAD_SHARE), _LEAST_HEAD))
            size = file.size if file.size <= _SIDE else size
            self._heads[key] = self._pool.submit(_first, fetch, size)
        self._heads[file.path] = self._heads[key]


def _first(fetch: Callable[[int, int], bytes], size: int) -> bytes:
    """Return the first bytes of a file; of safetensors the header alone, because heads of all files are kept."""
    data = fetch(0, size)
    return data[: 8 + int.from_bytes(data[:8], "little")] if data[8:9] == b"{" else data


class _Ranges(RawIOBase):
    """A file whose first bytes are known; others are fetched as they are read."""

    def __init__(self, file: SourceFile, head: bytes) -> None:
        self._file, self._head, self._position = file, head, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = max(0, (0, self._position, self._file.size)[whence] + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        start = self._position
        stop = min(start + len(buffer), self._file.size)
        if start < len(self._head):
            data = self._head[start:stop]
        else:
            assert self._file.fetch is not None
            data = self._file.fetch(start, stop) if stop > start else b""
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class _StepReader:
    """Makes steps of the files that an adapter finds."""

    def __init__(
        self, sparse: _SparseSource, opened: OpenedSource, adapter: Adapter, process: ReadingProcess, everything: bool
    ) -> None:
        self._sparse, self._opened, self._adapter, self._process = sparse, opened, adapter, process
        self._everything, self._reader = everything, Reader(process, opened.address)
        self.found = Found([], {}, {})
        self.sizes, self._layouts = list[int](), dict[Layout, Layout]()

    def take(self, entry: Any) -> None:
        """Add the steps of one file, or note why there are none."""
        if isinstance(entry, Broken):
            self.found.unreadable[entry.path] = str(entry.error)
        elif isinstance(entry, FoundArrays):
            for number, (member, step) in enumerate(zip(entry.members, entry.steps, strict=True)):
                tensors = {name: array[number] for name, array in entry.tensors.items()}
                self.found.steps.append(_in_memory(member, step, f"{member}@{step}", tensors, {}))
        elif isinstance(entry, FoundCheckpoints):
            self.sizes.append(entry.size)
            try:
                self._take_file(entry)
            except (ZooError, OSError) as error:
                self.found.unreadable[entry.path] = said(error)

    def _take_file(self, entry: FoundCheckpoints) -> None:
        paths = list(entry.parts) or [entry.path]
        files = [self._sparse.by_path.get(path) for path in paths]
        forms = {self._opened.forms[path].name for path in paths if path in self._opened.forms}
        known = [file for file in files if file is not None]
        if len(known) == len(paths) and forms in ({"safetensors"}, {"torch"}) and self._is_zip(known, forms):
            self._take_places(entry, known, is_torch=forms == {"torch"})
        else:
            self._take_whole(entry)

    def _is_zip(self, files: Sequence[SourceFile], forms: set[str]) -> bool:
        """Tell whether files of torch.save are archives, as those since torch 1.6 are."""
        return forms != {"torch"} or all(self._sparse.head(file).startswith(b"PK") for file in files)

    def _take_places(self, entry: FoundCheckpoints, files: Sequence[SourceFile], *, is_torch: bool) -> None:
        places, facts = dict[str, tuple[SourceFile, Place]](), dict[str, Fact]()
        elsewhere = dict[str, tuple[str, tuple[int, ...]]]()
        for file in files:
            location = f"{self._opened.address}: {file.path}"
            assert file.fetch is not None
            if is_torch:
                own, others, beside = torch_places(file.fetch, file.size, location, self._process)
                elsewhere |= others
            else:
                own, beside = safetensors_places(self._sparse.head(file), file.fetch, file.size, location)
            places |= {name: (file, place) for name, place in own.items()}
            facts |= beside
        if elsewhere and (self._everything or not places):
            self._take_whole(entry)
            return
        if not places:
            raise ZooError(Problem(entry.path, "content", "tensors", "none", "Leave it out: --exclude."))
        described = {name: (place.dtype, place.shape) for name, (_, place) in places.items()} | elsewhere
        layout: Layout = tuple((name, dtype, shape) for name, (dtype, shape) in sorted(described.items()))
        layout = self._layouts.setdefault(layout, layout)
        can_read_all = (self._opened.is_local or self._everything) and not elsewhere
        reader = PlacesReader(places, self._opened.address, entry.path, reads_all=can_read_all)
        step, claims = self._step(entry, facts)
        digests = [file.digest or "" for file in files]
        digest = "files:" + " ".join(digests) if all(digests) else ""
        self.found.steps.append(PublishedStep(entry.member, step, entry.path, layout, reader, digest, claims))

    def _take_whole(self, entry: FoundCheckpoints) -> None:
        if not (self._opened.is_local or self._everything or entry.size <= _SMALL):
            form = entry.form or self._adapter.name
            self.found.passed[entry.path] = f"{form}, which has to be read whole: --all reads it"
            return
        contents = entry.read()
        (states,) = self._reader.read([(entry, contents)])
        if isinstance(states, ZooError):
            raise states
        for picked in entry.pick(states):
            step, claims = self._step(entry, states[0].facts if len(states) == 1 else {})
            own = picked.row.get("step")
            suffix = f"#{picked.suffix}" if picked.suffix else ""
            member = str(picked.row.get("member", entry.member))
            if picked.suffix and type(own) is int:
                step, claims = own, {}
            self.found.steps.append(_in_memory(member, step, f"{entry.path}{suffix}", picked.tensors, claims))

    def _step(self, entry: FoundCheckpoints, facts: Mapping[str, Fact]) -> tuple[int | None, dict[str, int]]:
        """Return the step that a path says, and those that a file and the files beside it say."""
        by_path = run_of(entry.path).step if self._adapter.name == "files" else None
        claims = dict[str, int]()
        if by_path is not None and entry.step is not None:
            claims["a file beside it"] = entry.step
        if (own := step_of(facts)) is not None:
            claims["the file itself"] = own
        return (entry.step if by_path is None else by_path), claims


class PlacesReader:
    """Reads numbers of one step by ranges of its files; a tensor without a place is not read."""

    def __init__(
        self, places: Mapping[str, tuple[SourceFile, Place]], address: str, path: str, *, reads_all: bool
    ) -> None:
        self._places, self.path, self._address, self.reads_all = places, path, address, reads_all

    def read(self, steps: Sequence[PublishedStep], pieces: Sequence[Piece]) -> None:
        (step,) = steps
        step.values |= {piece: self._read(*piece) for piece in pieces if piece.name in self._places}

    def read_all(self, step: PublishedStep) -> None:
        step.digest, step.nonfinite = digest_of((name, self._whole(name)) for name in sorted(self._places))

    def _whole(self, name: str) -> NDArray[Any]:
        _, place = self._places[name]
        return self._read(name, int(np.prod(place.shape, dtype=np.int64))).reshape(place.shape)

    def _read(self, name: str, count: int) -> NDArray[Any]:
        file, place = self._places[name]
        assert file.fetch is not None
        return place.read(file.fetch, count, f"{self._address}: {file.path}")


def said(error: ZooError | OSError) -> str:
    """Return what an error says of a file."""
    return str(error) if isinstance(error, ZooError) else error.strerror or type(error).__name__


class _WholeNumbers:
    """The numbers of a step that was read whole: samples of it, which were taken then."""

    reads_all = True

    def __init__(self, values: Mapping[Piece, NDArray[Any]], digest: str, nonfinite: list[str]) -> None:
        self._values, self._digest, self._nonfinite = values, digest, nonfinite

    def read(self, steps: Sequence[PublishedStep], pieces: Sequence[Piece]) -> None:
        (step,) = steps
        step.values |= {piece: self._values[piece] for piece in pieces}

    def read_all(self, step: PublishedStep) -> None:
        step.digest, step.nonfinite = self._digest, self._nonfinite


def _in_memory(
    run: str, step: int | None, where: str, tensors: Mapping[str, NDArray[Any]], claims: Mapping[str, int]
) -> PublishedStep:
    layout = layout_of(tensors)
    values = {
        piece: np.array(tensors[piece.name].reshape(-1)[: piece.numbers])
        for number in range(ROUNDS)
        for piece in pieces_of(layout, number)
    }
    digest, nonfinite = digest_of((name, tensors[name]) for name in sorted(tensors))
    return PublishedStep(run, step, where, layout, _WholeNumbers(values, digest, nonfinite), "", claims)
