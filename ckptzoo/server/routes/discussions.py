"""Discussions and pull requests: list, open, comment, change, merge."""

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from starlette.responses import JSONResponse, Response

from ckptzoo.server.errors import Refusal
from ckptzoo.server.request import AuthorizedRequest, text_of
from ckptzoo.server.store.audit import note
from ckptzoo.server.store.commits import MAIN, PULLS, History, diff, merge
from ckptzoo.server.store.discussions import CHANGEABLE, Discussions, Event, StoredDiscussion
from ckptzoo.server.store.git_objects import Trees

MAX_TEXT = 65536
"""Characters of a description or a comment."""
EXPECTED_HEAD, EXPECTED_TARGET = "expectedHead", "expectedTarget"
"""Names in the body of a merge: the pull request's last commit, and that of its target."""
_SHOWN_CONFLICTS, _SHOWN_OID = 20, 40
_MERGE_SECONDS = 2.0
"""Seconds for finding conflicts before a merge."""


def listing(request: AuthorizedRequest) -> Response:
    """Return a page of discussions, the last first."""
    query, size = request.query, request.service.limits.small_page
    with request.service.database.reading() as connection:
        discussions = Discussions(connection, request.repository.id).all()
    matching = [
        item
        for item in discussions
        if query.get("type", "all") in ("all", "pull_request" if item.target else "discussion")
        and query.get("status", "all") in ("all", "closed" if item.status in ("closed", "merged") else "open")
        and query.get("author", item.author) == item.author
    ]
    start = request.page() * size
    page = [_summary(request, item) for item in matching[start : start + size]]
    # huggingface_hub asks for pages until start and their lengths reach count
    return JSONResponse({"discussions": page, "count": len(matching), "start": start, "numClosedDiscussions": 0})


def create(request: AuthorizedRequest) -> Response:
    """Open a discussion, or a draft of a pull request, which has no changes yet."""
    body = request.json()
    title, text = _title(body), text_of(body, "description", "")[:MAX_TEXT]
    with request.writing() as connection:
        request.service.quotas.check_discussions(connection, request.contributor)
        discussions = Discussions(connection, request.repository.id)
        if body.get("pullRequest"):
            history = History(connection, request.repository.id)
            base = history.resolve(MAIN).oid
            # as on the hub, where pull requests that a program opens are drafts
            discussion = discussions.create(
                title=title, author=request.user, role=request.role, description=text, base=base, status="draft"
            )
            history.point(discussion.ref, base)
        else:
            discussion = discussions.create(title=title, author=request.user, role=request.role, description=text)
        charge(request, connection, discussions, discussion.number)
    return JSONResponse({"num": discussion.number, "url": f"{request.address}/discussions/{discussion.number}"})


def details(request: AuthorizedRequest) -> Response:
    """Return a discussion with all its events; for a pull request also its conflicts and its diff."""
    with request.service.database.reading() as connection:
        discussions = Discussions(connection, request.repository.id)
        discussion = discussions.get(request.path_number("number"))
        events = [_event(item) for item in discussions.events(discussion.number)]
        content = {**_summary(request, discussion), "events": events}
        if discussion.target is not None and discussion.base is not None:
            history, trees = History(connection, request.repository.id), Trees(connection, request.repository.id)
            base, proposed = history.resolve(discussion.base).tree, history.resolve(discussion.ref).tree
            conflicts: list[str] | bool = []
            if discussion.status in ("draft", "open"):
                conflicts = conflicts_of(trees, base, history.resolve(discussion.target).tree, proposed)
            merged = {} if discussion.merged is None else {"mergeCommitId": discussion.merged}
            changes = {"base": discussion.target, **merged}
            content.update(changes=changes, filesWithConflicts=conflicts)
            if request.is_set("diff"):
                content["diff"] = diff(trees, request.service.blobs, base, proposed, is_abandoned=request.gone.is_set)
    return JSONResponse(content)


def conflicts_of(trees: Trees, base: str, target: str, proposed: str) -> list[str] | bool:
    """Return the files with conflicts, from the ids of three folders; True, as on the hub, where it takes too long."""
    try:
        return list(merge(trees, base, target, proposed, seconds=_MERGE_SECONDS).conflicts)
    except Refusal:
        return True


