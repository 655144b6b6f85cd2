"""Accounts: users and organisations, who belongs to which, and who was granted what."""

import sqlite3
from dataclasses import dataclass

from ckptzoo.server.access import ADMIN, ROLES, Subject, TokenLimits
from ckptzoo.server.errors import Refusal
from ckptzoo.server.names import checked_user
from ckptzoo.server.store.audit import note
from ckptzoo.server.store.commits import now

USER, ORGANISATION = "user", "organisation"


@dataclass(frozen=True)
class Account:
    """A user or an organisation, whose name is a namespace.

    ``kind`` is ``user`` or ``organisation``. A ``disabled`` account was revoked: its name stays taken, because its
    repositories do.
    """

    name: str
    kind: str
    created: str
    disabled: bool


@dataclass(frozen=True)
class Grant:
    """A role of an account in a namespace or repository that is not its own.

    The role of an organisation is for all its members, each up to their role in it. ``target`` is a namespace, or
    ``dataset lab/zoo``.
    """

    account: str
    target: str
    role: str


def find(connection: sqlite3.Connection, name: str) -> Account | None:
    """Return the account of a name."""
    row = connection.execute("SELECT * FROM accounts WHERE name = ?", (name,)).fetchone()
    return None if row is None else Account(row["name"], row["kind"], row["created"], bool(row["disabled"]))


def listed(connection: sqlite3.Connection, kind: str) -> list[Account]:
    """Return every account of a kind, by name."""
    rows = connection.execute("SELECT * FROM accounts WHERE kind = ? ORDER BY name", (kind,))
    return [Account(row["name"], row["kind"], row["created"], bool(row["disabled"])) for row in rows]


def add(connection: sqlite3.Connection, name: str, kind: str, *, actor: str) -> Account:
    """Make an account, or enable one that was revoked; one that is there already is left as it is.

    Raises Refusal: the name cannot be a namespace, is that of an account of the other kind, or differs from another one
    in capital letters alone.
    """
    checked_user(name)
    row = connection.execute("SELECT name, kind FROM accounts WHERE lower(name) = lower(?)", (name,)).fetchone()
    if row is not None and (row["name"], row["kind"]) != (name, kind):
        raise Refusal(409, f"{name}: there is the {row['kind']} {row['name']}. Choose another name.")
    known = find(connection, name)
    if known is None or known.disabled:
        statement = "INSERT INTO accounts VALUES (?, ?, ?, 0) ON CONFLICT (name) DO UPDATE SET disabled = 0"
        connection.execute(statement, (name, kind, now()))
        note(connection, actor, f"add {kind}", name)
    account = find(connection, name)
    assert account is not None
    return account


def is_taken(connection: sqlite3.Connection, name: str) -> bool:
    """Return whether an account has this name, or one that differs in capital letters alone."""
    return connection.execute("SELECT 1 FROM accounts WHERE lower(name) = lower(?)", (name,)).fetchone() is not None


def revoke(connection: sqlite3.Connection, name: str, *, actor: str) -> None:
    """Take an account's tokens, sessions, memberships and grants; its name and its repositories stay."""
    account = _known(connection, name)
    connection.execute("UPDATE accounts SET disabled = 1 WHERE name = ?", (name,))
    # names of tables cannot be parameters of SQL; these are constants
    for table in ("tokens", "sessions", "links", "identities"):
        connection.execute(f"DELETE FROM {table} WHERE user = ?", (name,))
    connection.execute("DELETE FROM members WHERE user = ?1 OR organisation = ?1", (name,))
    connection.execute("DELETE FROM grants WHERE account = ?", (name,))
    note(connection, actor, f"revoke {account.kind}", name)


def members(connection: sqlite3.Connection, organisation: str) -> dict[str, str]:
    """Return the role of every member of an organisation."""
    rows = connection.execute("SELECT user, role FROM members WHERE organisation = ? ORDER BY user", (organisation,))
    return {row["user"]: row["role"] for row in rows}


