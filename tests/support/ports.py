"""Ports for programs that cannot be told to take any free one."""

import random
import socket

# Linux gives ports from 32768 on to whoever asks for any: other tests would take a port between our look and its use.
_BELOW_EPHEMERAL = range(20_000, 32_000)


def free_port() -> int:
    """Return a port of this machine that nobody listens at, and that no other test is given by the system."""
    for port in random.SystemRandom().sample(_BELOW_EPHEMERAL, 100):
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise RuntimeError("expected a free port among 100")
