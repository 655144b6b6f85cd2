"""Members of a zoo trained again from their rows and compared bit for bit, and steps that were not kept.

What trains them is in ``builders``, which this package never imports: it is found by the entry point that the
distribution of this package declares, and loaded when it is first used.
"""

import secrets
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from ckptzoo.console import PrintedResult, say
from ckptzoo.errors import IntegrityError, MissingExtraError, Problem, UnknownNameError, ZooError
from ckptzoo.loader.checkpoint import Checkpoint
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.documents import JsonFields
from ckptzoo.schema.layout import RAW
from ckptzoo.schema.reproduction import Reproduction
from ckptzoo.text import Progress, counted, shortened

if TYPE_CHECKING:
    from ckptzoo.loader.zoo import Zoo

DISTRIBUTION, GROUP, NAME = "ckptzoo", "ckptzoo.trainers", "builders"
"""Where the entry point of the trainer is declared: in this distribution alone."""
MAX_SECONDS = 600.0
"""Seconds of training by default."""
MAX_BYTES = 8 * 2**30
"""Bytes of memory of training by default."""
_MEASURED_BYTES = 64 * 2**20
"""Weights are measured as soon as about as many wait: a few take as long as many, and all would fill the memory."""
_NAMED = 8
"""Differences of a member that are named."""
_OF_TRAINING = (
    *("member", "seed", "recipe", "recipe_digest", "dataset", "dataset_digest", "device", "precision", "license"),
    *("contributor", "extra"),
)
"""The columns that all checkpoints of a training share."""
Weights = Mapping[str, NDArray[Any]]


class RepeatableTraining(Protocol):
    """A training that can be done again; ``builders.rebuild.RepeatedTraining`` describes its methods."""

    @property
    def steps(self) -> int: ...
    @property
    def key(self) -> Hashable: ...
    @property
    def resumable(self) -> bool: ...
    @property
    def environment(self) -> dict[str, str]: ...
    @property
    def unit_size(self) -> int: ...
    def train(
        self,
        seeds: Sequence[int],
        stops: Sequence[int],
        *,
        start: tuple[int, Weights] | None = None,
        max_seconds: float,
        location: str,
        advance: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]: ...
    def measure(self, weights: Weights) -> dict[str, NDArray[Any]]: ...
    def differences(
        self, row: Mapping[str, Any], measured: Mapping[str, Any], last: Mapping[str, Any]
    ) -> list[str]: ...


class OpenRun(Protocol):
    """The function that the entry point names, ``builders.rebuild.open_run``."""

    def __call__(
        self,
        row: Mapping[str, Any],
        arch: Architecture,
        *,
        location: str,
        recipe: str | Path | None = None,
        data: str | Path | None = None,
        max_bytes: int,
        threads: int | None = None,
    ) -> RepeatableTraining: ...


@dataclass(frozen=True)
class RebuildOptions:
    """How members are trained again; the parameters of ``Zoo.rebuild`` that ``Zoo.at`` has too."""

    recipe: str | Path | None = None
    data: str | Path | None = None
    max_seconds: float = MAX_SECONDS
    max_bytes: int = MAX_BYTES
    threads: int | None = None

    def open(self, row: Mapping[str, Any], arch: Architecture) -> RepeatableTraining:
        """Return the training that a row describes."""
        return load_trainer()(
            row,
            arch,
            location=row["id"],
            recipe=self.recipe,
            data=self.data,
            max_bytes=self.max_bytes,
            threads=self.threads,
        )


@dataclass(frozen=True)
class RebuiltMember(JsonFields, derived=("reproduced",)):
    """A member that was trained again.

    Parameters
    ----------
    member
        its name.
    ids
        its checkpoints.
    differences
        what differs: weights, with the largest difference, and what rows say; the first eight.
    refused
        why it was not trained again; None where it was.
    """

    member: str
    ids: tuple[str, ...]
    differences: tuple[str, ...] = ()
    refused: str | None = None

    @property
    def reproduced(self) -> bool:
        """Whether it was trained again, and nothing differs."""
        return not self.differences and self.refused is None

    @property
    def line(self) -> str:
        """The finding in one line."""
        if self.refused is not None and not self.differences:
            return f"{self.member}: not rebuilt: {self.refused}"
        if self.differences:
            return f"{self.member}: differs: {'; '.join(self.differences)}"
        return f"{self.member}: {counted(len(self.ids), 'checkpoint')} bit for bit"