def organisations(connection: sqlite3.Connection, user: str) -> dict[str, str]:
    """Return the organisations of a user, and the user's role in each."""
    rows = connection.execute("SELECT organisation, role FROM members WHERE user = ? ORDER BY organisation", (user,))
    return {row["organisation"]: row["role"] for row in rows}


def set_member(connection: sqlite3.Connection, organisation: str, user: str, role: str | None, *, actor: str) -> None:
    """Make a user a member with a role, change the role, or with None end the membership."""
    _known(connection, organisation, ORGANISATION)
    _known(connection, user, USER)
    connection.execute("DELETE FROM members WHERE organisation = ? AND user = ?", (organisation, user))
    if role is not None:
        connection.execute("INSERT INTO members VALUES (?, ?, ?)", (organisation, user, _role(role)))
    note(connection, actor, "add member" if role else "remove member", organisation, f"{user} {role or ''}".strip())


def grants(connection: sqlite3.Connection, account: str | None = None) -> list[Grant]:
    """Return every grant, or those of an account."""
    query = """SELECT g.account, g.role, COALESCE(g.namespace, r.kind || ' ' || r.name) AS target
        FROM grants g LEFT JOIN repositories r ON r.id = g.repository ORDER BY g.account, target"""
    rows = connection.execute(query).fetchall()
    return [Grant(row["account"], row["target"], row["role"]) for row in rows if account in (None, row["account"])]


def set_grant(connection: sqlite3.Connection, account: str, target: str | int, role: str | None, *, actor: str) -> None:
    """Give an account a role in a namespace, by its name, or a repository, by its number; change it, or with None take
    it.
    """
    _known(connection, account)
    column = "repository" if isinstance(target, int) else "namespace"
    if isinstance(target, str):
        _known(connection, target)
    # replaced: each account has at most one role in a place
    connection.execute(f"DELETE FROM grants WHERE account = ? AND {column} = ?", (account, target))
    if role is not None:
        statement = f"INSERT INTO grants (account, {column}, role) VALUES (?, ?, ?)"
        connection.execute(statement, (account, target, _role(role)))
    query = "SELECT kind || ' ' || name AS name FROM repositories WHERE id = ?"
    place = connection.execute(query, (target,)).fetchone()["name"] if isinstance(target, int) else target
    note(connection, actor, "grant" if role else "take grant", place, f"{account} {role or ''}".strip())


def subject_of(connection: sqlite3.Connection, user: str, token: TokenLimits | None = None) -> Subject:
    """Return a user's rights, as ``access.may`` takes them; those of everybody where the account was revoked."""
    account = find(connection, user)
    if account is None or account.disabled:
        return Subject(user, token=token)
    namespaces, repositories = {user: ADMIN}, dict[int, str]()
    own_role = {user: ADMIN, **organisations(connection, user)}
    for organisation, role in own_role.items():
        namespaces[organisation] = role
    names = ", ".join("?" * len(own_role))
    rows = connection.execute(f"SELECT * FROM grants WHERE account IN ({names})", tuple(own_role))
    for row in rows.fetchall():
        role = min(row["role"], own_role[row["account"]], key=ROLES.index)
        place, roles = (row["repository"], repositories) if row["namespace"] is None else (row["namespace"], namespaces)
        roles[place] = max(role, roles.get(place, ROLES[0]), key=ROLES.index)
    return Subject(user, namespaces, repositories, token)


def _known(connection: sqlite3.Connection, name: str, kind: str | None = None) -> Account:
    account = find(connection, name)
    if account is None or account.disabled or kind not in (None, account.kind):
        what = kind or "account"
        step = f"Make it with ckptzoo serve {'org' if kind == ORGANISATION else 'user'}."
        raise Refusal(404, f"{name}: expected {'an' if what[0] in 'ao' else 'a'} {what}, got none. {step}")
    return account


def _role(role: str) -> str:
    if role not in ROLES:
        raise Refusal(400, f"Role: expected one of {', '.join(ROLES)}, got {role[:100]!r}.")
    return role
