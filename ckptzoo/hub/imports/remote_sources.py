"""Sources on other machines: files on a web server with ranges, and repositories of a hub.

Nothing is stored here: archives are read as they arrive, and an interrupted transfer continues at its next byte.
"""

import io
import os
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from ckptzoo.errors import Problem, RemoteError, ZooError
from ckptzoo.hub.imports.sources import ImportSource, SourceFile, WholeSource, natural, open_blob, open_path
from ckptzoo.remote import http
from ckptzoo.remote.address import MAIN, HubAddress, WebAddress, candidates, model_address
from ckptzoo.remote.http import Connections
from ckptzoo.remote.hub_store import COMMIT, HubStore, hub_address
from ckptzoo.remote.retry import RetryPolicy, read_range, retry
from ckptzoo.remote.stores import CancelToken, FileEntry, Store
from ckptzoo.remote.web_store import StaticStore

_SEEK_BYTES = 2**18
"""Gaps up to this many bytes are read and dropped instead of sending a new request."""


def open_source(
    address: str | os.PathLike[str] | HubAddress,
    *,
    endpoint: str | None = None,
    token: str | None = None,
    connections: Connections | None = None,
) -> ImportSource:
    """Open the source at an address: a local folder, archive or file, ``https://...``, ``hf://datasets/org/name``, or
    ``hf://org/name`` for a model.

    ``connections`` to a hub may be shared by several sources. Raises ``ZooError`` where nothing is there, or the server
    does not serve ranges.
    """
    if isinstance(address, HubAddress):
        return _of_hub(address, endpoint, token, connections)
    text = os.fspath(address)
    if "://" not in text:
        return open_path(Path(text))
    if (repository := hub_place(text)) is not None:
        return _of_hub(repository, endpoint, token, connections)
    (place, *_) = candidates(text)
    if isinstance(place, WebAddress):
        return open_blob(_of_web(place.url))
    step = "Give a folder, an archive, or an address https:// or hf://."
    raise ZooError(Problem(text, "source", "https:// or hf://", text, step))


def hub_place(text: str) -> HubAddress | None:
    """Return the repository of a hub that an address names, or the folder in one; None for any other address."""
    if "://" not in text:
        return None
    # of a file of a web server, and no page of a hub
    if text.lower().startswith(("http://", "https://")) and set("?#@") & set(text):
        return None
    if text.lower().startswith("hf://") and not text.lower().startswith("hf://datasets/"):
        return model_address(text)
    (place, *_) = candidates(text)
    return place if isinstance(place, HubAddress) else None


def _of_web(url: str) -> WholeSource:
    folder, _, name = url.rpartition("/")
    retry_policy, connections = RetryPolicy(), Connections()

    def request() -> int:
        # of one byte: Content-Range also names the size of the whole file (RFC 9110, section 14.4)
        sent = {"Range": "bytes=0-0"}
        with http.get(connections, url, location=url, cancel=CancelToken(), headers=sent) as answer:
            total = answer.headers.get("content-range", "").rpartition("/")[2]
            if answer.status not in (200, 206):
                raise http.refusal(answer, url)
            # 206: the server serves the range; 200: it ignores the header Range, and sends the whole file
            if answer.status != 206 or not total.isdecimal():
                step = "Download it, and import the file."
                raise RemoteError(Problem(url, "answer", "a range of the file, and its size", "the whole file", step))
            return int(total)

    size = retry(request, retry_policy=retry_policy, cancel=CancelToken())
    store = StaticStore(folder, "", {name: FileEntry(name, size)}, connections)
    return _blob(store, name, url)


def _of_hub(
    place: HubAddress, endpoint: str | None, token: str | None, connections: Connections | None = None
) -> ImportSource:
    repository = replace(place, folder="")
    store = HubStore.opened(
        repository, retry_policy=RetryPolicy(), endpoint=endpoint, token=token, connections=connections
    )
    address = hub_address(place, store.endpoint, revision=place.revision)
    if place.folder in store.entries:
        source = open_blob(_blob(store, place.folder, address))
        source.repository = hub_address(repository, store.endpoint, revision=place.revision)
        return source
    inside = f"{place.folder}/" if place.folder else ""
    names = [name for name in store.entries if name.startswith(inside)]
    if not names:
        step = "Check the path; the repository's page lists its files."
        raise ZooError(Problem(address, "source", "a folder or a file of the repository", "nothing", step))
    source = RepositorySource(store, address, inside, names)
    source.repository = hub_address(repository, store.endpoint, revision=place.revision)
    return source


def _blob(store: Store, name: str, address: str) -> WholeSource:
    size = store.entries[name].size
    return WholeSource(address, name.rpartition("/")[2], size, lambda: _buffered(store, name), is_local=False)


class RepositorySource(ImportSource):
    """A folder of a repository; paths begin with the name of its branch or tag, where that is not ``main``.

    Revisions are often steps of a training run, which have the same files: EleutherAI/pythia-70m@step1000.
    """

    is_local = False
    is_reopened = True

    def __init__(self, store: HubStore, address: str, inside: str, names: list[str]) -> None:
        name = (inside.rstrip("/") or store.place.repo).rpartition("/")[2]
        super().__init__(address, name, sum(store.entries[name].size for name in names))
        self._store, self._inside, self._names = store, inside, sorted(names, key=natural)
        revision = store.place.revision
        self.root = "" if revision == MAIN or COMMIT.fullmatch(revision) else f"{revision}/"

    def files(self) -> Iterator[SourceFile]:
        self.position = 0
        for name in self._names:
            entry = self._store.entries[name]
            path, fetch = self.root + name.removeprefix(self._inside), partial(_fetch, self._store, name)
            yield SourceFile(path, entry.size, self._opener(name), fetch, entry.digest)
            self.position += entry.size

    def _opener(self, name: str) -> Any:
        return lambda: _buffered(self._store, name)


def _fetch(store: Store, name: str, start: int, stop: int) -> bytes:
    pieces = read_range(store, name, start, stop, retry_policy=RetryPolicy(), cancel=CancelToken())
    return b"".join(pieces)


def _buffered(store: Store, name: str) -> IO[bytes]:
    return io.BufferedReader(_RemoteFile(store, name), _SEEK_BYTES)


class _RemoteFile(io.RawIOBase):
    """A file of a store, read by one request from an offset to its end, until another offset is asked for."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name, self._size = store, name, store.entries[name].size
        self._position = 0
        self._pieces: Generator[bytes] | None = None
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to an offset; the next read sends a request from there, unless it is near."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        target = max(0, start + offset)
        ahead = target - self._position
        if self._pieces is not None and 0 <= ahead <= _SEEK_BYTES:
            while ahead and (skipped := self._take(ahead)):
                ahead -= len(skipped)
        elif ahead:
            self._stop()
        self._position = target
        return target

    def readinto(self, buffer: Any) -> int:
        if self._position >= self._size:
            return 0
        piece = self._take(len(buffer))
        buffer[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def close(self) -> None:
        self._stop()
        super().close()

    def _take(self, count: int) -> memoryview:
        if self._pieces is None:
            self._pieces = read_range(
                self._store, self._name, self._position, self._size, retry_policy=RetryPolicy(), cancel=CancelToken()
            )
        if not self._left:
            self._left = memoryview(next(self._pieces, b""))
        piece, self._left = self._left[:count], self._left[count:]
        return piece

    def _stop(self) -> None:
        if self._pieces is not None:
            self._pieces.close()
        self._pieces, self._left = None, memoryview(b"")
