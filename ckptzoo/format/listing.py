"""``listing.json``: what a zoo's folder holds, for web servers that cannot list.

A sealed document beside ``zoo.json``, as docs/format.md describes those, with

    {"digest": "sha256:...", "files": {"<name>": [<size>, "<hex sha256>" or null], ...}, "version": 1}

It names every file of the zoo but itself and names that begin with a dot; the sha256 is null where it is not known, and
for what may change: README.md, card.toml and the pictures. Parts are only ever added, so an old listing stays right.
"""

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from ckptzoo.spec.card import may_change
from ckptzoo.spec.document import seal

LISTING = "listing.json"
VERSION = 1


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
    held = {path.relative_to(root).as_posix(): path for path in _files(root)}
    shown = sorted((name, path) for name, path in held.items() if name not in without)
    return encode({name: (path.stat().st_size, _digest(name, path, known)) for name, path in shown})


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        at = Path(folder)
        yield from (at / name for name in files if not name.startswith(".") and at / name != root / LISTING)


def _digest(name: str, path: Path, known: Mapping[str, str]) -> str | None:
    if may_change(name):
        return None
    if name in known:
        return known[name]
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
