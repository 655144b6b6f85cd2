"""A folder behind a plain web server with ranges, in a process of its own: prints its port, ends with its input."""

import socket
import sys
import threading
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from ckptzoo.server.run import listen


def serve(folder: Path) -> None:
    """Serve a folder until standard input ends."""
    app = Starlette(routes=[Mount("/", StaticFiles(directory=folder))])
    config = uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_level="error", access_log=False)
    config.timeout_keep_alive = 75
    server = uvicorn.Server(config)

    def ended() -> None:
        sys.stdin.read()
        server.should_exit = True

    bound, _ = listen("127.0.0.1", 0)
    with bound:
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # handed down to what it accepts
        print(bound.getsockname()[1], flush=True)
        threading.Thread(target=ended, daemon=True).start()
        server.run(sockets=[bound])


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
