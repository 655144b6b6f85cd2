"""A dataset repository of the Hugging Face hub as a store, pinned to a commit.

The client library is asked for the address of the hub and for the token; ranges do not go through it, because its
file system resolves a file anew for every read. Here a file is resolved once, and the signed address that the hub
redirects to is asked until it expires.
"""

import contextlib
import dataclasses
import math
import os
import threading
import time
from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from ckptzoo.errors import MissingExtraError, Problem
from ckptzoo.remote import web
from ckptzoo.remote.address import MAIN, HubAddress
from ckptzoo.remote.connections import Connections, origin_of
from ckptzoo.remote.errors import TransientError
from ckptzoo.remote.hub_listing import read_listing
from ckptzoo.remote.patience import Patience
from ckptzoo.remote.store import Entry, Halt, found

PUBLIC = "https://huggingface.co"
MARGIN_SECONDS = 30.0
"""Signed addresses are resolved anew so long before they expire."""


class HubStore:
    """The files of one commit, or of a folder in it.

    Where no token is given, that of huggingface_hub is asked for whenever one is needed. One that is given stays in
    this process: a store that is sent to another takes huggingface_hub's there.
    """

    def __init__(
        self,
        place: HubAddress,
        commit: str,
        entries: dict[str, Entry],
        *,
        endpoint: str,
        token: str | None = None,
        connections: Connections | None = None,
    ) -> None:
        self.place, self.revision, self.entries, self.endpoint = place, commit, entries, endpoint
        self._token = token
        self._connections = connections or Connections()
        self._signed: dict[str, str] = {}
        self._locks: dict[tuple[int, str], threading.Lock] = {}

    @classmethod
    def opened(
        cls, place: HubAddress, *, patience: Patience, endpoint: str | None = None, token: str | None = None
    ) -> "HubStore":
        """Pin a revision to its commit and read what it holds, by one request.

        Parameters
        ----------
        endpoint, token : of the hub; by default those that huggingface_hub uses (``HF_ENDPOINT``, ``HF_TOKEN``).

        Raises
        ------
        AbsentError
            No such repository or revision, as far as this token may know.
        MissingExtraError
            huggingface_hub is not installed.
        """
        endpoint, connections = (endpoint or default_endpoint()).rstrip("/"), Connections(patience.attempt)
        commit, entries = read_listing(place, endpoint, connections, bearer(endpoint, token), patience)
        return cls(place, commit, entries, endpoint=endpoint, token=token, connections=connections)

    @property
    def address(self) -> str:
        """``hf://datasets/org/zoo``, and the hub where it is not huggingface.co."""
        return hub_address(self.place, self.endpoint)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_signed": {}, "_locks": {}, "_token": None}

    def get(self, name: str, start: int, stop: int, halt: Halt) -> Generator[bytes]:
        """Bytes ``start`` to ``stop`` of a file, as ``Store.get``; the first of a file resolves it."""
        size, where = found(self.entries, name, where=self.address).size, f"{self.address}/{name}"
        sent, page = web.ranged(start, stop, size), self._page(name)
        with contextlib.ExitStack() as open_until_read:

            def ask(url: str) -> web.Answer:
                authorize = bearer(self.endpoint, self._token)
                asked = web.get(self._connections, url, where=where, halt=halt, headers=sent, authorize=authorize)
                return open_until_read.enter_context(asked)

            answer = None
            with self._locks.setdefault((os.getpid(), name), threading.Lock()):
                if (known := self._known(name)) is None:
                    answer = ask(page)
                    if answer.status in (200, 206):
                        self._signed[name] = answer.url
            if answer is None:
                answer = ask(known or page)
            if (
                answer.status in (400, 401, 403, 404, 410) and answer.url != page
            ):  # an address that was signed is no more
                self._signed.pop(name, None)
                raise TransientError(web.refused(answer, where).problem, strange=True)
            if (commit := answer.headers.get("x-repo-commit", self.revision)) != self.revision:
                problem = Problem(where, "commit", self.revision, web.shown(commit), "Open the zoo again.")
                raise TransientError(problem, strange=True)
            yield from web.body(answer, start, stop, size, where=where)

    def _page(self, name: str) -> str:
        """Where the hub resolves a file."""
        path = f"{self.place.folder}/{name}" if self.place.folder else name
        return f"{self.endpoint}/datasets/{self.place.repo}/resolve/{self.revision}/{quote(path)}"

    def _known(self, name: str) -> str | None:
        """The address that a file was resolved to, unless it is about to expire."""
        url = self._signed.get(name)
        return url if url is None or expiry(url) - MARGIN_SECONDS > time.time() else None


def expiry(url: str) -> float:
    """When a signed address ends, in seconds since 1970: ``Expires=`` or ``X-Amz-Date=`` and ``X-Amz-Expires=``."""
    query = parse_qs(urlsplit(url).query)
    with contextlib.suppress(KeyError, ValueError):
        return float(query["Expires"][0])
    with contextlib.suppress(KeyError, ValueError):
        made = datetime.strptime(query["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        return made.timestamp() + float(query["X-Amz-Expires"][0])
    return math.inf


def hub_address(place: HubAddress, endpoint: str) -> str:
    """A repository without revision, and the hub where it is not huggingface.co."""
    plain = str(dataclasses.replace(place, revision=MAIN))
    return plain if endpoint == PUBLIC else f"{plain} at {endpoint}"


def default_endpoint() -> str:
    """The hub that huggingface_hub uses."""
    try:
        from huggingface_hub.constants import ENDPOINT
    except ImportError:
        raise MissingExtraError("huggingface_hub", "hub") from None
    return ENDPOINT


def bearer(endpoint: str, token: str | None = None) -> web.Authorize:
    """The headers with this token, or that of huggingface_hub, for addresses of this hub, and none for others."""
    try:
        from huggingface_hub import get_token
    except ImportError:
        raise MissingExtraError("huggingface_hub", "hub") from None

    def authorize(url: str) -> Mapping[str, str]:
        if origin_of(url) != origin_of(endpoint):
            return {}
        found = token or get_token()
        return {"Authorization": f"Bearer {found}"} if found else {}

    return authorize
