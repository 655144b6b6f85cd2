"""A few threads that take tasks until none is left."""

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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
