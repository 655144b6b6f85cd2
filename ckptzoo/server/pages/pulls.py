"""Pages of pull requests and discussions: their checks, comments and changes, and merging what was checked."""

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response

from ckptzoo.schema.review_mark import ReviewMark, read_mark
from ckptzoo.server.access import ADMIN, WRITE, may
from ckptzoo.server.errors import Refusal
from ckptzoo.server.pages.cards import comment_html
from ckptzoo.server.pages.html import field, page, see
from ckptzoo.server.pages.zoos import address_of, context_of, diff_lines
from ckptzoo.server.request import AuthorizedRequest
from ckptzoo.server.routes.discussions import (
    EXPECTED_HEAD,
    EXPECTED_TARGET,
    MAX_TEXT,
    add_comment,
    conflicts_of,
    merge_reviewed,
    set_status,
)
from ckptzoo.server.store import accounts
from ckptzoo.server.store.commits import Commit, History
from ckptzoo.server.store.discussions import Discussions, Event, StoredDiscussion
from ckptzoo.server.store.git_objects import Trees

_PAGE = 50
"""Discussions, events and commits of a page."""


_UNDONE = re.compile(r"^\| ([^|`\n]{1,60}) \| \*not done\* \|", re.MULTILINE)
"""A line of the table of checks that ``ckptzoo review`` posts."""


@dataclass(frozen=True)
class Checks:
    """Checks of the commits ``mark``, posted by an account that may write.

    ``html`` is the comment; ``undone`` names the checks that were not done.
    """

    by: str
    mark: ReviewMark
    html: str
    undone: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pull:
    """The content of a pull request's page besides its discussion.

    ``head`` and ``target`` are its last commit, and the target's; ``commits`` are its own, the last first; ``changes``
    are paths of its files with the change of each. ``checks`` are the newest of its last commit, None where there are
    none; ``conflicts`` are files, True where it takes too long to find them.
    """

    head: Commit
    target: str
    commits: Sequence[Commit]
    changes: Sequence[tuple[str, str]]
    checks: Checks | None
    conflicts: Sequence[str] | bool

    @property
    def obstacle(self) -> str:
        """The reason why it cannot be merged here; empty where it can."""
        if self.conflicts:
            return "It has conflicts with main." if self.conflicts is not True else "It is too large to merge here."
        return obstacle_of(self.checks, self.head.oid, self.target)


def obstacle_of(checks: Checks | None, head: str, target: str) -> str:
    """Return why a pull request with these checks is not merged; empty where it may be."""
    if checks is None:
        return "Its last commit has no checks of somebody who may write."
    if checks.mark.main != target:
        return "The zoo has moved on since it was checked."
    return "" if checks.mark.passed and checks.mark.head == head else "A check failed."


def listing(request: AuthorizedRequest) -> Response:
    """Show pull requests and discussions, the last first; the open ones, or those that are closed."""
    shown = "closed" if request.query.get("status") == "closed" else "open"
    with request.service.database.reading() as connection:
        context = context_of(request, connection, "pulls")
        everything = Discussions(connection, request.repository.id).all()
    matching = [item for item in everything if (item.status in ("closed", "merged")) == (shown == "closed")]
    start = request.page() * _PAGE
    base = f"{address_of(request.repository)}/discussions?status={shown}&p="
    return page(
        request,
        "pulls.html",
        **context,
        shown=shown,
        counts={"open": context["open_count"], "closed": len(everything) - context["open_count"]},
        discussions=matching[start : start + _PAGE],
        before=f"{base}{request.page() - 1}" if request.page() else "",
        after=f"{base}{request.page() + 1}" if start + _PAGE < len(matching) else "",
    )


def details(request: AuthorizedRequest) -> Response:
    """Show a pull request or a discussion, and a page of its events; without a number the last page."""
    with request.service.database.reading() as connection:
        context = context_of(request, connection, "pulls")
        discussions = Discussions(connection, request.repository.id)
        discussion = discussions.get(request.path_number("number"))
        events = discussions.events(discussion.number)
        pull = _pull(request, connection, discussion, events) if discussion.target is not None else None
    last = max(len(events) - 1, 0) // _PAGE
    number = min(request.page(), last) if "p" in request.query else last
    base = f"{address_of(request.repository)}/discussions/{discussion.number}?p="
    shown = events[number * _PAGE : (number + 1) * _PAGE]
    return page(
        request,
        "pull.html",
        **context,
        discussion=discussion,
        pull=pull,
        events=[(event, _done(event), _html(event)) for event in shown],
        before=f"{base}{number - 1}" if number else "",
        after=f"{base}{number + 1}" if number < last else "",
        may_change=request.caller is not None and (discussion.author == request.user or request.may(WRITE)),
    )


