"""The files of a zoo of which some lie here and some in its repository, as the format reads them."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format import table
from ckptzoo.hub.client import Client
from ckptzoo.hub.client.answers import Listing
from ckptzoo.spec.document import REFETCH
from ckptzoo.spec.span import Span


class Afar:
    """A repository whose small files are read once, whatever commit they are asked of."""

    def __init__(self, client: Client, repo: str) -> None:
        self.client, self.repo, self.name = client, repo, client.address(repo)
        self._held: dict[str, bytes] = {}

    def read(self, names: Sequence[str], listing: Listing) -> list[bytes]:
        """Whole files of a commit."""
        keys = {name: f"{name} {listing.files[name]}" for name in names}
        lacking = [name for name, key in keys.items() if key not in self._held]
        for name, data in zip(lacking, self.client.read_many(self.repo, lacking, listing), strict=True):
            self._held[keys[name]] = data
        return [self._held[keys[name]] for name in names]


class Gathered:
    """Files of a zoo by their paths: those in ``local`` lie here, all others in the repository.

    Parameters
    ----------
    afar, listing : the repository, and one of its commits.
    local : paths in the zoo to files of this machine.
    """

    here = None

    def __init__(self, afar: Afar, listing: Listing, local: Mapping[str, Path]) -> None:
        self._afar, self._listing, self._local = afar, listing, local

    @property
    def name(self) -> str:
        """The repository's address."""
        return self._afar.name

    @cached_property
    def _folders(self) -> dict[str, set[str]]:
        made: dict[str, set[str]] = {}
        for name in (*self._listing.files, *self._local):
            while name:
                above, _, last = name.rpartition("/")
                made.setdefault(above, set()).add(last)
                name = above
        return made

    def size(self, name: str) -> int | None:
        """Bytes of a file, or None where there is none."""
        if name in self._local:
            return self._local[name].stat().st_size
        stored = self._listing.files.get(name)
        return None if stored is None else stored.size

    def listed(self, folder: str) -> tuple[str, ...]:
        """Names of the files and folders in a folder, in order."""
        return tuple(sorted(self._folders.get(folder, ())))

    def read(self, name: str, *, max_bytes: int = table.MAX_FILE) -> bytes:
        """A whole file."""
        return self.read_many([name], max_bytes=max_bytes)[0]

    def read_many(self, names: Sequence[str], *, max_bytes: int = table.MAX_FILE) -> list[bytes]:
        """Several whole files."""
        for name in names:
            if not 0 <= (size := self.size(name) or 0) <= max_bytes or self.size(name) is None:
                got = "none" if self.size(name) is None else f"{size} bytes"
                raise IntegrityError(
                    Problem(f"{self.name}/{name}", "file", f"one of at most {max_bytes} bytes", got, REFETCH)
                )
        away = [name for name in names if name not in self._local]
        held = dict(zip(away, self._afar.read(away, self._listing), strict=True))
        return [held[name] if name in held else self._local[name].read_bytes() for name in names]

    def spans(self, wanted: Sequence[Span]) -> list[bytes]:
        """Pieces of files; the files are read whole."""
        return [self._span(span) for span in wanted]

    def _span(self, span: Span) -> bytes:
        data = self.read(span.name)[span.start : span.stop]
        if (found := hashlib.sha256(data).digest()) != span.sha256:
            what = f"sha256 of bytes {span.start} to {span.stop}"
            raise IntegrityError(
                Problem(f"{self.name}/{span.name}", what, span.sha256.hex(), found.hex(), "Push a new snapshot.")
            )
        return data
