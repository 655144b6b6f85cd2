"""``posterior``: makes draws of an approximate posterior and adds them to a zoo, in units, resumable at any moment."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from builders.posterior.modes import check_starts, draw_id, draws_of, find_modes, present_draws
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
"""Of a mode."""
_SETTLE_SECONDS = 60.0
"""How long another process may take to settle a build."""
Settled = tuple[PosteriorPlan, list[DrawUnit]] | None
"""A plan and the units that the zoo lacks; None where it lacks nothing."""


@dataclass(frozen=True)
class BuiltDraws:
    """What a build of draws did.

    Parameters
    ----------
    zoo
        its folder.
    part
        the name of the new part; None where nothing was to be done.
    draws, modes
        how many were added, and around how many modes.
    diverged
        of the added ones; they are kept, and marked.
    gaussian
        the folder of the zoo of means and deviations; None where the method has none.
    member_steps, seconds
        optimiser steps of all modes taken by this process, and the time they took, measuring the draws included.
    left
        of a share: units of all modes that are not finished. None where the draws were added to the zoo.
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
        """For people."""
        if self.left is not None:
            then = f"{counted(self.left, 'unit')} left" if self.left else "the command without --share adds the draws"
            return f"{self.zoo}: {counted(self.modes, 'mode')} done here; {then}."
        if self.part is None:
            return f"{self.zoo}: holds these draws already; nothing was added."
        marked = f", {self.diverged:,} of them diverged and marked" if self.diverged else ""
        beside = f" Means and deviations: {self.gaussian}." if self.gaussian else ""
        what = f"{counted(self.draws, 'draw')} of {counted(self.modes, 'mode')}"
        return f"{self.zoo}: {what}{marked} in part {self.part}.{beside}"


