"""Sealed JSON documents: one canonical encoding, a digest of their own content, and a reader for strangers' bytes.

A document is a JSON object in canonical form (sorted keys, no spaces, UTF-8, a final newline) whose ``digest``
is the sha256 of the canonical form of everything else in it. So every flipped byte is noticed.

zoo.json: what a zoo is called and which documents belong to it; written once.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.schema.layout import FORMAT, VERSION

MAX_BYTES = 64 * 2**20
REFETCH = "Fetch the file again, or restore it from a copy."

Document = dict[str, Any]


def canonical(value: object) -> bytes:
    """Encode as canonical JSON, without a final newline.

    Non-finite floats become the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in cast(Document, value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast(list[Any], value)]
    return value


def digest_of(value: object) -> str:
    """``"sha256:"`` and the hexadecimal sha256 of the canonical form."""
    return "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


def seal(content: Document) -> bytes:
    """The bytes of a document: its content and the digest of that content."""
    return canonical({**content, "digest": digest_of(content)}) + b"\n"


def unseal(data: bytes, *, location: str) -> tuple[Document, str]:
    """Parse a document and check its form and digest.

    Returns the content without its digest, and the digest.

    Raises
    ------
    IntegrityError
        Not JSON, duplicate keys, not in canonical form, or the digest disagrees.
    """
    value = parse(data, location=location)
    found = value.pop("digest", None)
    expected = digest_of(value)
    if found != expected:
        _refuse(location, "digest of the content", expected, str(found))
    if data != canonical({**value, "digest": found}) + b"\n":
        _refuse(location, "encoding", "canonical JSON", "the same content in other bytes")
    return value, expected


def parse(data: bytes, *, location: str, max_bytes: int = MAX_BYTES) -> Document:
    """Parse a JSON object from a stranger: bounded size and depth, no duplicate keys, no NaN."""
    if len(data) > max_bytes:
        _refuse(location, "size", f"at most {max_bytes} bytes", f"{len(data)} bytes")

    def pairs(items: list[tuple[str, Any]]) -> Document:
        made = dict(items)
        if len(made) != len(items):
            seen: set[str] = set()
            twice = next(key for key, _ in items if key in seen or seen.add(key))
            _refuse(location, "keys", "each key once", f"{twice!r} twice")
        return made

    def constant(text: str) -> NoReturn:
        _refuse(location, "number", "a finite JSON number", text)

    try:
        value = json.loads(data.decode(), object_pairs_hook=pairs, parse_constant=constant)
        if b"\\u" in data:
            canonical(value)  # raises where an escape is half of a letter
    except (ValueError, RecursionError) as error:
        _refuse(location, "JSON", "an object", f"{type(error).__name__}: {str(error)[:120]}")
    if not isinstance(value, dict):
        _refuse(location, "JSON", "an object", type(value).__name__)
    return cast(Document, value)


def _refuse(location: str, what: str, expected: str, got: str) -> NoReturn:
    raise IntegrityError(Problem(location, what, expected, got, REFETCH))


@dataclass(frozen=True)
class Identity:
    """The content of zoo.json.

    ``architecture`` and ``symmetry`` are the digests of those documents; ``symmetry`` is None where the table
    was not known when the zoo was made.
    """

    name: str
    architecture: str
    symmetry: str | None = None

    def to_json(self) -> Document:
        """The content of zoo.json."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "architecture": self.architecture,
            "symmetry": self.symmetry,
        }

    @classmethod
    def from_json(cls, content: Document, *, location: str) -> "Identity":
        """Read the content of zoo.json; an unknown format or version is refused first."""
        if content.get("format") != FORMAT:
            found = repr(content.get("format"))
            raise IntegrityError(Problem(location, "format", repr(FORMAT), found, "This is not a zoo."))
        if content.get("version") != VERSION:
            found = repr(content.get("version"))
            raise IntegrityError(
                Problem(location, "format version", str(VERSION), found, "Upgrade ckptzoo to read it.")
            )
        name, architecture, symmetry = (content.get(key) for key in ("name", "architecture", "symmetry"))
        if (
            not isinstance(name, str)
            or not isinstance(architecture, str)
            or not (symmetry is None or isinstance(symmetry, str))
            or len(content) != 5
        ):
            raise IntegrityError(
                Problem(
                    location,
                    "fields",
                    "format, version, name, architecture, symmetry",
                    ", ".join(sorted(content)),
                    "Fetch the file again.",
                )
            )
        return cls(name, architecture, symmetry)
