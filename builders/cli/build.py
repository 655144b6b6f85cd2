"""The commands that train members: build and planted, and the parts of build for any number of machines."""

import contextlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from builders.cli.options import (
    AsJson,
    FirstSeed,
    Members,
    MemberTrainingOptions,
    NewZoo,
    PlanChoice,
    PlannedZoo,
    Predictions,
    RecipeName,
    SaveEvery,
    Work,
    console_of,
    parse_numbers,
    parse_pairs,
    parse_seconds,
    print_report,
)
from ckptzoo.cli.exits import PROBLEMS
from ckptzoo.cli.options import expand_dataclasses
from ckptzoo.errors import Problem, ZooError
from ckptzoo.schema import layout
from ckptzoo.text import counted

if TYPE_CHECKING:
    from builders.build import Built
    from builders.shared import Worked


@expand_dataclasses
def build(
    recipe: RecipeName,
    members: Members,
    to: NewZoo,
    training: MemberTrainingOptions,
    first_seed: FirstSeed = 0,
    save_every: SaveEvery = 20,
    predictions: Predictions = False,
) -> None:
    """Train members of a recipe together and add them to a zoo.

    Stopped or killed at any moment, the same command carries on; when the zoo holds them all, it adds nothing.
    """
    # imported in the command: torch takes seconds, which --help and mistakes need not wait for
    from builders.build import build as train

    def report(built: "Built", console: Console) -> None:
        if built.part is None:
            console.print(f"{to}: holds {counted(built.held, 'member')} of {recipe} already; nothing was added.")
        else:
            added = f"{counted(built.checkpoints, 'checkpoint')} of {counted(built.members, 'member')}"
            console.print(f"{to}: {added} in part {built.part}.")

    options: dict[str, Any] = {"members": members, "first_seed": first_seed, "save_seconds": save_every}
    _train(train, report, training, recipe, to, predictions=predictions, **options)


@expand_dataclasses
def planted(
    recipe: RecipeName,
    transpositions: Annotated[
        str, typer.Option(metavar="NUMBERS", help="Members of each run by the transpositions of their start: 0,1,2,4.")
    ],
    runs: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="How many initial networks, each with its reference and members.")
    ],
    to: NewZoo,
    training: MemberTrainingOptions,
    save_every: SaveEvery = 20,
    predictions: Predictions = False,
) -> None:
    """Train networks from the same start with some hidden neurons exchanged, in other orders, and add them to a zoo.

    Each run has a reference, trained from random weights, and for every number of transpositions a member that starts
    at these weights with the hidden neurons permuted by as many (arXiv 2401.00611). Stopped or killed at any moment,
    the same command carries on.
    """
    from builders.planted import build as train

    def report(built: "Built", console: Console) -> None:
        line = f"{to}: holds these members already; nothing was added."
        if built.part is not None:
            added = f"{counted(built.checkpoints, 'checkpoint')} of {counted(built.members, 'member')}"
            line = f"{to}: {added} in part {built.part}."
        console.print(line, highlight=False, soft_wrap=True)

    options: dict[str, Any] = {"runs": runs, "transpositions": parse_numbers(transpositions, "--transpositions")}
    _train(train, report, training, recipe, to, predictions=predictions, save_seconds=save_every, **options)


@expand_dataclasses
def plan(
    recipe: RecipeName, members: Members, to: NewZoo, training: MemberTrainingOptions, first_seed: FirstSeed = 0
) -> None:
    """Settle what is to be trained, in units, for any number of work processes; nothing is trained.

    With the same arguments as build, which is plan, work and merge in one process.
    """
    from builders.shared import plan as settle

    planned = settle(training.of(recipe), to, members=members, first_seed=first_seed, **training.options())
    units = f"{counted(planned.units, 'unit')} of {counted(planned.unit_size, 'member')}"
    what = f"{counted(planned.members, 'member')} to train, in {units}" if planned.units else "nothing is left to train"
    console_of().print(f"{to}: {planned.prefix}: {what}.", highlight=False, soft_wrap=True)


