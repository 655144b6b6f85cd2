"""The unfinished part of a build: its plan, its saved states and its finished checkpoints, safe against being killed.

A build's folder is locked while it runs; Ctrl-C and SIGTERM become a question that it asks when it can stop cleanly.

::

    ZOO/.work/<recipe>-<8 digits>/
        lock                              held while a build runs
        plan.json                         what is being built; written once
        <unit>.state.safetensors          the state of a unit in progress, replaced as it proceeds
        <unit>-<step>.kept.safetensors    checkpoints for the zoo, and their rows; those of the last step end a unit
        <unit>-<draw>.kept.safetensors    the same for the draws of a posterior method

Files are written under another name, flushed and renamed, so each is whole or absent. They say whose they are, with a
digest, see ``ckptzoo.recording.unit_files``: what was damaged since, or belongs to another build, is refused by name.
"""

import errno
import fcntl
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from builders.energy import Spent
from builders.state import Tensors, TrainingState, as_stored
from ckptzoo import __version__
from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.format.durable import regular, write_file
from ckptzoo.recording import unit_files
from ckptzoo.recording.claims import sweep_old
from ckptzoo.recording.units import WORK_FOLDER, Row, decode_rows, encode_rows
from ckptzoo.schema.documents import seal, unseal
from ckptzoo.text import excerpt

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PLAN = "plan.json"
"""The file that describes what is being built, in the folder of a build."""
Plan = TypeVar("Plan", bound="DataclassInstance")
"""A dataclass whose fields are texts, numbers, tuples of such and mappings."""
WORK_AGAIN = "Run python -m builders work, which trains such units again, and then merge; or build, which does both."
"""The advice about units whose files are missing, or have no digest."""
StopRequested = Callable[[], bool]
"""A function that returns whether the process was asked to stop."""


@dataclass(frozen=True)
class Unit:
    """Members that are trained together and appear in the zoo together, under one value of the ``unit`` column."""

    name: str
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class BuildPlan:
    """The plan of a build, settled when it starts.

    ``members`` counts those of the zoo when the build is done, ``seeds`` are those allotted to it, ``keep_steps`` the
    rising optimiser steps at which checkpoints are kept, the last included. ``first_seed`` is the smallest seed that
    could be allotted, and ``code`` has the versions of this package and of torch; None where not known.
    ``transpositions`` are those of planted pairs (``builders.planted``), ``recipe_content`` is for
    ``builders.recipe.Recipe.from_content``, None in plans of older versions.
    """

    recipe: str
    prefix: str
    members: int
    seeds: tuple[int, ...]
    unit_size: int
    keep_steps: tuple[int, ...]
    device: str
    engine: str
    dataset_digest: str
    first_seed: int | None = None
    code: str | None = None
    transpositions: tuple[int, ...] = ()
    recipe_content: Mapping[str, Any] | None = None

    @property
    def units(self) -> list[Unit]:
        pieces = [self.seeds[start : start + self.unit_size] for start in range(0, len(self.seeds), self.unit_size)]
        return [Unit(f"{self.prefix}-{piece[0]:06d}-{piece[-1]:06d}", piece) for piece in pieces]


