"""How often and how long a request is tried again: ``RetryPolicy``, and what every policy of the package shares.

There are two policies, because there are two kinds of request:

- ``RetryPolicy``, here, for reading the files of a zoo (``ckptzoo.open``, ``ckptzoo pull``). It ends by time.
- ``ckptzoo.hub.client.retry.HubRetryPolicy``, for a hub's API (``push``, ``contribute``, ``review``). It ends by a
  number of attempts.

A status is known in ``ckptzoo.remote.http.refusal`` and in the second of them alone: what they raise has the wait that
a server asked for, and no status. Both use ``RETRIED_STATUSES``, ``EXPIRED_STATUSES``, ``server_wait`` and ``backoff``
of this module, and both say by ``say_waiting`` that they wait.
"""

import contextlib
import email.utils
import random
import re
import threading
import time
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from ckptzoo.errors import Problem, RemoteError
from ckptzoo.remote.stores import CancelToken, Store, TransientError

T = TypeVar("T")

# RFC 9110, sections 15.5.9 and 15.6; 425 is of RFC 8470, 429 of RFC 6585.
RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses after which the same request may succeed later: timeouts, rate limits, servers that are overloaded."""
EXPIRED_STATUSES = frozenset({400, 401, 403, 404, 410})
"""The statuses that storage answers for a signed address that has expired; which of them depends on the storage. Only
an answer to such an address means this: it is tried again with a new one."""
MAX_PROTOCOL_ERRORS = 5
"""Answers in a row that do not fit the request (another range, another length), after which no other is asked for."""
MAX_PAUSE = 30.0
"""Seconds; pauses that double stop growing here."""
SILENT_SECONDS = 4.0
"""A wait for a server that is longer is said: by then a person wonders whether anything goes on."""
SAID_SECONDS = 60.0
"""Between two warnings that a process waits: many threads may wait for one server."""

# The rate limit of huggingface.co, as its draft standard writes it: ratelimit: "resolvers";r=0;t=37
_RATE_LIMIT_RESET = re.compile(r";\s*t\s*=\s*(\d{1,6})")
# Not the generator that users seed, and one that differs between processes that were forked from one another.
_JITTER = random.SystemRandom()
_said = -SAID_SECONDS
_said_lock = threading.Lock()


def backoff(first: float, failures: int) -> float:
    """Return the seconds to wait after a number of failures in a row.

    The bound is ``first`` and doubles with every failure, up to ``MAX_PAUSE``; the result is drawn between half of the
    bound and the bound, so that clients that failed together do not come back together.
    """
    bound = min(MAX_PAUSE, first * 2.0 ** min(failures - 1, 20))  # 2 ** 1024 would be no float
    return bound * _JITTER.uniform(0.5, 1.0)


def server_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that a busy server asks for, by ``RateLimit`` or either form of ``Retry-After``; None if it does not.

    >>> server_wait({"ratelimit": '"resolvers";r=0;t=37'}), server_wait({"retry-after": "5"})
    (37.0, 5.0)
    """
    if matched := _RATE_LIMIT_RESET.search(headers.get("ratelimit", "")):
        return float(matched[1])
    # seconds or a date (RFC 9110, 10.2.3)
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit() and len(text) < 7:
        return float(text)
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time()) if text else None
    return None


def say_waiting(problem: Problem, pause: float, silent: float) -> None:
    """Warn that another attempt comes after a pause, where nothing was heard for ``SILENT_SECONDS`` by its end.

    ``silent`` is the seconds since the server was first asked, or sent something. Of one process a warning comes every
    ``SAID_SECONDS`` at most.
    """
    global _said
    if silent + pause < SILENT_SECONDS:
        return
    with _said_lock:
        if time.monotonic() - _said < SAID_SECONDS:
            return
        _said = time.monotonic()
    text = str(replace(problem, next_step=f"Trying again in {max(1, round(pause))} s."))
    warnings.warn(text, UserWarning, stacklevel=2)


@dataclass(frozen=True)
class RetryPolicy:
    """When to stop trying to read a file of a zoo. With ``n`` bytes received, a transfer may have spent

    ``deadline + n / min_bytes_per_second``

    seconds in receiving and in pauses; what the reader does in between does not count. So a server that sends nothing,
    one that breaks off again and again, and one that sends a byte now and then, are all given up.

    Requests to a hub's API have a policy of their own, ``ckptzoo.hub.client.HubRetryPolicy``.

    Parameters
    ----------
    deadline
        seconds.
    min_bytes_per_second
        the slowest transfer that goes on.
    connection_deadline
        seconds in place of ``deadline`` for one connection: a slower one is closed, and the missing bytes are asked for
        on another. Also the longest silence on a connection.
    max_server_wait
        seconds that a server may ask for in all ("come back in ..."); they count in no other bound. What exceeds them
        is not waited for.
    first_pause
        seconds before the second attempt, see ``backoff``.
    """

    deadline: float = 90.0
    min_bytes_per_second: float = 20_000.0
    connection_deadline: float = 20.0
    max_server_wait: float = 660.0  # more than two windows of 300 s, as in the rate limits of huggingface.co
    first_pause: float = 0.25

    def pause(self, failures: int) -> float:
        """Seconds to wait after a number of failures in a row that brought no byte.

        Parameters
        ----------
        failures
            in a row.
        """
        return backoff(self.first_pause, failures)


