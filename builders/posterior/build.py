"""``posterior``: makes draws of an approximate posterior and adds them to a zoo, in units, resumable at any moment."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

import ckptzoo
from builders import metadata, posterior, rng, sources
from builders.build import SAVE_SECONDS, create_zoo, read_zoo, train_all, units_to_build, write_page
from builders.checkpointing import (
    PLAN,
    WORK_FOLDER,
    BuildFolder,
    Interrupted,
    LockedError,
    Unit,
    catch_stop_signals,
    locked_build_folder,
)
from builders.data_source import Feed
from builders.energy import Counter, Spent, counter_of
from builders.estimate import SECONDS, Estimate, require_at_least, time_measuring, time_steps
from builders.posterior.method import Method, Surroundings
from builders.progress import duration
from builders.recipe import Recipe
from builders.sources import Source
from builders.state import Tensors, TrainingState
from builders.train import Trainer, available_cores, choose_engine, default_unit_size, device_kind, open_trainer
from builders.units import UnitTraining
from ckptzoo import archs
from ckptzoo.errors import Problem, UnknownNameError, ZooError
from ckptzoo.text import counted

_FIRST_GAUSSIAN = 10**6
"""The number under which a unit's Gaussians are stored beside its draws; a mode has fewer draws."""
MAX_DRAWS = 10**5
"""Of a mode."""
_EXTRA = ("engine", "trained_together", "energy_joules")
"""What draws tell in ``extra`` as trained members do."""
_MEASURED = 64
"""Draws that are measured together."""
_SETTLE_SECONDS = 60.0
"""How long another process may take to settle a build."""


@dataclass(frozen=True)
class FoundModes:
    """What draws are taken around, one by one.

    Parameters
    ----------
    names : members of a zoo, or chains: the values of the column ``mode``.
    seeds : of the members or chains.
    weights : ``{name: (M, *shape)}`` of the members; None where chains start at random weights.
    """

    names: tuple[str, ...]
    seeds: tuple[int, ...]
    weights: dict[str, NDArray[Any]] | None

    def weights_of(self, modes: list[int], device: torch.device) -> Tensors | None:
        """Those of some modes on a device."""
        if self.weights is None:
            return None
        return {name: torch.from_numpy(array[modes]).to(device) for name, array in self.weights.items()}


@dataclass(frozen=True)
class PosteriorPlan:
    """What a build of draws makes, settled when it starts.

    Parameters
    ----------
    method, prefix : the method's digest, and how ids begin.
    modes, draws : how many the zoo holds when it is done.
    names, seeds : of every mode.
    present : draws of each mode that the zoo held when the build started.
    unit_size : modes that advance together.
    device, engine, dataset_digest : as for ``builders.checkpointing.BuildPlan``.
    """

    method: str
    prefix: str
    modes: int
    draws: int
    names: tuple[str, ...]
    seeds: tuple[int, ...]
    present: tuple[int, ...]
    unit_size: int
    device: str
    engine: str
    dataset_digest: str

    @property
    def units(self) -> list["DrawUnit"]:
        """Modes that lack the same draws, piece by piece."""
        lacking = [mode for mode in range(self.modes) if self.present[mode] < self.draws]
        units: list[DrawUnit] = []
        for present, group in groupby(lacking, key=lambda mode: self.present[mode]):
            modes = list(group)
            for start in range(0, len(modes), self.unit_size):
                piece = modes[start : start + self.unit_size]
                seeds = tuple(self.seeds[mode] for mode in piece)
                name = f"{self.prefix}-{seeds[0]:06d}-{seeds[-1]:06d}-draws-{present}-{self.draws - 1}"
                units.append(DrawUnit(name, seeds, tuple(piece), range(present, self.draws)))
        return units


@dataclass(frozen=True)
class DrawUnit(Unit):
    """Modes that advance together.

    Parameters
    ----------
    modes : their places among all modes.
    draws : the numbers of the draws to be taken.
    """

    modes: tuple[int, ...]
    draws: range


Settled = tuple[PosteriorPlan, list[DrawUnit]] | None
"""A plan and the units that the zoo lacks; None where it lacks nothing."""


