"""A link with a delay and a bandwidth: a TCP relay in a process of its own.

Bytes that come to an end of the link at time t leave the other end at

    max(t, free) + n / rate + rtt / 2,

where ``free`` is when the bytes before them, of whichever connection, have gone onto the link. Each direction has the
whole bandwidth. A connection counts as set up one round trip after it was made, so its first bytes leave that much
later. The window is ``WINDOW`` bytes a connection and direction; slow start, losses and TLS are not played.
"""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PIECE = 128 * 1024
"""Most bytes that are taken at once; at 1 Gbit/s they occupy the link for 1 ms."""
QUEUE_SECONDS = 0.005
"""A connection waits while more than this stands before the link, so that connections share it evenly."""
WINDOW = 8 * 2**20
"""Bytes of one connection that are on their way in one direction."""
_MARK = b" HTTP/1.1\r\n"


@dataclass(frozen=True)
class Link:
    """What a link is like.

    Parameters
    ----------
    rtt
        seconds of a round trip.
    rate
        bytes a second in each direction, or None for as many as the relay can carry.
    """

    rtt: float = 0.0
    rate: float | None = None


@dataclass
class Counted:
    """What went over the link: connections made, requests (by their first lines), bytes to and from the server."""

    connections: int = 0
    requests: int = 0
    sent: int = 0
    received: int = 0


class Relay:
    """``with Relay([port, ...]) as relay``: a process that listens on as many ports of loopback and passes all on.

    Parameters
    ----------
    targets
        ports on this machine where the servers are; ``ports`` has those of the relay, in the same order.
    """

    def __init__(self, targets: Sequence[int]) -> None:
        self._targets = targets
        self.ports: tuple[int, ...] = ()

    def __enter__(self) -> Self:
        command = [sys.executable, str(Path(__file__).resolve()), *map(str, self._targets)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ports = tuple(self._answer())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def become(self, link: Link) -> None:
        """Change the link; what is on it arrives as it would have."""
        self._ask(asdict(link))

    def counted(self) -> Counted:
        """What went over it since this was last asked."""
        return Counted(**self._ask({}))

    def _ask(self, content: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(content) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the relay: expected an answer, got an end.")
        return json.loads(line)


@dataclass
class _State:
    """The link as it is now, when each direction is free, and what was counted."""

    link: Link = field(default_factory=Link)
    free: list[float] = field(default_factory=lambda: [0.0, 0.0])
    counted: Counted = field(default_factory=Counted)


class _Direction:
    """One direction of one connection: a reader that puts pieces on the link, and a writer at its far end."""

    def __init__(self, state: _State, source: socket.socket, target: socket.socket, *, up: bool) -> None:
        self._state, self._source, self._target, self._up = state, source, target, up
        self._queue: deque[tuple[float, bytes]] = deque()
        self._held, self._ended = 0, False
        self._moved = asyncio.Event()
        self._tail = b""

    async def read(self, opened: float) -> None:
        """Take what comes, note when it arrives, and wait while the link or the window is full."""
        loop, state, side = asyncio.get_running_loop(), self._state, int(self._up)
        looked = opened
        try:
            while True:
                came, data = looked, self._at_once()
                if data is None:
                    data = await loop.sock_recv(self._source, PIECE)
                    came = loop.time()
                if not data:
                    return
                looked, link = loop.time(), state.link
                self._count(data)
                free = max(came, state.free[side], opened)
                if link.rate:
                    state.free[side] = free = free + len(data) / link.rate
                self._queue.append((free + link.rtt / 2, data))
                self._held += len(data)
                self._moved.set()
                await asyncio.sleep(max(0.0, free - looked - QUEUE_SECONDS))
                while self._held > WINDOW:
                    self._moved.clear()
                    await self._moved.wait()
        finally:
            self._ended = True
            self._moved.set()

    def _at_once(self) -> bytes | None:
        """What was waiting, which counts from the last look: a relay that ran late does not slow the link."""
        try:
            return self._source.recv(PIECE)
        except BlockingIOError:
            return None

    async def write(self) -> None:
        """Hand out what has arrived, and at last that the other side has ended."""
        loop = asyncio.get_running_loop()
        while True:
            while not self._queue:
                if self._ended:
                    self._target.shutdown(socket.SHUT_WR)
                    return
                self._moved.clear()
                await self._moved.wait()
            due, data = self._queue.popleft()
            if (left := due - loop.time()) > 0:
                await asyncio.sleep(left)
            await loop.sock_sendall(self._target, data)
            self._held -= len(data)
            self._moved.set()

    def _count(self, data: bytes) -> None:
        counted = self._state.counted
        if not self._up:
            counted.received += len(data)
            return
        counted.sent += len(data)
        seen = self._tail + data
        counted.requests += seen.count(_MARK)
        self._tail = seen[1 - len(_MARK) :]


async def _connection(state: _State, client: socket.socket, target: int) -> None:
    """Carry one connection until both sides have ended or one has broken off."""
    loop = asyncio.get_running_loop()
    state.counted.connections += 1
    opened = loop.time() + state.link.rtt
    server = socket.socket()
    with client, server:
        server.setblocking(False)
        for side in (client, server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError, ExceptionGroup):
            await loop.sock_connect(server, ("127.0.0.1", target))
            up, down = _Direction(state, client, server, up=True), _Direction(state, server, client, up=False)
            async with asyncio.TaskGroup() as group:
                for running in (up.read(opened), up.write(), down.read(opened), down.write()):
                    group.create_task(running)


async def _listen(state: _State, door: socket.socket, target: int) -> None:
    loop, running = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    while True:
        client, _ = await loop.sock_accept(door)
        client.setblocking(False)
        task = loop.create_task(_connection(state, client, target))
        running.add(task)
        task.add_done_callback(running.discard)


async def _serve(targets: Sequence[int]) -> None:
    """Listen until standard input ends; a line there is a link to become, or ``{}`` for what was counted."""
    loop, state = asyncio.get_running_loop(), _State()
    doors = [socket.create_server(("127.0.0.1", 0), backlog=256) for _ in targets]
    listening: list[asyncio.Task[None]] = []
    for door, target in zip(doors, targets, strict=True):
        door.setblocking(False)
        listening.append(loop.create_task(_listen(state, door, target)))
    print(json.dumps([door.getsockname()[1] for door in doors]), flush=True)
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        content = json.loads(line)
        if content:
            state.link = Link(**content)
        print(json.dumps(asdict(state.counted)), flush=True)
        state.counted = state.counted if content else Counted()
    for task in listening:
        task.cancel()
    for door in doors:
        door.close()


if __name__ == "__main__":
    asyncio.run(_serve([int(text) for text in sys.argv[1:]]))