@dataclass(frozen=True)
class Rebuilt(PrintedResult, JsonFields, derived=("reproduced",)):
    """Members that were trained again.

    Parameters
    ----------
    zoo
        the zoo's name.
    members
        what was found of each.
    chosen_from
        the number of members of which they were drawn.
    seed
        of the draw; None where they were named.
    environment
        what may decide bits here: processor, kernels, versions.
    marks
        where something differs: who reproduced one of these checkpoints before, and what was different there.
    """

    zoo: str
    members: tuple[RebuiltMember, ...]
    chosen_from: int
    seed: int | None
    environment: dict[str, str] = field(default_factory=dict)
    marks: tuple[str, ...] = ()

    @property
    def reproduced(self) -> int:
        """The number of members of which nothing differs."""
        return sum(member.reproduced for member in self.members)

    @property
    def ids(self) -> tuple[str, ...]:
        """The checkpoints of the members of which nothing differs."""
        return tuple(name for member in self.members if member.reproduced for name in member.ids)

    @property
    def verdict(self) -> str:
        """How many were rebuilt, in one line."""
        drawn = "" if self.seed is None else f" (drawn from {self.chosen_from:,} with seed {self.seed})"
        differ = sum(bool(member.differences) for member in self.members)
        refused = len(self.members) - self.reproduced - differ
        parts = [f"{self.reproduced:,} of {counted(len(self.members), 'member')}{drawn} rebuilt bit for bit"]
        parts += [f"{differ:,} differ"] if differ else []
        parts += [f"{refused:,} could not be rebuilt"] if refused else []
        return ", ".join(parts)

    def print(self, console: Console | None = None) -> None:
        """Print it on a rich console, by default the standard output.

        Parameters
        ----------
        console
            a rich console; None for the standard output.
        """
        out = console or Console()
        say(out, *(member.line for member in self.members if not member.reproduced))
        say(out, f"{self.zoo}: {self.verdict}.")
        if any(member.differences for member in self.members):
            say(out, *self.marks)
            here = ", ".join(f"{name} {value}" for name, value in self.environment.items())
            say(
                out,
                f"Rebuilt on {here}; docs/guide/training.md says what else the bits of a training depend on.",
            )


def load_trainer() -> OpenRun:
    """Return what trains members again.

    Raises ``MissingExtraError`` if it, or a package that it needs, is not installed, and ``ZooError`` if another
    package has its name.
    """
    try:
        declared = metadata.distribution(DISTRIBUTION).entry_points
    except metadata.PackageNotFoundError:
        declared = ()
    entry = next((item for item in declared if (item.group, item.name) == (GROUP, NAME)), None)
    if entry is None:
        raise MissingExtraError(NAME, "build")
    package = entry.module.partition(".")[0]
    own, spec = Path(__file__).parents[2] / package, find_spec(package)
    folders = [] if spec is None else [Path(folder).resolve() for folder in spec.submodule_search_locations or ()]
    if own.resolve() not in folders:
        got = ", ".join(map(str, folders)) or "none"
        step = "Take that folder out of PYTHONPATH, or use another working folder."
        raise ZooError(Problem("rebuild", package, str(own), got, step))
    try:
        return entry.load()
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or package, "build") from error


