"""``build``: trains members of a recipe and adds them to a zoo, in units, resumable at any moment."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import pyarrow.compute as pc
import torch
from rich.console import Console

import ckptzoo
from builders import metadata, sources
from builders.checkpointing import (
    BuildFolder,
    BuildPlan,
    Interrupted,
    Unit,
    catch_stop_signals,
    locked_build_folder,
)
from builders.cost import Spending, spendings
from builders.energy import Counter, Spent, counter_of
from builders.estimate import Estimate, require_at_least, time_steps
from builders.metadata import member_id
from builders.recipe import Recipe, names
from builders.state import TrainingState
from builders.train import Trainer, choose_engine, default_unit_size, device_kind, open_trainer
from builders.units import UnitTraining
from builders.zoo_engines import engine_for, engines_held, require_engine
from ckptzoo import archs
from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import Contents, read_contents
from ckptzoo.format.tree import Tree
from ckptzoo.hub import card
from ckptzoo.recording.merging import MergedPart, add_units
from ckptzoo.recording.units import Row
from ckptzoo.schema import layout
from ckptzoo.schema.card import CARD_TOML

SAVE_SECONDS = 20.0
"""Seconds of training that are lost at most when the process is killed."""
_WAIT_SECONDS = 2.0
"""Seconds between two looks of a build that has nothing left to do at whether others are done."""
UNIT_SECONDS = 300.0
"""Approximate seconds of a unit with an engine that trains one member at a time; one member may take longer."""
AnyUnit = TypeVar("AnyUnit", bound=Unit)
# a wheel has the cards in ``builders/cards``, a checkout beside ``builders`` (pyproject.toml, sources of the wheel)
_INSTALLED_CARDS, _CHECKOUT_CARDS = (Path(__file__).parents[above] / "cards" for above in (0, 1))
CARDS = _INSTALLED_CARDS if _INSTALLED_CARDS.is_dir() else _CHECKOUT_CARDS
"""The cards of published zoos, by the name of their recipe; a wheel has them beside the recipes."""


@dataclass(frozen=True)
class Built:
    """The result of a build.

    ``part`` is the name of the new part, the last where there are several, None where nothing was to be done; ``held``
    counts the members of the recipe that the zoo holds now, retracted ones included. ``member_steps`` and ``seconds``
    are the optimiser steps of all members taken by this process, and their time, measuring the checkpoints included.
    """

    zoo: Path
    part: str | None
    checkpoints: int
    members: int
    held: int
    member_steps: int
    seconds: float
    cost: tuple[Spending, ...]


@dataclass(frozen=True)
class BuildWork:
    """The work of a build. ``plan`` is None where nothing is to be done; ``units`` are those of the plan that the zoo
    lacks, and ``held`` counts the members of the recipe that the zoo holds, retracted ones included.
    """

    plan: BuildPlan | None
    units: tuple[Unit, ...]
    held: int


class TrainingOptions(TypedDict, total=False):
    """Keyword arguments that ``build``, ``builders.shared.plan`` and ``builders.planted.build`` have in common.

    Attributes
    ----------
    folder
        where the data is; see ``builders.sources.load``.
    keep_steps
        optimiser steps whose checkpoints are kept besides the last.
    epochs
        trains shorter or longer than the recipe says; that is another recipe, with another digest.
    device
        ``cpu``, by default, or ``cuda``.
    unit_size
        members trained together; by default that of the unfinished build, else as many as take about 5 minutes of an
        engine that trains one member at a time, else ``builders.train.default_unit_size``.
    engine
        a name in ``builders.engines``; by default that of the unfinished build, else the one that made the recipe's
        members in the zoo, else the fastest for the recipe. Another one than the zoo's is refused.
    threads
        see ``builders.train.open_trainer``; no bit depends on it.
    """

    folder: str | Path | None
    keep_steps: Sequence[int]
    epochs: int | None
    device: str
    unit_size: int | None
    engine: str | None
    threads: int | None


@dataclass(frozen=True, eq=False)
class BuildRequest:
    """The arguments of ``build`` and ``builders.shared.plan``; derived classes build other members with seeds."""

    recipe: Recipe
    source: sources.Source
    root: Path
    members: int
    steps: tuple[int, ...]
    first_seed: int
    device: str
    unit_size: int | None
    engine: str | None
    threads: int | None

    @classmethod
    def of(
        cls,
        recipe: Recipe | str | Path,
        to: str | Path,
        *,
        members: int,
        folder: str | Path | None = None,
        keep_steps: Sequence[int] = (),
        epochs: int | None = None,
        first_seed: int = 0,
        device: str = "cpu",
        unit_size: int | None = None,
        engine: str | None = None,
        threads: int | None = None,
    ) -> "BuildRequest":
        """Check the arguments, load the data, and make the zoo where there is none."""
        recipe = Recipe.of(recipe, epochs)
        steps = recipe.steps_to_keep(keep_steps)
        choose_engine(recipe, device_kind(device), engine)
        require_at_least(members=members, unit_size=unit_size, threads=threads)
        require_at_least(0, first_seed=first_seed)
        source = sources.load(recipe, folder)
        root = Path(to).absolute()
        create_zoo(root, recipe, card_of(root, recipe))
        return cls(recipe, source, root, members, steps, first_seed, device, unit_size, engine, threads)

    def settle(self, build_folder: BuildFolder, measure_size: Callable[[str], int]) -> BuildWork:
        """Settle the plan, or find that of the unfinished build, and the units that the zoo lacks.

        The build folder is locked. ``measure_size`` maps an engine's name to the members of a unit; it is called where
        their number is not given.

        Raises ZooError: the arguments do not fit the zoo, or an unfinished build there.
        """
        contents = read_zoo(self.root, self.recipe)
        # looked for before seeds are allotted: a plan's units may be in the zoo already, and its folder is still there
        unfinished = build_folder.settle_plan(None, BuildPlan)
        present, taken = seeds_of(contents, self.recipe)
        held = engines_held(contents, self.recipe)
        if self.engine is not None:
            require_engine(held, self.engine, location=str(self.root), prefix=self.recipe.prefix)
        seeds = self.lacking_seeds(present, taken)
        if not seeds and unfinished is None:
            return BuildWork(None, (), len(present))
        engine = engine_for(
            held,
            recipe=self.recipe,
            device=self.device,
            location=str(self.root),
            asked=self.engine,
            unfinished=None if unfinished is None else unfinished.engine,
        )
        size = self.unit_size or (None if unfinished is None else unfinished.unit_size)
        wanted = BuildPlan(
            self.recipe.digest,
            self.recipe.prefix,
            self.members,
            seeds,
            size or measure_size(engine),
            self.steps,
            self.device,
            engine,
            self.source.digest,
            self.first_seed,
            code_version(),
            self.transpositions,
            self.recipe.content,
        )
        plan = build_folder.settle_plan(wanted, BuildPlan)
        assert plan is not None
        return BuildWork(plan, tuple(lacking_units(self.root, contents, self.recipe, plan)), len(present))

    @property
    def transpositions(self) -> tuple[int, ...]:
        """The transpositions that are planted; none here."""
        return ()

    def lacking_seeds(self, present: set[int], taken: set[int]) -> tuple[int, ...]:
        """Return the seeds to train, where the zoo has these members and these ids are taken."""
        return allot(present, self.members, self.first_seed, taken)

    def open_trainer(self, engine: str) -> AbstractContextManager[Trainer]:
        """Open a trainer for the members."""
        return open_trainer(self.recipe, self.source, device=self.device, engine=engine, threads=self.threads)

    def training(self, *arguments: Any) -> "MemberTraining":
        """Return the training of the members, with the arguments of ``MemberTraining``."""
        return MemberTraining(*arguments)


def build(
    recipe: Recipe | str | Path,
    to: str | Path,
    *,
    members: int,
    first_seed: int = 0,
    save_seconds: float = SAVE_SECONDS,
    counter: Counter | None = None,
    console: Console | None = None,
    **options: Unpack[TrainingOptions],
) -> Built:
    """Train members until a zoo holds ``members`` of a recipe's, with new seeds from ``first_seed`` on, and add them as
    one part. Called again after it was stopped or killed, with the same arguments, it continues from the last saved
    state.

    The zoo is made where there is none. At most ``save_seconds`` of training are lost when the process is killed; more
    where a save takes more than 1 % of that. ``counter`` counts the joules of the device; by default NVML's for a CUDA
    device, and none for a CPU.

    Raises Interrupted on Ctrl-C or SIGTERM, after the state was saved. Raises ZooError: the arguments do not fit each
    other, the zoo, or an unfinished build there.
    """
    request = BuildRequest.of(recipe, to, members=members, first_seed=first_seed, **options)
    return build_requested(request, save_seconds=save_seconds, counter=counter, console=console)


def build_requested(
    request: BuildRequest,
    *,
    save_seconds: float = SAVE_SECONDS,
    counter: Counter | None = None,
    console: Console | None = None,
) -> Built:
    """Train what a request asks for, and add it as one part; parameters and errors are those of ``build``."""
    console, root = console or Console(), request.root
    with (
        locked_build_folder(root, request.recipe.prefix) as build_folder,
        catch_stop_signals() as should_stop,
        ExitStack() as opened,
    ):
        meter = counter or opened.enter_context(counter_of(request.device))
        trainers: dict[str, Trainer] = {}

        def trainer_of(engine: str) -> Trainer:
            """Open a trainer once: the one that measures a unit's size also trains."""
            if engine not in trainers:
                trainers[engine] = opened.enter_context(request.open_trainer(engine))
            return trainers[engine]

        settled = request.settle(build_folder, lambda engine: default_size(trainer_of(engine), engine, meter))
        if settled.plan is None:
            return Built(root, None, 0, 0, settled.held, 0, 0.0, ())
        plan, units = settled.plan, settled.units
        job = request.training(
            build_folder, trainer_of(plan.engine), plan.engine, save_seconds, should_stop, meter, plan
        )
        steps_taken, seconds = train_all(job, units, console)
        # ends the threads of trainers and NVML before files are merged
        opened.close()
        parts = list(merge_units(root, build_folder, units, plan.keep_steps, request.recipe.arch.nbytes))
        # last: a process that is killed before finds its units in the zoo, and adds none of them twice
        build_folder.remove()
    write_page(root)
    added = sum(len(unit.seeds) for unit in units)
    part, count = parts[-1].name if parts else None, sum(part.checkpoints for part in parts)
    return Built(root, part, count, added, settled.held + added, steps_taken, seconds, _cost(root, units))


