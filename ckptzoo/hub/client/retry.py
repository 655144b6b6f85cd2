"""Retries of requests to a hub (``HubRetryPolicy``), and the HubError for each kind of failure.

Everything that asks a hub through its client library does it by ``call_with_retry``.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from ckptzoo.errors import AbsentError, HubError, Problem
from ckptzoo.remote.retry import EXPIRED_STATUSES, RETRIED_STATUSES, backoff, say_waiting, server_wait
from ckptzoo.text import excerpt

T = TypeVar("T")

READ, PROPOSE, WRITE = "may read it", "may open pull requests there", "may write there"
"""Purposes for which a token is needed."""

CONNECT_SECONDS = 30.0
_OUTDATED = frozenset({409, 412})
"""Texts of hubs' answers to a commit whose parent is not the head of the branch."""
_AGAIN = "Try again later; nothing is sent twice."
_LOGIN = "Log in with hf auth login, or set HF_TOKEN."


@dataclass(frozen=True)
class HubRetryPolicy:
    """When to stop trying a request to a hub's API: ``push``, ``contribute``, ``review`` and ``search``.

    The library is asked for one thing at a time here, so attempts are counted. The files of a zoo are read by the
    other policy, ``ckptzoo.remote.retry.RetryPolicy``, which counts seconds and bytes. Pauses and the statuses that
    are tried again are the same for both (``backoff`` and ``RETRIED_STATUSES`` there).

    Parameters
    ----------
    max_attempts
        of one request; within one, the library itself tries uploads up to six times.
    first_pause
        seconds before the second attempt, see ``backoff``.
    max_server_wait
        seconds that a hub may ask for in all ("come back in ...").
    read_timeout
        seconds without a byte, in either direction, after which a connection is closed.
    """

    max_attempts: int = 5
    first_pause: float = 1.0
    max_server_wait: float = 660.0
    read_timeout: float = 120.0

    def pause(self, failures: int) -> float:
        """Seconds to wait after a number of failures.

        Parameters
        ----------
        failures
            of one request so far.
        """
        return backoff(self.first_pause, failures)


class NotThereError(HubError, AbsentError):
    """There is no such repository, revision or file, as far as the token may know."""


class RaceError(HubError):
    """The branch has moved on since its head was looked up.

    ``unanswered`` says that an earlier attempt at the same commit got no answer, so that the head may be that commit;
    ``sent`` counts the bytes that were uploaded for it.
    """

    unanswered = False
    sent = 0


@dataclass(frozen=True)
class RequestFailure:
    """The meaning of a failure: the error to raise without another attempt, whether another may succeed, and the
    seconds that the hub asked to wait.
    """

    error: HubError
    is_transient: bool = False
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
    """Return the result of a call of the client library, which is repeated after transient failures.

    ``location`` and ``what`` are the repository and the purpose, for messages. ``done`` is called before another
    attempt; its result, if not None, is returned, because the failed attempt was carried out although its answer was
    lost. ``needs`` is what the token must allow, for the message of a refusal.

    Raises ``HubError`` where the hub refuses, or the retry policy ends; the message has the last failure and the next
    step.
    """
    failures, server_waits, began = 0, 0.0, time.monotonic()
    while True:
        try:
            with request_timeouts(retry_policy):
                return call()
        # the library lets the errors of httpx, of json and of the answers' fields through, beside its own;
        # classify_error raises again what is none of these
        except Exception as error:
            failure = classify_error(error, location=location, what=what, needs=needs)
            failures, server_waits = failures + 1, server_waits + (failure.wait or 0.0)
            last = failures >= retry_policy.max_attempts or server_waits > retry_policy.max_server_wait
            if last or not failure.is_transient:
                raise failure.error from error
        pause = max(failure.wait or 0.0, retry_policy.pause(failures))
        say_waiting(failure.error.problem, pause, time.monotonic() - began)
        time.sleep(pause)
        if (result := done()) is not None:
            return result


def classify_error(error: Exception, *, location: str, what: str, needs: str = READ) -> RequestFailure:
    """Classify an exception of the client library; one that is not about the hub is raised as it is."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled
    from huggingface_hub.utils import httpx

    # uploads raise RuntimeError("Error while uploading ..."), and the cause says why
    while isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
        error = error.__cause__

    def failed(expected: str, got: str, step: str) -> HubError:
        return HubError(Problem(location, what, expected, got, step))

    if isinstance(error, HubError):
        return RequestFailure(error)
    if isinstance(error, HfHubHTTPError):
        return _classify_status(error, location, what, needs)
    if isinstance(error, LocalTokenNotFoundError):
        return RequestFailure(failed("a token", "none", _LOGIN))
    if isinstance(error, OfflineModeIsEnabled):
        return RequestFailure(failed("a network", "HF_HUB_OFFLINE=1", "Unset it."))
    if isinstance(error, httpx.HTTPError | httpx.StreamError):
        got = f"{type(error).__name__}: {error}"[:160]
        is_transient = not isinstance(error, httpx.ConnectError)  # nobody listens at this address
        return RequestFailure(failed("an answer", got, f"Check the network and the address. {_AGAIN}"), is_transient)
    if _has_lost_session(error):
        return RequestFailure(failed("an answer", "a closed connection", _AGAIN), is_transient=True)
    # what the library raises where an answer is no JSON, or lacks what it needs
    if isinstance(error, ValueError | KeyError | TypeError) and not isinstance(error, UnicodeError):
        got = f"{type(error).__name__}: {error}"[:300]
        is_transient = not str(error).startswith("LFS batch API")  # the hub refuses a file: no attempt changes that
        return RequestFailure(failed("an answer that can be read", got, _AGAIN), is_transient)
    raise error


def _has_lost_session(error: Exception) -> bool:
    """Whether another thread closed the library's session, which it does when it cannot connect."""
    is_none = isinstance(error, AttributeError) and error.obj is None and error.name in ("request", "stream")
    return is_none or (isinstance(error, RuntimeError) and "closed" in str(error))


