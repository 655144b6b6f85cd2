"""Work ahead and behind: order, bounds, errors."""

import threading
import time

import pytest

from ckptzoo.derive import concurrency
from ckptzoo.derive.concurrency import BackgroundWriter, in_order


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(concurrency, "_cores", lambda: request.param)
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


def test_calls_behind_are_made_one_at_a_time_in_order() -> None:
    made: list[int] = []
    lock = threading.Lock()

    def call(item: int) -> None:
        assert lock.acquire(blocking=False)
        time.sleep(0.001)
        made.append(item)
        lock.release()

    with BackgroundWriter() as behind:
        for item in range(10):
            behind(call, item)
            assert len(made) >= item
    assert made == list(range(10))


@pytest.mark.parametrize("last", [True, False])
def test_an_error_behind_is_raised_by_the_next_call_or_at_the_end(last: bool) -> None:
    def fail() -> None:
        raise ValueError("behind")

    made: list[int] = []
    with pytest.raises(ValueError, match="behind"), BackgroundWriter() as behind:
        behind(fail)
        if not last:
            behind(made.append, 1)
    assert made == []


def test_an_error_before_is_not_hidden_by_one_behind() -> None:
    def fail() -> None:
        raise ValueError("behind")

    with pytest.raises(KeyError), BackgroundWriter() as behind:
        behind(fail)
        raise KeyError
