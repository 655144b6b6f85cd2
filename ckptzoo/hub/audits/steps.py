"""The checkpoints of runs as an audit knows them: what they are, and some of their numbers."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema.architecture import ITEMSIZE

Layout = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Name, dtype and shape of every tensor, by name."""
ROUNDS = 3
"""Samples that are taken one after another where numbers of the one before do not move."""
_TENSORS = 6
"""Tensors that a sample reads."""
_SHARE, _LEAST, _MOST = 300, 2**14, 2**16
"""A sample has one part in this many of a checkpoint's bytes, within these bounds in bytes."""
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole parts, cut an interval evenly, however many there are."""


class Piece(NamedTuple):
    """The first numbers of a tensor."""

    name: str
    numbers: int


@dataclass(eq=False)
class PublishedStep:
    """One checkpoint of a run.

    ``where`` is its path or id; ``digest`` that of its files where a hub says it, of all its numbers where they were
    read; ``claims`` are the steps that it, or a file beside it, says it is of. ``values`` are the numbers that were
    read, as they are stored.
    """

    run: str
    step: int | None
    where: str
    layout: Layout
    reader: "StepReader" = field(repr=False)
    digest: str = ""
    claims: Mapping[str, int] = field(default_factory=dict[str, int])
    values: dict[Piece, NDArray[Any]] = field(default_factory=dict[Piece, NDArray[Any]], repr=False)
    nonfinite: list[str] = field(default_factory=list[str])

    @property
    def key(self) -> bytes:
        """A digest of the layout and of the numbers that were read."""
        digest = hashlib.sha256(repr(self.layout).encode())
        for piece in sorted(self.values):
            digest.update(self.values[piece].tobytes())
        return digest.digest()


class StepReader(Protocol):
    """Reads numbers of some steps; ``reads_all`` says that reading all of them needs no transfer."""

    reads_all: bool

    def read(self, steps: Sequence[PublishedStep], pieces: Sequence[Piece]) -> None:
        """Put the pieces into the ``values`` of each step."""
        ...

    def read_all(self, step: PublishedStep) -> None:
        """Read every number: sets ``digest`` to that of all numbers, and ``nonfinite``."""
        ...


def layout_of(tensors: Mapping[str, NDArray[Any]]) -> Layout:
    """Return the layout of arrays by name."""
    return tuple((name, array.dtype.name, array.shape) for name, array in sorted(tensors.items()))


def pieces_of(layout: Layout, number: int) -> list[Piece]:
    """Return what sample ``number`` reads: the first numbers of tensors all over the network."""
    floats = [(name, dtype, prod(shape)) for name, dtype, shape in layout if dtype in _FLOATS and prod(shape)]
    # biases and gains are few numbers, which may never move, and go back and forth more than others
    large = [item for item in floats if item[2] >= 256] or floats
    nbytes = sum(ITEMSIZE[dtype] * prod(shape) for _, dtype, shape in layout if dtype in ITEMSIZE)
    most = min(max(nbytes // _SHARE, _LEAST), _MOST)
    order = sorted(range(len(large)), key=lambda at: (at * _GOLDEN) % 1)
    chosen = sorted(order[number * _TENSORS : (number + 1) * _TENSORS])
    each = most // max(1, len(chosen))
    return [Piece(large[at][0], min(large[at][2], each // ITEMSIZE[large[at][1]])) for at in chosen]


def digest_of(tensors: Iterable[tuple[str, NDArray[Any]]]) -> tuple[str, list[str]]:
    """Return the digest of all numbers with their names, and the tensors that hold NaN or infinity."""
    digest, nonfinite = hashlib.sha256(), list[str]()
    for name, array in tensors:
        digest.update(f"{name}\0{array.dtype.name}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))  # pyright: ignore[reportArgumentType]
        if not is_finite(array):
            nonfinite.append(name)
    return f"numbers:{digest.hexdigest()}", nonfinite


def is_finite(array: NDArray[Any]) -> bool:
    """Tell whether no number of an array is NaN or infinite; integers are finite."""
    if array.dtype.kind in "iub":
        return True
    # bfloat16 of ml_dtypes has no isfinite of its own in all versions
    return bool(np.isfinite(array if array.dtype.kind == "f" else array.astype(np.float32)).all())
