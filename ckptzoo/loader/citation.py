"""Citations of zoos and selections in BibTeX."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.files import Files
from ckptzoo.loader.selection import standing
from ckptzoo.schema.card import CARD_TOML, MAX_CARD_BYTES, Card
from ckptzoo.schema.documents import JsonFields, digest_of
from ckptzoo.schema.release import Release
from ckptzoo.text import counted

if TYPE_CHECKING:
    from ckptzoo.loader.zoo import Zoo

MAX_SELECTION = 4096
"""Characters of a selection that is cited."""
_ESCAPES = {
    "\\": r"\textbackslash{}",
    # BibTeX counts braces, also those behind a backslash
    "{": r"\textbraceleft{}",
    "}": r"\textbraceright{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    # in the encoding that LaTeX has by default these three are other letters
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",
    "'": r"\char39{}",
    "`": r"\char96{}",
    **{letter: f"\\{letter}" for letter in "#$%&_"},
}
_BLANKS = re.compile(r" {2,}")
_RUN = 3
"""Positions in a row from which on a range is shorter."""


@dataclass(frozen=True)
class Citation(JsonFields, derived=("bibtex", "code")):
    """The facts of a citation, whose text is BibTeX.

    Parameters
    ----------
    key
        of the entry.
    name
        the zoo's.
    title
        the card's, else the name.
    authors
        those of the card.
    year
        of the release, else of the newest of these checkpoints; None where that is not known.
    version
        the newest release that the zoo is at; None where it is at none.
    revision
        the zoo's, which ``ckptzoo.open`` takes.
    selection
        the calls that select these checkpoints from the zoo at this revision, as code; empty for all of them.
    checkpoints, total
        how many these are, and how many the zoo has.
    ids
        digest of their ids, in order.
    doi
        the card's; empty where it has none.
    address
        of the zoo: on a hub, else the repository that the card names, else empty.

    Examples
    --------
    >>> print(ckptzoo.open("cards/mnist-optunet").where("seed < 3").cite())
    @misc{mnist-optunet-af7ce90f,
      title = {{OptuNets on MNIST}},
    ...
    """

    key: str
    name: str
    title: str
    authors: tuple[str, ...]
    year: int | None
    version: str | None
    revision: str
    selection: str
    checkpoints: int
    total: int
    ids: str
    doi: str
    address: str

    @property
    def code(self) -> str:
        """The program that opens these checkpoints."""
        place = self.address.partition(" at ")[0] or self.name
        return f'ckptzoo.open({place!r}, revision="{self.revision}"){self.selection}'

    @property
    def bibtex(self) -> str:
        """One entry of BibTeX, all of whose texts are escaped."""
        whole = counted(self.total, "checkpoint")
        count = f"{self.checkpoints:,} of {whole}" if self.selection else whole
        selection = f", selection zoo{self.selection}" if self.selection else ""
        note = (
            f"ckptzoo zoo {' '.join(self.name.split())}, {count}, revision {self.revision}{selection}, ids {self.ids}"
        )
        fields = {
            "title": f"{{{escaped(self.title)}}}",
            "author": " and ".join(map(_author, self.authors)),
            "year": "" if self.year is None else str(self.year),
            "version": escaped(self.version or ""),
            "doi": escaped(self.doi),
            "howpublished": escaped(self.address),
            "note": escaped(note, with_blanks=True),
        }
        lines = [f"  {name} = {{{text}}}," for name, text in fields.items() if text]
        return "\n".join([f"@misc{{{self.key},", *lines, "}"])

    def __str__(self) -> str:
        return self.bibtex


def escaped(text: str, *, with_blanks: bool = False) -> str:
    """Return a text as LaTeX shows it, on one line; control characters and halves of surrogate pairs are left out.

    BibTeX and LaTeX make one blank of several: ``with_blanks`` keeps them, as in code.
    """
    line = text if with_blanks else " ".join(text.split())
    kept = (letter for letter in line if unicodedata.category(letter) not in ("Cc", "Cs"))
    found = "".join(_ESCAPES.get(letter, letter) for letter in kept)
    return _BLANKS.sub(lambda run: "\\ " * len(run[0]), found) if with_blanks else found


def _author(name: str) -> str:
    """Return an author; BibTeX divides the names of several by the word and, and those of one by commas."""
    is_one = re.search(r"\band\b", name, re.IGNORECASE) is None and name.count(",") < 2
    return escaped(name) if is_one else f"{{{escaped(name)}}}"


def card_if_any(files: Files) -> Card | None:
    """Return the card of a zoo; None where it has none."""
    if files.size(CARD_TOML) is None:
        return None
    return Card.from_bytes(files.read(CARD_TOML, max_bytes=MAX_CARD_BYTES), location=f"{files.name}/{CARD_TOML}")


def cite(
    zoo: "Zoo",
    rows: NDArray[np.int64],
    steps: tuple[str, ...] | None,
    card: Card | None,
    *,
    releases: Sequence[Release],
    address: str = "",
) -> Citation:
    """Return the citation of a selection.

    ``rows`` are its checkpoints among all of the zoo; ``steps`` are the calls that select it, where they are known.
    Where there is no ``address``, it is that of the card's repository.
    """
    all_rows = standing(zoo.contents)
    release = next((item for item in reversed(releases) if item.revision == zoo.revision), None)
    if release is not None:
        year = release.created.year
    else:
        times = zoo.column("created").drop_null()
        year = max(times.to_pylist()).year if len(times) else None
    word = re.sub(r"[^A-Za-z0-9-]+", "-", zoo.name)[:60].strip("-") or "zoo"
    if not address and card is not None and card.repository:
        address = f"hf://datasets/{card.repository}"
    return Citation(
        f"{word}-{zoo.revision.removeprefix('sha256:')[:8]}",
        zoo.name,
        (card and card.title) or zoo.name,
        () if card is None else card.authors,
        year,
        None if release is None else release.name,
        zoo.revision,
        _selection(zoo.name, rows, all_rows, steps),
        len(zoo),
        len(all_rows),
        digest_of(zoo.ids),
        "" if card is None else card.doi,
        address,
    )


def _selection(name: str, rows: NDArray[np.int64], all_rows: NDArray[np.int64], steps: tuple[str, ...] | None) -> str:
    """Return the calls that select these rows from all of them: those that were made, else their positions."""
    if np.array_equal(rows, all_rows):
        return ""
    by_steps = None if steps is None else "".join(steps)
    if by_steps is not None and len(by_steps) <= MAX_SELECTION:
        return by_steps
    by_position = f".take([{positions_code(np.searchsorted(all_rows, rows))}])"
    if len(by_position) > MAX_SELECTION:
        got = f"{len(rows):,} positions"
        step = "Keep them as a split, ckptzoo.write_split(ZOO, NAME, {PART: zoo.ids}), and cite zoo.split(NAME, PART)."
        expected = f"a condition, a part of a split, or positions of at most {MAX_SELECTION:,} characters"
        raise ZooError(Problem(name, "selection to cite", expected, got, step))
    return by_position


def positions_code(positions: NDArray[np.int64]) -> str:
    """Return the items of a list of these positions, as code.

    >>> positions_code(np.array([3, 5, 6, 7, 2, 1, 0, 0]))
    '3, *range(5, 8), 2, 1, 0, 0'
    """
    ends = np.flatnonzero(np.diff(positions) != 1) + 1
    items: list[str] = []
    # as many positions as could be listed at all, so that the time is bounded
    for run in np.split(positions, ends)[: MAX_SELECTION + 1] if len(positions) else ():
        first, last = int(run[0]), int(run[-1])
        items += [f"*range({first}, {last + 1})"] if len(run) >= _RUN else [str(int(position)) for position in run]
    return ", ".join(items)


def condition_code(filters: Any) -> str | None:
    """Return the call with these filters as code; None for masks, expressions and values that are not plain."""
    is_mask = isinstance(filters, list | tuple) and not all(isinstance(item, list | tuple) for item in filters)
    if is_mask or not _is_plain(filters):
        return None
    text = f".where({filters!r})"
    return text if len(text) <= MAX_SELECTION else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(item) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return type(value) in (str, int, bool, type(None)) or (type(value) is float and np.isfinite(value).item())


def slice_code(rows: Any) -> str | None:
    """Return a slice as code; None for other positions."""
    if not isinstance(rows, slice):
        return None
    ends = (rows.start, rows.stop, *(() if rows.step is None else (rows.step,)))
    return f"[{':'.join('' if end is None else str(int(end)) for end in ends)}]"