@expand_dataclasses
def work(
    zoo: PlannedZoo,
    choice: PlanChoice,
    settings: Work,
    unit: Annotated[str | None, typer.Option(metavar="NAME", help="Only this unit; status lists them.")] = None,
    share: Annotated[
        str, typer.Option(metavar="I/N", help="Only every N-th unit, beginning with the I-th, counted from 0.")
    ] = "",
    duration: Annotated[
        str, typer.Option("--for", metavar="TIME", help="Stop after 90s, 50m or 8h, when all is saved.")
    ] = "",
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ray[://HOST:PORT]", help="Train on the machines of a Ray cluster; only this has the zoo."
        ),
    ] = None,
) -> None:
    """Train units of a plan that no other process holds; start as many as there are cores, GPUs or machines.

    Stopped or killed at any moment, nothing is lost: others take over. Exits with 1 where units failed.
    """
    from ckptzoo.text import parse_share

    console, run_units, (to, recipe) = console_of(), _work_on(on), choice.of(zoo)
    done = run_units(
        to,
        recipe,
        unit=unit,
        share=parse_share(share) if share else None,
        seconds=parse_seconds(duration) if duration else None,
        console=console,
        **settings.options(),
    )
    line = f"{to}: {counted(done.units, 'unit')} done ({counted(done.members, 'member')}), {done.left:,} left."
    console.print(line, highlight=False, soft_wrap=True)
    for name, error in done.failed:
        console.print(f"{name}: failed: {error}", highlight=False, markup=False, soft_wrap=True)
    if done.failed:
        raise typer.Exit(PROBLEMS)


@expand_dataclasses
def submit(
    zoo: PlannedZoo,
    choice: PlanChoice,
    settings: Work,
    slurm: Annotated[bool, typer.Option("--slurm", help="Submit an array of tasks to Slurm.")] = False,
    as_command: Annotated[
        bool, typer.Option("--print", help="Print the command that any other scheduler may run any number of times.")
    ] = False,
    tasks: Annotated[int, typer.Option(min=1, help="How many tasks work at once.")] = 1,
    duration: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long a task works before it makes room: 50m or 8h.")
    ] = "1h",
    options: Annotated[
        list[str] | None, typer.Option("--sbatch", metavar="KEY=VALUE", help="An option of sbatch; repeatable.")
    ] = None,
) -> None:
    """Let a cluster work on a plan, by as many tasks as you like; those of Slurm come back until nothing is left."""
    from builders import slurm as cluster

    if slurm == as_command:
        raise typer.BadParameter("expected one of --slurm and --print.")
    if as_command and (options or tasks != 1):
        raise typer.BadParameter("--tasks and --sbatch are for --slurm; leave them out.")
    seconds, (to, recipe) = parse_seconds(duration), choice.of(zoo)
    if as_command:
        argument, words = choice.words(zoo)
        print(cluster.command(argument, seconds, {**words, **settings.words()}))
        return
    sbatch = parse_pairs(options or [], "--sbatch")
    submitted = cluster.submit(to, recipe, tasks=tasks, seconds=seconds, sbatch=sbatch, **settings.options())
    line = f"{to}: job {submitted.job}, {counted(submitted.tasks, 'task')}; logs in {submitted.folder}."
    console_of().print(line, highlight=False, soft_wrap=True)


@expand_dataclasses
def merge(
    zoo: PlannedZoo,
    choice: PlanChoice,
    push_to: Annotated[
        str | None, typer.Option("--push", metavar="ORG/ZOO", help="Publish the zoo there, part by part.")
    ] = None,
) -> None:
    """Add the units of a plan that are finished to the zoo; the others stay for the next time."""
    from builders.shared import merge as add_units

    to, recipe = choice.of(zoo)
    with contextlib.ExitStack() as stack:
        if push_to is not None:
            from ckptzoo.hub.client.quiet import quietly

            stack.enter_context(quietly())
        done = add_units(to, recipe, push_to=push_to)
    parts = f"{counted(done.checkpoints, 'checkpoint')} of {counted(done.units, 'unit')} in {', '.join(done.parts)}"
    left = f"; {counted(done.left, 'unit')} not finished" if done.left else ""
    there = f"; published in {push_to}" if push_to else ""
    line = f"{to}: {parts if done.parts else 'nothing was added'}{left}{there}."
    console_of().print(line, highlight=False, soft_wrap=True)


