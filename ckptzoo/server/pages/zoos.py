"""Pages that show the listing, namespaces, zoos, their files, history and changes."""

import sqlite3
from collections import Counter
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from starlette.responses import Response

from ckptzoo.schema import layout
from ckptzoo.schema.explorer import BUNDLES
from ckptzoo.server.access import ADMIN, CONTRIBUTE, READ, WRITE, AccessTarget, may, role_in
from ckptzoo.server.errors import Refusal, no_entry
from ckptzoo.server.names import KINDS, checked_path, checked_user
from ckptzoo.server.pages.cards import card_html
from ckptzoo.server.pages.html import page
from ckptzoo.server.request import AuthorizedRequest
from ckptzoo.server.responses import file_response
from ckptzoo.server.store import accounts, repositories
from ckptzoo.server.store.commits import MAIN, Commit, History, diff
from ckptzoo.server.store.git_objects import File, Node, Trees
from ckptzoo.server.store.repositories import Repository
from ckptzoo.server.summaries import Summary

_PAGE = 50
"""Repositories, entries and commits of a page."""
_MAX_PAGE = 100_000
_MAX_SHOWN = 2**18
"""Bytes of a text file that a page shows."""
_MAX_DIFF = 2**19
"""Characters of a diff that a page shows."""
FACETS = {"arch": "arch:", "dataset": "dataset:", "license": "license:"}
"""Names in queries, and the beginnings of the tags that they choose by."""
_SHOWN_VALUES = 12
_PICTURES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    # may hold scripts, which the policy _UPLOADED keeps from running
    "svg": "image/svg+xml",
}
_UPLOADED = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""The policy of files as they were sent: nothing in them runs, whatever browsers take them for."""


@dataclass(frozen=True)
class Row:
    """A repository in a listing."""

    repository: Repository
    address: str
    commit: str
    date: str
    summary: Summary


@dataclass(frozen=True)
class FacetValue:
    """A value of a facet: how many repositories have it, and the address that chooses it or, if chosen, drops it."""

    name: str
    count: int
    address: str
    chosen: bool


def listing(request: AuthorizedRequest) -> Response:
    """Show the repositories that the caller may read, the last changed first, with search and facets."""
    return _listing(request, None)


def namespace(request: AuthorizedRequest) -> Response:
    """Show the repositories of a namespace, and for those who have a role there, its members."""
    try:
        name = checked_user(request.piece("namespace"))
    except Refusal:
        raise Refusal(404, "There is nothing at this address.") from None
    return _listing(request, name)


def _listing(request: AuthorizedRequest, owner: str | None) -> Response:
    query = {name: request.query[name].strip()[:200] for name in ("q", "kind", *FACETS) if request.query.get(name)}
    words = query.get("q", "").lower().split()
    start = _page_of(request) * _PAGE
    role = None if owner is None else role_in(request.subject, AccessTarget(owner))
    with request.service.database.reading() as connection:
        account = None if owner is None else accounts.find(connection, owner)
        visible = rows_of(request, connection, owner)
        members = accounts.members(connection, owner) if owner is not None and role is not None else {}
        rows = [row for row in visible if _matches(row, words, query)]
        summaries, shown = request.service.summaries, rows[start : start + _PAGE]
        behind = {row.address: summaries.behind(connection, row.repository.id, row.commit) for row in shown}
    # a namespace that has nothing to show is answered like one that is not there
    if owner is not None and not visible and role is None:
        raise Refusal(404, "There is nothing at this address.")
    facets = {
        "kind": _values(request, query, "kind", Counter(row.repository.kind for row in rows)),
        **{
            name: _values(request, query, name, Counter(v for row in rows for v in row.summary.tagged(begin) if v))
            for name, begin in FACETS.items()
        },
    }
    return page(
        request,
        "listing.html",
        owner=owner,
        is_organisation=account is not None and account.kind == accounts.ORGANISATION,
        members=members,
        administers=owner is not None and may(request.subject, ADMIN, AccessTarget(owner)),
        rows=shown,
        behind=behind,
        count=len(rows),
        start=start,
        facets={name: values for name, values in facets.items() if values},
        query=query,
        **_pages(request, start // _PAGE, len(rows) > start + _PAGE),
    )


def rows_of(request: AuthorizedRequest, connection: sqlite3.Connection, owner: str | None) -> list[Row]:
    """Return the repositories that the caller may read, the last changed first."""
    rows: list[Row] = []
    for repository, commit, date in repositories.with_heads(connection):
        if owner is not None and repository.name.partition("/")[0] != owner:
            continue
        if may(request.subject, READ, repository.target):
            summary = request.service.summaries.summary(connection, repository.id, commit)
            rows.append(Row(repository, address_of(repository), commit, date, summary))
    return rows


def _matches(row: Row, words: list[str], query: dict[str, str]) -> bool:
    text = f"{row.repository.name} {row.summary.title} {' '.join(row.summary.tags)}".lower()
    if not all(word in text for word in words) or query.get("kind", row.repository.kind) != row.repository.kind:
        return False
    return all(name not in query or query[name] in row.summary.tagged(start) for name, start in FACETS.items())


def _values(request: AuthorizedRequest, query: dict[str, str], name: str, counts: "Counter[str]") -> list[FacetValue]:
    values: list[FacetValue] = []
    for value, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN_VALUES]:
        chosen = query.get(name) == value
        others = {key: text for key, text in query.items() if key != name}
        values.append(
            FacetValue(value, count, _address(request, others if chosen else {**others, name: value}), chosen)
        )
    return values


def zoo(request: AuthorizedRequest) -> Response:
    """Show a repository: its card, facts and how to use it, and what a merge has not brought up to date."""
    with request.service.database.reading() as connection:
        context, commit = _of_repository(request, connection, "card")
        summaries, number = request.service.summaries, request.repository.id
        overview = summaries.overview(connection, number, commit.oid)
        summary = summaries.summary(connection, number, commit.oid)
        behind = summaries.behind(connection, number, commit.oid)
        collected = summaries.collected(connection, number, commit.oid)
    card = ""
    if overview.readme is not None and not overview.readme.large:
        card = card_html(request.service.blobs.path(overview.readme.sha256), context["address"], commit.oid)
    return page(
        request,
        "zoo.html",
        **context,
        overview=overview,
        summary=summary,
        behind=behind,
        card=card,
        origin=request.origin,
        collected=collected,
        is_zoo="ckptzoo" in summary.tags,
        explorer=overview.explorer is not None and bool(BUNDLES),
    )


def explorer(request: AuthorizedRequest) -> Response:
    """Show the page ``pages/explorer.html`` of a zoo, in a frame of its own."""
    with request.service.database.reading() as connection:
        context, commit = _of_repository(request, connection, "explorer")
        _explorer_file(request, connection, commit)
        behind = request.service.summaries.behind(connection, request.repository.id, commit.oid)
    return page(request, "explorer.html", **context, behind=behind)


def explorer_frame(request: AuthorizedRequest) -> Response:
    """Return the explorer as it was sent: only scripts of released bundles run. The frame and this policy both say
    ``sandbox``, so that it has an origin of its own, without our cookies.
    """
    with request.service.database.reading() as connection:
        commit = History(connection, request.repository.id).resolve(request.piece("revision"))
        file = _explorer_file(request, connection, commit)
    sources = " ".join(f"'{digest}'" for digest in BUNDLES)
    policy = (
        f"sandbox allow-scripts; default-src 'none'; script-src {sources}; style-src {sources}; img-src data:; "
        "frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
    )
    headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
    path = request.service.blobs.path(file.sha256)
    return file_response(request.http_request, path, file.oid, headers, "text/html; charset=utf-8")


def _explorer_file(request: AuthorizedRequest, connection: sqlite3.Connection, commit: Commit) -> File:
    overview = request.service.summaries.overview(connection, request.repository.id, commit.oid)
    if overview.explorer is None or not BUNDLES:
        raise no_entry("pages/explorer.html")
    return overview.explorer


def files(request: AuthorizedRequest) -> Response:
    """Show a page of a folder."""
    path, start = request.piece("path"), _page_of(request) * _PAGE
    if path:
        checked_path(path)
    with request.service.database.reading() as connection:
        context, commit = _of_repository(request, connection, "files")
        trees = Trees(connection, request.repository.id)
        folder = trees.find(commit.tree, path)
        if folder is None or not folder.folder:
            raise no_entry(path)
        everything = sorted(trees.nodes(folder.oid).items(), key=lambda item: (not item[1].folder, item[0]))
        shown: list[tuple[str, Node]] = everything[start : start + _PAGE]
        stored = trees.files(node.oid for _, node in shown if not node.folder)
        readme = None if not path else trees.nodes(folder.oid).get(layout.README)
        card = None if readme is None or readme.folder else trees.file(readme.oid)
    entries = [
        {"name": name, "path": f"{path}/{name}" if path else name, "file": None if node.folder else stored[node.oid]}
        for name, node in shown
    ]
    return page(
        request,
        "files.html",
        **context,
        entries=entries,
        # that of a zoo in a collection; the repository's own has a page
        card="" if card is None or card.large else _card_in(request, context["address"], commit, path, card),
        crumbs=_crumbs(path),
        **_pages(request, start // _PAGE, len(everything) > start + _PAGE),
    )


def _card_in(request: AuthorizedRequest, address: str, commit: Commit, folder: str, card: File) -> str:
    return card_html(request.service.blobs.path(card.sha256), address, commit.oid, folder)


def file(request: AuthorizedRequest) -> Response:
    """Show one file: its size and digests, and its text where it is short."""
    path = checked_path(request.piece("path"))
    with request.service.database.reading() as connection:
        context, commit = _of_repository(request, connection, "files")
        entry = _file_at(connection, request, commit, path)
    text = None
    if not entry.large and entry.size <= _MAX_SHOWN:
        data = request.service.blobs.path(entry.sha256).read_bytes()
        text = data.decode() if _is_text(data) else None
    picture = path.rpartition(".")[2].lower() in _PICTURES and not entry.large
    return page(
        request, "file.html", **context, crumbs=_crumbs(path), path_=path, file=entry, text=text, picture=picture
    )


def raw(request: AuthorizedRequest) -> Response:
    """Return the bytes of a file, for browsers: pictures as such, all else as text or as a download."""
    path = checked_path(request.piece("path"))
    with request.service.database.reading() as connection:
        commit = History(connection, request.repository.id).resolve(request.piece("revision"))
        entry = _file_at(connection, request, commit, path)
    kind = _PICTURES.get(path.rpartition(".")[2].lower(), "text/plain; charset=utf-8")
    headers = {"Content-Security-Policy": _UPLOADED, "Cache-Control": "private, max-age=3600"}
    if entry.large:
        kind = "application/octet-stream"
        headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(path.rpartition('/')[2], safe='')}"
    blob = request.service.blobs.path(entry.sha256)
    return file_response(request.http_request, blob, entry.sha256, headers, kind)


def history(request: AuthorizedRequest) -> Response:
    """Show a page of the commits before a revision."""
    number = _page_of(request)
    with request.service.database.reading() as connection:
        context, commit = _of_repository(request, connection, "history")
        log = History(connection, request.repository.id).log(commit.oid, _PAGE + 1, number * _PAGE)
    return page(request, "history.html", **context, log=log[:_PAGE], **_pages(request, number, len(log) > _PAGE))


def change(request: AuthorizedRequest) -> Response:
    """Show a commit and its changes against its first parent."""
    with request.service.database.reading() as connection:
        context, commit = _of_repository(request, connection, "history")
        history = History(connection, request.repository.id)
        parents = history.parents(commit.oid)
        before = history.commit(parents[0]) if parents else None
        trees = Trees(connection, request.repository.id)
        lines, is_cut = diff_lines(request, trees, None if before is None else before.tree, commit.tree)
    return page(request, "change.html", **context, parents=parents, lines=lines, is_cut=is_cut)


def diff_lines(
    request: AuthorizedRequest, trees: Trees, before: str | None, after: str
) -> tuple[list[tuple[str, str]], bool]:
    """Return the lines of a diff, each with its class, and whether it was cut; None is an empty folder."""
    text = diff(trees, request.service.blobs, before, after, is_abandoned=request.gone.is_set)
    classes = {"+": "added", "-": "removed", "@": "hunk"}
    lines: list[tuple[str, str]] = []
    for line in text[:_MAX_DIFF].splitlines():
        is_head = line.startswith(("diff --git ", "--- ", "+++ ", "Binary files "))
        lines.append(("head" if is_head else classes.get(line[:1], "same"), line))
    return lines, len(text) > _MAX_DIFF


def _of_repository(
    request: AuthorizedRequest, connection: sqlite3.Connection, tab: str
) -> tuple[dict[str, Any], Commit]:
    """Return the values that all pages of a repository show, and the requested commit."""
    revision = request.piece("revision") or "main"
    commit = History(connection, request.repository.id).resolve(MAIN if revision == "main" else revision)
    return context_of(request, connection, tab) | {"revision": revision, "commit": commit}, commit


def context_of(request: AuthorizedRequest, connection: sqlite3.Connection, tab: str) -> dict[str, Any]:
    """Return the values that all pages of a repository show."""
    repository = request.repository
    query = "SELECT COUNT(*) FROM discussions WHERE repository = ? AND status IN ('draft', 'open')"
    return {
        "repository": repository,
        "address": address_of(repository),
        "tab": tab,
        "open_count": connection.execute(query, (repository.id,)).fetchone()[0],
        "may_contribute": request.may(CONTRIBUTE),
        "may_write": request.may(WRITE),
        "administers": request.may(ADMIN),
        "revision": "main",
    }


def address_of(repository: Repository) -> str:
    """Return the path of a repository's page, as on the hub."""
    prefixes = {kind: f"/{name}" for name, kind in KINDS.items() if kind != "model"}
    return f"{prefixes.get(repository.kind, '')}/{repository.name}"


def _file_at(connection: sqlite3.Connection, request: AuthorizedRequest, commit: Commit, path: str) -> File:
    trees = Trees(connection, request.repository.id)
    node = trees.find(commit.tree, path)
    if node is None or node.folder:
        raise no_entry(path)
    return trees.file(node.oid)


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def _crumbs(path: str) -> list[tuple[str, str]]:
    """Return the name and the path of each folder above a path, and of the path itself."""
    parts = path.split("/") if path else []
    return [(part, "/".join(parts[: number + 1])) for number, part in enumerate(parts)]


def _page_of(request: AuthorizedRequest) -> int:
    return min(request.page(), _MAX_PAGE)


def _pages(request: AuthorizedRequest, number: int, has_more: bool) -> dict[str, Any]:
    """Return the addresses of the pages before and behind this one, empty where there is none."""
    query = {name: text for name, text in request.query.items() if name != "p"}
    before = _address(request, {**query, "p": str(number - 1)}) if number else ""
    return {"before": before, "after": _address(request, {**query, "p": str(number + 1)}) if has_more else ""}


def _address(request: AuthorizedRequest, query: dict[str, str]) -> str:
    path = quote(request.http_request.scope["path"])
    return f"{path}?{urlencode(query)}" if query else path
