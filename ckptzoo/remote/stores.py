"""The interface of a zoo's location (``Store``: list its files, return ranges of them), and the simple locations.

``FolderStore`` is a folder of this machine, ``FilesystemStore`` any place that fsspec can reach (``s3://``, ``gs://``,
``memory://``, ``file://``), ``OfflineStore`` a zoo of which only the cache knows. Hubs are in ``hub_store``, web
servers in ``web_store``. ``decode`` reads ``listing.json`` as ``ckptzoo.format.maintenance`` describes it.
"""

import contextlib
import hashlib
import os
import re
import socket
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

from ckptzoo.errors import AbsentError, IntegrityError, OfflineError, Problem, RemoteError, require
from ckptzoo.format.maintenance import LISTING, VERSION
from ckptzoo.schema.documents import REFETCH, unseal

MAX_NAME = 1024
"""Characters of a name; a path of Linux has at most 4,096 bytes, the cache's own folders among them."""
READ_BYTES = 2**20
"""The limit of one read of a local file."""
REQUEST_BYTES = 16 * 2**20
"""Bytes of one call of fsspec, which returns a range whole: this limits the memory that a longer range takes."""
# Names come from listings of others: none may lead out of a folder, here or where "\" separates names.
_UNSAFE_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\\]|(^|/)(\.{0,2}|[^/]{256,})(/|$)")
"""Control characters, lone surrogates, backslashes, and path segments that are empty, ``.``, ``..`` or too long."""
_CHECK = "Check the address and the credentials; fsspec finds them in its own configuration."


@dataclass(frozen=True)
class FileEntry:
    """One file of a zoo.

    ``name`` is its path from the zoo's folder, with slashes. ``digest`` is ``sha256:<hex>`` of its bytes, ``git:<hex>``
    (sha1 of git's blob), or None where the store does not know.
    """

    name: str
    size: int
    digest: str | None = None


class CancelToken:
    """Stops transfers when it is called: no new request, no further wait, and sockets that are read are shut down."""

    def __init__(self) -> None:
        self._event, self._lock, self._sockets = threading.Event(), threading.Lock(), set[socket.socket]()

    def __call__(self) -> None:
        """Stop every transfer that was given this token."""
        self._event.set()
        with self._lock:
            for sock in self._sockets:
                _shut_down(sock)

    @property
    def called(self) -> bool:
        """Whether it has been called."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep until the seconds have passed or it is called; returns whether it was."""
        return self._event.wait(seconds)

    @contextlib.contextmanager
    def watching(self, sock: socket.socket | None) -> Generator[None]:
        """Within this block, shut this socket down when it is called; None is not watched."""
        if sock is None:
            yield
            return
        with self._lock:
            self._sockets.add(sock)
        if self.called:
            _shut_down(sock)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.discard(sock)


def _shut_down(sock: socket.socket) -> None:
    """End both directions, which wakes the thread that reads."""
    with contextlib.suppress(OSError):
        # not sock.shutdown(): that of an SSLSocket also drops its TLS state while the other thread reads
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


class TransientError(RemoteError):
    """Another attempt may succeed; ``ckptzoo.remote.retry`` makes it, and raises a plain RemoteError after the last.

    ``wait`` is the seconds that the server asked for before the next attempt, or None. ``protocol_error`` means that
    the answer does not fit the request, as from a server that does not serve ranges; after
    ``retry.MAX_PROTOCOL_ERRORS`` of them no other attempt is made.
    """

    def __init__(self, problem: Problem, wait: float | None = None, protocol_error: bool = False) -> None:
        super().__init__(problem)
        self.wait, self.protocol_error = wait, protocol_error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.wait, self.protocol_error)


class Store(Protocol):
    """The files of a zoo at one revision. Stores can be pickled and used by many threads; a pickle holds no secrets."""

    @property
    def address(self) -> str:
        """The zoo, without revision: its name in messages and in the cache."""
        ...

    @property
    def revision(self) -> str:
        """The revision that was pinned at opening: a commit, or a digest of the listing."""
        ...

    @property
    def entries(self) -> Mapping[str, FileEntry]:
        """Every file by name."""
        ...

    def get(self, name: str, start: int, stop: int, cancel: CancelToken) -> Generator[bytes]:
        """Yield bytes ``start`` to ``stop`` of a file as they arrive, by one request (and its redirects).

        Raises TransientError: it broke off, or the server is busy; pieces that were yielded before may be used. Raises
        AbsentError: there is no such file. Raises RemoteError: anything that another attempt does not change.
        """
        ...


