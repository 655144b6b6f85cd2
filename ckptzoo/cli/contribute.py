"""``ckptzoo contribute``: bring checkpoints to somebody's zoo."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ckptzoo.cli.exits import PROBLEMS
from ckptzoo.cli.options import AsJson
from ckptzoo.cli.output import console, emit

Stages = Callable[[str, int, int], None]

Module = Annotated[
    str | None,
    typer.Option(
        "--module",
        metavar="FILE.py:NAME",
        help="A file of your own, which is executed here; NAME() makes the network.  [default: that of ckptzoo.archs]",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="Where test sets lie.  [default: that of CKPTZOO_DATA]"),
]


def contribute(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES...", help=".safetensors, .pt, .pth, .th, .npz, or a zoo.", show_default=False),
    ],
    to: Annotated[str, typer.Option("--to", metavar="ORG/ZOO", help="The zoo.", show_default=False)],
    card: Annotated[
        Path,
        typer.Option(
            "--card",
            metavar="FILE",
            help="contribution.toml; see cards/template/contribution.toml.",
            show_default=False,
        ),
    ],
    names: Annotated[
        Path | None, typer.Option("--map", metavar="FILE", help="TOML with old and new names of tensors.")
    ] = None,
    module: Module = None,
    data: Data = None,
    new: Annotated[
        Path | None, typer.Option("--new", metavar="FOLDER", help="Where a new zoo is made.  [default: its name]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do everything but the upload.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring checkpoints to a zoo by a pull request.

    Reads the files as data, brings names, shapes and dtypes to the zoo's, measures accuracies where the test set is at
    hand, checks everything that a reviewer will check, and opens a pull request with one new part. Exits with 1 if a
    check failed; nothing is uploaded then. Where there is no such zoo yet, a table [zoo] in the card begins one.
    """
    from ckptzoo.hub.client.session import quietly
    from ckptzoo.hub.contributing import NamesError
    from ckptzoo.hub.contributing import contribute as bring

    try:
        with quietly(), stages() as progress:
            made = bring(
                files,
                to=to,
                card=card,
                map=names,
                module=module,
                data=data,
                new=new,
                dry_run=dry_run,
                progress=progress,
            )
    except NamesError as error:
        print("# If these are the same tensors, add this to the card, or to a file for --map:", file=sys.stderr)
        print(error.proposal, file=sys.stderr)
        raise
    if as_json:
        emit(made.to_json())
    else:
        made.print(console())
    if made.status == "refused":
        raise typer.Exit(PROBLEMS)


@contextmanager
def stages() -> Iterator[Stages]:
    """A function that moves a progress bar for each thing that is done; it draws nothing where that is no terminal."""
    from rich import progress
    from rich.console import Console

    screen = Console(stderr=True)
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.TaskProgressColumn())
    shown = progress.Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)
    tasks: dict[str, progress.TaskID] = {}

    def tell(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = shown.add_task(what, total=total)
        shown.update(tasks[what], completed=done, total=total)

    with shown:
        yield tell
