"""A repository of the Hugging Face hub as a store, pinned to a commit.

huggingface_hub is asked for the address of the hub and for the token only. Ranges do not go through it, because its
file system resolves a file again for every read; here a file is resolved once, and the signed address to which the
hub redirects is used until it expires.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, quote, urljoin, urlsplit

from ckptzoo.environment import PUBLIC_HUB
from ckptzoo.errors import AbsentError, Problem, RemoteError, require
from ckptzoo.remote import http
from ckptzoo.remote.address import MAIN, HubAddress
from ckptzoo.remote.http import Connections
from ckptzoo.remote.retry import EXPIRED_STATUSES, RetryPolicy, retry
from ckptzoo.remote.servers import origin_of
from ckptzoo.remote.stores import CancelToken, FileEntry, TransientError, find_entry, listed
from ckptzoo.text import excerpt

MARGIN_SECONDS = 30.0
"""How long before a signed address expires it is no longer used."""
MAX_PAGES = 200
"""The most pages of a repository's tree, which the hub lists in pages of 1,000 files."""
COMMIT = re.compile(r"[0-9a-f]{40,64}")
# Names of git's objects, where a repository may use sha256 instead of sha1.
_HEX = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
"""sha1 or sha256."""
_NEXT = re.compile(r'<([^<>]+)>\s*;\s*rel="?next"?')
"""The header ``Link`` of a page that is not the last (RFC 8288)."""
_STEP = "Check the name, the revision and HF_TOKEN; private zoos need hf auth login."
GATED = "GatedRepo"
"""The header ``X-Error-Code`` of repositories whose readers have to be admitted."""


class HubStore:
    """The files of one commit, or of a folder in it.

    Without ``token``, that of huggingface_hub is looked up for every request. A token that is given stays in this
    process: a store that is unpickled in another uses that of huggingface_hub there.
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
        cls,
        place: HubAddress,
        *,
        retry_policy: RetryPolicy,
        endpoint: str | None = None,
        token: str | None = None,
        connections: Connections | None = None,
    ) -> "HubStore":
        """Pin a revision to its commit and read its content, by one request.

        Raises AbsentError: no such repository or revision, as far as this token may know. Raises MissingExtraError:
        huggingface_hub is not installed.

        The endpoint and the token are by default those that huggingface_hub uses (``HF_ENDPOINT``, ``HF_TOKEN``).
        """
        endpoint = (endpoint or default_endpoint()).rstrip("/")
        connections = connections or Connections(retry_policy.connection_deadline)
        commit, entries = read_listing(place, endpoint, connections, bearer(endpoint, token), retry_policy)
        return cls(place, commit, entries, endpoint=endpoint, token=token, connections=connections)

    @property
    def address(self) -> str:
        """``hf://datasets/org/zoo``, and the hub where it is not huggingface.co."""
        return hub_address(self.place, self.endpoint)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_signed": {}, "_locks": {}, "_token": None}

    def get(self, name: str, start: int, stop: int, cancel: CancelToken) -> Generator[bytes]:
        """Yield bytes ``start`` to ``stop`` of a file, as ``Store.get``; the first request for a file resolves it."""
        size, location = find_entry(self.entries, name, location=self.address).size, f"{self.address}/{name}"
        sent, page = http.range_header(start, stop, size), self._page(name)
        with contextlib.ExitStack() as open_until_read:

            def request(url: str, redirected: Callable[[str, Mapping[str, str]], None] | None = None) -> http.Answer:
                exchange = http.get(
                    self._connections,
                    url,
                    location=location,
                    cancel=cancel,
                    headers=sent,
                    authorize=bearer(self.endpoint, self._token),
                    redirected=redirected,
                )
                answer = open_until_read.enter_context(exchange)
                for stated in (*answer.redirects, answer.headers):
                    self._check_stated(stated, name, location)
                return answer

            answer = None
            # one thread resolves a file, the others wait for its signed address. A lock that another thread held
            # during a fork stays locked in the child, hence the process id.
            with contextlib.ExitStack() as resolving:

                def resolved(url: str, headers: Mapping[str, str]) -> None:
                    self._check_stated(headers, name, location)
                    self._signed[name] = url
                    resolving.close()  # the others need not wait for the answer to this one

                resolving.enter_context(self._locks.setdefault((os.getpid(), name), threading.Lock()))
                if (signed := self._unexpired(name)) is None:
                    try:
                        answer = request(page, resolved)
                    except BaseException:
                        self._signed.pop(name, None)
                        raise
                    if answer.status in (200, 206):
                        self._signed[name] = answer.url
                    else:
                        self._signed.pop(name, None)
            if answer is None:
                answer = request(signed or page)
            if answer.headers.get("x-error-code") == GATED:
                raise _refusal(answer, location)
            if answer.status in EXPIRED_STATUSES and answer.url != page:
                self._signed.pop(name, None)
                raise TransientError(http.refusal(answer, location).problem, protocol_error=True)
            yield from http.body(answer, start, stop, size, location=location)

    def _check_stated(self, headers: Mapping[str, str], name: str, location: str) -> None:
        """Compare the commit and the sha256 that the hub states with those of this store.

        The hub states both before it redirects; a cache in between may answer with another commit's file.
        """
        digest = self.entries[name].digest or ""
        linked = headers.get("x-linked-etag", "").strip('"')
        # the hub's ETag of a file in LFS storage is its sha256; what is no sha256 says nothing
        stated = f"sha256:{linked}" if len(linked) == 64 and digest.startswith("sha256:") else digest
        commit = headers.get("x-repo-commit", self.revision)
        for what, expected, got in (("commit", self.revision, commit), ("digest", digest, stated)):
            if got != expected:
                problem = Problem(location, what, expected, excerpt(got, 160), "Open the zoo again.")
                raise TransientError(problem, protocol_error=True)

    def _page(self, name: str) -> str:
        """Return the address at which the hub resolves a file."""
        path = f"{self.place.folder}/{name}" if self.place.folder else name
        return f"{self.endpoint}/{self.place.page}/resolve/{self.revision}/{quote(path)}"

    def _unexpired(self, name: str) -> str | None:
        """Return the address that a file was resolved to, unless it is about to expire."""
        url = self._signed.get(name)
        return url if url is None or expiry(url) - MARGIN_SECONDS > time.time() else None


