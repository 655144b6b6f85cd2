"""Faults of a server are tried again, resumed at the next byte, or given up in time; wrong bytes are never read."""

import contextlib
import threading
import time
import warnings
from collections.abc import Iterator
from itertools import pairwise

import pytest

from ckptzoo.errors import AbsentError, RemoteError
from ckptzoo.remote.http import Connections
from ckptzoo.remote.retry import MAX_PROTOCOL_ERRORS, SAID_SECONDS, Cancelled, RetryPolicy, read_range, server_wait
from ckptzoo.remote.stores import CancelToken, FileEntry
from ckptzoo.remote.web_store import StaticStore
from tests.support.serving import Fault, Served, running

DATA = bytes(range(256)) * 4096
FILE = "file"


@pytest.fixture
def served() -> Iterator[Served]:
    with running(Served({"/file": DATA})) as server:
        yield server


def store_of(served: Served, size: int = len(DATA)) -> StaticStore:
    return StaticStore(served.url, "x", {FILE: FileEntry(FILE, size)}, Connections(0.4))


def read(served: Served, retry_policy: RetryPolicy, start: int = 1000, stop: int = 900_000) -> bytes:
    with contextlib.closing(
        read_range(store_of(served), FILE, start, stop, retry_policy=retry_policy, cancel=CancelToken())
    ) as pieces:
        return b"".join(pieces)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["short", "reset", "hangup", "down", "busy", "limited", "whole", "shifted", "less", "packed", "stall"]
)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.sampled(2)
def test_transient_faults_lose_no_byte(served: Served, quick: RetryPolicy, kind: str, times: int) -> None:
    served.faults.append(Fault(kind, times))
    assert read(served, quick) == DATA[1000:900_000]
    assert len(served.seen) == times + 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["short", "reset", "stall"])
def test_only_missing_bytes_are_asked_for_again(served: Served, quick: RetryPolicy, kind: str) -> None:
    served.faults.append(Fault(kind, 3))
    assert read(served, quick) == DATA[1000:900_000]
    starts = [int((item.range or "").removeprefix("bytes=").split("-")[0]) for item in served.seen]
    assert starts[0] == 1000 and starts == sorted(starts) and all(b > a for a, b in pairwise(starts))
    if kind == "short":  # each brings half of what is left; a reset may take with it what was under way
        assert served.sent == 900_000 - 1000


def test_a_whole_file_may_come_with_status_200(served: Served, quick: RetryPolicy) -> None:
    assert read(served, quick, 0, len(DATA)) == DATA
    assert served.seen[0].range is None and len(served.seen) == 1


def test_a_server_without_ranges_is_given_up_soon(served: Served, quick: RetryPolicy) -> None:
    served.faults.append(Fault("whole", 99))
    with pytest.raises(RemoteError, match="may not serve ranges"):
        read(served, quick)
    assert len(served.seen) == MAX_PROTOCOL_ERRORS


def test_a_file_of_another_size_is_refused(served: Served, quick: RetryPolicy) -> None:
    wrong = StaticStore(served.url, "x", {FILE: FileEntry(FILE, len(DATA) + 5)}, Connections(0.4))
    for start, stop in ((10, 20), (0, len(DATA) + 5)):
        with pytest.raises(RemoteError):
            b"".join(read_range(wrong, FILE, start, stop, retry_policy=quick, cancel=CancelToken()))


@pytest.mark.parametrize("kind", ["down", "hangup", "reset"])
def test_a_permanent_fault_ends_in_time(served: Served, kind: str) -> None:
    served.faults.append(Fault(kind, 10**9))
    began = time.monotonic()
    with pytest.raises(RemoteError, match=r"127.0.0.1.*expected"):
        read(served, RetryPolicy(deadline=0.5, min_bytes_per_second=10**9, first_pause=0.01))
    assert time.monotonic() - began < 5
    assert len(served.seen) > 2


def test_a_slow_connection_is_closed_and_in_the_end_given_up(served: Served) -> None:
    served.faults.append(Fault("trickle", 10**9, wait="0.01"))
    began = time.monotonic()
    with pytest.raises(RemoteError, match="at least 10000 bytes a second"):
        read(served, RetryPolicy(deadline=1.0, connection_deadline=0.2, min_bytes_per_second=10_000, first_pause=0.01))
    assert time.monotonic() - began < 10
    assert 2 <= len(served.seen) < 12  # about one every 0.2 s


def test_a_slow_but_steady_server_is_not_given_up(served: Served) -> None:
    served.faults.append(Fault("trickle", 1, wait="0.001"))
    retry_policy = RetryPolicy(deadline=0.2, connection_deadline=0.1, min_bytes_per_second=50, first_pause=0.01)
    assert read(served, retry_policy, 10, 400) == DATA[10:400]
    assert len(served.seen) == 1


def test_a_slow_reader_is_not_taken_for_a_slow_server(served: Served) -> None:
    retry_policy = RetryPolicy(deadline=0.2, connection_deadline=0.1, min_bytes_per_second=10**9, first_pause=0.01)
    got = b""
    with contextlib.closing(
        read_range(store_of(served), FILE, 1, len(DATA), retry_policy=retry_policy, cancel=CancelToken())
    ) as pieces:
        for piece in pieces:
            got += piece
            time.sleep(0.15)
    assert got == DATA[1:]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["limited", pytest.param("busy", marks=pytest.mark.exhaustive)])
