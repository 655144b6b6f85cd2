"""Garbage collection: rows and blobs that nothing names are removed from a server's folder, while it is served.

A removed repository, a squashed branch and an upload without a commit leave commits, folders and blobs behind. What
stays is what a commit of a repository's history reaches, and for the grace time what was sent since.

Rows are found in one read transaction and removed in short write transactions. Each of those first looks at the commits
that were added meanwhile: a row that one of them uses stays, and one that is removed before it is added is stored
again by it. A blob is unlinked only under a lock (``Blobs.held``) that uploads and commits share: a commit touches the
blobs that it names under that lock, so that they are younger than the grace time, or finds one gone and is refused.
"""

import hashlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from ckptzoo.server.store.blobs import locked, named_blobs
from ckptzoo.server.store.database import Database
from ckptzoo.server.store.git_objects import tree_nodes
from ckptzoo.server.store.repositories import ATTRIBUTES

# SQLite before 3.32 takes at most 999 variables in a statement (sqlite.org/limits.html).
_ROWS = 500
"""Rows that are removed by one statement."""
_WRITE_SECONDS = 0.03
"""Seconds of a transaction: uploads wait for it, and get as long a pause behind it."""
_LOCK_SECONDS = 0.03
"""The same for blobs."""
_TICK_SECONDS = 0.02
"""Times of files are those of the kernel's last tick, up to 10 ms ago (CONFIG_HZ=100; time(7))."""
_PATHS = 50
"""Blobs between two checks of the time."""
Progress = Callable[[int, int], None]
Item = TypeVar("Item", int, str)


@dataclass(frozen=True)
class Collected:
    """The result of a collection, or what one would remove.

    ``commits``, ``folders`` and ``files`` count rows that nothing reached, ``contents`` those that were sent to
    repositories and never committed, ``blobs`` and ``nbytes`` files on the disk.
    """

    commits: int
    folders: int
    files: int
    contents: int
    blobs: int
    nbytes: int


class Reached:
    """The objects that the commits of all histories reach, updated with commits that are added."""

    def __init__(self) -> None:
        self.commits, self.trees, self.files = set[str](), set[str](), set[str]()
        self._last = 0

    def update(self, connection: sqlite3.Connection) -> bool:
        """Add what new commits reach; return whether there were some."""
        query = """SELECT h.sequence, c.oid, c.tree FROM history h JOIN commits c ON c.oid = h.oid
            WHERE h.sequence > ? ORDER BY h.sequence"""
        rows = connection.execute(query, (self._last,)).fetchall()
        for sequence, commit, tree in rows:
            self._last = sequence
            self.commits.add(commit)
            self._walk(connection, tree)
        return bool(rows)

    def _walk(self, connection: sqlite3.Connection, tree: str) -> None:
        waiting = [tree]
        while waiting:
            oid = waiting.pop()
            if oid in self.trees:
                continue
            self.trees.add(oid)
            row = connection.execute("SELECT content FROM trees WHERE oid = ?", (oid,)).fetchone()
            for node in tree_nodes(row["content"]).values():
                if node.folder:
                    waiting.append(node.oid)
                else:
                    self.files.add(node.oid)


