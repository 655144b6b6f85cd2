"""Shared parts of commands: arguments, options, and the standard output and error."""

import dataclasses
import errno
import functools
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TextIO, get_type_hints

import typer

from ckptzoo.cli.completion import complete_condition, complete_folders, complete_variants, complete_zoos
from ckptzoo.cli.exits import print_line
from ckptzoo.progress import progress_bar

if TYPE_CHECKING:
    from rich.console import Console

    from ckptzoo.loader.zoo import Zoo
    from ckptzoo.studies.shared.result import StudyResult

bar = progress_bar
"""A bar, or lines, on the standard error."""
_UNBOUNDED = 100_000
"""Columns of an output that is no terminal: rich would cut tables at 80."""


@dataclass
class Settings:
    """A command's ``context.obj``: the options before its name, and the whole command line with what runs it."""

    arguments: Sequence[str]
    run: Callable[[Sequence[str]], int]
    debug: bool = False


def folder(address: str) -> Path:
    """Return the zoo's folder, which must be there."""
    path = Path(address)
    if not path.is_dir():
        got = "a file" if path.exists() else "nothing"
        step = "" if path.exists() else " A zoo on another machine is fetched with ckptzoo pull."
        raise typer.BadParameter(f"{address}: expected a zoo's folder, got {got}.{step}")
    return path


def opened(address: str, where: str | None = None) -> "Zoo":
    """Open the zoo, or those of its checkpoints that satisfy the condition."""
    import ckptzoo

    zoo = ckptzoo.open(address)
    return zoo if where is None else zoo.where(where)


