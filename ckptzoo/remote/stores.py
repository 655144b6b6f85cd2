"""What every place that holds a zoo must be able to do: say which files it has, and hand out ranges of them.

A folder of this machine as a store: what the others are measured against.

Any place that fsspec can reach (``s3://``, ``gs://``, ``memory://``, ``file://``) as a store.

A zoo of which only the cache can be asked.

What passes: caught within this room, and raised as a RemoteError when patience has ended.

``listing.json`` as ``ckptzoo.format.maintenance`` describes it, read as a stranger's.
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

from ckptzoo.errors import AbsentError, IntegrityError, MissingExtraError, OfflineError, Problem, RemoteError
from ckptzoo.format.maintenance import LISTING, VERSION
from ckptzoo.schema.documents import REFETCH, unseal

_BAD = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\\]|(^|/)(\.{0,2}|[^/]{256,})(/|$)")
"""Control characters, halves of letters, backslashes, and path segments that are empty, ``.``, ``..`` or too long."""
MAX_NAME = 1024


@dataclass(frozen=True)
class FileEntry:
    """One file of a zoo.

    Parameters
    ----------
    name : its path from the zoo's folder, with slashes.
    size : bytes.
    digest : ``sha256:<hex>`` of its bytes, ``git:<hex>`` (sha1 of git's blob), or None where the store does not know.
    """

    name: str
    size: int
    digest: str | None = None


class CancelToken:
    """Tells transfers to stop: no new request, no further wait, and sockets that are being read are shut down."""

    def __init__(self) -> None:
        self._event, self._lock, self._sockets = threading.Event(), threading.Lock(), set[socket.socket]()

    def __call__(self) -> None:
        """Stop everything that was given this."""
        self._event.set()
        with self._lock:
            for connected in self._sockets:
                _shut(connected)

    @property
    def called(self) -> bool:
        """Whether it has been called."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep, but not longer than until it is called; returns whether it was."""
        return self._event.wait(seconds)

    @contextlib.contextmanager
    def watching(self, connected: socket.socket | None) -> Generator[None]:
        """Shut this socket down when it is called; None is not watched."""
        if connected is None:
            yield
            return
        with self._lock:
            self._sockets.add(connected)
        if self.called:
            _shut(connected)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.discard(connected)


def _shut(connected: socket.socket) -> None:
    """End both directions below any encryption, which wakes whoever reads."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


class Store(Protocol):
    """A zoo somewhere, at one revision. Stores can be pickled, used by many threads, and hold no secrets."""

    @property
    def address(self) -> str:
        """The zoo, without revision: what messages name and what the cache is filed under."""
        ...

    @property
    def revision(self) -> str:
        """What the listing was pinned to: a commit, or a digest of the listing."""
        ...

    @property
    def entries(self) -> Mapping[str, FileEntry]:
        """Every file by name."""
        ...

    def get(self, name: str, start: int, stop: int, cancel: CancelToken) -> Generator[bytes]:
        """Bytes ``start`` to ``stop`` of a file in pieces as they arrive, by one request (and what it redirects to).

        Raises
        ------
        TransientError
            It broke off, or the server is busy; pieces that were yielded are right as far as the transport can tell.
        AbsentError
            There is no such file.
        RemoteError
            Anything that another try will not mend.
        """
        ...


def listed(entries: Iterable[FileEntry], *, location: str) -> dict[str, FileEntry]:
    """Entries by name, in order of the names.

    Raises
    ------
    IntegrityError
        A name that is no relative file name (``../x``, ``/x``, control characters), twice the same, or a bad size.
    """
    made: dict[str, FileEntry] = {}
    problems: list[Problem] = []
    step = "Do not use this zoo; tell whoever publishes it."
    for entry in entries:
        if len(entry.name) > MAX_NAME or _BAD.search(entry.name) or entry.name in made:
            shown = repr(entry.name[:80])
            problems.append(Problem(location, "listing", "relative names of files, each once", shown, step))
        elif entry.size < 0:
            problems.append(Problem(location, f"size of {entry.name}", "0 or more", str(entry.size), step))
        made[entry.name] = entry
    if problems:
        raise IntegrityError(problems[:20])
    return dict(sorted(made.items()))


def find_entry(entries: Mapping[str, FileEntry], name: str, *, location: str) -> FileEntry:
    """The entry of a file; raises AbsentError where there is none."""
    try:
        return entries[name]
    except KeyError:
        step = "Check the name, and the revision."
        raise AbsentError(Problem(location, name, "a file", "none of that name", step)) from None


class TransientError(RemoteError):
    """Another try may succeed.

    Parameters
    ----------
    problem : what was expected and what came.
    wait : seconds that the server asked for before the next try, or None.
    strange : the answer was not to the question, as from a server that does not serve ranges; few such are borne.
    """

    def __init__(self, problem: Problem, wait: float | None = None, strange: bool = False) -> None:
        super().__init__(problem)
        self.wait, self.protocol_error = wait, strange
        self.args = (problem, wait, strange)


READ_BYTES = 2**20


class FolderStore:
    """The files of a folder and of those in it, except names that begin with a dot."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._entries: dict[str, FileEntry] | None = None

    @property
    def address(self) -> str:
        """The folder's path."""
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
        """Bytes ``start`` to ``stop`` of a file, as ``Store.get``."""
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
            said = error.strerror or str(error)
            raise RemoteError(Problem(self.address, name, "a readable file", said, "Check its permissions.")) from error

    def _walk(self) -> Iterator[FileEntry]:
        for folder, folders, files in os.walk(self.root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            at = Path(folder)
            for file in (at / name for name in files if not name.startswith(".")):
                yield FileEntry(file.relative_to(self.root).as_posix(), file.stat().st_size)


def revision_of(entries: dict[str, FileEntry]) -> str:
    """``sha256:`` and the digest of names, sizes and digests: the revision of a store that keeps no versions."""
    made = hashlib.sha256()
    for entry in entries.values():
        made.update(f"{entry.name}\0{entry.size}\0{entry.digest or ''}\0".encode())
    return f"sha256:{made.hexdigest()}"


_PREFIX = "sha256:"


def decode(data: bytes, *, location: str) -> tuple[dict[str, FileEntry], str]:
    """Entries by name, and the listing's digest.

    Raises
    ------
    IntegrityError
        It is no listing, its digest disagrees, or it holds names that are not relative file names.
    """
    content, digest = unseal(data, location=location)
    files = content.get("files")
    if content.get("version") != VERSION or not isinstance(files, dict):
        got = repr(content.get("version"))
        raise IntegrityError(Problem(location, "version", str(VERSION), got, "Upgrade ckptzoo to read it."))
    made = [_entry_of_facts(name, facts, location) for name, facts in cast(Mapping[str, Any], files).items()]
    return listed(made, location=location), digest


def _entry_of_facts(name: str, facts: Any, location: str) -> FileEntry:
    match facts:
        case [bool(), _]:
            pass
        case [int(size), None]:
            return FileEntry(name, size)
        case [int(size), str(text)] if len(text) == 64 and set(text) <= set("0123456789abcdef"):
            return FileEntry(name, size, _PREFIX + text)
    raise IntegrityError(Problem(location, f"file {name[:80]!r}", "[size, sha256]", repr(facts)[:80], REFETCH))


REQUEST_BYTES = 16 * 2**20
"""Bytes of one call: fsspec hands out a range whole, so this bounds the memory of a longer one."""
_CHECK = "Check the address and the credentials; fsspec finds them in its own configuration."


class FilesystemStore:
    """A folder behind fsspec. It holds the address only: file systems and credentials are fsspec's, made when needed.

    Raises
    ------
    MissingExtraError
        fsspec is not installed; it comes with the extra ``hub``. The package of a scheme (s3fs, gcsfs) is named by
        fsspec's own message.
    """

    def __init__(self, url: str) -> None:
        self.address = url
        self._entries: dict[str, FileEntry] | None = None

    @property
    def entries(self) -> dict[str, FileEntry]:
        """Every file by name, as they were when first asked for; names that begin with a dot are left out."""
        if self._entries is None:
            system, root = self._reached
            try:
                held = system.find(root, detail=True)
            except FileNotFoundError:
                held = {}
            except Exception as error:
                raise self._failed("listing", error) from error
            if not held:
                raise AbsentError(Problem(self.address, "folder", "files", "none", _CHECK))
            made = [_entry_of_detail(path, root, detail) for path, detail in held.items()]
            shown = [entry for entry in made if not any(part.startswith(".") for part in entry.name.split("/"))]
            self._entries = self._sealed(listed(shown, location=self.address))
        return self._entries

    def _sealed(self, entries: dict[str, FileEntry]) -> dict[str, FileEntry]:
        """The entries with the digests that a listing beside them knows, so that whole files can be cached too."""
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
        """Bytes ``start`` to ``stop`` of a file, as ``Store.get``, with a request for every ``REQUEST_BYTES``."""
        find_entry(self.entries, name, location=self.address)
        system, root = self._reached
        while start < stop and not cancel.called:
            end = min(start + REQUEST_BYTES, stop)
            try:
                piece = system.cat_file(f"{root}/{name}", start=start, end=end)
            except FileNotFoundError as error:
                raise AbsentError(Problem(self.address, name, "a file", "none", _CHECK)) from error
            except Exception as error:
                raise self._failed(name, error) from error
            if len(piece) != end - start:
                expected, got = f"{end - start} bytes from {start}", str(len(piece))
                raise TransientError(Problem(self.address, name, expected, got, "Try again later."), strange=True)
            start = end
            yield piece

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address, "_entries": self._entries}

    @cached_property
    def _reached(self) -> tuple[Any, str]:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise MissingExtraError("fsspec", "hub") from None
        try:
            system, root = url_to_fs(self.address)
        except (ImportError, ValueError) as error:
            expected = "a scheme that fsspec knows"
            raise RemoteError(Problem(self.address, "address", expected, str(error)[:200], _CHECK)) from error
        return system, str(root).rstrip("/")

    def _failed(self, what: str, error: Exception) -> RemoteError:
        """Whatever a file system raises, which may be any class of the package behind it."""
        problem = Problem(self.address, what, "an answer", f"{type(error).__name__}: {error}"[:200], _CHECK)
        final = isinstance(error, PermissionError | NotImplementedError | ImportError | TypeError)
        return RemoteError(problem) if final else TransientError(problem)


def _entry_of_detail(path: str, root: str, detail: dict[str, Any]) -> FileEntry:
    return FileEntry(path.removeprefix(root).lstrip("/"), int(detail.get("size") or 0))


class OfflineStore:
    """What was remembered of a zoo; it hands out nothing.

    Parameters
    ----------
    address, revision, entries : as a store had them.
    """

    def __init__(self, address: str, revision: str, entries: dict[str, FileEntry]) -> None:
        self.address, self.revision, self.entries = address, revision, entries

    def get(self, name: str, start: int, stop: int, cancel: CancelToken) -> Generator[bytes]:
        """Raise OfflineError."""
        step = "Unset CKPTZOO_OFFLINE and HF_HUB_OFFLINE to fetch it."
        raise OfflineError(Problem(self.address, name, "in the cache", f"{stop - start} bytes missing", step))
        yield b""