def listed(entries: Iterable[FileEntry], *, location: str) -> dict[str, FileEntry]:
    """Return entries by name, in order of the names.

    Raises IntegrityError: a name that is no relative file name (``../x``, ``/x``, control characters) or is there
    twice, or a bad size.
    """
    by_name: dict[str, FileEntry] = {}
    problems: list[Problem] = []
    step = "Do not use this zoo; tell whoever publishes it."
    for entry in entries:
        if len(entry.name) > MAX_NAME or _UNSAFE_NAME.search(entry.name) or entry.name in by_name:
            expected, got = "relative names of files, each once", repr(entry.name[:80])
            problems.append(Problem(location, "listing", expected, got, step))
        elif entry.size < 0:
            problems.append(Problem(location, f"size of {entry.name}", "0 or more", str(entry.size), step))
        by_name[entry.name] = entry
    if problems:
        raise IntegrityError(problems[:20])  # a listing may hold a million of them
    return dict(sorted(by_name.items()))


def find_entry(entries: Mapping[str, FileEntry], name: str, *, location: str) -> FileEntry:
    """Return the entry of a file; raises AbsentError where there is none."""
    try:
        return entries[name]
    except KeyError:
        step = "Check the name, and the revision."
        raise AbsentError(Problem(location, name, "a file", "none of that name", step)) from None


def revision_of(entries: dict[str, FileEntry]) -> str:
    """Return ``sha256:<hex>`` of names, sizes and digests: the revision of a store that keeps no versions."""
    digest = hashlib.sha256()
    for entry in entries.values():
        # no name holds \0, so that no two lists of entries give the same bytes
        digest.update(f"{entry.name}\0{entry.size}\0{entry.digest or ''}\0".encode())
    return f"sha256:{digest.hexdigest()}"


def decode(data: bytes, *, location: str) -> tuple[dict[str, FileEntry], str]:
    """Return the entries of a ``listing.json`` by name, and its digest. The listing is untrusted.

    Raises IntegrityError: it is no listing, its digest disagrees, or it holds names that are not relative file names.
    """
    content, digest = unseal(data, location=location)
    files = content.get("files")
    if content.get("version") != VERSION or not isinstance(files, dict):
        got = repr(content.get("version"))
        raise IntegrityError(Problem(location, "version", str(VERSION), got, "Upgrade ckptzoo to read it."))
    entries = [_entry_of_facts(name, facts, location) for name, facts in cast(Mapping[str, Any], files).items()]
    return listed(entries, location=location), digest


def _entry_of_facts(name: str, facts: Any, location: str) -> FileEntry:
    match facts:
        case [bool(), _]:  # a bool is an int for Python, and no size
            pass
        case [int(size), None]:
            return FileEntry(name, size)
        case [int(size), str(text)] if len(text) == 64 and set(text) <= set("0123456789abcdef"):
            return FileEntry(name, size, f"sha256:{text}")
    raise IntegrityError(Problem(location, f"file {name[:80]!r}", "[size, sha256]", repr(facts)[:80], REFETCH))


