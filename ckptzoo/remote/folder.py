"""A folder of this machine as a store: what the others are measured against."""

import hashlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path

from ckptzoo.errors import AbsentError, Problem, RemoteError
from ckptzoo.remote.errors import TransientError
from ckptzoo.remote.store import Entry, Halt, found, listed

PIECE_BYTES = 2**20


class FolderStore:
    """The files of a folder and of those in it, except names that begin with a dot."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._entries: dict[str, Entry] | None = None

    @property
    def address(self) -> str:
        """The folder's path."""
        return str(self.root)

    @property
    def entries(self) -> dict[str, Entry]:
        """Every file by name, as they were when first asked for."""
        if self._entries is None:
            self._entries = listed(self._walk(), where=self.address)
        return self._entries

    @property
    def revision(self) -> str:
        """A digest of the names and sizes."""
        return revision_of(self.entries)

    def get(self, name: str, start: int, stop: int, halt: Halt) -> Generator[bytes]:
        """Bytes ``start`` to ``stop`` of a file, as ``Store.get``."""
        found(self.entries, name, where=self.address)
        try:
            with (self.root / name).open("rb") as file:
                file.seek(start)
                while start < stop and not halt.called:
                    piece = file.read(min(PIECE_BYTES, stop - start))
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

    def _walk(self) -> Iterator[Entry]:
        for folder, folders, files in os.walk(self.root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            at = Path(folder)
            for file in (at / name for name in files if not name.startswith(".")):
                yield Entry(file.relative_to(self.root).as_posix(), file.stat().st_size)


def revision_of(entries: dict[str, Entry]) -> str:
    """``sha256:`` and the digest of names, sizes and digests: the revision of a store that keeps no versions."""
    made = hashlib.sha256()
    for entry in entries.values():
        made.update(f"{entry.name}\0{entry.size}\0{entry.digest or ''}\0".encode())
    return f"sha256:{made.hexdigest()}"
