"""``listing.json`` as ``ckptzoo.format.listing`` describes it, read as a stranger's."""

from collections.abc import Mapping
from typing import Any, cast

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format.listing import LISTING, VERSION
from ckptzoo.remote.store import Entry, listed
from ckptzoo.spec.document import REFETCH, unseal

__all__ = ["LISTING", "decode"]

_PREFIX = "sha256:"


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
