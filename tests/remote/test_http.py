"""``http.get``: encrypted, through proxies, after redirects; answers that do not fit the request are refused."""

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptzoo.errors import RemoteError
from ckptzoo.remote import http
from ckptzoo.remote.http import Connections
from ckptzoo.remote.stores import CancelToken, TransientError
from tests.support.serving import Fault, RangeHandler, Served, running

DATA = bytes(range(256)) * 1000


class Redirecting(RangeHandler):
    """``/to/<address>`` redirects there; ``/chunks`` answers in chunks, any absolute address as a proxy does."""

    def answer(self, path: str) -> None:
        if path.startswith("/to/"):
            self.plain(302, b"moved", Location=path.removeprefix("/to/"))
        elif path == "/chunks":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for start in range(0, len(DATA), 50_000):
                piece = DATA[start : start + 50_000]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        elif self.path.startswith("http://"):  # as a proxy is asked
            self.plain(200, self.path.encode(), Seen=self.headers.get("Proxy-Authorization", "none"))
        else:
            super().answer(path)


@pytest.fixture
def served() -> Iterator[Served]:
    with running(Served({"/file": DATA}), Redirecting) as server:
        yield server


def ask(connections: Connections, url: str, **headers: str) -> bytes:
    with http.get(connections, url, location="it", cancel=CancelToken(), headers=headers) as answer:
        return http.document(answer, location="it")


@pytest.fixture
def connections() -> Iterator[Connections]:
    connections = Connections(1.0)
    yield connections
    connections.close()


def test_redirects_are_followed_within_a_bound(served: Served, connections: Connections) -> None:
    assert ask(connections, f"{served.url}/to//file") == DATA
    assert ask(connections, f"{served.url}/to/{served.url}/file") == DATA
    with pytest.raises(RemoteError, match="at most 5 redirects"):
        ask(connections, f"{served.url}/to//to/x")
    for target in ("ftp://host/file", "file:///etc/passwd"):
        with pytest.raises(RemoteError, match="a redirect to http or https"):
            ask(connections, f"{served.url}/to/{target}")


def test_chunks_and_gzip_are_unpacked_and_bounded(served: Served, connections: Connections) -> None:
    assert ask(connections, f"{served.url}/chunks") == DATA
    served.faults.append(Fault("packed", 2))
    assert ask(connections, f"{served.url}/file") == DATA
    with (
        http.get(connections, f"{served.url}/file", location="it", cancel=CancelToken(), headers={}) as answer,
        pytest.raises(RemoteError, match="at most 1000 bytes, got more than 1000 bytes"),
    ):
        http.document(answer, location="it", max_bytes=1000)
    assert ask(connections, f"{served.url}/file") == DATA


def test_a_proxy_is_used_where_the_environment_names_one(
    served: Served, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", served.url.replace("//", "//me:p%40ss@"))
    monkeypatch.setenv("no_proxy", "direct.example")
    with http.get(connections, "http://far.example/a?b=c", location="it", cancel=CancelToken(), headers={}) as answer:
        assert answer.headers["seen"] == "Basic bWU6cEBzcw=="
        assert http.document(answer, location="it") == b"http://far.example/a?b=c"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert ask(connections, f"{served.url}/file") == DATA


@pytest.fixture
def encrypted(certificate: Path) -> Iterator[Served]:
    with running(Served({"/file": DATA}), Redirecting, certificate=certificate) as server:
        yield server


def test_encrypted(
    encrypted: Served, served: Served, certificate: Path, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TransientError, match="CERTIFICATE_VERIFY_FAILED"):
        ask(Connections(1.0), f"{encrypted.url}/file")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    for _ in range(3):
        assert ask(connections, f"{encrypted.url}/file") == DATA
    with pytest.raises(RemoteError, match="a redirect to https"):
        ask(connections, f"{encrypted.url}/to/{served.url}/file")
    encrypted.faults.append(Fault("stall", 1, wait="20"))
    cancel = CancelToken()
    threading.Timer(0.2, cancel).start()
    began = time.monotonic()
    with (
        pytest.raises(TransientError),
        http.get(Connections(10.0), f"{encrypted.url}/file", location="it", cancel=cancel, headers={}) as answer,
    ):
        b"".join(answer.pieces("it"))
    assert time.monotonic() - began < 3


def test_after_a_fork_the_child_has_connections_of_its_own(served: Served, connections: Connections) -> None:
    assert ask(connections, f"{served.url}/file") == DATA
    with contextlib.closing(os.fdopen(_forked(connections, served.url), "rb")) as pipe:
        assert pipe.read() == b"right"
    assert ask(connections, f"{served.url}/file") == DATA


def _forked(connections: Connections, url: str) -> int:
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        child = os.fork()
    if child == 0:
        try:
            os.write(write, b"right" if ask(connections, f"{url}/file") == DATA else b"wrong")
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    return read