def train_all(job: UnitTraining, units: Sequence[Unit], console: Console) -> tuple[int, float]:
    """Train units, and wait for those of others; return the steps of all members taken here, and their seconds."""
    steps, seconds = job.train(units, console)
    while waiting := [unit for unit in units if not job.is_finished(unit)]:
        holders = [job.claims.holder(unit.name) for unit in waiting]
        if any(holder is None or not holder.alive for holder in holders):
            more_steps, more_seconds = job.train(waiting, console)
            steps, seconds = steps + more_steps, seconds + more_seconds
        elif job.should_stop():
            raise Interrupted("stopped while other processes train. Run the same command to carry on.")
        else:
            time.sleep(_WAIT_SECONDS)
    return steps, seconds


def code_version() -> str:
    """Return the versions that bits depend on besides the recipe, the data and the device."""
    # the rest of torch's version names its build, such as +cpu
    return f"ckptzoo {ckptzoo.__version__}, torch {torch.__version__.partition('+')[0]}"


def lacking_units(root: Path, contents: Contents, recipe: Recipe, plan: BuildPlan) -> list[Unit]:
    """Return the units of a plan that the zoo lacks; raises as ``units_to_build``."""
    # a unit is in the zoo with all of its checkpoints or none, since a part is added whole
    ids = {unit: _ids(recipe, unit, plan.keep_steps) for unit in plan.units}
    return units_to_build(root.name, contents.raw, ids)


