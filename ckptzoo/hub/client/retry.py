"""Asking a hub through its client library: what it refuses becomes a HubError, what fails in passing is asked again."""

import contextlib
import logging
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from ckptzoo.errors import AbsentError, HubError, Problem
from ckptzoo.remote.http import shown, waiting

T = TypeVar("T")

_AGAIN = "Try again later; nothing is sent twice."
_LOGIN = "Log in with hf auth login, or set HF_TOKEN."
READ, PROPOSE, WRITE = "may read it", "may open pull requests there", "may write there"
"""What a token is needed for."""
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_OUTDATED = frozenset({409, 412})
_EXPIRED = frozenset({400, 401, 403, 404, 410})
"""What storage answers to signed addresses that are no more, and to bytes that arrived damaged."""


@dataclass(frozen=True)
class HubRetryPolicy:
    """How long to go on asking.

    Parameters
    ----------
    tries : of one question; the library itself asks up to six times for uploads.
    pause : seconds before the second try; twice as many before every further one, up to 30.
    asked : seconds that a hub may ask for in all ("come back in ...").
    silence : seconds without a byte after which a connection is given up.
    """

    tries: int = 5
    pause: float = 1.0
    asked: float = 660.0
    silence: float = 120.0

    def before(self, vain: int, name: str) -> float:
        """Seconds before the next try, between 1/2 and 1 of the bound; it differs with the name."""
        spread = zlib.crc32(f"{name}:{vain}:{time.monotonic_ns()}".encode()) / 2**32
        return min(30.0, self.pause * 2.0 ** min(vain - 1, 20)) * (0.5 + 0.5 * spread)


class NotThereError(HubError, AbsentError):
    """There is no such repository, revision or file, as far as the token may know."""


class RaceError(HubError):
    """The branch has moved on since its head was looked up.

    ``unanswered`` says that an earlier try of the same commit got no answer, so that the head may be that commit;
    ``sent`` counts the bytes that were uploaded for it.
    """

    unanswered = False
    sent = 0


@dataclass(frozen=True)
class Failure:
    """What went wrong: the error to raise, whether another try may succeed, and the seconds that the hub asked for."""

    error: HubError
    passing: bool = False
    wait: float | None = None


def call_with_retry(
    call: Callable[[], T],
    *,
    location: str,
    what: str,
    retry_policy: HubRetryPolicy,
    done: Callable[[], T | None] = lambda: None,
    needs: str = READ,
) -> T:
    """The result of a question to the client library, asked again while it fails in passing.

    Parameters
    ----------
    location, what : the repository and what was wanted of it, for messages.
    done : called before another try; what it returns, if not None, is the result, because the failed try was carried
        out although its answer was lost.
    needs : what the token must be one for, said where the hub refuses.

    Raises
    ------
    HubError
        The hub refuses, or bounds have ended; the message has the last thing that went wrong and what to do.

    Notes
    -----
    Held by ``tests/hub/client/test_client.py``.
    """
    vain, waited = 0, 0.0
    while True:
        try:
            with request_timeouts(retry_policy):
                return call()
        except Exception as error:
            failure = classify_error(error, location=location, what=what, needs=needs)
            vain, waited = vain + 1, waited + (failure.wait or 0.0)
            if not failure.passing or vain >= retry_policy.tries or waited > retry_policy.asked:
                raise failure.error from error
        time.sleep(max(failure.wait or 0.0, retry_policy.before(vain, location)))
        if (result := done()) is not None:
            return result


def classify_error(error: Exception, *, location: str, what: str, needs: str = READ) -> Failure:
    """What an exception of the client library means; any other is raised as it is."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled
    from huggingface_hub.utils import httpx

    while isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # "Error while uploading", whose cause says why

    def problem(expected: str, got: str, step: str) -> Problem:
        return Problem(location, what, expected, got, step)

    if isinstance(error, HubError):
        return Failure(error)
    if isinstance(error, HfHubHTTPError):
        return _answered(error, location, what, needs)
    if isinstance(error, LocalTokenNotFoundError):
        return Failure(HubError(problem("a token", "none", _LOGIN)))
    if isinstance(error, OfflineModeIsEnabled):
        return Failure(HubError(problem("a network", "HF_HUB_OFFLINE=1", "Unset it.")))
    if isinstance(error, httpx.HTTPError | httpx.StreamError):
        got = f"{type(error).__name__}: {error}"[:160]
        reached = not isinstance(error, httpx.ConnectError)  # the library has tried for long
        return Failure(HubError(problem("an answer", got, f"Check the network and the address. {_AGAIN}")), reached)
    if _lost_its_session(error):
        return Failure(HubError(problem("an answer", "a closed connection", _AGAIN)), passing=True)
    if isinstance(error, ValueError | KeyError | TypeError) and not isinstance(error, UnicodeError):
        got = f"{type(error).__name__}: {error}"[:300]
        passing = not str(error).startswith("LFS batch API")
        return Failure(HubError(problem("an answer that can be read", got, _AGAIN)), passing=passing)
    raise error


def _lost_its_session(error: Exception) -> bool:
    """Whether another thread closed the library's session meanwhile, as it does where nobody answers."""
    gone = isinstance(error, AttributeError) and error.obj is None and error.name in ("request", "stream")
    return gone or (isinstance(error, RuntimeError) and "closed" in str(error))


