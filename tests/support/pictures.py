"""Small pictures, what colours pictures have, and zoos whose cards name pictures."""

import struct
import zlib
from pathlib import Path

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from ckptzoo.hub.card import card_of, write
from ckptzoo.loader.zoo import open
from ckptzoo.schema.card import Card, Picture


def png(shade: int = 0) -> bytes:
    """A picture of one grey dot."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head, dot = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0), zlib.compress(bytes((0, shade)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", dot) + chunk(b"IEND", b"")


def illustrated(zoo: Path, **shades: int) -> Card:
    """Give a zoo pictures ``<name>.png`` and a card that names them; returns the card."""
    (zoo / "pictures").mkdir(exist_ok=True)
    for name, shade in shades.items():
        (zoo / "pictures" / f"{name}.png").write_bytes(png(shade))
    named = tuple(Picture(f"{name}.png", f"What {name} shows.") for name in shades)
    old = card_of(open(zoo))
    card = Card(old.name, summary=old.summary, dataset=old.dataset, license="mit", pictures=named)
    write(zoo, card)
    return card


def share(path: Path, colour: str) -> float:
    """The share of a picture's pixels that have this colour."""
    return float((np.abs(imread(path)[..., :3] - to_rgb(colour)) < 0.02).all(axis=-1).mean())
