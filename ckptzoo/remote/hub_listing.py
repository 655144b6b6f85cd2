"""Which commit a revision of a repository is, and which files that commit holds."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urljoin

from ckptzoo.errors import AbsentError, Problem, RemoteError
from ckptzoo.remote import web
from ckptzoo.remote.address import HubAddress
from ckptzoo.remote.connections import Connections
from ckptzoo.remote.errors import TransientError
from ckptzoo.remote.patience import Patience, persisting
from ckptzoo.remote.store import Entry, Halt, listed

MAX_PAGES = 200
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_HEX = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_NEXT = re.compile(r'<([^<>]+)>\s*;\s*rel="?next"?')
_STEP = "Check the name and the revision; private zoos need hf auth login."


def read_listing(
    place: HubAddress, endpoint: str, connections: Connections, authorize: web.Authorize, patience: Patience
) -> tuple[str, dict[str, Entry]]:
    """The commit and its files by name: one request, or with hubs that give no sizes there one more a 1,000 files.

    Raises
    ------
    AbsentError
        No such repository, revision or folder, as far as this token may know.
    RemoteError
        The hub says no, or answers what it should not.
    """
    where, halt = str(place), Halt()
    api = f"{endpoint}/api/datasets/{place.repo}"

    def read(url: str) -> tuple[Any, str]:
        def ask() -> tuple[Any, str]:
            sent = {"Accept-Encoding": "gzip"}
            with web.get(connections, url, where=where, halt=halt, headers=sent, authorize=authorize) as answer:
                if answer.status in (401, 403, 404):
                    raise _refused(answer, where)
                data = web.document(answer, where=where, patience=patience)
                try:
                    return json.loads(data), answer.headers.get("link", "")
                except (ValueError, RecursionError) as error:
                    raise TransientError(_unreadable(where, str(error)), strange=True) from error

        return persisting(ask, name=url, patience=patience, halt=halt)

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
        Entry(entry.name.removeprefix(prefix), entry.size, entry.digest)
        for entry in entries
        if entry.name.startswith(prefix) and not entry.name.startswith(".") and "/." not in entry.name
    ]
    if prefix and not inside:
        raise AbsentError(Problem(where, "folder", place.folder, "no file in it", _STEP))
    return commit, listed(inside, where=where)


def _pages(read: Any, url: str) -> Iterator[Any]:
    for _ in range(MAX_PAGES):
        items, link = read(url)
        yield from items
        following = _NEXT.search(link)
        if following is None:
            return
        url = urljoin(url, following[1])
    raise ValueError(f"more than {MAX_PAGES} pages")


def _entry(name: Any, item: Any, oid: Any) -> Entry:
    """One file; raises ValueError where what is said of it makes no sense."""
    lfs = item.get("lfs")
    if lfs:
        sha256 = str(lfs.get("sha256") or lfs["oid"]).removeprefix("sha256:")
        return Entry(str(name), _whole(lfs["size"]), _digest("sha256", sha256))
    return Entry(str(name), _whole(item["size"]), _digest("git", str(oid)) if oid else None)


def _whole(size: Any) -> int:
    if type(size) is not int:
        raise ValueError(f"size {size!r}"[:80])
    return size


def _digest(kind: str, digits: str) -> str:
    if not _HEX.fullmatch(digits):
        raise ValueError(f"digest {digits[:80]!r}")
    return f"{kind}:{digits}"


def _refused(answer: web.Answer, where: str) -> RemoteError:
    code = answer.headers.get("x-error-code", "")
    said = web.shown(answer.headers.get("x-error-message", "")) or f"status {answer.status}"
    if code == "GatedRepo":
        step = "Ask for access on its page, then log in with hf auth login."
        return RemoteError(Problem(where, "access", "leave to read it", said, step))
    if answer.status == 404 or code in ("RepoNotFound", "RevisionNotFound"):
        what = "revision" if code == "RevisionNotFound" else "repository"
        return AbsentError(Problem(where, what, "one that is there and may be read", said, _STEP))
    if answer.status == 401:  # the hub's answer for repositories that are not there or not for this token
        return AbsentError(Problem(where, "repository", "one that is there and may be read", said, _STEP))
    return RemoteError(Problem(where, "access", "leave to read it", said, _STEP))


def _unreadable(where: str, said: str) -> Problem:
    return Problem(where, "answer of the hub", "a commit and its files", web.shown(said), "Try again later.")