def comment(request: AuthorizedRequest) -> Response:
    """Add a comment."""
    return JSONResponse({"newMessage": _event(add_comment(request, text_of(request.json(), "comment")))})


def add_comment(request: AuthorizedRequest, text: str) -> Event:
    """Add a comment to the discussion that the path names."""
    with request.writing() as connection:
        discussions = Discussions(connection, request.repository.id)
        number = discussions.get(request.path_number("number")).number
        event = discussions.comment(number, request.user, request.role, text[:MAX_TEXT])
        charge(request, connection, discussions, number)
    return event


def edit_comment(request: AuthorizedRequest) -> Response:
    """Change a comment of the caller's own."""
    return _edited(request, text_of(request.json(), "content")[:MAX_TEXT])


def hide_comment(request: AuthorizedRequest) -> Response:
    """Hide a comment: callers that may write any, others their own."""
    return _edited(request, None)


def rename(request: AuthorizedRequest) -> Response:
    """Give a discussion another title."""
    title = _title(request.json())
    with request.writing() as connection:
        discussions = Discussions(connection, request.repository.id)
        discussion = _editable(request, discussions)
        event = discussions.rename(discussion, request.user, title)
        charge(request, connection, discussions, discussion.number)
    return JSONResponse({"newTitle": _event(event)})


def change_status(request: AuthorizedRequest) -> Response:
    """Open or close a discussion; a draft that is opened may be merged."""
    body = request.json()
    return JSONResponse(
        {"newStatus": _event(set_status(request, text_of(body, "status"), text_of(body, "comment", "")))}
    )


def set_status(request: AuthorizedRequest, status: str, text: str) -> Event:
    """Open or close the discussion that the path names, with a comment unless the text is empty."""
    text = text[:MAX_TEXT]
    if status not in CHANGEABLE:
        raise Refusal(400, f"status: expected one of {', '.join(CHANGEABLE)}, got {status[:100]!r}.")
    with request.writing() as connection:
        discussions = Discussions(connection, request.repository.id)
        discussion = _editable(request, discussions)
        if discussion.status == "merged":
            raise Refusal(400, f"Pull request {discussion.number}: expected one that is not merged.")
        if discussion.status == "closed" and status != "closed":
            request.service.quotas.check_discussions(connection, request.contributor)
        if text:
            discussions.comment(discussion.number, request.user, request.role, text)
        event = discussions.set_status(discussion.number, request.user, status)
        if status != "closed":  # a full one may be closed
            charge(request, connection, discussions, discussion.number)
    return event


def merge_pull(request: AuthorizedRequest) -> Response:
    """Merge a pull request into its target, as one commit with two parents.

    A body may name the commits that were reviewed: ``expectedHead``, the last one of the pull request, and
    ``expectedTarget``, that of its target. Where one has moved, nothing is merged (412). The hub knows neither; the
    answer repeats them as ``head`` and ``target``, so that clients can tell.
    """
    body = request.json()
    expected = {name: text_of(body, name) for name in (EXPECTED_HEAD, EXPECTED_TARGET) if body.get(name) is not None}
    return JSONResponse(merge_reviewed(request, text_of(body, "comment", ""), expected))


