"""HTTP for stores: ``get`` asks for an address, and ``body`` and ``document`` check an answer before it is believed.

An answer is checked for status, range and length; redirects are followed here, and ``ckptzoo.remote.retry`` decides
what is tried again. ``Connections`` keeps HTTP/1.1 connections open between requests. The standard library's client
is enough for single ranges that are read as they arrive, and needs no package, so a zoo on a web server can be read
without any extra.
"""

import contextlib
import http.client
import io
import math
import os
import re
import socket
import ssl
import threading
import time
import urllib.request
import weakref
import zlib
from base64 import b64encode
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from ckptzoo.errors import AbsentError, Problem, RemoteError
from ckptzoo.remote import servers
from ckptzoo.remote.retry import RETRIED_STATUSES, RetryPolicy, is_too_slow, server_wait, too_slow
from ckptzoo.remote.servers import AllowedServers, Origin, origin_of
from ckptzoo.remote.stores import CancelToken, TransientError
from ckptzoo.text import excerpt

CONNECT_SECONDS = 10.0
READ_SECONDS = 20.0
IDLE_SECONDS = 20.0
"""A connection that was idle for longer is not used again: many servers close them."""
MAX_IDLE = 32
"""Idle connections that are kept to one server: as many as ask it at a time."""
PIECE_BYTES = 256 * 1024
"""The limit of one read of the socket."""
# The number that RFC 2068, section 10.3, recommended; RFC 9110, 15.4, warns servers of clients that keep to it.
MAX_REDIRECTS = 5
MAX_DOCUMENT = 64 * 2**20
"""Bytes of an answer whose size nobody announced: a listing, or a hub's JSON."""

# Statuses whose Location is followed (RFC 9110, section 15.4).
# Every request here is a GET, and stays one with each of them.
_REDIRECTS = (301, 302, 303, 307, 308)
# Content-Range (RFC 9110, 14.4); 19 digits are enough for any file; int() raises beyond 4,300
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")
_GZIP = 31
"""The ``wbits`` of zlib for a gzip header and the largest window."""
_AGAIN = "Try again later."
_CHECK = "Check the address, and that it may be read."
_UNREACHED = "Check the network and the address, or try again later."

Authorize = Callable[[str], Mapping[str, str]]
"""From an address to the headers that may be sent there and nowhere else; ``hub_store.bearer`` compares origins."""


def anonymous(url: str) -> Mapping[str, str]:
    """Return no headers for any address."""
    return {}


