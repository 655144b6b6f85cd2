"""What people wrote of a zoo, and the page that is made of it, brought to a folder."""

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path

from ckptzoo.errors import SpecError
from ckptzoo.format.durable import write_file
from ckptzoo.hub.card import read_pictures
from ckptzoo.hub.pulling.asked import Asked
from ckptzoo.hub.pulling.notice import noticed
from ckptzoo.loader.afar import Afar
from ckptzoo.spec import layout
from ckptzoo.spec.card import CARDS, FILE, Card


def read_some(files: Afar, names: Sequence[str]) -> dict[str, bytes]:
    """Those of some small files that are there."""
    there = [name for name in names if files.size(name) is not None]
    return dict(zip(there, files.read_many(there), strict=True))


def read_cards(files: Afar) -> dict[str, bytes]:
    """Page, card, and the pictures that the card names; those that are not what they should be are left out."""
    cards = read_some(files, CARDS)
    try:
        card = Card.from_bytes(cards.get(FILE, b""))
    except SpecError:
        return cards
    held, problems = read_pictures(files, card)
    for problem in problems:
        told = dataclasses.replace(problem, next_step="The pull goes on without it.")
        warnings.warn(str(told), UserWarning, stacklevel=4)
    return cards | held


def write_cards(files: Afar, cards: dict[str, bytes], root: Path, asked: Asked, *, of: int) -> None:
    """All that was read; a part of a zoo gets a page of its own. ``of`` is the number of checkpoints afar."""
    for name, data in cards.items():
        if name != layout.CARD:
            (root / name).parent.mkdir(exist_ok=True)
            replace(root / name, data)
    if not asked.everything:
        above = cards.get(layout.CARD, b"")
        replace(root / layout.CARD, noticed(root, above, files.remote, asked.to_json(), of=of))
    elif layout.CARD in cards:
        replace(root / layout.CARD, cards[layout.CARD])


def replace(path: Path, data: bytes) -> None:
    """Write a file unless it holds these bytes."""
    if not path.is_file() or path.read_bytes() != data:
        write_file(path, data)
