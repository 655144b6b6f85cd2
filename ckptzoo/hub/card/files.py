"""card.toml and README.md in a zoo's folder."""

import difflib
import warnings
from dataclasses import dataclass
from pathlib import Path

from ckptzoo.errors import Problem, SpecError
from ckptzoo.format.durable import write_file
from ckptzoo.format.files import Files
from ckptzoo.hub.card.page import check_pictures, readme
from ckptzoo.loader.zoo import Zoo, open
from ckptzoo.schema import layout
from ckptzoo.schema.card import CARD_TOML, MAX_CARD_BYTES, Card


@dataclass(frozen=True)
class Written:
    """What a card is, and how it differed from the one that was there.

    Parameters
    ----------
    path : the README.md.
    text : what it holds now, or would.
    changes : lines of a unified diff from what was there; none where nothing changed.
    """

    path: Path
    text: str
    changes: tuple[str, ...]


def card_of(zoo: Zoo) -> Card:
    """What a person said about a zoo, as it is kept there.

    Raises
    ------
    SpecError
        The zoo has no card.toml, or one that is not valid.
    """
    return card_in(zoo.contents.files)


def card_in(files: Files) -> Card:
    """As ``card_of``, from the zoo's files."""
    if files.size(CARD_TOML) is None:
        step = "Pass one with --card; cards/template/card.toml shows every key."
        raise SpecError(Problem(f"{files.name}/{CARD_TOML}", "file", "a card in TOML", "none", step))
    return Card.from_bytes(files.read(CARD_TOML, max_bytes=MAX_CARD_BYTES), location=f"{files.name}/{CARD_TOML}")


def write(folder: str | Path, card: Card | None = None, *, check: bool = False) -> Written:
    """Make a zoo's README.md anew, and keep what a person wrote beside it.

    Parameters
    ----------
    folder : the zoo's.
    card : what a person says; by default what the zoo keeps. One that is passed in replaces that.
    check : only say what would change.

    Raises
    ------
    SpecError
        There is no card, or it is another zoo's, or the zoo lacks a picture that it names.

    Notes
    -----
    Each file appears whole or not at all; the same zoo and card give the same bytes.
    """
    root = Path(folder).absolute()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*retracted", category=UserWarning)
        zoo = open(root)
    said = card_of(zoo) if card is None else card
    if said.name != zoo.name:
        step = "Name the zoo in the card, or take the card of this zoo."
        raise SpecError(Problem("card", "name", repr(zoo.name), repr(said.name), step))
    check_pictures(zoo.contents.files, said)
    text, path = readme(zoo, said), root / layout.README
    before = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    changes = difflib.unified_diff(
        before.splitlines(), text.splitlines(), "README.md", "README.md, made anew", n=1, lineterm=""
    )
    made = Written(path, text, tuple(changes))
    if not check:
        facts = said.to_toml().encode()
        if card is not None and (not (root / CARD_TOML).is_file() or (root / CARD_TOML).read_bytes() != facts):
            write_file(root / CARD_TOML, facts)
        if not path.is_file() or path.read_bytes() != text.encode():
            write_file(path, text.encode())
    return made
