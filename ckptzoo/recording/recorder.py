"""Recording a run: a training loop hands over its weights, which are written behind its back."""

import atexit
import operator
import os
import re
import secrets
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from ckptzoo.arguments import Count, Seed, checked
from ckptzoo.errors import Problem, SpecError, UnknownNameError, ZooError
from ckptzoo.format.durable import make_folder, write_file
from ckptzoo.format.files import Folder
from ckptzoo.format.header import numpy_dtype, rounded
from ckptzoo.format.reader import read_contents
from ckptzoo.format.singles import as_numpy
from ckptzoo.format.writer import append, as_state_dict, create
from ckptzoo.recording.claims import HEARTBEAT_SECONDS, Claim, Claims
from ckptzoo.recording.unit_files import UnitBuffer, read_facts
from ckptzoo.recording.units import (
    RECORDER,
    checkpoint_id,
    decode_rows,
    encode_rows,
    member_folder,
    recorded_steps,
    unit_path,
)
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.card import CARD_TOML, Card
from ckptzoo.schema.documents import unseal
from ckptzoo.schema.metadata import COLUMNS, MAX_ID

_SET_HERE = ("id", "member", "step", "seed", "unit", "finite", "created", "extra", "method", "mode", "draw")
"""The columns that ``record`` and ``save`` fill, and take from nobody."""
AVERAGE = "+"
"""The sign between a member's name and that of an average of its weights, which is in no member's name."""
_STEP_DIGITS = 18
"""The most digits of a step in a file's name and an id, all steps of 64 bits that anybody takes."""
_BUFFERS = 2
"""Checkpoints in memory: one is filled while another is written."""
_WRAPPERS = ("module.", "_orig_mod.")
"""The prefixes of names in a ``DataParallel`` or ``AveragedModel``, and in a compiled module."""
_COUNTERS = ("n_averaged",)
"""Tensors that ``torch.optim.swa_utils.AveragedModel`` adds to those of its module."""
_ARRAY_JOBS = (
    ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"),
    ("PBS_JOBID", "PBS_ARRAY_INDEX"),
    ("LSB_JOBID", "LSB_JOBINDEX"),
    ("JOB_ID", "SGE_TASK_ID"),
)
"""The variables in which Slurm, PBS, LSF and Grid Engine name an array and one job of it."""
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_LOOK_SECONDS = 1.0
"""Seconds between two looks at whether another recorder of a member still sends heartbeats."""


