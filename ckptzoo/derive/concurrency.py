"""Work that overlaps and still ends in order: batches solved ahead, and results written behind."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

MOST_THREADS = 4
"""Batches that are solved at a time, one a core; each holds its weights twice."""

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


def in_order(work: Callable[[_Item], _Made], items: Iterable[_Item], *, most: int = MOST_THREADS) -> Generator[_Made]:
    """``work`` of every item, in the order of the items, as many at a time as there are cores, at most ``most``.

    Parameters
    ----------
    work : called in other threads.
    items : taken one by one in the caller's thread, as they are needed.
    """
    count = min(_cores(), most)
    waiting: deque[Future[_Made]] = deque()
    with ThreadPoolExecutor(count) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class BackgroundWriter:
    """Calls made by one other thread, one at a time, while the caller goes on to what comes next.

    Used as a context manager: every exit waits for the call that is being made, and a clean one raises its error.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._last: Future[Any] | None = None

    def __call__(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Wait for the call before, raise what it raised, and have this one made."""
        if self._last is not None:
            self._last.result()
        self._last = self._pool.submit(call, *arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True)
        if kind is None and self._last is not None:
            self._last.result()


def _cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
