"""``plan``, ``work`` and ``merge``: one build by any number of processes that share the zoo's folder.

::

    plan      settles once what is built, in units          ZOO/.work/<recipe>/plan.json
    work      trains units that nobody else holds           <unit>.claim-*, <unit>.state..., <unit>-<step>.kept...
    merge     adds finished units to the zoo                ZOO/parts/..., and the units' files go

``builders.status`` says what is done; ``build`` is all of it in one process. No verb needs a lock of the file system:
see ``ckptzoo.recording.claims``.
"""

import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Unpack

from rich.console import Console

from builders import sources
from builders.build import (
    SAVE_SECONDS,
    BuildRequest,
    MemberTraining,
    TrainingOptions,
    code_version,
    default_size,
    lacking_units,
    merge_units,
    read_zoo,
    write_page,
)
from builders.checkpointing import (
    PLAN,
    WORK_AGAIN,
    WORK_FOLDER,
    BuildFolder,
    BuildPlan,
    Interrupted,
    Unit,
    catch_stop_signals,
    locked_build_folder,
    member_plans,
)
from builders.energy import counter_of
from builders.failures import ATTEMPTS, failures_of, forget_failures, log, note_failure
from builders.progress import Progress
from builders.recipe import Recipe
from builders.train import open_trainer
from builders.zoo_engines import engines_held, require_engine
from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.recording.claims import Claim
from ckptzoo.recording.merging import one_merge
from ckptzoo.text import counted, excerpt


@dataclass(frozen=True)
class PlannedBuild:
    """The result of ``plan``: the prefix of ids, and the units and members to be trained, 0 where the zoo has all."""

    zoo: Path
    prefix: str
    units: int
    members: int
    unit_size: int


@dataclass(frozen=True)
class Worked:
    """The result of one ``work``.

    ``units`` and ``members`` count those that it finished; ``left`` counts units that are not finished: held by others,
    failed, or not reached in the time. ``failed`` has the error of each unit that failed here; ``member_steps`` and
    ``seconds`` are the optimiser steps of all members taken by this process, and their time.
    """

    units: int
    members: int
    left: int
    failed: tuple[tuple[str, str], ...]
    member_steps: int
    seconds: float


@dataclass(frozen=True)
class Merged:
    """The result of one ``merge``. ``parts`` are the names of the new parts; ``units`` and ``checkpoints`` count what
    was added, ``left`` the units of the plan that are not finished.
    """

    parts: tuple[str, ...]
    units: int
    checkpoints: int
    left: int


def plan(
    recipe: Recipe | str | Path,
    to: str | Path,
    *,
    members: int,
    first_seed: int = 0,
    **options: Unpack[TrainingOptions],
) -> PlannedBuild:
    """Settle what is built, as ``builders.build.build`` does with the same arguments; nothing is trained. A repeated
    call finds the existing plan.

    Raises ZooError: the arguments do not fit each other, the zoo, or an unfinished build there.
    """
    request = BuildRequest.of(recipe, to, members=members, first_seed=first_seed, **options)

    def measure_size(engine: str) -> int:
        with request.open_trainer(engine) as trainer, counter_of(request.device) as counter:
            return default_size(trainer, engine, counter)

    with locked_build_folder(request.root, request.recipe.prefix) as build_folder:
        settled = request.settle(build_folder, measure_size)
    size = 0 if settled.plan is None else settled.plan.unit_size
    count = sum(len(unit.seeds) for unit in settled.units)
    return PlannedBuild(request.root, request.recipe.prefix, len(settled.units), count, size)


