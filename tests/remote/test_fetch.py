"""Blocks in order or as they are ready: in parallel, ahead of the reader, in limited memory, checked, and stopped."""

import hashlib
import random
import threading
import time
from collections.abc import Generator, Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import IntegrityError, RemoteError
from ckptzoo.remote.http import Connections
from ckptzoo.remote.remote import Remote
from ckptzoo.remote.retry import RetryPolicy
from ckptzoo.remote.stores import CancelToken, FileEntry
from ckptzoo.remote.web_store import StaticStore
from ckptzoo.schema.layout import Span
from tests.support.effort import examples
from tests.support.serving import Fault, Served, running

BLOCK = 50_000
SHARDS = {f"shard-{number}": random.Random(number).randbytes(20 * BLOCK) for number in range(5)}


def block(name: str, at: int, count: int = 1) -> Span:
    start, stop = at * BLOCK, (at + count) * BLOCK
    return Span(name, start, stop, hashlib.sha256(SHARDS[name][start:stop]).digest())


LAYER = [block(name, at) for name in SHARDS for at in range(4, 16)]


@pytest.fixture
def served() -> Iterator[Served]:
    with running(Served({f"/{name}": data for name, data in SHARDS.items()})) as server:
        yield server


def remote_of(served: Served, **how: int) -> Remote:
    entries = {name: FileEntry(name, len(data)) for name, data in SHARDS.items()}
    retry_policy = RetryPolicy(deadline=1.0, connection_deadline=0.5, first_pause=0.01)
    return Remote(StaticStore(served.url, "x", entries, Connections(0.5)), None, retry_policy=retry_policy, **how)


def right(wanted: Span, data: memoryview) -> bool:
    return data == SHARDS[wanted.name][wanted.start : wanted.stop]


def test_a_layer_in_order_is_one_request_a_shard(served: Served) -> None:
    got = list(remote_of(served).in_order(LAYER))
    assert all(right(wanted, data) for wanted, data in zip(LAYER, got, strict=True))
    assert len(served.seen) == len(SHARDS)
    assert served.sent == len(LAYER) * BLOCK
    assert got[0].readonly


def test_a_layer_as_it_comes(served: Served) -> None:
    got = dict(remote_of(served).as_ready(LAYER))
    assert sorted(got) == list(range(len(LAYER)))
    assert all(right(LAYER[place], data) for place, data in got.items())
    assert len(served.seen) == len(SHARDS)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=examples(40), deadline=None)
def test_any_blocks_in_any_order_with_any_bound(data: st.DataObject) -> None:
    with running(Served({f"/{name}": content for name, content in SHARDS.items()})) as served:
        every = [block(name, at) for name in SHARDS for at in range(20)]
        wanted = data.draw(st.lists(st.sampled_from(every), unique=True, max_size=40))
        how = {
            "workers": data.draw(st.integers(1, 4)),
            "ahead": data.draw(st.sampled_from([1, BLOCK, 5 * BLOCK, 10**9])),
        }
        remote = remote_of(served, **how)
        assert all(right(a, b) for a, b in zip(wanted, remote.in_order(wanted), strict=True))
        got = dict(remote.as_ready(wanted))
        assert sorted(got) == list(range(len(wanted))) and all(right(wanted[at], b) for at, b in got.items())


def test_two_layers_in_turn_with_few_workers_and_little_room(served: Served) -> None:
    """Requests interleave, so that the reader waits for one that was not started while others wait for the reader."""
    wanted = [block(name, at) for at in range(20) for name in SHARDS]
    remote = remote_of(served, workers=1, ahead=BLOCK)
    assert all(right(a, b) for a, b in zip(wanted, remote.in_order(wanted), strict=True))
    assert len(served.seen) <= 2 * len(SHARDS)


class Counting:
    """A store without a network, which counts how many bytes it has handed out."""

    address, revision = "here", "x"
    entries: Mapping[str, FileEntry] = {name: FileEntry(name, len(data)) for name, data in SHARDS.items()}

    def __init__(self) -> None:
        self.given, self.lock = 0, threading.Lock()

    def get(self, name: str, start: int, stop: int, cancel: CancelToken) -> Generator[bytes]:
        while start < stop:
            with self.lock:
                self.given += 1000
            yield SHARDS[name][start : min(start + 1000, stop)]
            start += 1000


