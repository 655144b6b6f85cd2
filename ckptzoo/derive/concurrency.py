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

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""``M_TRIM_THRESHOLD`` and ``M_MMAP_THRESHOLD`` of mallopt(3)."""
WEIGHTS_BYTES, ACTIVATIONS_BYTES = 2**20, 32 * 2**20
"""The bytes from which arrays are mapped by themselves while weights are read and solved, and while networks are
evaluated. A mapped array goes back to the system once freed, but the first use of each of its pages is a fault: ResNets
of width 8, with an array for each layer and batch, take twice as long with the smaller one. The larger one is what
glibc raises its threshold to by itself once an array of that size is freed."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_order(
    work: Callable[[_Item], _Result],
    items: Iterable[_Item],
    *,
    max_threads: int = MAX_THREADS,
    mapped_bytes: int = WEIGHTS_BYTES,
) -> Generator[_Result]:
    """``work`` of every item, in the order of the items, as many at a time as there are cores, at most ``max_threads``.

    ``work`` is called in other threads; ``items`` are taken one by one in the caller's thread, as they are needed. A
    caller that lets go of a result before it asks for the next has one more in memory than there are threads at most.
    Meanwhile the C library maps arrays of ``mapped_bytes`` or more by themselves.
    """
    _map_arrays(mapped_bytes)
    count = min(cores(), max_threads)
    waiting: deque[Future[_Result]] = deque()

    def done(item: _Item) -> _Result:
        try:
            return work(item)
        finally:
            return_freed_memory()

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
            _map_arrays(ACTIVATIONS_BYTES)


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    """Return the C library where it is glibc."""
    try:
        library = ctypes.CDLL(None)
    except OSError:  # a Python that is linked statically
        return None
    # macOS and musl have neither function
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None


def _map_arrays(nbytes: int) -> None:
    """Let the C library map arrays from this size by themselves, so that each is returned to the system once freed."""
    if (library := _glibc()) is not None:
        library.mallopt(_MMAP_THRESHOLD, nbytes)
        library.mallopt(_TRIM_THRESHOLD, 2 * nbytes)


def return_freed_memory() -> None:
    """Let the C library return what was freed to the system, where it is glibc."""
    # it keeps up to 64 MB of freed memory at the end of an arena, has one a thread, and keeps what is free within
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


def cores() -> int:
    """Cores that this process may run on."""
    # cpu_count() also counts cores that a container or taskset keeps from the process; macOS has no affinity
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
