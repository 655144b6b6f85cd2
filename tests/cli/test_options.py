"""Options that several commands have in common."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from ckptzoo.cli.options import expand_dataclasses

Size = Annotated[int, typer.Option("--size", min=1, help="How large.")]


@dataclass(frozen=True)
class Shape:
    """A group of options."""

    size: Size = 3
    name: Annotated[str, typer.Option(help="What it is called.")] = "a"


@dataclass(frozen=True)
class Coloured(Shape):
    """A group with those of another."""

    colour: Annotated[str | None, typer.Option()] = None


def test_the_fields_of_a_dataclass_become_options() -> None:
    seen = list[Any]()
    app = typer.Typer()

    @app.command()
    @expand_dataclasses
    def draw(
        place: str, first: Annotated[int, typer.Option()], shape: Coloured, times: int = 1, *, last: str = ""
    ) -> None:
        """Draw it."""
        seen.append((place, first, shape, times, last))

    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    order = ["--first", "--size", "--name", "--colour", "--times", "--last"]
    places = [shown.index(option) for option in order]
    assert places == sorted(places) and "How large." in shown and "Draw it." in shown and "--shape" not in shown
    assert CliRunner().invoke(app, ["here", "--first", "2"]).exit_code == 0
    assert CliRunner().invoke(app, ["here", "--first", "2", "--size", "5", "--colour", "red"]).exit_code == 0
    assert seen == [("here", 2, Coloured(), 1, ""), ("here", 2, Coloured(5, "a", "red"), 1, "")]
    assert CliRunner().invoke(app, ["here", "--first", "2", "--size", "0"]).exit_code == 2
