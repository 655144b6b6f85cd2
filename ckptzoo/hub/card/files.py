"""Read the card.toml of a zoo or a collection, and write README.md, croissant.json and card.toml into its folder."""

import difflib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ckptzoo.errors import Problem, SpecError
from ckptzoo.format.durable import write_file
from ckptzoo.format.files import Files, Folder
from ckptzoo.hub.card.collection import card_or_default, collection_readme
from ckptzoo.hub.card.croissant import croissant
from ckptzoo.hub.card.page import readme
from ckptzoo.hub.card.pictures import check_pictures
from ckptzoo.loader.collection import holds_zoos, open_collection
from ckptzoo.loader.zoo import Zoo, open
from ckptzoo.schema import layout
from ckptzoo.schema.card import CARD_TOML, MAX_CARD_BYTES, Card


@dataclass(frozen=True)
class Written:
    """A README.md that was written, or would be, and how it and croissant.json differ from those that were there.

    Parameters
    ----------
    path
        the README.md.
    text
        what it holds now, or would hold.
    changes
        lines of unified diffs from what was there; none where nothing changed.
    """

    path: Path
    text: str
    changes: tuple[str, ...]


def card_of(zoo: Zoo) -> Card:
    """The card of a zoo: what a person wrote about it.

    Parameters
    ----------
    zoo
        on this machine or another.

    Raises
    ------
    SpecError
        The zoo has no card.toml, or one that is not valid.
    """
    return card_in(zoo.contents.files)


def card_in(files: Files) -> Card:
    """Return the card as ``card_of`` does, from the files of a zoo that is not opened.

    Parameters
    ----------
    files
        of the zoo.
    """
    if files.size(CARD_TOML) is None:
        step = "Pass one with --card; cards/template/card.toml shows every key."
        raise SpecError(Problem(f"{files.name}/{CARD_TOML}", "file", "a card in TOML", "none", step))
    return Card.from_bytes(files.read(CARD_TOML, max_bytes=MAX_CARD_BYTES), location=f"{files.name}/{CARD_TOML}")


def write(folder: str | Path, card: Card | None = None, *, check: bool = False) -> Written:
    """Generate README.md of a zoo or a collection, of a zoo croissant.json too, and keep the card beside them.

    Parameters
    ----------
    folder
        the zoo's, or the collection's, which needs no card.
    card
        by default the folder's card.toml. One that is passed in replaces that.
    check
        only report what would change.

    Raises
    ------
    SpecError
        A zoo has no card, or it is another zoo's, or the folder lacks a picture that it names.

    Notes
    -----
    Each file appears whole or not at all; the same zoo and card give the same bytes.
    """
    root = Path(folder).absolute()
    files, path = Folder(root), root / layout.README
    with warnings.catch_warnings():
        # The page itself says how many checkpoints are retracted.
        warnings.filterwarnings("ignore", message=".*retracted", category=UserWarning)
        if holds_zoos(root):
            used = card or card_or_default(files, root.name)
            collection = open_collection(root)
            zoos = {entry.folder: collection.zoos[entry.folder] for entry in collection.entries}
            text, contents = collection_readme(zoos, used), dict[Path, bytes]()
        else:
            zoo = open(root)
            used, text = _page_of_zoo(zoo, card)
            contents = {root / layout.CROISSANT: croissant(zoo, used)}
    check_pictures(files, used)
    contents = {path: text.encode(), **contents}
    changes = [line for target, data in contents.items() for line in _changes(target, data)]
    written = Written(path, text, tuple(changes))
    if not check:
        if card is not None:
            contents = {root / CARD_TOML: used.to_toml().encode(), **contents}
        for target, data in contents.items():
            if not target.is_file() or target.read_bytes() != data:
                write_file(target, data)
    return written


def _changes(path: Path, data: bytes) -> Iterator[str]:
    """Yield the lines of a unified diff from a file that may not be there."""
    before = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    names = path.name, f"{path.name}, generated"
    yield from difflib.unified_diff(before.splitlines(), data.decode().splitlines(), *names, n=1, lineterm="")


def _page_of_zoo(zoo: Zoo, card: Card | None) -> tuple[Card, str]:
    """Return the card that is used, and README.md as it should be."""
    used = card_of(zoo) if card is None else card
    if used.name != zoo.name:
        step = "Name the zoo in the card, or take the card of this zoo."
        raise SpecError(Problem("card", "name", repr(zoo.name), repr(used.name), step))
    return used, readme(zoo, used)
