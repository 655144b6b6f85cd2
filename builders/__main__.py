"""``python -m builders``: train zoos from recipes."""

import contextlib
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from rich.console import Console
from rich.table import Table

from ckptzoo.cli.exits import INTERRUPTED, PROBLEMS, USAGE, code_of
from ckptzoo.cli.options import Settings
from ckptzoo.cli.ray_shares import On, work_on_ray
from ckptzoo.errors import MissingExtraError
from ckptzoo.text import counted

if TYPE_CHECKING:
    from builders.shared import Worked

app = typer.Typer(
    name="builders",
    help="Train zoos of checkpoints from recipes.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
_UsageError = typer.BadParameter.__mro__[1]
"""The class of everything that is wrong with a command line; Typer exports only this child of it."""

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="The name of a recipe, or the path of a .toml file.", show_default=False)
]
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="Where the data set is; by default $CKPTZOO_DATA, else fetched."),
]
Epochs = Annotated[
    int | None, typer.Option(min=1, help="Other epochs than the recipe's; a recipe of its own, with its own digest.")
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="tf32, bfloat16, float64 or float32; a recipe of its own where it is not the recipe's."
    ),
]


@app.callback()
def _options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    if isinstance(context.obj, Settings):
        context.obj.debug = debug


Members = Annotated[int, typer.Option(min=1, help="How many members of this recipe the zoo is to hold.")]
KeepSteps = Annotated[str, typer.Option(metavar="STEPS", help="Optimiser steps to keep besides the last: 0,100,938.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
UnitSize = Annotated[
    int | None,
    typer.Option(
        min=1, help="Members trained together: for 28x28 images 64, on a GPU 1024; ResNets of about 5 minutes."
    ),
]
Engine = Annotated[
    str | None,
    typer.Option("--engine", metavar="NAME", help="How steps are taken; by default the fastest for the recipe."),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Threads on a CPU, by default one a core; on a GPU streams of members side by side, 1."),
]
SaveEvery = Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How much work is lost at most when killed.")]
Predictions = Annotated[
    bool, typer.Option("--predictions", help="Store outputs on the test set too, and on the recipe's ood set.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def build(
    recipe: RecipeName,
    members: Members,
    to: Annotated[Path, typer.Option(metavar="ZOO", help="The zoo's folder; made where there is none.")],
    data: DataFolder = None,
    keep_steps: KeepSteps = "",
    epochs: Epochs = None,
    precision: Precision = None,
    first_seed: Annotated[int, typer.Option(min=0, help="The smallest seed to allot.")] = 0,
    device: Device = "cpu",
    engine: Engine = None,
    threads: Threads = None,
    unit_size: UnitSize = None,
    save_every: SaveEvery = 20,
    predictions: Predictions = False,
) -> None:
    """Train members of a recipe together and add them to a zoo.

    Stopped or killed at any moment, the same command carries on; when the zoo holds them all, it adds nothing.
    """
    from builders import predicting
    from builders.build import build as run
    from builders.recipe import Recipe

    console, wanted = _console(), Recipe.of(recipe, epochs, precision)
    sets = predicting.input_sets(wanted, data) if predictions else ()
    built = run(
        wanted,
        to,
        members=members,
        folder=data,
        keep_steps=_numbers(keep_steps),
        first_seed=first_seed,
        device=device,
        unit_size=unit_size,
        engine=engine,
        threads=threads,
        save_seconds=save_every,
        console=console,
    )
    if built.part is None:
        console.print(f"{to}: holds {counted(built.held, 'member')} of {recipe} already; nothing was added.")
    else:
        console.print(f"{to}: {built.checkpoints:,} checkpoints of {built.members:,} members in part {built.part}.")
    for item in built.cost:
        console.print(f"{to}: {item.line()}.", highlight=False, soft_wrap=True)
    predicting.predict(to, sets, console)


@app.command()
def plan(
    recipe: RecipeName,
    members: Members,
    to: Annotated[Path, typer.Option(metavar="ZOO", help="The zoo's folder; made where there is none.")],
    data: DataFolder = None,
    keep_steps: KeepSteps = "",
    epochs: Epochs = None,
    precision: Precision = None,
    first_seed: Annotated[int, typer.Option(min=0, help="The smallest seed to allot.")] = 0,
    device: Device = "cpu",
    engine: Engine = None,
    threads: Threads = None,
    unit_size: UnitSize = None,
) -> None:
    """Settle what is to be trained, in units, for any number of work processes; nothing is trained.

    With the same arguments as build, which is plan, work and merge in one process.
    """
    from builders.recipe import Recipe
    from builders.shared import plan as settle

    planned = settle(
        Recipe.of(recipe, epochs, precision),
        to,
        members=members,
        folder=data,
        keep_steps=_numbers(keep_steps),
        first_seed=first_seed,
        device=device,
        engine=engine,
        threads=threads,
        unit_size=unit_size,
    )
    units = f"{counted(planned.units, 'unit')} of {counted(planned.unit_size, 'member')}"
    what = f"{counted(planned.members, 'member')} to train, in {units}" if planned.units else "nothing is left to train"
    _console().print(f"{to}: {planned.prefix}: {what}.", highlight=False, soft_wrap=True)


@app.command()
def work(
    recipe: RecipeName,
    to: Annotated[Path, typer.Option(metavar="ZOO", help="The zoo's folder, shared by all.")],
    unit: Annotated[str | None, typer.Option(metavar="NAME", help="Only this unit; status lists them.")] = None,
    share: Annotated[str, typer.Option(metavar="I/N", help="Only every N-th unit, from the I-th, from 0.")] = "",
    duration: Annotated[
        str, typer.Option("--for", metavar="TIME", help="Stop after 90s, 50m or 8h, when all is saved.")
    ] = "",
    data: DataFolder = None,
    epochs: Epochs = None,
    precision: Precision = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="By default that of the plan.")] = None,
    threads: Threads = None,
    save_every: SaveEvery = 20,
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
    from builders.recipe import Recipe
    from ckptzoo.text import parse_share

    console, run_units = _console(), _work_on(on)
    done = run_units(
        Recipe.of(recipe, epochs, precision),
        to,
        unit=unit,
        share=parse_share(share) if share else None,
        seconds=_seconds(duration) if duration else None,
        folder=data,
        device=device,
        threads=threads,
        save_seconds=save_every,
        console=console,
    )
    line = f"{to}: {counted(done.units, 'unit')} done ({counted(done.members, 'member')}), {done.left:,} left."
    console.print(line, highlight=False, soft_wrap=True)
    for name, error in done.failed:
        console.print(f"{name}: failed: {error}", highlight=False, markup=False, soft_wrap=True)
    if done.failed:
        raise typer.Exit(PROBLEMS)


@app.command()
def submit(
    recipe: RecipeName,
    to: Annotated[Path, typer.Option(metavar="ZOO", help="The zoo's folder, shared by all.")],
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
    data: DataFolder = None,
    epochs: Epochs = None,
    precision: Precision = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="By default that of the plan.")] = None,
    threads: Threads = None,
    save_every: SaveEvery = 20,
) -> None:
    """Let a cluster work on a plan, by as many tasks as you like; those of Slurm come back until nothing is left."""
    from builders import slurm as cluster
    from builders.recipe import Recipe

    if slurm == as_command:
        raise typer.BadParameter("expected one of --slurm and --print.")
    seconds, folder = _seconds(duration), None if data is None else data.absolute()
    if as_command:
        name = str(Path(recipe).absolute()) if Path(recipe).is_file() else recipe
        arguments = {"data": None if folder is None else str(folder), "epochs": epochs, "precision": precision}
        arguments |= {"device": device, "threads": threads, "save-every": f"{save_every:g}"}
        print(cluster.command(name, to, seconds, arguments))
        return
    submitted = cluster.submit(
        Recipe.of(recipe, epochs, precision),
        to,
        tasks=tasks,
        seconds=seconds,
        sbatch=_pairs(options or [], "--sbatch"),
        folder=folder,
        device=device,
        threads=threads,
        save_seconds=save_every,
    )
    line = f"{to}: job {submitted.job}, {counted(submitted.tasks, 'task')}; logs in {submitted.folder}."
    _console().print(line, highlight=False, soft_wrap=True)


