"""Ctrl-C and SIGTERM as a question that a long task asks when it can stop cleanly."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ckptzoo.errors import ZooError

Stopping = Callable[[], bool]
"""Whether the process was asked to stop."""


class Interrupted(ZooError):
    """A task was asked to stop, and what it had done is saved."""


@contextmanager
def stopping() -> Iterator[Stopping]:
    """Whether Ctrl-C or SIGTERM came; a second one ends the process at once. Outside the main thread: never."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(number: int, frame: object) -> None:
        asked.set()
        for signum, handler in before.items():
            signal.signal(signum, handler)

    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    for signum in before:
        signal.signal(signum, ask)
    try:
        yield asked.is_set
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