def test_a_busy_server_is_tried_again_after_the_wait_it_asks_for(served: Served, kind: str) -> None:
    served.faults.append(Fault(kind, 1, wait="1"))
    began = time.monotonic()
    assert (
        read(served, RetryPolicy(deadline=0.3, connection_deadline=0.3, first_pause=0.01, max_server_wait=2.0))
        == DATA[1000:900_000]
    )
    assert 1.0 <= time.monotonic() - began < 3


def test_a_long_wait_is_said_once_and_a_short_one_not_at_all(
    served: Served, quick: RetryPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptzoo.remote.retry._said", -SAID_SECONDS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        served.faults.append(Fault("busy", 2))
        assert read(served, quick) == DATA[1000:900_000]
    monkeypatch.setattr("ckptzoo.remote.retry.SILENT_SECONDS", 0.0)
    with pytest.warns(UserWarning) as warned:
        for _ in range(2):
            served.faults.append(Fault("busy", 2))
            assert read(served, quick) == DATA[1000:900_000]
    got = f"{served.url}/file: answer: expected an answer, got status 429. Trying again in 1 s."
    assert [str(item.message) for item in warned] == [got]


def test_too_long_a_wait_is_not_waited_for(served: Served) -> None:
    served.faults.append(Fault("limited", 10**9, wait="300"))
    began = time.monotonic()
    with pytest.raises(RemoteError, match="status 429"):
        read(served, RetryPolicy(deadline=0.3, connection_deadline=0.3, first_pause=0.01, max_server_wait=2.0))
    assert time.monotonic() - began < 3


def test_the_headers_that_ask_for_a_wait() -> None:
    assert server_wait({"ratelimit": '"resolvers";r=0;t=37', "retry-after": "5"}) == 37
    assert server_wait({"retry-after": "5"}) == 5
    assert server_wait({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    assert server_wait({"retry-after": "soon"}) is None and server_wait({}) is None


@pytest.mark.parametrize("status", ["forbidden"])
def test_a_refusal_is_final(served: Served, quick: RetryPolicy, status: str) -> None:
    served.faults.append(Fault(status, 99))
    with pytest.raises(RemoteError, match="permission to read it"):
        read(served, quick)
    assert len(served.seen) == 1


def test_a_missing_file_is_final(served: Served, quick: RetryPolicy) -> None:
    del served.files["/file"]
    with pytest.raises(AbsentError, match="status 404"):
        read(served, quick)
    assert len(served.seen) == 1


def test_no_server_at_all(quick: RetryPolicy) -> None:
    with running(Served({})) as server:
        url = server.url
    with pytest.raises(RemoteError, match=r"an answer from 127\.0\.0\.1"):
        b"".join(
            read_range(
                StaticStore(url, "", {FILE: FileEntry(FILE, 5)}, Connections(0.4)),
                FILE,
                0,
                5,
                retry_policy=quick,
                cancel=CancelToken(),
            )
        )


def test_connections_are_kept_open_and_replaced_when_closed(served: Served, quick: RetryPolicy) -> None:
    store = store_of(served)
    for start in range(5):
        pieces = read_range(store, FILE, start, start + 10, retry_policy=quick, cancel=CancelToken())
        assert b"".join(pieces) == DATA[start : start + 10]
    idle = store._connections._idle  # type: ignore[reportPrivateUsage]
    ((connection, _),) = next(iter(idle.values()))
    connection.sock.shutdown(2)  # as a server does to idle ones
    assert (
        b"".join(read_range(store, FILE, 9, 19, retry_policy=RetryPolicy(deadline=0.0), cancel=CancelToken()))
        == DATA[9:19]
    )
    assert len(served.seen) == 6


@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
@pytest.mark.parametrize("kind", ["stall", "limited"])
def test_a_reader_who_leaves_is_not_waited_for(kind: str, version: str) -> None:
    with running(Served({"/file": DATA}, [Fault(kind, 99, wait="20")]), protocol_version=version) as served:
        store = StaticStore(served.url, "x", {FILE: FileEntry(FILE, len(DATA))}, Connections(20.0))
        cancel = CancelToken()
        threading.Timer(0.2, cancel).start()
        began = time.monotonic()
        with pytest.raises(Cancelled):
            b"".join(read_range(store, FILE, 10, 900_000, retry_policy=RetryPolicy(), cancel=cancel))
        assert time.monotonic() - began < 3


def test_a_server_that_closes_every_connection(quick: RetryPolicy) -> None:
    with running(Served({"/file": DATA}), protocol_version="HTTP/1.0") as served:
        for _ in range(3):
            assert read(served, quick) == DATA[1000:900_000]


def test_pauses_grow_and_are_bounded() -> None:
    pauses = [RetryPolicy().pause(failures) for failures in range(1, 40)]
    assert all(0.125 * 2**at <= pause <= 0.25 * 2**at for at, pause in enumerate(pauses[:6]))
    assert max(pauses) <= 30 and min(pauses[10:]) >= 15