def _is_storage(response: Any, what: str) -> bool:
    """Whether an answer came from a signed address: a new one is asked for, and what it lost is sent again."""
    request, path = response.request, response.request.url.path
    if what == "upload" and request.method == "POST":  # parts to be joined, or a file to be looked for
        return "/api/" not in path and not path.endswith("/objects/batch")
    return request.method == "PUT" or bool(response.history)


def _answered(error: Any, location: str, what: str, needs: str) -> Failure:
    """The meaning of a status; the library's own message is not repeated, because it holds the address asked."""
    from huggingface_hub.errors import RepositoryNotFoundError

    status = error.response.status_code
    text = shown(" ".join((error.server_message or "").split()), 300)
    said = f"status {status}" + (f" ({text})" if text else "")

    def failed(expected: str, step: str, kind: type[HubError] = HubError) -> HubError:
        return kind(Problem(location, what, expected, said, step))

    if status in _EXPIRED and _is_storage(error.response, what):
        return Failure(failed("an address that has not expired", _AGAIN), passing=True)
    if status == 401 and "credentials" in text:
        return Failure(failed("a token that the hub knows", _LOGIN))
    if status == 404 or isinstance(error, RepositoryNotFoundError):
        step = f"Check the name. Where it is private: {_LOGIN[0].lower()}{_LOGIN[1:]}"
        return Failure(failed("something that is there and may be seen", step, NotThereError))
    if status == 401:
        return Failure(failed("a token", _LOGIN))
    if status == 403:
        return Failure(failed("leave to do so", f"Use a token that {needs}."))
    if status in _OUTDATED:
        return Failure(failed("a head that has not moved", "Try again.", RaceError))
    if status == 413:
        return Failure(failed("something smaller", "Split it, or ask who runs the hub."))
    if status == 507:
        return Failure(failed("room on the hub's disk", f"Ask who runs the hub for room. {_AGAIN}"))
    if status in _BUSY or status >= 500:
        return Failure(failed("an answer", _AGAIN), passing=True, wait=waiting(error.response.headers))
    return Failure(failed("agreement", "Correct what it says."))


@contextlib.contextmanager
def request_timeouts(retry_policy: HubRetryPolicy) -> Iterator[None]:
    """While this lasts, requests of the client library that have no time limits get some.

    Notes
    -----
    The library's session has no limits and is one for the whole process; its methods take none. So a hook is put on
    the session and taken off at the end: requests that other threads make meanwhile get the same limits, if they have
    none of their own. A hub that asks for more patience than there is, is refused, which the library would not do.
    Of the hubs that have no Xet storage the library would say so in a log line for every upload; it is left out.
    """
    from huggingface_hub import get_session

    limits = {"connect": 30.0, "read": retry_policy.silence, "write": retry_policy.silence, "pool": None}

    def limit(request: Any) -> None:
        if not any((request.extensions.get("timeout") or {}).values()):
            request.extensions = {**request.extensions, "timeout": limits}

    def refuse(response: Any) -> None:
        wait = waiting(response.headers) if response.status_code == 429 else None
        if wait is not None and wait > retry_policy.asked:
            host, step = response.request.url.host, "Try again then; nothing is sent twice."
            raise HubError(
                Problem(host, "pace", f"a pause of at most {retry_policy.asked:.0f} s", f"{wait:.0f} s", step)
            )

    hooks, log = get_session().event_hooks, logging.getLogger("huggingface_hub._commit_api")
    hooks["request"].append(limit)
    hooks["response"].append(refuse)
    log.addFilter(_tells_more)
    try:
        yield
    finally:
        hooks["request"].remove(limit)
        hooks["response"].remove(refuse)
        log.removeFilter(_tells_more)


def _tells_more(record: logging.LogRecord) -> bool:
    return "not supported by Xet Storage" not in record.getMessage()
