"""Sessions of users who have signed in to the pages, the one-time links that begin them, and identities at a provider.

Only the digests of links and sessions are stored.
"""

import secrets
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ckptzoo.server.access import Subject
from ckptzoo.server.errors import Refusal
from ckptzoo.server.store import accounts
from ckptzoo.server.store.audit import note
from ckptzoo.server.store.tokens import StoredToken, digest_of, identify, usable

SESSION_DAYS, LINK_HOURS = 30, 24
_RANDOM_BYTES = 32


@dataclass(frozen=True)
class Session:
    """A session, stored by its digest.

    ``subject`` has the account's rights, limited to those of ``token``, which began the session; it is None for
    sessions that a one-time link or an identity began.
    """

    digest: str
    subject: Subject
    token: StoredToken | None


def make_link(connection: sqlite3.Connection, user: str, *, actor: str) -> str:
    """Return the code of a link with which a user signs in once within ``LINK_HOURS``; earlier links end."""
    accounts.add(connection, user, accounts.USER, actor=actor)
    code = secrets.token_urlsafe(_RANDOM_BYTES)
    connection.execute("DELETE FROM links WHERE user = ? OR expires <= ?", (user, _now()))
    row = (digest_of(code), user, _now(timedelta(hours=LINK_HOURS)))
    connection.execute("INSERT INTO links VALUES (?, ?, ?)", row)
    note(connection, actor, "make link", user)
    return code


def user_of_link(connection: sqlite3.Connection, code: str) -> str | None:
    """Return the user of a link; None where it is not known, was used, or is too old."""
    query = "SELECT user FROM links WHERE digest = ? AND expires > ?"
    row = connection.execute(query, (digest_of(code), _now())).fetchone()
    return None if row is None else row["user"]


def use_link(connection: sqlite3.Connection, code: str) -> str | None:
    """Sign in with a link, which ends; return the session's secret, or None as ``user_of_link`` does."""
    user = user_of_link(connection, code)
    if user is None:
        return None
    connection.execute("DELETE FROM links WHERE digest = ?", (digest_of(code),))
    return begin(connection, user)


def use_token(connection: sqlite3.Connection, text: str) -> str | None:
    """Sign in with a token; the session ends when the token does. Return None where it is not known."""
    known = identify(connection, text)
    return None if known is None else begin(connection, known[0].user, token=known[0].number)


def begin(connection: sqlite3.Connection, user: str, *, token: int | None = None) -> str:
    """Begin a session; return its secret, 256 random bits."""
    secret = secrets.token_urlsafe(_RANDOM_BYTES)
    connection.execute("DELETE FROM sessions WHERE expires <= ?", (_now(),))
    row = (digest_of(secret), user, token, _now(), _now(timedelta(days=SESSION_DAYS)))
    connection.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?)", row)
    note(connection, user, "sign in", user, "" if token is None else f"token {token}")
    return secret


def find(connection: sqlite3.Connection, secret: str) -> Session | None:
    """Return the session of a secret; None where there is none, or it has ended."""
    query = "SELECT digest, user, token FROM sessions WHERE digest = ? AND expires > ?"
    row = connection.execute(query, (digest_of(secret), _now())).fetchone()
    if row is None:
        return None
    if row["token"] is None:
        return Session(row["digest"], accounts.subject_of(connection, row["user"]), None)
    token = usable(connection, row["token"])
    if token is None:
        return None
    return Session(row["digest"], accounts.subject_of(connection, row["user"], token.limits), token)


def end(connection: sqlite3.Connection, digest: str) -> None:
    """Sign out."""
    connection.execute("DELETE FROM sessions WHERE digest = ?", (digest,))


def end_all(connection: sqlite3.Connection, user: str) -> None:
    """Sign a user out everywhere."""
    connection.execute("DELETE FROM sessions WHERE user = ?", (user,))


def user_of_identity(connection: sqlite3.Connection, issuer: str, subject: str) -> str | None:
    """Return the user with this identity at a provider; None where there is none."""
    query = "SELECT user FROM identities WHERE issuer = ? AND subject = ?"
    row = connection.execute(query, (issuer, subject)).fetchone()
    return None if row is None else row["user"]


def set_identity(connection: sqlite3.Connection, issuer: str, subject: str, user: str) -> None:
    """Connect an identity at a provider to a user.

    Raises Refusal with status 409: it is another user already.
    """
    known = user_of_identity(connection, issuer, subject)
    if known not in (None, user):
        raise Refusal(409, f"Identity: expected one that is not connected, got that of {known}.")
    connection.execute("INSERT OR IGNORE INTO identities VALUES (?, ?, ?)", (issuer, subject, user))
    note(connection, user, "connect identity", user, f"{issuer} {subject}")


def identities_of(connection: sqlite3.Connection, user: str) -> list[tuple[str, str]]:
    """Return issuer and subject of each identity that a user has connected."""
    query = "SELECT issuer, subject FROM identities WHERE user = ? ORDER BY issuer, subject"
    return [(row["issuer"], row["subject"]) for row in connection.execute(query, (user,))]


def remove_identity(connection: sqlite3.Connection, issuer: str, subject: str, user: str, *, session: str) -> None:
    """Disconnect an identity from its user, and end the sessions that it may have begun: all but those of tokens, and
    the one with the digest ``session``.
    """
    query = "DELETE FROM identities WHERE issuer = ? AND subject = ? AND user = ?"
    if connection.execute(query, (issuer, subject, user)).rowcount:
        connection.execute("DELETE FROM sessions WHERE user = ? AND token IS NULL AND digest != ?", (user, session))
        note(connection, user, "disconnect identity", user, f"{issuer} {subject}")


def _now(later: timedelta = timedelta()) -> str:
    # times of one zone in this form sort as texts, as the queries compare them
    return (datetime.now(UTC) + later).isoformat()
