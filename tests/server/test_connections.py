"""Connections that send slowly or not at all, and too many of them."""

import http.client
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from ckptzoo.server import run
from ckptzoo.server.connections import network_of
from ckptzoo.server.limits import ServerLimits
from tests.support.hosted import ZOO, Hosted, ask, hosted, push

LIMITS = replace(ServerLimits(), head_seconds=0.3, body_seconds=0.3, body_rate=1000, connections=6)


@pytest.fixture
def bounded(tmp_path: Path) -> Iterator[Hosted]:
    """A server that waits for 0.3 s, and takes six connections from an address."""
    with hosted(tmp_path, limits=LIMITS) as running:
        running.api().create_repo(ZOO, repo_type="dataset")
        yield running


def connect(server: Hosted) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET /api/datasets HTTP/1.1\r\nHo", b"POST /api/validate-yaml HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1",
     b"POST /api/validate-yaml HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n1"],
)  # fmt: skip
def test_requests_that_never_end_are_given_up(bounded: Hosted, begun: bytes) -> None:
    with ExitStack() as stack:
        sockets = [stack.enter_context(connect(bounded)) for _ in range(5)]
        for connection in sockets:
            connection.sendall(begun)
        assert all(connection.recv(1000) == b"" for connection in sockets)
    assert ask(bounded, "GET", "/api/datasets").status == 200


def test_a_request_after_another_is_given_up_as_well(bounded: Hosted) -> None:
    with connect(bounded) as connection:
        connection.sendall(b"GET /api/whoami-v2 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 401 " in connection.recv(100_000)
        connection.sendall(b"GET /api/wh")
        start = time.monotonic()
        while connection.recv(100_000):
            pass
        assert time.monotonic() - start < 5


def test_bodies_that_trickle_are_given_up(bounded: Hosted) -> None:
    with connect(bounded) as connection, pytest.raises(OSError):
        connection.sendall(b"POST /api/validate-yaml HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(200):
            connection.sendall(b" ")
            time.sleep(0.02)


CHUNKED = b"POST /api/validate-yaml HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n%b\r\n"


def test_bodies_in_tiny_chunks_are_given_up(server: Hosted) -> None:
    with connect(server) as connection:
        connection.sendall(CHUNKED % b"" + b"1\r\n{\r\n" * 20_000)
        with pytest.raises(ConnectionError):
            assert connection.recv(1000) == b""
            raise ConnectionResetError
    with connect(server) as connection:
        line = b"7d0\r\n" + b" " * 2000 + b"\r\n"
        connection.sendall(CHUNKED % b"" + line * 120 + b"1\r\n \r\n" * 100 + b'e\r\n{"content":""}\r\n0\r\n\r\n')
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_bodies_with_two_lengths_are_refused(server: Hosted) -> None:
    with connect(server) as connection:
        connection.sendall(CHUNKED % b"Content-Length: 4\r\n" + b"2\r\n{}\r\n0\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400")


def large_file(server: Hosted) -> str:
    """The signed path of a file of 64 MiB, more than the kernel buffers of a connection."""
    push(server, {"large.safetensors": bytes(64 * 2**20)})
    location = ask(server, "HEAD", f"/datasets/{ZOO}/resolve/main/large.safetensors").headers["location"]
    return location.removeprefix(server.url)


def test_answers_that_nobody_reads_are_given_up(bounded: Hosted) -> None:
    path = large_file(bounded)
    with ExitStack() as stack:
        for _ in range(6):
            connection = stack.enter_context(connect(bounded))
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        time.sleep(2)
        # all six that the address may hold have been closed
        assert ask(bounded, "GET", "/api/datasets").status == 200


@pytest.mark.exhaustive
def test_answers_that_are_read_slowly_arrive(bounded: Hosted) -> None:
    path, size = large_file(bounded), 0
    with connect(bounded) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        while data := connection.recv(2**22):
            size += len(data)
            time.sleep(0.05)
    assert size > 64 * 2**20


def test_slow_bodies_and_idle_connections_are_kept(bounded: Hosted) -> None:
    connection = http.client.HTTPConnection(bounded.url.removeprefix("http://"), timeout=10)

    def slowly() -> Iterator[bytes]:
        for _ in range(6):
            yield b" " * 500
            time.sleep(0.1)
        yield b'{"content": ""}'

    for number in range(2):
        time.sleep(0.5 * number)  # longer than a head may take
        connection.request("POST", "/api/validate-yaml", slowly(), {"Content-Length": str(6 * 500 + 15)})
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b'{"errors":[],"warnings":[]}')
    connection.close()


def test_an_address_holds_so_many_connections(bounded: Hosted) -> None:
    def status() -> int:
        return ask(bounded, "GET", "/api/datasets").status

    with ExitStack() as stack:
        for _ in range(LIMITS.connections):
            connection = http.client.HTTPConnection(bounded.url.removeprefix("http://"), timeout=10)
            stack.callback(connection.close)
            connection.request("GET", "/api/datasets")
            assert connection.getresponse().read() is not None
        with connect(bounded) as refused:
            answer = refused.recv(1000)
            assert answer.startswith(b"HTTP/1.1 503") and b"Retry-After" in answer
            assert len(answer.partition(b"\r\n\r\n")[2]) == 34
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        with connect(bounded) as again:
            again.sendall(b"GET /api/datasets HTTP/1.1\r\nHost: x\r\n\r\n")
            if again.recv(1000).startswith(b"HTTP/1.1 200"):
                break
    assert status() == 200


def test_networks() -> None:
    assert network_of("192.0.2.7") == "192.0.2.7" and network_of("") == ""
    assert network_of("2001:db8:1:2:3::4") == network_of("2001:db8:1:2:ffff::") == "2001:db8:1:2::/64"
    assert network_of("fe80::1%eth0") == "fe80::/64"


def test_computing_threads_soon_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = sys.getswitchinterval(), []

    class Recorder:
        def run(self, sockets: object) -> None:
            seen.append(sys.getswitchinterval())

    monkeypatch.setattr(run, "_server", lambda *_: Recorder())

    async def nothing(*_: object) -> None: ...

    try:
        run.serve(nothing, "127.0.0.1", 0, print)
    finally:
        sys.setswitchinterval(before)
    assert seen[0] < before / 5
