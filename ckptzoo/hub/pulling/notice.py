"""The README.md of a part of a zoo, which says where it was taken from."""

import re
import warnings
from pathlib import Path

from ckptzoo.errors import SpecError
from ckptzoo.hub.card import card_of, readme
from ckptzoo.loader.zoo import open
from ckptzoo.remote import Remote
from ckptzoo.remote.folder import FolderStore
from ckptzoo.spec.document import Document

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
