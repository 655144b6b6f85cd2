"""One GET over HTTP, answered exactly or refused: status, range and length are checked before a byte is believed.

HTTP/1.1 connections that are kept open between requests.

The standard library's client is enough: what is asked for are single ranges, read as they arrive, with every redirect,
retry and deadline decided here. It needs no package, so a zoo on a web server can be read without any extra.
"""

import contextlib
import email.utils
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
from ckptzoo.remote.retry import RetryPolicy, slow
from ckptzoo.remote.stores import CancelToken, TransientError

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 20.0
IDLE_SECONDS = 20.0
"""Connections that were idle for longer are not used again: many servers close them."""
MAX_IDLE = 16
"""Idle connections that are kept to one server."""

Origin = tuple[str, str, int]
"""Scheme, host, port."""


def origin_of(url: str) -> Origin:
    """Scheme, host and port of an address; raises ValueError for what is not http or https."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an http address: {url[:200]!r}")
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


class _Timed(io.RawIOBase):
    """A socket as a file that is read until a deadline, however few bytes come at a time."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw, self.deadline = raw, math.inf

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        """Whatever has come; TimeoutError after the deadline."""
        if time.monotonic() > self.deadline:
            raise TimeoutError("no end of it")
        return self._raw.readinto(buffer)

    def close(self) -> None:
        """Let the socket go."""
        self._raw.close()
        super().close()


class Response(http.client.HTTPResponse):
    """An answer whose head, and whatever is read of its body at once, comes within the timeout of its socket.

    The standard library bounds the silence between two bytes alone: answers of status 100, headers, sizes of chunks
    and trailers that never end, or come byte by byte, would be waited for without end.
    """

    def __init__(self, sock: socket.socket, debuglevel: int = 0, method: str | None = None, url: str | None = None):
        super().__init__(sock, debuglevel, method, url)
        self._seconds = sock.gettimeout() or math.inf
        self.fp.close()
        self._timed = _Timed(sock.makefile("rb", buffering=0))
        self.fp = io.BufferedReader(self._timed)
        self.renew()

    def renew(self) -> None:
        """Give what is read next its own time."""
        self._timed.deadline = time.monotonic() + self._seconds


class Connections:
    """Connections by origin, shared by the threads of one process; after a fork the child starts with none.

    Parameters
    ----------
    silence : seconds, the longest within an answer, and for its head.
    """

    def __init__(self, silence: float = SILENCE_SECONDS) -> None:
        self._silence = silence
        self._start()
        _ALL.add(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Origin, list[tuple[http.client.HTTPConnection, float]]] = {}
        self._trust: ssl.SSLContext | None = None
        weakref.finalize(self, _closed, self._idle)  # before the sockets' own finalizers, in a cycle too

    def __reduce__(self) -> "tuple[type[Connections], tuple[float]]":
        return Connections, (self._silence,)

    def idle(self, origin: Origin) -> http.client.HTTPConnection | None:
        """A connection that was used before, for the caller alone, or None."""
        with self._lock:
            kept = self._idle.get(origin, [])
            while kept:
                connection, since = kept.pop()
                if time.monotonic() - since < IDLE_SECONDS:
                    return connection
                connection.close()
        return None

    def fresh(self, origin: Origin) -> http.client.HTTPConnection:
        """A new connection, opened, through the proxy that the environment names for it."""
        scheme, host, port = origin
        proxy = _proxy(origin)
        at, door = (proxy.hostname or "", proxy.port or 80) if proxy else (host, port)
        if scheme == "https":
            connection = http.client.HTTPSConnection(
                at, door, timeout=min(CONNECT_SECONDS, self._silence), context=self._context()
            )
            if proxy:
                connection.set_tunnel(host, port, _credentials(proxy))
        else:
            connection = http.client.HTTPConnection(at, door, timeout=min(CONNECT_SECONDS, self._silence))
        connection.response_class = Response
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        connection.sock.settimeout(self._silence)
        return connection

    def keep(self, origin: Origin, connection: http.client.HTTPConnection) -> None:
        """Take a connection back whose last answer was read to its end."""
        with self._lock:
            kept = self._idle.setdefault(origin, [])
            if connection.sock is not None and len(kept) < MAX_IDLE:
                kept.append((connection, time.monotonic()))
                return
        connection.close()

    def close(self) -> None:
        """Close every idle connection."""
        with self._lock:
            _closed(self._idle)

    def _context(self) -> ssl.SSLContext:
        with self._lock:
            if self._trust is None:
                self._trust = ssl.create_default_context()
                self._trust.set_alpn_protocols(["http/1.1"])
            return self._trust