class Cancelled(Exception):
    """The caller no longer wants the result; raised in the thread that works for it, and caught there."""


def read_range(
    store: Store, name: str, start: int, stop: int, *, retry_policy: RetryPolicy, cancel: CancelToken
) -> Generator[bytes]:
    """Yield bytes ``start`` to ``stop`` of a file; a transfer that breaks off is resumed at its next byte.

    Raises RemoteError: the store refuses, or the retry policy ends; the message has the last failure. Raises Cancelled:
    ``cancel`` was called.
    """
    attempts, position = _Attempts(retry_policy), start
    while position < stop:
        connection_start, connection_seconds = position, 0.0
        source = store.get(name, position, stop, cancel)
        try:
            while position < stop:
                began = time.monotonic()
                try:
                    piece = next(source, None)
                finally:
                    seconds = time.monotonic() - began
                    attempts.spent += seconds
                    connection_seconds += seconds
                if piece is None:
                    expected, got = f"{stop - start} bytes from {start}", f"{position - start} and then an end"
                    raise TransientError(Problem(store.address, name, expected, got, "Try again later."))
                position += len(piece)
                yield piece
                received = position - connection_start
                if position < stop and is_too_slow(retry_policy, received, connection_seconds):
                    raise TransientError(too_slow(store.address, name, retry_policy, received, connection_seconds))
                if cancel.called:
                    raise Cancelled
        except TransientError as error:
            if cancel.called:  # which also breaks off what is being received
                raise Cancelled from None
            pause = attempts.next_pause(error, received=position - start, progress=position > connection_start)
            if cancel.wait(pause):
                raise Cancelled from None
        finally:
            source.close()


def retry(request: Callable[[], T], *, retry_policy: RetryPolicy, cancel: CancelToken) -> T:
    """Return the result of a small request, which is repeated after a TransientError.

    Raises RemoteError: the retry policy ends; the message has the last failure. Raises Cancelled: ``cancel`` was called
    during a pause. Other errors of the request are raised at once.
    """
    attempts = _Attempts(retry_policy)
    while True:
        began = time.monotonic()
        try:
            return request()
        except TransientError as error:
            attempts.spent += time.monotonic() - began
            if cancel.wait(attempts.next_pause(error)):
                raise Cancelled from None


def is_too_slow(retry_policy: RetryPolicy, received: int, seconds: float) -> bool:
    """Return whether one connection that brought this many bytes in this time is to be closed."""
    return seconds > retry_policy.connection_deadline + received / retry_policy.min_bytes_per_second


def too_slow(location: str, what: str, retry_policy: RetryPolicy, received: int, seconds: float) -> Problem:
    """Return the problem of such a connection."""
    expected = f"at least {retry_policy.min_bytes_per_second:.0f} bytes a second"
    got = f"{received} in {seconds:.1f} s"
    return Problem(location, what, expected, got, "Try again on a better connection.")


class _Attempts:
    """The state of one transfer; ``spent`` is its seconds in receiving and in pauses of our own."""

    def __init__(self, retry_policy: RetryPolicy) -> None:
        self._retry_policy = retry_policy
        self.spent, self._server_waits = 0.0, 0.0
        self._failures, self._protocol_errors = 0, 0
        self._silent_since = time.monotonic()

    def next_pause(self, error: TransientError, *, received: int = 0, progress: bool = False) -> float:
        """Return the seconds to wait before the next attempt; raise RemoteError where there is to be none.

        ``received`` counts bytes of the whole transfer; ``progress`` of the attempt that failed begins the count of
        failures again.
        """
        policy = self._retry_policy
        self._failures = 1 if progress else self._failures + 1
        self._protocol_errors = error.protocol_error + (0 if progress else self._protocol_errors)
        pause = policy.pause(self._failures)
        if error.wait is not None and self._server_waits + error.wait <= policy.max_server_wait:
            self._server_waits += error.wait
            pause = max(error.wait, pause)
            self.spent -= error.wait  # so that of this pause only what exceeds the server's wish counts
        self.spent += pause
        limit = policy.deadline + received / policy.min_bytes_per_second
        if self._protocol_errors >= MAX_PROTOCOL_ERRORS or self.spent > limit:
            raise RemoteError(error.problem) from error
        if progress:
            self._silent_since = time.monotonic()
        say_waiting(error.problem, pause, time.monotonic() - self._silent_since)
        return pause
