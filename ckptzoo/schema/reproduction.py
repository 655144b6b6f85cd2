"""Marks of reproduction: who trained which checkpoints again, when and on what, with the bits that the zoo has.

A mark is a sealed document, ``reproduced/<16 digits of its digest>.json``. It names checkpoints together with the part
that they are in, whose digest covers their rows and the digests of their weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn, cast

from ckptzoo.errors import IntegrityError, Problem, SpecError
from ckptzoo.schema import layout
from ckptzoo.schema.documents import REFETCH, Document, digest_of, seal, unseal_kind
from ckptzoo.schema.metadata import MAX_ID

KIND = "reproduction"
MAX_BY = 200
"""Characters of a name."""
MAX_BYTES = 2**24
"""The maximum size of a document."""
_FIELDS = ("format", "version", "kind", "zoo", "by", "created", "on", "checkpoints")


@dataclass(frozen=True)
class Reproduction:
    """A statement that checkpoints were trained again from their rows, bit for bit.

    Parameters
    ----------
    zoo
        digest of the zoo's ``zoo.json``.
    by
        who trained them again.
    created
        when.
    on
        what may decide bits there, by name: processor, kernels, versions.
    checkpoints
        ids by the digest of the raw part that has them.

    Raises
    ------
    SpecError
        There is no name, or it is too long.
    """

    zoo: str
    by: str
    created: datetime
    on: Mapping[str, str]
    checkpoints: Mapping[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        check_name(self.by)

    @property
    def ids(self) -> tuple[str, ...]:
        """The checkpoints, of all parts."""
        return tuple(name for names in self.checkpoints.values() for name in names)

    @property
    def file(self) -> str:
        """The path of its document in the zoo."""
        return layout.reproduction_file(digest_of(self.to_json()))

    def to_json(self) -> Document:
        """The content of the document."""
        return {
            "format": layout.FORMAT,
            "version": layout.VERSION,
            "kind": KIND,
            "zoo": self.zoo,
            "by": self.by,
            "created": self.created.astimezone(UTC).isoformat(timespec="microseconds"),
            "on": dict(self.on),
            "checkpoints": {part: list(names) for part, names in self.checkpoints.items()},
        }


def check_name(by: str) -> None:
    """Raise ``SpecError`` if a mark cannot have the name: there is none, or it is too long."""
    surrogates = any("\ud800" <= letter <= "\udfff" for letter in by)
    if not by.strip() or len(by) > MAX_BY or not by.isprintable() or surrogates:
        expected = f"the name of who trained the members again, up to {MAX_BY} printable characters"
        raise SpecError(Problem("mark", "name", expected, repr(by)[:80], "Give another name."))


def encode(mark: Reproduction) -> bytes:
    """The bytes of its document."""
    return seal(mark.to_json())


def decode(data: bytes, *, location: str) -> Reproduction:
    """Read the document of a mark, which may be anyone's; raises ``IntegrityError`` if it is damaged, or none."""
    content = unseal_kind(data, KIND, location=location, keys=_FIELDS)

    def wrong(what: str, expected: str, got: object) -> NoReturn:
        raise IntegrityError(Problem(location, what, expected, repr(got)[:160], REFETCH))

    if wrongly := [name for name in ("zoo", "by", "created") if not isinstance(content[name], str)]:
        wrong(wrongly[0], "a text", content[wrongly[0]])
    on: object = content["on"]
    checkpoints: object = content["checkpoints"]
    if not isinstance(on, dict) or not all(isinstance(value, str) for value in cast(dict[str, Any], on).values()):
        wrong("on", "texts by name", content["on"])
    if not isinstance(checkpoints, dict) or not all(map(_are_ids, cast(dict[str, Any], checkpoints).values())):
        wrong("checkpoints", "lists of ids, each once, by the digest of their part", content["checkpoints"])
    try:
        created = datetime.fromisoformat(content["created"])
        by_part = {part: tuple(names) for part, names in cast(dict[str, list[str]], checkpoints).items()}
        mark = Reproduction(content["zoo"], content["by"], created, cast(dict[str, str], on), by_part)
        # one moment has one text, and times without a zone cannot be compared
        if created.tzinfo is None or mark.to_json()["created"] != content["created"]:
            raise ValueError
    except (ValueError, OverflowError):
        wrong("created", "a time of UTC with microseconds", content["created"])
    except SpecError as error:
        problem = error.problems[0]
        raise IntegrityError(Problem(location, problem.what, problem.expected, problem.got, REFETCH)) from error
    return mark


def _are_ids(value: object) -> bool:
    names = cast(list[Any], value) if isinstance(value, list) else []
    fit = all(isinstance(name, str) and 0 < len(name) <= MAX_ID for name in names)
    return bool(names) and fit and len(set(names)) == len(names)
