"""A dataset repository of the Hugging Face hub as a store, pinned to a commit.

The client library is asked for the address of the hub and for the token; ranges do not go through it, because its
file system resolves a file anew for every read. Here a file is resolved once, and the signed address that the hub
redirects to is asked until it expires.

Which commit a revision of a repository is, and which files that commit holds.
"""

import contextlib
import dataclasses
import json
import math
import os
import re
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, quote, urljoin, urlsplit

from ckptzoo.errors import AbsentError, MissingExtraError, Problem, RemoteError
from ckptzoo.remote import http
from ckptzoo.remote.address import MAIN, HubAddress
from ckptzoo.remote.http import Connections, origin_of
from ckptzoo.remote.retry import RetryPolicy, retry
from ckptzoo.remote.stores import CancelToken, FileEntry, TransientError, find_entry, listed

MAX_PAGES = 200
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_HEX = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_NEXT = re.compile(r'<([^<>]+)>\s*;\s*rel="?next"?')
_STEP = "Check the name and the revision; private zoos need hf auth login."


def read_listing(
    place: HubAddress, endpoint: str, connections: Connections, authorize: http.Authorize, retry_policy: RetryPolicy
) -> tuple[str, dict[str, FileEntry]]:
    """The commit and its files by name: one request, or with hubs that give no sizes there one more a 1,000 files.

    Raises
    ------
    AbsentError
        No such repository, revision or folder, as far as this token may know.
    RemoteError
        The hub says no, or answers what it should not.
    """
    where, cancel = str(place), CancelToken()
    api = f"{endpoint}/api/datasets/{place.repo}"

    def read(url: str) -> tuple[Any, str]:
        def ask() -> tuple[Any, str]:
            sent = {"Accept-Encoding": "gzip"}
            with http.get(connections, url, location=where, cancel=cancel, headers=sent, authorize=authorize) as answer:
                if answer.status in (401, 403, 404):
                    raise _refused(answer, where)
                data = http.document(answer, location=where, retry_policy=retry_policy)
                try:
                    return json.loads(data), answer.headers.get("link", "")
                except (ValueError, RecursionError) as error:
                    raise TransientError(_unreadable(where, str(error)), strange=True) from error

        return retry(ask, name=url, retry_policy=retry_policy, cancel=cancel)

    said, _ = read(f"{api}/revision/{quote(place.revision, safe='')}?blobs=true")
    try:
        commit, siblings = str(said["sha"]), list[Any](said["siblings"])
        if not _COMMIT.fullmatch(commit):
            raise ValueError(f"commit {commit[:80]!r}")
        if all("size" in item for item in siblings):
            entries = [_entry(item["rfilename"], item, item.get("blobId")) for item in siblings]
        else:
            tree = _pages(read, f"{api}/tree/{commit}?recursive=true")
            entries = [_entry(item["path"], item, item.get("oid")) for item in tree if item["type"] == "file"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RemoteError(_unreadable(where, f"{type(error).__name__}: {error}")) from error
    prefix = f"{place.folder}/" if place.folder else ""
    inside = [
        FileEntry(entry.name.removeprefix(prefix), entry.size, entry.digest)
        for entry in entries
        if entry.name.startswith(prefix) and not entry.name.startswith(".") and "/." not in entry.name
    ]
    if prefix and not inside:
        raise AbsentError(Problem(where, "folder", place.folder, "no file in it", _STEP))
    return commit, listed(inside, location=where)


def _pages(read: Any, url: str) -> Iterator[Any]:
    for _ in range(MAX_PAGES):
        items, link = read(url)
        yield from items
        following = _NEXT.search(link)
        if following is None:
            return
        url = urljoin(url, following[1])
    raise ValueError(f"more than {MAX_PAGES} pages")


def _entry(name: Any, item: Any, oid: Any) -> FileEntry:
    """One file; raises ValueError where what is said of it makes no sense."""
    lfs = item.get("lfs")
    if lfs:
        sha256 = str(lfs.get("sha256") or lfs["oid"]).removeprefix("sha256:")
        return FileEntry(str(name), _whole(lfs["size"]), _digest("sha256", sha256))
    return FileEntry(str(name), _whole(item["size"]), _digest("git", str(oid)) if oid else None)


def _whole(size: Any) -> int:
    if type(size) is not int:
        raise ValueError(f"size {size!r}"[:80])
    return size


def _digest(kind: str, digits: str) -> str:
    if not _HEX.fullmatch(digits):
        raise ValueError(f"digest {digits[:80]!r}")
    return f"{kind}:{digits}"


def _refused(answer: http.Answer, location: str) -> RemoteError:
    code = answer.headers.get("x-error-code", "")
    said = http.shown(answer.headers.get("x-error-message", "")) or f"status {answer.status}"
    if code == "GatedRepo":
        step = "Ask for access on its page, then log in with hf auth login."
        return RemoteError(Problem(location, "access", "leave to read it", said, step))
    if answer.status == 404 or code in ("RepoNotFound", "RevisionNotFound"):
        what = "revision" if code == "RevisionNotFound" else "repository"
        return AbsentError(Problem(location, what, "one that is there and may be read", said, _STEP))
    if answer.status == 401:  # the hub's answer for repositories that are not there or not for this token
        return AbsentError(Problem(location, "repository", "one that is there and may be read", said, _STEP))
    return RemoteError(Problem(location, "access", "leave to read it", said, _STEP))


def _unreadable(location: str, said: str) -> Problem:
    return Problem(location, "answer of the hub", "a commit and its files", http.shown(said), "Try again later.")


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
        entries: dict[str, FileEntry],
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
        cls, place: HubAddress, *, retry_policy: RetryPolicy, endpoint: str | None = None, token: str | None = None
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
        endpoint, connections = (endpoint or default_endpoint()).rstrip("/"), Connections(retry_policy.attempt)
        commit, entries = read_listing(place, endpoint, connections, bearer(endpoint, token), retry_policy)
        return cls(place, commit, entries, endpoint=endpoint, token=token, connections=connections)

    @property
    def address(self) -> str:
        """``hf://datasets/org/zoo``, and the hub where it is not huggingface.co."""
        return hub_address(self.place, self.endpoint)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_signed": {}, "_locks": {}, "_token": None}

    def get(self, name: str, start: int, stop: int, cancel: CancelToken) -> Generator[bytes]:
        """Bytes ``start`` to ``stop`` of a file, as ``Store.get``; the first of a file resolves it."""
        size, where = find_entry(self.entries, name, location=self.address).size, f"{self.address}/{name}"
        sent, page = http.ranged(start, stop, size), self._page(name)
        with contextlib.ExitStack() as open_until_read:

            def ask(url: str) -> http.Answer:
                authorize = bearer(self.endpoint, self._token)
                asked = http.get(
                    self._connections, url, location=where, cancel=cancel, headers=sent, authorize=authorize
                )
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
                raise TransientError(http.refused(answer, where).problem, strange=True)
            if (commit := answer.headers.get("x-repo-commit", self.revision)) != self.revision:
                problem = Problem(where, "commit", self.revision, http.shown(commit), "Open the zoo again.")
                raise TransientError(problem, strange=True)
            yield from http.body(answer, start, stop, size, location=where)

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


def bearer(endpoint: str, token: str | None = None) -> http.Authorize:
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
