"""The files that a push reads: those of the zoo's folder, those of its repository, and both together."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any

import pyarrow as pa

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.format import limits
from ckptzoo.format.files import DEREFERENCE, Folder, check_span, folders_of, leads_outside
from ckptzoo.format.part import Part, read_rows
from ckptzoo.format.reader import read_documents
from ckptzoo.format.references import References, has_references
from ckptzoo.format.splits import split_names
from ckptzoo.format.tree import Tree, empty_tree
from ckptzoo.hub.card import card_in
from ckptzoo.hub.card.explorer import check_explorer
from ckptzoo.hub.card.pictures import check_pictures
from ckptzoo.hub.client import Client
from ckptzoo.hub.client.models import RevisionListing
from ckptzoo.hub.client.stored_files import LocalFile
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.card import CARD_TOML, CARDS
from ckptzoo.schema.documents import REFETCH
from ckptzoo.schema.layout import Span
from ckptzoo.text import excerpt


@dataclass(frozen=True)
class LocalPart:
    """A part and its files by their paths from the zoo's folder, the index last."""

    part: Part
    files: dict[str, LocalFile]
    root: Path

    @property
    def path(self) -> str:
        """Its folder, from the zoo's."""
        return self.part.path

    @cached_property
    def rows(self) -> pa.Table:
        return read_rows(Folder(self.root), self.part)


@dataclass(frozen=True)
class LocalZoo:
    """A zoo's folder: documents, splits, releases, card files, pictures, and parts: raw first, each tree in order.

    ``trees`` are those of the parts.
    """

    root: Path
    documents: dict[str, LocalFile]
    card_files: dict[str, LocalFile]
    parts: tuple[LocalPart, ...]
    trees: Mapping[str, Tree] = field(default_factory=dict, repr=False)


def read_local(root: Path, trees: Mapping[str, Tree]) -> LocalZoo:
    """Read what a zoo's folder holds of these trees, which were checked.

    Shards are not read: their digests are those of the index. Raises ``SpecError`` where the card is not valid, the
    folder lacks a picture that it names, or its explorer is too large; ``ZooError`` where its weights lie in files that
    others cannot read.
    """
    files = Folder(root)
    identity, arch, _ = read_documents(files)
    if identity.references:
        _require_public(files, trees, arch, root)
    parts: list[LocalPart] = []
    for tree in trees.values():
        index = tree.blocks.select(["file", "tensor", "nbytes", "sha256", "part"])
        shards: list[list[dict[str, Any]]] = [[] for _ in tree.parts]
        for row in index.filter(index["tensor"].is_null()).to_pylist():
            shards[row["part"]].append(row)
        for part, own in zip(tree.parts, shards, strict=True):
            part_files = {f"{part.path}/{layout.METADATA}": hashed(root / part.path / layout.METADATA)}
            for row in own:
                path = f"{part.path}/{row['file']}"
                part_files[path] = LocalFile(root / path, row["nbytes"], row["sha256"].hex())
            if has_references(part):
                part_files[f"{part.path}/{layout.REFERENCES}"] = hashed(root / part.path / layout.REFERENCES)
            part_files[f"{part.path}/{layout.INDEX}"] = hashed(root / part.path / layout.INDEX)
            parts.append(LocalPart(part, part_files, root))
    pictures = check_pictures(files, card_in(files)) if (root / CARD_TOML).is_file() else ()
    releases = layout.release_names(files.listed(layout.RELEASES))
    marks = layout.reproduction_files(files.listed(layout.REPRODUCED))
    figures = layout.landscape_files(files.listed(layout.LANDSCAPE))
    documents, card_files = (
        {name: hashed(root / name) for name in names if (root / name).is_file()}
        for names in (
            (
                *layout.DOCUMENTS,
                *map(layout.split_file, split_names(files)),
                *map(layout.release_file, releases),
                *marks,
                *figures,
            ),
            (*CARDS, *pictures, *check_explorer(files)),
        )
    )
    return LocalZoo(root, documents, card_files, tuple(parts), trees)


def _require_public(files: Folder, trees: Mapping[str, Tree], arch: Architecture, root: Path) -> None:
    """Raise ``ZooError`` where a zoo refers to files of this machine, or of servers that readers have to name."""
    references = References(files, trees.get(layout.PARTS, empty_tree()), arch)
    got = "" if references.is_remote.all() else "one that refers to files of this machine"
    if not got:
        # of S3 too only the address of a bucket that all can read is in a zoo
        private = next(
            (one.address for one in references.remote_files if one.address.lower().startswith("http://")), ""
        )
        got = f"one that refers to {excerpt(private)}" if private else ""
    if got:
        expected = "a zoo that holds its weights, or refers to https:// and hf://"
        step = (
            f"Copy the weights into a zoo with ckptzoo materialize {quote(str(root))} --to NEWZOO, and push that; or, "
            "where the same files are on a hub or a web server that all can read, link them there with ckptzoo link "
            "SOURCE --to NEWZOO."
        )
        raise ZooError(Problem(str(root), "a zoo to publish", expected, got, step))


