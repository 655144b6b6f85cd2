"""Work ahead of the caller: order, bounds, errors."""

import threading
import time
import weakref

import pytest

from ckptzoo.derive import concurrency
from ckptzoo.derive.concurrency import in_order


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(concurrency, "cores", lambda: request.param)
    return request.param


def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    def slow(item: int) -> int:
        time.sleep(0.001 * (item * 7 % 5))
        return item * item

    assert list(in_order(slow, range(20))) == [item * item for item in range(20)]
    assert list(in_order(slow, [])) == []


def test_no_more_items_are_taken_than_are_needed(threads: int) -> None:
    taken: list[int] = []
    busy, most, lock = 0, 0, threading.Lock()
    together = threading.Barrier(threads, timeout=30)

    def items():
        for item in range(30):
            taken.append(item)
            yield item

    def work(item: int) -> int:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        if item < threads:
            together.wait()
        with lock:
            busy -= 1
        return item

    for item in in_order(work, items()):
        assert len(taken) - 1 - item <= threads
    assert most == threads


def test_an_error_comes_in_its_place_and_ends_the_work(threads: int) -> None:
    seen: list[int] = []

    def work(item: int) -> int:
        if item == 5:
            raise ValueError("five")
        return item

    with pytest.raises(ValueError, match="five"):
        seen.extend(in_order(work, range(100)))
    assert seen == list(range(5))


def test_one_more_result_than_threads_is_in_memory(threads: int) -> None:
    class Result:
        pass

    alive = set[int]()
    most, lock = 0, threading.Lock()

    def work(item: int) -> Result:
        nonlocal most
        result = Result()
        with lock:
            alive.add(item)
            most = max(most, len(alive))
        weakref.finalize(result, alive.remove, item)
        return result

    for result in in_order(work, range(30)):
        time.sleep(0.001)  # the others go on meanwhile
        del result
    assert 0 < most <= threads + 1 and not alive
