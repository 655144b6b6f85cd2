"""Work on a zoo that adds no checkpoints: compacting and listing it, retracting checkpoints, adding figures.

``listing.json`` says which files a zoo has, for web servers that cannot list. It is a sealed document, as
docs/format.md describes those, with::

    {"digest": "sha256:...", "files": {"<name>": [<size>, "<hex sha256>" or null], ...}, "version": 1}

It names every file of the zoo but itself, and no other file of the folder; the sha256 is null where it is not known,
and for what may change: README.md, card.toml, the pictures and the explorer. Parts are only ever added, so an old
listing stays right.
"""

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ckptzoo.arguments import checked
from ckptzoo.errors import IntegrityError, Problem, UnknownNameError, ZooError
from ckptzoo.format import durable, snapshot, table
from ckptzoo.format.files import Folder, leads_outside
from ckptzoo.format.part import Part, PartWriter
from ckptzoo.format.reader import duplicate_problems, ids_differ, list_trees, read_contents, read_trees
from ckptzoo.format.tree import Tree, empty_tree
from ckptzoo.schema import layout
from ckptzoo.schema.card import CARDS, may_change
from ckptzoo.schema.documents import Document, seal
from ckptzoo.schema.metadata import KINDS

LISTING = "listing.json"
VERSION = 1
"""The version of the listing."""


def encode(files: Mapping[str, tuple[int, str | None]]) -> bytes:
    """The bytes of a listing: for each file its size and the hex sha256, in canonical form."""
    return seal({"files": {name: list(facts) for name, facts in files.items()}, "version": VERSION})


def describe(root: Path, known: Mapping[str, str], *, without: Collection[str] = ()) -> bytes:
    """The listing of a folder.

    ``known`` maps names to the hex sha256 of files that need not be read, such as those of shards, which the index has;
    ``without`` names files to leave out. The listing names the files of the zoo and no others, and every file whose
    digest is not known is read.
    """
    left_out = {LISTING, *without}
    named: list[tuple[str, Path]] = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(folder, file) for file in files):
            name = path.relative_to(root).as_posix()
            is_own = path.is_file() and leads_outside(path, root) is None
            if belongs_to_zoo(name) and name not in left_out and is_own:
                named.append((name, path))
    named.sort()
    return encode({name: (path.stat().st_size, _digest(name, path, known)) for name, path in named})


def belongs_to_zoo(name: str) -> bool:
    """Whether a file with this path in a zoo's folder is part of the zoo, by its name.

    >>> belongs_to_zoo("parts/000001-9f2c41aa/raw-00.safetensors"), belongs_to_zoo("notes.txt")
    (True, False)
    """
    *folders, last = name.split("/")
    match folders:
        case []:
            return last in (*layout.DOCUMENTS, *CARDS, LISTING)
        case [layout.SNAPSHOTS]:
            return layout.SNAPSHOT_NAME.fullmatch(last) is not None
        case [layout.SPLITS]:
            return layout.SPLIT_FILE.fullmatch(last) is not None
        case [layout.RELEASES]:
            return bool(layout.release_names([last]))
        case [layout.REPRODUCED]:
            return layout.REPRODUCTION_FILE.fullmatch(last) is not None
        case [layout.LANDSCAPE]:
            return layout.LANDSCAPE_FILE.fullmatch(last) is not None
        case [layout.PAGES]:
            return name == layout.EXPLORER
        case [layout.PICTURES, *_]:
            return not last.startswith(".")
        case [layout.PARTS, part]:
            return layout.PART_NAME.fullmatch(part) is not None and _in_part(last)
        case [layout.DERIVED, tree, part]:
            names_fit = layout.DERIVED_NAME.fullmatch(tree) and layout.PART_NAME.fullmatch(part)
            return names_fit is not None and _in_part(last)
        case _:
            return False


def _in_part(file: str) -> bool:
    return file in (layout.METADATA, layout.INDEX, layout.REFERENCES) or layout.SHARD_NAME.fullmatch(file) is not None


def _digest(name: str, path: Path, known: Mapping[str, str]) -> str | None:
    if may_change(name):
        return None
    if name in known:
        return known[name]
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@checked
def compact(path: str | Path) -> Path | None:
    """Write rows and index of all parts into one snapshot, remove those it replaces, and list the files.

    Parameters
    ----------
    path
        the zoo's folder.

    Returns
    -------
    Path | None
        The snapshot's path, or None where the zoo has no parts.

    Raises
    ------
    IntegrityError
        The folder is not a zoo, a part cannot be read, or an id is there twice.

    Notes
    -----
    Opening a zoo of 128 parts then reads one file instead of 256, and any web server that serves ranges can serve it:
    ``listing.json`` says which files there are. Cost: one read of every part's rows and index.

    Examples
    --------
    >>> ckptzoo.compact("zoos/few").parent.name
    'snapshots'
    """
    root = Path(path).absolute()
    files = Folder(root)
    trees = read_trees(files)
    if not trees:
        return None
    raw = trees.get(layout.PARTS, empty_tree())
    raw.rows.keep()
    if problems := duplicate_problems(files, raw):
        raise IntegrityError(problems)
    target, replaced = _write_snapshot(root, trees)
    listing = describe(root, _shards(trees.values()), without=replaced)
    durable.write_file(root / LISTING, listing)  # before they are removed, so that it never names a missing one
    for name in replaced:
        (root / name).unlink(missing_ok=True)
    return target


