"""``ckptzoo pull``: a zoo, or a part of one, onto this machine."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ckptzoo.cli.exits import InterruptedCommand
from ckptzoo.cli.options import AsJson, Where, complete_variants
from ckptzoo.cli.output import Progress, emit

_LINE_SECONDS = 5.0


def _complete_layers(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Names of the layers of the zoo on the line; the last one behind a comma."""
    import warnings

    import ckptzoo

    done, comma, last = incomplete.rpartition(",")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            layers = ckptzoo.open(str(context.params.get("zoo"))).layers
    except Exception:
        return []
    return [f"{done}{comma}{name}" for name in layers if name.startswith(last)]


def pull(
    zoo: Annotated[
        str,
        typer.Argument(
            metavar="ZOO",
            help="org/zoo, hf://datasets/org/zoo@revision, https://host/path/zoo, s3://bucket/zoo, or a folder.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Where to; new, empty, or an earlier pull.", show_default=False
        ),
    ],
    variant: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            metavar="NAME",
            help="Only this gauge, or raw; may be given again. Without raw the weights as trained stay behind.",
            autocompletion=complete_variants,
        ),
    ] = None,
    layers: Annotated[
        list[str] | None,
        typer.Option(
            "--layers",
            metavar="NAMES",
            help="Only these layers or tensors: conv1,fc.",
            autocompletion=_complete_layers,
        ),
    ] = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a zoo, or a part of one that is itself a zoo.

    Every byte is checked. A pull that was interrupted is carried on by the same command, which fetches only what is
    missing; repeated later it brings what has been added since.
    """
    from ckptzoo.hub.pulling import pull as fetch
    from ckptzoo.words import counted, printable, size

    try:
        with moving("pulling") as progress:
            made = fetch(zoo, output, variants=_split(variant), layers=_split(layers), where=where, progress=progress)
    except KeyboardInterrupt:
        raise InterruptedCommand("what was fetched is kept; carry on with the same command.") from None
    if as_json:
        emit(made.to_json())
        return
    came = (
        f"{counted(len(made.parts), 'part')} came, {made.there:,} were there" if made.parts else "nothing was missing"
    )
    print(printable(f"{output}: {counted(made.checkpoints, 'checkpoint')} ({', '.join(made.variants)}) of {zoo}."))
    print(f"{came}; {size(made.fetched)} fetched.")
    print(printable(f"revision {made.revision}"))


def _split(names: list[str] | None) -> list[str] | None:
    return [part.strip() for name in names for part in name.split(",") if part.strip()] if names else None


@contextmanager
def moving(what: str) -> Iterator[Progress]:
    """A function that shows bytes, their rate and the time left: a bar on a terminal, else a line now and then."""
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    screen = Console(stderr=True)
    started = last = time.monotonic()

    def line(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _LINE_SECONDS:
            last = now
            screen.print(f"{what}: {_facts(done, total, now - started)}", soft_wrap=True, highlight=False)

    with progress.Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as shown:
        task = shown.add_task(what, total=None)
        yield (lambda done, total: shown.update(task, completed=done, total=total)) if screen.is_terminal else line


def _facts(done: int, total: int, seconds: float) -> str:
    """``12 MB of 80 MB, 4 MB/s, 0:00:17 left``."""
    from ckptzoo.words import size

    rate = done / seconds
    left = round((total - done) / rate) if rate else 0
    clock = f", {size(round(rate))}/s, {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left" if rate else ""
    return f"{size(done)} of {size(total)}{clock}"
