"""Discussions and pull requests."""

from dataclasses import asdict
from typing import Any

from starlette.responses import JSONResponse, Response

from ckptzoo.server.errors import Refusal
from ckptzoo.server.request import AuthorizedRequest, text_of
from ckptzoo.server.store.commits import MAIN, History, diff, merge
from ckptzoo.server.store.discussions import STATUSES, Discussions, Event, StoredDiscussion
from ckptzoo.server.store.git_objects import Trees

_MAX_TEXT = 65536


def listing(call: AuthorizedRequest) -> Response:
    """A page of discussions, the last first."""
    query, size = call.query, call.service.limits.small_page
    with call.service.database.reading() as connection:
        found = Discussions(connection, call.repository.id).all()
    kept = [
        item
        for item in found
        if query.get("type", "all") in ("all", "pull_request" if item.target else "discussion")
        and query.get("status", "all") in ("all", "closed" if item.status in ("closed", "merged") else "open")
        and query.get("author", item.author) == item.author
    ]
    start = (min(int(query["p"]), 10**9) if query.get("p", "").isdigit() else 0) * size
    page = [_summary(call, item) for item in kept[start : start + size]]
    return JSONResponse({"discussions": page, "count": len(kept), "start": start, "numClosedDiscussions": 0})


def create(call: AuthorizedRequest) -> Response:
    """Begin a discussion, or a pull request without changes yet."""
    body = call.json()
    title, text = _title(body), text_of(body, "description", "")[:_MAX_TEXT]
    with call.service.database.writing() as connection:
        discussions, history = Discussions(connection, call.repository.id), History(connection, call.repository.id)
        if body.get("pullRequest"):
            base = history.resolve(MAIN).oid
            made = discussions.create(title=title, author=call.user, description=text, base=base, status="draft")
            history.point(made.ref, base)
        else:
            made = discussions.create(title=title, author=call.user, description=text)
    return JSONResponse({"num": made.number, "url": f"{call.address}/discussions/{made.number}"})


def details(call: AuthorizedRequest) -> Response:
    """A discussion with everything that happened; for a pull request also its conflicts and its diff."""
    with call.service.database.reading() as connection:
        discussions, history = Discussions(connection, call.repository.id), History(connection, call.repository.id)
        found = discussions.get(call.number("number"))
        content = {**_summary(call, found), "events": [_event(item) for item in discussions.events(found.number)]}
        if found.target is not None and found.base is not None:
            trees = Trees(connection)
            base, proposed = history.resolve(found.base).tree, history.resolve(found.ref).tree
            conflicts: tuple[str, ...] = ()
            if found.status in ("draft", "open"):
                conflicts = merge(trees, base, history.resolve(found.target).tree, proposed).conflicts
            changes = {"base": found.target, **({} if found.merged is None else {"mergeCommitId": found.merged})}
            content.update(changes=changes, filesWithConflicts=list(conflicts))
            if call.is_set("diff"):
                content["diff"] = diff(trees, call.service.blobs, base, proposed)
    return JSONResponse(content)


def comment(call: AuthorizedRequest) -> Response:
    """Add a comment."""
    text = text_of(call.json(), "comment")[:_MAX_TEXT]
    with call.service.database.writing() as connection:
        discussions = Discussions(connection, call.repository.id)
        event = discussions.comment(discussions.get(call.number("number")).number, call.user, text)
    return JSONResponse({"newMessage": _event(event)})


def edit_comment(call: AuthorizedRequest) -> Response:
    """Change a comment of one's own."""
    return _edited(call, text_of(call.json(), "content")[:_MAX_TEXT])


def hide_comment(call: AuthorizedRequest) -> Response:
    """Hide a comment of one's own."""
    return _edited(call, None)


def rename(call: AuthorizedRequest) -> Response:
    """Give it another title."""
    title = _title(call.json())
    with call.service.database.writing() as connection:
        discussions = Discussions(connection, call.repository.id)
        event = discussions.rename(_own(call, discussions), call.user, title)
    return JSONResponse({"newTitle": _event(event)})


def change_status(call: AuthorizedRequest) -> Response:
    """Open or close it; a draft that is opened may be merged."""
    body = call.json()
    status, text = text_of(body, "status"), text_of(body, "comment", "")[:_MAX_TEXT]
    if status not in STATUSES[:3]:
        raise Refusal(400, f"status: expected one of {', '.join(STATUSES[:3])}, got {status[:100]!r}.")
    with call.service.database.writing() as connection:
        discussions = Discussions(connection, call.repository.id)
        found = _own(call, discussions)
        if found.status == "merged":
            raise Refusal(400, f"Pull request {found.number}: expected one that is not merged.")
        if text:
            discussions.comment(found.number, call.user, text)
        event = discussions.set_status(found.number, call.user, status)
    return JSONResponse({"newStatus": _event(event)})


def merge_pull(call: AuthorizedRequest) -> Response:
    """Bring the changes of a pull request into its target, as one commit with two parents."""
    text = text_of(call.json(), "comment", "")[:_MAX_TEXT]
    with call.service.database.writing() as connection:
        discussions, history = Discussions(connection, call.repository.id), History(connection, call.repository.id)
        trees, found = Trees(connection), discussions.get(call.number("number"))
        if found.target is None or found.base is None or found.status != "open":
            raise Refusal(400, f"Pull request {found.number}: expected an open one, it is {found.status}.")
        head, proposed = history.resolve(found.target), history.resolve(found.ref)
        merged = merge(trees, history.resolve(found.base).tree, head.tree, proposed.tree)
        if merged.conflicts:
            raise Refusal(409, f"Pull request {found.number}: conflicts in {', '.join(merged.conflicts[:20])}.")
        title, parents = f"{found.title} (#{found.number})", (head.oid, proposed.oid)
        oid = history.add(
            trees.changed(head.tree, merged.changes), parents, author=call.user, title=title, message=text
        )
        history.point(found.target, oid)
        if text:
            discussions.comment(found.number, call.user, text)
        discussions.set_merged(found.number, oid)
        discussions.set_status(found.number, call.user, "merged")
    return JSONResponse({"mergeCommitId": oid})


def _title(body: dict[str, Any]) -> str:
    title = text_of(body, "title").strip()
    if not 3 <= len(title) <= 200:
        raise Refusal(400, f"title: expected 3 to 200 characters, got {len(title)}.")
    return title


def _edited(call: AuthorizedRequest, text: str | None) -> Response:
    with call.service.database.writing() as connection:
        discussions = Discussions(connection, call.repository.id)
        event = discussions.edit(call.number("number"), call.piece("comment"), call.user, text)
    return JSONResponse({"updatedComment": _event(event)})


def _own(call: AuthorizedRequest, discussions: Discussions) -> StoredDiscussion:
    """The discussion, which the client began or may change as one who may write."""
    found = discussions.get(call.number("number"))
    if found.author != call.user and not call.may("write"):
        raise Refusal(403, f"Discussion {found.number}: expected a token that may write, or that of {found.author}.")
    return found


def _summary(call: AuthorizedRequest, item: StoredDiscussion) -> dict[str, Any]:
    return {
        "num": item.number,
        "title": item.title,
        "author": {"name": item.author},
        "createdAt": item.created,
        "status": item.status,
        "isPullRequest": item.target is not None,
        "repo": {"name": call.repository.name, "type": call.repository.kind},
        "repoOwner": {"name": call.repository.name.split("/")[0]},
        "pinned": False,
    }


def _event(event: Event) -> dict[str, Any]:
    content = asdict(event)
    return {**content, "createdAt": content.pop("created"), "author": {"name": content.pop("author")}}
