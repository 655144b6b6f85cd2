"""Work that overlaps and still ends in order: batches solved ahead, and results written behind."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

MAX_THREADS = 4
"""The maximum number of batches that are solved at a time, one per core; each has its weights in memory twice."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_order(
    work: Callable[[_Item], _Result], items: Iterable[_Item], *, max_threads: int = MAX_THREADS
) -> Generator[_Result]:
    """``work`` of every item, in the order of the items, as many at a time as there are cores, at most ``max_threads``.

    ``work`` is called in other threads; ``items`` are taken one by one in the caller's thread, as they are needed.
    """
    count = min(_cores(), max_threads)
    waiting: deque[Future[_Result]] = deque()
    with ThreadPoolExecutor(count) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                # one more than there are threads, so that none waits while the caller takes a result
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
        """Wait for the previous call, raise what it raised, and start this one."""
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
    # cpu_count() also counts cores that a container or taskset keeps from the process; macOS has no affinity
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