def collect(
    root: Path, database: Database, *, grace: timedelta, dry_run: bool = False, progress: Progress | None = None
) -> Collected:
    """Remove what nothing names.

    The folder may be served and backed up meanwhile. Objects sent within ``grace`` stay, because their commit may
    follow; below an hour an upload in progress may have to be sent again. With ``dry_run`` they are only counted.
    ``progress`` is called with the rows and blobs that are done, and all of them.

    A call that is killed at any moment can be repeated, and continues.
    """
    reached, oldest = Reached(), time.time() - grace.total_seconds() - _TICK_SECONDS
    with database.reading() as connection:
        reached.update(connection)
        commits = _missing(connection, "SELECT oid FROM commits", reached.commits)
        trees = _missing(connection, "SELECT oid FROM trees", reached.trees)
        files = _missing(connection, "SELECT DISTINCT oid FROM files", reached.files)
        used = _used(connection, reached)
        rows = connection.execute("SELECT rowid, sha256 FROM contents").fetchall()
    contents = {number: digest for number, digest in rows if digest not in used and _is_old(root, digest, oldest)}
    # blobs that rows name which are about to be removed
    kept = used | {digest for number, digest in rows if number not in contents}
    blobs = {path.name: path for path in _blobs(root) if path.name not in kept and _is_old(root, path.name, oldest)}
    nbytes = sum(path.stat().st_size for path in blobs.values())
    collected = Collected(len(commits), len(trees), len(files), len(contents), len(blobs), nbytes)
    if dry_run:
        return collected
    total, done = len(commits) + len(trees) + len(files) + len(contents) + len(blobs), 0

    def note(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    return Collected(
        _remove(database, reached, commits, reached.commits, {"parents": "child", "commits": "oid"}, note),
        _remove(database, reached, trees, reached.trees, {"trees": "oid"}, note),
        _remove(database, reached, files, reached.files, {"files": "oid"}, note),
        _remove_contents(root, database, reached, contents, oldest, note),
        *_unlink(root, database, list(blobs.values()), oldest, note),
    )


def _missing(connection: sqlite3.Connection, query: str, reached: set[str]) -> list[str]:
    return [row[0] for row in connection.execute(query) if row[0] not in reached]


def _used(connection: sqlite3.Connection, reached: Reached) -> set[str]:
    """Return the blobs of files that are reached."""
    rows = connection.execute("SELECT oid, sha256 FROM files")
    # every new repository begins with it, without sending it
    return {hashlib.sha256(ATTRIBUTES).hexdigest(), *(digest for oid, digest in rows if oid in reached.files)}


def _remove(
    database: Database,
    reached: Reached,
    oids: Sequence[str],
    live: set[str],
    columns: Mapping[str, str],
    note: Callable[[int], None],
) -> int:
    """Remove rows by their ids, except those that were reached meanwhile; return how many ids."""
    removed = 0
    for connection, some in _transactions(database, oids):
        reached.update(connection)
        gone = [oid for oid in some if oid not in live]
        for table, column in columns.items():
            marks = ", ".join("?" * len(gone))
            connection.execute(f"DELETE FROM {table} WHERE {column} IN ({marks})", gone)
        removed += len(gone)
        note(len(some))
    return removed


def _remove_contents(
    root: Path,
    database: Database,
    reached: Reached,
    contents: dict[int, str],
    oldest: float,
    note: Callable[[int], None],
) -> int:
    removed, used = 0, set[str]()
    for connection, some in _transactions(database, list(contents)):
        if reached.update(connection) or not used:
            used = _used(connection, reached)
        # sent again meanwhile, its blob is younger
        gone = [number for number in some if contents[number] not in used and _is_old(root, contents[number], oldest)]
        # a number may be another row's by now
        statement = "DELETE FROM contents WHERE rowid = ? AND sha256 = ?"
        connection.executemany(statement, [(number, contents[number]) for number in gone])
        removed += len(gone)
        note(len(some))
    return removed


def _transactions(database: Database, items: Sequence[Item]) -> Iterator[tuple[sqlite3.Connection, Sequence[Item]]]:
    """Yield some of the items at a time, in short write transactions with pauses."""
    start = 0
    while start < len(items):
        began = time.monotonic()
        with database.writing(check_references=False) as connection:
            while start < len(items) and time.monotonic() - began < _WRITE_SECONDS:
                yield connection, items[start : start + _ROWS]
                start += _ROWS
        time.sleep(time.monotonic() - began)


def _unlink(
    root: Path, database: Database, paths: Sequence[Path], oldest: float, note: Callable[[int], None]
) -> tuple[int, int]:
    """Unlink blobs that no row names, and that nobody has touched; return how many, and their bytes. A writer touches a
    blob before it gives it a row, both under the lock. So the rows are read once, when all that held the lock at the
    beginning have ended: later writers make the blob young.
    """
    count = nbytes = start = 0
    with locked(root):
        pass
    with database.reading() as connection:
        named = {*named_blobs(connection), hashlib.sha256(ATTRIBUTES).hexdigest()}
    while start < len(paths):
        with locked(root) as began:
            while start < len(paths) and time.monotonic() - began < _LOCK_SECONDS:
                for path in paths[start : start + _PATHS]:
                    if path.name not in named and _is_old(root, path.name, oldest):
                        nbytes += path.stat().st_size
                        path.unlink()
                        count += 1
                note(len(paths[start : start + _PATHS]))
                start += _PATHS
        time.sleep(_LOCK_SECONDS / 2)
    return count, nbytes


def _blobs(root: Path) -> Iterator[Path]:
    # a server that never ran has no such folder: accounts are made before
    for folder in sorted((root / "blobs").glob("*")):
        yield from folder.iterdir()


def _is_old(root: Path, digest: str, oldest: float) -> bool:
    """Return whether a blob was stored and last used before a time; an absent one is old."""
    try:
        return (root / "blobs" / digest[:2] / digest).stat().st_mtime < oldest
    except FileNotFoundError:
        return True
