"""The parser of command lines, which refuses values that no option or argument of any command takes."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_LARGEST = 2**63 - 1
"""The largest number; larger ones are too large for arrays, files and databases."""
_FOLDERS, _FILES = ("FOLDER", "ZOO", "BACKUP"), ("FILE", "FILE.npz", "X.csv")
"""The names of folders, and of files, in the help of paths; all files but ``--output`` are read."""


class _Checking:
    """The checks that commands and groups of commands have in common."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line, and refuse what no command takes."""
        words, command = list(args), self
        try:
            rest = super().parse_args(ctx, args)  # type: ignore[misc]
        except typer.BadParameter as error:
            if (parameter := error.param) is not None:
                values = command.make_parser(ctx).parse_args(args=list(words))[0]  # type: ignore[attr-defined]
                error.message = _reworded(error.message, values.get(parameter.name))
            raise
        if not ctx.resilient_parsing:  # as completion and help parse
            # click's parser also returns the parameters in the order in which they stand, each as often as it was given
            given, _, order = command.make_parser(ctx).parse_args(args=words)  # type: ignore[attr-defined]
            for parameter in dict.fromkeys(order):
                problem = _problem(parameter, given.get(parameter.name), ctx.params.get(parameter.name), order)
                if problem is not None:
                    raise typer.BadParameter(problem, ctx=ctx, param=parameter)
        return rest


class Command(_Checking, TyperCommand):
    """A command that refuses values which no command takes, before it does anything.

    These are empty texts, numbers that are not finite, a second value of an option that takes one, files in the place
    of folders, and files to be read that are not there. A shell passes an empty text where a variable is not set: as a
    path it would be the current folder.
    """


class CommandGroup(_Checking, TyperGroup):
    """A group of commands with options of its own, which are checked alike."""


def check_values(app: typer.Typer) -> None:
    """Check the values of all commands of a Typer application, and of the groups within it."""
    for command in app.registered_commands:
        command.cls = Command
    if app.registered_callback is not None:
        app.registered_callback.cls = CommandGroup
    for group in app.registered_groups:
        if group.typer_instance is not None:
            check_values(group.typer_instance)


def _reworded(message: str, given: Any) -> str:
    """Return pydantic's message about a value, with which Typer checks numbers, in the form of other messages."""
    matched = re.fullmatch(r"Input should be ([^,]*).*", message, re.DOTALL)
    if matched is None:
        return message.removeprefix("Value error, ")
    got = given[-1] if isinstance(given, list) and given else given
    expected = matched[1].replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    return f"expected {expected}, got {str(got)[:80]!r}. Correct it."


def _problem(parameter: Any, given: Any, value: Any, order: list[Any]) -> str | None:
    """Return what is wrong with an option or an argument; None where nothing is."""
    texts = [text for text in _items(given) if isinstance(text, str)]
    several = parameter.multiple or parameter.param_type_name == "argument" or not texts
    if not several and (count := order.count(parameter)) > 1:
        return f"expected it once, got it {count} times. Give it once."
    if any(not text.strip() for text in texts):
        return "expected a value, got an empty text. Leave it out, or give one."
    # no path of the system may have one; Python raises ValueError for it far from here
    if any("\0" in text for text in texts):
        return "expected a text without zero bytes, got one with them. Correct it."
    return next(filter(None, (_problem_of_item(parameter, item) for item in _items(value))), None)


def _problem_of_item(parameter: Any, item: Any) -> str | None:
    """Return what is wrong with one number or path; None where nothing is."""
    if isinstance(item, float) and not math.isfinite(item):
        return f"expected a finite number, got {item}. Correct it."
    if isinstance(item, int) and abs(item) > _LARGEST:
        return f"expected a number of at most {_LARGEST:,}, got {item:,}. Correct it."
    if isinstance(item, Path):
        if str(item) == "-":  # as other programs call the standard input and output
            return "expected a path, got -, and no command reads or writes a stream. Name a file or a folder."
        try:
            is_file, is_folder = item.is_file(), item.is_dir()
        except OSError as error:  # such as a name that is too long
            return f"expected a path, got {error.strerror}. Choose another one."
        if parameter.metavar in _FOLDERS and is_file:
            return f"expected a folder, got the file {str(item)!r}. Name another one."
        if parameter.metavar in _FILES and parameter.name != "output" and not is_file:
            got = f"the folder {str(item)!r}" if is_folder else f"{str(item)!r}, which is none or cannot be read"
            return f"expected a file, got {got}. Correct the path."
    return None


def _items(value: Any) -> Iterator[Any]:
    """Yield a value, or those in a list of them."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _items(item)
    elif value is not None:
        yield value
