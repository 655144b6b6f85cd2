"""Whether the hub answers, and whose token there is; the token itself is never shown."""

import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from ckptzoo.checks import NOTE, OK, PROBLEM, Check
from ckptzoo.environment import hub_endpoint, is_offline
from ckptzoo.errors import AbsentError, HubError, ZooError
from ckptzoo.remote.address import HubAddress, candidates
from ckptzoo.text import excerpt

SECONDS = 5.0
"""Seconds that the hub has for each answer."""
_LOGIN = "Log in with hf auth login, or set HF_TOKEN."


def is_on_hub(address: str) -> bool:
    """Return whether a zoo's address leads to the hub: a folder of this name wins."""
    try:
        return not os.path.isdir(address) and any(isinstance(place, HubAddress) for place in candidates(address))  # noqa: PTH112
    except ZooError:
        return False


def tokens() -> set[str]:
    """Return the token that huggingface_hub would send; none where it is not installed."""
    if find_spec("huggingface_hub") is None:
        return set()
    from huggingface_hub import get_token

    return {token} if (token := get_token()) else set()


def checks(*, needed: bool) -> Iterator[Check]:
    """Ask the hub, which may be another one than huggingface.co.

    ``needed`` says whether a zoo on it was asked for. Otherwise a missing answer is a problem only where
    ``HF_ENDPOINT`` names the hub.
    """
    endpoint = hub_endpoint()
    if is_offline():
        step = "Unset CKPTZOO_OFFLINE and HF_HUB_OFFLINE to use it."
        yield Check("hub", NOTE, f"{endpoint}: not asked, because the environment says offline", step)
        return
    if find_spec("huggingface_hub") is None:
        yield Check("hub", NOTE, f"{endpoint}: huggingface_hub is not installed", "pip install 'ckptzoo[hub]'")
        return
    began = time.monotonic()
    try:
        _within(SECONDS, lambda: _answer(endpoint))
    except (OSError, ValueError, TimeoutError) as error:
        is_problem = needed or bool(os.environ.get("HF_ENDPOINT"))
        step = "Check HF_ENDPOINT, the network and the proxies. Zoos in folders and in the cache need no hub."
        got = excerpt(getattr(error, "reason", error) or type(error).__name__)
        yield Check("hub", PROBLEM if is_problem else NOTE, f"{endpoint}: no answer: {got}", step)
        return
    yield Check("hub", OK, f"{endpoint} answers in {time.monotonic() - began:.2f} s")
    yield _token(endpoint)


def _token(endpoint: str) -> Check:
    from ckptzoo.hub.client import Client
    from ckptzoo.hub.client.quiet import quietly
    from ckptzoo.hub.client.retry import HubRetryPolicy

    if not tokens():
        return Check("token", NOTE, "none: public zoos can be read, nothing can be published", _LOGIN)
    origin = "of HF_TOKEN" if os.environ.get("HF_TOKEN") else "of hf auth login"
    policy = HubRetryPolicy(max_attempts=1, read_timeout=SECONDS)
    try:
        with quietly():
            account = _within(2 * SECONDS, lambda: Client(endpoint, retry_policy=policy).whoami())
    except (HubError, AbsentError) as error:
        return Check("token", PROBLEM, f"the token {origin} is refused: {error.problem.got}", f"{_LOGIN} Or unset it.")
    except TimeoutError as error:
        return Check("token", PROBLEM, f"the hub does not say whose the token {origin} is: {error}")
    role = account.role or "not stated"
    groups = f", in {', '.join(account.organizations)}" if account.organizations else ""
    return Check("token", OK, f"the token {origin}: {account.name}, role {role}{groups}")


def _answer(endpoint: str) -> None:
    """Require any answer but that of a server that fails; a refusal counts as an answer."""
    if urlsplit(endpoint).scheme not in ("http", "https"):
        raise ValueError("expected an address that begins with http:// or https://")
    request = urllib.request.Request(f"{endpoint}/api/datasets?limit=1", headers={"User-Agent": "ckptzoo"})
    try:
        # an opener of its own: that of the module keeps the proxies of the first call
        with urllib.request.build_opener().open(request, timeout=SECONDS) as response:
            response.read(1)
    except urllib.error.HTTPError as error:
        with error:
            if error.code >= 500:
                raise OSError(f"status {error.code}") from error


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return the result of a call that may hang where no timeout applies, as in name resolution."""
    done: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(call())
        except BaseException as error:  # raised in the caller's thread
            failed.append(error)

    # daemon: the process may end while the call hangs
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"none within {seconds:g} s")
    if failed:
        raise failed[0]
    return done[0]
