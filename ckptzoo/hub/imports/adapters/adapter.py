"""The adapter of a format, and the checkpoints that it finds."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Protocol

from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.imports.facts import Row
from ckptzoo.hub.imports.opened import OpenedSource
from ckptzoo.hub.imports.sources import ImportSource, SourceFile
from ckptzoo.hub.untrusted import Limits, StateDict
from ckptzoo.hub.untrusted.runs import identifier
from ckptzoo.schema.metadata import MAX_ID

MAX_SIDE_BYTES = 256 * 2**20
"""Largest size in bytes of a file of facts."""
SUFFIXES = (
    ".safetensors", ".pt", ".pth", ".th", ".pth.tar", ".pt.tar", ".bin", ".ckpt", ".npz", ".npy", ".pkl", ".pickle",
    ".joblib", ".model", ".weights", ".h5", ".hdf5", ".keras", ".msgpack", ".gguf",
)  # fmt: skip
"""Suffixes that checkpoint files usually have: such a file that holds none is refused."""
SETTINGS_OF_RAY = "params.pkl"
"""A pickle of settings that Ray Tune writes into every folder."""


@dataclass(frozen=True)
class Options:
    """The options of a source.

    Parameters
    ----------
    id_pattern
        for files: their ids, such as ``{stem}``.
    metadata
        rows of a table by the path that they are about.
    layout
        the text of a ``layout.csv``, for flat vectors.
    checkpoint_offset
        what to add to the number of a checkpoint of Ray to get its iteration; None: found out.
    percent
        whether accuracies go up to 100.
    member_pattern, step_pattern
        for files: regular expressions that find in a path the run that a file belongs to, and the number of the step at
        which it was saved; their first group, or all that they match. Where the run's is empty, all are one run.
    stacked
        for files: whether the first axis of every tensor counts samples; None: refused where it may. With ``layout``,
        whether vectors are samples of one posterior, and no networks of their own.
    networks
        for files: words that the names of several networks in one state dict begin with, ``*`` for any word.
    """

    id_pattern: str | None = None
    metadata: Mapping[str, Mapping[str, Any]] | None = None
    layout: str | None = None
    checkpoint_offset: int | None = None
    percent: bool = False
    member_pattern: str | None = None
    step_pattern: str | None = None
    stacked: bool | None = None
    networks: tuple[str, ...] | None = None


_TAKEN_BY = {
    "id_pattern": ("--id", ("files",)),
    "metadata": ("--metadata", ("files",)),
    "member_pattern": ("--member", ("files",)),
    "step_pattern": ("--step", ("files",)),
    "stacked": ("--stacked", ("files",)),
    "networks": ("--networks", ("files",)),
    "layout": ("--layout", ("files", "nws")),
    "checkpoint_offset": ("--checkpoint-offset", ("ray-tune",)),
    "percent": (
        "--percent",
        ("files", "haiku", "model-j", "nws", "ray-tune", "small-cnn", "small-transformer", "wild-park"),
    ),
}
"""The name on the command line of each option, and the formats that read it."""


def check_options(name: str, options: Options) -> None:
    """Refuse options that a format would leave unread, by ``ZooError``."""
    problems: list[Problem] = []
    for item in fields(Options):
        flag, formats = _TAKEN_BY[item.name]
        if getattr(options, item.name) != item.default and name not in formats:
            step = f"Leave it out, or name another format with --as: {', '.join(formats)}."
            problems.append(Problem("import", flag, f"a format that takes it ({', '.join(formats)})", name, step))
    if problems:
        raise ZooError(problems)


@dataclass(frozen=True)
class Picked:
    """One checkpoint of a file.

    ``suffix`` ends its id where the file holds several. ``row`` has the columns that differ from those of
    ``FoundCheckpoints``, with ``extra`` merged. With ``gaussian`` the tensors are means, with the standard
    deviation of ``T`` as ``T_std``. ``note`` says how its numbers were changed, ``ties`` maps names to earlier
    names with the same storage, ``buffers`` are known to be no parameters.
    """

    suffix: str
    tensors: Mapping[str, NDArray[Any]]
    row: Row = field(default_factory=dict[str, Any])
    gaussian: bool = False
    note: str = ""
    ties: Mapping[str, str] = field(default_factory=dict[str, str])
    buffers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class FoundCheckpoints:
    """A file with checkpoints, or the files that hold one checkpoint together.

    ``path`` is that in the source; ``member``, ``step`` and the columns ``row`` are those of its checkpoints; ``size``
    is how many bytes are read. ``read`` gives the bytes of each file, until the next is asked for; ``pick`` the
    checkpoints among its state dicts. ``id`` is made of the member and the step where it is empty. ``form`` is what the
    file was taken for, empty where only reading tells. ``parts`` has the paths of its files, where they are several;
    ``others`` the files that may hold the same checkpoints in other formats, and are read to tell.
    """

    path: str
    member: str
    step: int | None
    row: Row
    size: int
    read: Callable[[], Sequence[bytes]] = field(repr=False)
    pick: Callable[[Sequence[StateDict]], Sequence[Picked]] = field(repr=False)
    id: str = ""
    form: str = ""
    parts: Sequence[str] = ()
    others: Sequence["FoundCheckpoints"] = ()


@dataclass(frozen=True)
class PassedOver:
    """A file of the source that is not read, and the reason in a few words."""

    path: str
    reason: str


@dataclass(frozen=True)
class Broken:
    """A file of the source that should hold a checkpoint and cannot be read, or one in several ``parts``."""

    path: str
    error: ZooError
    parts: Sequence[str] = ()


@dataclass(frozen=True)
class FoundArrays:
    """Checkpoints whose numbers are already read: for each of K its row, and tensors (K, *shape) by name, in order."""

    path: str
    members: Sequence[str]
    steps: Sequence[int | None]
    rows: Sequence[Row]
    tensors: Mapping[str, NDArray[Any]] = field(repr=False)


class Adapter(Protocol):
    """One format.

    ``name`` is as ``--as`` has it; ``license`` that of everything that is published in it, None where that differs or
    is not stated; ``by_order`` tells that tensors are matched by their order and shapes where their names differ.
    """

    name: str
    license: str | None
    by_order: bool

    def recognises(self, paths: Sequence[str]) -> bool:
        """Whether a source with these paths (its first ones) looks like this format."""
        ...

    def checkpoints(
        self, source: OpenedSource, options: Options
    ) -> Iterator[FoundCheckpoints | FoundArrays | PassedOver | Broken]:
        """Every checkpoint, in the source's order, and files that are passed over for a reason of their own."""
        ...


