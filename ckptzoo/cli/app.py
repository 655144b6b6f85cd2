"""All commands, the options that come before them, and ``run``, which gives every ending its line and exit code."""

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ckptzoo.cli.cache import cache
from ckptzoo.cli.catalogue import catalogue
from ckptzoo.cli.commands import audit, collection, compact, doctor, info, page, retract, show, verify
from ckptzoo.cli.derive import align, dedupe, derive, predict
from ckptzoo.cli.exits import (
    INTERRUPTED,
    USAGE,
    InterruptedCommand,
    code_of,
    described,
    listed,
    named,
    sentence,
    showing_warnings,
    stopping_imports,
)
from ckptzoo.cli.exports import compare, export
from ckptzoo.cli.hub import card, contribute, gather, materialize, pull, push, review, search
from ckptzoo.cli.imports import import_, link
from ckptzoo.cli.options import Settings, complain
from ckptzoo.cli.parsing import check_values
from ckptzoo.cli.rebuilding import rebuild
from ckptzoo.cli.releases import cite, release
from ckptzoo.cli.serve import serve
from ckptzoo.cli.splits import splits
from ckptzoo.cli.study import mmd, study
from ckptzoo.errors import SpecError

SHOWN = 8
"""Problems of a card or of rows, which no other command lists, that are shown at once."""
_UsageError = typer.BadParameter.__mro__[1]
"""The class of all errors of a command line; Typer exports only this child of it."""


app = typer.Typer(
    name="ckptzoo",
    help="Thousands of trained networks, read one layer at a time.",
    # click fills paragraphs again unless they begin with a line of "\b"
    epilog=f"\b\nExit codes:\n{listed()}",
    # in rich's markup, words of the help in square brackets would be styles
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
# in the order of ckptzoo --help
for _command in (info, show, page, verify, rebuild, export, compare, derive, align, predict, dedupe, mmd):
    app.command()(_command)
app.add_typer(study)
app.command()(catalogue)
app.command("import")(import_)
for _command in (link, materialize):
    app.command()(_command)
app.command()(audit)
app.command()(collection)
app.add_typer(splits)
for _command in (search, pull, push, card, release, cite, contribute, review, gather, compact, retract, doctor):
    app.command()(_command)
app.add_typer(cache)
app.add_typer(serve)
check_values(app)


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


def run(arguments: Sequence[str]) -> int:
    """Run a command line, without the program's name, and return its exit code; an empty one shows the help."""
    settings = Settings(arguments, run)
    try:
        with showing_warnings("ckptzoo"), stopping_imports("ckptzoo", "nothing is left half-written."):
            # not standalone: Typer then returns the code of an Exit, and raises errors instead of ending the process
            code = app(list(arguments) or ["--help"], prog_name="ckptzoo", standalone_mode=False, obj=settings)
    except InterruptedCommand as error:
        complain("interrupted", str(error))
        return INTERRUPTED
    # Typer turns a KeyboardInterrupt, and the end of the input at a prompt, into Abort
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    # every error ends as one line and a code of exits.OUTCOMES, those of other libraries too; --debug has the traceback
    except Exception as error:
        return _failed(error, settings)
    if code == INTERRUPTED:
        complain("interrupted", "nothing is left half-written.")
    return code if isinstance(code, int) else 0


def _failed(error: Exception, settings: Settings) -> int:
    if settings.debug:
        traceback.print_exception(error, file=sys.stderr)
    error = named(error)
    if isinstance(error, _UsageError):
        usage: Any = error  # its class is not exported, so its attributes are not known to the type checker
        path = usage.ctx.command_path if usage.ctx is not None else "ckptzoo"
        complain("error", f"{sentence(usage.format_message())} See {path} --help.")
        return USAGE
    complain("error", _line(error))
    return code_of(error)


def _line(error: Exception) -> str:
    code = code_of(error)
    problems = getattr(error, "problems", ())
    if problems:
        if len(problems) == 1:
            return str(problems[0])
        shown = SHOWN if isinstance(error, SpecError) else 1
        more = f" ({len(problems) - shown} more: ckptzoo verify lists them.)" if len(problems) > shown else ""
        return " ".join(str(problem) for problem in problems[:shown]) + more
    if code == code_of(Exception()):  # a class that no outcome lists
        return f"{type(error).__name__}: {error} (a mistake in ckptzoo; ckptzoo --debug ... shows where.)"
    if isinstance(error, OSError | MemoryError):
        return described(error)
    return str(error) or type(error).__name__
