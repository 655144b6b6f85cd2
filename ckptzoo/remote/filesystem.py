"""Any place that fsspec can reach (``s3://``, ``gs://``, ``memory://``, ``file://``) as a store."""

from collections.abc import Generator
from functools import cached_property
from typing import Any

from ckptzoo.errors import AbsentError, MissingExtraError, Problem, RemoteError
from ckptzoo.remote.errors import TransientError
from ckptzoo.remote.folder import revision_of
from ckptzoo.remote.listing import LISTING, decode
from ckptzoo.remote.store import Entry, Halt, found, listed

PIECE_BYTES = 16 * 2**20
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
        self._entries: dict[str, Entry] | None = None

    @property
    def entries(self) -> dict[str, Entry]:
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
            made = [_entry(path, root, detail) for path, detail in held.items()]
            shown = [entry for entry in made if not any(part.startswith(".") for part in entry.name.split("/"))]
            self._entries = self._sealed(listed(shown, where=self.address))
        return self._entries

    def _sealed(self, entries: dict[str, Entry]) -> dict[str, Entry]:
        """The entries with the digests that a listing beside them knows, so that whole files can be cached too."""
        if LISTING not in entries:
            return entries
        self._entries, size = entries, entries[LISTING].size
        known, _ = decode(b"".join(self.get(LISTING, 0, size, Halt())), where=f"{self.address}/{LISTING}")
        return {
            **entries,
            **{name: entry for name, entry in known.items() if entries.get(name) == Entry(name, entry.size)},
        }

    @property
    def revision(self) -> str:
        """A digest of the names and sizes."""
        return revision_of(self.entries)

    def get(self, name: str, start: int, stop: int, halt: Halt) -> Generator[bytes]:
        """Bytes ``start`` to ``stop`` of a file, as ``Store.get``, with a request for every ``PIECE_BYTES``."""
        found(self.entries, name, where=self.address)
        system, root = self._reached
        while start < stop and not halt.called:
            end = min(start + PIECE_BYTES, stop)
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


def _entry(path: str, root: str, detail: dict[str, Any]) -> Entry:
    return Entry(path.removeprefix(root).lstrip("/"), int(detail.get("size") or 0))