def work(
    to: str | Path,
    recipe: Recipe | str | Path | None = None,
    *,
    unit: str | None = None,
    share: tuple[int, int] | None = None,
    seconds: float | None = None,
    folder: str | Path | None = None,
    device: str | None = None,
    threads: int | None = None,
    save_seconds: float = SAVE_SECONDS,
    console: Console | None = None,
) -> Worked:
    """Train units of a plan that no other process holds; any number of processes may do so at once.

    A unit whose process sends no heartbeat for three minutes is taken over from its last saved state. One that fails is
    left to the next ``work``; after five failures without progress it is set aside, until its file ``.failures.json``
    is removed. Its log has the tracebacks.

    Raises Interrupted on Ctrl-C or SIGTERM, after the state was saved. Raises ZooError: there is no plan, there are
    several, or it is of another recipe or of other data; or there is no such unit.

    ``recipe`` is needed where the folder has plans of several recipes, or one that an older version made. ``unit``
    names one unit; by default all are trained. ``share`` ``(i, n)`` selects every n-th unit, from the i-th, counted
    from 0. After ``seconds`` the state is saved, and another ``work`` continues. ``device`` is by default the plan's;
    other arguments are those of ``builders.build.build``.
    """
    console = console or Console()
    order = WorkOrder.of(to, recipe, folder, unit=unit, share=share)
    end = None if seconds is None else time.monotonic() + seconds
    where = device or order.plan.device
    with (
        catch_stop_signals() as asked,
        open_trainer(order.recipe, order.source, device=where, engine=order.plan.engine, threads=threads) as trainer,
        counter_of(where) as counter,
    ):

        def should_stop() -> bool:
            return asked() or (end is not None and time.monotonic() >= end)

        job = _SharedTraining(
            order.build_folder, trainer, order.plan.engine, save_seconds, should_stop, counter, order.plan
        )
        taken, spent = 0, 0.0
        try:
            taken, spent = job.train(order.units, console)
        # the time is up, which is no error; a signal is one
        except Interrupted:
            if asked():
                raise
        except ZooError:
            # another process has merged the last units and removed the folder
            if order.build_folder.folder.exists():
                raise
    return order.worked(job.finished_here, job.failures_here, taken, spent)


def merge(to: str | Path, recipe: Recipe | str | Path | None = None, *, push_to: str | None = None) -> Merged:
    """Add the units that are finished to the zoo, in parts of at most 32 GiB, and remove their files. After a kill at
    any moment the next call continues; nothing is added twice. ``push_to`` is the repository that the zoo is published
    in, part by part; see ``ckptzoo.hub.push``.

    Raises HubError: the hub refuses or gives no answer. What was added to the zoo stays; the next call publishes it.
    Raises IntegrityError: files of units are damaged, belong to others, or have no digest: nothing of them is added.
    Raises ZooError: there is no plan, or another process merges.
    """
    root = Path(to).absolute()
    recipe, build_folder, settled = find_plan(root, recipe)
    parts: list[str] = []
    count = checkpoints = 0
    with one_merge(build_folder.folder, root):
        contents = read_zoo(root, recipe)
        units = lacking_units(root, contents, recipe, settled)
        if units:
            require_engine(engines_held(contents, recipe), settled.engine, location=str(root), prefix=recipe.prefix)
        lacking = {unit.name for unit in units}
        # of a process that was killed behind a part
        for unit in settled.units:
            if unit.name not in lacking:
                build_folder.forget(unit)
        _refuse_unsealed(build_folder, settled, units)
        ready = [unit for unit in units if build_folder.is_finished(unit, settled.keep_steps)]
        for part in merge_units(root, build_folder, ready, settled.keep_steps, recipe.arch.nbytes):
            count, checkpoints = count + len(part.units), checkpoints + part.checkpoints
            parts.append(part.name)
            write_page(root)
            _publish(root, push_to)
        if not parts:
            # what a call that was killed had added
            _publish(root, push_to)
        left = len(units) - len(ready)
        # after publishing, so that a call that was killed before publishes again
        if not left:
            build_folder.remove()
    return Merged(tuple(parts), count, checkpoints, left)


def _publish(root: Path, address: str | None) -> None:
    if address is not None:
        # only who publishes needs the client of the hub
        from ckptzoo.hub.push import push

        push(root, address)