def _closed(idle: dict[Origin, list[tuple[http.client.HTTPConnection, float]]]) -> None:
    """Close idle connections."""
    for kept in idle.values():
        for connection, _ in kept:
            connection.close()
    idle.clear()


def target_of(url: str) -> tuple[str, dict[str, str]]:
    """What a request line asks for, and the headers that go to a proxy."""
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    proxy = _proxy(origin_of(url)) if parts.scheme == "http" else None
    return (f"http://{parts.netloc}{path}", _credentials(proxy)) if proxy else (path, {})


def _proxy(origin: Origin) -> SplitResult | None:
    scheme, host, port = origin
    named = urllib.request.getproxies().get(scheme)
    if not named or urllib.request.proxy_bypass(f"{host}:{port}"):
        return None
    return urlsplit(named if "://" in named else f"http://{named}")


def _credentials(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(pair.encode()).decode()}"}


_ALL: "weakref.WeakSet[Connections]" = weakref.WeakSet()


def _after_fork() -> None:
    for connections in _ALL:
        connections._start()  # pyright: ignore[reportPrivateUsage]


os.register_at_fork(after_in_child=_after_fork)

PIECE_BYTES = 256 * 1024
"""Most bytes that one read of the socket asks for."""
MAX_REDIRECTS = 5
MAX_DOCUMENT = 64 * 2**20

_REDIRECTS = (301, 302, 303, 307, 308)
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_RESET = re.compile(r";\s*t\s*=\s*(\d{1,6})")
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")
_AGAIN = "Try again later."
_CHECK = "Check the address, and that it may be read."

Authorize = Callable[[str], Mapping[str, str]]
"""From an address to the headers that may be sent there and nowhere else."""


def anonymous(url: str) -> Mapping[str, str]:
    """No headers for anybody."""
    return {}