class FolderStore:
    """The files of a folder and of those in it, except names that begin with a dot."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._entries: dict[str, FileEntry] | None = None

    @property
    def address(self) -> str:
        return str(self.root)

    @property
    def entries(self) -> dict[str, FileEntry]:
        """Every file by name, as they were when first asked for."""
        if self._entries is None:
            self._entries = listed(self._walk(), location=self.address)
        return self._entries

    @property
    def revision(self) -> str:
        """A digest of the names and sizes."""
        return revision_of(self.entries)

    def get(self, name: str, start: int, stop: int, cancel: CancelToken) -> Generator[bytes]:
        find_entry(self.entries, name, location=self.address)
        try:
            with (self.root / name).open("rb") as file:
                file.seek(start)
                while start < stop and not cancel.called:
                    piece = file.read(min(READ_BYTES, stop - start))
                    if not piece:
                        got = f"an end at {start}"
                        raise TransientError(Problem(self.address, name, f"{stop} bytes", got, "Fetch the file again."))
                    start += len(piece)
                    yield piece
        except FileNotFoundError as error:
            raise AbsentError(Problem(self.address, name, "a file", "none", "Restore it from a copy.")) from error
        except OSError as error:
            got = error.strerror or str(error)
            raise RemoteError(Problem(self.address, name, "a readable file", got, "Check its permissions.")) from error

    def _walk(self) -> Iterator[FileEntry]:
        for folder, folders, files in os.walk(self.root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for file in (Path(folder) / name for name in files if not name.startswith(".")):
                yield FileEntry(file.relative_to(self.root).as_posix(), file.stat().st_size)


class FilesystemStore:
    """A folder that fsspec reaches. The store holds an address only; fsspec makes file systems and finds credentials.

    Raises MissingExtraError: fsspec is not installed; it comes with the extra ``hub``. The package of a scheme (s3fs,
    gcsfs) is named by fsspec's own message.
    """

    def __init__(self, url: str) -> None:
        self.address = url
        self._entries: dict[str, FileEntry] | None = None

    @property
    def entries(self) -> dict[str, FileEntry]:
        """Every file by name, as they were when first asked for; names that begin with a dot are left out."""
        if self._entries is None:
            system, root = self._file_system
            try:
                details = system.find(root, detail=True)
            except FileNotFoundError:
                details = {}
            except Exception as error:  # of s3fs, gcsfs, aiohttp, botocore, ...: fsspec promises no class
                raise self._failed("listing", error) from error
            if not details:  # object stores have no folders: one without files is not there
                raise AbsentError(Problem(self.address, "folder", "files", "none", _CHECK))
            entries = [_entry_of_detail(path, root, detail) for path, detail in details.items()]
            visible = [entry for entry in entries if not any(part.startswith(".") for part in entry.name.split("/"))]
            self._entries = self._with_digests(listed(visible, location=self.address))
        return self._entries

    def _with_digests(self, entries: dict[str, FileEntry]) -> dict[str, FileEntry]:
        """Add the digests of ``listing.json``, if there is one, so that whole files can be cached."""
        if LISTING not in entries:
            return entries
        self._entries, size = entries, entries[LISTING].size
        known, _ = decode(b"".join(self.get(LISTING, 0, size, CancelToken())), location=f"{self.address}/{LISTING}")
        return {
            **entries,
            **{name: entry for name, entry in known.items() if entries.get(name) == FileEntry(name, entry.size)},
        }

    @property
    def revision(self) -> str:
        """A digest of the names and sizes."""
        return revision_of(self.entries)

    def get(self, name: str, start: int, stop: int, cancel: CancelToken) -> Generator[bytes]:
        """Yield bytes ``start`` to ``stop`` of a file, as ``Store.get``, with a request for every ``REQUEST_BYTES``."""
        find_entry(self.entries, name, location=self.address)
        system, root = self._file_system
        # one call for all would hold the whole range in memory
        while start < stop and not cancel.called:
            end = min(start + REQUEST_BYTES, stop)
            try:
                piece = system.cat_file(f"{root}/{name}", start=start, end=end)
            except FileNotFoundError as error:
                raise AbsentError(Problem(self.address, name, "a file", "none", _CHECK)) from error
            except Exception as error:  # as above
                raise self._failed(name, error) from error
            if len(piece) != end - start:
                expected, got = f"{end - start} bytes from {start}", str(len(piece))
                raise TransientError(
                    Problem(self.address, name, expected, got, "Try again later."), protocol_error=True
                )
            start = end
            yield piece

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address, "_entries": self._entries}

    @cached_property
    def _file_system(self) -> tuple[Any, str]:
        """The file system of fsspec, and the zoo's folder in it."""
        core = require("fsspec.core", "hub")
        try:
            system, root = core.url_to_fs(self.address)
        except (ImportError, ValueError) as error:
            expected = "a scheme that fsspec knows"
            raise RemoteError(Problem(self.address, "address", expected, str(error)[:200], _CHECK)) from error
        return system, str(root).rstrip("/")

    def _failed(self, what: str, error: Exception) -> RemoteError:
        """Return the error for an exception of a file system: of any class, of s3fs, gcsfs or their dependencies."""
        problem = Problem(self.address, what, "an answer", f"{type(error).__name__}: {error}"[:200], _CHECK)
        # fsspec passes on the exceptions of each file system's own package
        is_final = isinstance(error, PermissionError | NotImplementedError | ImportError | TypeError)
        return RemoteError(problem) if is_final else TransientError(problem)


def _entry_of_detail(path: str, root: str, detail: dict[str, Any]) -> FileEntry:
    # fsspec reports None where a file system does not know the size
    return FileEntry(path.removeprefix(root).lstrip("/"), int(detail.get("size") or 0))


class OfflineStore:
    """The names and sizes of a zoo's files, as the cache remembers them; ``get`` always raises."""

    def __init__(self, address: str, revision: str, entries: dict[str, FileEntry]) -> None:
        self.address, self.revision, self.entries = address, revision, entries

    def get(self, name: str, start: int, stop: int, cancel: CancelToken) -> Generator[bytes]:
        """Raise OfflineError."""
        step = "Unset CKPTZOO_OFFLINE and HF_HUB_OFFLINE to fetch it."
        raise OfflineError(Problem(self.address, name, "in the cache", f"{stop - start} bytes missing", step))
        yield b""  # which makes this a generator, as Store.get is
