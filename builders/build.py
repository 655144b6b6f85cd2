"""``build``: trains members of a recipe and adds them to a zoo, in units, resumable at any moment."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.compute as pc
from rich.console import Console

import ckptzoo
from builders import metadata, sources
from builders.checkpointing import BuildFolder, BuildPlan, Unit, catch_stop_signals, locked_build_folder
from builders.cost import Spending, spendings
from builders.energy import Counter, Spent, counter_of
from builders.estimate import Estimate, require_at_least, time_steps
from builders.recipe import Recipe, names
from builders.state import TrainingState
from builders.train import Trainer, choose_engine, default_unit_size, device_kind, open_trainer
from builders.units import UnitTraining
from ckptzoo import archs
from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import Contents, read_contents
from ckptzoo.hub import card
from ckptzoo.schema import layout
from ckptzoo.schema.card import CARD_TOML

SAVE_SECONDS = 20.0
"""How much training is lost at most when the process is killed."""
UNIT_SECONDS = 300.0
"""About how long a unit takes of an engine that trains one member at a time; one member may take longer."""
CARDS = Path(__file__).parents[1] / "cards"
"""The cards of published zoos, by the name of their recipe."""


@dataclass(frozen=True)
class Built:
    """What a build did.

    Parameters
    ----------
    zoo : its folder.
    part : the name of the new part; None where nothing was to be done.
    checkpoints, members : how many were added.
    held : members of the recipe that the zoo holds now, retracted ones counted.
    member_steps, seconds : optimiser steps of all members taken by this process, and the time they took, measuring
        the checkpoints included.
    cost : what the added members cost.
    """

    zoo: Path
    part: str | None
    checkpoints: int
    members: int
    held: int
    member_steps: int
    seconds: float
    cost: tuple[Spending, ...]


def build(
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
    save_seconds: float = SAVE_SECONDS,
    counter: Counter | None = None,
    console: Console | None = None,
) -> Built:
    """Train members until a zoo holds a number of a recipe's, and add them as one part.

    Called again after it was stopped or killed, with the same arguments, it carries on where it was last saved.

    Parameters
    ----------
    recipe : a recipe, its name, or the path of its file.
    to : the zoo's folder; made where there is none.
    members : how many of this recipe the zoo is to hold. Seeds that it does not have are allotted.
    folder : where the data is; see ``builders.sources.load``.
    keep_steps : optimiser steps whose checkpoints are kept besides the last.
    epochs : trains shorter or longer than the recipe says; that is another recipe, with another digest.
    first_seed : the smallest seed to allot.
    unit_size : members trained together; by default that of the unfinished build, else as many as take about 5 minutes
        of an engine that trains one member at a time, else ``builders.train.default_unit_size``.
    engine : a name in ``builders.engines``; by default that of the unfinished build, else the fastest for the recipe.
    threads : see ``builders.train.open_trainer``; no bit depends on it.
    save_seconds : how much training is lost at most when the process is killed; more where a save takes more than 1 %
        of that.
    counter : of the joules that the device uses; by default NVML's for a CUDA device, and none for a CPU.

    Raises
    ------
    Interrupted
        On Ctrl-C or SIGTERM, after the state was saved.
    ZooError
        The arguments do not fit each other, the zoo, or an unfinished build there.
    """
    recipe = Recipe.of(recipe, epochs)
    console = console or Console()
    steps = recipe.steps_to_keep(keep_steps)
    default_engine = choose_engine(recipe, device_kind(device), engine)
    require_at_least(members=members, unit_size=unit_size, threads=threads)
    require_at_least(0, first_seed=first_seed)
    source = sources.load(recipe, folder)
    root = Path(to).absolute()
    create_zoo(root, recipe, _card(root, recipe))
    with locked_build_folder(root, recipe.prefix) as build_folder, catch_stop_signals() as should_stop:
        contents = read_zoo(root, recipe)
        unfinished = build_folder.settle_plan(None, BuildPlan)
        engine_name = engine or (unfinished.engine if unfinished else default_engine)
        present_seeds = _seeds(contents, recipe)
        seeds = _allot(present_seeds, members, first_seed)
        if not seeds and unfinished is None:
            return Built(root, None, 0, 0, len(present_seeds), 0, 0.0, ())
        with (
            open_trainer(recipe, source, device=device, engine=engine_name, threads=threads) as trainer,
            counter_of(device) as device_counter,
        ):
            meter = counter or device_counter
            size = unit_size or (unfinished.unit_size if unfinished else _unit_size(trainer, engine_name, meter))
            wanted = BuildPlan(
                recipe.digest,
                recipe.prefix,
                members,
                seeds,
                size,
                steps,
                device,
                engine_name,
                source.digest,
                first_seed,
            )
            plan = build_folder.settle_plan(wanted, BuildPlan)
            assert plan is not None
            present = set(contents.raw.rows["unit"].to_pylist())
            units = [unit for unit in plan.units if unit.name not in present]
            job = _MemberTraining(build_folder, trainer, engine_name, save_seconds, should_stop, meter, plan)
            steps_taken, seconds = job.train(units, console)
        part, count = _merge(root, build_folder, units, steps)
        build_folder.remove()
    write_page(root)
    added = sum(len(unit.seeds) for unit in units)
    return Built(root, part, count, added, len(present_seeds) + added, steps_taken, seconds, _cost(root, units))


def _unit_size(trainer: Trainer, engine: str, counter: Counter) -> int:
    """Members of a unit: those that take about ``UNIT_SECONDS`` where one at a time is trained, found by some steps."""
    if not trainer.one_at_a_time:
        return default_unit_size(trainer.source, str(trainer.data_source.device), engine)
    timed = time_steps(trainer, lambda: trainer.start(range(trainer.threads)), trainer.recipe.steps, counter)
    members = UNIT_SECONDS * timed.steps_per_second / trainer.recipe.steps
    return trainer.threads * max(1, round(members / trainer.threads))


def write_page(root: Path) -> None:
    """Make the page of a zoo again, where it has a card."""
    if (root / CARD_TOML).is_file():
        card.write(root)


def create_zoo(root: Path, recipe: Recipe, card: ckptzoo.Card) -> None:
    """Make a zoo for a recipe's networks where there is none."""
    if not (root / layout.ZOO).exists():
        ckptzoo.create(root, arch=recipe.arch, card=card, symmetry=archs.symmetry(recipe.architecture))