@checked
def record(
    path: str | Path,
    *,
    arch: Any = None,
    card: Card | str | Path | None = None,
    symmetry: Any = None,
    member: str | None = None,
    seed: Seed | None = None,
    dtype: str | None = None,
    keep_every: Count | None = None,
    keep_best: str | None = None,
    **columns: Any,
) -> "Recorder":
    """Record the checkpoints of one training run, from its own loop.

    Any number of processes, jobs and machines may record into one zoo at the same time, each a member of its own. What
    they save waits in a hidden folder of the zoo until ``ckptzoo gather ZOO`` makes parts of it.

    Parameters
    ----------
    path
        the zoo's folder, which is made where there is none.
    arch
        what ``ckptzoo.create`` takes: the module, its state dict, a declaration, a name of ``ckptzoo.archs``, what
        ``ckptzoo.symmetry.trace`` found. May be left out where the zoo is there.
    card
        as for ``ckptzoo.create``; where the zoo is there, it must be the zoo's.
    symmetry
        as for ``ckptzoo.create``.
    member
        the name of the run, with which it is resumed. By default the array's and the job's number of Slurm, PBS, LSF or
        Grid Engine, else a random name, which is printed.
    seed
        the run's seed, for the column of that name.
    dtype
        in which floating-point tensors are stored, such as ``float16``; by default as they are.
    keep_every
        besides the last checkpoint keep those whose step is a multiple of this; by default all are kept. An earlier
        one is removed when the next is on the disk, unless it was gathered before.
    keep_best
        besides the last checkpoint keep the best by a column: the largest accuracy, or the smallest of other figures.
    columns
        values of further columns of ``ckptzoo.schema.metadata.COLUMNS`` that are the same for every checkpoint, such as
        ``recipe``, ``dataset``, ``license``.

    Raises
    ------
    SpecError
        The zoo has another architecture, or the columns' values do not fit.
    ZooError
        Another process records the member, or the card is another.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> weights = {"fc.weight": rng.normal(size=(2, 3)).astype(np.float32)}
    >>> with ckptzoo.record("zoos/recorded", arch=weights, member="run-0", seed=0) as run:
    ...     for step in (100, 200):
    ...         run.save(weights, step=step, train_loss=1 / step, extra={"lr": 0.1})
    True
    True
    >>> ckptzoo.gather("zoos/recorded").checkpoints
    2
    """
    root = Path(path).absolute()
    if dtype is not None and dtype not in _FLOATS:
        step = "Choose one of them, or leave it out."
        raise SpecError(Problem("record", "dtype", "one of " + ", ".join(_FLOATS), repr(dtype), step))
    held = _zoo(root, path, arch, card, symmetry, dtype)
    name = member if member is not None else _default_member()
    longest = MAX_ID - _STEP_DIGITS - 1
    if not name.isprintable() or " " in name or AVERAGE in name or not 1 <= len(name) <= longest:
        expected = f"1 to {longest} printable characters without spaces and {AVERAGE}, which joins names of averages"
        raise SpecError(Problem("record", "member", expected, repr(name[:80]), "Give it another name."))
    if member is None:
        print(f'Recording member {name} of {path}; resume it with member="{name}".', file=sys.stderr)
    check_columns(columns, keep_best)
    return Recorder(root, held, name, {**columns, "seed": seed}, dtype, keep_every, keep_best)


def _zoo(root: Path, path: str | Path, arch: Any, card: Any, symmetry: Any, dtype: str | None) -> Architecture:
    """Make the zoo, or open what is there and compare it; return its architecture."""
    if arch is None:
        if not (root / layout.ZOO).exists():
            step = "Pass arch=model, with which the zoo is made."
            raise ZooError(Problem(str(path), "zoo", "one that is there, where arch is left out", "none", step))
        _require_card(root, path, card)
        return append(root).arch
    if dtype is not None:
        arch = _in_dtype(arch, root.name, dtype)
    elif not isinstance(arch, Architecture | str | Path) and not hasattr(arch, "architecture"):
        arch = Architecture.of(_unwrapped(arch, "arch"), name=root.name if card is None else _card(card).name)
    try:
        writer = create(root, arch=arch, card=card, symmetry=symmetry, exist_ok=True)
    except SpecError as error:
        if dtype is None and isinstance(arch, Architecture) and (root / layout.ZOO).is_file():
            _require_dtype(append(root).arch, arch, path, error)
        raise
    if writer.created is None:
        _require_card(root, path, card)
    return writer.arch


def _require_card(root: Path, path: str | Path, card: Any) -> None:
    """Raise ZooError where a card is given that is not the zoo's."""
    there = root / CARD_TOML
    if card is not None and there.is_file() and Card.from_toml(there) != _card(card):
        step = f"Leave out the card, or record into another zoo; {there} can be edited."
        raise ZooError(Problem(str(path), "card", "that of the zoo", "another", step))


def _require_dtype(held: Architecture, given: Architecture, path: str | Path, error: SpecError) -> None:
    """Raise SpecError where networks differ from those of a zoo in the dtype of their numbers alone."""
    dtypes = {tensor.dtype for tensor in held.tensors if tensor.dtype in _FLOATS}
    if len(dtypes) == 1 and _in_dtype(given, given.name, dtype := dtypes.pop()).tensors == held.tensors:
        got = ", ".join(sorted({tensor.dtype for tensor in given.tensors if tensor.dtype in _FLOATS}))
        step = f'Pass dtype="{dtype}", in which its checkpoints are stored.'
        raise SpecError(Problem(str(path), "dtype", f"{dtype}, that of the zoo", got, step)) from error


