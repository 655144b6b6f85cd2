"""The card: facts about a zoo that a person wrote, kept as ``card.toml``, and the pictures that it names."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from ckptzoo.errors import Problem, SpecError, suggestion
from ckptzoo.schema import layout
from ckptzoo.schema.documents import parse_toml
from ckptzoo.text import shortened

CARD_TOML = "card.toml"
"""The file of what a person wrote, beside the README.md that is made from it."""
CARDS = (layout.README, CARD_TOML, layout.CROISSANT)
"""Files written by people, or made from those, which newer ones replace, as the pictures are."""
MAX_TEXT = 100_000
"""The maximum number of characters of one field."""
MAX_CARD_BYTES = 2**20
MAX_TAGS, MAX_TAG = 40, 100
MAX_PICTURES, MAX_CAPTION = 16, 300

# names have 96 characters at most, as on the Hugging Face hub
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
# prefix and suffix (DOI Handbook, 2.2); braces and quotes would end a field of BibTeX
_DOI = re.compile(r"10\.\d{4,9}/[!#-z|~]{1,200}")
_PICTURE_FILE = re.compile(r"(?=.{5,100}\Z)[A-Za-z0-9][A-Za-z0-9._-]*\.png")
_LISTS = {"authors", "tags"}
_STEP = "Correct it in the card."
_SHORT = {'"': '\\"', "\\": "\\\\", "\t": "\\t", "\r": "\\r", "\n": "\\n", "\b": "\\b", "\f": "\\f"}
"""The escapes of a basic string of TOML that are one letter."""


@dataclass(frozen=True)
class Picture:
    """A PNG in the zoo's folder ``pictures``.

    Parameters
    ----------
    file
        its plain name, such as ``accuracy.png``.
    caption
        what it shows, on one line; also read out where it cannot be seen.
    """

    file: str
    caption: str

    @property
    def path(self) -> str:
        """Its path from the zoo's folder."""
        return f"{layout.PICTURES}/{self.file}"


