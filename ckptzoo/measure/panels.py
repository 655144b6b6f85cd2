"""Panels, in which the distances of two samples are kept, and the threads that fill them.

A panel has some rows of X and Y, one below the other, and their distances to themselves and all later rows.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

ROWS = 128
"""The number of rows of a panel."""
MAX_THREADS = 8
"""numpy keeps no more threads busy, unlike one long compiled call: between two calls each needs the interpreter."""

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Panel:
    """Distances of the rows ``start .. stop - 1`` of X and Y, one below the other, to the rows from ``start`` on.

    ``start`` and ``stop`` are its rows, all of X or all of Y; ``x_columns`` is the number of its columns that are rows
    of X, 0 where its own rows are Y's; ``manhattan`` and ``squares`` are (stop - start, m + n - start) float64, sums of
    absolute and of squared differences; infinity on and below the diagonal, so that every pair counts once and a kernel
    of it is 0.
    """

    start: int
    stop: int
    x_columns: int
    manhattan: Any
    squares: Any


def make_panels(m: int, n: int, full: Callable[[tuple[int, int], float], Any]) -> Iterator[Panel]:
    """Panels for m rows of X and n of Y, with distances of 0; ``full(shape, number)`` returns a filled array."""
    for first, end in ((0, m), (m, m + n)):
        for start in range(first, end, ROWS):
            stop = min(start + ROWS, end)
            pair = [full((stop - start, m + n - start), 0.0) for _ in range(2)]
            for array in pair:
                for row in range(stop - start):
                    array[row, : row + 1] = float("inf")
            yield Panel(start, stop, max(0, m - start), *pair)


def cores() -> int:
    """Cores that this process may run on."""
    # cpu_count() also counts cores that a container or taskset keeps from the process; macOS has no affinity
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_tasks(
    tasks: Iterable[_T], worker: Callable[[], Callable[[_T], None]], *, max_threads: int = MAX_THREADS
) -> None:
    """Do all tasks, on one thread a core and at most ``max_threads``. The first error ends them and is raised.
    ``worker`` is called once in every thread and returns the function that does a task there.
    """
    waiting = deque(tasks)

    def work() -> None:
        do = worker()
        while True:
            try:
                task = waiting.popleft()
            except IndexError:
                return
            try:
                do(task)
            # whatever a task raises, KeyboardInterrupt on the calling thread too: the other threads stop after their
            # task
            except BaseException:
                waiting.clear()
                raise

    count = min(cores(), max_threads, len(waiting))
    if count < 2:
        return work()
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(work) for _ in range(count)]:
            done.result()