def _card(card: Card | str | Path) -> Card:
    return card if isinstance(card, Card) else Card.from_toml(card)


def _in_dtype(arch: Any, name: str, dtype: str) -> Architecture:
    """Return the architecture with its floating-point tensors in another dtype."""
    known = getattr(arch, "architecture", arch)
    declared = known if isinstance(known, Architecture) else Architecture.of(_unwrapped(arch, "arch"), name=name)
    tensors = tuple(replace(tensor, dtype=dtype) if tensor.dtype in _FLOATS else tensor for tensor in declared.tensors)
    return replace(declared, tensors=tensors)


def _default_member() -> str:
    """Return the name of an array's job, or a random one; raise where several processes train one network."""
    for name, variable in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")):
        if os.environ.get(name, "0") != "0" and os.environ.get(variable, "1") != "1":
            step = "Record in the process of rank 0 alone; runs that train apart are each given a member."
            raise ZooError(Problem("record", "member", "a name, where one of several processes records", "none", step))
    for array, number in _ARRAY_JOBS:
        values = os.environ.get(array, ""), os.environ.get(number, "")
        # Grid Engine says "undefined", and LSF 0, for jobs that are in no array
        if all(values) and values[1] not in ("undefined", "0" if number == "LSB_JOBINDEX" else "undefined"):
            return "-".join(re.sub(r"[^A-Za-z0-9_.-]+", "-", value) for value in values)
    return f"run-{secrets.token_hex(4)}"


def check_columns(values: Mapping[str, Any], best: str | None = None) -> None:
    """Raise SpecError or UnknownNameError where columns are none that callers fill."""
    names = [column.name for column in COLUMNS]
    for name in values:
        if name in _SET_HERE:
            step = "Pass step=, extra= and averages= to save, member= and seed= to record; the others are set here."
            raise SpecError(Problem("record", f"column {name!r}", "a column that is not set here", "its value", step))
        if name not in names:
            if name in ("optimizer", "optimiser", "optimizer_state", "optimizer_state_dict", "scheduler"):
                step = "Keep it in a checkpoint of your own, from which the run is resumed."
                raise SpecError(Problem("record", name, "weights and figures", "the state of an optimiser", step))
            known = [other for other in names if other not in _SET_HERE]
            hint = f"Facts of your own go into one column: extra={{{name!r}: ...}}."
            near = UnknownNameError("record", "column", name, known)
            raise near if near.near else UnknownNameError("record", "column", name, known, hint)
    if best is not None and (best not in names or _type_of(best) != "float64"):
        figures = [column.name for column in COLUMNS if column.type == "float64"]
        raise UnknownNameError("record", "column of numbers", best, figures)


def _type_of(column: str) -> str:
    return next(known.type for known in COLUMNS if known.name == column)


def _unwrapped(weights: Any, what: str) -> Mapping[str, Any]:
    """Return tensors by name, without the prefixes of wrappers of modules; refuse what is no network's."""
    tensors = as_state_dict(weights, "record", what)
    if "param_groups" in tensors and "state" in tensors:
        step = "Pass the model or model.state_dict()."
        raise SpecError(Problem("record", what, "weights of a network", "the state of an optimiser", step))
    while True:
        for prefix in _WRAPPERS:
            inner = {name: value for name, value in tensors.items() if name not in _COUNTERS}
            if inner and all(name.startswith(prefix) for name in inner):
                tensors = {name.removeprefix(prefix): value for name, value in inner.items()}
                break
        else:
            return tensors


@dataclass
class _Pending:
    """A checkpoint in memory that is written behind the training."""

    buffer: UnitBuffer
    row: dict[str, Any]
    step: int
    folder: Path
    facts: dict[str, str]


