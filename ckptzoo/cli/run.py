"""Run one command line: errors and warnings become single lines, every ending has its exit code."""

import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, TextIO

import typer

from ckptzoo.cli.app import Settings, app
from ckptzoo.cli.exits import INTERRUPTED, USAGE, InterruptedCommand, code_of
from ckptzoo.cli.output import complain
from ckptzoo.errors import SpecError

SHOWN = 8
"""Problems of a card or of rows, which no other command lists, that are shown at once."""
_UsageError = typer.BadParameter.__mro__[1]
"""The class of everything that is wrong with a command line; Typer exports only this child of it."""


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code.

    Parameters
    ----------
    arguments : without the program's name; none shows the help.
    """
    settings = Settings()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _show
            code = app(list(arguments) or ["--help"], prog_name="ckptzoo", standalone_mode=False, obj=settings)
    except InterruptedCommand as error:
        complain("interrupted", str(error))
        return INTERRUPTED
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        return _failed(error, settings)
    if code == INTERRUPTED:
        complain("interrupted", "nothing is left half-written.")
    return code if isinstance(code, int) else 0


def _show(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, *_: Any
) -> None:
    complain("warning", str(message))


def _failed(error: Exception, settings: Settings) -> int:
    if settings.debug:
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, _UsageError):
        shown: Any = error
        path = shown.ctx.command_path if shown.ctx is not None else "ckptzoo"
        complain("error", f"{shown.format_message()} See {path} --help.")
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
    if code == code_of(Exception()):
        return f"{type(error).__name__}: {error} (a mistake in ckptzoo; ckptzoo --debug ... shows where.)"
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
