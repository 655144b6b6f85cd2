"""A piece of a file and what it must be."""

from typing import NamedTuple


class Span(NamedTuple):
    """Bytes ``start`` to ``stop`` of a file, at least one, and the sha256 of these bytes."""

    name: str
    start: int
    stop: int
    sha256: bytes
