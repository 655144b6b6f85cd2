"""Discussions and pull requests: numbered per repository, each a list of events."""

import json
import secrets
import sqlite3
from dataclasses import dataclass, replace
from typing import Any

from ckptzoo.server.errors import Refusal
from ckptzoo.server.store.commits import MAIN, PULLS, now
from ckptzoo.server.store.database import ROW_BYTES

CHANGEABLE = ("draft", "open", "closed")
"""The statuses that a request may set; ``merged`` is set by merging alone."""


@dataclass(frozen=True)
class StoredDiscussion:
    """One discussion; a pull request is one with a target and a base. ``target`` is the ref that the changes are for,
    ``base`` the commit they start from, ``merged`` the commit that merged them.
    """

    repository: int
    number: int
    title: str
    author: str
    created: str
    status: str
    target: str | None
    base: str | None
    merged: str | None

    @property
    def ref(self) -> str:
        """The ref that the commits of a pull request go to."""
        return f"{PULLS}{self.number}"


@dataclass(frozen=True)
class Event:
    """An event in a discussion, with ``type`` and ``data`` as the hub's clients read them. ``role`` is the author's
    role there, token included, when the present text of a comment was written; None for other events, and for those of
    before roles were stored.
    """

    id: str
    type: str
    author: str
    created: str
    data: dict[str, Any]
    role: str | None = None


class Discussions:
    """The discussions of one repository, for as long as one transaction lasts. ``written_bytes`` counts those of its
    added or changed rows.
    """

    def __init__(self, connection: sqlite3.Connection, repository: int) -> None:
        self.connection, self._repository = connection, repository
        self.written_bytes = 0

    def create(
        self,
        *,
        title: str,
        author: str,
        role: str,
        description: str,
        base: str | None = None,
        target: str = MAIN,
        status: str = "open",
    ) -> StoredDiscussion:
        """Open a discussion, or with a base a pull request."""
        number = self.count() + 1
        row = (self._repository, number, title, author, now(), status, None if base is None else target, base)
        self.connection.execute("INSERT INTO discussions VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)", row)
        self.written_bytes += ROW_BYTES
        if description:
            self.comment(number, author, role, description)
        return self.get(number)

    def count(self) -> int:
        """Return the number of discussions."""
        query = "SELECT COUNT(*) AS n FROM discussions WHERE repository = ?"
        return self.connection.execute(query, (self._repository,)).fetchone()["n"]

    def get(self, number: int) -> StoredDiscussion:
        """Return the discussion of this number."""
        query = "SELECT * FROM discussions WHERE repository = ? AND number = ?"
        row = self.connection.execute(query, (self._repository, number)).fetchone()
        if row is None:
            raise Refusal(404, f"Discussion not found: {number}")
        return StoredDiscussion(*row)

    def all(self) -> list[StoredDiscussion]:
        """Return every discussion, the last first."""
        query = "SELECT * FROM discussions WHERE repository = ? ORDER BY number DESC"
        return [StoredDiscussion(*row) for row in self.connection.execute(query, (self._repository,))]

    def events(self, number: int) -> list[Event]:
        """Return the events of a discussion, in order."""
        query = "SELECT * FROM events WHERE repository = ? AND number = ? ORDER BY sequence"
        return [_event(row) for row in self.connection.execute(query, (self._repository, number))]

    def note(self, number: int, type: str, author: str, data: dict[str, Any], role: str | None = None) -> Event:
        event = Event(secrets.token_hex(12), type, author, now(), data, role)
        row = (event.id, self._repository, number, type, author, event.created, self._text(data), role)
        columns = "(id, repository, number, type, author, created, data, role)"
        self.connection.execute(f"INSERT INTO events {columns} VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        return event

    def comment(self, number: int, author: str, role: str, text: str) -> Event:
        # the hub's fields, as huggingface_hub.community reads them
        latest = {"raw": text, "html": "", "updatedAt": now(), "author": {"name": author}}
        data = {"edited": False, "hidden": False, "latest": latest, "history": [latest]}
        return self.note(number, "comment", author, data, role)

    def edit(
        self,
        number: int,
        id: str,
        author: str,
        role: str,
        text: str | None,
        *,
        versions: int,
        moderates: bool = False,
    ) -> Event:
        """Change a comment; without a text it is hidden.

        ``role`` is that of the account that changes the comment, for its new text; ``versions`` limits the versions
        that are kept, the first one among them. With ``moderates`` the comment may be another author's.
        """
        query = "SELECT * FROM events WHERE repository = ? AND number = ? AND id = ? AND type = 'comment'"
        row = self.connection.execute(query, (self._repository, number, id)).fetchone()
        if row is None:
            raise Refusal(404, f"Comment not found: {id}")
        event = _event(row)
        if event.author != author and not moderates:
            raise Refusal(403, f"Comment: expected one by {author}, got one by {event.author}.")
        latest = {"raw": text or "", "html": "", "updatedAt": now(), "author": {"name": author}}
        event.data.update(latest=latest, edited=text is not None, hidden=text is None)
        first, *others = event.data["history"]
        event.data["history"] = [first, *[*others, latest][-max(versions - 1, 1) :]]
        row = (self._text(event.data), role, id)
        self.connection.execute("UPDATE events SET data = ?, role = ? WHERE id = ?", row)
        return replace(event, role=role)

    def size(self, number: int, author: str) -> int:
        """Return the bytes of an author's events in a discussion."""
        # as BLOB, because LENGTH counts the characters of a text
        query = """SELECT COALESCE(SUM(LENGTH(CAST(data AS BLOB)) + ?), 0) AS n FROM events
            WHERE repository = ? AND number = ? AND author = ?"""
        return self.connection.execute(query, (ROW_BYTES, self._repository, number, author)).fetchone()["n"]

    def _text(self, data: dict[str, Any]) -> str:
        text = json.dumps(data, ensure_ascii=False)
        self.written_bytes += ROW_BYTES + len(text.encode())
        return text

    def rename(self, discussion: StoredDiscussion, author: str, title: str) -> Event:
        """Give a discussion another title."""
        self._set(discussion.number, "title", title)
        return self.note(discussion.number, "title-change", author, {"from": discussion.title, "to": title})

    def set_status(self, number: int, author: str, status: str) -> Event:
        """Open, close, or mark as merged."""
        self._set(number, "status", status)
        return self.note(number, "status-change", author, {"status": status})

    def set_merged(self, number: int, oid: str) -> None:
        """Store the commit that merged a pull request."""
        self._set(number, "merged", oid)

    def _set(self, number: int, column: str, value: str) -> None:
        statement = f"UPDATE discussions SET {column} = ? WHERE repository = ? AND number = ?"
        self.connection.execute(statement, (value, self._repository, number))


def _event(row: sqlite3.Row) -> Event:
    return Event(row["id"], row["type"], row["author"], row["created"], json.loads(row["data"]), row["role"])
