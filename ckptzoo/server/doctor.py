"""Checks of a server's folder and its machine, for the operator; nothing is changed."""

import fcntl
import os
import resource
import shutil
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from ckptzoo.checks import NETWORK_FILE_SYSTEMS, NOTE, OK, PROBLEM, Check, file_system_of
from ckptzoo.server.access import ADMIN
from ckptzoo.server.store import accounts, tokens
from ckptzoo.server.store.backup import DATABASE
from ckptzoo.server.store.blobs import locked, named_blobs
from ckptzoo.server.store.database import VERSION, setting
from ckptzoo.text import counted, size

LAST_BACKUP = "last_backup"
"""The setting with the time and the folder of the last backup."""
_FREE_BYTES, _FREE_SHARE = 2 * 2**30, 0.02
"""Less free disk than the larger of these is a problem: uploads arrive before they are checked."""
_OPEN_FILES = 1024
"""The usual soft limit; a third of it is for connections (``connections.Connections``)."""
# A day more than a week, so that weekly backups pass.
_BACKUP_DAYS = 8
_SECONDS = 5.0
_SHOWN = 5


def examine(root: Path) -> list[Check]:
    """Check a server's folder, which may be served, in the order in which an operator would look; a folder without a
    database ends the checks.

    Reads the database and the directory entries of all blobs, not their bytes: 100,000 blobs take about a second.
    """
    path = root / DATABASE
    if not path.is_file():
        step = "Name a folder that ckptzoo serve made."
        return [Check("folder", PROBLEM, f"{root}: expected {DATABASE}, got none.", step)]
    checks = [*_disk(root), _permissions(root), _open_files()]
    try:
        # mode=ro: connecting would make a database where there is none
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version != VERSION:
                step = "Start ckptzoo serve once." if version < VERSION else "Install the newer version of ckptzoo."
                return [*checks, Check("tables", PROBLEM, f"expected version {VERSION}, got {version}.", step)]
            checks += [_soundness(connection), _blobs(root, connection), *_accounts(connection), _backup(connection)]
            address = setting(connection, "address")
    except sqlite3.DatabaseError as error:
        step = "Restore a backup: ckptzoo serve restore BACKUP --root NEW --verify."
        return [*checks, Check("database", PROBLEM, f"{path}: {error}", step)]
    return [*checks, _server(root, address)]


def _disk(root: Path) -> Iterator[Check]:
    usage = shutil.disk_usage(root)
    detail = f"{size(usage.free)} free of {size(usage.total)}"
    if usage.free < max(_FREE_BYTES, _FREE_SHARE * usage.total):
        yield Check("disk", PROBLEM, detail, "Make room, or run ckptzoo serve gc --root FOLDER.")
    else:
        yield Check("disk", OK, detail)
    kind = file_system_of(root)
    if kind in NETWORK_FILE_SYSTEMS:
        # its write-ahead log needs memory that processes share, on one machine (sqlite.org/wal.html)
        step = "Move the folder to a disk of this machine: SQLite's log does not work over a network."
        yield Check("file system", PROBLEM, kind, step)
    else:
        yield Check("file system", OK, kind or "unknown")


def _permissions(root: Path) -> Check:
    secret = [path for path in (root / DATABASE, root / "blobs", root / "incoming") if path.exists()]
    shown = [f"{path.name} has mode {path.stat().st_mode & 0o777:o}" for path in secret if path.stat().st_mode & 0o077]
    if shown:
        step = "chmod -R go= the folder: the database has the digests of tokens and the signing key."
        return Check("permissions", PROBLEM, ", ".join(shown), step)
    foreign = [path.name for path in secret if path.stat().st_uid != os.geteuid()]
    # the superuser reads the files of all
    if foreign and os.geteuid() != 0:
        return Check("permissions", PROBLEM, f"{', '.join(foreign)}: of another user", "Run it as the server's user.")
    return Check("permissions", OK, "closed to other users")


def _open_files() -> Check:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    detail = f"{limit:,} open files, {limit // 3:,} connections"
    if limit <= _OPEN_FILES:
        step = "Raise it for more connections: LimitNOFILE= in a systemd unit, or ulimit -n."
        return Check("open files", NOTE, detail, step)
    return Check("open files", OK, detail)


