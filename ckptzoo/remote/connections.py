"""HTTP/1.1 connections that are kept open between requests.

The standard library's client is enough: what is asked for are single ranges, read as they arrive, with every redirect,
retry and deadline decided here. It needs no package, so a zoo on a web server can be read without any extra.
"""

import http.client
import io
import math
import os
import socket
import ssl
import threading
import time
import urllib.request
import weakref
from base64 import b64encode
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

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
