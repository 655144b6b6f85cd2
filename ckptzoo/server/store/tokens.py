"""Tokens: their owners, and their limits within the owners' rights. Only their digests are stored."""

import hashlib
import secrets
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ckptzoo.server.access import TOKEN_ROLES, Subject, TokenLimits
from ckptzoo.server.names import checked_id, checked_user
from ckptzoo.server.store import accounts
from ckptzoo.server.store.audit import OPERATOR, note
from ckptzoo.server.store.commits import now

USED_EVERY = timedelta(hours=1)
"""The accuracy of a token's last use: one write an hour, however many requests there are."""


@dataclass(frozen=True)
class StoredToken:
    """A token, without its text; ``number`` names it.

    It is refused from ``expires`` on, None for never; ``used`` is its last use, within an hour, None for never.
    """

    number: int
    user: str
    name: str
    limits: TokenLimits
    created: str
    expires: str | None
    used: str | None


def make_token(
    connection: sqlite3.Connection,
    user: str,
    role: str,
    *,
    name: str = "",
    scope: str = "",
    expires: timedelta | None = None,
    actor: str = OPERATOR,
) -> str:
    """Make a token, and the account where there is none; return the token, which cannot be shown again.

    ``role`` is one of ``TOKEN_ROLES``, ``name`` is the owner's name for it, and ``scope`` is as in ``TokenLimits``.
    """
    TOKEN_ROLES.index(role)  # raises for an unknown role
    if scope:
        (checked_id if "/" in scope else checked_user)(scope)
    accounts.add(connection, user, accounts.USER, actor=actor)
    # as the tokens of the hub begin
    token = f"hf_{secrets.token_hex(20)}"
    end = None if expires is None else (datetime.now(UTC) + expires).isoformat()
    row = (digest_of(token), user, name, role, scope, now(), end)
    statement = "INSERT INTO tokens (digest, user, name, role, scope, created, expires) VALUES (?, ?, ?, ?, ?, ?, ?)"
    connection.execute(statement, row)
    note(connection, actor, "make token", user, f"{role} {scope} {name}".strip())
    return token


def listed(connection: sqlite3.Connection, user: str | None = None) -> list[StoredToken]:
    """Return every token, or those of a user."""
    rows = connection.execute("SELECT * FROM tokens ORDER BY user, number").fetchall()
    return [_token(row) for row in rows if user in (None, row["user"])]


def revoke(connection: sqlite3.Connection, user: str, number: int | None = None, *, actor: str = OPERATOR) -> int:
    """Remove every token of a user, or the one of this number; return how many there were."""
    query = "DELETE FROM tokens WHERE user = ?1 AND (?2 IS NULL OR number = ?2)"
    count = connection.execute(query, (user, number)).rowcount
    if count:
        note(connection, actor, "revoke token", user, "all" if number is None else str(number))
    return count


def identify(connection: sqlite3.Connection, token: str) -> tuple[StoredToken, Subject] | None:
    """Return a token and its bearer's rights; None where it is not known, or has expired."""
    known = _unexpired(connection.execute("SELECT * FROM tokens WHERE digest = ?", (digest_of(token),)).fetchone())
    return None if known is None else (known, accounts.subject_of(connection, known.user, known.limits))


def usable(connection: sqlite3.Connection, number: int) -> StoredToken | None:
    """Return the token of a number; None where it was revoked, or has expired."""
    return _unexpired(connection.execute("SELECT * FROM tokens WHERE number = ?", (number,)).fetchone())


def _unexpired(row: sqlite3.Row | None) -> StoredToken | None:
    token = None if row is None else _token(row)
    if token is None or (token.expires is not None and datetime.fromisoformat(token.expires) <= datetime.now(UTC)):
        return None
    return token


def is_use_due(token: StoredToken) -> bool:
    """Return whether the noted last use of a token is an hour ago."""
    return token.used is None or datetime.now(UTC) - datetime.fromisoformat(token.used) >= USED_EVERY


def note_use(connection: sqlite3.Connection, number: int) -> None:
    """Note that a token was used now."""
    connection.execute("UPDATE tokens SET used = ? WHERE number = ?", (datetime.now(UTC).isoformat(), number))


def digest_of(token: str) -> str:
    """Return the digest of a token; it has 160 random bits, so that a plain digest cannot be reversed by guessing."""
    return hashlib.sha256(token.encode()).hexdigest()


def _token(row: sqlite3.Row) -> StoredToken:
    limits = TokenLimits(row["role"], row["scope"])
    times = row["created"], row["expires"], row["used"]
    return StoredToken(row["number"], row["user"], row["name"], limits, *times)
