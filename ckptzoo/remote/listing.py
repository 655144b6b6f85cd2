"""``listing.json``: what a zoo's folder holds, for servers that cannot list.

A sealed document beside ``zoo.json``, as docs/format.md describes those, with

    {"digest": "sha256:...", "files": {"<name>": [<size>, "<hex sha256>" or null], ...}, "version": 1}

It names every file of the zoo but itself and names that begin with a dot; the sha256 is null where it is not known.
Parts are only ever added, so an old listing is that of the zoo as it was, and stays right.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.remote.folder import FolderStore
from ckptzoo.remote.store import Entry, listed
from ckptzoo.spec.document import REFETCH, seal, unseal

LISTING = "listing.json"
VERSION = 1
_PREFIX = "sha256:"


def encode(entries: Iterable[Entry]) -> bytes:
    """The bytes of a listing, in canonical form; digests that are not sha256 are left out."""
    files = {entry.name: [entry.size, _hex(entry.digest or "")] for entry in entries if entry.name != LISTING}
    return seal({"files": files, "version": VERSION})


def describe(root: Path, known: Mapping[str, str]) -> bytes:
    """The listing of a folder.

    Parameters
    ----------
    root : the zoo's folder.
    known : digests of files (``sha256:<hex>``) that need not be read, such as those of shards, which the index has.

    Notes
    -----
    Reads every file that is not known.
    """
    entries = FolderStore(root).entries
    digests = {name: known.get(name) or _digest(root / name) for name in entries if name != LISTING}
    return encode(Entry(name, entries[name].size, digest) for name, digest in digests.items())


def decode(data: bytes, *, where: str) -> tuple[dict[str, Entry], str]:
    """Entries by name, and the listing's digest.

    Raises
    ------
    IntegrityError
        It is no listing, its digest disagrees, or it holds names that are not relative file names.
    """
    content, digest = unseal(data, where=where)
    files = content.get("files")
    if content.get("version") != VERSION or not isinstance(files, dict):
        got = repr(content.get("version"))
        raise IntegrityError(Problem(where, "version", str(VERSION), got, "Upgrade ckptzoo to read it."))
    made = [_entry(name, facts, where) for name, facts in cast(Mapping[str, Any], files).items()]
    return listed(made, where=where), digest


def _entry(name: str, facts: Any, where: str) -> Entry:
    match facts:
        case [bool(), _]:
            pass
        case [int(size), None]:
            return Entry(name, size)
        case [int(size), str(text)] if len(text) == 64 and set(text) <= set("0123456789abcdef"):
            return Entry(name, size, _PREFIX + text)
    raise IntegrityError(Problem(where, f"file {name[:80]!r}", "[size, sha256]", repr(facts)[:80], REFETCH))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return _PREFIX + hashlib.file_digest(file, "sha256").hexdigest()


def _hex(digest: str) -> str | None:
    return digest.removeprefix(_PREFIX) if digest.startswith(_PREFIX) else None