@dataclass(frozen=True)
class BuiltDraws:
    """What a build of draws did.

    Parameters
    ----------
    zoo : its folder.
    part : the name of the new part; None where nothing was to be done.
    draws, modes : how many were added, and around how many modes.
    diverged : of the added ones; they are kept, and marked.
    gaussian : the folder of the zoo of means and deviations; None where the method has none.
    member_steps, seconds : optimiser steps of all modes taken by this process, and the time they took, measuring the
        draws included.
    left : of a share: units of all modes that are not finished. None where the draws were added to the zoo.
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
    method : a name in ``builders.posterior``.
    recipe : whose posterior is approximated: a recipe, its name, or the path of its file.
    to : the zoo's folder; made where there is none.
    start : a zoo whose members are the modes, the first that are finite and did not diverge; for methods that start
        from members, or can: ``bnn`` takes their weights as its first means. Each is its member's last checkpoint.
    epochs : of the recipe, as for ``builders.build.build``.
    settings, changes : the file of the method's settings, and other values for some of them.
    share : ``(i, n)`` to take the draws of every n-th unit alone, from the i-th, counted from 0, beside other processes
        that share the zoo's folder; they are added to the zoo by a call without it, before or after.
    folder, device, unit_size, engine, save_seconds, counter : as for ``builders.build.build``.

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
    found = _find_modes(model, modes, start)
    default_engine = _choose_engine(model, device, engine)
    create_zoo(root, recipe, _card(root, recipe))

    def settle(build_folder: BuildFolder) -> Settled:
        """The plan, and the units that the zoo lacks; None where it lacks nothing."""
        contents = read_zoo(root, recipe)
        present = _present(contents.raw.metadata, model, found)
        unfinished = build_folder.settle_plan(None, PosteriorPlan)
        engine_name = engine or (unfinished.engine if unfinished else default_engine)
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
        )
        lacks = any(count < draws for count in present)
        # one for other modes or draws is for the command that started it
        carries_on = unfinished is not None and (unfinished.modes, unfinished.draws) == (modes, draws)
        plan = build_folder.settle_plan(wanted, PosteriorPlan, ("present",)) if lacks or carries_on else None
        if plan is None:
            return None
        ids = {
            unit.name: {_draw_id(model, seed, number) for seed in unit.seeds for number in unit.draws}
            for unit in plan.units
        }
        lacking = units_to_build(root.name, contents.raw, ids)
        return plan, [unit for unit in plan.units if unit.name in lacking]

    @contextmanager
    def training(build_folder: BuildFolder, plan: PosteriorPlan) -> Iterator[_DrawTraining]:
        with (
            catch_stop_signals() as should_stop,
            open_trainer(model.chain, source, device=device, engine=plan.engine) as plain,
            counter_of(device) as own_counter,
        ):
            surroundings = Surroundings(plain.data_source, source, plan.engine)
            trainer, meter = with_steps(plain, model, surroundings), counter or own_counter
            yield _DrawTraining(
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
    root: Path, job: "_DrawTraining", units: Sequence["DrawUnit"], share: tuple[int, int], console: Console
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
    seconds : how long steps are taken; of a method with a single step, such as Laplace's, it is taken once at least.

    Other Parameters and Raises as for ``build``. Draws themselves are not timed: measuring each takes much longer.
    """
    recipe = Recipe.of(recipe, epochs)
    require_at_least(modes=modes, draws=draws, unit_size=unit_size)
    model = _load(method, recipe, settings, changes, start)
    _check_draws(model, draws)
    source = sources.load(recipe, folder)
    found = _find_modes(model, modes, start)
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


def _find_modes(model: Method, count: int, start: str | Path | None) -> FoundModes:
    """The members to start from, or the names and seeds of chains."""
    if model.modes_are == "chain":
        if start is not None:
            expected, step = "no zoo to start from, because it trains chains of its own", "Leave out --from."
            raise ZooError(Problem("posterior", f"method {model.name}", expected, str(start), step))
        seeds = tuple(range(count))
        return FoundModes(tuple(f"{model.prefix}-{seed:06d}" for seed in seeds), seeds, None)
    if start is None:
        expected, step = "a zoo of members to start from", "Name one with --from."
        raise ZooError(Problem("posterior", f"method {model.name}", expected, "none", step))
    zoo = ckptzoo.open(start).last_steps()
    return _members(model, zoo, count, str(start))