ADDRESS = "A folder, org/name on the hub, hf://datasets/org/name@revision, https://..., or s3://..."
ZooAddress = Annotated[
    str, typer.Argument(metavar="ZOO", help=ADDRESS, show_default=False, autocompletion=complete_zoos)
]
ZooFolder = Annotated[
    str,
    typer.Argument(metavar="ZOO", help="The zoo's folder.", show_default=False, autocompletion=complete_folders),
]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help='Only checkpoints whose metadata satisfy this, such as "test_accuracy > 0.8 and seed < 500".',
        autocompletion=complete_condition,
    ),
]
Share = Annotated[
    str,
    typer.Option(
        "--share",
        metavar="I/N",
        help="Only every N-th part, from the I-th: 0/4 to 3/4 on four machines that share the folder.",
        show_default=False,
    ),
]
Module = Annotated[
    str | None,
    typer.Option(
        "--module",
        metavar="FILE.py:NAME",
        help="A file of your own, which is executed here; NAME() makes the network.  [default: that of ckptzoo.archs]",
    ),
]
InputShape = Annotated[
    str | None,
    typer.Option(
        "--input-shape",
        metavar="SHAPE",
        help="The shape of one input, such as 64 or 3x32x32, for a --module of a zoo that does not record it.",
    ),
]
LabelledFile = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        metavar="FILE.npz",
        help="Your own inputs as the networks take them: an array inputs (N, ...), and targets (N,), labels from 0.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="FOLDER", exists=True, help="The folder of test sets.  [default: that of CKPTZOO_DATA]"
    ),
]
VariantName = Annotated[
    str | None,
    typer.Option("--variant", metavar="NAME", help="The gauge the weights are in.", autocompletion=complete_variants),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Write pictures and a JSON file there.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def expand_dataclasses(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the fields of its dataclass parameters as options of its own, in their place, so that
    common options are written once; each field is annotated as an option.
    """
    hints, given = get_type_hints(command, include_extras=True), inspect.signature(command).parameters
    groups = {name: hints[name] for name in given if dataclasses.is_dataclass(hints[name])}
    parameters: list[inspect.Parameter] = []
    for name, parameter in given.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        options = get_type_hints(groups[name], include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=options[field.name]
            )
            for field in dataclasses.fields(groups[name])
        ]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
        command(**values)

    # Typer reads the one and the other
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def parse_input_shape(text: str | None) -> tuple[int, ...] | None:
    """Return the sizes in ``3x32x32``, ``3,32,32`` or ``64``; None where nothing is given."""
    if text is None:
        return None
    sizes = text.strip("() ").replace("x", ",").split(",")
    # Python turns no text of more than 4,300 digits into a number
    if not all(len(size) < 20 and size.strip().isdecimal() and 0 < int(size) < 2**31 for size in sizes):
        raise typer.BadParameter(f"--input-shape: expected sizes such as 64 or 3x32x32, got {text!r:.80}.")
    return tuple(map(int, sizes))


def console() -> "Console":
    """Return the console for tables; nothing is coloured, wrapped or cut short where the output is not a terminal."""
    from rich.console import Console

    # rich would take [text] in the words of others for its own markup, and refuse what is none
    terminal = Console(markup=False, highlight=False)
    if terminal.is_terminal:
        return terminal
    trimmed: Any = _Trimmed(sys.stdout)
    return Console(file=trimmed, width=_UNBOUNDED, color_system=None, markup=False, highlight=False)


class _Trimmed:
    """A stream that leaves out the trailing blanks with which rich fills up tables."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(re.sub(r" +(?=\n)", "", text))

    # rich also asks for isatty(), encoding and flush()
    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def emit(value: dict[str, Any]) -> None:
    """Print one JSON object on one line; figures that are not finite are the strings ``"NaN"``, ``"Infinity"``."""
    from ckptzoo.schema.documents import canonical

    print(canonical(value).decode())


class Result(Protocol):
    """A result of the library that can show itself."""

    def to_json(self) -> dict[str, Any]:
        """Return every figure by name."""
        ...

    def print(self, console: "Console | None" = None) -> None:
        """Print it on a rich console."""
        ...


def print_result(result: Result, as_json: bool, files: Sequence[Path] | None = None) -> None:
    """Print a result as text or as one JSON object, with the paths of its written files, None for a result that is
    never written.
    """
    if as_json:
        emit(result.to_json() if files is None else {**result.to_json(), "files": [str(path) for path in files]})
        return
    result.print(console())
    if files:
        print()
    for path in files or ():
        print(path)


def check_writable(folder: Path | None) -> None:
    """Raise OSError where a folder, or the one that it would be made in, cannot be written to.

    Called before a study is computed, whose result would be lost at its end.
    """
    if folder is not None:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(there))


@dataclass(frozen=True)
class ResultOptions:
    """The options that decide how the result of a study is shown."""

    output: Output = None
    as_json: AsJson = False

    def answer(self, study: str, *arguments: Any, said: str, nbytes: bool = False, **options: Any) -> None:
        """Carry out a study while a bar shows its progress, print the result, and write its pictures if requested.

        ``study`` is the name of a module of ``ckptzoo.studies`` and of its function, ``arguments`` and ``options`` are
        those of the function, all but ``progress``. The bar shows ``said``, and counts bytes with ``nbytes``.
        """
        check_writable(self.output)
        compute = getattr(importlib.import_module(f"ckptzoo.studies.{study}"), study)
        with bar(said, nbytes=nbytes) as progress:
            result: StudyResult = compute(*arguments, progress=progress, **options)
        print_result(result, self.as_json, [] if self.output is None else result.plot(self.output))


@dataclass(frozen=True)
class StudyOptions(ResultOptions):
    """The options of every study of one zoo."""

    where: Where = None

    def opened(self, address: str) -> "Zoo":
        """Open the zoo, or those of its checkpoints that are to be studied."""
        return opened(address, self.where)


@contextmanager
def proposing_names(file: str) -> Iterator[None]:
    """Print the names that are proposed where those of tensors do not fit, in lines of their own for ``file``."""
    from ckptzoo.errors import SpecError
    from ckptzoo.hub.contributions.matching import NamesError

    try:
        yield
    except NamesError as error:
        if error.proposals:
            print(f"# If these are the same tensors, add this to {file}:", file=sys.stderr)
            print(error.tables, file=sys.stderr)
        raise SpecError(
            replace(problem, next_step=problem.next_step.partition("\n")[0]) for problem in error.problems
        ) from error


def complain(kind: str, text: str) -> None:
    """Print one line on the standard error."""
    print_line("ckptzoo", kind, text)
