"""Tokens: who may read, contribute and write. Only their digests are stored."""

import hashlib
import secrets
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime

from ckptzoo.server.names import checked_user

ROLES = ("read", "contribute", "write")
"""Each may do what those before it may: read private repositories; open pull requests; everything."""


@dataclass(frozen=True)
class Caller:
    """Whose token came with a request, and what it may do."""

    user: str
    role: str

    def may(self, role: str) -> bool:
        """Whether the caller's role includes ``role``."""
        return ROLES.index(self.role) >= ROLES.index(role)


def make_token(connection: sqlite3.Connection, user: str, role: str) -> str:
    """Make a token; it is returned once and cannot be shown again."""
    checked_user(user)
    ROLES.index(role)  # raises for an unknown role
    # as the tokens of the hub begin
    token = f"hf_{secrets.token_hex(20)}"
    row = (_digest(token), user, role, datetime.now(UTC).isoformat())
    connection.execute("INSERT INTO tokens VALUES (?, ?, ?, ?)", row)
    return token


def revoke(connection: sqlite3.Connection, user: str) -> int:
    """Remove every token of a user; returns how many there were."""
    return connection.execute("DELETE FROM tokens WHERE user = ?", (user,)).rowcount


def identify(connection: sqlite3.Connection, token: str) -> Caller | None:
    """The owner of a token, None where it is not known."""
    row = connection.execute("SELECT user, role FROM tokens WHERE digest = ?", (_digest(token),)).fetchone()
    return None if row is None else Caller(row["user"], row["role"])


def _digest(token: str) -> str:
    """A token is 160 random bits, so a plain digest cannot be reversed by guessing."""
    return hashlib.sha256(token.encode()).hexdigest()
