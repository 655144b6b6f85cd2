"""Shared parts of the commands: options, how their texts are read, and how results are printed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ckptzoo.cli.options import Result

if TYPE_CHECKING:
    from builders.recipe import Recipe

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="The name of a recipe, or the path of a .toml file.", show_default=False)
]
NewZoo = Annotated[Path, typer.Option(metavar="ZOO", help="The zoo's folder; made where there is none.")]
PlannedZoo = Annotated[
    str, typer.Argument(metavar="ZOO", help="The zoo's folder, with the plan; all share it.", show_default=False)
]
DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="FOLDER", exists=True, help="Where the data set is; by default $CKPTZOO_DATA, else fetched."
    ),
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
ArchitectureName = Annotated[
    str | None,
    typer.Option(
        "--architecture", metavar="NAME", help="Another network for the same data; a recipe of its own: mlp-784-256-10."
    ),
]
Members = Annotated[
    int, typer.Option(min=1, max=10_000_000, help="How many members of this recipe the zoo is to hold.")
]
FirstSeed = Annotated[int, typer.Option(min=0, help="The smallest seed to allot.")]
KeepSteps = Annotated[str, typer.Option(metavar="STEPS", help="Optimiser steps to keep besides the last: 0,100,938.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
PlannedDevice = Annotated[str | None, typer.Option(metavar="NAME", help="By default that of the plan.")]
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


@dataclass(frozen=True)
class RecipeChanges:
    """Changes of a recipe, which make another recipe of it."""

    epochs: Epochs = None
    precision: Precision = None
    architecture: ArchitectureName = None

    def of(self, recipe: str) -> "Recipe":
        """Return the changed recipe of a name or file."""
        from builders.recipe import Recipe

        return Recipe.of(recipe, self.epochs, self.precision, self.architecture)


@dataclass(frozen=True)
class Training(RecipeChanges):
    """The options of training members."""

    data: DataFolder = None
    device: Device = "cpu"
    engine: Engine = None
    unit_size: UnitSize = None

    def options(self) -> dict[str, Any]:
        """Return keyword arguments of ``build`` and similar functions, without those of the recipe."""
        return {"folder": self.data, "device": self.device, "engine": self.engine, "unit_size": self.unit_size}


@dataclass(frozen=True)
class MemberTrainingOptions(Training):
    """The options of plain training of members."""

    keep_steps: KeepSteps = ""
    threads: Threads = None

    def options(self) -> dict[str, Any]:
        return {**super().options(), "keep_steps": parse_numbers(self.keep_steps), "threads": self.threads}


@dataclass(frozen=True)
class PlanChoice:
    """The choice of one of a folder's plans, spelled as in ``work RECIPE --to ZOO --epochs 2``."""

    to: Annotated[
        Path | None,
        typer.Option(
            metavar="ZOO", help="The zoo's folder, with a recipe as the argument: chooses one of several plans."
        ),
    ] = None
    # hidden: a folder with one plan, the usual case, needs none of them
    epochs: Annotated[int | None, typer.Option(min=1, hidden=True)] = None
    precision: Annotated[str | None, typer.Option(hidden=True)] = None
    architecture: Annotated[str | None, typer.Option(hidden=True)] = None

    def of(self, zoo: str) -> "tuple[Path, Recipe | None]":
        """Return the folder, and the recipe where one was named."""
        changes = RecipeChanges(self.epochs, self.precision, self.architecture)
        if self.to is not None:
            return self.to, changes.of(zoo)
        if changes != RecipeChanges():
            text = "--epochs, --precision and --architecture choose a plan by its recipe: RECIPE --to ZOO --epochs N."
            raise typer.BadParameter(text)
        return Path(zoo), None

    def words(self, zoo: str) -> tuple[str, dict[str, Any]]:
        """Return the argument and the options that choose the same plan from any folder."""
        if self.to is None:
            return str(Path(zoo).absolute()), {}
        recipe = str(Path(zoo).absolute()) if Path(zoo).is_file() else zoo
        changes = {"epochs": self.epochs, "precision": self.precision, "architecture": self.architecture}
        return recipe, {"to": self.to.absolute(), **changes}


@dataclass(frozen=True)
class Work:
    """The options of training units of a plan here."""

    data: DataFolder = None
    device: PlannedDevice = None
    threads: Threads = None
    save_every: SaveEvery = 20

    def options(self) -> dict[str, Any]:
        """Return keyword arguments of ``builders.shared.work``."""
        # a task of a cluster starts in another folder
        folder = None if self.data is None else self.data.absolute()
        return {"folder": folder, "device": self.device, "threads": self.threads, "save_seconds": self.save_every}

    def words(self) -> dict[str, Any]:
        """Return the same as options of a command, by name."""
        options = self.options()
        save_every = f"{options.pop('save_seconds'):g}"
        return {"data": options.pop("folder"), **options, "save-every": save_every}


def print_report(report: Result, as_json: bool) -> None:
    """Print a result for people, or as JSON."""
    if as_json:
        print(json.dumps(report.to_json(), indent=2, allow_nan=False))
    else:
        report.print(console_of())


def console_of(*, stderr: bool = False) -> Console:
    """Return the console of the standard output or error, which wraps nothing where that is no terminal."""
    console = Console(stderr=stderr)
    # rich would wrap at 80 columns
    return console if console.is_terminal else Console(stderr=stderr, width=100_000, color_system=None)


_CENTURY = 100 * 365.25 * 86_400
"""Seconds of a century; longer times and NaN are refused."""


def parse_numbers(text: str, option: str = "--keep-steps") -> list[int]:
    """Parse the numbers of ``0,100,938``, the text of an option."""
    try:
        numbers = [int(item) for item in text.split(",") if item.strip()]
    except ValueError:
        numbers = []
    if len(set(numbers)) < len(numbers) or (text and not numbers):
        expected = "expected whole numbers such as 0,100,938, each once"
        raise typer.BadParameter(f"{expected}, got {text!r:.80}.", param_hint=option)
    return numbers


def parse_seconds(text: str) -> float:
    """Parse the seconds of ``90s``, ``50m`` or ``8h``."""
    units = {"s": 1, "m": 60, "h": 3600}
    try:
        seconds = float(text[:-1]) * units[text[-1:]]
    except (KeyError, ValueError):
        seconds = 0.0
    # the comparison is false for NaN, too
    if not 0 < seconds < _CENTURY:
        raise typer.BadParameter(f"expected a time such as 90s, 50m or 8h, got {text!r:.80}.", param_hint="--for")
    return seconds


def parse_pairs(items: list[str], option: str) -> dict[str, str]:
    """Parse texts from ``key=value``."""
    pairs = [item.partition("=") for item in items]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise typer.BadParameter("expected KEY=VALUE, such as partition=gpu.", param_hint=option)
    return {name: value for name, _, value in pairs}


def parse_settings(items: list[str]) -> dict[str, Any]:
    """Parse settings from ``key=value``, values as TOML has them."""
    import tomllib

    try:
        return {key: value for item in items for key, value in tomllib.loads(item).items()}
    # numbers of more than 4,300 digits are a ValueError as well
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{error}: expected a setting such as scale=0.5.", param_hint="--set") from None
