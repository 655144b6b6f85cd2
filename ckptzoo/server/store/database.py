"""The SQLite database: its tables, and how several threads read and write it."""

import queue
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ckptzoo.errors import Problem, ZooError

VERSION = 4
"""The version of the tables, in ``PRAGMA user_version``; ``migrations`` brings older databases to it."""
# STRICT: SQLite would store a text in a column of numbers otherwise (sqlite.org/stricttables.html, from 3.37 on).
# AUTOINCREMENT: the number of a removed row is never given to another (sqlite.org/autoinc.html).
_SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS accounts (
    name TEXT PRIMARY KEY, kind TEXT NOT NULL, created TEXT NOT NULL, disabled INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS members (
    organisation TEXT NOT NULL REFERENCES accounts, user TEXT NOT NULL REFERENCES accounts, role TEXT NOT NULL,
    PRIMARY KEY (organisation, user)) STRICT;
CREATE TABLE IF NOT EXISTS tokens (
    number INTEGER PRIMARY KEY AUTOINCREMENT, digest TEXT NOT NULL UNIQUE, user TEXT NOT NULL REFERENCES accounts,
    name TEXT NOT NULL, role TEXT NOT NULL, scope TEXT NOT NULL, created TEXT NOT NULL, expires TEXT, used TEXT) STRICT;
CREATE TABLE IF NOT EXISTS sessions (
    digest TEXT PRIMARY KEY, user TEXT NOT NULL REFERENCES accounts,
    token INTEGER REFERENCES tokens (number) ON DELETE CASCADE, created TEXT NOT NULL, expires TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS links (
    digest TEXT PRIMARY KEY, user TEXT NOT NULL REFERENCES accounts, expires TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS identities (
    issuer TEXT NOT NULL, subject TEXT NOT NULL, user TEXT NOT NULL REFERENCES accounts,
    PRIMARY KEY (issuer, subject)) STRICT;
CREATE TABLE IF NOT EXISTS repositories (
    id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, name TEXT NOT NULL, private INTEGER NOT NULL,
    created TEXT NOT NULL, closed INTEGER NOT NULL DEFAULT 0, UNIQUE (kind, name)) STRICT;
CREATE TABLE IF NOT EXISTS grants (
    account TEXT NOT NULL REFERENCES accounts, namespace TEXT REFERENCES accounts,
    repository INTEGER REFERENCES repositories ON DELETE CASCADE, role TEXT NOT NULL,
    UNIQUE (account, namespace), UNIQUE (account, repository),
    CHECK ((namespace IS NULL) != (repository IS NULL))) STRICT;
CREATE TABLE IF NOT EXISTS audit (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, time TEXT NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL,
    target TEXT NOT NULL, detail TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS files (
    oid TEXT NOT NULL, size INTEGER NOT NULL, sha256 TEXT NOT NULL, large INTEGER NOT NULL,
    PRIMARY KEY (oid, large)) STRICT;
CREATE TABLE IF NOT EXISTS trees (oid TEXT PRIMARY KEY, content BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS commits (
    oid TEXT PRIMARY KEY, tree TEXT NOT NULL REFERENCES trees, author TEXT NOT NULL, date TEXT NOT NULL,
    title TEXT NOT NULL, message TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS parents (
    child TEXT NOT NULL REFERENCES commits, position INTEGER NOT NULL, parent TEXT NOT NULL,
    PRIMARY KEY (child, position)) STRICT;
CREATE TABLE IF NOT EXISTS history (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    repository INTEGER NOT NULL REFERENCES repositories ON DELETE CASCADE,
    oid TEXT NOT NULL REFERENCES commits, UNIQUE (repository, oid)) STRICT;
CREATE TABLE IF NOT EXISTS refs (
    repository INTEGER NOT NULL REFERENCES repositories ON DELETE CASCADE, name TEXT NOT NULL,
    oid TEXT NOT NULL REFERENCES commits, PRIMARY KEY (repository, name)) STRICT;
CREATE TABLE IF NOT EXISTS contents (
    repository INTEGER NOT NULL REFERENCES repositories ON DELETE CASCADE, sha256 TEXT NOT NULL,
    size INTEGER NOT NULL, PRIMARY KEY (repository, sha256)) STRICT;
CREATE TABLE IF NOT EXISTS discussions (
    repository INTEGER NOT NULL REFERENCES repositories ON DELETE CASCADE, number INTEGER NOT NULL,
    title TEXT NOT NULL, author TEXT NOT NULL, created TEXT NOT NULL, status TEXT NOT NULL,
    target TEXT, base TEXT, merged TEXT, PRIMARY KEY (repository, number)) STRICT;
CREATE TABLE IF NOT EXISTS events (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, repository INTEGER NOT NULL,
    number INTEGER NOT NULL, type TEXT NOT NULL, author TEXT NOT NULL, created TEXT NOT NULL, data TEXT NOT NULL,
    role TEXT, FOREIGN KEY (repository, number) REFERENCES discussions ON DELETE CASCADE) STRICT;
CREATE TABLE IF NOT EXISTS usage (user TEXT PRIMARY KEY, bytes INTEGER NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS events_of ON events (repository, number);
"""
ROW_BYTES = 256
"""Approximate bytes of a row of ids, names and times, with its entries in indices."""
_BUSY_SECONDS = 30.0
"""Seconds that SQLite waits for another process, such as ``ckptzoo serve token``, to end its transaction."""


def statement_of(table: str) -> str:
    """Return the statement that makes a table."""
    return next(text for text in _SCHEMA.split(";") if f"EXISTS {table} (" in text)


def setting(connection: sqlite3.Connection, name: str) -> str | None:
    """Return a text that is kept under a name."""
    row = connection.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
    return None if row is None else row["value"].decode()


def set_setting(connection: sqlite3.Connection, name: str, text: str) -> None:
    """Keep a text under a name."""
    connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, text.encode()))


class Database:
    """Reads run side by side; writes one after the other, each flushed to the disk before it returns.

    Write-ahead log with ``synchronous=FULL``: a transaction that has returned survives the process and the power.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._readers: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._writers: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._writer = threading.Lock()
        # SQLite gives the log beside it the same mode; tokens and the signing key are in them
        path.touch(mode=0o600)
        connection = self._connect()
        self._make_tables(connection)
        self._writers.put(connection)

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        """Make missing tables; an older database keeps its version."""
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            connection.close()
            step = "Install the version of ckptzoo that made it, or a newer one."
            raise ZooError(Problem(str(self._path), "tables", f"version {VERSION} or older", f"{version}", step))
        if connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0:
            connection.execute(f"PRAGMA user_version = {VERSION}")
        # not executescript, which ends the transaction first
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        # isolation_level=None: sqlite3 begins no transactions of its own; a connection serves one thread at a time
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not block one another
        connection.execute("PRAGMA synchronous = FULL")  # NORMAL may lose the last transactions with the power
        connection.execute("PRAGMA foreign_keys = ON")  # off by default; ON DELETE CASCADE needs it
        return connection

    @contextmanager
    def _borrowed(self, idle: queue.LifoQueue[sqlite3.Connection], begin: str) -> Iterator[sqlite3.Connection]:
        try:
            connection = idle.get_nowait()
        except queue.Empty:
            connection = self._connect()
            if idle is self._readers:
                connection.execute("PRAGMA query_only = ON")
        try:
            connection.execute(begin)
            yield connection
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            idle.put(connection)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection that sees the state of one moment, whatever is written meanwhile."""
        with self._borrowed(self._readers, "BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self, *, check_references: bool = True) -> Iterator[sqlite3.Connection]:
        """Yield the only connection that writes; everything is committed at the end, or nothing where the block raises.

        ``check_references`` checks those of removed rows; without an index SQLite reads a whole table for each.
        """
        with self._writer:
            if not check_references:
                self._set_references("OFF")
            try:
                # IMMEDIATE takes the lock at once: a transaction that reads first could find the database changed.
                with self._borrowed(self._writers, "BEGIN IMMEDIATE") as connection:
                    yield connection
            finally:
                if not check_references:
                    self._set_references("ON")

    def _set_references(self, state: str) -> None:
        # without effect within a transaction
        connection = self._writers.get_nowait()
        connection.execute(f"PRAGMA foreign_keys = {state}")
        self._writers.put(connection)

    def close(self) -> None:
        for idle in (self._readers, self._writers):
            while not idle.empty():
                idle.get_nowait().close()
