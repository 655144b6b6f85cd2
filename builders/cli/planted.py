"""The command that trains planted pairs."""

from pathlib import Path
from typing import Annotated

import typer

from builders.cli.options import (
    ArchitectureName,
    DataFolder,
    Device,
    Engine,
    Epochs,
    KeepSteps,
    Precision,
    Predictions,
    RecipeName,
    SaveEvery,
    Threads,
    UnitSize,
    console_of,
    parse_numbers,
)
from ckptzoo.text import counted


def planted(
    recipe: RecipeName,
    transpositions: Annotated[
        str, typer.Option(metavar="NUMBERS", help="Members of each run by the transpositions of their start: 0,1,2,4.")
    ],
    runs: Annotated[int, typer.Option(min=1, help="How many initial networks, each with its reference and members.")],
    to: Annotated[Path, typer.Option(metavar="ZOO", help="The zoo's folder; made where there is none.")],
    data: DataFolder = None,
    keep_steps: KeepSteps = "",
    epochs: Epochs = None,
    precision: Precision = None,
    architecture: ArchitectureName = None,
    device: Device = "cpu",
    engine: Engine = None,
    threads: Threads = None,
    unit_size: UnitSize = None,
    save_every: SaveEvery = 20,
    predictions: Predictions = False,
) -> None:
    """Train networks from the same start with some hidden neurons exchanged, in other orders, and add them to a zoo.

    Each run has a reference, trained from random weights, and for every number of transpositions a member that starts
    at these weights with the hidden neurons permuted by as many (arXiv 2401.00611). Stopped or killed at any moment,
    the same command carries on.
    """
    from builders import predicting
    from builders.planted import build
    from builders.recipe import Recipe

    console, wanted = console_of(), Recipe.of(recipe, epochs, precision, architecture)
    sets = predicting.input_sets(wanted, data) if predictions else ()
    built = build(
        wanted,
        to,
        runs=runs,
        transpositions=parse_numbers(transpositions, "--transpositions"),
        folder=data,
        keep_steps=parse_numbers(keep_steps),
        device=device,
        unit_size=unit_size,
        engine=engine,
        threads=threads,
        save_seconds=save_every,
        console=console,
    )
    if built.part is None:
        console.print(f"{to}: holds these members already; nothing was added.", highlight=False, soft_wrap=True)
    else:
        added = f"{counted(built.checkpoints, 'checkpoint')} of {counted(built.members, 'member')}"
        console.print(f"{to}: {added} in part {built.part}.", highlight=False, soft_wrap=True)
    for item in built.cost:
        console.print(f"{to}: {item.line()}.", highlight=False, soft_wrap=True)
    predicting.predict(to, sets, console)
