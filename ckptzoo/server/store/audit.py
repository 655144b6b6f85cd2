"""Changes of accounts and repositories, with actor and time: a row for each, written with the change itself."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from ckptzoo.server.store.commits import now

OPERATOR = "(operator)"
"""The actor at the server's machine; no account has such a name."""


@dataclass(frozen=True)
class AuditEntry:
    """One change of ``target`` by ``actor``, an account or ``OPERATOR``."""

    time: str
    actor: str
    action: str
    target: str
    detail: str


def note(connection: sqlite3.Connection, actor: str, action: str, target: str, detail: str = "") -> None:
    """Add a row in the transaction of the change."""
    row = (now(), actor, action, target, detail)
    connection.execute("INSERT INTO audit (time, actor, action, target, detail) VALUES (?, ?, ?, ?, ?)", row)


def entries(connection: sqlite3.Connection) -> Iterator[AuditEntry]:
    """Yield every change, the newest first."""
    query = "SELECT time, actor, action, target, detail FROM audit ORDER BY sequence DESC"
    return (AuditEntry(*row) for row in connection.execute(query))