def _soundness(connection: sqlite3.Connection) -> Check:
    step = "Restore a backup: ckptzoo serve restore BACKUP --root NEW --verify."
    # quick_check, unlike integrity_check, compares no indices with their tables, and takes less time
    (first, *_) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if first != "ok":
        return Check("database", PROBLEM, str(first)[:200], step)
    if rows := connection.execute("PRAGMA foreign_key_check").fetchall():
        detail = f"{counted(len(rows), 'row')} of {rows[0][0]} without the rows that they refer to"
        return Check("database", PROBLEM, detail, step)
    count = connection.execute("SELECT COUNT(*) FROM repositories").fetchone()[0]
    repositories = "1 repository" if count == 1 else f"{count:,} repositories"
    return Check("database", OK, f"sound, version {VERSION}, {repositories}")


def _blobs(root: Path, connection: sqlite3.Connection) -> Check:
    # nothing is removed meanwhile
    with locked(root, shared=True):
        named = named_blobs(connection)
        sizes = {path.name: path.stat().st_size for path in (root / "blobs").glob("*/*")}
    wrong = [digest for digest, expected in named.items() if sizes.get(digest) != expected]
    if wrong:
        shown = ", ".join(wrong[:_SHOWN])
        step = "Restore them from a backup, or push the files again."
        return Check("blobs", PROBLEM, f"{counted(len(wrong), 'blob')} missing or of another size: {shown}", step)
    unnamed = [digest for digest in sizes if digest not in named]
    detail = f"{counted(len(named), 'blob')}, {size(sum(named.values()))}"
    if unnamed:
        more = f"; {counted(len(unnamed), 'blob')} that no file names, {size(sum(sizes[digest] for digest in unnamed))}"
        return Check("blobs", NOTE, detail + more, "ckptzoo serve gc --root FOLDER removes them.")
    return Check("blobs", OK, detail)


def _accounts(connection: sqlite3.Connection) -> Iterator[Check]:
    users, organisations = (
        [item.name for item in accounts.listed(connection, kind) if not item.disabled]
        for kind in (accounts.USER, accounts.ORGANISATION)
    )
    alone = [name for name in organisations if ADMIN not in accounts.members(connection, name).values()]
    detail = f"{counted(len(users), 'user')}, {counted(len(organisations), 'organisation')}"
    if alone:
        step = f"ckptzoo serve org --root FOLDER {alone[0]} --member USER --role admin."
        yield Check("accounts", NOTE, f"{detail}; without an administrator: {', '.join(alone[:_SHOWN])}", step)
    else:
        yield Check("accounts", OK, detail)
    listed, now = tokens.listed(connection), datetime.now(UTC)
    over = [item for item in listed if item.expires is not None and datetime.fromisoformat(item.expires) <= now]
    forever = [item for item in listed if item.expires is None and item.limits.role != "read"]
    detail = f"{counted(len(listed), 'token')}, {len(over):,} expired"
    if forever:
        step = "Make tokens with --days, and revoke those that nobody uses: ckptzoo serve token --root FOLDER --list."
        yield Check("tokens", NOTE, f"{detail}, {len(forever):,} that may write or contribute and never expire", step)
    else:
        yield Check("tokens", OK, detail)


def _backup(connection: sqlite3.Connection) -> Check:
    text = setting(connection, LAST_BACKUP)
    step = "ckptzoo serve backup --root FOLDER --to ANOTHER_DISK, every day."
    if text is None:
        return Check("backup", NOTE, "none was made", step)
    when, _, place = text.partition(" ")
    days = (datetime.now(UTC) - datetime.fromisoformat(when)).days
    ago = "today" if days < 1 else f"{counted(days, 'day')} ago"
    detail = f"{place}, {ago}"
    return Check("backup", NOTE, detail, step) if days >= _BACKUP_DAYS else Check("backup", OK, detail)


def _server(root: Path, address: str | None) -> Check:
    """Return whether a process serves the folder, and answers at the address that it gives to clients."""
    descriptor = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return Check("server", NOTE, "no process serves the folder", "Start ckptzoo serve.")
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)
    began = time.monotonic()
    try:
        # everybody may read the style sheet, on a private server too
        with urllib.request.urlopen(f"{address}/-/style.css", timeout=_SECONDS) as answer:
            answer.read()
    except (OSError, ValueError, urllib.error.HTTPError) as error:
        step = "Look at the proxy and at --url; docs/hosting.md has both."
        return Check("server", PROBLEM, f"runs, and does not answer at {address}: {error}", step)
    return Check("server", OK, f"answers at {address} in {1e3 * (time.monotonic() - began):.0f} ms")