def _members(model: Method, zoo: ckptzoo.Zoo, count: int, location: str) -> FoundModes:
    """The first members of a zoo that are finite, did not diverge, and were trained by the recipe."""
    recipe = model.recipe
    if zoo.arch.digest != recipe.arch.digest:
        step = "Name a zoo of the recipe's networks with --from."
        raise ZooError(Problem(location, "architecture", f"{recipe.arch.name}, the recipe's", zoo.arch.name, step))
    columns = ["member", "seed", "recipe", "recipe_digest", "finite", "diverged", "method"]
    table = zoo.metadata.select(columns).to_pylist()
    of_recipe = [(place, row) for place, row in enumerate(table) if row["recipe_digest"] == recipe.digest]
    if not of_recipe:
        others = sorted({f"{row['recipe']} {str(row['recipe_digest'])[:15]}" for row in table})[:3]
        expected = f"{recipe.name} {recipe.digest[:15]}"
        step = (
            "Name a zoo that this recipe trained with --from, or the recipe, and its --epochs, that trained this one."
        )
        raise ZooError(Problem(location, "recipe of the members", expected, ", ".join(others) or "no members", step))
    usable = [
        (place, row)
        for place, row in of_recipe
        if row["finite"] and not row["diverged"] and row["seed"] is not None and row["method"] is None
    ]
    if len(usable) < count:
        got = f"{len(usable):,} of {len(of_recipe):,}"
        step = "Ask for fewer modes, or train more members."
        raise ZooError(
            Problem(location, "members that are finite and did not diverge", f"at least {count:,}", got, step)
        )
    chosen = usable[:count]
    places = [place for place, _ in chosen]
    members = zoo.take(places)
    weights = {tensor.name: np.array(members[tensor.name][:]) for tensor in recipe.arch.tensors}
    return FoundModes(tuple(row["member"] for _, row in chosen), tuple(row["seed"] for _, row in chosen), weights)


def _present(table: Any, model: Method, modes: FoundModes) -> tuple[int, ...]:
    """How many draws of each mode, from 0 on, the zoo holds; retracted ones count."""
    names = ("id", "recipe_digest", "mode", "draw", "seed")
    columns = zip(*(table[name].to_pylist() for name in names), strict=True)
    # other writers may write any digest into their rows; an id that goes with the rest is a draw of the method
    held = {
        (mode, draw)
        for name, digest, mode, draw, seed in columns
        if digest == model.digest and None not in (draw, seed) and name == _draw_id(model, seed, draw)
    }
    counts: list[int] = []
    for name in modes.names:
        count = 0
        while (name, count) in held:
            count += 1
        counts.append(count)
    return tuple(counts)


def _draw_id(model: Method, seed: int, number: int) -> str:
    return f"{model.prefix}-{seed:06d}-d{number:05d}"


def _unit_size(model: Method, source: Source, device: str, engine: str) -> int:
    """Modes of a unit where no number is asked for."""
    if model.one_at_a_time:
        return available_cores()
    return model.unit_size or default_unit_size(source, device, engine)


def with_steps(trainer: Trainer, model: Method, surroundings: Surroundings) -> Trainer:
    """The trainer with the steps of a method in place of plain training."""

    def advance(data_source: Feed, state: TrainingState, stop: int) -> None:
        model.advance(surroundings, state, stop)

    alone = model.one_at_a_time
    return replace(trainer, engine=advance, few_groups=not alone, one_at_a_time=alone)


