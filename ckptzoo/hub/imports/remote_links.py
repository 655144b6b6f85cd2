"""Sources on other machines whose files a zoo refers to: what says where tensors are is fetched, and no weights.

A file is mapped as one of this machine is, with zeros where nothing was fetched. What is looked at is read by
``mapped.loaded``, which fetches it.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import IO, cast
from urllib.parse import unquote, urljoin, urlsplit

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.format.references import RemoteFile
from ckptzoo.hub.imports.mapped import MappedStream, open_mapped
from ckptzoo.hub.imports.remote_maps import PUT, RemoteMap, put_torch
from ckptzoo.hub.imports.remote_sources import RepositorySource, hub_place
from ckptzoo.hub.imports.source_lists import JoinedSource, Place
from ckptzoo.hub.imports.sources import FileSource, ImportSource, SourceFile, WholeSource, natural
from ckptzoo.hub.untrusted.formats import HEAD_BYTES, LEGACY_MAGIC
from ckptzoo.hub.untrusted.forms import form_of
from ckptzoo.remote.address import HubAddress
from ckptzoo.remote.headers import safetensors_header, torch_outline
from ckptzoo.remote.http import Connections
from ckptzoo.remote.hub_store import HubStore, hub_address
from ckptzoo.remote.referenced import (
    COPY,
    WORKERS,
    RangeFile,
    RecordedFile,
    RemoteReferences,
)
from ckptzoo.remote.referenced import (
    HEAD_BYTES as HEAD_REQUEST,
)
from ckptzoo.remote.retry import RetryPolicy

_AHEAD = WORKERS
"""Files that are looked into before they are asked for: each keeps two descriptors open."""
_FAR_AHEAD = 4096
"""Files behind one that is opened among which those with its suffix are found."""
_MAX_LISTED, _MAX_DEPTH = 1_000_000, 16
"""Bounds of a listing of a web server: files and folders, and folders within one another."""


Listed = tuple[str, RecordedFile]
"""A file of a source: its path there, and what is recorded of it."""


class _Stream(MappedStream):
    """A file on another machine; what may be linked comes as a view of its map, anything else is read."""

    def __init__(self, opened: RangeFile, mapped: Callable[[], RemoteMap], path: str) -> None:
        super().__init__(opened, mapped, path, 0, opened.recorded.size)


class LinkedFiles:
    """Opens the files of sources on other machines, and looks ahead into those that come behind one that is opened."""

    def __init__(self, files: RemoteReferences) -> None:
        self.files, self.connections = files, Connections(RetryPolicy().connection_deadline)
        self._pool = ThreadPoolExecutor(WORKERS, "ckptzoo-link")
        self._waiting = dict[int, Future[tuple[RangeFile, RemoteMap | ZooError]]]()
        self._order, self._places = list[Listed](), dict[int, int]()

    def close(self) -> None:
        """Stop looking ahead."""
        self._pool.shutdown(cancel_futures=True)
        self.connections.close()

    def expect(self, source: ImportSource) -> frozenset[str]:
        """Say in which order files will be opened, that of their source, and return their addresses."""
        self._order = [item for inner in _parts(source) for item in inner]
        self._places = {id(item): at for at, item in enumerate(self._order)}
        return frozenset(file.address for _, file in self._order)

    def open(self, item: "Listed") -> IO[bytes]:
        """Open a file, which is given with its path."""
        path, suffix = item[0], item[0].rpartition(".")[2]
        at = self._places.get(id(item))
        if at is None:
            opened, mapped = self._look(*item)
        else:
            for passed in [other for other in self._waiting if other < at]:
                self._waiting.pop(passed).cancel()
            for ahead in range(at, min(at + _FAR_AHEAD, len(self._order))):
                if len(self._waiting) >= _AHEAD:
                    break
                other = self._order[ahead]
                if ahead not in self._waiting and (ahead == at or other[0].rpartition(".")[2] == suffix):
                    self._waiting[ahead] = self._pool.submit(self._look, *other)
            opened, mapped = self._waiting.pop(at).result() if at in self._waiting else self._look(*item)
        opened.seek(0)

        def map_of() -> RemoteMap:
            if isinstance(mapped, ZooError):
                raise mapped
            return mapped

        return _Stream(opened, map_of, path)

    def _look(self, path: str, file: RecordedFile) -> tuple[RangeFile, RemoteMap | ZooError]:
        """Open a file and, where its tensors may be linked, map it with what says where they are."""
        opened = self.files.open(file, cached=True)
        try:
            return opened, self._mapped(opened, path)
        except ZooError as error:
            return opened, error

    def _mapped(self, opened: RangeFile, path: str) -> RemoteMap:
        recorded, stream = opened.recorded, cast(IO[bytes], opened)
        head = opened.read(min(HEAD_BYTES, recorded.size))
        opened.seek(0)
        form = form_of(head, path)
        if form.name == "safetensors":
            safetensors_header(recorded, stream)
            return RemoteMap.made(self.files, opened, path)
        if form.name == "torch" and not head.startswith(LEGACY_MAGIC):
            outline = torch_outline(recorded, stream)
            made = RemoteMap.made(self.files, opened, path)
            put_torch(made, outline)
            return made
        if (put := PUT.get(form.name)) is not None:
            return put(self.files, opened, path)
        expected = "safetensors, arrays of numpy that are not packed, GGUF, or torch.save since 1.6"
        raise IntegrityError(Problem(recorded.address, "file on another machine", expected, form.words, COPY))


def _parts(source: ImportSource) -> Iterator[Sequence[Listed]]:
    """Yield the files of the sources that are joined to one, in order."""
    if isinstance(source, JoinedSource):
        for inner in source.sources:
            yield from _parts(inner)
    else:
        yield getattr(source, "listed", ())


def states_of(source: ImportSource) -> dict[tuple[str, str], tuple[int, str]]:
    """Return the size and the digest or validator of each file of a source, by its repository and its path there.

    A web server's file has no repository, and its address.
    """
    if isinstance(source, JoinedSource):
        return {key: state for inner in source.sources for key, state in states_of(inner).items()}
    return {place_of(source.repository, file): state_of(file) for _, file in getattr(source, "listed", ())}


def place_of(repository: str, file: RemoteFile | RecordedFile) -> tuple[str, str]:
    """Return where a file is at any commit: its repository, at a revision, and its path there; or its address."""
    if not file.address.startswith("hf://"):
        return "", file.address
    return repository, file.address.partition("@")[2].partition("/")[2]


def state_of(file: RemoteFile | RecordedFile) -> tuple[int, str]:
    """Return what tells one state of a file from others."""
    return file.size, file.digest or file.validator


class LinkedRepository(RepositorySource):
    """A folder of a repository at a commit, whose files are linked."""

    def __init__(self, store: HubStore, address: str, inside: str, names: list[str], ahead: LinkedFiles) -> None:
        super().__init__(store, address, inside, names)
        self._ahead = ahead
        self.listed: list[Listed] = [
            (self.root + name.removeprefix(inside), _recorded(store, name)) for name in self._names
        ]

    def files(self) -> Iterator[SourceFile]:
        self.position = 0
        for item in self.listed:
            path, file = item
            yield SourceFile(path, file.size, partial(self._ahead.open, item), digest=file.digest)
            self.position += file.size


def _recorded(store: HubStore, name: str) -> RecordedFile:
    entry = store.entries[name]
    place = replace(store.place, revision=store.revision, folder=name)
    return RecordedFile(str(place), entry.size, digest=entry.digest)


class LinkedFile(FileSource):
    """A file of a web server, or of a repository, that is linked."""

    def __init__(self, address: str, name: str, file: RecordedFile, ahead: LinkedFiles) -> None:
        self.listed: list[Listed] = [(name, file)]
        opener = partial(ahead.open, self.listed[0])
        super().__init__(WholeSource(address, name, file.size, opener, is_local=False))


class WebFolder(ImportSource):
    """The files below a page of a web server that lists them, as nginx, Apache and Python's server write it."""

    is_local = False
    is_reopened = True

    def __init__(self, address: str, files: Sequence[tuple[str, RecordedFile]], ahead: LinkedFiles) -> None:
        name = unquote(urlsplit(address).path.rstrip("/").rpartition("/")[2]) or str(urlsplit(address).hostname)
        super().__init__(address, name, sum(file.size for _, file in files))
        self.listed: list[Listed] = sorted(files, key=lambda item: natural(item[0]))
        self._ahead = ahead

    def files(self) -> Iterator[SourceFile]:
        self.position = 0
        for item in self.listed:
            path, file = item
            yield SourceFile(path, file.size, partial(self._ahead.open, item))
            self.position += file.size


