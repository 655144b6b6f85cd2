"""A server on a port: in the foreground, or in a thread for as long as a ``with`` block lasts."""

import errno
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

import uvicorn
from starlette.types import ASGIApp

from ckptzoo.errors import Problem, ZooError
from ckptzoo.server.connections import ConnectionFactory
from ckptzoo.server.limits import ServerLimits

_START_SECONDS = 10.0
"""Seconds that a server in a thread may take to start."""


_SWITCH_SECONDS = 0.0005
"""Seconds that a thread computes while another one waits. The event loop waits as long after every call of a socket
while diffs or front matter are computed; with Python's 5 ms, small answers beside six of those take ten times as long.
"""


class _Server(uvicorn.Server):
    """Calls ``ready`` when it answers; from then on it ends cleanly by a signal."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start; uvicorn installs its handlers of signals before it calls this."""
        await super().startup(sockets=sockets)
        self._ready()


def _server(
    app: ASGIApp, limits: ServerLimits | None, proxies: Sequence[str], ready: Callable[[], None] = lambda: None
) -> uvicorn.Server:
    """Return a server of one process and HTTP/1.1, which keeps idle connections for longer than clients reuse them."""
    return _Server(
        uvicorn.Config(
            app,
            # by default uvicorn believes what this machine says of other clients
            proxy_headers=bool(proxies),
            forwarded_allow_ips=list(proxies),
            http=ConnectionFactory(limits or ServerLimits(), proxies),  # pyright: ignore[reportArgumentType]
            ws="none",
            loop="asyncio",
            # the application has no startup and no shutdown events
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,  # uvicorn's default is 5 s
            # without a bound uvicorn waits for open connections for ever
            timeout_graceful_shutdown=5,
        ),
        ready,
    )


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """Return a listening socket and its address; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        step = "Choose another with --port, or --port 0 for any that is free."
        raise ZooError(Problem(f"{host}:{port}", "port", "one that is free", "one in use", step)) from None
    # asyncio sets TCP_NODELAY only on sockets that were made with the protocol number of TCP; accepted ones inherit it.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    shown = f"[{host}]" if ":" in host else host
    return bound, f"http://{shown}:{bound.getsockname()[1]}"


def serve(
    app: ASGIApp,
    host: str,
    port: int,
    ready: Callable[[str], None],
    *,
    limits: ServerLimits | None = None,
    proxies: Sequence[str] = (),
) -> None:
    """Serve until interrupted; set the switch interval of the whole process.

    ``ready`` is called with the address once requests are answered; ``limits`` are those of connections.
    X-Forwarded-For and X-Forwarded-Proto are believed from the addresses ``proxies`` alone.
    """
    bound, url = listen(host, port)
    sys.setswitchinterval(_SWITCH_SECONDS)
    with bound:
        _server(app, limits, proxies, lambda: ready(url)).run(sockets=[bound])


class Serving:
    """``with Serving(app) as url``: a server on a free loopback port, in a thread."""

    def __init__(
        self, app: ASGIApp, *, port: int = 0, limits: ServerLimits | None = None, proxies: Sequence[str] = ()
    ) -> None:
        self._server = _server(app, limits, proxies)
        self._socket, self.url = listen("127.0.0.1", port)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise TimeoutError(f"{self.url}: expected a server within {_START_SECONDS:.0f} s, got none")
            time.sleep(0.002)
        return self.url

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
