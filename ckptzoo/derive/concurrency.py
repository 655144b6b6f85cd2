"""Work that overlaps and still ends in order: batches solved ahead, and results written behind."""

import ctypes
import functools
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
                    _return_freed_memory()
            while waiting:
                yield waiting.popleft().result()
                _return_freed_memory()
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


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return the function of the C library that returns what was freed to the system, where it is glibc."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):  # macOS, musl
        return None


def _return_freed_memory() -> None:
    # glibc keeps up to 64 MB of freed memory at the end of an arena, has one a thread, and keeps what is free within
    if (trim := _malloc_trim()) is not None:
        trim(0)


def _cores() -> int:
    """Cores that this process may run on."""
    # cpu_count() also counts cores that a container or taskset keeps from the process; macOS has no affinity
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
