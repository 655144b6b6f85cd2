"""The files of a zoo of which some lie here and some in its repository, as the format reads them."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format import table
from ckptzoo.format.files import check_span, folders_of
from ckptzoo.hub.client import Client
from ckptzoo.hub.client.answers import Listing
from ckptzoo.spec.document import REFETCH
from ckptzoo.spec.span import Span


class Repository:
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
    repository, listing : the repository, and one of its commits.
    local : paths in the zoo to files of this machine.
    """

    here = None

    def __init__(self, repository: Repository, listing: Listing, local: Mapping[str, Path]) -> None:
        self._repository, self._listing, self._local = repository, listing, local

    @property
    def name(self) -> str:
        """The repository's address."""
        return self._repository.name

    @cached_property
    def _folders(self) -> dict[str, tuple[str, ...]]:
        return folders_of([*self._listing.files, *self._local])

    def size(self, name: str) -> int | None:
        """Bytes of a file, or None where there is none."""
        if name in self._local:
            return self._local[name].stat().st_size
        stored = self._listing.files.get(name)
        return None if stored is None else stored.size

    def listed(self, folder: str) -> tuple[str, ...]:
        """Names of the files and folders in a folder, in order."""
        return self._folders.get(folder, ())

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
        held = dict(zip(away, self._repository.read(away, self._listing), strict=True))
        return [held[name] if name in held else self._local[name].read_bytes() for name in names]

    def spans(self, wanted: Sequence[Span]) -> list[bytes]:
        """Pieces of files; the files are read whole."""
        return [self._span(span) for span in wanted]

    def _span(self, span: Span) -> bytes:
        data = self.read(span.name)[span.start : span.stop]
        check_span(data, span, where=f"{self.name}/{span.name}", step="Push a new snapshot.")
        return data
