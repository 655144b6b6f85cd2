"""Files on other machines that a zoo refers to: what was recorded of them, and ranges of them (``RemoteReferences``).

To link files, of which each costs one request of 64 KiB, 32 at a time, and to read a tensor of each later, through the
cache::

    with RemoteReferences("zoos/linked", servers=["http://127.0.0.1:8000"]) as files:
        found = [item for item in files.each(addresses, headers.safetensors_header) if not isinstance(item, ZooError)]

    with RemoteReferences("zoos/linked", servers=["http://127.0.0.1:8000"]) as files:
        files.add(recorded for recorded, header in found)
        for place, data in files.as_ready([Span(address, start, stop, b"") for address in addresses]):
            out[place] = data

Who wrote a reference is not trusted: addresses are those of ``file_address``, servers those of ``AllowedServers``. Each
answer is compared with what was recorded; a file that has changed is an error. Bytes whose digest nobody knows are
taken as they come, and have from then on the digest that they have in the cache.
"""

import hashlib
import io
import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import IO, Any, NamedTuple, Self, TypeVar, cast

from ckptzoo.environment import PUBLIC_HUB, cache_limit, cache_root, hub_endpoint, is_offline, s3_endpoint
from ckptzoo.errors import AbsentError, IntegrityError, Problem, RemoteError, ZooError
from ckptzoo.remote import http
from ckptzoo.remote.address import HubAddress, WebAddress, file_address
from ckptzoo.remote.cache import Cache
from ckptzoo.remote.http import Answer, Connections
from ckptzoo.remote.hub_store import HubStore, bearer, read_listing
from ckptzoo.remote.remote import OPENING_SECONDS, Remote
from ckptzoo.remote.retry import RetryPolicy, is_too_slow, retry, too_slow
from ckptzoo.remote.servers import AllowedServers, origin_of
from ckptzoo.remote.stores import CancelToken, FileEntry, TransientError, find_entry
from ckptzoo.schema.layout import Span
from ckptzoo.text import excerpt

T = TypeVar("T")

WORKERS = 32
"""Requests at a time: those of one layer go to as many files, of which each answers one."""
HEAD_BYTES = 64 * 1024
"""The bytes of a first request: the header of nearly every safetensors file is shorter (as huggingface_hub assumes)."""
MAX_READ = 64 * 2**20
"""Bytes that may be read of one file in search of what is where in it; 32 files are in memory at a time."""
MAX_WINDOW = 8 * 2**20
"""Bytes of one request of a ``RangeFile``, whose requests double while the file is read in order."""
MAX_SPAN = 2**34
"""Bytes of one tensor: memory for it is taken before its bytes come."""
MAX_PAGE = 64 * 2**20
"""Bytes of a page that lists files."""
CACHE = "references"
"""The name of the part of the cache that the files of all zoos share."""
_MAX_VALIDATOR = 1024
"""Characters of an ETag that is recorded."""
_DIGEST = re.compile(r"(sha256:[0-9a-f]{64}|git:[0-9a-f]{40}(?:[0-9a-f]{24})?)?")
_CHANGED = "It is another file than was linked: restore it, or link what is there now into a new zoo."
COPY = "Copy the file with ckptzoo import instead."
_NO_RANGES = "Download the file, and link the copy."


class RecordedFile(NamedTuple):
    """A file on another machine, as a zoo records it.

    ``address`` is one that ``file_address`` takes; ``validator`` is the ETag of a web server, or its Last-Modified
    where there is none, as the server wrote it; it is empty for files of hubs, which their commit and ``digest``
    identify: ``sha256:<hex>``, or ``git:<hex>`` for small ones.
    """

    address: str
    size: int
    validator: str = ""
    digest: str | None = None