def open_linked(
    place: Place | os.PathLike[str], ahead: LinkedFiles, *, endpoint: str | None = None, token: str | None = None
) -> ImportSource:
    """Open one source whose files are linked: of this machine, of a hub's repository at a commit, of a web server or
    of a public bucket.

    Raises ``ZooError`` where nothing is there, or the server does not serve ranges.
    """
    repository = place if isinstance(place, HubAddress) else hub_place(os.fspath(place))
    if repository is not None:
        return _of_hub(repository, ahead, endpoint, token)
    text = str(place)
    if "://" not in text:
        return open_mapped(Path(text))
    if text.lower().startswith(("http://", "https://")) and urlsplit(text).path.endswith("/"):
        return WebFolder(text, _listed_on_web(text, ahead.files), ahead)
    with ahead.files.open(text, cached=True) as opened:
        recorded = opened.recorded
    return LinkedFile(text, unquote(urlsplit(text).path.rpartition("/")[2]), recorded, ahead)


def _of_hub(place: HubAddress, ahead: LinkedFiles, endpoint: str | None, token: str | None) -> ImportSource:
    repository = replace(place, folder="")
    store = HubStore.opened(
        repository, retry_policy=RetryPolicy(), endpoint=endpoint, token=token, connections=ahead.connections
    )
    address = hub_address(place, store.endpoint, revision=place.revision)
    if place.folder in store.entries:
        name = place.folder.rpartition("/")[2]
        source: ImportSource = LinkedFile(address, name, _recorded(store, place.folder), ahead)
    else:
        inside = f"{place.folder}/" if place.folder else ""
        names = [name for name in store.entries if name.startswith(inside)]
        if not names:
            step = "Check the path; the repository's page lists its files."
            raise ZooError(Problem(address, "source", "a folder or a file of the repository", "nothing", step))
        source = LinkedRepository(store, address, inside, names, ahead)
    source.repository = hub_address(repository, store.endpoint, revision=place.revision)
    return source