class BuildFolder:
    """The folder of one build, locked by one process; made by ``locked_build_folder``. ``plan_digest`` is that of its
    plan, which its files name; by default it is computed from the plan in the folder.
    """

    def __init__(self, folder: Path, plan_digest: str | None = None) -> None:
        self.folder, self._plan_digest = folder, plan_digest

    @property
    def plan_digest(self) -> str:
        """The digest of the plan; empty where there is none."""
        if self._plan_digest is None:
            self._plan_digest = self._read_plan()[1] if (self.folder / PLAN).exists() else ""
        return self._plan_digest

    def _read_plan(self) -> tuple[dict[str, Any], str]:
        path = self.folder / PLAN
        try:
            content, digest = unseal(unit_files.read_small(path), location=str(path))
        except IntegrityError as error:
            raise _bad_plan(path, "one with its digest", f"{error.problem.what} {error.problem.got}") from error
        # JSON has no tuples
        return {key: tuple(value) if type(value) is list else value for key, value in content.items()}, digest

    def plans_members(self) -> bool:
        """Return whether the plan is a ``BuildPlan``, and not one of draws."""
        return {"unit_size", "seeds", "keep_steps"} <= self._read_plan()[0].keys()

    def settle_plan(
        self, wanted: Plan | None, kind: type[Plan], allotted: Collection[str] = ("seeds", "code", "recipe_content")
    ) -> Plan | None:
        """Return the plan of the unfinished build, or ``wanted`` when there is none.

        ``kind`` is the dataclass of plans; the fields in ``allotted`` may differ, because they were settled by the
        state of the zoo when the build started.

        Raises ZooError: an unfinished build has another plan, or its plan is damaged.
        """
        path = self.folder / PLAN
        if not os.path.lexists(path):
            if wanted is None:
                return None
            write_file(path, seal(asdict(wanted)))
        values, self._plan_digest = self._read_plan()
        known = [field.name for field in fields(kind)]
        if later := [name for name in values if name not in known]:
            step = "Go on with the version that made it, or give the build up by removing that folder."
            expected, got = f"the fields of a {kind.__name__} of version {__version__}", ", ".join(map(repr, later))
            raise IntegrityError(Problem(str(path), "plan", expected, excerpt(got), step))
        try:
            plan = kind(**values)
        except TypeError as error:
            raise _bad_plan(path, f"the fields of a {kind.__name__}", str(error)) from error
        if wanted is not None:
            # plans that older versions wrote do not have it
            unknown = {
                name for name, value in (("first_seed", None), ("starts", ())) if getattr(plan, name, 0) == value
            }
            names = [name for name in known if name not in {*allotted, *unknown}]
            differ = [name for name in names if getattr(plan, name) != getattr(wanted, name)]
            if differ:
                expected = ", ".join(f"{name} {_format_value(getattr(plan, name))}" for name in differ)
                got = ", ".join(f"{name} {_format_value(getattr(wanted, name))}" for name in differ)
                step = "Carry it on with the command that started it, or give it up by removing that folder."
                raise ZooError(Problem(str(self.folder), "unfinished build", expected, got, step))
        return plan

    def write(self, name: str, *pieces: bytes | memoryview) -> None:
        """Write one of the files of units; each is whole or absent."""
        write_file(self.folder / name, *pieces)

    def state_name(self, unit: Unit) -> str:
        """Return the name of the file with the unit's saved state."""
        return self._state(unit).name

    def saved_file(self, unit: Unit) -> Path | None:
        """Return the unit's saved state, if there is one; raises as ``restore``, except for damaged tensors."""
        path = self._state(unit)
        return None if unit_files.read_facts(path, self._of_state(unit)) is None else path

    def saved_step(self, unit: Unit) -> int:
        """Return the optimiser step up to which a unit in progress is saved; 0 where nothing readable is."""
        try:
            facts = unit_files.read_facts(self._state(unit), self._of_state(unit))
            return 0 if facts is None else max(0, int(facts.get("step", "0")))
        except (IntegrityError, ValueError):  # which the one who carries the unit on says
            return 0

    def save(self, unit: Unit, state: TrainingState, spent: Spent) -> None:
        arrays = {f"weights/{name}": _array(tensor) for name, tensor in state.weights.items()}
        arrays |= {f"momentum/{name}": _array(tensor) for name, tensor in state.momentum.items()}
        arrays |= {f"extra/{name}": _array(tensor) for name, tensor in state.extra.items()}
        # safetensors has texts alone as metadata; repr of a float reads back as the same float
        facts = {"step": str(state.step), "seconds": repr(spent.seconds), "joules": json.dumps(spent.joules)}
        self.write(self._state(unit).name, *unit_files.sealed(arrays, facts | self._of_state(unit)))

    def restore(self, unit: Unit, state: TrainingState) -> Spent:
        """Bring a fresh state to where the unit was saved, if it was; return the time and energy spent until then.
        Raises IntegrityError: the file is damaged, or of another unit or plan.
        """
        saved = unit_files.read(self._state(unit), self._of_state(unit))
        if saved is None:
            return Spent()
        arrays, facts = saved
        for kind, tensors in (("weights", state.weights), ("momentum", state.momentum), ("extra", state.extra)):
            for name, tensor in tensors.items():
                tensor.copy_(torch.from_numpy(arrays[f"{kind}/{name}"]))
        # the tensors were checked against the digest before, so a state is restored whole or not at all
        state.step = int(facts["step"])
        return Spent(float(facts["seconds"]), json.loads(facts["joules"]))

    def keep(self, unit: Unit, number: int, weights: Tensors, rows: list[Row]) -> None:
        """Store checkpoints of a unit, with their rows: those of a step, or of a draw."""
        arrays = {name: _array(tensor) for name, tensor in as_stored(weights).items()}
        facts = {"rows": encode_rows(rows), **self._of_kept(unit, number)}
        self.write(self._kept(unit, number).name, *unit_files.sealed(arrays, facts))

    def read_kept(self, unit: Unit, number: int) -> tuple[dict[str, NDArray[Any]], list[Row]]:
        """Read checkpoints back; raises IntegrityError if there are none, or they are damaged or another build's."""
        path = self._kept(unit, number)
        kept = unit_files.read(path, self._of_kept(unit, number))
        if kept is None:
            raise IntegrityError(Problem(str(path), "saved work", "a file with a seal", "none", WORK_AGAIN))
        arrays, facts = kept
        return arrays, decode_rows(facts["rows"], location=str(path))

    def is_kept(self, unit: Unit, number: int) -> bool:
        """Return whether checkpoints of a step or draw are stored; raises as ``read_kept``, but for damaged tensors."""
        return unit_files.read_facts(self._kept(unit, number), self._of_kept(unit, number)) is not None

    def is_finished(self, unit: Unit, numbers: Sequence[int]) -> bool:
        """Return whether all of these are stored; the last are stored last, so they are looked for first."""
        return all(self.is_kept(unit, number) for number in reversed(numbers))

    def has_unsealed(self, unit: Unit, number: int) -> bool:
        """Return whether an earlier version stored these checkpoints, without a seal."""
        return os.path.lexists(self._kept(unit, number)) and not self.is_kept(unit, number)

    def forget_state(self, unit: Unit) -> None:
        """Remove the saved state of a unit that is finished."""
        self._state(unit).unlink(missing_ok=True)

    def forget(self, unit: Unit) -> None:
        """Remove all files of a unit that is in the zoo."""
        for pattern in (f"{unit.name}-*.kept.safetensors", f"{unit.name}.*"):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder, when everything in it is in the zoo; and the one above, when no other build is there."""
        # the folder above stays where another recipe's build is there: rmdir refuses a folder with files
        shutil.rmtree(self.folder)
        with suppress(OSError):
            self.folder.parent.rmdir()

    def _of_state(self, unit: Unit) -> dict[str, str]:
        return {"kind": "state", "unit": unit.name, "plan": self.plan_digest}

    def _of_kept(self, unit: Unit, number: int) -> dict[str, str]:
        return {"kind": "kept", "unit": unit.name, "number": str(number), "plan": self.plan_digest}

    def _state(self, unit: Unit) -> Path:
        return self.folder / f"{unit.name}.state.safetensors"

    def _kept(self, unit: Unit, number: int) -> Path:
        return self.folder / f"{unit.name}-{number:06d}.kept.safetensors"


def member_plans(zoo: Path) -> Iterator[tuple[BuildFolder, BuildPlan]]:
    """Yield the plans of members, not of draws, by name; raises ZooError if one is damaged, or of a later version."""
    for path in sorted((zoo / WORK_FOLDER).glob(f"*/{PLAN}")):
        build_folder = BuildFolder(path.parent)
        # a build that ends removes its folder
        with suppress(FileNotFoundError):
            if build_folder.plans_members() and (plan := build_folder.settle_plan(None, BuildPlan)) is not None:
                yield build_folder, plan


@contextmanager
def locked_build_folder(zoo: Path, prefix: str) -> Iterator[BuildFolder]:
    """Lock the folder of a recipe's build until the end of the block; raises LockedError if another process has it."""
    folder = zoo / WORK_FOLDER / prefix
    # until the locked file is the one that the path names
    while True:
        path = folder / "lock"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = regular(str(path), os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:  # a build that ended removed the folder between the two calls
            continue
        try:
            # the kernel unlocks with the process, however that ends (flock(2))
            # LOCK_NB: a second build says who works instead of waiting for days
            with _tolerating_no_locks():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # the file holds the number of the process that locked it, written below
            holder = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(descriptor)
            got, step = f"process {holder or 'unknown'}", "Wait for it to end, or stop it."
            raise LockedError(Problem(str(zoo), f"build of {prefix}", "no other one at work", got, step)) from None
        # The other process may have removed the folder, and with it the file that is now locked.
        if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
            break
        os.close(descriptor)
    try:
        # the number of an earlier holder may have more digits
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        sweep_old(folder)
        yield BuildFolder(folder)
    finally:
        # nothing was settled: a build that was refused leaves no folder behind
        if folder.exists() and not (folder / PLAN).exists():
            BuildFolder(folder).remove()
        os.close(descriptor)


@contextmanager
def _tolerating_no_locks() -> Iterator[None]:
    """Continue where the file system has no locks, as Lustre without ``flock``: claims then keep processes apart."""
    try:
        yield
    except OSError as error:
        # Lustre mounted without flock answers ENOSYS, NFS without a lock daemon ENOLCK
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    return np.ascontiguousarray(tensor.detach().cpu().numpy())


def _bad_plan(path: Path, expected: str, got: str) -> IntegrityError:
    step = "Give the build up by removing that folder."
    return IntegrityError(Problem(str(path), "plan", expected, excerpt(got), step))


def _format_value(value: object) -> str:
    """Return the text of a plan's field; of more than three values the first and the last."""
    if not isinstance(value, tuple):
        return str(value)
    values = [str(entry) for entry in value]
    return ",".join(values) if len(values) <= 3 else f"{values[0]},...,{values[-1]} ({len(values):,})"


class LockedError(ZooError):
    """Another process holds the folder of a build."""


class Interrupted(ZooError):
    """A task was asked to stop, and what it had done is saved."""


@contextmanager
def catch_stop_signals() -> Iterator[StopRequested]:
    """Yield a function that returns whether Ctrl-C or SIGTERM came; a second one ends the process at once. Outside the
    main thread it always returns False.
    """
    asked = threading.Event()
    # Python sets signal handlers in the main thread only, else raises ValueError
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(number: int, frame: object) -> None:
        asked.set()
        for signum, handler in before.items():
            signal.signal(signum, handler)

    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    for signum in before:
        signal.signal(signum, ask)
    try:
        yield asked.is_set
    finally:
        # whatever ended the block, Ctrl-C does what it did before
        for signum, handler in before.items():
            signal.signal(signum, handler)
