"""The commands on recipes and their data, and on zoos of their networks."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from builders.cli.options import (
    ArchitectureName,
    AsJson,
    DataFolder,
    Device,
    Epochs,
    Precision,
    RecipeName,
    Threads,
    console_of,
    print_report,
)


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
    predicting.predict(zoo, sets, console_of())


def round_weights(
    zoo: Annotated[str, typer.Argument(metavar="ZOO", help="A folder, or an address.", show_default=False)],
    recipe: RecipeName,
    to: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="The copy; made where there is none.")],
    dtype: Annotated[str, typer.Option(metavar="NAME", help="float16 or bfloat16.")] = "float16",
    where: Annotated[str | None, typer.Option(metavar="CONDITION", help="Only these, such as 'step == 2346'.")] = None,
    data: DataFolder = None,
    epochs: Epochs = None,
    precision: Precision = None,
    architecture: ArchitectureName = None,
    device: Device = "cpu",
) -> None:
    """Copy a zoo with weights of half the size, rounded to nearest, and measure the rounded weights.

    Stopped or killed at any moment, the same command carries on; what the copy holds stays.
    """
    from builders.recipe import Recipe
    from builders.rounding import round_weights as run

    wanted = Recipe.of(recipe, epochs, precision, architecture)
    rounded = run(zoo, wanted, to, dtype=dtype, where=where, folder=data, device=device)
    console_of().print(rounded.line(), highlight=False, soft_wrap=True)


def search(
    recipe: RecipeName,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder of the search; made where there is none.")],
    trials: Annotated[int, typer.Option(min=1, help="How many trials the folder is to have.")] = 100,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of a trial.")] = 8,
    members: Annotated[int, typer.Option(min=1, help="Members trained in a trial, whose accuracy is their mean.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choices; the same for all processes of a search.")] = 0,
    max_parameters: Annotated[
        int,
        typer.Option(min=1, help="The largest number of parameters of the network whose recipe is written."),
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

    networks = run(
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
        console=console_of(stderr=as_json),
    )
    print_report(networks, as_json)


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
    console_of().print(table)


def inputs(
    recipe: RecipeName,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The .npy file to write.")],
    data: DataFolder = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="How many images, the first of the set; by default all.")
    ] = None,
) -> None:
    """Write test inputs as the network sees them, float32: images (N, 1, 28, 28), rows (N, D); for certificates."""
    import io

    import numpy as np

    from builders import sources
    from builders.recipe import Recipe
    from ckptzoo.format.durable import write_file

    if output.suffix != ".npy":
        raise typer.BadParameter(f"expected a name that ends in .npy, got {output.name!r}.", param_hint="--output")
    wanted = Recipe.load(recipe)
    arrays = sources.test_inputs(wanted, sources.load(wanted, data), limit)
    # np.save would write into the file itself; write_file replaces it whole
    buffer = io.BytesIO()
    np.save(buffer, arrays, allow_pickle=False)
    write_file(output, buffer.getvalue())
    console_of().print(f"{output}: {len(arrays):,} test inputs of {wanted.dataset}, {arrays.dtype} {arrays.shape}.")


def quickstart(
    members: Annotated[int, typer.Option(max=1_000_000, help="How many networks to train, 4 or more.")] = 128,
    to: Annotated[Path, typer.Option(metavar="ZOO", help="The zoo's folder.")] = Path("zoos/digits-optunet"),
) -> None:
    """Build a zoo of OptuNets on the digits, derive, verify, stream and draw it."""
    from builders import quickstart as tour

    tour.run(members=members, to=to)


def report(
    zoos: Annotated[
        list[Path] | None,
        typer.Option(
            "--zoos",
            metavar="FOLDER",
            help="A folder of zoos; repeatable, the first that has a zoo counts.  [default: cards, and zoos]",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", exists=True, help="Where data sets are; by default $CKPTZOO_DATA."),
    ] = None,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="For the page, and for what is kept.")] = Path("report"),
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Only this: figure-4, table-1, 2310.10171; repeatable."),
    ] = None,
) -> None:
    """Make one HTML page of what is reproduced of the three papers: their tables and figures beside ours.

    Stopped or killed at any moment, the same command carries on; what was made of the same zoos and images is kept.
    What cannot be made, because a zoo or a data set is missing, stands there with the reason.
    """
    from builders.report.making import report as make

    folders = zoos or [folder for folder in (Path("cards"), Path("zoos")) if folder.is_dir()]
    print(make(folders, to, data=data, only=only or (), console=console_of()))