@dataclass
class Answer:
    """The head of an answer, and its body to be read once.

    ``url`` is the address that gave it, after redirects, whose headers are in ``redirects``; names of headers are in
    small letters.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    _response: "_Response" = field(repr=False)
    _complete: Callable[[], None] = field(repr=False)
    redirects: tuple[Mapping[str, str], ...] = ()

    @property
    def length(self) -> int | None:
        """Bytes of the body, where the server says so."""
        text = self.headers.get("content-length", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None

    def pieces(self, location: str) -> Generator[bytes]:
        """Yield the body in pieces as they arrive; an early end or a broken connection is a TransientError."""
        received = 0
        try:
            while piece := self._response.read1(PIECE_BYTES):
                received += len(piece)
                self._response.restart_timeout()
                if received == self.length:
                    self._complete()  # now, because the reader of the last piece need not ask for another
                yield piece
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise TransientError(_problem(location, "a whole answer", _description(error))) from error
        if self.length is not None and received < self.length:
            raise TransientError(_problem(location, f"{self.length} bytes", f"{received} and then an end"))
        self._complete()  # also where no length was announced, as with chunks


@contextlib.contextmanager
def get(
    connections: "Connections",
    url: str,
    *,
    location: str,
    cancel: CancelToken,
    headers: Mapping[str, str],
    authorize: Authorize = anonymous,
    redirected: Callable[[str, Mapping[str, str]], None] | None = None,
) -> Generator[Answer]:
    """Ask for an address and follow redirects; the connection is closed unless the body was read to its end.

    Raises TransientError: no connection, or no answer. Raises RemoteError: redirects that lead nowhere, or from https
    to http.

    ``location`` names the requested object in messages; addresses that carry signatures are in none. ``authorize``
    returns the headers for one address; it is called again for every redirect, so that a token goes to its own server
    only. ``redirected`` is called with the address and the headers of every redirect before it is followed.
    """
    redirects: list[Mapping[str, str]] = []
    while True:
        with _exchange(connections, url, location, cancel, {**headers, **authorize(url)}) as answer:
            target = answer.headers.get("location")
            if answer.status not in _REDIRECTS or target is None:
                answer.redirects = tuple(redirects)
                yield answer
                return
            with contextlib.suppress(RemoteError):
                _drain(answer, location)
        redirects.append(answer.headers)
        url = _redirected(url, target, len(redirects), location)
        if redirected is not None:
            redirected(url, redirects[-1])


def body(answer: Answer, start: int, stop: int, size: int, *, location: str) -> Generator[bytes]:
    """Yield the bytes of a range, after status, Content-Range and length were compared with the request.

    Raises TransientError: another range, another length, or a whole file where a part was asked for; ``retry`` allows
    few such answers.
    """
    requested = f"bytes {start}-{stop - 1}/{size}"
    # offsets of a range count bytes of the encoded form, which no digest of a zoo is of (RFC 9110, 14.1.2)
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise _protocol_error(location, "bytes as they are", f"{answer.headers['content-encoding']} encoding")
    if answer.status == 206:
        matched = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
        got = matched and (int(matched[1]), int(matched[2]) + 1, size if matched[3] == "*" else int(matched[3]))
        if got != (start, stop, size):
            raise _protocol_error(location, requested, answer.headers.get("content-range", "no Content-Range")[:80])
    elif answer.status != 200:
        raise refusal(answer, location)
    elif (start, stop) != (0, size):
        # a server may ignore Range and send everything (RFC 9110, 14.2)
        raise _protocol_error(location, f"status 206 with {requested}", "status 200; the server may not serve ranges")
    if answer.length not in (None, stop - start):
        raise _protocol_error(location, f"{stop - start} bytes", f"{answer.length}")
    missing = stop - start
    for piece in answer.pieces(location):
        if len(piece) > missing:
            raise _protocol_error(location, f"{stop - start} bytes", f"more than {stop - start}")
        missing -= len(piece)
        yield piece
    if missing:
        got = f"{stop - start - missing} and then an end"
        raise TransientError(_problem(location, f"{stop - start} bytes", got))


def document(
    answer: Answer, *, location: str, retry_policy: RetryPolicy | None = None, max_bytes: int = MAX_DOCUMENT
) -> bytes:
    """Return a whole answer of unknown size, bounded, unpacked where it came as gzip.

    Raises TransientError: it breaks off, or comes more slowly than one connection may. Raises RemoteError: it is too
    large, or no such answer.
    """
    if answer.status != 200:
        raise refusal(answer, location)
    is_packed = answer.headers.get("content-encoding") == "gzip"
    unpacker, retry_policy = zlib.decompressobj(_GZIP), retry_policy or RetryPolicy()
    data, received, began = bytearray(), 0, time.monotonic()
    try:
        for piece in answer.pieces(location):
            received, seconds = received + len(piece), time.monotonic() - began
            if is_too_slow(retry_policy, received, seconds):
                raise TransientError(too_slow(location, "answer", retry_policy, received, seconds))
            # one byte more than allowed is enough to know, however much a small piece unpacks to
            data += unpacker.decompress(piece, max_bytes + 1 - len(data)) if is_packed else piece
            if len(data) > max_bytes:
                raise RemoteError(
                    _problem(location, f"at most {max_bytes} bytes", f"more than {max_bytes} bytes", _CHECK)
                )
    except zlib.error as error:
        raise TransientError(_problem(location, "gzip", str(error))) from error
    if is_packed and not unpacker.eof:
        raise TransientError(_problem(location, "all of a gzip stream", "a part of it"))
    return bytes(data)


def refusal(answer: Answer, location: str) -> RemoteError:
    """Return the error of an answer that does not hold the requested object."""
    got = f"status {answer.status}"
    if detail := answer.headers.get("x-error-message") or answer.headers.get("x-error-code"):  # those of the hub
        got += f" ({excerpt(detail, 120)})"
    if answer.status in RETRIED_STATUSES:
        return TransientError(_problem(location, "an answer", got), wait=server_wait(answer.headers))
    # 410 is a 404 that is likely to last (RFC 9110, 15.5.11)
    if answer.status in (404, 410):
        return AbsentError(_problem(location, "a file", got, _CHECK))
    if answer.status in (401, 403):
        return RemoteError(
            _problem(location, "permission to read it", got, "Log in with hf auth login, or ask its owner.")
        )
    return RemoteError(_problem(location, "an answer", got, _CHECK))


def range_header(start: int, stop: int, size: int) -> dict[str, str]:
    """Return the header that asks for bytes ``start`` to ``stop``; none for a whole file.

    >>> range_header(0, 10, 20), range_header(0, 20, 20)
    ({'Range': 'bytes=0-9'}, {})
    """
    return {} if (start, stop) == (0, size) else {"Range": f"bytes={start}-{stop - 1}"}


# httpx in place of what follows was measured (httpx2 2.16, benchmarks/remote.py --checkpoints 16, medians of 5) and is
# more than 3 % slower: 2.11 against 1.81 s for a layer of 16 x 9.44 MB, 1.25 against 0.77 s for one checkpoint. It also
# fails test_lies of tests/faults/test_hostile_answers.py: its timeouts are per read, so "status 100 for ever", "a head
# byte by byte" and "chunk sizes byte by byte", each by itself, had not ended after 12 s with a deadline of 1 s.
class Connections:
    """Connections by origin, shared by the threads of one process; after a fork the child starts with none.

    ``read_timeout`` is the longest silence within an answer, and the longest time for its head, in seconds. With
    ``allowed`` no other servers are connected to, whatever addresses and redirects name them.
    """

    def __init__(self, read_timeout: float = READ_SECONDS, allowed: AllowedServers | None = None) -> None:
        self._read_timeout, self._allowed = read_timeout, allowed
        self._reset()
        _ALL.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Origin, list[tuple[http.client.HTTPConnection, float]]] = {}
        self._proxies: dict[Origin, SplitResult | None] = {}
        self._ssl: ssl.SSLContext | None = None
        weakref.finalize(self, _close_all, self._idle)  # before the sockets' own finalizers, in a cycle too

    def __reduce__(self) -> "tuple[type[Connections], tuple[float, AllowedServers | None]]":
        # locks and sockets cannot be pickled
        return Connections, (self._read_timeout, self._allowed)

    def take_idle(self, origin: Origin) -> http.client.HTTPConnection | None:
        """Return a connection that was used before, for the caller alone, or None."""
        with self._lock:
            idle = self._idle.get(origin, [])
            while idle:
                # the last that was given back is the least likely to be closed by now
                connection, since = idle.pop()
                if time.monotonic() - since < IDLE_SECONDS:
                    return connection
                connection.close()
        return None

    def connect(self, origin: Origin, location: str) -> http.client.HTTPConnection:
        """Open a new connection, through the proxy that the environment names for it.

        Raises RemoteError: the server is not among those that are allowed.
        """
        scheme, host, port = origin
        proxy = self.proxy(origin)
        addresses = self._allowed.addresses(origin, location) if self._allowed is not None else []
        peer, peer_port = (proxy.hostname or "", proxy.port or 80) if proxy else (host, port)
        timeout = min(CONNECT_SECONDS, self._read_timeout)
        connection = http.client.HTTPConnection(peer, peer_port, timeout=timeout)
        # the library would connect again by itself, and unencrypted
        connection.auto_open = False
        connection.response_class = _Response
        if proxy and scheme == "https":
            # a proxy would look the name up itself; IPv4 first, because http.client of Python 3.11 sends IPv6 bare
            target = min(addresses, key=lambda address: ":" in address, default=host)
            connection.set_tunnel(target, port, _proxy_credentials(proxy))
        try:
            if addresses and not proxy:
                connection.sock = servers.connect(addresses, port, timeout, location, host)
            else:
                connection.connect()
            if scheme == "https":
                connection.sock = self._ssl_context().wrap_socket(connection.sock, server_hostname=host)
        except BaseException:  # KeyboardInterrupt too: nobody else knows of the socket
            connection.close()
            raise
        connection.sock.settimeout(self._read_timeout)
        return connection

    def proxy(self, origin: Origin) -> SplitResult | None:
        """Return the proxy that the environment named for a server when it was asked first: a look reads all of it."""
        if origin not in self._proxies:
            self._proxies[origin] = _proxy(origin)
        return self._proxies[origin]

    def give_back(self, origin: Origin, connection: http.client.HTTPConnection) -> None:
        """Keep a connection whose last answer was read to its end for the next request."""
        with self._lock:
            idle = self._idle.setdefault(origin, [])
            if connection.sock is not None and len(idle) < MAX_IDLE:
                idle.append((connection, time.monotonic()))
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            _close_all(self._idle)

    def _ssl_context(self) -> ssl.SSLContext:
        with self._lock:
            if self._ssl is None:
                self._ssl = ssl.create_default_context()
                # http.client offers it with a context of its own making only
                self._ssl.set_alpn_protocols(["http/1.1"])
            return self._ssl


_ALL: "weakref.WeakSet[Connections]" = weakref.WeakSet()


def _reset_after_fork() -> None:
    """Forget the connections of the parent process: two processes that read one socket would share its answers."""
    for connections in _ALL:
        connections._reset()  # pyright: ignore[reportPrivateUsage]


os.register_at_fork(after_in_child=_reset_after_fork)


def _close_all(idle: dict[Origin, list[tuple[http.client.HTTPConnection, float]]]) -> None:
    for connections in idle.values():
        for connection, _ in connections:
            connection.close()
    idle.clear()


class _DeadlineReader(io.RawIOBase):
    """A socket as a file that is read until a deadline, however few bytes come at a time."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw, self.deadline = raw, math.inf

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        """Read whatever has come; raise TimeoutError after the deadline."""
        if time.monotonic() > self.deadline:
            raise TimeoutError("no end of it")
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer whose head, and whatever is read of its body at once, comes within the timeout of its socket.

    The standard library limits the silence between two bytes only: answers of status 100, headers, sizes of chunks
    and trailers that never end, or come byte by byte, would be waited for without end.
    """

    def __init__(self, sock: socket.socket, debuglevel: int = 0, method: str | None = None, url: str | None = None):
        super().__init__(sock, debuglevel, method, url)
        self._seconds = sock.gettimeout() or math.inf
        self.fp.close()  # a buffered file of the library's own, from which nothing was read yet
        self._reader = _DeadlineReader(sock.makefile("rb", buffering=0))
        self.fp = io.BufferedReader(self._reader)
        self.restart_timeout()

    def restart_timeout(self) -> None:
        """Allow the whole timeout for what is read next."""
        self._reader.deadline = time.monotonic() + self._seconds


@contextlib.contextmanager
def _exchange(
    connections: Connections, url: str, location: str, cancel: CancelToken, headers: Mapping[str, str]
) -> Generator[Answer]:
    """Make one request and yield its answer, without redirects."""
    origin = origin_of(url)
    target, proxy_headers = _request_target(url, connections.proxy(origin) if origin[0] == "http" else None)
    sent = {"Accept-Encoding": "identity", "User-Agent": "ckptzoo", **headers, **proxy_headers}
    # the header Host has no user information (RFC 9110, 7.2)
    host = urlsplit(url).netloc.rpartition("@")[2]
    connection, response = connections.take_idle(origin), None
    # kept here, because http.client drops the socket when the server announces that it closes the connection
    sock = connection.sock if connection is not None else None
    try:
        if connection is not None:
            # the server may have closed it while it was idle: that is no failure, and costs no attempt
            with contextlib.suppress(ConnectionError, ssl.SSLError, http.client.HTTPException):
                response = _send(connection, target, host, sent, cancel)
        if connection is None or response is None:
            if connection is not None:
                connection.close()
            connection = connections.connect(origin, location)
            sock = connection.sock
            response = _send(connection, target, host, sent, cancel)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if connection is not None:
            connection.close()
        expected = f"an answer from {urlsplit(url).hostname}"
        raise TransientError(_problem(location, expected, _description(error), _UNREACHED)) from error
    is_reusable = False

    def complete() -> None:
        nonlocal is_reusable
        is_reusable = not response.will_close

    lowered = {name.lower(): value for name, value in response.getheaders()}
    try:
        with cancel.watching(sock):
            yield Answer(url, response.status, lowered, response, complete)
    finally:
        response.close()
        if is_reusable:
            connections.give_back(origin, connection)
        else:
            connection.close()


def _send(
    connection: http.client.HTTPConnection, target: str, host: str, headers: Mapping[str, str], cancel: CancelToken
) -> _Response:
    with cancel.watching(connection.sock):
        # putrequest would add a Host and an Accept-Encoding of its own to those sent below
        connection.putrequest("GET", target, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": host, **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        assert isinstance(response, _Response)
        return response


def _redirected(url: str, target: str, count: int, location: str) -> str:
    try:
        following = urljoin(url, target)
        scheme, host, _ = origin_of(following)
    except ValueError as error:
        raise RemoteError(_problem(location, "a redirect to http or https", target[:80], _CHECK)) from error
    # an attacker on the way could answer the second request
    if scheme == "http" and urlsplit(url).scheme == "https":
        raise RemoteError(_problem(location, "a redirect to https", f"one to http://{host}", _CHECK))
    if count > MAX_REDIRECTS:
        raise RemoteError(_problem(location, f"at most {MAX_REDIRECTS} redirects", "more", _CHECK))
    return following


def _drain(answer: Answer, location: str) -> None:
    """Read a short body to its end, so that its connection can be used again."""
    if answer.length is not None and answer.length <= PIECE_BYTES:
        # HTTP/1.1 has no other way to the next answer on a connection (RFC 9112, 9.3)
        for _ in answer.pieces(location):
            pass


def _request_target(url: str, proxy: SplitResult | None) -> tuple[str, dict[str, str]]:
    """Return the target of the request line, and the headers that go to a proxy.

    A proxy of plain HTTP is asked for the whole address (RFC 9112, 3.2.2); for https there is a tunnel through it.
    """
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return (f"http://{parts.netloc}{path}", _proxy_credentials(proxy)) if proxy else (path, {})


def _proxy(origin: Origin) -> SplitResult | None:
    """Return the proxy that ``http_proxy``, ``https_proxy`` and ``no_proxy`` name for a server."""
    scheme, host, port = origin
    proxy = urllib.request.getproxies().get(scheme)
    if not proxy or urllib.request.proxy_bypass(f"{host}:{port}"):
        return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _proxy_credentials(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def _protocol_error(location: str, expected: str, got: str) -> TransientError:
    problem = _problem(location, expected, got, "Use a server that serves ranges as asked.")
    return TransientError(problem, protocol_error=True)


def _problem(location: str, expected: str, got: str, step: str = _AGAIN) -> Problem:
    return Problem(location, "answer", expected, excerpt(got, 160), step)


def _description(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
