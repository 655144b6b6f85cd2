"""The catalogue: public sets of checkpoints, and how to import each; ``catalogue.toml`` has a table for each."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, cast

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, SpecError, UnknownNameError, suggestion
from ckptzoo.schema.documents import Document, JsonFields, parse_toml
from ckptzoo.text import shortened, size

CATALOGUE = Path(__file__).with_name("catalogue.toml")
NOT_STATED, NOT_VERIFIED = "not stated", "not verified"
"""In the place of a licence: the authors name none, and it was not looked up."""
MAX_BYTES = 2**20
MAX_TEXT, MAX_ITEMS = 1_000, 40

_NAME = re.compile(r"(?=.{1,60}\Z)[a-z0-9]+(-[a-z0-9]+)*")
_LICENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,99}")
_ADDRESS = re.compile(r"(https|hf|gs|s3)://[A-Za-z0-9][A-Za-z0-9.-]*(/[\w.~%!&'()*+,;=:@/?#-]*)?", re.ASCII)
_ARXIV, _DOI = re.compile(r"\d{4}\.\d{4,5}", re.ASCII), re.compile(r"10\.\d{4,9}/[!-~]{1,200}")
_WORD = re.compile(r"[\w-]{3,}")
_NUMBERS, _LISTS = ("networks", "checkpoints", "nbytes"), ("addresses", "before", "commands")
_STEP = "Correct it in the catalogue."


@dataclass(frozen=True)
class Paper:
    """A paper that describes a set of checkpoints.

    Parameters
    ----------
    title
        as its authors have it.
    arxiv
        its number, such as ``2310.08287``; empty where it has none.
    doi
        such as ``10.5281/zenodo.12797219``; empty where it is not given.
    """

    title: str
    arxiv: str = ""
    doi: str = ""

    @property
    def address(self) -> str:
        """Its page at arXiv, or where the DOI leads."""
        return f"https://arxiv.org/abs/{self.arxiv}" if self.arxiv else f"https://doi.org/{self.doi}"


@dataclass(frozen=True)
class PublishedSet(JsonFields):
    """A public set of checkpoints, as the catalogue describes it; its files were not looked at.

    Parameters
    ----------
    name
        its name in the catalogue.
    what
        the networks, and what they were trained on, in one or two sentences.
    architectures
        of which architectures they are, with the numbers of their parameters where these are known.
    license
        SPDX identifier or ``LicenseRef-...``; ``not stated`` where its authors name none, ``not verified`` where nobody
        looked.
    addresses
        pages and files.
    form
        of its files.
    tried
        when it was last imported, and by whom: ``not tried: ...``, or ``2026-01-31 by ...``.
    networks
        how many were trained; None where it is not known.
    checkpoints
        of all their steps; None where it is not known.
    approximate
        whether these numbers are rounded, or lower bounds.
    nbytes
        size of its files in bytes, rounded; None where it is not known.
    before
        what to do before the commands, or instead of them.
    commands
        that import it, each a line.
    tested
        which of its files, or files of its form, the tests of ckptzoo import; empty where they import none.
    papers
        about it.
    notes
        what a user should know besides.

    Raises
    ------
    SpecError
        With every field that is not what it should be.

    Examples
    --------
    >>> (found,) = ckptzoo.catalogue("wild-park")
    >>> found.networks, found.checkpoints, found.papers[0].arxiv
    (2800, 117241, '2403.12143')
    """

    name: str
    what: str
    architectures: str
    license: str
    addresses: tuple[str, ...]
    form: str
    tried: str
    networks: int | None = None
    checkpoints: int | None = None
    approximate: bool = False
    nbytes: int | None = None
    before: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    tested: str = ""
    papers: tuple[Paper, ...] = ()
    notes: str = ""

    def __post_init__(self) -> None:
        if wrong := list(_problems(self)):
            location = f"catalogue: {shortened(ascii(self.name), 80)}"
            raise SpecError(
                Problem(location, what, expected, shortened(ascii(got), 163), _STEP) for what, expected, got in wrong
            )

    def count(self, number: int | None) -> str:
        """One of the numbers of this set in words, empty where it is not known.

        Parameters
        ----------
        number
            ``checkpoints`` or ``networks``.
        """
        return "" if number is None else f"{'about ' * self.approximate}{number:,}"

    @property
    def size(self) -> str:
        """The size of its files in words, empty where it is not known."""
        return "" if self.nbytes is None else size(self.nbytes)


@checked
def catalogue(word: str | None = None) -> tuple[PublishedSet, ...]:
    """Public sets of checkpoints that others published, with size, licence, address and the commands that import them.

    Parameters
    ----------
    word
        the name of one of them; or text that occurs anywhere in those that are wanted, in capitals or not. None: all.

    Returns
    -------
    tuple[PublishedSet, ...]
        In the order of the catalogue.

    Raises
    ------
    UnknownNameError
        The text occurs in none; the message has a near name or word.

    Notes
    -----
    The catalogue comes with the package, and nothing is asked of a network. Facts are those of the sets' authors.

    Examples
    --------
    >>> [found.name for found in ckptzoo.catalogue("ResNet-20")]
    ['torch-uncertainty', 'hmc-posteriors']
    """
    entries = _shipped()
    if word is None:
        return entries
    wanted = word.casefold()
    named = tuple(entry for entry in entries if entry.name == wanted)
    found = named or tuple(entry for entry in entries if any(wanted in text for text in _texts(entry.to_json())))
    if not found:
        names = [entry.name for entry in entries]
        words = sorted({each for entry in entries for text in _texts(entry.to_json()) for each in _WORD.findall(text)})
        step = suggestion(wanted, [*names, *words], "`ckptzoo catalogue` lists all.")
        raise UnknownNameError("catalogue", "word", word, names, step)
    return found


def read_catalogue(data: bytes, *, location: str = CATALOGUE.name) -> tuple[PublishedSet, ...]:
    """Read the content of a ``catalogue.toml``; raise ``SpecError`` with what is wrong in it."""
    content = parse_toml(data, location=location, expected="a catalogue in TOML", step=_STEP, max_bytes=MAX_BYTES)
    return tuple(_entry(name, table, location) for name, table in content.items())


@cache
def _shipped() -> tuple[PublishedSet, ...]:
    return read_catalogue(CATALOGUE.read_bytes())


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts within a value of JSON, in small letters."""
    if isinstance(value, str):
        yield value.casefold()
    elif isinstance(value, list | tuple | dict):
        items = cast(Document, value).values() if isinstance(value, dict) else cast(list[Any], value)
        for item in items:
            yield from _texts(item)