def status(
    to: Annotated[Path, typer.Argument(metavar="ZOO", help="The zoo's folder.", show_default=False)],
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds, until all is done.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what of the plans in a zoo's folder is done, running, silent or set aside, and when it will end."""
    from builders.status import status as find
    from builders.status import watch as show

    if watch and not as_json:
        show(to, console_of())
        return
    plans = find(to)
    if not plans and not (to / layout.ZOO).exists():
        step = "Plan members first: python -m builders plan RECIPE --members N --to FOLDER."
        raise ZooError(Problem(str(to), "zoo", "one with plans", "a folder that is no zoo", step))
    if as_json:
        print(json.dumps([item.to_json() for item in plans], indent=2, allow_nan=False))
        return
    console = console_of()
    for item in plans:
        item.print(console)
    if not plans:
        console.print(f"{to}: nothing is planned; all that was is in the zoo.", highlight=False, soft_wrap=True)


@expand_dataclasses
def estimate(
    recipe: RecipeName,
    members: Annotated[int, typer.Option(min=1, max=10_000_000, help="How many members are to be trained.")],
    training: MemberTrainingOptions,
    predictions: Predictions = False,
    devices: Annotated[int, typer.Option(min=1, help="How many devices such as this one work side by side.")] = 1,
    price: Annotated[
        float | None, typer.Option(metavar="NUMBER", min=0, help="The price of an hour of a device, in any currency.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how long a build would take and how large the zoo would be, from a few seconds of its first steps.

    Writes nothing.
    """
    from builders import predicting
    from builders.estimate import estimate as compute

    wanted = training.of(recipe)
    sets = predicting.input_sets(wanted, training.data) if predictions else ()
    examples = sum(len(item.inputs) for item in sets)
    counts: dict[str, Any] = {"members": members, "examples": examples, "devices": devices, "price": price}
    print_report(compute(wanted, **counts, **training.options()), as_json)


def cost(
    zoo: Annotated[str, typer.Argument(metavar="ZOO", help="A folder, or an address.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Say what a zoo cost: device-hours, members a device-hour and energy, for each recipe, device and engine.

    Training alone; measuring the checkpoints is not counted.
    """
    import ckptzoo
    from builders.cost import cost as compute

    print_report(compute(ckptzoo.open(zoo)), as_json)


def _work_on(on: str | None) -> "Callable[..., Worked]":
    """Return the function that does the work of ``work``, on the requested cluster or here."""
    if on is None:
        from builders.shared import work

        return work
    scheme, separator, address = on.partition("://")
    if scheme != "ray" or bool(separator) != bool(address):
        raise typer.BadParameter(f"{on!r}: expected ray or ray://HOST:PORT.", param_hint="--on")
    from builders.ray_work import work as work_on_ray

    return partial(work_on_ray, address=address or None)


def _train(
    train: "Callable[..., Built]",
    report: "Callable[[Built, Console], None]",
    training: MemberTrainingOptions,
    recipe: str,
    to: Path,
    *,
    predictions: bool,
    **options: Any,
) -> None:
    """Train members, report what was added and its cost, and add the predictions that are requested."""
    from builders import predicting

    console, wanted = console_of(), training.of(recipe)
    sets = predicting.input_sets(wanted, training.data) if predictions else ()
    built = train(wanted, to, console=console, **training.options(), **options)
    report(built, console)
    for item in built.cost:
        console.print(f"{to}: {item.line()}.", highlight=False, soft_wrap=True)
    predicting.predict(to, sets, console)
