"""All commands, and ``run``, which gives every ending its line and exit code."""

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from builders.cli.build import build, cost, estimate, merge, plan, planted, status, submit, work
from builders.cli.draws import posterior, posteriors
from builders.cli.recipes import inputs, predict, quickstart, recipes, report, round_weights, search
from ckptzoo.cli.exits import (
    INTERRUPTED,
    USAGE,
    code_of,
    described,
    named,
    print_line,
    sentence,
    showing_warnings,
    stopping_imports,
)
from ckptzoo.cli.options import Settings
from ckptzoo.cli.parsing import check_values
from ckptzoo.errors import MissingExtraError

_LOADING = "packages were being loaded, and no step was taken. Run the same command to start, or to carry on."
_UsageError = typer.BadParameter.__mro__[1]
"""The class of all errors of a command line; Typer exports only this child of it."""

app = typer.Typer(
    name="builders",
    help="Train zoos of checkpoints from recipes.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    # completion would write into the shell's start files
    add_completion=False,
)
# in the order of python -m builders --help
for _command in (build, plan, work, submit, merge, status, planted, posterior, posteriors, estimate, cost, predict):
    app.command()(_command)
app.command("round")(round_weights)
for _command in (search, recipes, inputs, quickstart, report):
    app.command()(_command)
check_values(app)


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Options for every command."""
    if isinstance(context.obj, Settings):
        context.obj.debug = debug


def run(arguments: Sequence[str], program: str = "python -m builders") -> int:
    """Run a command line, the words behind the program's name, and return its exit code, as in ``ckptzoo --help``;
    usage lines show ``program``.
    """
    settings = Settings(arguments, run)
    try:
        with showing_warnings("builders"), stopping_imports("builders", _LOADING):
            # not standalone: Typer then returns the code of an Exit, and raises errors instead of ending the process
            code = app(list(arguments) or ["--help"], prog_name=program, standalone_mode=False, obj=settings)
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", "what was saved is kept. Run the same command to carry on.", INTERRUPTED)
    except Exception as error:  # every error ends as one line and an exit code; --debug has the traceback
        if settings.debug:
            traceback.print_exception(error, file=sys.stderr)
        return _failed(error)


def _failed(error: Exception) -> int:
    checkpointing = sys.modules.get("builders.checkpointing")  # imported, with torch, by all that stops at signals
    if checkpointing is not None and isinstance(error, checkpointing.Interrupted):
        return _complain("interrupted", str(error), INTERRUPTED)
    if isinstance(error, _UsageError):
        shown: Any = error
        path = shown.ctx.command_path if shown.ctx is not None else "python -m builders"
        return _complain("error", f"{sentence(shown.format_message())} See {path} --help.", USAGE)
    # such as torch or numba, which only the extras of builders bring
    if isinstance(error, ModuleNotFoundError) and not isinstance(error, MissingExtraError):
        error = MissingExtraError(str(error.name), "build")
    error = named(error)
    problems = getattr(error, "problems", ())
    code = code_of(error)
    text = " ".join(map(str, problems)) if problems else str(error) or type(error).__name__
    if isinstance(error, OSError | MemoryError):
        text = described(error)
    if code == code_of(Exception()):
        text = f"{type(error).__name__}: {text} (a mistake in the builders; --debug shows where.)"
    return _complain("error", text, code)


def _complain(kind: str, text: str, code: int) -> int:
    print_line("builders", kind, text)
    return code
