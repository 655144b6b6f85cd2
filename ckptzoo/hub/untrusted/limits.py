"""What is found in a stranger's file, and how much of one is read."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.schema.architecture import ITEMSIZE, MAX_NAME, MAX_TENSORS

Fact = bool | int | float | str
AGAIN = "Save the state dict again with safetensors.torch.save_file or torch.save."


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on one file; sizes in bytes, times in seconds."""

    file_bytes: int = 8 * 2**30
    """The file itself."""
    tensor_bytes: int = 8 * 2**30
    """All its tensors, each written out in full; tied ones count once."""
    tensors: int = 4 * MAX_TENSORS
    """Names in all its state dicts together."""
    states: int = 10_000
    """State dicts in it."""
    header_bytes: int = 32 * 2**20
    """The JSON header of a safetensors file."""
    pickle_bytes: int = 256 * 2**20
    """The pickle that holds the names and shapes, without the weights."""
    expansion: int = 200
    """An archive that unpacks to more than 64 MiB may not be this many times smaller packed."""
    memory_bytes: int = 12 * 2**30
    """Address space of the reading process, above what its libraries take."""
    cpu_seconds: int = 300
    """Processor time of the reading process."""
    seconds: float = 600
    """Time on the wall until the reading process is killed."""


@dataclass(frozen=True)
class StateDict:
    """One state dict in a file."""

    source: str
    """The file's name; with ``#key`` or ``#3`` where the file holds several."""
    tensors: dict[str, NDArray[Any]]
    """Every tensor under its name in the file, in the file's order; bfloat16 through ml_dtypes."""
    aliases: dict[str, str]
    """Tied tensors: a name to the earlier name with which it shares its numbers."""
    facts: dict[str, Fact]
    """Scalars that stood beside it: ``epoch``, ``best_prec1``, ..."""
    left_out: tuple[str, ...]
    """What was understood and left: ``optimizer: 62 entries``, ..."""
    guards: tuple[str, ...] = ()
    """What held the reading process, and what this machine could not give (``without: ...``)."""


@dataclass(frozen=True)
class Read:
    """What became of one file: the state dicts found, or the error."""

    path: Path
    found: tuple[StateDict, ...] = ()
    error: ZooError | None = None


def reject(location: str, what: str, expected: str, got: object, step: str = AGAIN) -> NoReturn:
    """Turn a file away: one problem, with a stranger's text made harmless."""
    raise IntegrityError(Problem(shown(location, 1000), what, expected, shown(got), step))


def again(problems: Iterable[Problem], step: str = AGAIN) -> IntegrityError:
    """The same problems with another next step."""
    return IntegrityError([replace(problem, next_step=step) for problem in problems])


def shown(text: object, most: int = 200) -> str:
    """A stranger's text for a message: printable, and cut off at ``most`` characters."""
    plain = str(text)[: most + 1]
    plain = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in plain)
    return plain if len(plain) <= most else plain[: most - 3] + "..."


def odd_name(name: object) -> str | None:
    """Why a tensor cannot be known by this name, or None."""
    if not isinstance(name, str) or not name:
        return f"a {type(name).__name__}" if not isinstance(name, str) else "an empty name"
    if len(name) > MAX_NAME:
        return f"{len(name)} characters"
    return None if name.isprintable() and name != "__metadata__" else ascii(name)


def storable(dtype: np.dtype[Any]) -> str | None:
    """Our name of a numpy dtype that a zoo can hold, or None."""
    return dtype.name if dtype.name in ITEMSIZE else None
