"""Card, pictures, explorer and README.md of a pulled zoo; that of a part says where it was taken from."""

import dataclasses
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from ckptzoo.errors import SpecError
from ckptzoo.format.durable import write_file
from ckptzoo.format.files import Files, Folder
from ckptzoo.hub.card import card_of, readme
from ckptzoo.hub.card.croissant import croissant
from ckptzoo.hub.card.explorer import read_explorer
from ckptzoo.hub.card.markdown import code
from ckptzoo.hub.card.pictures import read_pictures
from ckptzoo.hub.pull.selection import OPTIONS, PullSelection
from ckptzoo.loader.remote_files import RemoteFiles
from ckptzoo.loader.zoo import open
from ckptzoo.remote import Remote
from ckptzoo.remote.stores import FolderStore
from ckptzoo.schema import layout
from ckptzoo.schema.card import CARD_TOML, CARDS, Card
from ckptzoo.schema.documents import Document
from ckptzoo.text import shortened

_FRONT_MATTER = re.compile(r"---\n.*?\n---\n", re.DOTALL)
"""The YAML at the head of a README.md; hubs read it only where the file begins with it."""


def read_existing(files: Files, names: Sequence[str]) -> dict[str, bytes]:
    """Return those of some small files that the zoo has, by their names."""
    existing = [name for name in names if files.size(name) is not None]
    return dict(zip(existing, files.read_many(existing), strict=True))


def read_card_files(files: Files) -> dict[str, bytes]:
    """Read README.md, card.toml, the pictures that the card names, and the explorer; warn of what cannot be used."""
    card_files = read_existing(files, CARDS)
    explorer, problems = read_explorer(files)
    problems = [
        dataclasses.replace(problem, next_step=f"The pull goes on without it. {problem.next_step}")
        for problem in problems
    ]
    try:
        card = Card.from_bytes(card_files.get(CARD_TOML, b""))
    except SpecError:
        pictures = dict[str, bytes]()
    else:
        pictures, lacking = read_pictures(files, card)
        problems += [dataclasses.replace(problem, next_step="The pull goes on without it.") for problem in lacking]
    for problem in problems:
        warnings.warn(str(problem), UserWarning, stacklevel=5)  # at the caller of pull
    return card_files | pictures | explorer


def write_card_files(
    files: RemoteFiles | Folder, card_files: dict[str, bytes], root: Path, selection: PullSelection, *, checkpoints: int
) -> None:
    """Write what ``read_card_files`` read; a part of a zoo gets a README.md of its own, with the number of
    ``checkpoints`` that it was selected from.
    """
    for name, data in card_files.items():
        if name not in (layout.README, layout.CROISSANT):
            (root / name).parent.mkdir(exist_ok=True)
            write_if_changed(root / name, data)
    if not selection.is_everything:
        original = card_files.get(layout.README, b"")
        source = (files.name, "") if isinstance(files, Folder) else _address(files.remote)
        data = subset_readme(root, original, source, selection.to_json(), checkpoints=checkpoints)
        write_if_changed(root / layout.README, data)
        return
    for name in (layout.README, layout.CROISSANT):
        if name in card_files:
            write_if_changed(root / name, card_files[name])


def _address(remote: Remote) -> tuple[str, str]:
    """Return what is shown of a zoo's address, and its revision; only the name of a folder of this machine."""
    return Path(remote.name).name if isinstance(remote.store, FolderStore) else remote.name, remote.revision


def subset_readme(
    root: Path, original: bytes, source: tuple[str, str], selection: Document, *, checkpoints: int
) -> bytes:
    """Return a README.md with a paragraph behind its front matter that says what was taken from where, and how.

    With a card.toml in ``root``, the part, it is made from that and from what the part holds, else from ``original``,
    the README.md of the zoo that it was taken from. ``source`` is that zoo's address and revision, empty where it is
    a folder that refers to files.
    ``checkpoints`` is the number that ``selection`` was made from.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*retracted", category=UserWarning)
        zoo = open(root)
    try:
        card = card_of(zoo)
        drawn = ["pictures"] * bool(card.pictures) + ["explorer"] * (
            zoo.contents.files.size(layout.EXPLORER) is not None
        )
        show = "shows" if drawn == ["explorer"] else "show"
        remark = f" The {' and the '.join(drawn)} {show} the whole." if drawn else ""
        text = readme(zoo, card)
        write_if_changed(root / layout.CROISSANT, croissant(zoo, card))
    except SpecError:
        text, remark = original.decode("utf-8", "replace"), " What follows describes the whole."
    address, revision = source
    options = [
        f"{name} {code(shortened(', '.join(value) if isinstance(value, list) else str(value), 200), escape=False)}"
        for name in OPTIONS
        # materialize copies what was predicted with everything that was derived
        if (value := selection.get(name)) is not None and (revision or name != "predictions")
    ]
    named = f"{code(address, escape=False)}" + (f", revision {code(revision, escape=False)}" if revision else "")
    command = "pull" if revision else "materialize"
    notice = (
        f"> This is a part of another zoo. `ckptzoo {command}` took {len(zoo):,} of {checkpoints:,} checkpoints "
        f"from {named}, with {'; '.join(options)}.{remark}"
    )
    front = match[0] if (match := _FRONT_MATTER.match(text)) else ""
    return f"{front}{notice}\n\n{text[len(front) :].lstrip()}".encode()


def write_if_changed(path: Path, data: bytes) -> None:
    """Write a file unless it holds these bytes."""
    if not path.is_file() or path.read_bytes() != data:
        write_file(path, data)