@dataclass(frozen=True, eq=False)
class _DrawTraining(UnitTraining):
    """The chains of a plan's modes, and their draws."""

    plan: PosteriorPlan
    model: Method
    modes: FoundModes
    surroundings: Surroundings

    @property
    def name(self) -> str:
        """See ``UnitTraining``."""
        return self.model.label

    @property
    def steps(self) -> int:
        """See ``UnitTraining``."""
        return self.model.steps

    def stops(self, unit: Unit) -> Sequence[int]:
        """See ``UnitTraining``."""
        assert isinstance(unit, DrawUnit)
        return sorted({*(step for step, _ in self.model.stops(unit.draws)), self.model.steps})

    def is_finished(self, unit: Unit) -> bool:
        """See ``UnitTraining``."""
        assert isinstance(unit, DrawUnit)
        return all(self.build_folder.is_kept(unit, number) for number in unit.draws) and not self._unmeasured(unit)

    def start(self, unit: Unit) -> TrainingState:
        """See ``UnitTraining``."""
        assert isinstance(unit, DrawUnit)
        keys = rng.member_keys(self.model.digest, unit.seeds)
        weights = self.modes.weights_of(list(unit.modes), self.surroundings.data_source.device)
        return self.model.start(self.surroundings, keys, weights)

    def at_stop(self, unit: Unit, state: TrainingState, total: Spent) -> None:
        """See ``UnitTraining``."""
        assert isinstance(unit, DrawUnit)
        gaussian = self.model.gaussian(self.surroundings, state) if state.step == self.steps else None
        if gaussian is not None and not self.build_folder.is_kept(unit, _FIRST_GAUSSIAN):
            now, recipe = datetime.now(UTC), self.model.recipe
            facts = {"dataset": recipe.dataset, "dataset_digest": self.plan.dataset_digest, "extra": self.model.facts()}
            rows = [
                {"id": name, "member": name, "seed": seed, "unit": unit.name, "created": now, **facts, **self._common()}
                for name, seed in zip(self._names(unit), unit.seeds, strict=True)
            ]
            self.build_folder.keep(unit, _FIRST_GAUSSIAN, gaussian, rows)
        for step, numbers in self.model.stops(unit.draws):
            for number in numbers if step == state.step else ():
                if not self.build_folder.is_kept(unit, number):
                    weights = self.model.draw(self.surroundings, state, number)
                    self.build_folder.keep(unit, number, weights, self._rows(unit, number, state, total))

    def finish(self, unit: Unit) -> None:
        """Measure the draws, many together: measuring a few takes as long as measuring ``_MEASURED`` of them."""
        assert isinstance(unit, DrawUnit)
        unmeasured, size = self._unmeasured(unit), max(1, _MEASURED // len(unit.modes))
        for first in range(0, len(unmeasured), size):
            if self.should_stop():
                raise Interrupted(f"{unit.name}: stopped while draws were measured. Run the same command to carry on.")
            numbers = unmeasured[first : first + size]
            kept = [self.build_folder.read_kept(unit, number) for number in numbers]
            together = {
                name: torch.from_numpy(np.concatenate([weights[name] for weights, _ in kept])).to(
                    self.surroundings.data_source.device
                )
                for name in kept[0][0]
            }
            measured = self.trainer.measure(together)
            for place, (number, (weights, rows)) in enumerate(zip(numbers, kept, strict=True)):
                for mode, row in enumerate(rows):
                    index = place * len(unit.modes) + mode
                    row |= {column: values[index].item() for column, values in measured.items()}
                tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
                self.build_folder.keep(unit, number, tensors, rows)

    def _unmeasured(self, unit: DrawUnit) -> list[int]:
        """The stored draws whose rows lack the measured columns."""
        return [number for number in unit.draws if "diverged" not in self.build_folder.read_kept(unit, number)[1][0]]

    def _rows(self, unit: DrawUnit, number: int, state: TrainingState, total: Spent) -> list[dict[str, Any]]:
        """One row a mode, without what is measured later."""
        rows = metadata.rows(
            self.model.chain,
            self.surroundings.source,
            {},
            unit=unit.name,
            seeds=unit.seeds,
            step=state.step,
            spent=total,
            device=self.plan.device,
            engine=self.engine,
        )
        own = self.model.mode_facts(state)
        for row, mode, seed, facts in zip(rows, self._names(unit), unit.seeds, own, strict=True):
            name = _draw_id(self.model, seed, number)
            kept = {key: row["extra"][key] for key in _EXTRA if key in row["extra"]}
            extra = {**self.model.facts(), **facts, **kept}
            row |= {"id": name, "member": name, "mode": mode, "draw": number, **self._common(), "extra": extra}
        return rows

    def _names(self, unit: DrawUnit) -> list[str]:
        return [self.modes.names[mode] for mode in unit.modes]

    def _common(self) -> dict[str, Any]:
        return {
            "method": self.model.name,
            "recipe": self.model.label,
            "recipe_digest": self.model.digest,
            "source": f"python -m builders posterior {self.model.name} {self.model.recipe.name}",
        }

    def describe(self, steps_per_second: float) -> str:
        """See ``UnitTraining``."""
        units = self.plan.units
        modes = sum(len(unit.modes) for unit in units)
        seconds = modes * self.steps / steps_per_second
        drawn = sum(len(unit.modes) * len(unit.draws) for unit in units)
        what = f"{counted(drawn, 'draw')} of {counted(modes, 'mode')}"
        return f"{what} with {self.engine}: {duration(seconds)} of steps, besides measuring"


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
    with_gaussians = [unit for unit in units if build_folder.is_kept(unit, _FIRST_GAUSSIAN)]
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
            weights, rows = build_folder.read_kept(unit, _FIRST_GAUSSIAN)
            new = [place for place, row in enumerate(rows) if row["id"] not in present]
            if new:
                writer.add({name: weights[name][new] for name in arch.names}, [rows[place] for place in new])
        writer.commit()
    return path