@dataclass(frozen=True, eq=False)
class WorkOrder:
    """The requested units that the zoo is ``lacking``; ``units`` of them are neither finished nor set aside."""

    recipe: Recipe
    source: sources.Source
    build_folder: BuildFolder
    plan: BuildPlan
    lacking: tuple[Unit, ...]
    units: tuple[Unit, ...]

    @classmethod
    def of(
        cls,
        to: str | Path,
        recipe: Recipe | str | Path | None,
        folder: str | Path | None,
        *,
        unit: str | None,
        share: tuple[int, int] | None,
    ) -> "WorkOrder":
        """Find the requested units; parameters and errors are those of ``work``."""
        root = Path(to).absolute()
        recipe, build_folder, plan = find_plan(root, recipe)
        source = sources.load(recipe, folder)
        if plan.dataset_digest != source.digest:
            step = "Name the folder of the data that it was planned with by --data."
            raise ZooError(Problem(str(root), "data of the plan", plan.dataset_digest, source.digest, step))
        # plans of older versions have no ``code``
        if plan.code not in (None, code_version()):
            step = "Work with that, so that all checkpoints are of one version, or plan the rest into another zoo."
            raise ZooError(Problem(str(root), "versions", str(plan.code), code_version(), step))
        wanted = _chosen(plan.units, unit, share, location=str(root))
        contents = read_zoo(root, recipe)
        require_engine(engines_held(contents, recipe), plan.engine, location=str(root), prefix=recipe.prefix)
        absent = lacking_units(root, contents, recipe, plan)
        lacking = tuple(item for item in wanted if item in absent)
        units = tuple(
            item
            for item in lacking
            if not build_folder.is_finished(item, plan.keep_steps)
            and len(failures_of(build_folder, item.name)) < ATTEMPTS
        )
        return cls(recipe, source, build_folder, plan, lacking, units)

    def is_finished(self, unit: Unit) -> bool:
        return self.build_folder.is_finished(unit, self.plan.keep_steps)

    def worked(self, finished: Collection[str], failed: Mapping[str, str], member_steps: int, seconds: float) -> Worked:
        """Return the result, from the names of the units that were finished here, and the errors of the failed ones."""
        done = [item for item in self.units if item.name in finished]
        left = [item for item in self.lacking if not (item in done or self.is_finished(item))]
        if not self.build_folder.folder.exists():
            left = []
        members = sum(len(item.seeds) for item in done)
        return Worked(len(done), members, len(left), tuple(failed.items()), member_steps, seconds)


@dataclass(frozen=True, eq=False)
class _SharedTraining(MemberTraining):
    """The training of units beside other processes: one that fails stops no other."""

    failures_here: dict[str, str] = field(default_factory=dict)
    finished_here: set[str] = field(default_factory=set)

    def _train(self, unit: Unit, progress: Progress, claim: Claim) -> bool:
        """Train one unit; its events go into the unit's log."""
        holder = f"process {os.getpid()} on {socket.gethostname()}, {self.trainer.data_source.device}"
        log(self.build_folder, unit.name, f"begun by {holder}", begin=True)
        began = time.monotonic()
        try:
            finished = super()._train(unit, progress, claim)
        except Interrupted:
            log(self.build_folder, unit.name, f"stopped at step {claim.progress:,} and saved")
            raise
        ended = "finished" if finished else "left to the process that took it over"
        log(self.build_folder, unit.name, f"{ended} at step {claim.progress:,}, {time.monotonic() - began:.1f} s")
        return finished

    def finish(self, unit: Unit) -> None:
        self.finished_here.add(unit.name)
        forget_failures(self.build_folder, unit.name)

    def failed(self, unit: Unit, step: int, error: Exception) -> None:
        """Note the failure, and continue."""
        if not self.build_folder.folder.exists():
            raise error
        self.failures_here[unit.name] = f"{type(error).__name__}: {error}"
        note_failure(self.build_folder, unit.name, step, error)


