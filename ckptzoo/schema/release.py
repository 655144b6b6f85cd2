"""Releases: names for a zoo as it was, which never come to mean anything else.

A release is a sealed document, ``releases/<name>.json``, with the zoo's revision. The newest one is called ``stable``
where a revision is asked for.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn

from ckptzoo.errors import IntegrityError, Problem, SpecError
from ckptzoo.schema import layout
from ckptzoo.schema.documents import REFETCH, Document, seal, unseal_kind

KIND = "release"
STABLE = "stable"
"""The newest release, whichever that is."""
MAX_NOTES = 100_000
"""Characters."""
MAX_BYTES = 2**20
"""The maximum size of a document."""
_FIELDS = ("format", "version", "kind", "name", "zoo", "revision", "created", "notes")


@dataclass(frozen=True)
class Release:
    """A name for the checkpoints that a zoo had at one revision.

    Parameters
    ----------
    name
        small letters, digits, hyphens and dots, such as ``2026-12``.
    zoo
        digest of the zoo's ``zoo.json``.
    revision
        the zoo's, ``sha256:<hex>``.
    created
        when; the last one of a zoo is ``stable``.
    notes
        what a person says about it, in Markdown.

    Raises
    ------
    SpecError
        The name or the notes are none.
    """

    name: str
    zoo: str
    revision: str
    created: datetime
    notes: str = ""

    def __post_init__(self) -> None:
        location = f"release {self.name[:80]!r}"
        if not layout.RELEASE_NAME.fullmatch(self.name):
            expected = "small letters, digits, hyphens and dots, as 2026-12, and no word of git such as main or stable"
            raise SpecError(Problem(location, "name", expected, repr(self.name)[:80], "Choose another name."))
        if len(self.notes) > MAX_NOTES or any("\ud800" <= letter <= "\udfff" for letter in self.notes):
            expected = f"at most {MAX_NOTES:,} characters of Unicode"
            raise SpecError(Problem(location, "notes", expected, f"{len(self.notes):,}", "Shorten them."))

    def to_json(self) -> Document:
        """The content of the document."""
        head = {"format": layout.FORMAT, "version": layout.VERSION, "kind": KIND}
        created = self.created.astimezone(UTC).isoformat(timespec="microseconds")
        return {
            **head,
            "name": self.name,
            "zoo": self.zoo,
            "revision": self.revision,
            "created": created,
            "notes": self.notes,
        }


def encode(release: Release) -> bytes:
    """The bytes of its document."""
    return seal(release.to_json())


def decode(data: bytes, *, location: str) -> Release:
    """Read the document of a release, which may be anyone's; raises ``IntegrityError`` if it is damaged, or none."""
    content = unseal_kind(data, KIND, location=location, keys=_FIELDS)

    def wrong(what: str, expected: str, got: object) -> NoReturn:
        raise IntegrityError(Problem(location, what, expected, repr(got)[:160], REFETCH))

    if wrongly := [name for name in _FIELDS[3:] if not isinstance(content[name], str)]:
        wrong(wrongly[0], "a text", content[wrongly[0]])
    try:
        created = datetime.fromisoformat(content["created"])
        release = Release(content["name"], content["zoo"], content["revision"], created, content["notes"])
        # one moment has one text, and times without a zone cannot be compared
        if created.tzinfo is None or release.to_json()["created"] != content["created"]:
            raise ValueError
    except (ValueError, OverflowError):
        wrong("created", "a time of UTC with microseconds", content["created"])
    except SpecError as error:
        problem = error.problems[0]
        raise IntegrityError(Problem(location, problem.what, problem.expected, problem.got, REFETCH)) from error
    return release