def default_size(trainer: Trainer, engine: str, counter: Counter) -> int:
    """Return the members of a unit: those of about ``UNIT_SECONDS``, measured, where one is trained at a time."""
    if not trainer.one_at_a_time:
        return default_unit_size(trainer.source, str(trainer.data_source.device), engine)
    timed = time_steps(trainer, lambda: trainer.start(range(trainer.threads)), trainer.recipe.steps, counter)
    # whole rounds of the threads, of which each trains a member
    members = UNIT_SECONDS * timed.steps_per_second / trainer.recipe.steps
    return trainer.threads * max(1, round(members / trainer.threads))


def write_page(root: Path) -> None:
    """Make the page of a zoo again, where it has a card."""
    if (root / CARD_TOML).is_file():
        card.write(root)


def create_zoo(root: Path, recipe: Recipe, card: ckptzoo.Card) -> None:
    """Make a zoo for a recipe's networks where there is none."""
    if not (root / layout.ZOO).exists():
        try:
            ckptzoo.create(root, arch=recipe.arch, card=card, symmetry=archs.symmetry(recipe.architecture))
        except ZooError:
            # ``create`` publishes a folder under its name at once, so what is there is whole
            # another process may have made it meanwhile
            if not (root / layout.ZOO).exists():
                raise


