"""Bytes to arrays and back: headers, shards, parts, the writer, the reader's index, verification."""

from typing import TYPE_CHECKING

from ckptzoo.lazy_names import lazy_names

__all__ = ["Writer"]

if TYPE_CHECKING:
    from ckptzoo.format.writer import Writer as Writer

__getattr__, __dir__ = lazy_names(__name__, {"Writer": "ckptzoo.format.writer"})
