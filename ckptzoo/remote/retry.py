"""How long to go on trying, and one range of a file received however often it breaks off."""

import time
import zlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from ckptzoo.errors import Problem, RemoteError
from ckptzoo.remote.stores import CancelToken, Store, TransientError

T = TypeVar("T")

MAX_PROTOCOL_ERRORS = 5
"""Answers in a row that do not fit the question before no other is asked for."""


@dataclass(frozen=True)
class RetryPolicy:
    """When to give up. With ``n`` bytes received, a transfer may have spent

    ``deadline + n / slowest``

    seconds in receiving and in waiting for another try; what the reader does in between does not count. So a server
    that sends nothing, breaks off again and again, or trickles, is given up alike.

    Parameters
    ----------
    deadline : seconds.
    slowest : bytes a second.
    attempt : seconds in place of ``deadline`` for one connection; a slower one is closed, and the rest asked for anew.
    asked : seconds that a server may ask for in all ("come back in ..."), which count in no other bound.
    backoff : seconds before the second try; twice as many before every further one that brought nothing, up to 30.
    """

    deadline: float = 90.0
    slowest: float = 20_000.0
    attempt: float = 20.0
    asked: float = 660.0
    backoff: float = 0.25

    def pause(self, failures: int, name: str) -> float:
        """Seconds before the try after so many vain ones, between 1/2 and 1 of the bound; it differs with the name."""
        spread = zlib.crc32(f"{name}:{failures}".encode()) / 2**32
        return min(30.0, self.backoff * 2.0 ** min(failures - 1, 20)) * (0.5 + 0.5 * spread)


class Cancelled(Exception):
    """The reader has gone; raised and caught within this room."""


def read_range(
    store: Store, name: str, start: int, stop: int, *, retry_policy: RetryPolicy, cancel: CancelToken
) -> Generator[bytes]:
    """Bytes ``start`` to ``stop`` of a file, in pieces; what breaks off is taken up where it ended.

    Raises
    ------
    RemoteError
        The store will not hand it out, or patience has ended; the message has the last thing that went wrong.

    Notes
    -----
    Held by ``tests/remote/test_retry.py``.
    """
    at, spent, asked, vain, strange = start, 0.0, 0.0, 0, 0
    while at < stop:
        begin, used = at, 0.0
        source = store.get(name, at, stop, cancel)
        try:
            while at < stop:
                began = time.monotonic()
                try:
                    piece = next(source, None)
                finally:
                    passed = time.monotonic() - began
                    spent, used = spent + passed, used + passed
                if piece is None:
                    raise TransientError(_cut(store, name, start, stop, at))
                at += len(piece)
                yield piece
                if at < stop and used > retry_policy.attempt + (at - begin) / retry_policy.slowest:
                    raise TransientError(slow(store.address, name, retry_policy, at - begin, used))
                if cancel.called:
                    raise Cancelled
        except TransientError as error:
            if cancel.called:
                raise Cancelled from None
            vain = 1 if at > begin else vain + 1
            strange = error.protocol_error + (0 if at > begin else strange)
            pause = retry_policy.pause(vain, name)
            if error.wait is not None and asked + error.wait <= retry_policy.asked:
                asked, pause = asked + error.wait, max(error.wait, pause)
                spent -= error.wait
            spent += pause
            if strange >= MAX_PROTOCOL_ERRORS or spent > retry_policy.deadline + (at - start) / retry_policy.slowest:
                raise RemoteError(error.problem) from error
            if cancel.wait(pause):
                raise Cancelled from None
        finally:
            source.close()


def retry(ask: Callable[[], T], *, name: str, retry_policy: RetryPolicy, cancel: CancelToken) -> T:
    """The result of a small question, asked again while it fails in passing."""
    spent, asked, vain, strange = 0.0, 0.0, 0, 0
    while True:
        began = time.monotonic()
        try:
            return ask()
        except TransientError as error:
            vain, strange = vain + 1, strange + error.protocol_error
            pause = retry_policy.pause(vain, name)
            spent += time.monotonic() - began + pause
            if error.wait is not None and asked + error.wait <= retry_policy.asked:
                asked, pause = asked + error.wait, max(error.wait, pause)
            if strange >= MAX_PROTOCOL_ERRORS or spent > retry_policy.deadline:
                raise RemoteError(error.problem) from error
            if cancel.wait(pause):
                raise Cancelled from None


def _cut(store: Store, name: str, start: int, stop: int, at: int) -> Problem:
    expected, got = f"{stop - start} bytes from {start}", f"{at - start} and then an end"
    return Problem(store.address, name, expected, got, "Try again later.")


def slow(location: str, what: str, retry_policy: RetryPolicy, count: int, seconds: float) -> Problem:
    """What is wrong with so many bytes in so many seconds."""
    expected, got = f"at least {retry_policy.slowest:.0f} bytes a second", f"{count} in {seconds:.1f} s"
    return Problem(location, what, expected, got, "Try again on a better connection.")