@app.command()
def merge(
    recipe: RecipeName,
    to: Annotated[Path, typer.Option(metavar="ZOO", help="The zoo's folder.")],
    push_to: Annotated[
        str | None, typer.Option("--push", metavar="ORG/ZOO", help="Publish the zoo there, part by part.")
    ] = None,
    epochs: Epochs = None,
    precision: Precision = None,
) -> None:
    """Add the units of a plan that are finished to the zoo; the others stay for the next time."""
    from builders.recipe import Recipe
    from builders.shared import merge as add_units

    with contextlib.ExitStack() as stack:
        if push_to is not None:
            from ckptzoo.hub.client.quiet import quietly

            stack.enter_context(quietly())
        done = add_units(Recipe.of(recipe, epochs, precision), to, push_to=push_to)
    parts = f"{counted(done.checkpoints, 'checkpoint')} of {counted(done.units, 'unit')} in {', '.join(done.parts)}"
    left = f"; {counted(done.left, 'unit')} are not finished" if done.left else ""
    there = f"; published in {push_to}" if push_to else ""
    line = f"{to}: {parts if done.parts else 'nothing was added'}{left}{there}."
    _console().print(line, highlight=False, soft_wrap=True)


@app.command()
def status(
    to: Annotated[Path, typer.Argument(metavar="ZOO", help="The zoo's folder.", show_default=False)],
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew every two seconds, until all is done.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what of the plans in a zoo's folder is done, running, silent or set aside, and when it will end."""
    from builders.status import status as find
    from builders.status import watch as show

    if watch and not as_json:
        show(to, _console())
        return
    found = find(to)
    if as_json:
        print(json.dumps([item.to_json() for item in found], indent=2, allow_nan=False))
        return
    console = _console()
    for item in found:
        item.print(console)
    if not found:
        console.print(f"{to}: nothing is planned; all that was is in the zoo.", highlight=False, soft_wrap=True)


@app.command()
def posterior(
    context: typer.Context,
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help="dropout, bnn, sghmc, csghmc, swag or laplace.", show_default=False)
    ],
    recipe: RecipeName,
    modes: Annotated[int, typer.Option(min=1, help="How many modes: chains, or members of the zoo named by --from.")],
    draws: Annotated[int, typer.Option(min=1, help="How many draws of each mode the zoo is to hold.")],
    to: Annotated[Path, typer.Option(metavar="ZOO", help="The zoo's folder; made where there is none.")],
    start: Annotated[
        str | None, typer.Option("--from", metavar="ZOO", help="The zoo whose members are the modes: swag, laplace.")
    ] = None,
    data: DataFolder = None,
    epochs: Epochs = None,
    precision: Precision = None,
    settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The method's settings; by default those of the paper.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another value of a setting; repeatable.")
    ] = None,
    device: Device = "cpu",
    engine: Engine = None,
    unit_size: UnitSize = None,
    share: Annotated[
        str, typer.Option(metavar="I/N", help="Only every N-th unit, from the I-th, from 0; others take the rest.")
    ] = "",
    on: On = None,
    save_every: SaveEvery = 20,
    predictions: Predictions = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Only say how long it would take, from a few seconds; writes nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make draws of an approximate posterior and add them to a zoo, each a checkpoint of its own.

    Stopped or killed at any moment, the same command carries on; draws that the zoo holds are not taken again.
    """
    from builders import predicting
    from builders.posterior import build as posterior_build
    from builders.recipe import Recipe
    from ckptzoo.text import parse_share

    if on is not None and share:
        raise typer.BadParameter("expected one of --share and --on.")
    console, wanted = _console(), Recipe.of(recipe, epochs, precision)
    shared: dict[str, Any] = {"modes": modes, "draws": draws, "start": start, "folder": data, "settings": settings}
    shared |= {"changes": _settings(changes or []), "device": device, "unit_size": unit_size, "engine": engine}
    if estimate:
        _print_report(posterior_build.estimate(method, wanted, **shared), as_json)
        return
    sets = predicting.input_sets(wanted, data) if predictions else ()
    if on is not None:
        work_on_ray(context, on, device)
    if share:
        shared["share"] = parse_share(share)
    built = posterior_build.build(method, wanted, to, **shared, save_seconds=save_every, console=console)
    console.print(built.line(), highlight=False, soft_wrap=True)
    if not share:
        predicting.predict(to, sets, console)


@app.command()
def posteriors(
    recipe: RecipeName,
    members: Annotated[Path, typer.Option("--members", metavar="ZOO", help="A zoo of the recipe's members.")],
    to: Annotated[Path, typer.Option(metavar="ZOO", help="The zoo of draws; made where there is none.")],
    methods: Annotated[
        list[str] | None, typer.Option("--method", metavar="NAME", help="Only this; repeatable.  [default: all]")
    ] = None,
    modes: Annotated[int, typer.Option(min=2, help="How many modes stand for several.")] = 10,
    draws: Annotated[int, typer.Option(min=1, help="Draws of each of several modes.")] = 10,
    one_mode_draws: Annotated[int, typer.Option(min=2, help="Draws of one mode.")] = 100,
    replicates: Annotated[int, typer.Option(min=1, help="How often all of it is done, with other modes.")] = 3,
    ensemble: Annotated[int, typer.Option(min=2, help="Members of an ensemble.")] = 100,
    data: DataFolder = None,
    device: Device = "cpu",
) -> None:
    """Make draws of every method, compare them with independent members, and print tables beside the paper's.

    Pictures and tables go to ZOO-pictures. Stopped or killed at any moment, the same command carries on.
    """
    from builders.posterior.comparison import compare

    compare(
        recipe,
        members,
        to,
        methods=methods,
        modes=modes,
        draws=draws,
        one_mode_draws=one_mode_draws,
        replicates=replicates,
        ensemble=ensemble,
        folder=data,
        device=device,
        console=_console(),
    )


@app.command()
def estimate(
    recipe: RecipeName,
    members: Annotated[int, typer.Option(min=1, help="How many members are to be trained.")],
    data: DataFolder = None,
    keep_steps: KeepSteps = "",
    epochs: Epochs = None,
    precision: Precision = None,
    device: Device = "cpu",
    engine: Engine = None,
    threads: Threads = None,
    unit_size: UnitSize = None,
    predictions: Predictions = False,
    devices: Annotated[int, typer.Option(min=1, help="How many devices such as this one work side by side.")] = 1,
    price: Annotated[
        float | None, typer.Option(metavar="NUMBER", min=0, help="Of an hour of a device, in any currency.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how long a build would take and how large the zoo would be, from a few seconds of its first steps.

    Writes nothing.
    """
    from builders import predicting
    from builders.estimate import estimate as compute
    from builders.recipe import Recipe

    wanted = Recipe.of(recipe, epochs, precision)
    sets = predicting.input_sets(wanted, data) if predictions else ()
    result = compute(
        wanted,
        members=members,
        folder=data,
        keep_steps=_numbers(keep_steps),
        device=device,
        unit_size=unit_size,
        engine=engine,
        threads=threads,
        examples=sum(len(item.inputs) for item in sets),
        devices=devices,
        price=price,
    )
    _print_report(result, as_json)


