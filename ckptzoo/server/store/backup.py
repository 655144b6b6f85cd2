"""Backups of a server's folder, while it is served, and folders made of them.

A backup is the database as it was at one moment, and every blob that it names. Blobs never change, and one is on the
disk before the database names it: so what is copied after that moment has all that was acknowledged before it.
"""

import errno
import hashlib
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ckptzoo.errors import Problem, ZooError
from ckptzoo.server.store.blobs import locked, named_blobs, sync
from ckptzoo.server.store.database import VERSION

DATABASE = "hub.sqlite"
_TEMPORARY = ".backup-"
_CHUNK_BYTES = 2**20
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Copied:
    """The result of a backup or its restoration: all its blobs and their bytes, and those of them that were added."""

    blobs: int
    nbytes: int
    added: int


def back_up(root: Path, target: Path, progress: Progress | None = None) -> Copied:
    """Bring a backup up to the present; the server may be running.

    Blobs are linked into ``target`` where it is on the same file system, else copied. ``progress`` is called with the
    blobs that are there, and all of them.

    Raises ZooError: there is no server's folder, or its tables are of another version.

    The database is put in place last: a backup that is interrupted leaves the earlier one whole, and the same call goes
    on where it was.
    """
    _check_database(root)
    target.mkdir(parents=True, exist_ok=True)
    _sweep(target)
    temporary = target / f"{_TEMPORARY}{secrets.token_hex(8)}"
    try:
        temporary.touch(mode=0o600)  # digests of tokens and the signing key are in it
        # garbage waits meanwhile, so that every blob that this database names is there
        with locked(root, shared=True):
            with closing(sqlite3.connect(root / DATABASE)) as source, closing(sqlite3.connect(temporary)) as copy:
                try:
                    # pages as of one moment, while others write (sqlite.org/backup.html)
                    source.backup(copy)
                    # one file; the log of a served database is a second one
                    copy.execute("PRAGMA journal_mode = DELETE")
                except sqlite3.OperationalError as error:  # SQLITE_FULL and SQLITE_IOERR, without an errno
                    code = errno.ENOSPC if "full" in str(error) else errno.EIO
                    raise OSError(code, f"the database could not be copied: {error}", str(target)) from None
            sync(temporary)
            copied = _copy_blobs(root, target, temporary, progress)
        # last: an earlier database names blobs that are all still there
        temporary.replace(target / DATABASE)
        sync(target)
    finally:
        temporary.unlink(missing_ok=True)
    return copied


def restore(backup: Path, root: Path, progress: Progress | None = None) -> Copied:
    """Make a server's folder from a backup, which stays as it is; a folder that an interrupted call began is continued.

    Raises ZooError: there is no backup, or a server's folder there already.
    """
    _check_database(backup)
    if (root / DATABASE).exists():
        raise ZooError(Problem(str(root), "folder", "a new one", "a server's folder", "Restore into another folder."))
    root.mkdir(parents=True, exist_ok=True)
    _sweep(root)
    copied = _copy_blobs(backup, root, backup / DATABASE, progress)
    temporary = root / f"{_TEMPORARY}{secrets.token_hex(8)}"
    try:
        # copyfile copies no mode: the file stays closed to others
        temporary.touch(mode=0o600)
        shutil.copyfile(backup / DATABASE, temporary)
        sync(temporary)
        temporary.replace(root / DATABASE)
        sync(root)
    finally:
        temporary.unlink(missing_ok=True)
    return copied


def problems(root: Path, progress: Progress | None = None) -> Iterator[Problem]:
    """Yield the problems of a backup, or of a server's folder that is not served, by reading every byte."""
    _check_database(root)
    step = "Restore another backup; what this one lacks is lost in it."
    with closing(sqlite3.connect(f"file:{root / DATABASE}?mode=ro", uri=True)) as connection:
        # with indices, unlike quick_check
        for row in connection.execute("PRAGMA integrity_check"):
            if row[0] != "ok":
                yield Problem(f"{root}/{DATABASE}", "database", "a sound one", str(row[0])[:200], step)
        for row in connection.execute("PRAGMA foreign_key_check"):
            yield Problem(f"{root}/{DATABASE}", f"rows of {row[0]}", "of what is there", "others", step)
        named = named_blobs(connection)
    for done, (sha256, size) in enumerate(named.items(), start=1):
        path, digest = _path(root, sha256), hashlib.sha256()
        if not path.is_file():
            yield Problem(str(path), "blob", f"{size} bytes", "none", step)
            continue
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        if (path.stat().st_size, digest.hexdigest()) != (size, sha256):
            got = f"{path.stat().st_size} bytes with sha256 {digest.hexdigest()}"
            yield Problem(str(path), "blob", f"{size} bytes with the sha256 of its name", got, step)
        if progress is not None:
            progress(done, len(named))


def _check_database(root: Path) -> None:
    path = root / DATABASE
    if not path.is_file():
        step = "Name a folder that ckptzoo serve or ckptzoo serve backup made."
        raise ZooError(Problem(str(root), DATABASE, "a file", "none", step))
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise ZooError(Problem(str(path), "database", "one of SQLite", str(error), "Use another copy.")) from None
    if version != VERSION:
        step = "Start ckptzoo serve once, which brings it to it." if version < VERSION else "Upgrade ckptzoo."
        raise ZooError(Problem(str(root), "tables", f"version {VERSION}", f"{version}", step))


def _path(root: Path, sha256: str) -> Path:
    return root / "blobs" / sha256[:2] / sha256


def _copy_blobs(source: Path, target: Path, database: Path, progress: Progress | None) -> Copied:
    """Link or copy the blobs that a database names and the target lacks."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        named = named_blobs(connection)
    added, folders = 0, set[Path]()
    (target / "blobs").mkdir(mode=0o700, exist_ok=True)
    for done, (sha256, size) in enumerate(named.items(), start=1):
        path = _path(target, sha256)
        if not path.is_file() or path.stat().st_size != size:
            path.parent.mkdir(exist_ok=True)
            _link_or_copy(_path(source, sha256), path)
            folders.add(path.parent)
            added += 1
        if progress is not None:
            progress(done, len(named))
    for folder in (*folders, target / "blobs"):
        sync(folder)
    return Copied(len(named), sum(named.values()), added)


def _link_or_copy(source: Path, target: Path) -> None:
    temporary = target.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}")
    try:
        try:
            # as good as a copy, because a blob never changes
            os.link(source, temporary)
        except OSError as error:  # another file system, or one without links
            if isinstance(error, FileNotFoundError):
                step = "The server's folder is damaged: ckptzoo serve restore BACKUP --root NEW --verify."
                raise ZooError(Problem(str(source), "blob", "a file", "none", step)) from None
            try:
                shutil.copyfile(source, temporary)
                sync(temporary)
            except OSError as failed:
                # shutil names the source, also where the target's disk is full
                raise OSError(failed.errno, failed.strerror, str(target)) from None
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove the temporary files of interrupted calls."""
    for path in (*folder.glob(f"{_TEMPORARY}*"), *folder.glob(f"blobs/*/{_TEMPORARY}*")):
        path.unlink(missing_ok=True)