def _entry(name: str, table: Any, location: str) -> PublishedSet:
    """Return a table of the file as an entry."""
    place = f"{location}: [{shortened(name, 80)}]"
    keys = _checked_keys(PublishedSet, table, place, left_out=("name",))
    papers = keys.get("papers", [])
    if isinstance(papers, list):
        items = cast(list[Any], papers)
        keys["papers"] = tuple(Paper(**_checked_keys(Paper, item, f"{place}: paper")) for item in items)
    values: dict[str, Any] = {
        key: tuple(cast(list[Any], value)) if isinstance(value, list) else value for key, value in keys.items()
    }
    return PublishedSet(name, **values)


def _checked_keys(kind: type, table: Any, place: str, left_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a table whose keys are fields of a dataclass, all that have no default among them."""
    if not isinstance(table, dict):
        raise SpecError(Problem(place, "entry", "a table", shortened(ascii(table), 163), _STEP))
    keys = cast(Mapping[str, Any], table)
    known = [spec.name for spec in fields(kind) if spec.name not in left_out]
    required = [spec.name for spec in fields(kind) if spec.default is MISSING and spec.name not in left_out]
    unknown, missing = [key for key in keys if key not in known], [key for key in required if key not in keys]
    if unknown:
        step = suggestion(unknown[0], known, _STEP)
        raise SpecError(Problem(place, "keys", f"some of {', '.join(known)}", ", ".join(unknown), step))
    if missing:
        raise SpecError(Problem(place, "keys", ", ".join(required), f"no {', '.join(missing)}", _STEP))
    return dict(keys)


def _problems(entry: PublishedSet) -> Iterator[tuple[str, str, Any]]:
    """Yield what is wrong with an entry: which field, what was expected, and what there is."""
    for spec in fields(entry):
        value: Any = getattr(entry, spec.name)
        if spec.name in _NUMBERS:
            if value is not None and not (type(value) is int and 0 < value < 2**63):
                yield spec.name, "a whole number above 0", value
        elif spec.name in _LISTS:
            yield from _problems_of_lists(spec.name, value)
        elif spec.name == "papers":
            yield from _problems_of_papers(value)
        elif spec.name == "approximate":
            if not isinstance(value, bool):
                yield spec.name, "true or false", value
        elif not _is_line(value, may_be_empty=spec.default == ""):
            yield spec.name, f"a line of at most {MAX_TEXT:,} printable characters", value
        elif (expected := _expected_form(spec.name, value)) is not None:
            yield spec.name, expected, value
    if not entry.addresses:
        yield "addresses", "at least one", entry.addresses
    if not entry.before and not entry.commands:
        yield "commands", "a command, or in before what to do", entry.commands


def _is_line(value: Any, *, may_be_empty: bool = False) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) <= MAX_TEXT and (may_be_empty or value != "")


def _expected_form(name: str, text: str) -> str | None:
    """Return the form of a text that a field should have; None where it has that form."""
    if name == "name" and not _NAME.fullmatch(text):
        return "at most 60 small letters and digits, in words with hyphens between them"
    if name == "license" and text not in (NOT_STATED, NOT_VERIFIED) and not _LICENCE.fullmatch(text):
        return f"an SPDX identifier, LicenseRef-..., {NOT_STATED!r} or {NOT_VERIFIED!r}"
    if name == "tried" and not text.startswith("not tried: ") and not _has_date(text):
        return "'not tried: ' and why, or a date and who, such as '2026-01-31 by the authors'"
    return None


def _has_date(text: str) -> bool:
    day, by, who = text.partition(" by ")
    try:
        return date.fromisoformat(day).isoformat() == day and by != "" and who.strip() != ""
    except ValueError:
        return False


def _problems_of_lists(name: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    items = cast(tuple[Any, ...], value)
    if not isinstance(value, tuple) or len(items) > MAX_ITEMS or not all(map(_is_line, items)):
        yield name, f"a list of at most {MAX_ITEMS} lines", value
    elif name == "addresses":
        for item in items:
            if not _ADDRESS.fullmatch(item):
                yield "address", "https://, hf://, gs:// or s3:// and a place there", item
    elif name == "commands":
        for item in items:
            if not item.startswith("ckptzoo "):
                yield "command", "ckptzoo and what it is to do", item


def _problems_of_papers(value: Any) -> Iterator[tuple[str, str, Any]]:
    items = cast(tuple[Any, ...], value)
    if not isinstance(value, tuple) or len(items) > MAX_ITEMS or not all(isinstance(item, Paper) for item in items):
        yield "papers", f"a list of at most {MAX_ITEMS} tables with title, and arxiv or doi", value
        return
    for paper in cast(tuple[Paper, ...], value):
        texts: tuple[Any, ...] = (paper.title, paper.arxiv, paper.doi)
        if not all(isinstance(text, str) for text in texts) or not _is_line(paper.title):
            yield "title of a paper", f"a line of at most {MAX_TEXT:,} printable characters", paper.title
        elif not paper.arxiv and not paper.doi:
            yield "paper", "arxiv or doi", paper.title
        elif paper.arxiv and not _ARXIV.fullmatch(paper.arxiv):
            yield "arxiv", "a number such as 2310.08287", paper.arxiv
        elif paper.doi and not _DOI.fullmatch(paper.doi):
            yield "doi", "one such as 10.5281/zenodo.12797219", paper.doi
