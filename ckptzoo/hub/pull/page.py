"""What people wrote of a zoo, and the page that is made of it, brought to a folder.

The README.md of a part of a zoo, which says where it was taken from.
"""

import dataclasses
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from ckptzoo.errors import SpecError
from ckptzoo.format.durable import write_file
from ckptzoo.hub.card import card_of, read_pictures, readme
from ckptzoo.hub.pull.selection import PullSelection
from ckptzoo.loader.remote_files import RemoteFiles
from ckptzoo.loader.zoo import open
from ckptzoo.remote import Remote
from ckptzoo.remote.stores import FolderStore
from ckptzoo.schema import layout
from ckptzoo.schema.card import CARD_TOML, CARDS, Card
from ckptzoo.schema.documents import Document

_FRONT = re.compile(r"---\n.*?\n---\n", re.DOTALL)


def noticed(root: Path, above: bytes, remote: Remote, selection: Document, *, of: int) -> bytes:
    """A README.md with a paragraph behind its front matter that says what was taken from where, and how.

    Parameters
    ----------
    root : the part, which is a zoo. With a card.toml its README.md is made from that and from what it holds.
    above : the README.md of the zoo that it was taken from, for a part without a card.toml.
    remote : that zoo; of a folder of this machine only its name is said.
    selection : what was asked for.
    of : how many checkpoints there were.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*retracted", category=UserWarning)
        zoo = open(root)
    try:
        card = card_of(zoo)
        text, more = readme(zoo, card), " The pictures show the whole." if card.pictures else ""
    except SpecError:
        text, more = above.decode("utf-8", "replace"), " What follows describes the whole."
    options = [
        f"{what} {_code(', '.join(value) if isinstance(value, list) else str(value))}"
        for what in ("variants", "layers", "where")
        if (value := selection.get(what)) is not None
    ]
    address = Path(remote.name).name if isinstance(remote.store, FolderStore) else remote.name
    said = (
        f"> This is a part of another zoo. `ckptzoo pull` took {len(zoo):,} of {of:,} checkpoints "
        f"from {_code(address)}, revision {_code(remote.revision)}, with {'; '.join(options)}.{more}"
    )
    front = matched[0] if (matched := _FRONT.match(text)) else ""
    return f"{front}{said}\n\n{text[len(front) :].lstrip()}".encode()


def _code(text: str) -> str:
    """Text as Markdown shows it letter by letter, on one line."""
    line = " ".join(text.split())
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def read_some(files: RemoteFiles, names: Sequence[str]) -> dict[str, bytes]:
    """Those of some small files that are there."""
    there = [name for name in names if files.size(name) is not None]
    return dict(zip(there, files.read_many(there), strict=True))


def read_cards(files: RemoteFiles) -> dict[str, bytes]:
    """Page, card, and the pictures that the card names; those that are not what they should be are left out."""
    cards = read_some(files, CARDS)
    try:
        card = Card.from_bytes(cards.get(CARD_TOML, b""))
    except SpecError:
        return cards
    held, problems = read_pictures(files, card)
    for problem in problems:
        told = dataclasses.replace(problem, next_step="The pull goes on without it.")
        warnings.warn(str(told), UserWarning, stacklevel=4)
    return cards | held


def write_cards(files: RemoteFiles, cards: dict[str, bytes], root: Path, asked: PullSelection, *, of: int) -> None:
    """All that was read; a part of a zoo gets a page of its own. ``of`` is the number of checkpoints afar."""
    for name, data in cards.items():
        if name != layout.README:
            (root / name).parent.mkdir(exist_ok=True)
            replace(root / name, data)
    if not asked.everything:
        above = cards.get(layout.README, b"")
        replace(root / layout.README, noticed(root, above, files.remote, asked.to_json(), of=of))
    elif layout.README in cards:
        replace(root / layout.README, cards[layout.README])


def replace(path: Path, data: bytes) -> None:
    """Write a file unless it holds these bytes."""
    if not path.is_file() or path.read_bytes() != data:
        write_file(path, data)
