"""The progress of long work: a bar in a terminal or a notebook, lines elsewhere; all on the standard error."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from ckptzoo.arguments import checked
from ckptzoo.text import Progress, StageProgress, size

if TYPE_CHECKING:
    from rich.console import Console

Amount = Literal["percent", "number", "bytes"]
"""The unit in which progress is shown."""
LINE_SECONDS, LINE_GROWTH = 5.0, 1.2
"""Where lines are printed: until the first one, and the factor between the times of two. Ten hours have 40 or so."""
WIDGET_SECONDS = 0.1
"""Between two messages to a notebook, which would fall behind if each step sent one."""


@checked
@contextmanager
def progress_bar(what: str, *, nbytes: bool = False) -> Iterator[Progress]:
    """A function for the parameter ``progress`` of a call that takes long.

    In a terminal it moves a bar that vanishes at the end; in a notebook one of ipywidgets (extra ``notebook``), or
    without it the text of one line, which stays. Elsewhere, as in the log of a job, it prints a line after five seconds
    and then less and less often; what takes less prints none.

    Parameters
    ----------
    what
        What is done, in a word or two.
    nbytes
        Whether bytes are counted.

    Examples
    --------
    >>> with ckptzoo.progress_bar("verifying", nbytes=True) as progress:
    ...     print(ckptzoo.verify("cards/mnist-optunet", progress=progress))
    []
    """
    with progress_bars("bytes" if nbytes else "number") as update:
        update(what, 0, 0)
        yield partial(update, what)


@contextmanager
def progress_bars(amount: Amount = "percent") -> Iterator[StageProgress]:
    """The same for work of several stages, each with a bar of its own.

    ``amount`` is ``"percent"`` where the stages count different things.
    """
    from rich.console import Console

    # the standard output is for results, which may be piped
    screen = Console(stderr=True)
    bars = _in_a_notebook if screen.is_jupyter else _on_a_terminal if screen.is_terminal else _in_lines
    with bars(screen, amount) as update:
        yield update


@contextmanager
def _on_a_terminal(screen: "Console", amount: Amount) -> Iterator[StageProgress]:
    from rich import progress

    amounts: dict[Amount, tuple[progress.ProgressColumn, ...]] = {
        "percent": (progress.TaskProgressColumn(),),
        "number": (progress.MofNCompleteColumn(),),
        "bytes": (progress.DownloadColumn(), progress.TransferSpeedColumn()),
    }
    columns = (progress.TextColumn("{task.description}", markup=False), progress.BarColumn(), *amounts[amount])
    tasks: dict[str, progress.TaskID] = {}
    with progress.Progress(*columns, progress.TimeRemainingColumn(), console=screen, transient=True) as shown:

        def update(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(what, total=None)
            shown.update(tasks[what], completed=done, total=total or None)

        yield update


@contextmanager
def _in_lines(screen: "Console", amount: Amount) -> Iterator[StageProgress]:
    started: dict[str, float] = {}
    due: dict[str, float] = {}

    def update(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        seconds = now - started.setdefault(what, now)
        if seconds >= due.setdefault(what, LINE_SECONDS):
            due[what] = max(seconds + LINE_SECONDS, seconds * LINE_GROWTH)
            screen.print(_line(what, done, total, seconds, amount), soft_wrap=True, markup=False, highlight=False)

    yield update


@contextmanager
def _in_a_notebook(screen: "Console", amount: Amount) -> Iterator[StageProgress]:
    rows: dict[str, _NotebookRow] = {}

    def update(what: str, done: int, total: int) -> None:
        if what not in rows:
            rows[what] = _NotebookRow(what, amount)
        rows[what].update(done, total)

    try:
        yield update
    finally:
        for row in rows.values():
            row.close()


class _NotebookRow:
    """One bar below a notebook's cell; at its end, or without ipywidgets, a line of text in the same place.

    What is left in the notebook's file is the text: a widget would be shown by no other notebook.
    """

    def __init__(self, what: str, amount: Amount) -> None:
        from IPython.display import display

        self._what = what
        self._amount: Amount = amount
        self._started, self._sent = time.monotonic(), 0.0
        self._done, self._total = 0, 0
        self._bar = self._text = None
        shown: Any = self._bundle()
        if find_spec("ipywidgets") is not None:
            from ipywidgets import FloatProgress, HBox, Label

            self._bar, self._text = FloatProgress(max=1), Label(what)
            shown = HBox([self._bar, self._text])
        self._handle: Any = display(shown, raw=isinstance(shown, dict), display_id=True)

    def update(self, done: int, total: int) -> None:
        """Show the progress if the last update was long enough ago."""
        self._done, self._total, now = done, total, time.monotonic()
        if now - self._sent < WIDGET_SECONDS:
            return
        self._sent = now
        if self._bar is None or self._text is None:
            self._handle.update(self._bundle(), raw=True)
        else:
            self._bar.value = done / total if total else 0
            self._text.value = self._line()

    def close(self) -> None:
        """Leave one line of text."""
        self._handle.update(self._bundle(), raw=True)
        if self._bar is not None and self._text is not None:
            self._bar.close()
            self._text.close()

    def _bundle(self) -> dict[str, str]:
        return {"text/plain": self._line()}

    def _line(self) -> str:
        return _line(self._what, self._done, self._total, time.monotonic() - self._started, self._amount)


def _line(what: str, done: int, total: int, seconds: float, amount: Amount) -> str:
    """Format the progress, with the time taken, or the estimated time left.

    >>> _line("pulling", 12_000_000, 80_000_000, 3.0, "bytes"), _line("deriving", 128, 128, 61.0, "number")
    ('pulling: 12 MB of 80 MB, 4 MB/s, 0:00:17 left', 'deriving: 128 of 128 in 0:01:01')
    """
    if not total:
        return f"{what}: {_clock(seconds)}"
    rate = done / seconds if seconds else 0
    text = {
        "percent": f"{100 * done // total} %",
        "number": f"{done:,} of {total:,}",
        "bytes": f"{size(done)} of {size(total)}, {size(round(rate))}/s",
    }[amount]
    if done >= total:
        return f"{what}: {text} in {_clock(seconds)}"
    return f"{what}: {text}{f', {_clock((total - done) / rate)} left' if rate else ''}"


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
