"""What untrusted files hold, how much of one is read, and how one is refused."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.schema.architecture import MAX_NAME, MAX_TENSORS
from ckptzoo.text import excerpt

Fact = bool | int | float | str
SAVE_AGAIN = "Save the state dict again with safetensors.torch.save_file or torch.save."


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
    """One state dict of a file."""

    source: str
    """The file's name; with ``#key`` or ``#3`` where the file holds several."""
    tensors: dict[str, NDArray[Any]]
    """Every tensor under its name in the file, in the file's order; bfloat16 through ml_dtypes."""
    aliases: dict[str, str]
    """Tied tensors: a name to the earlier name whose numbers it shares."""
    facts: dict[str, Fact]
    """Scalars beside it: ``epoch``, ``best_prec1``, ..."""
    left_out: tuple[str, ...]
    """What was recognised and not taken: ``optimizer: 62 entries``, ..."""
    guards: tuple[str, ...] = ()
    """The sandbox of the reading process, and what this machine could not give (``without: ...``)."""


@dataclass(frozen=True)
class FileResult:
    """What ``read_all`` made of one file: its state dicts, or the error."""

    path: Path
    states: tuple[StateDict, ...] = ()
    error: ZooError | None = None


def reject(location: str, what: str, expected: str, got: object, next_step: str = SAVE_AGAIN) -> NoReturn:
    """Refuse a file: one problem, with untrusted text made harmless."""
    raise IntegrityError(Problem(excerpt(location, 1000), what, expected, excerpt(got), next_step))


def with_next_step(problems: Iterable[Problem], next_step: str = SAVE_AGAIN) -> IntegrityError:
    """The same problems with another next step."""
    return IntegrityError([replace(problem, next_step=next_step) for problem in problems])


def name_error(name: object) -> str | None:
    """What is wrong with the name of a tensor, or None."""
    if not isinstance(name, str) or not name:
        return f"a {type(name).__name__}" if not isinstance(name, str) else "an empty name"
    if len(name) > MAX_NAME:
        return f"{len(name)} characters"
    # safetensors keeps the file's own metadata under this name.
    return None if name.isprintable() and name != "__metadata__" else ascii(name)