def card_of(root: Path, recipe: Recipe) -> ckptzoo.Card:
    """Return the recipe's published card, if it is trained in full, without its pictures, which show another zoo."""
    path = CARDS / recipe.name / CARD_TOML
    if path.is_file() and recipe.name in names() and Recipe.load(recipe.name).digest == recipe.digest:
        # a shortened recipe has another digest: the published card does not describe its networks
        return replace(ckptzoo.Card.from_toml(path), name=root.name, pictures=())
    return ckptzoo.Card(root.name, summary=recipe.summary, dataset=recipe.dataset)


def read_zoo(root: Path, recipe: Recipe) -> Contents:
    """Read the zoo's contents; its architecture must be the recipe's."""
    contents = read_contents(Folder(root))
    if contents.architecture.digest != recipe.arch.digest:
        got, step = contents.architecture.name, "Build into another folder."
        raise IntegrityError(Problem(root.name, "architecture", f"{recipe.arch.name}, the recipe's", got, step))
    return contents


def seeds_of(contents: Contents, recipe: Recipe) -> tuple[set[int], set[int]]:
    """Return the seeds of the recipe's members in the zoo, and the seeds whose ids other checkpoints have; retracted
    ones keep theirs. Other writers may put any id and any digest into a zoo, so a member of the recipe is a row whose
    digest, seed and id agree.
    """
    rows = contents.raw.rows.select(["id", "member", "recipe_digest", "seed"])
    # what only starts like an id of the recipe may still be one of a seed and a step
    pattern = re.compile(rf"{re.escape(recipe.prefix)}-(\d{{6,12}})(-.*)?")
    present, taken = set[int](), set[int]()
    for name, member, digest, seed in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        if digest == recipe.digest and seed is not None and member == member_id(recipe, seed):
            present.add(seed)
        else:
            matches = (pattern.fullmatch(text) for text in (name, member) if text is not None)
            taken.update(int(match[1]) for match in matches if match)
    return present, taken - present


def _ids(recipe: Recipe, unit: Unit, steps: Sequence[int]) -> set[str]:
    return {f"{member_id(recipe, seed)}-{step:06d}" for seed in unit.seeds for step in steps}


def allot(present: set[int], members: int, first_seed: int, taken: Set[int] = frozenset()) -> tuple[int, ...]:
    """Return seeds that the zoo lacks, as many as it lacks members, except those whose ids are taken."""
    missing, used = max(0, members - len(present)), present | taken
    # as many of these as there are used seeds may be left out, so that enough are left
    candidates = range(first_seed, first_seed + missing + len(used))
    return tuple(seed for seed in candidates if seed not in used)[:missing]