def links_outside(zoo: LocalZoo) -> list[Problem]:
    """Return files to be published that a link leads out of the folder to: an untrusted zoo may point anywhere."""
    files = [
        *zoo.documents.values(),
        *zoo.card_files.values(),
        *(file for part in zoo.parts for file in part.files.values()),
    ]
    return [
        Problem(str(file.path), "file", "one in the zoo's folder", f"a link to {target}", DEREFERENCE)
        for file in files
        if (target := leads_outside(file.path, zoo.root)) is not None
    ]


def hashed(path: Path) -> LocalFile:
    """Return a file of this machine, with its digest."""
    data = path.read_bytes()
    return LocalFile(path, len(data), hashlib.sha256(data).hexdigest())


class RepositoryFiles:
    """A repository, or ``folder`` of one, whose small files are read once, in whatever commit they are.

    Paths and listings are those of the folder; of the repository where it is empty.
    """

    def __init__(self, client: Client, repo: str, folder: str = "") -> None:
        self.client, self.repo, self.folder = client, repo, folder
        self.name = client.address(repo) + (f"/{folder}" if folder else "")
        self._contents: dict[str, bytes] = {}
        self._folders: dict[str, RepositoryFiles] = {}

    def within(self, folder: str) -> "RepositoryFiles":
        if folder not in self._folders:
            self._folders[folder] = RepositoryFiles(self.client, self.repo, folder)
        return self._folders[folder]

    def read(self, names: Sequence[str], listing: RevisionListing) -> list[bytes]:
        """Read whole files of a commit."""
        # size and digests say which bytes a file has, whatever the commit
        keys = {name: f"{name} {listing.files[name]}" for name in names}
        missing = [name for name, key in keys.items() if key not in self._contents]
        paths = {(f"{self.folder}/{name}" if self.folder else name): listing.files[name] for name in missing}
        contents = self.client.read_many(self.repo, list(paths), replace(listing, files=paths))
        for name, data in zip(missing, contents, strict=True):
            self._contents[keys[name]] = data
        return [self._contents[keys[name]] for name in names]


class OverlayFiles:
    """Files of a zoo by their paths: ``local`` ones from this machine, others from a commit of the repository.

    ``here`` is the folder with all parts, from which weights can be read; None where some are in the repository alone.
    """

    def __init__(
        self,
        repository: RepositoryFiles,
        listing: RevisionListing,
        local: Mapping[str, Path],
        here: Path | None = None,
    ) -> None:
        self._repository, self._listing, self._local, self.here = repository, listing, local, here

    @property
    def name(self) -> str:
        return self._repository.name

    @cached_property
    def _folders(self) -> dict[str, tuple[str, ...]]:
        return folders_of([*self._listing.files, *self._local])

    def size(self, name: str) -> int | None:
        """Return bytes of a file, or None where there is none."""
        if name in self._local:
            return self._local[name].stat().st_size
        stored = self._listing.files.get(name)
        return None if stored is None else stored.size

    def listed(self, folder: str) -> tuple[str, ...]:
        return self._folders.get(folder, ())

    def read(self, name: str, *, max_bytes: int = limits.MAX_FILE) -> bytes:
        return self.read_many([name], max_bytes=max_bytes)[0]

    def read_many(self, names: Sequence[str], *, max_bytes: int = limits.MAX_FILE) -> list[bytes]:
        for name in names:
            size = self.size(name)
            if size is None or not 0 <= size <= max_bytes:
                got = "none" if size is None else f"{size} bytes"
                expected = f"one of at most {max_bytes} bytes"
                raise IntegrityError(Problem(f"{self.name}/{name}", "file", expected, got, REFETCH))
        remote = [name for name in names if name not in self._local]
        fetched = dict(zip(remote, self._repository.read(remote, self._listing), strict=True))
        return [fetched[name] if name in fetched else self._local[name].read_bytes() for name in names]

    def spans(self, wanted: Sequence[Span]) -> list[bytes]:
        """Pieces of files; the files are read whole."""
        return [self._span(span) for span in wanted]

    def _span(self, span: Span) -> bytes:
        data = self.read(span.name)[span.start : span.stop]
        check_span(data, span, location=f"{self.name}/{span.name}", step="Push a new snapshot.")
        return data