def build(
    method: str,
    recipe: Recipe | str | Path,
    to: str | Path,
    *,
    modes: int,
    draws: int,
    start: str | Path | None = None,
    folder: str | Path | None = None,
    epochs: int | None = None,
    settings: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    device: str = "cpu",
    unit_size: int | None = None,
    engine: str | None = None,
    share: tuple[int, int] | None = None,
    save_seconds: float = SAVE_SECONDS,
    counter: Counter | None = None,
    console: Console | None = None,
) -> BuiltDraws:
    """Take draws until a zoo holds draws 0 to ``draws - 1`` of ``modes`` modes, and add them as one part.

    Called again after it was stopped or killed, with the same arguments, it carries on where it was last saved. Draws
    that the zoo holds are not taken again; a mode that lacks some is run again from its start, to the same weights.

    Parameters
    ----------
    method
        a name in ``builders.posterior``.
    recipe
        whose posterior is approximated: a recipe, its name, or the path of its file.
    to
        the zoo's folder; made where there is none.
    start
        a zoo whose members are the modes, the first that are finite and did not diverge; for methods that start from
        members, or can: ``bnn`` takes their weights as its first means. Each is its member's last checkpoint.
    epochs
        of the recipe, as for ``builders.build.build``.
    settings, changes
        the file of the method's settings, and other values for some of them.
    share
        ``(i, n)`` to take the draws of every n-th unit alone, from the i-th, counted from 0, beside other processes
        that share the zoo's folder; they are added to the zoo by a call without it, before or after.
    folder, device, unit_size, engine, save_seconds, counter
        as for ``builders.build.build``.

    Raises
    ------
    Interrupted
        On Ctrl-C or SIGTERM, after the state was saved.
    ZooError
        The arguments do not fit each other, the zoos, or an unfinished build there.
    """
    recipe = Recipe.of(recipe, epochs)
    require_at_least(modes=modes, draws=draws, unit_size=unit_size)
    model = _load(method, recipe, settings, changes, start)
    _check_draws(model, draws)
    console = console or Console()
    source = sources.load(recipe, folder)
    root = Path(to).absolute()
    found = find_modes(model, modes, start)
    default_engine = _choose_engine(model, device, engine)
    create_zoo(root, recipe, _card(root, recipe))

    def settle(build_folder: BuildFolder) -> Settled:
        """The plan, and the units that the zoo lacks; None where it lacks nothing."""
        contents = read_zoo(root, recipe)
        rows = contents.raw.rows.select(["id", "recipe_digest", "mode", "draw", "seed", "extra"])
        present = present_draws(rows, model, found)
        check_starts(rows, model, found, location=str(root))
        unfinished = build_folder.settle_plan(None, PosteriorPlan)
        lacks = any(count < draws for count in present)
        # one for other modes or draws is for the command that started it
        carries_on = unfinished is not None and (unfinished.modes, unfinished.draws) == (modes, draws)
        if not lacks and not carries_on:
            return None
        engine_name = unfinished.engine if unfinished else default_engine
        # a sampler takes all steps itself
        if model.sampler is None:
            engine_name = engine_for(
                engines_of(draws_of(rows, model).values()),
                recipe=model.chain,
                device=device,
                location=str(root),
                asked=engine,
                unfinished=unfinished.engine if unfinished else None,
            )
        wanted = PosteriorPlan(
            model.digest,
            model.prefix,
            modes,
            draws,
            found.names,
            found.seeds,
            present,
            unit_size or (unfinished.unit_size if unfinished else _unit_size(model, source, device, engine_name)),
            device,
            engine_name,
            source.digest,
            found.digests,
        )
        plan = build_folder.settle_plan(wanted, PosteriorPlan, ("present",))
        assert plan is not None
        ids = {
            unit: {draw_id(model, seed, number) for seed in unit.seeds for number in unit.draws} for unit in plan.units
        }
        return plan, units_to_build(root.name, contents.raw, ids)

    @contextmanager
    def training(build_folder: BuildFolder, plan: PosteriorPlan) -> Iterator[DrawTraining]:
        with (
            catch_stop_signals() as should_stop,
            open_trainer(model.chain, source, device=device, engine=plan.engine) as plain,
            counter_of(device) as own_counter,
        ):
            surroundings = Surroundings(plain.data_source, source, plan.engine)
            trainer, meter = with_steps(plain, model, surroundings), counter or own_counter
            yield DrawTraining(
                build_folder,
                trainer,
                model.sampler or plan.engine,
                save_seconds,
                should_stop,
                meter,
                plan,
                model,
                found,
                surroundings,
            )

    nothing = BuiltDraws(root, None, 0, 0, 0, None, 0, 0.0)
    if share is not None:
        build_folder = BuildFolder(root / WORK_FOLDER / model.prefix)
        settled = _settle_beside_others(root, build_folder, settle)
        if settled is None:
            return nothing
        with training(build_folder, settled[0]) as job:
            return _take_share(root, job, settled[1], share, console)
    with locked_build_folder(root, model.prefix) as build_folder:
        settled = settle(build_folder)
        if settled is None:
            return nothing
        plan, units = settled
        with training(build_folder, plan) as job:
            steps_taken, seconds = train_all(job, units, console)
        part, count, diverged = _merge(root, build_folder, units)
        # of all units: a process that was killed here had merged the draws alone
        gaussian = _merge_gaussians(root, build_folder, model, plan.units)
        build_folder.remove()
    write_page(root)
    drawn = sum(len(unit.modes) for unit in units)
    return BuiltDraws(root, part, count, drawn, diverged, gaussian, steps_taken, seconds)