def picture_problems(value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the problems of a card's pictures: which of them, what was expected, and what there is."""
    if not isinstance(value, tuple):
        yield "pictures", "a list of tables [[pictures]]", value
        return
    items, names = cast(tuple[Any, ...], value), set[str]()
    if len(items) > MAX_PICTURES:
        yield "pictures", f"at most {MAX_PICTURES}", len(items)
        return
    for number, item in enumerate(items, 1):
        if not isinstance(item, Picture):
            yield f"picture {number}", "a table with file and caption", item
            continue
        file, caption = cast(tuple[Any, Any], (item.file, item.caption))
        if not isinstance(file, str) or not _PICTURE_FILE.fullmatch(file):
            yield f"file of picture {number}", "a plain name of letters, digits, '-', '_' and '.', as a.png", file
        # the file systems of macOS and Windows do not tell capitals apart
        elif file.lower() in names:
            yield f"file of picture {number}", "each file once, in capitals or not", file
        else:
            names.add(file.lower())
        if (
            not isinstance(caption, str)
            or not caption.strip()
            or len(caption) > MAX_CAPTION
            or not caption.isprintable()
        ):
            yield f"caption of picture {number}", f"a line of at most {MAX_CAPTION} printable characters", caption


@dataclass(frozen=True)
class Card:
    """The facts that a person states about a zoo; everything else is read off the zoo itself.

    Parameters
    ----------
    name
        the zoo's name, such as ``digits-optunet``.
    summary
        one or two plain sentences.
    license
        SPDX identifier of the weights' licence; empty where none is stated.
    dataset
        what the members were trained on.
    authors
        who made it.
    citation
        BibTeX, or empty.
    doi
        of the zoo, such as ``10.5281/zenodo.1234``, or empty.
    tags
        further tags for the hub's search.
    title
        the heading; the name where there is none.
    repository
        where the zoo lives on a hub, ``organisation/name``.
    training
        how the members were trained, in Markdown.
    notes
        what a user should know besides, such as known gaps, in Markdown.
    use_cases, limitations, biases, social_impact, personal_information
        what the zoo is good for and what not, what is over- or underrepresented in it, what it may lead to, and what it
        says of persons, in Markdown.
    pictures
        shown on the page, in this order.

    Raises
    ------
    SpecError
        With every field that is not what it should be.

    Examples
    --------
    >>> card = ckptzoo.Card("digits-optunet", summary="OptuNets on handwritten digits.", license="CC-BY-4.0")
    >>> print(card.to_toml())
    name = "digits-optunet"
    summary = "OptuNets on handwritten digits."
    license = "CC-BY-4.0"
    """

    name: str
    summary: str = ""
    license: str = ""
    dataset: str = ""
    authors: tuple[str, ...] = ()
    citation: str = ""
    doi: str = ""
    tags: tuple[str, ...] = ()
    title: str = ""
    repository: str = ""
    training: str = ""
    notes: str = ""
    use_cases: str = ""
    limitations: str = ""
    biases: str = ""
    social_impact: str = ""
    personal_information: str = ""
    pictures: tuple[Picture, ...] = ()

    def __post_init__(self) -> None:
        wrong = [
            (spec.name, expected, getattr(self, spec.name))
            for spec in fields(self)
            if spec.name != "pictures" and (expected := _expected(spec.name, getattr(self, spec.name))) is not None
        ]
        wrong += picture_problems(self.pictures)
        if wrong:
            raise SpecError(
                Problem("card", what, expected, shortened(ascii(value), 163), _STEP) for what, expected, value in wrong
            )

    @classmethod
    def from_toml(cls, path: str | Path) -> "Card":
        """Read a ``card.toml``; unknown keys are refused by name.

        Parameters
        ----------
        path
            of the file.
        """
        try:
            with Path(path).open("rb") as file:
                # one more than allowed, so that a larger file is noticed and not read
                return cls.from_bytes(file.read(MAX_CARD_BYTES + 1), location=str(path))
        except OSError as error:
            raise SpecError(Problem(str(path), "file", "a card in TOML", str(error), "Correct the card.")) from error

    @classmethod
    def from_bytes(cls, data: bytes, *, location: str = CARD_TOML) -> "Card":
        """Read the content of a ``card.toml``.

        Parameters
        ----------
        data
            the file's bytes.
        location
            what messages call it.
        """
        content = parse_toml(
            data, location=location, expected="a card in TOML", step="Correct the card.", max_bytes=MAX_CARD_BYTES
        )
        known = [spec.name for spec in fields(cls)]
        unknown = [key for key in content if key not in known]
        if unknown or "name" not in content:
            expected = f"name and any of {', '.join(known[1:])}"
            step = suggestion(unknown[0], known, _STEP) if unknown else _STEP
            raise SpecError(Problem(location, "keys", expected, ", ".join(unknown) or "no name", step))
        values: dict[str, Any] = {key: _frozen(value) for key, value in content.items()}
        return cls(**values)

    def to_toml(self) -> str:
        """The text of a ``card.toml`` that reads back as this card; what is empty is left out."""
        lines: list[str] = []
        for spec in fields(self):
            value: str | tuple[Any, ...] = getattr(self, spec.name)
            if spec.name in _LISTS and value:
                lines.append(f"{spec.name} = [{', '.join(map(_line, value))}]")
            elif isinstance(value, str) and (value or spec.default):
                lines.append(f"{spec.name} = {_paragraphs(value) if chr(10) in value else _line(value)}")
        for picture in self.pictures:  # tables come last: keys behind a table's head would belong to it
            lines += ["[[pictures]]", f"file = {_line(picture.file)}", f"caption = {_line(picture.caption)}"]
        return "\n".join(lines) + "\n"


def may_change(name: str) -> bool:
    """Whether a file of a zoo, by its path, may be replaced by a newer one: what people write is, and what is drawn."""
    return name in (*CARDS, layout.EXPLORER) or name.startswith(f"{layout.PICTURES}/")


def _line(text: str) -> str:
    """A basic string of TOML, on one line."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _paragraphs(text: str) -> str:
    """A basic string of TOML that keeps its line breaks."""
    lines = ["".join(map(_escaped, line)) for line in text.split("\n")]
    # TOML leaves out the first line break
    return '"""\n' + "\n".join(lines) + '"""'


def _escaped(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    # TOML has no control characters in strings, and DEL is one
    return f"\\u{ord(character):04x}" if ord(character) < 0x20 or ord(character) == 0x7F else character


def _expected(name: str, value: Any) -> str | None:
    """The expected form of a field; None where it has that form."""
    if name in _LISTS:
        items = cast(tuple[Any, ...], value if isinstance(value, tuple) else (None,))
        expected = "a list of strings"
    else:
        items, expected = (value,), "a string"
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) < len(items):
        return expected
    # halves of surrogate pairs, which UTF-8 does not encode
    if sum(map(len, texts)) > MAX_TEXT or any("\ud800" <= letter <= "\udfff" for text in texts for letter in text):
        return f"at most {MAX_TEXT:,} characters of Unicode"
    if name == "name" and not texts[0].strip():
        return "a name"
    if name == "doi" and texts[0] and not _DOI.fullmatch(texts[0]):
        return "a DOI as 10.5281/zenodo.1234"
    if name == "repository" and texts[0] and not _REPOSITORY.fullmatch(texts[0]):
        return "organisation/name"
    if name == "tags" and (len(texts) > MAX_TAGS or any(not _is_tag(text) for text in texts)):
        return f"at most {MAX_TAGS} tags of at most {MAX_TAG} printable characters"
    return None


def _is_tag(text: str) -> bool:
    return text.isprintable() and 0 < len(text) <= MAX_TAG


def _frozen(value: Any) -> Any:
    """Lists of TOML as tuples, and tables as pictures where they can be."""
    if isinstance(value, list):
        return tuple(map(_frozen, cast(list[Any], value)))
    if isinstance(value, dict):
        items = cast(dict[str, Any], value)
        return Picture(**items) if set(items) == {"file", "caption"} else items
    return value