def rebuild(
    zoo: "Zoo", members: int | Sequence[str], seed: int | None, options: RebuildOptions, progress: Progress | None
) -> Rebuilt:
    """Train members of a zoo again, a number that is drawn or those named, and compare all of their checkpoints."""
    known = list(dict.fromkeys(zoo.column("member").to_pylist()))
    chosen_from = len(known)
    if isinstance(members, int):
        seed = secrets.randbelow(2**32) if seed is None else seed
        places = np.random.default_rng(np.random.SeedSequence(seed)).permutation(chosen_from)[:members]
        chosen = [known[place] for place in sorted(places.tolist())]
    else:
        chosen, seed = list(dict.fromkeys(members)), None
        for name in chosen:
            require_member(zoo, name, known)
    load_trainer()  # what is missing is an error of the call, and not of each member
    selected = zoo.where({"member": chosen})
    found = _Findings(chosen)
    rebuilding = _Rebuilding(selected, options, found, progress)
    rebuilding.carry_out()
    outcome = Rebuilt(zoo.name, found.members(), chosen_from, seed, rebuilding.environment)
    differing = {name for member in outcome.members if member.differences for name in member.ids}
    if not differing:
        return outcome
    marks = [mark for mark in zoo.reproduced if differing.intersection(mark.ids)]
    return replace(outcome, marks=tuple(_elsewhere(mark, outcome.environment) for mark in marks[-_NAMED:]))


def _elsewhere(mark: Reproduction, here: Mapping[str, str]) -> str:
    """Return who reproduced checkpoints, and what was different there, in one line."""
    other = [
        f"{name} {value} (here {here.get(name, 'none')})" for name, value in mark.on.items() if here.get(name) != value
    ]
    where = ", ".join(other) or "the same as here, as far as it is known"
    return shortened(f"Reproduced by {mark.by} on {mark.created:%Y-%m-%d}, with {where}.", 500)


def require_member(zoo: "Zoo", name: str, known: Sequence[str]) -> None:
    """Raise ``UnknownNameError`` if a zoo has no member of the name."""
    if name not in known:
        raise UnknownNameError(zoo.name, "member", name, known)