@pytest.mark.slow
@pytest.mark.exhaustive
def test_memory_is_bounded_and_blocks_come_ahead_of_the_reader() -> None:
    for wanted in (LAYER, [block(name, at) for at in range(20) for name in SHARDS]):
        store, taken = Counting(), 0
        for data in Remote(store, None, workers=8, ahead=4 * BLOCK).in_order(wanted):
            taken += len(data)
            time.sleep(0.01)
            assert store.given - taken <= 5 * BLOCK
        assert taken == store.given == len(wanted) * BLOCK
    store, taken, most = Counting(), 0, 0
    for _, data in Remote(store, None, workers=8, ahead=4 * BLOCK).as_ready(LAYER):
        taken += len(data)
        time.sleep(0.01)
        assert store.given - taken <= 4 * BLOCK
        most = max(most, store.given - taken)
    assert most >= BLOCK


def test_requests_run_side_by_side(served: Served) -> None:
    served.faults.append(Fault("limited", 5, wait="1"))
    began = time.monotonic()
    assert len(list(remote_of(served).in_order(LAYER))) == len(LAYER)
    assert time.monotonic() - began < 3  # each of five requests waited for a second


def test_a_wrong_block_is_fetched_again_alone(served: Served) -> None:
    served.faults.append(Fault("wrong", 1, path="shard-2"))
    assert all(right(a, b) for a, b in zip(LAYER, remote_of(served).in_order(LAYER), strict=True))
    assert len(served.seen) == len(SHARDS) + 1
    assert served.sent == (len(LAYER) + 1) * BLOCK


def test_a_block_that_stays_wrong_is_never_handed_out(served: Served) -> None:
    served.files["/shard-3"] = SHARDS["shard-3"][: 8 * BLOCK] + b"?" * BLOCK + SHARDS["shard-3"][9 * BLOCK :]
    got: list[memoryview] = []
    with pytest.raises(IntegrityError, match=r"shard-3: sha256 of bytes 400000 to 450000"):
        got.extend(remote_of(served).in_order(LAYER))
    assert all(right(a, b) for a, b in zip(LAYER, got, strict=False))
    with pytest.raises(IntegrityError, match="shard-3"):
        for place, data in remote_of(served).as_ready(LAYER):
            assert right(LAYER[place], data)


@pytest.mark.parametrize("kind", ["short", "reset", "down", "hangup", "stall", "whole", "shifted", "busy"])
@pytest.mark.sampled(2)
def test_faults_in_every_request(served: Served, kind: str) -> None:
    served.faults.append(Fault(kind, len(SHARDS)))
    assert all(right(a, b) for a, b in zip(LAYER, remote_of(served).in_order(LAYER), strict=True))


def test_a_server_that_fails_fails_the_reader(served: Served) -> None:
    served.faults.append(Fault("down", 10**9, path="shard-4"))
    with pytest.raises(RemoteError, match="status 503"):
        list(remote_of(served).in_order(LAYER))


def test_blocks_outside_a_file_are_refused_before_any_request(served: Served) -> None:
    with pytest.raises(IntegrityError, match="blocks within 1000000 bytes"):
        list(remote_of(served).in_order([*LAYER, Span("shard-0", 999_999, 1_000_001, bytes(32))]))
    assert not served.seen


def test_a_reader_who_leaves_stops_the_requests(served: Served) -> None:
    served.faults.append(Fault("stall", 99, wait="30"))
    before = threading.active_count()
    blocks = remote_of(served).in_order(LAYER)
    next(blocks)
    began = time.monotonic()
    blocks.close()
    assert time.monotonic() - began < 0.5
    served.faults.clear()
    mine = [thread for thread in threading.enumerate() if thread.name == "ckptzoo-fetch"]
    for thread in mine:
        thread.join(2)
        assert not thread.is_alive()
    assert before > 0


def test_nothing_wanted(served: Served) -> None:
    assert list(remote_of(served).in_order([])) == [] == list(remote_of(served).as_ready([]))
    assert not served.seen