def changes(request: AuthorizedRequest) -> Response:
    """Show the changes of a pull request, line by line."""
    with request.service.database.reading() as connection:
        context = context_of(request, connection, "pulls")
        discussion = Discussions(connection, request.repository.id).get(request.path_number("number"))
        if discussion.base is None:
            raise Refusal(404, "Expected a pull request, got a discussion.")
        history, trees = History(connection, request.repository.id), Trees(connection, request.repository.id)
        before, after = history.resolve(discussion.base), history.resolve(discussion.ref)
        lines, is_cut = diff_lines(request, trees, before.tree, after.tree)
    return page(request, "pull_changes.html", **context, discussion=discussion, head=after, lines=lines, is_cut=is_cut)


def comment(request: AuthorizedRequest) -> Response:
    """Add a comment."""
    text = field(request, "comment", MAX_TEXT)
    if not text:
        raise Refusal(400, "Comment: expected some text.")
    add_comment(request, text)
    return _back(request)


def status(request: AuthorizedRequest) -> Response:
    """Close, or open again; a draft that is opened may be merged."""
    set_status(
        request, "closed" if field(request, "status") == "closed" else "open", field(request, "comment", MAX_TEXT)
    )
    return _back(request)


def merge(request: AuthorizedRequest) -> Response:
    """Merge exactly the commit that was checked, if the zoo is as it was then."""
    expected = {EXPECTED_HEAD: field(request, "head"), EXPECTED_TARGET: field(request, "target")}

    def check(discussions: Discussions, pull: StoredDiscussion, head: str, target: str) -> None:
        checks = checks_of(request, discussions.connection, discussions.events(pull.number), head)
        if (obstacle := obstacle_of(checks, head, target)) != "":
            raise Refusal(412, f"Pull request {pull.number}: {obstacle} Run {review_command(request, pull)}.")

    text = f"Merged by {request.user} on the page, as it was checked at {expected[EXPECTED_HEAD]}."
    merge_reviewed(request, text, expected, check)
    return _back(request)


def review_command(request: AuthorizedRequest, pull: StoredDiscussion) -> str:
    """Return the command that checks a pull request and posts the checks."""
    return f"ckptzoo review {request.repository.name} {pull.number} --post"


def checks_of(
    request: AuthorizedRequest, connection: sqlite3.Connection, events: Sequence[Event], head: str
) -> Checks | None:
    """Return the newest checks of a commit by an account that may write to the repository, as may its token."""
    for event in reversed(events):
        mark = read_mark(_text(event)) if event.type == "comment" else None
        # the author's roles say nothing of the token with which the comment was written
        if mark is None or mark.head != head or event.role not in (WRITE, ADMIN):
            continue
        if may(accounts.subject_of(connection, event.author), WRITE, request.repository.target):
            undone = tuple(match[1] for match in _UNDONE.finditer(_text(event)))
            return Checks(event.author, mark, comment_html(_text(event)), undone)
    return None


def _pull(
    request: AuthorizedRequest, connection: sqlite3.Connection, discussion: StoredDiscussion, events: Sequence[Event]
) -> Pull:
    history, trees = History(connection, request.repository.id), Trees(connection, request.repository.id)
    assert discussion.base is not None and discussion.target is not None
    base, head = history.resolve(discussion.base), history.resolve(discussion.ref)
    target = history.resolve(discussion.target)
    kinds = {(True, False): "added", (False, True): "deleted", (False, False): "changed"}
    difference = trees.difference(base.tree, head.tree)
    commits = [commit for commit in history.log(head.oid, _PAGE) if not history.reaches(base.oid, commit.oid)]
    is_open = discussion.status in ("draft", "open")
    return Pull(
        head=head,
        target=target.oid,
        commits=commits,
        changes=[(path, kinds[old is None, new is None]) for path, (old, new) in difference.items()],
        checks=checks_of(request, connection, events, head.oid),
        conflicts=conflicts_of(trees, base.tree, target.tree, head.tree) if is_open else (),
    )


def _text(event: Event) -> str:
    """Return the text of a comment; empty where it is hidden."""
    return event.data["latest"]["raw"]


def _done(event: Event) -> str:
    """Return the action of an event, in words behind the name."""
    if event.type == "status-change":
        return f"set the status to {event.data['status']}"
    if event.type == "commit":
        return f"committed {event.data['subject']}"
    return {"comment": "wrote", "title-change": f"changed the title to {event.data.get('to', '')}"}.get(
        event.type, event.type
    )


def _html(event: Event) -> str:
    return comment_html(_text(event)) if event.type == "comment" else ""


def _back(request: AuthorizedRequest) -> Response:
    return see(f"{address_of(request.repository)}/discussions/{request.path_number('number')}")