class _Findings:
    """Collects what is found of members."""

    def __init__(self, members: Sequence[str]) -> None:
        self._ids: dict[str, list[str]] = {name: [] for name in members}
        self._differences: dict[str, list[str]] = {name: [] for name in members}
        self._refused: dict[str, str] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Note that a checkpoint belongs to its member."""
        self._ids[row["member"]].append(row["id"])

    def differ(self, row: Mapping[str, Any], differences: Sequence[str]) -> None:
        """Note what differs of a checkpoint."""
        self._differences[row["member"]] += [f"step {row['step']}: {text}" for text in differences]

    def refuse(self, row: Mapping[str, Any], error: ZooError) -> None:
        """Note why a member is not trained again; where its row is wrong, that is a difference."""
        if isinstance(error, IntegrityError):
            self._differences[row["member"]].append(shortened(str(error), 500))
        else:
            self._refused.setdefault(row["member"], shortened(str(error), 500))

    def members(self) -> tuple[RebuiltMember, ...]:
        """Return what was found, in order."""
        return tuple(
            RebuiltMember(name, tuple(ids), _first(self._differences[name]), self._refused.get(name))
            for name, ids in self._ids.items()
        )


def _first(differences: list[str]) -> tuple[str, ...]:
    more = len(differences) - _NAMED
    return (*differences[:_NAMED], *([f"and {more:,} more"] if more > 0 else []))


@dataclass(eq=False)
class _Job:
    """Rows that one training makes: all with one seed and one description of how they were trained."""

    row: dict[str, Any]
    """The first of its rows, which opens the run again: a run holds its data set, and every row may name another."""
    seed: int
    unit_size: int
    rows: list[tuple[int, dict[str, Any]]]
    """Positions among the selected checkpoints, and rows."""

    @property
    def stops(self) -> tuple[int, ...]:
        return tuple(sorted({row["step"] for _, row in self.rows}))


@dataclass(eq=False)
class _Trained:
    """A checkpoint that was trained again, with the rows that are to be of it; its figures replace its weights."""

    job: int
    is_last: bool
    weights: Weights
    rows: list[dict[str, Any]]
    measured: Mapping[str, Any] = field(default_factory=dict)
    finite: bool = True


class _Rebuilding:
    """The training and the comparison of all selected checkpoints."""

    def __init__(self, zoo: "Zoo", options: RebuildOptions, found: _Findings, progress: Progress | None) -> None:
        self._zoo, self._options, self._found, self._progress = zoo, options, found, progress
        self._seconds_left = options.max_seconds
        self._steps = self._total = 0
        self.environment: dict[str, str] = {}

    def carry_out(self) -> None:
        """Train everything, unit by unit."""
        units = [unit for jobs in self._jobs() for unit in _units(jobs)]
        self._total = sum(len(unit) * unit[0].stops[-1] for unit in units)
        for unit in units:
            try:
                self._train(unit)
            except ZooError as error:
                for job in unit:
                    for _, row in job.rows:
                        self._found.refuse(row, error)

    def _jobs(self) -> list[list[_Job]]:
        """Return trainings, those that can be done together in one list; what cannot be done at all is noted."""
        groups: dict[Hashable, dict[int, _Job]] = {}
        for position, row in enumerate(self._zoo.metadata.to_pylist()):
            self._found.add(row)
            try:
                run = self._open(row)
            except ZooError as error:
                self._found.refuse(row, error)
                continue
            # by the seed and not by the member: each row is compared with the training that it describes
            job = groups.setdefault(run.key, {}).setdefault(row["seed"], _Job(row, row["seed"], run.unit_size, []))
            job.rows.append((position, row))
        return [list(jobs.values()) for jobs in groups.values()]

    def _open(self, row: Mapping[str, Any]) -> RepeatableTraining:
        """Return the training that a row describes; its time, in which data may be made, counts as time of training."""
        if self._seconds_left < 0:
            expected, got = f"at most {self._options.max_seconds:g} s", "as much, for those before"
            step = "Rebuild fewer, or give it more time with --max-seconds."
            raise ZooError(Problem(row["id"], "time of training", expected, got, step))
        began = time.monotonic()
        try:
            return self._options.open(row, self._zoo.arch)
        finally:
            self._seconds_left -= time.monotonic() - began

    def _train(self, jobs: Sequence[_Job]) -> None:
        """Train members together, compare their weights at each step, and then what their rows say."""
        run = self._open(jobs[0].row)
        self.environment = self.environment or run.environment
        reached, waiting = list[_Trained](), list[_Trained]()
        began = time.monotonic()
        trained = run.train(
            [job.seed for job in jobs],
            jobs[0].stops,
            max_seconds=max(0.0, self._seconds_left),
            location=self._zoo.name,
            advance=self._advance,
        )
        try:
            for step, weights in trained:
                for number, job in enumerate(jobs):
                    own = {name: array[number] for name, array in weights.items()}
                    rows = [(position, row) for position, row in job.rows if row["step"] == step]
                    for position, row in rows:
                        self._found.differ(row, weight_differences(self._zoo[position], own))
                    waiting.append(_Trained(number, step == run.steps, own, [row for _, row in rows]))
                    if len(waiting) * sum(array.nbytes for array in own.values()) >= _MEASURED_BYTES:
                        reached += self._measured(run, waiting)
        finally:
            self._seconds_left -= time.monotonic() - began
        reached += self._measured(run, waiting)
        last = {item.job: item.measured for item in reached if item.is_last}
        for item in reached:
            for row in item.rows:
                differences = run.differences(row, item.measured, last.get(item.job, {}))
                if row["finite"] is not None and row["finite"] != item.finite:
                    differences.append(f"finite: expected {item.finite}, got {row['finite']}")
                self._found.differ(row, differences)

    def _measured(self, run: RepeatableTraining, waiting: list[_Trained]) -> list[_Trained]:
        """Return what waits, measured and without weights; nothing waits afterwards."""
        group = list(waiting)
        waiting.clear()
        if not group:
            return group
        began = time.monotonic()
        columns = run.measure({name: np.stack([item.weights[name] for item in group]) for name in group[0].weights})
        for place, item in enumerate(group):
            item.measured = {name: values[place] for name, values in columns.items()}
            arrays = item.weights.values()
            item.finite = all(bool(np.isfinite(np.asarray(array, np.float64)).all()) for array in arrays)
            item.weights = {}
        # measuring is no training
        self._seconds_left += time.monotonic() - began
        return group

    def _advance(self, member_steps: int) -> None:
        self._steps += member_steps
        if self._progress is not None:
            self._progress(self._steps, self._total)


def _units(jobs: Sequence[_Job]) -> Iterator[list[_Job]]:
    """Yield the trainings of a group that end at the same steps, as many together as fit."""
    by_stops: dict[tuple[int, ...], list[_Job]] = {}
    for job in jobs:
        by_stops.setdefault(job.stops, []).append(job)
    for same in by_stops.values():
        for start in range(0, len(same), size := same[0].unit_size):
            yield same[start : start + size]


def weight_differences(stored: Mapping[str, Any], weights: Weights) -> list[str]:
    """Return in words how weights differ from the stored ones, by bits; nothing where they do not."""
    differing = [name for name, array in weights.items() if np.asarray(stored[name]).tobytes() != array.tobytes()]
    if not differing:
        return []
    largest = 0.0
    for name in differing:
        with np.errstate(invalid="ignore", over="ignore"):
            gaps = np.abs(np.asarray(stored[name], np.float64) - np.asarray(weights[name], np.float64))
        largest = max(largest, float(np.nan_to_num(gaps, nan=np.inf).max(initial=0.0)))
    return [f"weights of {', '.join(differing[:4])}{', ...' if differing[4:] else ''} by up to {largest:.3g}"]


def checkpoint_at(zoo: "Zoo", member: str, step: int, *, check: bool, options: RebuildOptions) -> Checkpoint:
    """Return a member's weights at a step, trained again from the nearest kept step where the step was not kept."""
    own = zoo.where({"member": member})
    if not len(own):
        require_member(zoo, member, list(dict.fromkeys(zoo.column("member").to_pylist())))
    kept = {value: place for place, value in enumerate(own.column("step").to_pylist()) if value is not None}
    if step in kept:
        return own[kept[step]]
    row = own[0].row
    run = options.open(row, zoo.arch)
    if not 0 <= step <= run.steps:
        expected = f"0 to {run.steps}, where its training ended"
        raise ZooError(Problem(f"{zoo.name}: {member}", "step", expected, str(step), "Choose one of these."))
    before = max((value for value in kept if value < step), default=None) if run.resumable else None
    start = None
    if before is not None:
        start = before, {name: np.asarray(array)[None] for name, array in own[kept[before]].items()}
    behind = min((value for value in kept if value > step), default=None)
    passed = {value for value in kept if (-1 if before is None else before) < value < step}
    stops = sorted({*(passed if check else ()), step, *([behind] if check and behind is not None else ())})
    location = f"{zoo.name}: {member}"
    weights: Weights = {}
    for stop, found in run.train([row["seed"]], stops, start=start, max_seconds=options.max_seconds, location=location):
        reached = {name: array[0] for name, array in found.items()}
        if stop == step:
            weights = reached
        elif differences := weight_differences(own[kept[stop]], reached):
            _refuse_replay(location, before, stop, differences)
    described = {name: row[name] for name in row if name in _OF_TRAINING}
    described |= {"id": f"{member}-{step:06d}", "step": step}
    return _replayed(zoo.arch, dict.fromkeys(row) | described, weights)


def _refuse_replay(location: str, before: int | None, stop: int, differences: list[str]) -> None:
    begun = "the start" if before is None else f"step {before}"
    expected = f"the weights that are kept of step {stop}"
    step = "This machine rounds otherwise, or the rows are wrong: docs/guide/training.md says what decides bits."
    raise IntegrityError(Problem(location, f"training from {begun}", expected, f"other {differences[0]}", step))


def _replayed(arch: Architecture, row: dict[str, Any], weights: Weights) -> Checkpoint:
    for array in weights.values():
        array.flags.writeable = False

    def read(name: str, private: bool) -> NDArray[Any]:
        # an alias has the tensor of its first name
        return np.array(weights[name]) if private else weights[name]

    return Checkpoint(arch, row, RAW, read, lambda: None)