@app.command()
def cost(
    zoo: Annotated[str, typer.Argument(metavar="ZOO", help="A folder, or an address.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Say what a zoo cost: device-hours, members a device-hour and energy, for each recipe, device and engine.

    Training alone; measuring the checkpoints is not counted.
    """
    import ckptzoo
    from builders.cost import cost as compute

    _print_report(compute(ckptzoo.open(zoo)), as_json)


@app.command()
def predict(
    zoo: Annotated[Path, typer.Argument(metavar="ZOO", help="The zoo's folder.", show_default=False)],
    recipe: RecipeName,
    data: DataFolder = None,
    all_normalisations: Annotated[
        bool, typer.Option("--all-normalisations", help="The recipe's ood set in other normalisations, too.")
    ] = False,
) -> None:
    """Store the outputs of a zoo's checkpoints on the recipe's test set and on its ood set; what is there stays.

    As build and posterior do with --predictions.
    """
    from builders import predicting
    from builders.recipe import Recipe

    normalisations = predicting.NORMALISATIONS if all_normalisations else ()
    sets = predicting.input_sets(Recipe.load(recipe), data, normalisations=normalisations)
    predicting.predict(zoo, sets, _console())


@app.command("round")
def round_weights(
    zoo: Annotated[str, typer.Argument(metavar="ZOO", help="A folder, or an address.", show_default=False)],
    recipe: RecipeName,
    to: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="The copy; made where there is none.")],
    dtype: Annotated[str, typer.Option(metavar="NAME", help="float16 or bfloat16.")] = "float16",
    where: Annotated[str | None, typer.Option(metavar="CONDITION", help="Only these, such as 'step == 2346'.")] = None,
    data: DataFolder = None,
    epochs: Epochs = None,
    precision: Precision = None,
    device: Device = "cpu",
) -> None:
    """Copy a zoo with weights of half the size, rounded to nearest, and measure the rounded weights.

    Stopped or killed at any moment, the same command carries on; what the copy holds stays.
    """
    from builders.recipe import Recipe
    from builders.rounding import round_weights as run

    wanted = Recipe.of(recipe, epochs, precision)
    rounded = run(zoo, wanted, to, dtype=dtype, where=where, folder=data, device=device)
    _console().print(rounded.line(), highlight=False, soft_wrap=True)


@app.command()
def search(
    recipe: RecipeName,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Of the search; made where there is none.")],
    trials: Annotated[int, typer.Option(min=1, help="How many trials the folder is to have.")] = 100,
    epochs: Annotated[int, typer.Option(min=1, help="Of a trial.")] = 8,
    members: Annotated[int, typer.Option(min=1, help="Of a trial: its accuracy is their mean.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Of the choices; the same for all processes of a search.")] = 0,
    max_parameters: Annotated[
        int, typer.Option(min=1, help="The recipe written is of the most accurate network with at most these.")
    ] = 392,
    data: DataFolder = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Search OptuNet's family for networks with few parameters and a high accuracy, by Optuna's TPE.

    Prints the Pareto front and writes its picture and the recipe of the best. Stopped or killed at any moment, the same
    command carries on; any number of processes may search in one folder at once.
    """
    from builders.search import search as run

    found = run(
        recipe,
        to,
        trials=trials,
        epochs=epochs,
        seed=seed,
        members=members,
        max_parameters=max_parameters,
        folder=data,
        device=device,
        threads=threads,
        console=_console(stderr=as_json),
    )
    _print_report(found, as_json)


@app.command()
def recipes() -> None:
    """List the recipes."""
    from builders.recipe import Recipe, names

    table = Table(box=None, pad_edge=False)
    for column in ("recipe", "architecture", "data set", "epochs", "steps", "summary"):
        table.add_column(column, justify="right" if column in ("epochs", "steps") else "left")
    for name in names():
        recipe = Recipe.load(name)
        numbers = (f"{recipe.epochs:,}", f"{recipe.steps:,}")
        table.add_row(recipe.name, recipe.architecture, recipe.dataset, *numbers, recipe.summary)
    _console().print(table)


@app.command()
def inputs(
    recipe: RecipeName,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The .npy file to write.")],
    data: DataFolder = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only this many, the first.")] = None,
) -> None:
    """Write test inputs as the network sees them, float32: images (N, 1, 28, 28), rows (N, D); for certificates."""
    import io

    import numpy as np

    from builders import sources
    from builders.recipe import Recipe
    from ckptzoo.format.durable import write_file

    wanted = Recipe.load(recipe)
    arrays = sources.test_inputs(wanted, sources.load(wanted, data), limit)
    buffer = io.BytesIO()
    np.save(buffer, arrays, allow_pickle=False)
    write_file(output, buffer.getvalue())
    _console().print(f"{output}: {len(arrays):,} test inputs of {wanted.dataset}, {arrays.dtype} {arrays.shape}.")


@app.command()
def quickstart(
    members: Annotated[int, typer.Option(help="How many networks to train, 4 or more.")] = 128,
    to: Annotated[Path, typer.Option(metavar="ZOO", help="The zoo's folder.")] = Path("zoos/digits-optunet"),
) -> None:
    """Build a zoo of OptuNets on the digits, derive, verify, stream and draw it."""
    from builders import quickstart as tour

    tour.run(members=members, to=to)


class _Report(Protocol):
    """A result that people and programs can read."""

    def print(self, console: Console | None = None) -> None:
        """For people."""
        ...

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        ...


def _print_report(report: _Report, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.to_json(), indent=2, allow_nan=False))
    else:
        report.print(_console())


def _console(*, stderr: bool = False) -> Console:
    console = Console(stderr=stderr)
    # rich would wrap what is no terminal at 80 columns
    return console if console.is_terminal else Console(stderr=stderr, width=100_000, color_system=None)


def _work_on(on: str | None) -> "Callable[..., Worked]":
    """The function that does what ``work`` is asked to, where it is asked to."""
    if on is None:
        from builders.shared import work

        return work
    scheme, separator, address = on.partition("://")
    if scheme != "ray" or bool(separator) != bool(address):
        raise typer.BadParameter(f"{on!r}: expected ray or ray://HOST:PORT.", param_hint="--on")
    from builders.ray_work import work as work_on_ray

    return partial(work_on_ray, address=address or None)


def _numbers(text: str) -> list[int]:
    try:
        return [int(item) for item in text.split(",") if item.strip()]
    except ValueError:
        raise typer.BadParameter(f"{text!r}: expected steps such as 0,100,938.", param_hint="--keep-steps") from None


def _seconds(text: str) -> float:
    """Seconds of ``90s``, ``50m`` or ``8h``."""
    units = {"s": 1, "m": 60, "h": 3600}
    try:
        return float(text[:-1]) * units[text[-1]]
    except (KeyError, ValueError):
        raise typer.BadParameter(f"{text!r}: expected a time such as 90s, 50m or 8h.", param_hint="--for") from None


def _pairs(items: list[str], option: str) -> dict[str, str]:
    """Texts from ``key=value``."""
    pairs = [item.partition("=") for item in items]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise typer.BadParameter("expected KEY=VALUE, such as partition=gpu.", param_hint=option)
    return {name: value for name, _, value in pairs}


def _settings(items: list[str]) -> dict[str, Any]:
    """Settings from ``key=value``, values as TOML has them."""
    import tomllib

    try:
        return {key: value for item in items for key, value in tomllib.loads(item).items()}
    except tomllib.TOMLDecodeError as error:
        raise typer.BadParameter(f"{error}: expected a setting such as scale=0.5.", param_hint="--set") from None


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; those of ``ckptzoo --help``."""
    settings = Settings(arguments, run)
    try:
        # not standalone: Typer then returns the code of an Exit, and raises errors instead of ending the process
        code = app(list(arguments) or ["--help"], prog_name="python -m builders", standalone_mode=False, obj=settings)
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", "what was saved is kept. Run the same command to carry on.", INTERRUPTED)
    except Exception as error:  # every error ends as one line and an exit code; --debug has the traceback
        if settings.debug:
            traceback.print_exception(error, file=sys.stderr)
        return _failed(error)


def _failed(error: Exception) -> int:
    from builders.checkpointing import Interrupted

    if isinstance(error, Interrupted):
        return _complain("interrupted", str(error), INTERRUPTED)
    if isinstance(error, _UsageError):
        shown: Any = error
        path = shown.ctx.command_path if shown.ctx is not None else "python -m builders"
        return _complain("error", f"{shown.format_message()} See {path} --help.", USAGE)
    # such as torch or numba, which only the extras of builders bring
    if isinstance(error, ModuleNotFoundError) and not isinstance(error, MissingExtraError):
        error = MissingExtraError(str(error.name), "build")
    problems = getattr(error, "problems", ())
    code = code_of(error)
    text = " ".join(map(str, problems)) if problems else str(error) or type(error).__name__
    if code == code_of(Exception()):
        text = f"{type(error).__name__}: {text} (a mistake in the builders; --debug shows where.)"
    return _complain("error", text, code)


def _complain(kind: str, text: str, code: int) -> int:
    print(f"builders: {kind}: {' '.join(text.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    from builders.__main__ import run as importable  # by a name that tasks of Ray can import

    sys.exit(importable(sys.argv[1:]))
