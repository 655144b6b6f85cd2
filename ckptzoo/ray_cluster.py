"""A connection to a cluster of Ray, for work that is shared among its nodes."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ckptzoo.errors import Problem, ZooError, require

_CONNECT_SECONDS = 10.0


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The module ``ray``, connected to a cluster until the end of the block.

    ``address`` is the cluster's head, ``host:6379``; this machine must belong to the cluster. None means the
    environment variable ``RAY_ADDRESS``, else the cluster that this machine belongs to, else one of this machine alone.
    Raises ``MissingExtraError`` if ray is not installed, and ``ZooError`` if there is no cluster at the address, or it
    wants another token.
    """
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address is not None:
        # read when Ray is imported: by default it tries 20 times 41 seconds where something else listens
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
    ray = require("ray", "ray")
    try:
        if address not in (None, "auto", "local"):
            _require_listener(address)
        ray.init(address=address, logging_level="ERROR", log_to_driver=False, include_dashboard=False)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        text = " ".join(str(error).split())[:300] or type(error).__name__
        # ray start asks for the token in ~/.ray/auth_token by itself; ray.init sends it only where it is told to, and
        # then cannot use a cluster without one
        step = (
            "Name the head's address as ray start prints it, on a machine that has joined. "
            "Set RAY_AUTH_MODE=token where the cluster has a token (~/.ray/auth_token)."
        )
        raise ZooError(Problem("ray", f"cluster {address or ''}".strip(), "one to connect to", text, step)) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _require_listener(address: str) -> None:
    """Raise OSError or ValueError at once where nothing listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"{address!r}, which is not HOST:PORT")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