def read_listing(
    place: HubAddress, endpoint: str, connections: Connections, authorize: http.Authorize, retry_policy: RetryPolicy
) -> tuple[str, dict[str, FileEntry]]:
    """Return the commit of a revision and its files by name.

    One request; hubs whose answer has no sizes need one more for each 1,000 files.

    Raises AbsentError: no such repository, revision or folder, as far as this token may know. Raises RemoteError: the
    hub refuses, or its answer makes no sense.
    """
    location, api = str(place), f"{endpoint}/api/{place.kind}/{place.repo}"
    read = functools.partial(_read_json, location, connections, authorize, retry_policy)
    # a revision such as refs/pr/1 is one segment for the hub; blobs=true adds sizes and digests, in one answer
    info, _ = read(f"{api}/revision/{quote(place.revision, safe='')}?blobs=true")
    try:
        # without siblings: too many for one answer
        commit, siblings = str(info["sha"]), info.get("siblings")
        if not COMMIT.fullmatch(commit):
            raise ValueError(f"commit {commit[:80]!r}")
        if siblings is not None and all("size" in item for item in siblings):
            entries = [_entry(item["rfilename"], item, item.get("blobId")) for item in siblings]
        else:
            tree = _pages(read, f"{api}/tree/{commit}?recursive=true")
            entries = [_entry(item["path"], item, item.get("oid")) for item in tree if item["type"] == "file"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RemoteError(_unreadable(location, f"{type(error).__name__}: {error}")) from error
    prefix = f"{place.folder}/" if place.folder else ""
    inside = [
        FileEntry(entry.name.removeprefix(prefix), entry.size, entry.digest)
        for entry in entries
        # every repository of the hub has a .gitattributes
        if entry.name.startswith(prefix) and not entry.name.startswith(".") and "/." not in entry.name
    ]
    if prefix and not inside:
        raise AbsentError(Problem(location, "folder", place.folder, "no file in it", _STEP))
    return commit, listed(inside, location=location)


@dataclasses.dataclass(frozen=True)
class Refs:
    """The branches and tags of a repository, each with its commit."""

    branches: Mapping[str, str]
    tags: Mapping[str, str]


def read_refs(
    place: HubAddress, endpoint: str, connections: Connections, authorize: http.Authorize, retry_policy: RetryPolicy
) -> Refs:
    """Return the branches and tags of a repository, by one request; raises as ``read_listing`` does."""
    location = str(dataclasses.replace(place, revision=MAIN, folder=""))
    url = f"{endpoint}/api/{place.kind}/{place.repo}/refs"
    found, _ = _read_json(location, connections, authorize, retry_policy, url)
    try:
        branches, tags = (
            {str(item["name"]): str(item["targetCommit"]) for item in found[kind]} for kind in ("branches", "tags")
        )
    except (KeyError, TypeError) as error:
        raise RemoteError(_unreadable(location, f"{type(error).__name__}: {error}")) from error
    return Refs(branches, tags)


def _read_json(
    location: str, connections: Connections, authorize: http.Authorize, retry_policy: RetryPolicy, url: str
) -> tuple[Any, str]:
    """Return an answer of the hub's API, and its header ``Link``."""
    cancel = CancelToken()

    def request() -> tuple[Any, str]:
        sent = {"Accept-Encoding": "gzip"}
        with http.get(connections, url, location=location, cancel=cancel, headers=sent, authorize=authorize) as answer:
            if answer.status in (401, 403, 404):
                raise _refusal(answer, location)
            data = http.document(answer, location=location, retry_policy=retry_policy)
            try:
                return json.loads(data), answer.headers.get("link", "")
            except (ValueError, RecursionError) as error:
                raise TransientError(_unreadable(location, str(error)), protocol_error=True) from error

    return retry(request, retry_policy=retry_policy, cancel=cancel)


def _pages(read: Any, url: str) -> Iterator[Any]:
    """Yield the items of a list that the hub returns in pages."""
    for _ in range(MAX_PAGES):
        items, link = read(url)
        yield from items
        following = _NEXT.search(link)
        if following is None:
            return
        url = urljoin(url, following[1])
    raise ValueError(f"more than {MAX_PAGES} pages")


def _entry(name: Any, item: Any, oid: Any) -> FileEntry:
    """Return one file; raises ValueError where its description makes no sense.

    Files in LFS storage have a sha256, others the id that git gives them; two answers of the hub's API name both
    differently.
    """
    lfs = item.get("lfs")
    if lfs:
        sha256 = str(lfs.get("sha256") or lfs["oid"]).removeprefix("sha256:")
        return FileEntry(str(name), _checked_size(lfs["size"]), _checked_digest("sha256", sha256))
    return FileEntry(str(name), _checked_size(item["size"]), _checked_digest("git", str(oid)) if oid else None)


def _checked_size(size: Any) -> int:
    if type(size) is not int:  # not isinstance: a bool is no size
        raise ValueError(f"size {size!r}"[:80])
    return size


def _checked_digest(kind: str, digits: str) -> str:
    if not _HEX.fullmatch(digits):
        raise ValueError(f"digest {digits[:80]!r}")
    return f"{kind}:{digits}"


def _refusal(answer: http.Answer, location: str) -> RemoteError:
    code = answer.headers.get("x-error-code", "")
    got = excerpt(answer.headers.get("x-error-message", ""), 160) or f"status {answer.status}"
    # huggingface_hub chooses its exceptions by the same header (utils/_http.py)
    if code == GATED:
        step = "It is gated: ask for access on its page, then log in with hf auth login."
        return RemoteError(Problem(location, "access", "permission to read it", got, step))
    if answer.status == 404 or code in ("RepoNotFound", "RevisionNotFound"):
        what = "revision" if code == "RevisionNotFound" else "repository"
        return AbsentError(Problem(location, what, "one that is there and may be read", got, _STEP))
    if answer.status == 401:  # also the hub's answer where there is no such repository
        return AbsentError(Problem(location, "repository", "one that is there and may be read", got, _STEP))
    return RemoteError(Problem(location, "access", "permission to read it", got, _STEP))


def _unreadable(location: str, got: str) -> Problem:
    return Problem(location, "answer of the hub", "a commit and its files", excerpt(got, 160), "Try again later.")


def expiry(url: str) -> float:
    """Return when a signed address expires, in seconds since 1970; infinity where it does not say.

    CloudFront signs ``Expires=``, S3 ``X-Amz-Date=`` and ``X-Amz-Expires=``.
    """
    query = parse_qs(urlsplit(url).query)
    with contextlib.suppress(KeyError, ValueError):
        return float(query["Expires"][0])
    with contextlib.suppress(KeyError, ValueError):
        signed = datetime.strptime(query["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        return signed.timestamp() + float(query["X-Amz-Expires"][0])
    return math.inf


def hub_address(place: HubAddress, endpoint: str, revision: str = MAIN) -> str:
    """Return the address of a repository at a revision, and the hub where it is not huggingface.co."""
    plain = str(dataclasses.replace(place, revision=revision))
    return plain if endpoint == PUBLIC_HUB else f"{plain} at {endpoint}"


def default_endpoint() -> str:
    """Return the hub that huggingface_hub uses."""
    return str(require("huggingface_hub.constants", "hub").ENDPOINT)


def bearer(endpoint: str, token: str | None = None) -> http.Authorize:
    """Return the headers with this token, or huggingface_hub's, for addresses of this hub, and none for others."""
    get_token = require("huggingface_hub", "hub").get_token

    def authorize(url: str) -> Mapping[str, str]:
        # redirects lead to storage of other companies, whose address is signed
        if origin_of(url) != origin_of(endpoint):
            return {}
        value = token or get_token()
        return {"Authorization": f"Bearer {value}"} if value else {}

    return authorize