def _card(root: Path, recipe: Recipe) -> ckptzoo.Card:
    """The published card of the recipe, if it is trained in full, without its pictures, which show another zoo."""
    path = CARDS / recipe.name / CARD_TOML
    if path.is_file() and recipe.name in names() and Recipe.load(recipe.name).digest == recipe.digest:
        return replace(ckptzoo.Card.from_toml(path), name=root.name, pictures=())
    return ckptzoo.Card(root.name, summary=recipe.summary, dataset=recipe.dataset)


def read_zoo(root: Path, recipe: Recipe) -> Contents:
    """The zoo as it is; its architecture must be the recipe's."""
    contents = read_contents(Folder(root))
    if contents.architecture.digest != recipe.arch.digest:
        got, step = contents.architecture.name, "Build into another folder."
        raise IntegrityError(Problem(root.name, "architecture", f"{recipe.arch.name}, the recipe's", got, step))
    return contents


def _seeds(contents: Contents, recipe: Recipe) -> set[int]:
    """Seeds of the recipe's members in the zoo; retracted ones keep theirs."""
    table = contents.raw.metadata
    pairs = zip(table["recipe_digest"].to_pylist(), table["seed"].to_pylist(), strict=True)
    return {seed for digest, seed in pairs if digest == recipe.digest}


def _allot(present: set[int], members: int, first_seed: int) -> tuple[int, ...]:
    """Seeds that the zoo lacks, as many as it lacks members."""
    missing = max(0, members - len(present))
    # as many of these as there are present seeds may be taken, so that enough are left
    candidates = range(first_seed, first_seed + missing + len(present))
    return tuple(seed for seed in candidates if seed not in present)[:missing]


def _cost(root: Path, units: list[Unit]) -> tuple[Spending, ...]:
    """What these units cost, from their rows in the zoo."""
    if not units:
        return ()
    rows = read_contents(Folder(root)).raw.metadata
    return spendings(rows.filter(pc.field("unit").isin([unit.name for unit in units])))


def _merge(root: Path, build_folder: BuildFolder, units: list[Unit], steps: tuple[int, ...]) -> tuple[str | None, int]:
    """Write the checkpoints of the units into the zoo as one part; its last step says whether a member diverged."""
    count = 0
    with ckptzoo.append(root) as writer:
        for unit in units:
            # a member diverged or not by its last loss: earlier checkpoints of one that did are marked too
            ends_diverged = [row["diverged"] for row in build_folder.read_kept(unit, steps[-1])[1]]
            for step in steps:
                weights, rows = build_folder.read_kept(unit, step)
                writer.add(weights, [{**row, "diverged": end} for row, end in zip(rows, ends_diverged, strict=True)])
                count += len(rows)
        return writer.commit(), count


@dataclass(frozen=True, eq=False)
class _MemberTraining(UnitTraining):
    """The training of a plan's members."""

    plan: BuildPlan

    @property
    def name(self) -> str:
        """See ``UnitTraining``."""
        return self.trainer.recipe.name

    @property
    def steps(self) -> int:
        """See ``UnitTraining``."""
        return self.trainer.recipe.steps

    def stops(self, unit: Unit) -> Sequence[int]:
        """See ``UnitTraining``."""
        return self.plan.keep_steps

    def is_finished(self, unit: Unit) -> bool:
        """See ``UnitTraining``."""
        return self.build_folder.is_kept(unit, self.plan.keep_steps[-1])

    def start(self, unit: Unit) -> TrainingState:
        """See ``UnitTraining``."""
        return self.trainer.start(unit.seeds)

    def at_stop(self, unit: Unit, state: TrainingState, total: Spent) -> None:
        """See ``UnitTraining``."""
        if self.build_folder.is_kept(unit, state.step):
            return
        rows = metadata.rows(
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
        self.build_folder.keep(unit, state.step, state.weights, rows)

    def describe(self, steps_per_second: float) -> str:
        """See ``UnitTraining``."""
        members, checkpoints = len(self.plan.seeds), len(self.plan.keep_steps)
        return Estimate.of(self.trainer, self.engine, members, checkpoints, steps_per_second).line()
