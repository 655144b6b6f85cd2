"""The storage that contributors take up."""

import sqlite3


def sent(connection: sqlite3.Connection, user: str) -> int:
    """Return the stored bytes that a user has sent."""
    row = connection.execute("SELECT bytes FROM usage WHERE user = ?", (user,)).fetchone()
    return 0 if row is None else row["bytes"]


def add(connection: sqlite3.Connection, user: str, size: int) -> None:
    """Add ``size`` stored bytes."""
    statement = "INSERT INTO usage VALUES (?, ?) ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes"
    connection.execute(statement, (user, size))


def open_discussions(connection: sqlite3.Connection, user: str) -> int:
    """Return the number of discussions and pull requests of a user that are not closed, in all repositories."""
    query = "SELECT COUNT(*) AS n FROM discussions WHERE author = ? AND status IN ('draft', 'open')"
    return connection.execute(query, (user,)).fetchone()["n"]
