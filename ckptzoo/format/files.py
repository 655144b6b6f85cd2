"""The files of a zoo, wherever they are: everything that the format reads of a zoo, it reads through ``Files``."""

import hashlib
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Protocol

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format import limits, table
from ckptzoo.format.durable import regular
from ckptzoo.schema.documents import REFETCH
from ckptzoo.schema.layout import Span

if TYPE_CHECKING:
    from ckptzoo.format.sources import Follow

DEREFERENCE = "Put a copy of it there, as cp --dereference makes one."
"""The next step for a link that leads out of a zoo."""


class Files(Protocol):
    """The files of one zoo, by their paths from its folder, with slashes."""

    @property
    def name(self) -> str:
        """The name of the zoo in messages."""
        ...

    @property
    def here(self) -> Path | None:
        """The zoo's folder where it is on this machine, so that shards can be mapped."""
        ...

    def size(self, name: str) -> int | None:
        """Bytes of a file, or None where there is none."""
        ...

    def listed(self, folder: str) -> tuple[str, ...]:
        """Names of the files and folders in a folder, in order; none where there is no such folder."""
        ...

    def read(self, name: str, *, max_bytes: int = limits.MAX_FILE) -> bytes:
        """A whole file; one that is missing or larger is an IntegrityError."""
        ...

    def read_many(self, names: Sequence[str], *, max_bytes: int = limits.MAX_FILE) -> list[bytes]:
        """Several whole files, in the order of their names."""
        ...

    def spans(self, wanted: Sequence[Span]) -> list[bytes]:
        """Pieces of files; one with another digest is an IntegrityError."""
        ...


def typed(files: Files) -> str:
    """Return how a zoo is named in a shell: by its folder, or by its address without the hub, which messages name."""
    return quote(files.name.partition(" at http")[0] if files.here is None else str(files.here))


def excess(files: Files, folder: str, names: Collection[str], limit: tuple[str, int, int], step: str) -> Problem | None:
    """Return the problem of more files in a folder, or more bytes of them, than a zoo may have.

    ``limit`` has the word for the files, and how many there may be of how many bytes in all.
    """
    word, most, most_bytes = limit
    location, nbytes = f"{files.name}/{folder}", sum(files.size(name) or 0 for name in names)
    if len(names) > most:
        return Problem(location, word, f"at most {most:,}", f"{len(names):,}", step)
    if nbytes > most_bytes:
        return Problem(location, f"bytes of {word}", f"at most {most_bytes:,}", f"{nbytes:,}", step)
    return None


class Folder:
    """A zoo's folder on this machine.

    ``follow`` says where the files are that its parts refer to, or from which servers they are read; None where that
    was recorded when they were linked. ``hub`` is the address of the hub from which they are read, and the token, which
    stays in this process.
    """

    def __init__(self, root: str | os.PathLike[str], follow: "Follow | None" = None) -> None:
        self.here, self.follow = Path(root).absolute(), follow
        self.hub: tuple[str | None, str | None] = None, None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "hub": (self.hub[0], None)}

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.here.name

    def size(self, name: str) -> int | None:
        """Bytes of a file, or None where there is none."""
        try:
            # asked once or more for every file: a path of pathlib costs three times as much as the call
            return os.stat(f"{self.here}/{name}").st_size  # noqa: PTH116
        # a listing may name what no file can be called: with a null byte it is a ValueError
        except (OSError, ValueError):
            return None

    def listed(self, folder: str) -> tuple[str, ...]:
        """Names of the files and folders in a folder, in order."""
        try:
            return tuple(sorted(os.listdir(self.here / folder)))  # noqa: PTH208, paths of thousands cost more
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def read(self, name: str, *, max_bytes: int = limits.MAX_FILE) -> bytes:
        """A whole file, its size bounded before it is read."""
        return table.read_bytes(self.here / name, location=f"{self.name}/{name}", max_bytes=max_bytes)

    def read_many(self, names: Sequence[str], *, max_bytes: int = limits.MAX_FILE) -> list[bytes]:
        """Several whole files."""
        return [self.read(name, max_bytes=max_bytes) for name in names]

    def spans(self, wanted: Sequence[Span]) -> list[bytes]:
        """Pieces of files."""
        return [self._span(span) for span in wanted]

    def _span(self, span: Span) -> bytes:
        location = f"{self.name}/{span.name}"
        try:
            with open(self.here / span.name, "rb", buffering=0, opener=regular) as file:
                data = os.pread(file.fileno(), span.stop - span.start, span.start)
        except OSError as error:
            got = error.strerror or "none"
            raise IntegrityError(Problem(location, "file", "a readable file", got, REFETCH)) from error
        check_span(data, span, location=location)
        return data


def leads_outside(path: Path, root: Path) -> Path | None:
    """Where a file or folder of a zoo really is, if links lead out of the zoo's folder; None if they do not."""
    # unlike Path.resolve, os.path.realpath bears links that lead to themselves
    target, root = Path(os.path.realpath(path)), root.absolute()
    homes = [Path(os.path.realpath(root))]
    for repository in (root, root.parent):  # the zoo is all of it, or a folder of a collection
        if repository.parent.name == "snapshots":
            # in the cache of huggingface_hub snapshots/<commit>/<file> is a link to blobs/<digest> of the same one
            homes.append(Path(os.path.realpath(repository.parent.parent / "blobs")))
    return None if any(target.is_relative_to(home) for home in homes) else target


def check_span(data: bytes, span: Span, *, location: str, step: str = REFETCH) -> None:
    """Raise IntegrityError unless these are the bytes of a piece of a file."""
    if (digest := hashlib.sha256(data).digest()) != span.sha256:
        what = f"sha256 of bytes {span.start} to {span.stop}"
        raise IntegrityError(Problem(location, what, span.sha256.hex(), digest.hex(), step))


def folders_of(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The names in every folder, in order, from the paths of all files; that of the zoo itself is ``""``."""
    folders: dict[str, set[str]] = {}
    for name in names:
        while name:
            folder, _, last = name.rpartition("/")
            folders.setdefault(folder, set()).add(last)
            name = folder
    return {folder: tuple(sorted(entries)) for folder, entries in folders.items()}