def units_to_build(location: str, raw: Tree, ids_by_unit: Mapping[AnyUnit, set[str]]) -> list[AnyUnit]:
    """Return the units that a zoo lacks, in the given order, from its raw tree and the ids of all checkpoints of each
    unit.

    Raises IntegrityError: checkpoints of others have some of these ids, or one of these units: what is trained could
    not be added.
    """
    rows = raw.rows.select(["id", "unit"])
    present: dict[str | None, set[str]] = {}
    for name, unit in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        present.setdefault(unit, set()).add(name)
    lacking = [unit for unit, ids in ids_by_unit.items() if present.get(unit.name) != ids]
    wanted = {unit.name for unit in lacking}.union(*(ids_by_unit[unit] for unit in lacking))
    if taken := sorted(wanted.intersection({*rows["id"].to_pylist(), *present.keys()})):
        expected, got = "ids and units that no other checkpoint has", f"{len(taken):,} taken, such as {taken[0]!r}"
        step = "Build into another folder, or from another --first-seed; ids stay taken when checkpoints are retracted."
        raise IntegrityError(Problem(location, "what this build would add", expected, got, step))
    return lacking


def _cost(root: Path, units: Sequence[Unit]) -> tuple[Spending, ...]:
    """Return the cost of these units, from their rows in the zoo."""
    if not units:
        return ()
    rows = read_contents(Folder(root)).raw.metadata
    return spendings(rows.filter(pc.field("unit").isin([unit.name for unit in units])))


def merge_units(
    root: Path, build_folder: BuildFolder, units: Sequence[Unit], steps: tuple[int, ...], member_bytes: int
) -> Iterator[MergedPart[Unit]]:
    """Write the checkpoints of the units into the zoo, and remove their files; yield each part as it is published.

    The last of the ``steps`` says whether a member diverged; ``member_bytes`` are those of a checkpoint.
    """

    def read(unit: Unit) -> Iterator[tuple[Mapping[str, Any], list[Row]]]:
        # a member diverged or not by its last loss: earlier checkpoints of one that did are marked too
        ends_diverged = [row["diverged"] for row in build_folder.read_kept(unit, steps[-1])[1]]
        for step in steps:
            weights, rows = build_folder.read_kept(unit, step)
            yield weights, [{**row, "diverged": end} for row, end in zip(rows, ends_diverged, strict=True)]

    nbytes = member_bytes * len(steps)
    yield from add_units(
        root, units, nbytes=lambda unit: nbytes * len(unit.seeds), read=read, forget=build_folder.forget
    )


@dataclass(frozen=True, eq=False)
class MemberTraining(UnitTraining):
    """The training of a plan's members."""

    plan: BuildPlan

    @property
    def name(self) -> str:
        return self.trainer.recipe.name

    @property
    def steps(self) -> int:
        return self.trainer.recipe.steps

    def stops(self, unit: Unit) -> Sequence[int]:
        return self.plan.keep_steps

    def is_finished(self, unit: Unit) -> bool:
        return self.build_folder.is_finished(unit, self.plan.keep_steps)

    def is_stored(self, unit: Unit, step: int) -> bool:
        return self.build_folder.is_kept(unit, step)

    def start(self, unit: Unit) -> TrainingState:
        return self.trainer.start(unit.seeds)

    def at_stop(self, unit: Unit, state: TrainingState, total: Spent) -> None:
        if self.build_folder.is_kept(unit, state.step):
            return
        self.build_folder.keep(unit, state.step, state.weights, self.rows(unit, state, total))

    def rows(self, unit: Unit, state: TrainingState, total: Spent) -> list[dict[str, Any]]:
        """Return the metadata of the members at a step."""
        return metadata.rows(
            self.trainer.recipe,
            self.trainer.source,
            self.trainer.measure(state.weights),
            unit=unit.name,
            seeds=unit.seeds,
            step=state.step,
            spent=total,
            device=self.plan.device,
            engine=self.engine,
        )

    def describe(self, steps_per_second: float) -> str:
        members, checkpoints = len(self.plan.seeds), len(self.plan.keep_steps)
        return Estimate.of(self.trainer, self.engine, members, checkpoints, steps_per_second).line()
