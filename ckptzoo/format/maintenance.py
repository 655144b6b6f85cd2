"""Work on a zoo that adds no checkpoints: compacting and listing it, and retracting checkpoints.

``listing.json`` says which files a zoo has, for web servers that cannot list. It is a sealed document, as
docs/format.md describes those, with::

    {"digest": "sha256:...", "files": {"<name>": [<size>, "<hex sha256>" or null], ...}, "version": 1}

It names every file of the zoo but itself and names that begin with a dot; the sha256 is null where it is not known, and
for what may change: README.md, card.toml and the pictures. Parts are only ever added, so an old listing stays right.
"""

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ckptzoo.errors import UnknownNameError
from ckptzoo.format import durable, snapshot, table
from ckptzoo.format.files import Folder
from ckptzoo.format.part import PartWriter
from ckptzoo.format.reader import list_trees, read_contents, read_documents, read_tree
from ckptzoo.format.tree import Tree
from ckptzoo.schema.card import may_change
from ckptzoo.schema.documents import seal
from ckptzoo.schema.layout import DERIVED, RETRACTED, SNAPSHOTS
from ckptzoo.schema.metadata import RETRACTED_COLUMNS

LISTING = "listing.json"
VERSION = 1
"""Of the listing."""


def encode(files: Mapping[str, tuple[int, str | None]]) -> bytes:
    """The bytes of a listing: for each file its size and the hex sha256, in canonical form."""
    return seal({"files": {name: list(facts) for name, facts in files.items()}, "version": VERSION})


def describe(root: Path, known: Mapping[str, str], *, without: Collection[str] = ()) -> bytes:
    """The listing of a folder.

    Parameters
    ----------
    root : the zoo's folder.
    known : hex sha256 of files that need not be read, such as those of shards, which the index has.
    without : files to leave out.

    Notes
    -----
    Reads every file that is not known.
    """
    files = {path.relative_to(root).as_posix(): path for path in _files(root)}
    named = sorted((name, path) for name, path in files.items() if name not in without)
    return encode({name: (path.stat().st_size, _digest(name, path, known)) for name, path in named})


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(folder, name) for name in files if not name.startswith("."))
        yield from (path for path in paths if path != root / LISTING)


def _digest(name: str, path: Path, known: Mapping[str, str]) -> str | None:
    if may_change(name):
        return None
    if name in known:
        return known[name]
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compact(path: str | Path) -> Path | None:
    """Write rows and index of all parts into one snapshot, remove those it replaces, and list the files.

    Parameters
    ----------
    path : the zoo's folder.

    Returns
    -------
    The snapshot's path, or None where the zoo has no parts.

    Raises
    ------
    IntegrityError
        The folder is not a zoo, or a part cannot be read.

    Notes
    -----
    Opening a zoo of 128 parts then reads one file instead of 256, and any web server that serves ranges can serve it:
    ``listing.json`` says which files there are. Cost: one read of every part's rows and index.
    """
    root = Path(path).absolute()
    files = Folder(root)
    read_documents(files)
    trees = {tree: read_tree(files, tree, names, None) for tree, names in list_trees(files).items() if names}
    if not trees:
        return None
    name, data = snapshot.encode(trees)
    target = root / name
    target.parent.mkdir(exist_ok=True)
    durable.write_file(target, data)
    # the first 6 digits of a snapshot's name are the number of parts it covers
    older = [name for name in snapshot.listed(files) if name != target.name and name[:6] <= target.name[:6]]
    replaced = {f"{SNAPSHOTS}/{name}" for name in older}
    listing = describe(root, _shards(trees.values()), without=replaced)
    durable.write_file(root / LISTING, listing)  # before they are removed, so that it never names a missing one
    for name in replaced:
        (root / name).unlink(missing_ok=True)
    return target


def _shards(trees: Iterable[Tree]) -> dict[str, str]:
    """The sha256 of every shard, as the indices have it."""
    known: dict[str, str] = {}
    for tree in trees:
        index = tree.blocks.select(["file", "tensor", "sha256", "part"])
        for row in index.filter(index["tensor"].is_null()).to_pylist():
            known[f"{tree.parts[row['part']].path}/{row['file']}"] = row["sha256"].hex()
    return known


def retract(path: str | Path, ids: Sequence[str], *, reason: str, contributor: str | None = None) -> int:
    """Withdraw checkpoints from a zoo: a tombstone is added, the loader leaves them out, and their bytes stay.

    Parameters
    ----------
    path : the zoo's folder.
    ids : the checkpoints' ids; those withdrawn before are left as they are.
    reason : why, in a sentence; everyone who opens the zoo sees it.

    Returns
    -------
    How many were newly withdrawn.

    Raises
    ------
    UnknownNameError
        The zoo has no such checkpoint; nothing is withdrawn.
    """
    root = Path(path).absolute()
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
    rows: list[dict[str, Any]] = [
        {"id": name, "reason": reason, "contributor": contributor, "created": now} for name in new
    ]
    part = PartWriter(
        root / DERIVED / RETRACTED,
        sets={},
        schema=table.schema_of(RETRACTED_COLUMNS),
        facts={"kind": "retracted"},
    )
    try:
        part.add({}, rows)
        part.commit(root, refuse=lambda _: None)
    except BaseException:  # KeyboardInterrupt too: nothing of the part stays
        part.discard()
        raise
    return len(rows)