class RemoteReferences(Remote):
    """The files of other machines that one zoo refers to; ``zoo`` is its name in messages.

    ``servers`` are addresses of servers that the user named: they may have any address, and speak http. So are the hub
    of ``HF_ENDPOINT`` or ``endpoint``, and the storage of ``AWS_ENDPOINT_URL_S3``. ``in_order`` and ``as_ready`` take
    spans whose name is the address of a file that was added, and whose digest is empty where it is not known.
    """

    def __init__(
        self,
        zoo: str,
        *,
        servers: Iterable[str] = (),
        endpoint: str | None = None,
        token: str | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        offline, policy = is_offline(), retry_policy or RetryPolicy()
        self._files = _Store(zoo, servers, endpoint, token, policy)
        cache = Cache(cache_root(), CACHE, limit=cache_limit(), evicts=not offline)
        super().__init__(self._files, cache, offline=offline, retry_policy=policy, workers=WORKERS)
        self._workers = WORKERS

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.connections.close()

    def add(self, files: Iterable[RecordedFile]) -> None:
        """Make files known, so that spans may name them.

        Raises ZooError: an address is refused. Raises IntegrityError: one file is recorded in two ways.
        """
        for file in files:
            self._files.add(file)

    def repository(self, address: HubAddress) -> list[RecordedFile]:
        """Return the files of a repository at a revision, or of a folder in it, pinned to the commit; by one request.

        Raises RemoteError: there is none, or it may not be read, as where it is gated.
        """
        if self.offline:
            raise self._offline_error([str(address)], 0)
        commit, entries = self._files.listing(address)
        folder = f"{address.folder}/" if address.folder else ""
        return [
            RecordedFile(
                str(replace(address, revision=commit, folder=f"{folder}{name}")), entry.size, digest=entry.digest
            )
            for name, entry in entries.items()
        ]

    def open(self, file: str | RecordedFile, *, cached: bool = False) -> "RangeFile":
        """Return a file to read in; its first ``HEAD_BYTES`` come by this request, and so does what is to be recorded
        of it where only the address is known. With ``cached`` they are kept, and come from the cache where it has them.

        Raises RemoteError: there is none, or it has nothing to tell whether it changes.
        """
        head = None
        if not isinstance(file, RecordedFile):
            if self.offline:
                raise self._offline_error([file], 0)
            file, head = self._files.found(file)
        self.add([file])
        if head is None and file.size:
            span = Span(file.address, 0, min(HEAD_BYTES, file.size), b"")
            head = b"".join(self.in_order([span])) if cached else self.span(*span[:3])
        if cached and head:
            self.keep(file.address, 0, head)
        return RangeFile(self, file, head or b"")

    def each(
        self, files: Iterable[str | RecordedFile], read: Callable[[RecordedFile, IO[bytes]], T]
    ) -> Generator[tuple[RecordedFile, T] | ZooError]:
        """Yield for each file, in order, what is recorded of it and what a function reads in it, or why not.

        The function is called in several threads. Its errors other than ZooError are raised here.
        """

        def look(file: str | RecordedFile) -> tuple[RecordedFile, T] | ZooError:
            try:
                with self.open(file) as opened:
                    return opened.recorded, read(opened.recorded, cast(IO[bytes], opened))
            except ZooError as error:
                return error

        waiting = deque[Future[tuple[RecordedFile, T] | ZooError]]()
        pool = ThreadPoolExecutor(self._workers, "ckptzoo-references")
        try:
            for file in files:
                waiting.append(pool.submit(look, file))
                if len(waiting) == 2 * self._workers:  # so that what was read does not pile up
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def page(self, address: str) -> bytes:
        """Return a page of a web server, of at most ``MAX_PAGE`` bytes.

        Raises RemoteError: there is none, or the server may not be asked.
        """
        if self.offline:
            raise self._offline_error([address], 0)
        return self._files.page(address)

    def keep(self, address: str, start: int, data: bytes) -> None:
        """Put bytes of a file that was added into the cache, where spans without digest find them."""
        self._keep(Span(address, start, start + len(data), b""), memoryview(data))

    @property
    def _options(self) -> dict[str, Any]:
        return {**super()._options, "needs_digest": False}

    def _key(self, block: Span) -> str:
        if block.sha256:
            return super()._key(block)
        facts = f"{self._files.identity(block.name)}\n{block.start}\n{block.stop}"
        return f"range:{hashlib.sha256(facts.encode()).hexdigest()}"

    def _missing_places(self, wanted: Sequence[Span]) -> list[int]:
        for block in wanted:
            if block.stop - block.start > MAX_SPAN:
                got = f"{block.stop - block.start} bytes"
                step = "Do not use this zoo; tell whoever publishes it."
                raise IntegrityError(Problem(block.name, "tensor", f"at most {MAX_SPAN} bytes", got, step))
        return super()._missing_places(wanted)


class RangeFile(io.RawIOBase):
    """A file on another machine, to read here and there in it, as ``zipfile`` does.

    What was fetched is kept, so that a torch file costs two requests: for its beginning, which has ``data.pkl``, and
    for its end, which has the directory. Requests double while it is read in order. At most ``MAX_READ`` bytes are
    read.
    """

    def __init__(self, files: RemoteReferences, recorded: RecordedFile, head: bytes) -> None:
        self._files, self.recorded = files, recorded
        self._windows = [(0, head)]
        self._position, self._next, self._left = 0, HEAD_BYTES, MAX_READ

    @property
    def windows(self) -> list[tuple[int, bytes]]:
        """The parts of the file that were read, each with its first byte."""
        return list(self._windows)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.recorded.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Return bytes up to the end, or as many as are asked for, fewer at the end alone."""
        stop = self.recorded.size if size is None or size < 0 else min(self._position + size, self.recorded.size)
        pieces: list[bytes] = []
        # a long read is for all that is wanted, a short one is followed by others
        is_whole = stop - self._position > HEAD_BYTES
        while self._position < stop:
            start, data = self._window(stop, is_whole)
            piece = data[self._position - start : stop - start]
            pieces.append(piece)
            self._position += len(piece)
        return b"".join(pieces)

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _window(self, stop: int, is_whole: bool) -> tuple[int, bytes]:
        """Return a window that has the next byte; one that is fetched ends at ``stop``, or behind it if not
        ``is_whole``.
        """
        position, size = self._position, self.recorded.size
        for start, data in self._windows:
            if start <= position < start + len(data):
                return start, data
        last, data = self._windows[-1]
        self._next = min(2 * self._next, MAX_WINDOW) if position == last + len(data) else HEAD_BYTES
        # what is near the end is read from its last bytes on, backwards
        is_near_end = not is_whole and position >= size - HEAD_BYTES
        start = max(size - HEAD_BYTES, len(self._windows[0][1])) if is_near_end else position
        stop = stop if is_whole else min(size, max(stop, start + self._next))
        self._left -= stop - start
        if self._left < 0:
            expected = f"at most {MAX_READ} bytes that say what is where"
            raise IntegrityError(Problem(self.recorded.address, "file", expected, "more", COPY))
        self._windows.append((start, self._files.span(self.recorded.address, start, stop)))
        return self._windows[-1]


class _Store:
    """The files as a ``Store``, by their addresses; of a pickle the token is left out, as of that of ``HubStore``."""

    revision = ""

    def __init__(
        self, address: str, servers: Iterable[str], endpoint: str | None, token: str | None, policy: RetryPolicy
    ) -> None:
        self.address, self._token = address, token
        self._policy = replace(policy, deadline=min(policy.deadline, OPENING_SECONDS))
        self._hub = (endpoint or hub_endpoint()).rstrip("/")
        named = [*servers, *([self._hub] if self._hub != PUBLIC_HUB else [])]
        self._allowed = AllowedServers([*named, *([storage] if (storage := s3_endpoint()) else [])])
        self.connections = Connections(policy.connection_deadline, self._allowed)
        self.recorded: dict[str, RecordedFile] = {}
        self.entries: dict[str, FileEntry] = {}
        self._places: dict[str, HubAddress | WebAddress] = {}
        self._identities: dict[str, str] = {}
        self._repositories: dict[HubAddress, HubStore] = {}
        self._listings: dict[HubAddress, tuple[str, dict[str, FileEntry]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_token": None}

    def add(self, file: RecordedFile) -> None:
        known = self.recorded.get(file.address)
        if known is None:
            place = file_address(file.address)
            is_web = isinstance(place, WebAddress)
            if file.size < 0 or is_web != _is_validator(file.validator) or not _DIGEST.fullmatch(file.digest or ""):
                expected = "a size, and an ETag or a time of change" if is_web else "a size, and perhaps a digest"
                problem = Problem(file.address, "reference", expected, excerpt(str(file[1:])), "Link the file again.")
                raise IntegrityError(problem)
            self._places[file.address] = place
            self.entries[file.address] = FileEntry(file.address, file.size, file.digest)
            self.recorded[file.address] = file
        elif known != file:
            raise IntegrityError(Problem(file.address, "reference", str(known[1:]), str(file[1:]), _CHANGED))

    def identity(self, name: str) -> str:
        """Return a text that tells a file and its state from all others, of all zoos of this user.

        The hub belongs to it: another one may have another file at the same address. So does that the user named the
        server, or else a stranger's zoo would find in the cache what it may not ask for.
        """
        if (known := self._identities.get(name)) is not None:
            return known
        file, place = self.recorded[name], self._places[name]
        if isinstance(place, WebAddress):
            where = f"{place.url}\n{self._allowed.is_named(origin_of(place.url))}"
        else:
            where = f"{self._hub}\n{place}"
        self._identities[name] = f"{where}\n{file.size}\n{file.validator}\n{file.digest}"
        return self._identities[name]

    def listing(self, place: HubAddress) -> tuple[str, dict[str, FileEntry]]:
        authorize = bearer(self._hub, self._token)
        return read_listing(place, self._hub, self.connections, authorize, self._policy)

    def get(self, name: str, start: int, stop: int, cancel: CancelToken) -> Generator[bytes]:
        """Yield bytes ``start`` to ``stop`` of a file, as ``Store.get``.

        Raises IntegrityError: it is not the file that was recorded.
        """
        find_entry(self.entries, name, location=self.address)
        file, place = self.recorded[name], self._places[name]
        if isinstance(place, HubAddress):
            try:
                store = self._repository(place)
                store.entries.setdefault(place.folder, FileEntry(place.folder, file.size, file.digest))
                yield from store.get(place.folder, start, stop, cancel)
            except TransientError as error:
                raise TransientError(self._naming_hub(error.problem), error.wait, error.protocol_error) from error
            except AbsentError as error:
                raise AbsentError(self._naming_hub(error.problem)) from error
            return
        # always with a range: without one a server that has another file now might send all of it
        sent = {"Range": f"bytes={start}-{stop - 1}", **_conditions(file.validator)}
        with http.get(self.connections, place.url, location=name, cancel=cancel, headers=sent) as answer:
            _check_unchanged(answer, file)
            yield from http.body(answer, start, stop, file.size, location=name)

    def _naming_hub(self, problem: Problem) -> Problem:
        """Return a problem with a hub's answer, which may be that of another hub than the files are on."""
        hub = f"If the files are on another hub than {self._hub}, set HF_ENDPOINT to its address."
        return replace(problem, next_step=f"{problem.next_step} {hub}")

    def found(self, address: str) -> tuple[RecordedFile, bytes | None]:
        """Return what is to be recorded of a file, and its first bytes where they came with it."""
        place = file_address(address)
        if isinstance(place, WebAddress):
            return retry(
                lambda: self._found_on_web(address, place.url), retry_policy=self._policy, cancel=CancelToken()
            )
        whole = replace(place, folder="")
        if whole not in self._listings:
            self._listings[whole] = self.listing(whole)
        entry = find_entry(self._listings[whole][1], place.folder, location=str(whole))
        return RecordedFile(address, entry.size, digest=entry.digest), None

    def _found_on_web(self, address: str, url: str) -> tuple[RecordedFile, bytes]:
        sent = {"Range": f"bytes=0-{HEAD_BYTES - 1}"}
        with http.get(self.connections, url, location=address, cancel=CancelToken(), headers=sent) as answer:
            # Content-Range also names the size of the whole file (RFC 9110, 14.4)
            total = answer.headers.get("content-range", "").rpartition("/")[2]
            if answer.status not in (200, 206):
                raise http.refusal(answer, address)
            # 206: the server serves the range; 200: it ignores the header Range, and sends the whole file
            if answer.status != 206 or not (total.isascii() and total.isdigit() and len(total) < 20):
                got = "a whole file" if answer.status == 200 else f"{total or 'no'} bytes"
                raise RemoteError(Problem(address, "answer", "a range of the file, and its size", got, _NO_RANGES))
            validator = answer.headers.get("etag") or answer.headers.get("last-modified", "")
            if not _is_validator(validator):
                expected = "an ETag or Last-Modified, which tell whether the file changes"
                got = excerpt(validator, 80) or "neither"
                raise RemoteError(Problem(address, "answer", expected, got, _NO_RANGES))
            file, began, data = RecordedFile(address, int(total), validator), time.monotonic(), bytearray()
            for piece in http.body(answer, 0, min(HEAD_BYTES, file.size), file.size, location=address):
                data += piece
                seconds = time.monotonic() - began
                if is_too_slow(self._policy, len(data), seconds):
                    raise TransientError(too_slow(address, "answer", self._policy, len(data), seconds))
            return file, bytes(data)

    def page(self, address: str) -> bytes:
        def request() -> bytes:
            sent = {"Accept": "text/html"}
            with http.get(self.connections, address, location=address, cancel=CancelToken(), headers=sent) as answer:
                return http.document(answer, location=address, retry_policy=self._policy, max_bytes=MAX_PAGE)

        return retry(request, retry_policy=self._policy, cancel=CancelToken())

    def _repository(self, place: HubAddress) -> HubStore:
        """Return the store of a commit, without a listing of its files."""
        whole = replace(place, folder="")
        if whole not in self._repositories:
            store = HubStore(
                whole, whole.revision, {}, endpoint=self._hub, token=self._token, connections=self.connections
            )
            self._repositories.setdefault(whole, store)
        return self._repositories[whole]


def _is_validator(validator: str) -> bool:
    """Return whether a text may be a validator; it is sent in headers, so it must have no line ends."""
    return 0 < len(validator) <= _MAX_VALIDATOR and validator.isascii() and validator.isprintable()


def _is_etag(validator: str) -> bool:
    return validator.startswith(('"', "W/"))


def _conditions(validator: str) -> Mapping[str, str]:
    """Return the headers that let a server answer only with the file that was recorded.

    A weak ETag may stand in none of them (RFC 9110, 13.1.1 and 13.1.5), and a time is exact to a second at best; so
    answers are compared too, as some servers ignore these headers.
    """
    if validator.startswith("W/"):
        return {}
    if _is_etag(validator):
        return {"If-Match": validator, "If-Range": validator}
    return {"If-Unmodified-Since": validator}


def _check_unchanged(answer: Answer, file: RecordedFile) -> None:
    """Raise IntegrityError where an answer is not about the file that was recorded."""
    what = "ETag" if _is_etag(file.validator) else "Last-Modified"
    got = answer.headers.get(what.lower(), "")
    total = answer.headers.get("content-range", "").rpartition("/")[2]
    # 412: what the conditions ask for is not so (RFC 9110, 15.5.13)
    if answer.status == 412 or (answer.status in (200, 206) and got and got != file.validator):
        raise _changed(file, what, file.validator, got if got != file.validator else "another")
    if answer.status == 416 or (answer.status == 206 and total not in ("", "*", str(file.size))):
        raise _changed(file, "size", f"{file.size} bytes", f"{total or 'fewer'} bytes")
    if answer.status in (200, 206) and not got:  # where a whole answer has one, a part has it too (RFC 9110, 15.3.7)
        problem = Problem(file.address, what, file.validator, "none", _NO_RANGES)
        raise TransientError(problem, protocol_error=True)


def _changed(file: RecordedFile, what: str, expected: str, got: str) -> IntegrityError:
    return IntegrityError(Problem(file.address, what, expected, excerpt(got, 160), _CHANGED))