class _Links(HTMLParser):
    """Collects the addresses of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self.found = list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def _listed_on_web(address: str, files: RemoteReferences) -> list[tuple[str, RecordedFile]]:
    """Return the files that pages of a web server list, with their paths below the first page, and what is recorded
    of them: one request each.

    Links out of the folder are left alone.
    """
    pages, seen, found = [address], {address}, dict[str, str]()
    while pages:
        page = pages.pop()
        parser = _Links()
        parser.feed(files.page(page).decode("utf-8", "replace"))
        for link in parser.found:
            try:
                target = urljoin(page, link).partition("#")[0]
            except ValueError:  # no address, such as http://[x
                continue
            if "?" in target or not target.startswith(page) or target == page or target in seen:
                continue
            inside = unquote(target[len(address) :])
            if not {"", ".", ".."}.isdisjoint(inside.removesuffix("/").split("/")) or not inside.isprintable():
                continue
            seen.add(target)
            if target.endswith("/"):
                pages.append(target)
            else:
                found[target] = inside
            if len(seen) > _MAX_LISTED or inside.count("/") > _MAX_DEPTH:
                step = "Link folders below it one by one."
                expected = f"at most {_MAX_LISTED:,} files in {_MAX_DEPTH} folders within one another"
                raise ZooError(Problem(address, "listing", expected, "more", step))
    if not found:
        step = "Give the addresses of its files, one on a line of a text file (.txt)."
        raise ZooError(Problem(address, "listing", "a page that links to files", "none", step))
    recorded = list[tuple[str, RecordedFile]]()

    def keep(file: RecordedFile, stream: IO[bytes]) -> None:
        head = stream.read(min(HEAD_REQUEST, file.size))
        files.keep(file.address, 0, head)

    for url, item in zip(found, files.each(found, keep), strict=True):
        if isinstance(item, ZooError):
            raise item
        recorded.append((found[url], item[0]))
    return recorded
