"""Sealed JSON documents, readers of untrusted ones in JSON and TOML, results as JSON, and the content of ``zoo.json``.

A document is a JSON object in canonical form (sorted keys, no spaces, UTF-8, a final newline) whose ``digest``
is the sha256 of the canonical form of everything else in it. So every flipped byte is noticed.
"""

import codecs
import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from os import PathLike
from pathlib import Path, PurePath
from typing import Any, ClassVar, NoReturn, cast

from ckptzoo.errors import IntegrityError, Problem, SpecError
from ckptzoo.schema.layout import FORMAT, REFERENCES_VERSION, VERSION

MAX_BYTES = 64 * 2**20
"""Bytes of a document that are parsed at most."""
MAX_TOML = 2**20
"""Bytes of a file in TOML that are parsed at most."""
REFETCH = "Fetch the file again, or restore it from a copy."

Document = dict[str, Any]
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical(value: object) -> bytes:
    """Encode as canonical JSON, without a final newline.

    Non-finite floats become the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.

    >>> canonical({"b": 1.0, "a": [None, "\N{LATIN SMALL LETTER E WITH ACUTE}"]})
    b'{"a":[null,"\\xc3\\xa9"],"b":1.0}'
    """
    # json writes NaN as a bare word, which is no JSON; the slow path is taken only where there is one
    try:
        text = _ENCODER.encode(value)
    except ValueError:
        text = _ENCODER.encode(_plain(value))
    return text.encode()


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in cast(Document, value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast(list[Any], value)]
    return value