def add_snapshot(root: Path) -> None:
    """Write a snapshot of a zoo's parts from the newest one and what it lacks; those are removed that no listing names.

    A listing names few files at times, and none that are missing.
    """
    files = Folder(root)
    known = snapshot.newest(files, list_trees(files))
    trees = read_trees(files, known)
    raw = trees.get(layout.PARTS, empty_tree())
    raw.rows.keep()
    if not trees or not ids_differ(raw):
        return
    _, replaced = _write_snapshot(root, trees)
    listing = root / LISTING
    text = listing.read_bytes() if listing.is_file() else b""
    for name in replaced:
        if name.encode() not in text:
            (root / name).unlink(missing_ok=True)


def _write_snapshot(root: Path, trees: dict[str, Tree]) -> tuple[Path, set[str]]:
    """Write a snapshot of some trees, whose raw ids differ; returns its path, and those of the ones it replaces."""
    target = snapshot.write(trees, root)
    # the first 6 digits of a snapshot's name are the number of parts it covers
    older = [name for name in snapshot.listed(Folder(root)) if name != target.name and name[:6] <= target.name[:6]]
    return target, {f"{layout.SNAPSHOTS}/{name}" for name in older}


def _shards(trees: Iterable[Tree]) -> dict[str, str]:
    """The sha256 of every shard, as the indices have it."""
    known: dict[str, str] = {}
    for tree in trees:
        index = tree.blocks.select(["file", "tensor", "sha256", "part"])
        for row in index.filter(index["tensor"].is_null()).to_pylist():
            known[f"{tree.parts[row['part']].path}/{row['file']}"] = row["sha256"].hex()
    return known


@checked
def retract(path: str | Path, ids: Sequence[str], *, reason: str, contributor: str | None = None) -> int:
    """Withdraw checkpoints from a zoo: a tombstone is added, the loader leaves them out, and their bytes stay.

    Parameters
    ----------
    path
        the zoo's folder.
    ids
        the checkpoints' ids; those withdrawn before are left as they are.
    reason
        why, in a sentence; everyone who opens the zoo sees it.
    contributor
        who withdraws them; None where that is not said.

    Returns
    -------
    int
        How many were newly withdrawn.

    Raises
    ------
    UnknownNameError
        The zoo has no such checkpoint; nothing is withdrawn.
    ZooError
        The reason is empty.

    Examples
    --------
    >>> ids = ckptzoo.open("zoos/few").ids
    >>> ckptzoo.retract("zoos/few", ids[:2], reason="Trained on the test set.")
    2
    """
    root = Path(path).absolute()
    if not reason.strip():
        raise ZooError(Problem(str(root), "reason", "a sentence", "nothing", "Say why the checkpoints are withdrawn."))
    contents = read_contents(Folder(root))
    known = contents.ids.to_pylist()
    unknown = set(ids) - set(known)
    for name in ids:
        if name in unknown:
            raise UnknownNameError(root.name, "checkpoint", name, known)
    before = set(contents.retracted.rows["id"].to_pylist())
    new = [name for name in dict.fromkeys(ids) if name not in before]
    if not new:
        return 0
    now = datetime.now(UTC)
    rows = [{"id": name, "reason": reason, "contributor": contributor, "created": now} for name in new]
    add_rows(root, layout.RETRACTED, rows, {})
    return len(rows)


def add_measured(path: str | Path, rows: Sequence[Mapping[str, Any]], facts: Document) -> Part | None:
    """Add figures that were measured when their checkpoints were in the zoo already.

    The loader shows them where the rows of their checkpoints have none. ``rows`` have ``id``, ``unit`` (digest of the
    part, raw or of a variant, whose row lacks them), ``by`` and figures of ``ckptzoo.schema.metadata.FIGURES``; the
    time is now; ``facts`` are the part's, besides its kind. Returns the part; None where there are no rows.
    """
    if not rows:
        return None
    now = datetime.now(UTC)
    dated = [{**row, "created": now} for row in rows]
    return add_rows(Path(path).absolute(), layout.MEASURED, dated, facts)


def add_rows(root: Path, kind: str, rows: Sequence[dict[str, Any]], facts: Document) -> Part:
    """Add a part without shards, in the tree of its kind's name; ``facts`` are its own besides its kind."""
    schema = table.schema_of(KINDS[kind])
    part = PartWriter(root / layout.DERIVED / kind, sets={}, schema=schema, facts={"kind": kind, **facts})
    try:
        part.add({}, rows)
        return part.commit(root, refuse=lambda _: None)
    except BaseException:  # KeyboardInterrupt too: nothing of the part stays
        part.discard()
        raise
