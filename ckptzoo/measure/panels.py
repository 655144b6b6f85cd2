"""Where the distances of two samples are kept: panels of rows, each against itself and all later rows.

A few threads that take tasks until none is left.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

ROWS = 128
"""Rows of a panel."""


@dataclass(frozen=True, eq=False)
class Panel:
    """Distances of the rows ``start .. stop - 1`` of X and Y, one below the other, to the rows from ``start`` on.

    Parameters
    ----------
    start, stop : its rows, all of X or all of Y.
    cut : how many of its columns are rows of X; 0 where its own rows are Y's.
    manhattan, squares : (stop - start, m + n - start) float64, sums of absolute and of squared differences; infinity
        on and below the diagonal, so that every pair counts once and a kernel of it is 0.
    """

    start: int
    stop: int
    cut: int
    manhattan: Any
    squares: Any


def laid_out(m: int, n: int, filled: Callable[[tuple[int, int], float], Any]) -> Iterator[Panel]:
    """Panels for m rows of X and n rows of Y, with no distance yet.

    Parameters
    ----------
    filled : makes a float64 array of a shape that holds a number everywhere.
    """
    for first, behind in ((0, m), (m, m + n)):
        for start in range(first, behind, ROWS):
            stop = min(start + ROWS, behind)
            pair = [filled((stop - start, m + n - start), 0.0) for _ in range(2)]
            for array in pair:
                for at in range(stop - start):
                    array[at, : at + 1] = float("inf")
            yield Panel(start, stop, max(0, m - start), *pair)


MOST = 8
"""More cannot be kept busy by numpy: between two calls each thread needs the interpreter."""

_T = TypeVar("_T")


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share(tasks: Iterable[_T], worker: Callable[[], Callable[[_T], None]], *, most: int = MOST) -> None:
    """Do all tasks, on one thread a core and at most so many.

    Parameters
    ----------
    worker : called once in every thread; what it returns does a task there.
    """
    left = deque(tasks)

    def work() -> None:
        act = worker()
        while True:
            try:
                task = left.popleft()
            except IndexError:
                return
            try:
                act(task)
            except BaseException:
                left.clear()
                raise

    count = min(cores(), most, MOST, len(left))
    if count < 2:
        return work()
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(work) for _ in range(count)]:
            done.result()
