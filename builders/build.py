"""Building a zoo, or adding members to one: in units, resumable at any moment, merged into one part at the end."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.compute as pc
from rich.console import Console

import ckptzoo
from builders import metadata, sources
from builders.checkpointing import BuildFolder, BuildPlan, Interrupted, Stopping, Unit, held, stopping
from builders.cost import Spending, spendings
from builders.energy import Counter, counter_of, spent
from builders.estimate import SECONDS, Estimate, at_least, warm_up
from builders.progress import Progress
from builders.recipe import Recipe, names
from builders.train import Trainer, checked, chosen, trainer
from builders.train import unit_size as usual_size
from ckptzoo import archs
from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import Contents, read_contents
from ckptzoo.hub import card
from ckptzoo.schema import layout
from ckptzoo.schema.card import CARD_TOML

SAVE_SECONDS = 20.0
CARDS = Path(__file__).parents[1] / "cards"
_SPAN_SECONDS = 1.0


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
    save_seconds: float = SAVE_SECONDS,
    counter: Counter | None = None,
    console: Console | None = None,
) -> Built:
    """Train members until a zoo holds so many of a recipe, and add them as one part.

    Called again after it was stopped or killed, with the same arguments, it carries on where it was last saved.

    Parameters
    ----------
    recipe : a recipe, its name, or the path of its file.
    to : the zoo's folder; made where there is none.
    members : how many of this recipe the zoo is to hold. Seeds that it does not have are allotted.
    folder : where the data lies; see ``builders.sources.load``.
    keep_steps : optimiser steps whose checkpoints are kept besides the last.
    epochs : trains shorter or longer than the recipe says; that is another recipe, with another digest.
    first_seed : the smallest seed to allot.
    unit_size : members trained together; by default ``builders.train.unit_size``.
    engine : a name in ``builders.engines``; by default that of the unfinished build, else the fastest for the recipe.
    save_seconds : how much training is lost at most when the process is killed.
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
    steps = recipe.kept(keep_steps)
    best = chosen(recipe, checked(device), engine)
    at_least(members=members, unit_size=unit_size)
    at_least(0, first_seed=first_seed)
    source = sources.load(recipe, folder)
    size = unit_size or usual_size(source, device)
    root = Path(to).absolute()
    _make(root, recipe)
    with held(root, recipe.prefix) as work, stopping() as asked:
        contents = _opened(root, recipe)
        unfinished = work.settled(None)
        name = engine or (unfinished.engine if unfinished else best)
        there = _seeds(contents, recipe)
        seeds = _allotted(there, members, first_seed)
        wanted = BuildPlan(
            recipe.digest, recipe.prefix, members, seeds, size, steps, device, name, source.digest, first_seed
        )
        plan = work.settled(wanted if seeds or unfinished else None)
        if plan is None:
            return Built(root, None, 0, 0, len(there), 0, 0.0, ())
        present = set(contents.raw.rows["unit"].to_pylist())
        units = [unit for unit in plan.units if unit.name not in present]
        with trainer(recipe, source, device=device, engine=name) as crew, counter_of(device) as own:
            job = _Job(work, plan, crew, name, save_seconds, asked, counter or own)
            taken, seconds = job.train(units, console)
        part, count = _merged(root, work, units, steps)
        work.remove()
    describe(root)
    added = sum(len(unit.seeds) for unit in units)
    return Built(root, part, count, added, len(there) + added, taken, seconds, _cost(root, units))


def describe(root: Path) -> None:
    """Make the page of a zoo anew, where it keeps a card."""
    if (root / CARD_TOML).is_file():
        card.write(root)


def _make(root: Path, recipe: Recipe) -> None:
    """Make the zoo where there is none."""
    if not (root / layout.ZOO).exists():
        ckptzoo.create(
            root,
            arch=archs.architecture(recipe.architecture),
            card=_card(root, recipe),
            symmetry=archs.symmetry(recipe.architecture),
        )


def _card(root: Path, recipe: Recipe) -> ckptzoo.Card:
    """The card that was written for the recipe, as long as it is trained in full; its pictures show another zoo."""
    path = CARDS / recipe.name / CARD_TOML
    if path.is_file() and recipe.name in names() and Recipe.load(recipe.name).digest == recipe.digest:
        return replace(ckptzoo.Card.from_toml(path), name=root.name, pictures=())
    return ckptzoo.Card(root.name, summary=recipe.summary, dataset=recipe.dataset)


def _opened(root: Path, recipe: Recipe) -> Contents:
    """The zoo as it is; its architecture must be the recipe's."""
    arch = archs.architecture(recipe.architecture)
    contents = read_contents(Folder(root))
    if contents.architecture.digest != arch.digest:
        found, step = contents.architecture.name, "Build into another folder."
        raise IntegrityError(Problem(root.name, "architecture", f"{arch.name}, the recipe's", found, step))
    return contents


