"""``posterior``: makes draws of an approximate posterior and adds them to a zoo, in units, resumable at any moment."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
from rich.console import Console

import ckptzoo
from builders import posterior, rng, sources
from builders.build import SAVE_SECONDS, create_zoo, read_zoo, train_all, units_to_build, write_page
from builders.checkpointing import (
    PLAN,
    WORK_FOLDER,
    BuildFolder,
    LockedError,
    catch_stop_signals,
    locked_build_folder,
)
from builders.energy import Counter, counter_of
from builders.estimate import SECONDS, Estimate, require_at_least, time_measuring, time_steps
from builders.posterior.method import Method, Surroundings
from builders.posterior.modes import FoundModes, check_starts, draw_id, draws_of, find_modes, present_draws
from builders.posterior.plan import DrawUnit, PosteriorPlan
from builders.posterior.training import FIRST_GAUSSIAN, DrawTraining, with_steps
from builders.recipe import Recipe
from builders.sources import Source
from builders.train import available_cores, choose_engine, default_unit_size, device_kind, open_trainer
from builders.zoo_engines import engine_for, engines_of
from ckptzoo import archs
from ckptzoo.errors import Problem, UnknownNameError, ZooError
from ckptzoo.text import counted

MAX_DRAWS = 10**5
"""The largest number of draws of a mode."""
_SETTLE_SECONDS = 60.0
"""Seconds that another process may take to settle a build."""
Settled = tuple[PosteriorPlan, list[DrawUnit]] | None
"""A plan and the units that the zoo lacks; None where it lacks nothing."""


@dataclass(frozen=True)
class BuiltDraws:
    """The result of a build of draws.

    ``part`` is the new part's name, None where nothing was to be done. ``diverged`` counts added draws that are kept,
    and marked; ``gaussian`` is the folder of the zoo of means and deviations, None where the method has none.
    ``member_steps`` and ``seconds`` are the optimiser steps of all modes taken by this process, and their time,
    measuring the draws included. ``left`` counts, for a share, the units of all modes that are not finished; None where
    the draws were added to the zoo.
    """

    zoo: Path
    part: str | None
    draws: int
    modes: int
    diverged: int
    gaussian: Path | None
    member_steps: int
    seconds: float
    left: int | None = None

    def line(self) -> str:
        if self.left is not None:
            then = f"{counted(self.left, 'unit')} left" if self.left else "the command without --share adds the draws"
            return f"{self.zoo}: {counted(self.modes, 'mode')} done here; {then}."
        if self.part is None:
            return f"{self.zoo}: holds these draws already; nothing was added."
        marked = f", {self.diverged:,} of them diverged and marked" if self.diverged else ""
        beside = f" Means and deviations: {self.gaussian}." if self.gaussian else ""
        amount = f"{counted(self.draws, 'draw')} of {counted(self.modes, 'mode')}"
        return f"{self.zoo}: {amount}{marked} in part {self.part}.{beside}"


class DrawOptions(TypedDict, total=False):
    """Keyword arguments that ``build`` and ``estimate`` have in common; others are as in ``builders.build``.

    Attributes
    ----------
    start
        a zoo whose members are the modes, the first that are finite and did not diverge; for methods that start from
        members, or can: ``bnn`` takes their weights as its first means. Each is its member's last checkpoint.
    settings
        the file of the method's settings.
    changes
        other values for some of them.
    unit_size
        modes that advance together.
    """

    start: str | Path | None
    folder: str | Path | None
    epochs: int | None
    settings: str | Path | None
    changes: Mapping[str, Any] | None
    device: str
    unit_size: int | None
    engine: str | None


@dataclass(frozen=True, eq=False)
class DrawRequest:
    """The arguments of ``build`` or ``estimate``, checked, with the modes that were found."""

    model: Method
    recipe: Recipe
    source: Source
    modes: int
    draws: int
    found: FoundModes
    device: str
    unit_size: int | None
    asked_engine: str | None

    @classmethod
    def of(
        cls,
        method: str,
        recipe: Recipe | str | Path,
        modes: int,
        draws: int,
        *,
        start: str | Path | None = None,
        folder: str | Path | None = None,
        epochs: int | None = None,
        settings: str | Path | None = None,
        changes: Mapping[str, Any] | None = None,
        device: str = "cpu",
        unit_size: int | None = None,
        engine: str | None = None,
    ) -> "DrawRequest":
        """Check the arguments, load the data, and find the modes; parameters and errors are those of ``build``."""
        recipe = Recipe.of(recipe, epochs)
        require_at_least(modes=modes, draws=draws, unit_size=unit_size)
        model = posterior.get(method).load(recipe, settings, changes)
        if start is not None:
            model = model.from_members()
        _check_draws(model, draws)
        source = sources.load(recipe, folder)
        found_modes = find_modes(model, modes, start)
        request = cls(model, recipe, source, modes, draws, found_modes, device, unit_size, engine)
        # refuses what the method, the recipe or the device does not have
        _ = request.engine
        return request

    @cached_property
    def engine(self) -> str:
        """The trainer's engine where nothing in the zoo decides it; a method's own sampler measures with it."""
        if self.model.sampler is not None and self.asked_engine is not None:
            what, step = f"engine of method {self.model.name}", "Leave out --engine."
            expected = f"none, because {self.model.sampler} takes the steps"
            raise ZooError(Problem("posterior", what, expected, self.asked_engine, step))
        return choose_engine(self.model.chain, device_kind(self.device), self.asked_engine)

    def size(self, engine: str) -> int:
        """Return the modes of a unit where no number is requested."""
        if self.model.one_at_a_time:
            return available_cores()
        return self.model.unit_size or default_unit_size(self.source, self.device, engine)

    def settle(self, root: Path, build_folder: BuildFolder) -> Settled:
        """Return the plan, and the units that the zoo lacks; None where it lacks nothing."""
        model, found_modes = self.model, self.found
        contents = read_zoo(root, self.recipe)
        rows = contents.raw.rows.select(["id", "recipe_digest", "mode", "draw", "seed", "extra"])
        present = present_draws(rows, model, found_modes)
        check_starts(rows, model, found_modes, location=str(root))
        unfinished = build_folder.settle_plan(None, PosteriorPlan)
        # one for other modes or draws is for the command that started it
        carries_on = unfinished is not None and (unfinished.modes, unfinished.draws) == (self.modes, self.draws)
        if not carries_on and min(present) >= self.draws:
            return None
        engine = unfinished.engine if unfinished else self.engine
        # a sampler takes all steps itself
        if model.sampler is None:
            engine = engine_for(
                engines_of(draws_of(rows, model).values()),
                recipe=model.chain,
                device=self.device,
                location=str(root),
                asked=self.asked_engine,
                unfinished=unfinished.engine if unfinished else None,
            )
        wanted = PosteriorPlan(
            model.digest,
            model.prefix,
            self.modes,
            self.draws,
            found_modes.names,
            found_modes.seeds,
            present,
            self.unit_size or (unfinished.unit_size if unfinished else self.size(engine)),
            self.device,
            engine,
            self.source.digest,
            found_modes.digests,
        )
        plan = build_folder.settle_plan(wanted, PosteriorPlan, ("present",))
        assert plan is not None
        ids = {
            unit: {draw_id(model, seed, number) for seed in unit.seeds for number in unit.draws} for unit in plan.units
        }
        return plan, units_to_build(root.name, contents.raw, ids)

    @contextmanager
    def training(
        self, build_folder: BuildFolder, plan: PosteriorPlan, save_seconds: float, counter: Counter | None
    ) -> Iterator[DrawTraining]:
        """Yield the training of the chains, which stops on Ctrl-C and SIGTERM."""
        with (
            catch_stop_signals() as should_stop,
            open_trainer(self.model.chain, self.source, device=self.device, engine=plan.engine) as plain,
            counter_of(self.device) as own_counter,
        ):
            surroundings = Surroundings(plain.data_source, self.source, plan.engine)
            trainer, meter = with_steps(plain, self.model, surroundings), counter or own_counter
            taking_steps = self.model.sampler or plan.engine
            common = (build_folder, trainer, taking_steps, save_seconds, should_stop, meter)
            yield DrawTraining(*common, plan, self.model, self.found, surroundings)


def build(
    method: str,
    recipe: Recipe | str | Path,
    to: str | Path,
    *,
    modes: int,
    draws: int,
    share: tuple[int, int] | None = None,
    save_seconds: float = SAVE_SECONDS,
    counter: Counter | None = None,
    console: Console | None = None,
    **options: Unpack[DrawOptions],
) -> BuiltDraws:
    """Take draws until a zoo holds draws 0 to ``draws - 1`` of ``modes`` modes, and add them as one part. Called again
    after it was stopped or killed, with the same arguments, it continues from the last saved state. Existing draws are
    not taken again; a mode that lacks some is run again from its start, to the same weights.

    ``method`` is a name in ``builders.posterior``. With ``share`` ``(i, n)`` the draws of every n-th unit alone are
    taken, from the i-th, counted from 0, beside other processes that share the zoo's folder; a call without it adds
    them to the zoo, before or after. Other arguments are those of ``builders.build.build``.

    Raises Interrupted on Ctrl-C or SIGTERM, after the state was saved. Raises ZooError: the arguments do not fit each
    other, the zoos, or an unfinished build there.
    """
    request = DrawRequest.of(method, recipe, modes, draws, **options)
    console, root, model = console or Console(), Path(to).absolute(), request.model
    create_zoo(root, request.recipe, _card(root, request.recipe))
    nothing = BuiltDraws(root, None, 0, 0, 0, None, 0, 0.0)
    if share is not None:
        build_folder = BuildFolder(root / WORK_FOLDER / model.prefix)
        settled = _settle_beside_others(root, build_folder, request)
        if settled is None:
            return nothing
        with request.training(build_folder, settled[0], save_seconds, counter) as job:
            return _take_share(root, job, settled[1], share, console)
    with locked_build_folder(root, model.prefix) as build_folder:
        settled = request.settle(root, build_folder)
        if settled is None:
            return nothing
        plan, units = settled
        with request.training(build_folder, plan, save_seconds, counter) as job:
            steps_taken, seconds = train_all(job, units, console)
        part, count, diverged = _merge(root, build_folder, units)
        # the zoo of Gaussians is written behind the draws, and before the folder goes
        # of all units: a process that was killed here had merged the draws alone
        gaussian = _merge_gaussians(root, build_folder, model, plan.units)
        build_folder.remove()
    write_page(root)
    drawn = sum(len(unit.modes) for unit in units)
    return BuiltDraws(root, part, count, drawn, diverged, gaussian, steps_taken, seconds)


def _settle_beside_others(root: Path, build_folder: BuildFolder, request: DrawRequest) -> Settled:
    """Settle a build that others may settle, carry on or end at the same time; the lock is for settling alone."""
    folder, end = build_folder.folder, time.monotonic() + _SETTLE_SECONDS
    while True:
        is_settled = (folder / PLAN).exists()
        try:
            # a plan is written once and read by all, so that reading it needs no lock
            if is_settled:
                return request.settle(root, build_folder)
            with locked_build_folder(root, folder.name) as locked:
                return request.settle(root, locked)
        except LockedError:
            # who holds it settles the build, or has settled and ended it
            if time.monotonic() > end:
                raise
        except ZooError:
            # it was ended at this moment
            if not is_settled or (folder / PLAN).exists():
                raise
        time.sleep(0.05)


def _take_share(
    root: Path, job: DrawTraining, units: Sequence[DrawUnit], share: tuple[int, int], console: Console
) -> BuiltDraws:
    """Train every n-th unit that no other process holds; add nothing to the zoo."""
    mine = [unit for unit in units[share[0] :: share[1]] if not job.is_finished(unit)]
    steps, seconds = 0, 0.0
    try:
        steps, seconds = job.train(mine, console)
        # of all units, so that the last of the shares says that the draws can be added
        left = [unit for unit in units if not job.is_finished(unit)]
    except (ZooError, OSError):
        # a call without a share has added all draws, and removed the folder
        if job.build_folder.folder.exists():
            raise
        left = []
    modes = sum(len(unit.modes) for unit in mine if unit not in left)
    return BuiltDraws(root, None, 0, modes, 0, None, steps, seconds, len(left))


def estimate(
    method: str,
    recipe: Recipe | str | Path,
    *,
    modes: int,
    draws: int,
    seconds: float = SECONDS,
    **options: Unpack[DrawOptions],
) -> Estimate:
    """Take steps of some modes for ``seconds``, and report what ``build`` would take; write nothing.

    A method with a single step, such as Laplace's, takes it at least once.

    Other arguments and errors are those of ``build``. Draws themselves are not timed, because measuring each takes much
    longer.
    """
    request = DrawRequest.of(method, recipe, modes, draws, **options)
    model, found_modes, engine, device = request.model, request.found, request.engine, request.device
    together = list(range(min(modes, request.unit_size or request.size(engine))))
    keys = rng.member_keys(model.digest, [found_modes.seeds[mode] for mode in together])
    with (
        open_trainer(model.chain, request.source, device=device, engine=engine) as plain,
        counter_of(device) as counter,
    ):
        surroundings = Surroundings(plain.data_source, request.source, engine)
        trainer = with_steps(plain, model, surroundings)
        timed = time_steps(
            trainer,
            lambda: model.start(surroundings, keys, found_modes.weights_of(together, plain.data_source.device)),
            model.steps,
            counter,
            seconds,
        )
        measuring = time_measuring(trainer, timed.state) * modes * draws
    return Estimate.of(
        trainer,
        model.sampler or engine,
        modes,
        draws,
        timed.steps_per_second,
        measuring=measuring,
        joules_per_step=timed.joules_per_step,
        name=model.prefix,
        steps=model.steps,
    )


def _check_draws(model: Method, draws: int) -> None:
    most = MAX_DRAWS if model.max_draws is None else model.max_draws
    if draws > most:
        what, step = f"draws of a mode of {model.name}", "Ask for fewer, or change the settings."
        raise ZooError(Problem("posterior", what, f"at most {most:,}", f"{draws:,}", step))


def _card(root: Path, recipe: Recipe) -> ckptzoo.Card:
    summary = f"Draws of approximate posteriors of {recipe.architecture} on {recipe.dataset}."
    return ckptzoo.Card(root.name, summary=summary, dataset=recipe.dataset)


def _merge(root: Path, build_folder: BuildFolder, units: list[DrawUnit]) -> tuple[str | None, int, int]:
    """Write the draws of the units into the zoo as one part, mode by mode; return its name, draws and diverged ones."""
    count = diverged = 0
    with ckptzoo.append(root) as writer:
        for unit in units:
            kept = [build_folder.read_kept(unit, number) for number in unit.draws]
            for mode in range(len(unit.modes)):
                rows = [rows[mode] for _, rows in kept]
                writer.add({name: np.stack([weights[name][mode] for weights, _ in kept]) for name in kept[0][0]}, rows)
                count += len(rows)
                diverged += sum(bool(row["diverged"]) for row in rows)
        return writer.commit(), count, diverged


def _merge_gaussians(root: Path, build_folder: BuildFolder, model: Method, units: list[DrawUnit]) -> Path | None:
    """Add means and deviations to the zoo of Gaussians beside this one, for modes that it lacks."""
    with_gaussians = [unit for unit in units if build_folder.is_kept(unit, FIRST_GAUSSIAN)]
    if not with_gaussians:
        return None
    path, name = root.with_name(f"{root.name}-gaussian"), f"gaussian-{model.recipe.architecture}"
    try:
        arch = archs.architecture(name)
    except UnknownNameError:
        return None
    if not path.exists():
        summary = f"Means and standard deviations of the Gaussian posteriors in {root.name}."
        card = ckptzoo.Card(path.name, summary=summary, dataset=model.recipe.dataset)
        ckptzoo.create(path, arch=arch, card=card, symmetry=archs.symmetry(name))
    # modes of an earlier call, or of one that was killed behind this part
    present = set(ckptzoo.open(path).ids) if any(path.glob("parts/*")) else set[str]()
    with ckptzoo.append(path) as writer:
        for unit in with_gaussians:
            weights, rows = build_folder.read_kept(unit, FIRST_GAUSSIAN)
            new = [number for number, row in enumerate(rows) if row["id"] not in present]
            if new:
                writer.add({name: weights[name][new] for name in arch.names}, [rows[number] for number in new])
        writer.commit()
    return path
