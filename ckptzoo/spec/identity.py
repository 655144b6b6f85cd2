"""zoo.json: what a zoo is called and which documents belong to it; written once."""

from dataclasses import dataclass

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.spec.document import Document
from ckptzoo.spec.layout import FORMAT, VERSION


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
    def from_json(cls, content: Document, *, where: str) -> "Identity":
        """Read the content of zoo.json; an unknown format or version is refused first."""
        if content.get("format") != FORMAT:
            found = repr(content.get("format"))
            raise IntegrityError(Problem(where, "format", repr(FORMAT), found, "This is not a zoo."))
        if content.get("version") != VERSION:
            found = repr(content.get("version"))
            raise IntegrityError(Problem(where, "format version", str(VERSION), found, "Upgrade ckptzoo to read it."))
        name, architecture, symmetry = (content.get(key) for key in ("name", "architecture", "symmetry"))
        if (
            not isinstance(name, str)
            or not isinstance(architecture, str)
            or not (symmetry is None or isinstance(symmetry, str))
            or len(content) != 5
        ):
            raise IntegrityError(
                Problem(
                    where,
                    "fields",
                    "format, version, name, architecture, symmetry",
                    ", ".join(sorted(content)),
                    "Fetch the file again.",
                )
            )
        return cls(name, architecture, symmetry)
