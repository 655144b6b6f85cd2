"""Tokens: whose they are, and what they allow of what their owners may. Only their digests are stored."""

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
"""How exact the last use of a token is: one write an hour, whatever is asked."""


@dataclass(frozen=True)
class StoredToken:
    """A token, without its text.

    Parameters
    ----------
    number
        by which it is named.
    expires
        the time from which it is refused; None for never.
    used
        when it was last used, within an hour; None for never.
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
    """Make a token; it is returned once and cannot be shown again. Makes the account where there is none.

    Parameters
    ----------
    role
        of ``TOKEN_ROLES``.
    name
        what its owner calls it.
    scope
        as in ``TokenLimits``.
    expires
        after this long.
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
    """Every token, or those of a user."""
    rows = connection.execute("SELECT * FROM tokens ORDER BY user, number").fetchall()
    return [_token(row) for row in rows if user in (None, row["user"])]


def revoke(connection: sqlite3.Connection, user: str, number: int | None = None, *, actor: str = OPERATOR) -> int:
    """Remove every token of a user, or the one of this number; returns how many there were."""
    query = "DELETE FROM tokens WHERE user = ?1 AND (?2 IS NULL OR number = ?2)"
    count = connection.execute(query, (user, number)).rowcount
    if count:
        note(connection, actor, "revoke token", user, "all" if number is None else str(number))
    return count


def identify(connection: sqlite3.Connection, token: str) -> tuple[StoredToken, Subject] | None:
    """A token and what its bearer may; None where it is not known, or has expired."""
    found = _unexpired(connection.execute("SELECT * FROM tokens WHERE digest = ?", (digest_of(token),)).fetchone())
    return None if found is None else (found, accounts.subject_of(connection, found.user, found.limits))


def usable(connection: sqlite3.Connection, number: int) -> StoredToken | None:
    """The token of a number; None where it was revoked, or has expired."""
    return _unexpired(connection.execute("SELECT * FROM tokens WHERE number = ?", (number,)).fetchone())


def _unexpired(row: sqlite3.Row | None) -> StoredToken | None:
    found = None if row is None else _token(row)
    if found is None or (found.expires is not None and datetime.fromisoformat(found.expires) <= datetime.now(UTC)):
        return None
    return found


def is_use_due(token: StoredToken) -> bool:
    """Whether the last use that is noted of a token is an hour ago."""
    return token.used is None or datetime.now(UTC) - datetime.fromisoformat(token.used) >= USED_EVERY


def note_use(connection: sqlite3.Connection, number: int) -> None:
    """Note that a token was used now."""
    connection.execute("UPDATE tokens SET used = ? WHERE number = ?", (datetime.now(UTC).isoformat(), number))


def digest_of(token: str) -> str:
    """A token is 160 random bits, so a plain digest cannot be reversed by guessing."""
    return hashlib.sha256(token.encode()).hexdigest()


def _token(row: sqlite3.Row) -> StoredToken:
    limits = TokenLimits(row["role"], row["scope"])
    times = row["created"], row["expires"], row["used"]
    return StoredToken(row["number"], row["user"], row["name"], limits, *times)