def json_value(value: Any) -> Any:
    """The value as JSON has it: dataclasses by their fields, arrays and tuples as lists, paths and times as text."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return {item.name: json_value(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): json_value(item) for name, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if hasattr(value, "tolist"):  # numpy, which this package does not import
        return value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [json_value(item) for item in cast(Sequence[Any], value)]
    return value


class JsonFields:
    """A dataclass whose fields are its JSON.

    In ``class Density(JsonFields, without=("points",), derived=("peak",), named={"peak": "highest"})`` the field
    ``points`` is left out, and the property ``peak`` is added as ``highest``.
    """

    _without: ClassVar[Sequence[str]] = ()
    _derived: ClassVar[Sequence[str]] = ()
    _named: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(
        cls, *, without: Sequence[str] = (), derived: Sequence[str] = (), named: Mapping[str, str] | None = None
    ) -> None:
        super().__init_subclass__()
        # a subclass keeps what its base leaves out, adds and renames
        cls._without, cls._derived = (*cls._without, *without), (*cls._derived, *derived)
        cls._named = {**cls._named, **(named or {})}

    def to_json(self) -> Document:
        """Every figure by name, as values that JSON knows."""
        stored = [item.name for item in fields(cast(Any, self)) if item.name not in self._without]
        return {self._named.get(name, name): json_value(getattr(self, name)) for name in (*stored, *self._derived)}


def digest_of(value: object) -> str:
    """``"sha256:"`` and the hexadecimal sha256 of the canonical form."""
    return "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


def seal(content: Document) -> bytes:
    """The bytes of a document: its content and the digest of that content."""
    return canonical({**content, "digest": digest_of(content)}) + b"\n"


def unseal(data: bytes, *, location: str) -> tuple[Document, str]:
    """Parse a document and check its form and digest. Returns the content without its digest, and the digest. Raises
    ``IntegrityError`` if it is not JSON, has duplicate keys, is not in canonical form, or its digest disagrees.
    """
    value = parse(data, location=location)
    digest = value.pop("digest", None)
    expected = digest_of(value)
    if digest != expected:
        raise _damaged(location, "digest of the content", expected, str(digest))
    # one content has one encoding, so that files can be compared by their bytes
    if data != canonical({**value, "digest": digest}) + b"\n":
        raise _damaged(location, "encoding", "canonical JSON", "the same content in other bytes")
    return value, expected


def unseal_kind(data: bytes, kind: str, *, location: str, keys: Sequence[str] | None = None) -> Document:
    """Parse a sealed document of one kind, as ``unseal``, that has these keys where they are given. Raises
    ``IntegrityError`` if it is damaged, of another kind or version, or has other keys.
    """
    content, _ = unseal(data, location=location)
    found = (content.get("format"), content.get("kind"))
    if found != (FORMAT, kind):
        raise _damaged(location, "format and kind", f"{FORMAT!r}, {kind!r}", repr(found)[:160])
    if content.get("version") != VERSION:
        got, step = repr(content.get("version"))[:160], "Upgrade ckptzoo to read it."
        raise IntegrityError(Problem(location, "format version", str(VERSION), got, step))
    if keys is not None and set(content) != set(keys):
        raise _damaged(location, "fields", ", ".join(keys), repr(sorted(content))[:160])
    return content


def parse(data: bytes, *, location: str, max_bytes: int = MAX_BYTES) -> Document:
    """Parse an untrusted JSON object: bounded size and depth, no duplicate keys, no NaN."""
    if len(data) > max_bytes:
        raise _damaged(location, "size", f"at most {max_bytes} bytes", f"{len(data)} bytes")

    def pairs(items: list[tuple[str, Any]]) -> Document:
        content = dict(items)
        if len(content) != len(items):
            seen: set[str] = set()
            twice = next(key for key, _ in items if key in seen or seen.add(key))
            raise _damaged(location, "keys", "each key once", f"{twice!r} twice")
        return content

    def constant(text: str) -> NoReturn:
        raise _damaged(location, "number", "a finite JSON number", text)

    try:
        value = json.loads(data.decode(), object_pairs_hook=pairs, parse_constant=constant)
        if b"\\u" in data:
            canonical(value)  # raises where an escape is one half of a surrogate pair, which UTF-8 cannot encode
    except (ValueError, RecursionError) as error:  # deep nesting meets Python's limit on recursion
        raise _damaged(location, "JSON", "an object", f"{type(error).__name__}: {str(error)[:120]}") from error
    if not isinstance(value, dict):
        raise _damaged(location, "JSON", "an object", type(value).__name__)
    return cast(Document, value)


def parse_toml(data: bytes, *, location: str, expected: str, step: str, max_bytes: int) -> Document:
    """Parse a document in TOML that a person wrote; raise ``SpecError`` where it is none, or too large.

    ``expected`` says in the message what it should be, and ``step`` what to do.
    """
    if len(data) > max_bytes:
        raise SpecError(Problem(location, "size", f"at most {max_bytes:,} bytes", "more", "Shorten it."))
    try:
        return tomllib.loads(data.decode())
    # bytes that are no UTF-8 and numbers of more than 4,300 digits are a ValueError; nested lists meet Python's limit
    except (ValueError, RecursionError) as error:
        raise SpecError(Problem(location, "file", expected, str(error), step)) from error


def read_toml(path: str | PathLike[str], *, expected: str, step: str, location: str = "") -> Document:
    """Parse a file in TOML that a person wrote, of at most 1 MiB, as ``parse_toml``; ``location`` is the path or name.

    Raises ``SpecError`` where it cannot be read, too.
    """
    location = location or str(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_TOML + 1)
    except OSError as error:
        raise SpecError(Problem(location, "file", expected, error.strerror or str(error), step)) from error
    # some editors begin a text with a byte order mark
    text = data.removeprefix(codecs.BOM_UTF8)
    return parse_toml(text, location=location, expected=expected, step=step, max_bytes=MAX_TOML)


def _damaged(location: str, what: str, expected: str, got: str) -> IntegrityError:
    return IntegrityError(Problem(location, what, expected, got, REFETCH))


@dataclass(frozen=True)
class Identity:
    """The content of zoo.json. ``architecture`` and ``symmetry`` are the digests of those documents; ``symmetry`` is
    None where the table was not known when the zoo was made. ``references`` says that raw weights lie in files of
    others.
    """

    name: str
    architecture: str
    symmetry: str | None = None
    references: bool = False

    @property
    def version(self) -> int:
        """The version of the format."""
        return REFERENCES_VERSION if self.references else VERSION

    def to_json(self) -> Document:
        """The content of zoo.json."""
        content: Document = {
            "format": FORMAT,
            "version": self.version,
            "name": self.name,
            "architecture": self.architecture,
            "symmetry": self.symmetry,
        }
        return {**content, "references": True} if self.references else content

    @classmethod
    def from_json(cls, content: Document, *, location: str) -> "Identity":
        """Read the content of zoo.json; an unknown format or version is refused first."""
        if content.get("format") != FORMAT:
            got = repr(content.get("format"))
            raise IntegrityError(Problem(location, "format", repr(FORMAT), got, "This is not a zoo."))
        version = content.get("version")
        if type(version) is not int or version not in (VERSION, REFERENCES_VERSION):
            expected, step = f"{VERSION} or {REFERENCES_VERSION}", "Upgrade ckptzoo to read it."
            raise IntegrityError(Problem(location, "format version", expected, repr(version), step))
        references = version == REFERENCES_VERSION
        name, architecture, symmetry = (content.get(key) for key in ("name", "architecture", "symmetry"))
        if (
            not isinstance(name, str)
            or not isinstance(architecture, str)
            or not (symmetry is None or isinstance(symmetry, str))
            or (references and content.get("references") is not True)
            # further fields would be those of a later version
            or len(content) != (6 if references else 5)
        ):
            expected = "format, version, name, architecture, symmetry" + (", references" if references else "")
            got = ", ".join(sorted(content))
            raise IntegrityError(Problem(location, "fields", expected, got, "Fetch the file again."))
        return cls(name, architecture, symmetry, references)