def find_plan(root: Path, recipe: Recipe | str | Path | None) -> tuple[Recipe, BuildFolder, BuildPlan]:
    """Return the plan of a recipe in a zoo's folder, or its only plan; errors are those of ``work``."""
    if recipe is None:
        build_folder, settled = _only_plan(root)
        recipe = _planned_recipe(settled, str(build_folder.folder / PLAN), root)
    else:
        recipe = Recipe.of(recipe)
        build_folder = BuildFolder(root / WORK_FOLDER / recipe.prefix)
        plan = build_folder.settle_plan(None, BuildPlan) if build_folder.folder.is_dir() else None
        if plan is None:
            step = f"Plan it first: python -m builders plan {recipe.name} --members N --to {quote(str(root))}."
            raise ZooError(Problem(str(root), f"plan of {recipe.prefix}", "one", "none", step))
        settled = plan
    expected = build_folder.folder.name
    if (settled.recipe, settled.prefix, expected) != (recipe.digest, recipe.prefix, recipe.prefix):
        step, got = "Give the build up by removing that folder.", f"one of {settled.prefix}"
        raise IntegrityError(Problem(str(build_folder.folder), "plan", f"one of {expected}", got, step))
    return recipe, build_folder, settled


def _only_plan(root: Path) -> tuple[BuildFolder, BuildPlan]:
    plans = list(member_plans(root))
    if len(plans) != 1:
        got = ", ".join(plan.prefix for _, plan in plans) or "none"
        step = f"Plan it first: python -m builders plan RECIPE --members N --to {quote(str(root))}."
        if plans:
            work = f"python -m builders work RECIPE --to {quote(str(root))}"
            step = f"Name the recipe of one: {work}, with --epochs and so on if any."
        raise ZooError(Problem(str(root), "plans", "one", got, step))
    return plans[0]


def _planned_recipe(settled: BuildPlan, location: str, root: Path) -> Recipe:
    """Return the recipe that a plan contains."""
    if settled.transpositions:
        step = "Carry it on with the command that started it: python -m builders planted."
        raise ZooError(Problem(location, "plan", "one of members of a recipe", "one of planted pairs", step))
    if settled.recipe_content is None:
        step = f"Name it: python -m builders work RECIPE --to {quote(str(root))}."
        raise ZooError(Problem(location, "recipe", "its content", "a plan of an older version", step))
    return Recipe.from_content(settled.recipe_content, location=location)


def _chosen(units: Sequence[Unit], name: str | None, share: tuple[int, int] | None, *, location: str) -> list[Unit]:
    if name is not None:
        chosen = [unit for unit in units if unit.name == name]
        if not chosen:
            got, step = f"none; there are {units[0].name} to {units[-1].name}", "python -m builders status lists them."
            raise ZooError(Problem(location, f"unit {name!r}", "one of the plan", got, step))
        return chosen
    if share is None:
        return list(units)
    number, count = share
    if not 0 <= number < count:
        step = "The first of four is 0/4, the last 3/4."
        raise ZooError(Problem(location, "share", "I/N with I from 0 to N - 1", f"{number}/{count}", step))
    return list(units)[number::count]


def _refuse_unsealed(build_folder: BuildFolder, settled: BuildPlan, units: Sequence[Unit]) -> None:
    """Refuse a merge while there are checkpoints without a digest, which cannot be compared with what was trained."""
    unsealed = [
        unit.name for unit in units if any(build_folder.has_unsealed(unit, step) for step in settled.keep_steps)
    ]
    if unsealed:
        got = f"files without a digest of {counted(len(unsealed), 'unit')}: {excerpt(', '.join(unsealed))}"
        raise IntegrityError(Problem(str(build_folder.folder), "saved work", "files with a digest", got, WORK_AGAIN))