@dataclass
class Answer:
    """The head of an answer, and its body to be read once.

    Parameters
    ----------
    url : who gave it, after redirects.
    status, headers : of the last answer; names of headers in small letters.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    _response: Response = field(repr=False)
    _keep: Callable[[], None] = field(repr=False)

    @property
    def length(self) -> int | None:
        """Bytes of the body, where the server says so."""
        text = self.headers.get("content-length", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None

    def pieces(self, location: str) -> Generator[bytes]:
        """The body in pieces as they arrive; an early end or a broken connection is a TransientError."""
        got = 0
        try:
            while piece := self._response.read1(PIECE_BYTES):
                got += len(piece)
                self._response.renew()
                if got == self.length:
                    self._keep()
                yield piece
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise TransientError(_problem(location, "a whole answer", _said(error))) from error
        if self.length is not None and got < self.length:
            raise TransientError(_problem(location, f"{self.length} bytes", f"{got} and then an end"))
        self._keep()  # also where there is no length, as with chunks


@contextlib.contextmanager
def get(
    connections: Connections,
    url: str,
    *,
    location: str,
    cancel: CancelToken,
    headers: Mapping[str, str],
    authorize: Authorize = anonymous,
) -> Generator[Answer]:
    """Ask for an address and follow where it leads; the connection is closed unless the body was read to its end.

    Parameters
    ----------
    location : names the thing asked for in messages; addresses that carry signatures stand in none.
    authorize : headers for one address; redirects are asked about anew, so that a token goes to its own server only.

    Raises
    ------
    TransientError
        No connection, or no answer.
    RemoteError
        Redirects that lead nowhere, or from https to http.
    """
    seen: list[str] = []
    while True:
        with _asked(connections, url, location, cancel, {**headers, **authorize(url)}) as answer:
            target = answer.headers.get("location")
            if answer.status not in _REDIRECTS or target is None:
                yield answer
                return
            with contextlib.suppress(RemoteError):
                _drain(answer, location)
        seen.append(url)
        url = _next(url, target, seen, location)


def _next(url: str, target: str, seen: list[str], location: str) -> str:
    try:
        following = urljoin(url, target)
        scheme, host, _ = origin_of(following)
    except ValueError as error:
        raise RemoteError(_problem(location, "a redirect to http or https", target[:80], _CHECK)) from error
    if scheme == "http" and urlsplit(url).scheme == "https":
        raise RemoteError(_problem(location, "a redirect to https", f"one to http://{host}", _CHECK))
    if len(seen) > MAX_REDIRECTS:
        raise RemoteError(_problem(location, f"at most {MAX_REDIRECTS} redirects", "more", _CHECK))
    return following


@contextlib.contextmanager
def _asked(
    connections: Connections, url: str, location: str, cancel: CancelToken, headers: Mapping[str, str]
) -> Generator[Answer]:
    origin = origin_of(url)
    target, to_proxy = target_of(url)
    sent = {"Accept-Encoding": "identity", "User-Agent": "ckptzoo", **headers, **to_proxy}
    host = urlsplit(url).netloc.rpartition("@")[2]
    connection, response = connections.idle(origin), None
    watched = connection.sock if connection is not None else None  # http.client forgets the socket of a last answer
    try:
        if connection is not None:
            with contextlib.suppress(
                ConnectionError, ssl.SSLError, http.client.HTTPException
            ):  # closed while it was idle
                response = _answered(connection, target, host, sent, cancel)
        if connection is None or response is None:
            if connection is not None:
                connection.close()
            connection = connections.fresh(origin)
            watched = connection.sock
            response = _answered(connection, target, host, sent, cancel)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if connection is not None:
            connection.close()
        expected = f"an answer from {urlsplit(url).hostname}"
        raise TransientError(_problem(location, expected, _said(error))) from error
    whole = False

    def keep() -> None:
        nonlocal whole
        whole = not response.will_close

    named = {name.lower(): value for name, value in response.getheaders()}
    try:
        with cancel.watching(watched):
            yield Answer(url, response.status, named, response, keep)
    finally:
        response.close()
        if whole:
            connections.keep(origin, connection)
        else:
            connection.close()


def _answered(
    connection: http.client.HTTPConnection, target: str, host: str, headers: Mapping[str, str], cancel: CancelToken
) -> Response:
    with cancel.watching(connection.sock):
        connection.putrequest("GET", target, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": host, **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        assert isinstance(response, Response)
        return response


def refused(answer: Answer, location: str) -> RemoteError:
    """The error of an answer that does not hold what was asked for."""
    said = f"status {answer.status}"
    if detail := answer.headers.get("x-error-message") or answer.headers.get("x-error-code"):
        said += f" ({shown(detail, 120)})"
    if answer.status in _BUSY:
        return TransientError(_problem(location, "an answer", said), wait=waiting(answer.headers))
    if answer.status in (404, 410):
        return AbsentError(_problem(location, "a file", said, _CHECK))
    if answer.status in (401, 403):
        return RemoteError(_problem(location, "leave to read it", said, "Log in with hf auth login, or ask its owner."))
    return RemoteError(_problem(location, "an answer", said, _CHECK))


def waiting(headers: Mapping[str, str]) -> float | None:
    """Seconds that a busy server asks for: ``ratelimit: "resolvers";r=0;t=37``, or Retry-After in either form."""
    if matched := _RESET.search(headers.get("ratelimit", "")):
        return float(matched[1])
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit() and len(text) < 7:
        return float(text)
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time()) if text else None
    return None


def ranged(start: int, stop: int, size: int) -> dict[str, str]:
    """The header that asks for bytes ``start`` to ``stop``; none for a whole file."""
    return {} if (start, stop) == (0, size) else {"Range": f"bytes={start}-{stop - 1}"}


def body(answer: Answer, start: int, stop: int, size: int, *, location: str) -> Generator[bytes]:
    """The bytes of a range, after status, Content-Range and length were compared with what was asked.

    Raises
    ------
    TransientError
        Another range, another length, or a whole file where a part was asked for: a few such answers are borne.
    """
    asked = f"bytes {start}-{stop - 1}/{size}"
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise _strange(location, "bytes as they are", f"{answer.headers['content-encoding']} encoding")
    if answer.status == 206:
        matched = _RANGE.fullmatch(answer.headers.get("content-range", ""))
        got = matched and (int(matched[1]), int(matched[2]) + 1, size if matched[3] == "*" else int(matched[3]))
        if got != (start, stop, size):
            raise _strange(location, asked, answer.headers.get("content-range", "no Content-Range")[:80])
    elif answer.status != 200:
        raise refused(answer, location)
    elif (start, stop) != (0, size):
        raise _strange(location, f"status 206 with {asked}", "status 200; the server may not serve ranges")
    if answer.length not in (None, stop - start):
        raise _strange(location, f"{stop - start} bytes", f"{answer.length}")
    left = stop - start
    for piece in answer.pieces(location):
        if len(piece) > left:
            raise _strange(location, f"{stop - start} bytes", "more")
        left -= len(piece)
        yield piece
    if left:
        raise TransientError(_problem(location, f"{stop - start} bytes", f"{stop - start - left} and then an end"))


def document(
    answer: Answer, *, location: str, retry_policy: RetryPolicy | None = None, max_bytes: int = MAX_DOCUMENT
) -> bytes:
    """A whole answer of unknown size, bounded, unpacked where it came as gzip.

    Raises
    ------
    TransientError
        It breaks off, or comes more slowly than one attempt may take.
    RemoteError
        It is too large, or no such answer.
    """
    if answer.status != 200:
        raise refused(answer, location)
    packed = answer.headers.get("content-encoding") == "gzip"
    unpack, retry_policy = zlib.decompressobj(31), retry_policy or RetryPolicy()
    made, came, began = bytearray(), 0, time.monotonic()
    try:
        for piece in answer.pieces(location):
            came, used = came + len(piece), time.monotonic() - began
            if used > retry_policy.attempt + came / retry_policy.slowest:
                raise TransientError(slow(location, "answer", retry_policy, came, used))
            made += unpack.decompress(piece, max_bytes + 1 - len(made)) if packed else piece
            if len(made) > max_bytes:
                raise RemoteError(_problem(location, f"at most {max_bytes} bytes", "more", _CHECK))
    except zlib.error as error:
        raise TransientError(_problem(location, "gzip", str(error))) from error
    if packed and not unpack.eof:
        raise TransientError(_problem(location, "all of a gzip stream", "a part of it"))
    return bytes(made)


def _drain(answer: Answer, location: str) -> None:
    """Read a short body to its end, so that its connection can be used again."""
    if answer.length is not None and answer.length <= PIECE_BYTES:
        for _ in answer.pieces(location):
            pass


def _strange(location: str, expected: str, got: str) -> TransientError:
    return TransientError(_problem(location, expected, got, "Use a server that serves ranges as asked."), strange=True)


def shown(text: str, most: int = 160) -> str:
    """A text of a stranger within a message: one line, bounded, nothing in it that a terminal obeys."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:most]).strip()


def _problem(location: str, expected: str, got: str, step: str = _AGAIN) -> Problem:
    return Problem(location, "answer", expected, shown(got), step)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