def _settle_beside_others(root: Path, build_folder: BuildFolder, settle: Callable[[BuildFolder], Settled]) -> Settled:
    """Settle a build that others may settle, carry on or end at the same time; the lock is for settling alone."""
    folder, end = build_folder.folder, time.monotonic() + _SETTLE_SECONDS
    while True:
        is_settled = (folder / PLAN).exists()
        try:
            if is_settled:
                return settle(build_folder)
            with locked_build_folder(root, folder.name) as locked:
                return settle(locked)
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
    """Train every n-th unit that no other process holds; nothing is added to the zoo."""
    mine = [unit for unit in units[share[0] :: share[1]] if not job.is_finished(unit)]
    steps, seconds = 0, 0.0
    try:
        steps, seconds = job.train(mine, console)
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
    start: str | Path | None = None,
    folder: str | Path | None = None,
    epochs: int | None = None,
    settings: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    device: str = "cpu",
    unit_size: int | None = None,
    engine: str | None = None,
    seconds: float = SECONDS,
) -> Estimate:
    """Take steps of some modes for a few seconds, and report what ``build`` would take; writes nothing.

    Parameters
    ----------
    seconds
        how long steps are taken; of a method with a single step, such as Laplace's, it is taken once at least.

    Notes
    -----
    Other Parameters and Raises as for ``build``. Draws themselves are not timed: measuring each takes much longer.
    """
    recipe = Recipe.of(recipe, epochs)
    require_at_least(modes=modes, draws=draws, unit_size=unit_size)
    model = _load(method, recipe, settings, changes, start)
    _check_draws(model, draws)
    source = sources.load(recipe, folder)
    found = find_modes(model, modes, start)
    engine = _choose_engine(model, device, engine)
    together = list(range(min(modes, unit_size or _unit_size(model, source, device, engine))))
    keys = rng.member_keys(model.digest, [found.seeds[mode] for mode in together])
    with open_trainer(model.chain, source, device=device, engine=engine) as plain, counter_of(device) as counter:
        surroundings = Surroundings(plain.data_source, source, engine)
        trainer = with_steps(plain, model, surroundings)
        timed = time_steps(
            trainer,
            lambda: model.start(surroundings, keys, found.weights_of(together, plain.data_source.device)),
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


def _load(
    method: str,
    recipe: Recipe,
    settings: str | Path | None,
    changes: Mapping[str, Any] | None,
    start: str | Path | None,
) -> Method:
    """A method with its settings, which starts at members where a zoo of them is named."""
    model = posterior.get(method).load(recipe, settings, changes)
    return model if start is None else model.from_members()


def _choose_engine(model: Method, device: str, engine: str | None) -> str:
    """The engine of the trainer, which a method with a sampler of its own only measures with."""
    if model.sampler is not None and engine is not None:
        what, step = f"engine of method {model.name}", "Leave out --engine."
        raise ZooError(Problem("posterior", what, f"none, because {model.sampler} takes the steps", engine, step))
    return choose_engine(model.chain, device_kind(device), engine)


def _check_draws(model: Method, draws: int) -> None:
    most = MAX_DRAWS if model.max_draws is None else model.max_draws
    if draws > most:
        what, step = f"draws of a mode of {model.name}", "Ask for fewer, or change the settings."
        raise ZooError(Problem("posterior", what, f"at most {most:,}", f"{draws:,}", step))


def _card(root: Path, recipe: Recipe) -> ckptzoo.Card:
    summary = f"Draws of approximate posteriors of {recipe.architecture} on {recipe.dataset}."
    return ckptzoo.Card(root.name, summary=summary, dataset=recipe.dataset)


def _unit_size(model: Method, source: Source, device: str, engine: str) -> int:
    """Modes of a unit where no number is asked for."""
    if model.one_at_a_time:
        return available_cores()
    return model.unit_size or default_unit_size(source, device, engine)


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
    """Add means and deviations to the zoo beside, for modes that it lacks."""
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
    present = set(ckptzoo.open(path).ids) if any(path.glob("parts/*")) else set[str]()
    with ckptzoo.append(path) as writer:
        for unit in with_gaussians:
            weights, rows = build_folder.read_kept(unit, FIRST_GAUSSIAN)
            new = [place for place, row in enumerate(rows) if row["id"] not in present]
            if new:
                writer.add({name: weights[name][new] for name in arch.names}, [rows[place] for place in new])
        writer.commit()
    return path
