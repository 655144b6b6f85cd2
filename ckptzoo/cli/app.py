"""The commands and the options that come before them."""

from dataclasses import dataclass
from typing import Annotated

import typer

from ckptzoo.cli.cache import cache
from ckptzoo.cli.card import card
from ckptzoo.cli.commands import compact, dedupe, derive, info, retract, show, verify
from ckptzoo.cli.contribute import contribute
from ckptzoo.cli.exits import listed
from ckptzoo.cli.export import export
from ckptzoo.cli.mmd import mmd
from ckptzoo.cli.predict import predict
from ckptzoo.cli.pull import pull
from ckptzoo.cli.push import push
from ckptzoo.cli.review import review
from ckptzoo.cli.search import search
from ckptzoo.cli.serve import serve
from ckptzoo.cli.study import study


@dataclass
class Settings:
    """What was said before the command's name."""

    debug: bool = False


app = typer.Typer(
    name="ckptzoo",
    help="Thousands of trained networks, read one layer at a time.",
    epilog=f"\b\nExit codes:\n{listed()}",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for _command in (info, show, verify, export, derive, predict, dedupe, mmd):
    app.command()(_command)
app.add_typer(study)
for _command in (search, pull, push, card, contribute, review, compact, retract):
    app.command()(_command)
app.add_typer(cache)
app.add_typer(serve)


def _version(wanted: bool) -> None:
    if wanted:
        from ckptzoo import __version__

        print(f"ckptzoo {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Options for every command."""
    if isinstance(context.obj, Settings):
        context.obj.debug = debug