def _seeds(contents: Contents, recipe: Recipe) -> set[int]:
    """Seeds of the recipe's members in the zoo; retracted ones keep theirs."""
    table = contents.raw.metadata
    pairs = zip(table["recipe_digest"].to_pylist(), table["seed"].to_pylist(), strict=True)
    return {seed for digest, seed in pairs if digest == recipe.digest}


def _allotted(present: set[int], members: int, first_seed: int) -> tuple[int, ...]:
    """Seeds that the zoo lacks, as many as it lacks members."""
    missing = max(0, members - len(present))
    candidates = range(first_seed, first_seed + missing + len(present))
    return tuple(seed for seed in candidates if seed not in present)[:missing]


def _cost(root: Path, units: list[Unit]) -> tuple[Spending, ...]:
    """What these units cost, from their rows in the zoo."""
    if not units:
        return ()
    rows = read_contents(Folder(root)).raw.metadata
    return spendings(rows.filter(pc.field("unit").isin([unit.name for unit in units])))


def _merged(root: Path, work: BuildFolder, units: list[Unit], steps: tuple[int, ...]) -> tuple[str | None, int]:
    """Put what is kept of the units into the zoo as one part; whether a member diverged is told by its last step."""
    count = 0
    with ckptzoo.append(root) as writer:
        for unit in units:
            diverged = [row["diverged"] for row in work.kept(unit, steps[-1])[1]]
            for step in steps:
                weights, made = work.kept(unit, step)
                writer.add(weights, [{**row, "diverged": end} for row, end in zip(made, diverged, strict=True)])
                count += len(made)
        return writer.commit(), count


@dataclass(frozen=True, eq=False)
class _Job:
    """The training of a plan's units."""

    work: BuildFolder
    plan: BuildPlan
    crew: Trainer
    engine: str
    save_seconds: float
    asked: Stopping
    counter: Counter

    def train(self, units: list[Unit], console: Console) -> tuple[int, float]:
        """Train what is not finished; return the member-steps taken and the seconds they took."""
        recipe, last = self.crew.recipe, self.plan.keep_steps[-1]
        finished = [unit for unit in units if self.work.is_kept(unit, last)]
        members = sum(len(unit.seeds) for unit in units)
        ready = sum(len(unit.seeds) for unit in finished)
        started = time.monotonic()
        with Progress(
            console,
            recipe.name,
            members=members,
            member_steps=members * recipe.steps,
            done=ready * recipe.steps,
            finished=ready,
        ) as progress:
            left = [unit for unit in units if unit not in finished]
            if left:
                warm_up(self.crew, left[0].seeds)
            for unit in left:
                self._train(unit, progress)
                progress.finish(len(unit.seeds))
        return progress.taken, time.monotonic() - started

    def _train(self, unit: Unit, progress: Progress) -> None:
        """Train one unit from where it was saved to its end."""
        state = self.crew.start(unit.seeds)
        total = self.work.restore(unit, state)
        progress.resume(state.step * len(state))
        span, saved = 8, time.monotonic()
        for stop in self.plan.keep_steps:
            while state.step < stop:
                first, end = state.step, min(stop, state.step + span)
                took = spent(lambda end=end: self.crew.advance(state, end), self.counter)
                total += took
                self._tell(progress, (end - first) * len(state), took.seconds)
                span = max(1, round((end - first) * _SPAN_SECONDS / max(took.seconds, 1e-6)))
                stop_now, now = self.asked(), time.monotonic()
                if stop_now or now - saved >= self.save_seconds:
                    self.work.save(unit, state, total)
                    saved = now
                if stop_now:
                    raise Interrupted(
                        f"{unit.name}: stopped at step {state.step} and saved. Run the same command to carry on."
                    )
            if state.step == stop and not self.work.is_kept(unit, stop):
                made = metadata.rows(
                    self.crew.recipe,
                    self.crew.source,
                    self.crew.measure(state.weights),
                    unit=unit.name,
                    seeds=unit.seeds,
                    step=stop,
                    spent=total,
                    device=self.plan.device,
                    engine=self.engine,
                )
                self.work.keep(unit, stop, state, made)
        self.work.forget_state(unit)

    def _tell(self, progress: Progress, member_steps: int, seconds: float) -> None:
        """Count steps; when there are enough of them to know the speed, say how long the whole will take."""
        known = progress.seconds >= SECONDS
        progress.advance(member_steps, seconds)
        if not known and progress.seconds >= SECONDS:
            kept, speed = len(self.plan.keep_steps), progress.taken / progress.seconds
            progress.note(Estimate.of(self.crew, self.engine, len(self.plan.seeds), kept, speed).line())
