"""Work that overlaps and still ends in order: while the caller uses a result, the next ones are computed."""

import ctypes
import functools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

MAX_THREADS = 4
"""The maximum number of batches that are solved at a time, one per core; each has its weights in memory twice."""

_MMAP_THRESHOLD = -3
"""``M_MMAP_THRESHOLD`` of mallopt(3)."""
_LARGE_BYTES = 2**20
"""The bytes of an array from which it is mapped by itself."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_order(
    work: Callable[[_Item], _Result], items: Iterable[_Item], *, max_threads: int = MAX_THREADS
) -> Generator[_Result]:
    """``work`` of every item, in the order of the items, as many at a time as there are cores, at most ``max_threads``.

    ``work`` is called in other threads; ``items`` are taken one by one in the caller's thread, as they are needed. A
    caller that lets go of a result before it asks for the next has one more in memory than there are threads at most.
    """
    _map_large_arrays()
    count = min(_cores(), max_threads)
    waiting: deque[Future[_Result]] = deque()

    def done(item: _Item) -> _Result:
        try:
            return work(item)
        finally:
            _return_freed_memory()

    with ThreadPoolExecutor(count) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(done, item))
                del item
                # one more than there are threads, so that none waits while the caller takes a result
                if len(waiting) > count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    """Return the C library where it is glibc."""
    library = ctypes.CDLL(None)
    # macOS and musl have neither function
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None


def _map_large_arrays() -> None:
    """Let the C library map every large array by itself, so that it is returned to the system once it is freed."""
    # glibc raises the size from which it does so, up to 32 MiB, whenever such an array is freed
    if (library := _glibc()) is not None:
        library.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)


def _return_freed_memory() -> None:
    # glibc keeps up to 64 MB of freed memory at the end of an arena, has one a thread, and keeps what is free within
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


def _cores() -> int:
    """Cores that this process may run on."""
    # cpu_count() also counts cores that a container or taskset keeps from the process; macOS has no affinity
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