@dataclass
class _Recorded:
    """The checkpoints of a member on the disk that were not gathered, and all steps that it has anywhere."""

    folder: Path
    steps: set[int]
    figures: dict[int, float | None] = field(default_factory=dict)
    last: int = -1
    """The last step of earlier runs."""
    branched: bool = False
    """Whether this run saved an earlier step."""


class Recorder:
    """A run that is recorded; made by ``ckptzoo.record``.

    ``save`` copies the weights and returns; they are written in a thread of their own. A checkpoint is *durable* when
    its file and its name are flushed to the disk; ``wait`` returns when all are, and so does the end of the ``with``
    block. What was not durable is lost where the process is killed; nothing else is.

    Parameters
    ----------
    root
        the zoo's folder.
    arch
        its architecture.
    member
        the run's name.
    columns
        values of every row.
    dtype, keep_every, keep_best
        as for ``ckptzoo.record``.
    """

    def __init__(
        self,
        root: Path,
        arch: Architecture,
        member: str,
        columns: Mapping[str, Any],
        dtype: str | None,
        keep_every: int | None,
        keep_best: str | None,
    ) -> None:
        self.path, self.arch, self.member = root, arch, member
        self._columns, self._dtype = dict(columns), dtype
        self._keep_every, self._keep_best = keep_every, keep_best
        self._plan = unseal((root / layout.ZOO).read_bytes(), location=str(root / layout.ZOO))[1]
        self._expected = {tensor.name: (numpy_dtype(tensor.dtype), tensor.shape) for tensor in arch.tensors}
        self._process = os.getpid()
        self._writer = append(root)
        self._ended = self._skipped = self._overflowed = False
        self.saved_here: set[int] = set()
        """The steps that ``save`` was called with."""
        self._buffers: list[UnitBuffer] = []
        self._waiting: list[Future[UnitBuffer]] = []
        self._stack = ExitStack()
        self._claim = self._stack.enter_context(_claimed(root, member))
        try:
            self._members = {member: self._found(member)}
            # one thread writes, so that checkpoints come to the disk in their order
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="record")
        except BaseException:
            self._stack.close()
            raise
        # where nobody closes it, what was saved is written all the same, and the member is given up
        atexit.register(self.close)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of the member that were saved, here or before, gathered or not; rising."""
        return tuple(sorted(self._members[self.member].steps))

    @property
    def last_step(self) -> int | None:
        """The last of ``steps``; None where there is none."""
        return max(self._members[self.member].steps, default=None)

    @checked
    def save(
        self,
        weights: Any,
        *,
        step: int,
        extra: Mapping[str, Any] | None = None,
        averages: Mapping[str, Any] | None = None,
        **columns: Any,
    ) -> bool:
        """Save a checkpoint; return when its weights are copied.

        Parameters
        ----------
        weights
            a torch module or state dict, or arrays by name, of the zoo's architecture, on any device. Those of a module
            in ``DataParallel``, ``AveragedModel`` or ``torch.compile`` are recognised.
        step
            optimiser steps taken.
        extra
            facts of your own, as JSON has them.
        averages
            averages of the weights, by a name such as ``ema`` or ``swa``; each is a checkpoint of a member of its own,
            ``<member>+<name>``, with that name as its method and this member as its mode. Figures that were measured
            of it come as a pair, ``{"ema": (model, {"test_accuracy": 0.9})}``.
        columns
            values of columns of ``ckptzoo.schema.metadata.COLUMNS``, such as ``test_accuracy``.

        Returns
        -------
        bool
            False where the step was saved before, as by a run that was resumed from an earlier one: what is there is
            kept, and a warning says so once.

        Raises
        ------
        SpecError
            The weights or the columns do not fit.
        ZooError
            The run has ended, or another process has taken over its member, or this process is a fork of the one that
            records.
        OSError
            An earlier checkpoint could not be written.
        """
        self._require_ours()
        step = operator.index(step)  # of an array or a tensor, too
        if not 0 <= step < 10**_STEP_DIGITS:
            raise SpecError(Problem("save", "step", "a number of steps from 0", str(step), "Count optimiser steps."))
        columns = {**self._columns, **columns}
        check_columns({name: value for name, value in columns.items() if name != "seed"})
        self.saved_here.add(step)
        checkpoints = [(self.member, weights, {**columns, "extra": extra})]
        for name, average in (averages or {}).items():
            if re.fullmatch(r"[a-z0-9_.-]{1,40}", name) is None:
                expected = "a short name such as ema or swa, of a-z, 0-9, _ . and -"
                raise SpecError(Problem("save", "name of an average", expected, repr(name), "Rename it."))
            average, figures = average if isinstance(average, tuple) else (average, {})
            check_columns(figures)
            own = {"method": name, "mode": self.member, "extra": extra}
            member = f"{self.member}{AVERAGE}{name}"
            checkpoints.append((member, average, {**self._columns, **figures, **own}))
        # all are compared before one is saved
        prepared = [self._prepare(member, tensors, step, values) for member, tensors, values in checkpoints]
        for item in prepared:
            if item is not None:
                self._submit(*item)
        return prepared[0] is not None

    def wait(self) -> None:
        """Return when every checkpoint that was saved is durable; raise OSError where one could not be written."""
        waiting, self._waiting = self._waiting, []
        error: BaseException | None = None
        for future in waiting:
            try:
                self._buffers.append(future.result())
            except BaseException as failed:  # the others are waited for first
                error = error or failed
        if error is not None:
            raise error

    def close(self) -> None:
        """Wait, and give up the member; called at the end of the ``with`` block."""
        # a fork must not give up what its parent holds
        if self._ended or os.getpid() != self._process:
            return
        self._ended = True
        atexit.unregister(self.close)
        try:
            self.wait()
        finally:
            self._pool.shutdown()
            self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except OSError as failed:
            if error is None:
                raise
            error.add_note(f"A checkpoint could not be written: {failed}")

    def _require_ours(self) -> None:
        if os.getpid() != self._process:
            step = "Save in the process that opened it, not in its workers."
            got = f"process {os.getpid()}, a fork of it"
            raise ZooError(Problem(self.member, "recorder", f"process {self._process}, which made it", got, step))
        if self._ended:
            step = f"Open it again with ckptzoo.record({str(self.path)!r}, member={self.member!r})."
            raise ZooError(Problem(self.member, "recorder", "one in use", "one that has ended", step))
        if self._claim.lost:
            step = "Stop one of them; what was saved here stays."
            got = "another process has taken it over, as this one gave no sign for minutes"
            raise ZooError(Problem(self.member, "member", "one recorder", got, step))

    def _found(self, member: str) -> _Recorded:
        """Find what a member has, in the zoo and waiting; files that are damaged count as absent, and are replaced."""
        folder = member_folder(self.path, member)
        figures: dict[int, float | None] = {}
        seeds = set[int | None]()
        for step, path in recorded_steps(folder).items():
            try:
                facts = read_facts(path, self._facts(member, step))
                (row,) = decode_rows((facts or {}).get("rows", "[]"), location=str(path))
            except (ZooError, ValueError) as error:
                text = f"{path}: damaged; step {step} of {member} is saved again where the run passes it ({error})"
                warnings.warn(text, UserWarning, stacklevel=5)
                continue
            figures[step] = row.get(self._keep_best) if self._keep_best is not None else None
            seeds.add(row.get("seed"))
        steps, more = _in_zoo(self.path, member)
        seed, known = self._columns.get("seed"), {item for item in seeds | more if item is not None}
        if seed is not None and known and seed not in known:
            step = "Give this run a member of its own, or the seed with which it began."
            raise ZooError(Problem(str(self.path), f"seed of member {member!r}", str(min(known)), str(seed), step))
        steps |= figures.keys()
        return _Recorded(folder, steps, figures, max(steps, default=-1))

    def _facts(self, member: str, step: int) -> dict[str, str]:
        """Return what the file of a checkpoint says of itself."""
        return {"kind": "kept", "unit": member, "number": str(step), "plan": self._plan}

    def _prepare(
        self, member: str, weights: Any, step: int, values: dict[str, Any]
    ) -> tuple[_Recorded, Mapping[str, Any], dict[str, Any]] | None:
        """Return what a checkpoint consists of, compared with the zoo; None where the step is there already."""
        recorded = self._members.get(member) or self._members.setdefault(member, self._found(member))
        if step in recorded.steps:
            if not self._skipped:
                self._skipped = True
                text = f"{member}: step {step} was saved before and is kept; so are others that come again"
                warnings.warn(text, UserWarning, stacklevel=4)
            return None
        if step < recorded.last and not recorded.branched:
            recorded.branched = True
            text = (
                f"{member}: step {step} comes behind step {recorded.last}, which an earlier run saved; later "
                "checkpoints of that run are of another trajectory. Give this run a member of its own, or retract them"
            )
            warnings.warn(text, UserWarning, stacklevel=4)
        return recorded, *self._checked(_unwrapped(weights, "weights"), self._row(member, step, values))

    def _submit(self, recorded: _Recorded, arrays: Mapping[str, Any], row: dict[str, Any]) -> None:
        """Copy one checkpoint, and have it written."""
        member, step = row["member"], row["step"]
        buffer = self._free_buffer()
        for name, view in buffer.views.items():
            np.copyto(view, arrays[name])
        pending = _Pending(buffer, row, step, recorded.folder, self._facts(member, step))
        recorded.steps.add(step)
        self._waiting.append(self._pool.submit(self._write, pending, recorded))

    def _row(self, member: str, step: int, values: dict[str, Any]) -> dict[str, Any]:
        """Return the row of a checkpoint."""
        row: dict[str, Any] = {"id": checkpoint_id(member, step), "member": member, "step": step}
        row["created"] = datetime.now(UTC)
        return row | {name: value for name, value in values.items() if value is not None}

    def _checked(self, weights: Mapping[str, Any], row: dict[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Return tensors as arrays, and the row, compared with the architecture and the columns."""
        try:
            arrays = {name: as_numpy(value) if hasattr(value, "dtype") else value for name, value in weights.items()}
        except TypeError:
            return self._writer.check(weights, row)  # which names the tensor
        if self._dtype is not None:
            arrays = self._cast(arrays, numpy_dtype(self._dtype))
        if arrays.keys() == self._expected.keys() and all(
            getattr(array, "dtype", None) == dtype and array.shape == shape
            for array, (dtype, shape) in ((arrays[name], expected) for name, expected in self._expected.items())
        ):
            return arrays, self._writer.check_row(row)
        # which says what does not fit, or compares tensors that are tied
        return self._writer.check(arrays, row)

    def _cast(self, arrays: Mapping[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
        """Return arrays with floating-point numbers in a dtype, rounded once."""
        made = {
            name: rounded(array.astype(np.float64), dtype) if _is_float(array) and array.dtype != dtype else array
            for name, array in arrays.items()
        }
        beyond = [
            name
            for name, array in made.items()
            if _is_float(array) and not np.isfinite(array).all() and np.isfinite(arrays[name]).all()
        ]
        if beyond and not self._overflowed:
            self._overflowed = True
            text = f"{self.member}: {beyond[0]} has numbers beyond the range of {dtype.name}, which become infinite"
            warnings.warn(text, UserWarning, stacklevel=6)
        return made

    def _free_buffer(self) -> UnitBuffer:
        """Return memory for a checkpoint; wait for an earlier one where all is in use."""
        while not self._buffers:
            if len(self._waiting) < _BUFFERS:
                return UnitBuffer({name: (dtype, (1, *shape)) for name, (dtype, shape) in self._expected.items()})
            self._buffers.append(self._waiting.pop(0).result())
        return self._buffers.pop()

    def _write(self, pending: _Pending, recorded: _Recorded) -> UnitBuffer:
        """Write one checkpoint, and remove those that are not to be kept."""
        finite = all(np.isfinite(view).all() for view in pending.buffer.views.values() if view.dtype.kind not in "iub")
        row = {**pending.row, "finite": bool(finite)}
        path = unit_path(pending.folder, pending.step)
        pieces = pending.buffer.file({**pending.facts, "rows": encode_rows([row])})
        try:
            make_folder(pending.folder)
            try:
                write_file(path, *pieces)
            except (FileNotFoundError, ZooError):  # a gathering has removed the folder, which was empty
                make_folder(pending.folder)
                write_file(path, *pieces)
        except BaseException:
            recorded.steps.discard(pending.step)
            raise
        figure = row.get(self._keep_best) if self._keep_best is not None else None
        recorded.figures[pending.step] = figure
        if self._keep_every is not None or self._keep_best is not None:
            self._thin(recorded, pending.step)
        return pending.buffer

    def _thin(self, recorded: _Recorded, last: int) -> None:
        """Remove the files of checkpoints that are neither the last nor to be kept."""
        kept = {last}
        figures = {step: value for step, value in recorded.figures.items() if value is not None and value == value}
        if self._keep_best is not None and not figures:
            # nothing is known to be better than another
            return
        if self._keep_best is not None:
            best = max if self._keep_best.endswith("accuracy") else min
            kept.add(best(figures, key=lambda step: figures[step]))
        if self._keep_every is not None:
            kept |= {step for step in recorded.figures if step % self._keep_every == 0}
        for step in [step for step in recorded.figures if step not in kept]:
            unit_path(recorded.folder, step).unlink(missing_ok=True)
            del recorded.figures[step]


def _in_zoo(root: Path, member: str) -> tuple[set[int], set[int | None]]:
    """Return the steps and the seeds of a member in the zoo, those of retracted checkpoints included."""
    steps, seeds = set[int](), set[int | None]()
    for _, run in read_contents(Folder(root)).raw.rows.runs(["member", "step", "seed"]):
        for name, step, seed in zip(*(run[column].to_pylist() for column in run.column_names), strict=True):
            if name == member:
                seeds.add(seed)
                if step is not None:
                    steps.add(step)
    return steps, seeds


def _is_float(array: Any) -> bool:
    """Return whether an array has floating-point numbers, bfloat16 of ml_dtypes included."""
    return getattr(array, "dtype", None) is not None and str(array.dtype) in _FLOATS


@contextmanager
def _claimed(root: Path, member: str) -> Iterator[Claim]:
    """Hold the claim of a member's recorder; raise ZooError where another process records the member.

    One that gave no sign for some time may be dead, on another machine, or only slow: it is waited for until it sends a
    heartbeat, or is taken for dead (``claims.STALE_SECONDS``).
    """
    folder = member_folder(root, member)
    claims, first_seen = Claims(folder), None
    while True:
        with ExitStack() as stack:
            claim, holder = None, None
            # a gathering may remove the folder, which is empty, in between
            with suppress(FileNotFoundError):
                make_folder(folder)
                claim = stack.enter_context(claims.held(RECORDER))
                holder = claims.holder(RECORDER) if claim is None else None
            if claim is not None:
                yield claim
                return
        if holder is None or not holder.alive:
            continue
        heard = time.monotonic() - holder.age
        if first_seen is None:
            first_seen = heard
            if not holder.here:
                text = (
                    f"{member}: process {holder.process} on {holder.host} records it, or was killed; waiting for a sign"
                )
                print(text, file=sys.stderr)
        # a process of this machine that is alive, or a heartbeat that came since
        if holder.here or heard > first_seen + HEARTBEAT_SECONDS / 2:
            got = f"process {holder.process} on {holder.host}"
            step = "Stop it, or give this run a member of its own."
            raise ZooError(Problem(str(root), f"recorder of member {member!r}", "no other one", got, step))
        time.sleep(_LOOK_SECONDS)