def _is_from_storage(response: Any, what: str) -> bool:
    """Whether an answer came from a signed address: another attempt asks for a new one, and sends the bytes again."""
    request, path = response.request, response.request.url.path
    if what == "upload" and request.method == "POST":  # the end of a multipart upload, or the check of a file
        return "/api/" not in path and not path.endswith("/objects/batch")
    return request.method == "PUT" or bool(response.history)


def _classify_status(error: Any, location: str, what: str, needs: str) -> RequestFailure:
    """Classify a status; the library's own message is not repeated, because it contains the (signed) address."""
    from huggingface_hub.errors import RepositoryNotFoundError

    status = error.response.status_code
    text = excerpt(" ".join((error.server_message or "").split()), 300)
    got = f"status {status}" + (f" ({text})" if text else "")

    def failed(expected: str, step: str, kind: type[HubError] = HubError) -> HubError:
        return kind(Problem(location, what, expected, got, step))

    # also the answer to an upload whose bytes arrived damaged
    if status in EXPIRED_STATUSES and _is_from_storage(error.response, what):
        return RequestFailure(failed("an address that has not expired", _AGAIN), is_transient=True)
    # huggingface.co says so where a token is invalid
    if status == 401 and "credentials" in text:
        return RequestFailure(failed("a token that the hub knows", _LOGIN))
    # huggingface.co answers 401 for repositories that do not exist too, which the library raises as this class
    if status == 404 or isinstance(error, RepositoryNotFoundError):
        step = f"Check the name. Where it is private: {_LOGIN[0].lower()}{_LOGIN[1:]}"
        return RequestFailure(failed("something that is there and may be seen", step, NotThereError))
    if status == 401:
        return RequestFailure(failed("a token", _LOGIN))
    if status == 403:
        return RequestFailure(failed("permission to do so", f"Use a token that {needs}."))
    if status in _OUTDATED:
        return RequestFailure(failed("a head that has not moved", "Try again.", RaceError))
    if status == 413:
        return RequestFailure(failed("something smaller", "Split it, or ask who runs the hub."))
    if status == 507:
        return RequestFailure(failed("room on the hub's disk", f"Ask who runs the hub for room. {_AGAIN}"))
    if status in RETRIED_STATUSES or status >= 500:
        return RequestFailure(failed("an answer", _AGAIN), is_transient=True, wait=server_wait(error.response.headers))
    return RequestFailure(failed("agreement", "Correct what it says."))


@contextlib.contextmanager
def request_timeouts(retry_policy: HubRetryPolicy) -> Iterator[None]:
    """Give requests of the client library without timeouts those of a policy, inside the context.

    The library's session has no timeouts, is one for the whole process, and its methods take none. So a hook is put on
    the session and taken off at the end: concurrent requests of other threads get the same timeouts, if they have none
    of their own. A hub that asks for a longer wait than ``max_server_wait`` is refused here, because the library would
    sleep for as long as the hub says. For hubs without Xet storage the library logs a warning for every upload; it is
    filtered out.
    """
    from huggingface_hub import get_session

    read = retry_policy.read_timeout
    timeouts = {"connect": CONNECT_SECONDS, "read": read, "write": read, "pool": None}

    def set_timeouts(request: Any) -> None:
        if not any((request.extensions.get("timeout") or {}).values()):
            # where httpx hands a request's timeouts to its transport
            request.extensions = {**request.extensions, "timeout": timeouts}

    def refuse_long_wait(response: Any) -> None:
        wait = server_wait(response.headers) if response.status_code == 429 else None
        if wait is not None and wait > retry_policy.max_server_wait:
            host, expected = response.request.url.host, f"a pause of at most {retry_policy.max_server_wait:.0f} s"
            raise HubError(Problem(host, "pace", expected, f"{wait:.0f} s", "Try again then; nothing is sent twice."))

    hooks, log = get_session().event_hooks, logging.getLogger("huggingface_hub._commit_api")
    hooks["request"].append(set_timeouts)
    hooks["response"].append(refuse_long_wait)
    log.addFilter(_is_not_about_xet)
    try:
        yield
    finally:
        hooks["request"].remove(set_timeouts)
        hooks["response"].remove(refuse_long_wait)
        log.removeFilter(_is_not_about_xet)


def _is_not_about_xet(record: logging.LogRecord) -> bool:
    return "not supported by Xet Storage" not in record.getMessage()
