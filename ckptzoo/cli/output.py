"""What goes to the standard output and to the standard error."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[int, int], None]
_UNBOUNDED = 100_000


def console() -> "Console":
    """Where tables go; nothing is coloured, wrapped or cut short where the output is not a terminal."""
    from rich.console import Console

    found = Console()
    return found if found.is_terminal else Console(width=_UNBOUNDED, color_system=None)


def emit(value: dict[str, Any]) -> None:
    """Print one JSON object on one line; figures that are not finite are the strings ``"NaN"``, ``"Infinity"``."""
    from ckptzoo.spec.document import canonical

    print(canonical(value).decode())


def complain(kind: str, text: str) -> None:
    """Print one line on the standard error."""
    from ckptzoo.words import printable

    print(f"ckptzoo: {kind}: {printable(' '.join(text.split()))}", file=sys.stderr)


@contextmanager
def bar(what: str, *, nbytes: bool = False) -> Iterator[Progress]:
    """A function that moves a progress bar on the standard error; it draws nothing where that is no terminal."""
    from rich import progress
    from rich.console import Console

    amount = progress.DownloadColumn() if nbytes else progress.MofNCompleteColumn()
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), amount, progress.TimeRemainingColumn())
    screen = Console(stderr=True)
    with progress.Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