def every_state(states: Sequence[StateDict]) -> Sequence[Picked]:
    """Return every state dict of a file, with its key as suffix."""
    return [
        Picked(state.source.partition("#")[2], state.tensors, ties=state.aliases, buffers=state.buffers)
        for state in states
    ]


def checkpoint_id(member: str, step: int | None, suffix: str = "") -> str:
    """Return the id of a member's checkpoint.

    >>> checkpoint_id("run3", 40), checkpoint_id("run3", None, "ema")
    ('run3@40', 'run3/ema')
    """
    ending = ("" if step is None else f"@{step}") + (f"/{identifier(suffix)}" if suffix else "")
    return member[: MAX_ID - len(ending)] + ending


def side_files(
    source: ImportSource, wanted: Callable[[str], bool], checkpoint: Callable[[str], bool] = lambda path: False
) -> tuple[dict[str, bytes], tuple[str, bytes] | None]:
    """Return the files of facts in a source, by path, in a pass of its own: they may come after what they are about.

    ``wanted`` tells files of facts by path, ``checkpoint`` checkpoints; the one with the first path is read too, so
    that an archive in another order gives tensors the same names.
    """
    texts: dict[str, bytes] = {}
    first: tuple[str, bytes] | None = None
    for file in source.files():
        if wanted(file.path):
            texts[file.path] = file.read(MAX_SIDE_BYTES)
        elif checkpoint(file.path) and (first is None or file.path < first[0]):
            first = file.path, file.read(Limits().file_bytes)
    return texts, first


def reader(file: SourceFile, limit: int) -> Callable[[], Sequence[bytes]]:
    """Return a function that reads a file when it is called."""
    return lambda: [file.read(limit)]


def numbered_files(
    source: ImportSource,
    pattern: re.Pattern[str],
    member: Callable[[re.Match[str]], str],
    pick: Callable[..., Sequence[Picked]],
) -> Iterator[FoundCheckpoints]:
    """Yield the files whose paths match, each a checkpoint at the step ``number``; ``pick`` is given the path too."""
    for file in source.files():
        if (matched := pattern.fullmatch(file.path)) is not None:
            name, step = identifier(member(matched)), int(matched["number"])
            read, picked = reader(file, Limits().file_bytes), partial(pick, path=file.path)
            yield FoundCheckpoints(file.path, name, step, {}, file.size, read, picked)


def all_fit(paths: Sequence[str], fits: Callable[[str], object]) -> bool:
    """Return whether there are files that fit a format, and none that may hold other checkpoints."""
    rest = [path for path in paths if not fits(path) and path.rpartition("/")[2] != SETTINGS_OF_RAY]
    return any(map(fits, paths)) and not any(path.lower().endswith(SUFFIXES) for path in rest)
