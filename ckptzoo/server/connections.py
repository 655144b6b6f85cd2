"""Connections with bounds: how long a client may take to send and to read, and how many it may hold.

uvicorn bounds only how long a connection is idle after an answer. Without more, clients that begin requests and never
end them use up the descriptors of the process.
"""

import asyncio
import ipaddress
import resource
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from ckptzoo.server.limits import ServerLimits

# Written out, because it is sent before a request is parsed; Content-Length is that of the line of JSON.
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: 34\r\n\r\n"
    b'{"error":"Too many connections."}\n'
)
_IPV6_PREFIX = 64
"""One customer of a provider usually has all addresses with the same 64 bits (RFC 6177)."""
# The default of h11, which uvicorn takes too.
_MAX_HEAD = 2**14
"""Bytes of the head of a request."""
_BURST_PIECES, _BURST_BYTES = 200, 1024
"""A burst is more than this many pieces that arrive at once; their mean size must be at least this. A body that is sent
in chunks comes in pieces, each of which takes 12 us of the event loop, whatever its size; clients send chunks of
kilobytes.
"""
_PIECES, _PIECE_BYTES = 10_000, 256
"""The same for all pieces of a body, so that small bursts do not continue without limit."""


class ConnectionFactory:
    """Makes the connections of one server, as the protocol class that uvicorn expects, and counts them.

    ``limits`` bound how long requests may take to arrive, and how many connections an address may hold. All addresses
    together may hold a third as many as the process may open files, because each connection may have a file open
    besides. ``proxies`` are addresses that may hold as many as all together, because they serve many clients.
    """

    def __init__(self, limits: ServerLimits, proxies: Sequence[str] = ()) -> None:
        self.limits = limits
        self.proxies = frozenset(network_of(address) for address in proxies)
        self.total = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 3
        self.count: Counter[str] = Counter()

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> asyncio.Protocol:
        return _BoundedConnection(self, config, server_state, app_state, _loop)


class _BoundedConnection(H11Protocol):
    """A connection that is closed when a request arrives too slowly, or at once where there are too many."""

    def __init__(self, connections: ConnectionFactory, *arguments: Any) -> None:
        super().__init__(*arguments)
        # uvicorn makes an h11.Connection, and has no option for another class
        self.conn = self._parser = _Parser()
        self._all, self._limits = connections, connections.limits
        self._address = ""
        self._timer: asyncio.TimerHandle | None = None
        self._in_body, self._arrived = False, 0
        self._reading: asyncio.TimerHandle | None = None
        self._unread, self._resumed = 0, False

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._address = network_of((transport.get_extra_info("peername") or ("",))[0])
        self._all.count[self._address] += 1
        limit = self._all.total if self._address in self._all.proxies else self._limits.connections
        if self._all.count[self._address] > limit or self._all.count.total() > self._all.total:
            # at once, without waiting for the request that it answers
            transport.write(_BUSY)
            transport.close()
        else:
            self._wait_for_head()
            self._wait_for_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        """Decrease the count of connections."""
        self._stop_waiting()
        if self._reading is not None:
            self._reading.cancel()
        # None before the first request
        if self.scope:
            state = self.scope.setdefault("state", {})
            state["gone"] = True
            if (leave := state.get("on_gone")) is not None:
                leave()
        self._all.count[self._address] -= 1
        if self._all.count[self._address] <= 0:
            del self._all.count[self._address]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the request."""
        self._parser.begin_burst()
        super().data_received(data)
        if self._parser.given_up:
            self._stop_waiting()
            self.transport.abort()
            return
        state = self.conn.their_state
        if state is h11.IDLE and (self._timer is None or self._in_body):
            self._wait_for_head()
        elif state is h11.SEND_BODY:
            self._arrived += len(data)
            if not self._in_body:
                self._wait_for_body()
        elif state is not h11.IDLE:
            self._stop_waiting()

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(self._limits.head_seconds, self._give_up)

    def _wait_for_body(self) -> None:
        self._stop_waiting()
        self._in_body, self._arrived = True, 0
        self._timer = self.loop.call_later(self._limits.body_seconds, self._check_body)

    def _check_body(self) -> None:
        is_slow = self._arrived < self._limits.body_rate * self._limits.body_seconds
        # while reading is paused, it is the server that is slow
        if is_slow and not self.flow.read_paused:
            self._give_up()
        else:
            self._wait_for_body()

    def resume_writing(self) -> None:
        """Note that the client has read nearly all that was sent."""
        self._resumed = True
        super().resume_writing()

    def _wait_for_reader(self) -> None:
        self._unread, self._resumed = self.transport.get_write_buffer_size(), False
        self._reading = self.loop.call_later(self._limits.body_seconds, self._check_reader)

    def _check_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        has_read = self._resumed or self._unread - unread >= self._limits.body_rate * self._limits.body_seconds
        if unread and self._unread and not has_read:
            # close() would wait until the client has read the rest
            self.transport.abort()
        else:
            self._wait_for_reader()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._in_body = None, False

    def _give_up(self) -> None:
        self._stop_waiting()
        self.transport.close()


class _Parser(h11.Connection):
    """Reads the requests of one connection, and counts the pieces that their bodies come in.

    ``given_up`` is true once a body came in pieces that are too small.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, _MAX_HEAD)
        self.given_up = False
        self._pieces = self._bytes = self._burst = self._burst_bytes = 0

    def begin_burst(self) -> None:
        """Start the count of the pieces that arrive at once again."""
        self._burst = self._burst_bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event; after a body in tiny pieces there are none."""
        if self.given_up:
            return h11.NEED_DATA
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._pieces, self._bytes = self._pieces + 1, self._bytes + len(event.data)
            self._burst, self._burst_bytes = self._burst + 1, self._burst_bytes + len(event.data)
            if (self._burst > _BURST_PIECES and self._burst_bytes < self._burst * _BURST_BYTES) or (
                self._pieces > _PIECES and self._bytes < self._pieces * _PIECE_BYTES
            ):
                self.given_up = True
                return h11.NEED_DATA
        elif isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
            names = {name for name, _ in event.headers}
            # a proxy before the server may take the other one for true (RFC 9112, section 6.1)
            if b"content-length" in names and b"transfer-encoding" in names:
                raise h11.RemoteProtocolError("expected Content-Length or Transfer-Encoding, got both")
        return event


@lru_cache(maxsize=4096)
def network_of(host: str) -> str:
    """Return the address that a client is counted under: its own, for IPv6 that of its network."""
    try:
        return str(ipaddress.IPv6Network((host.partition("%")[0], _IPV6_PREFIX), strict=False))
    except ValueError:
        return host
