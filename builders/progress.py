"""The progress of a build: a bar on a terminal, a plain line every few seconds elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich import progress
from rich.console import Console

_LINE_SECONDS = 5.0
"""Seconds between two plain lines."""


class Progress:
    """Counts optimiser steps of all members together; a context manager.

    ``members`` and ``member_steps`` are the totals; ``done`` and ``finished`` count the member-steps and members done
    before, which do not count for the speed. ``taken`` counts the member-steps of this process, and ``seconds`` is
    their time.
    """

    def __init__(
        self, console: Console, name: str, *, members: int, member_steps: int, done: int, finished: int
    ) -> None:
        self._console, self._name = console, name
        self._members, self._total = members, member_steps
        self.done, self.finished, self.taken = done, finished, 0
        self.seconds = 0.0
        self._started = self._line = time.monotonic()
        self._printed = (done, -1)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TextColumn("{task.fields[facts]}"),
            console=console,
            # a bar redraws its line, which a log file would keep each time
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=member_steps, completed=done, facts="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if error is None and not self._console.is_terminal and self._printed != (self.done, self.finished):
            self._print()

    def resume(self, member_steps: int) -> None:
        """Count optimiser steps of an earlier process, which do not count for the speed."""
        self.done += member_steps
        self._show()

    def advance(self, member_steps: int, seconds: float) -> None:
        """Count optimiser steps that were taken in a number of seconds; the clock starts with the first of them."""
        if not self.taken:
            self._started = time.monotonic() - seconds
        self.done += member_steps
        self.taken += member_steps
        self.seconds += seconds
        self._show()

    def note(self, text: str) -> None:
        """Print a line of its own."""
        self._console.print(f"{self._name}: {text}", soft_wrap=True, highlight=False)

    def finish(self, members: int) -> None:
        """Count members that are done."""
        self.finished += members
        self._show()

    def facts(self) -> str:
        """Return members, steps, speed and time left, as text."""
        seconds = time.monotonic() - self._started
        text = f"{self.finished:,}/{self._members:,} members, {self.done:,}/{self._total:,} steps"
        if not self.taken or not seconds:
            return text
        # members side by side end together, so that each counts by its share of steps
        hourly = self.taken / self._total * self._members / seconds * 3600
        text = f"{text}, {rate(hourly)} members an hour"
        if self.done == self._total and self.finished < self._members:
            return f"{text}, measuring the last"
        return f"{text}, {duration((self._total - self.done) * seconds / self.taken)} left"

    def _show(self) -> None:
        self._bar.update(self._task, completed=self.done, facts=self.facts())
        now = time.monotonic()
        if not self._console.is_terminal and now - self._line >= _LINE_SECONDS:
            self._line = now
            self._print()

    def _print(self) -> None:
        self._printed = (self.done, self.finished)
        self.note(self.facts())


def duration(seconds: float) -> str:
    """Format seconds as ``h:mm:ss``."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def rate(value: float) -> str:
    """Format a whole number, or three digits of one below 100."""
    # from 99.5 on three digits are a whole number, and ".3g" would write 1e+03 from 999.5 on
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"
