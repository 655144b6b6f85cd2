"""The files of a zoo's folder that a repository holds too: documents and parts, with their digests."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from ckptzoo.errors import Problem
from ckptzoo.format.files import Folder
from ckptzoo.format.part import Part, read_part, read_rows
from ckptzoo.hub.card import card_in, check_pictures
from ckptzoo.hub.client.answers import Stored, is_stored
from ckptzoo.spec import layout
from ckptzoo.spec.card import CARDS, FILE


@dataclass(frozen=True)
class LocalFile:
    """One file: where it lies here, its bytes, and their sha256 in hex."""

    path: Path
    size: int
    sha256: str

    def is_stored(self, stored: Stored | None) -> bool:
        """Whether a repository's file is this one; only a small one that is not stored apart is read for it."""
        if stored is None or stored.size != self.size:
            return False
        return self.sha256 == stored.sha256 if stored.sha256 is not None else is_stored(self.path.read_bytes(), stored)


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
        """Its rows."""
        return read_rows(Folder(self.root), self.part)


@dataclass(frozen=True)
class LocalZoo:
    """Documents, cards with their pictures, and the parts: raw ones first, each tree's in order."""

    root: Path
    documents: dict[str, LocalFile]
    cards: dict[str, LocalFile]
    parts: tuple[LocalPart, ...]


def read_local(root: Path, trees: Mapping[str, Sequence[str]]) -> LocalZoo:
    """What a zoo's folder holds of these trees.

    Raises
    ------
    IntegrityError
        A part's index cannot be read.
    SpecError
        The card is not valid, or the folder lacks a picture that it names.

    Notes
    -----
    Shards are not read: their digests are those of the index. Rows and indices are, once.
    """
    files = Folder(root)
    parts: list[LocalPart] = []
    for tree, names in trees.items():
        for name in names:
            part, index = read_part(files, tree, name)
            held = {f"{part.path}/{layout.METADATA}": _small(root / part.path / layout.METADATA)}
            shards = index.filter(index["tensor"].is_null())
            columns = (shards[column].to_pylist() for column in ("file", "nbytes", "sha256"))
            for file, nbytes, sha256 in zip(*columns, strict=True):
                held[f"{part.path}/{file}"] = LocalFile(root / part.path / file, nbytes, sha256.hex())
            held[f"{part.path}/{layout.INDEX}"] = _small(root / part.path / layout.INDEX)
            parts.append(LocalPart(part, held, root))
    pictures = check_pictures(files, card_in(files)) if (root / FILE).is_file() else ()
    documents, cards = (
        {name: _small(root / name) for name in names if (root / name).is_file()}
        for names in (layout.DOCUMENTS, (*CARDS, *pictures))
    )
    return LocalZoo(root, documents, cards, tuple(parts))


def links_outside(zoo: LocalZoo) -> list[Problem]:
    """Files that would be published but lie elsewhere, behind a link: a zoo of a stranger's may point to anything."""
    root = zoo.root.resolve()
    files = [
        *zoo.documents.values(),
        *zoo.cards.values(),
        *(file for part in zoo.parts for file in part.files.values()),
    ]
    step = "Put a copy of it there, as cp --dereference makes one."
    return [
        Problem(str(file.path), "file", "one in the zoo's folder", f"a link to {where}", step)
        for file in files
        if not (where := file.path.resolve()).is_relative_to(root)
    ]


def _small(path: Path) -> LocalFile:
    data = path.read_bytes()
    return LocalFile(path, len(data), hashlib.sha256(data).hexdigest())