def merge_reviewed(
    request: AuthorizedRequest,
    text: str,
    expected: Mapping[str, str],
    check: Callable[[Discussions, StoredDiscussion, str, str], None] | None = None,
) -> dict[str, str]:
    """Merge the pull request that the path names.

    ``text`` is that of a comment and of the commit, and may be empty; ``expected`` has the commits that were reviewed,
    by ``EXPECTED_HEAD`` and ``EXPECTED_TARGET``. ``check`` is called with the discussions, the pull request, its last
    commit and its target's, in the same transaction, and may refuse.
    """
    text = text[:MAX_TEXT]
    with request.writing() as connection:
        discussions = Discussions(connection, request.repository.id)
        history, trees = History(connection, request.repository.id), Trees(connection, request.repository.id)
        pull = discussions.get(request.path_number("number"))
        if pull.target is None or pull.base is None or pull.status != "open":
            raise Refusal(400, f"Pull request {pull.number}: expected an open one, it is {pull.status}.")
        if pull.target.startswith(PULLS):
            raise Refusal(400, f"Pull request {pull.number}: expected a branch as target, got {pull.target}.")
        head, proposed = history.resolve(pull.target), history.resolve(pull.ref)
        for name, commit in ((EXPECTED_HEAD, proposed), (EXPECTED_TARGET, head)):
            reviewed = expected.get(name, commit.oid)
            if reviewed != commit.oid:
                message = f"A commit has happened since. {name}: expected {commit.oid}, got {reviewed[:_SHOWN_OID]}."
                raise Refusal(412, f"Pull request {pull.number}: {message}")
        if check is not None:
            check(discussions, pull, proposed.oid, head.oid)
        merged = merge(trees, history.resolve(pull.base).tree, head.tree, proposed.tree)
        if merged.conflicts:
            shown = ", ".join(merged.conflicts[:_SHOWN_CONFLICTS])
            raise Refusal(409, f"Pull request {pull.number}: conflicts in {shown}.")
        title, parents = f"{pull.title} (#{pull.number})", (head.oid, proposed.oid)
        oid = history.add(
            trees.changed(head.tree, merged.changes), parents, author=request.user, title=title, message=text
        )
        history.point(pull.target, oid)
        if text:
            discussions.comment(pull.number, request.user, request.role, text)
        discussions.set_merged(pull.number, oid)
        discussions.set_status(pull.number, request.user, "merged")
        note(connection, request.user, "merge", f"{request.repository.name}#{pull.number}", oid)
    return {"mergeCommitId": oid, "head": proposed.oid, "target": head.oid}


def charge(
    request: AuthorizedRequest,
    connection: sqlite3.Connection,
    discussions: Discussions,
    number: int,
    more_bytes: int = 0,
) -> None:
    """Charge a contributor for what was written, before the transaction ends.

    Raises Refusal with status 413: it is more than a discussion or the contributor's quota has room for.
    """
    if not request.contributor:
        return
    limit, size = request.service.limits.discussion_bytes, discussions.size(number, request.user)
    if size > limit:
        expected = f"expected at most {limit} bytes of {request.user}, got {size}"
        raise Refusal(413, f"Discussion {number}: {expected}. Open another one.")
    request.service.quotas.charge_rows(connection, request.contributor, discussions.written_bytes + more_bytes)


def _title(body: dict[str, Any]) -> str:
    title = text_of(body, "title").strip()
    # the bounds that huggingface_hub documents
    if not 3 <= len(title) <= 200:
        raise Refusal(400, f"title: expected 3 to 200 characters, got {len(title)}.")
    return title


def _edited(request: AuthorizedRequest, text: str | None) -> Response:
    with request.writing() as connection:
        discussions = Discussions(connection, request.repository.id)
        number, versions = request.path_number("number"), request.service.limits.comment_versions
        moderates = text is None and request.may("write")
        event = discussions.edit(
            number,
            request.piece("comment"),
            request.user,
            request.role,
            text,
            versions=versions,
            moderates=moderates,
        )
        charge(request, connection, discussions, number)
    return JSONResponse({"updatedComment": _event(event)})


def _editable(request: AuthorizedRequest, discussions: Discussions) -> StoredDiscussion:
    """Return the discussion that the path names; refuse unless the caller opened it or may write."""
    discussion = discussions.get(request.path_number("number"))
    if discussion.author != request.user and not request.may("write"):
        expected = f"expected a token that may write, or that of {discussion.author}"
        raise Refusal(403, f"Discussion {discussion.number}: {expected}.")
    return discussion


def _summary(request: AuthorizedRequest, item: StoredDiscussion) -> dict[str, Any]:
    return {
        "num": item.number,
        "title": item.title,
        "author": {"name": item.author},
        "createdAt": item.created,
        "status": item.status,
        "isPullRequest": item.target is not None,
        "repo": {"name": request.repository.name, "type": request.repository.kind},
        "repoOwner": {"name": request.repository.name.split("/")[0]},
        "pinned": False,
    }


def _event(event: Event) -> dict[str, Any]:
    content = asdict(event)
    # what a token allows is its owner's business
    del content["role"]
    return {**content, "createdAt": content.pop("created"), "author": {"name": content.pop("author")}}
