"""The results of reading untrusted files: the state dicts of each, or the error."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ckptzoo.errors import ZooError
from ckptzoo.text import brief_repr

Scalar = bool | int | float | str
Fact = Scalar | tuple[Scalar, ...]
"""A scalar beside the tensors of a state dict, or some of them in a list among settings."""


@dataclass(frozen=True)
class StateDict:
    """One state dict of a file."""

    source: str
    """The file's name; with ``#key`` or ``#3`` where the file holds several."""
    tensors: dict[str, NDArray[Any]]
    """Every tensor under its name in the file, tied ones under each of theirs, in the file's order; bfloat16 through
    ml_dtypes."""
    aliases: dict[str, str]
    """Tied tensors: a name to the earlier name whose numbers it shares."""
    facts: dict[str, Fact]
    """Scalars beside it: ``epoch``, ``best_prec1``, ..."""
    left_out: tuple[str, ...]
    """Objects that were recognised and not taken: ``optimizer: 62 entries``, ..."""
    buffers: frozenset[str] = frozenset()
    """Names of tensors that a module that was saved whole says are buffers."""

    __repr__ = brief_repr


@dataclass(frozen=True)
class FileResult:
    """The result of ``read_all`` for one file: its state dicts, or the error.

    Parameters
    ----------
    path
        the file.
    states
        its state dicts; none where it is refused.
    error
        why it is refused, or None.
    """

    path: Path
    states: tuple[StateDict, ...] = ()
    error: ZooError | None = None
