"""Migrations of databases of earlier versions to the present tables; errors in them are corrected and reported."""

import json
import logging
import sqlite3
from collections.abc import Iterator

from ckptzoo.server.store.blobs import Blobs
from ckptzoo.server.store.commits import now
from ckptzoo.server.store.database import VERSION, Database, statement_of
from ckptzoo.server.store.git_objects import File, Trees, pointer, pointer_file

_log = logging.getLogger("ckptzoo.server")
_TEXT_BYTES = (100, 200)
"""The sizes between which every pointer is that Git LFS writes."""


def migrate(database: Database, blobs: Blobs) -> list[str]:
    """Bring a database to ``VERSION`` in one transaction; return, and log, what was wrong in it.

    To version 4: comments got the role with which they are written. That of earlier ones is not known.

    To version 3: tables of sessions, which are made with the database's others.

    To version 2: tokens got owners with accounts. Those that may write keep that in their user's own namespace alone;
    a namespace without an account becomes an organisation without members.

    From version 0, in which a file was looked up by its git id alone, whichever repository asked: a text that is a
    pointer could stand in the place of a large file, and a large file in the place of the text. Sizes of contents
    could be others than those of their bytes, and comments could hold what is not Unicode.
    """
    wrong: list[str] = []
    with database.writing() as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version < 1:
            wrong += _correct_contents(connection, blobs)
            _split_files(connection)
            wrong += _separate_pointers(connection, blobs)
            wrong += _clean_events(connection)
        if version < 2:
            wrong += _make_accounts(connection)
        if version < 4:
            _add_roles(connection)
        connection.execute(f"PRAGMA user_version = {VERSION}")
    for message in wrong:
        _log.warning("%s", message)
    return wrong


def _add_roles(connection: sqlite3.Connection) -> None:
    """Add the column for roles of events, unless the table was made with it."""
    if "role" not in {row["name"] for row in connection.execute("PRAGMA table_info(events)")}:
        connection.execute("ALTER TABLE events ADD COLUMN role TEXT")


def _make_accounts(connection: sqlite3.Connection) -> Iterator[str]:
    """Make the accounts of tokens and namespaces, and bring tokens and repositories to their new columns."""
    # the table of a later version is there only where this one's was made by it
    columns = {row["name"] for row in connection.execute("PRAGMA table_info(tokens)")}
    if "number" in columns:
        return
    connection.execute("ALTER TABLE repositories ADD COLUMN closed INTEGER NOT NULL DEFAULT 0")
    old = connection.execute("SELECT digest, user, role, created FROM tokens ORDER BY created, digest").fetchall()
    connection.execute("DROP TABLE tokens")
    connection.execute(statement_of("tokens"))
    for user in sorted({row["user"] for row in old}):
        connection.execute("INSERT INTO accounts VALUES (?, 'user', ?, 0)", (user, now()))
    for row in old:
        scope = row["user"] if row["role"] == "write" else ""
        values = (row["digest"], row["user"], row["role"], scope, row["created"])
        connection.execute(
            "INSERT INTO tokens (digest, user, name, role, scope, created) VALUES (?, ?, '', ?, ?, ?)", values
        )
    names = [row["name"].partition("/")[0] for row in connection.execute("SELECT name FROM repositories")]
    for namespace in sorted(set(names)):
        if connection.execute("SELECT 1 FROM accounts WHERE name = ?", (namespace,)).fetchone() is None:
            connection.execute("INSERT INTO accounts VALUES (?, 'organisation', ?, 0)", (namespace, now()))
            step = f"Add some with ckptzoo serve org --root FOLDER {namespace} --member USER."
            yield f"{namespace}: has repositories and no tokens, and is an organisation without members now. {step}"


def _correct_contents(connection: sqlite3.Connection, blobs: Blobs) -> Iterator[str]:
    """Forget contents that are not on the disk or have another size there: they have to be sent again."""
    query = """SELECT c.repository, c.sha256, c.size, r.name FROM contents c
        JOIN repositories r ON r.id = c.repository ORDER BY r.name, c.sha256"""
    for repository, sha256, size, name in connection.execute(query).fetchall():
        path = blobs.path(sha256)
        stored_size = path.stat().st_size if path.is_file() else None
        if stored_size != size:
            connection.execute("DELETE FROM contents WHERE repository = ? AND sha256 = ?", (repository, sha256))
            state = "not on the disk" if stored_size is None else f"has {stored_size}"
            yield f"{name}: content {sha256}: was recorded with {size} bytes, is {state}. Push it again."


def _split_files(connection: sqlite3.Connection) -> None:
    """Let an id stand for a small file and a large one."""
    connection.execute(
        """CREATE TABLE files_of_both_kinds (
        oid TEXT NOT NULL, size INTEGER NOT NULL, sha256 TEXT NOT NULL, large INTEGER NOT NULL,
        PRIMARY KEY (oid, large)) STRICT"""
    )
    # SQLite cannot change a primary key in place (sqlite.org/lang_altertable.html)
    connection.execute("INSERT INTO files_of_both_kinds SELECT oid, size, sha256, large FROM files")
    connection.execute("DROP TABLE files")
    connection.execute("ALTER TABLE files_of_both_kinds RENAME TO files")


def _separate_pointers(connection: sqlite3.Connection, blobs: Blobs) -> Iterator[str]:
    """Add the file of the other kind to the ids that stand for two, and name the paths that had the wrong one."""
    files = Trees(connection, 0)
    texts: dict[str, File] = {}
    query = "SELECT oid, sha256 FROM files WHERE NOT large AND size BETWEEN ? AND ?"
    for oid, sha256 in connection.execute(query, _TEXT_BYTES).fetchall():
        file = pointer_file(blobs.path(sha256).read_bytes()) if blobs.path(sha256).is_file() else None
        if file is not None:
            texts[oid] = file
    large = {row["oid"]: row for row in connection.execute("SELECT oid, sha256, size FROM files WHERE large")}
    for repository, name in connection.execute("SELECT id, name FROM repositories ORDER BY name").fetchall():
        rows = connection.execute("SELECT sha256, size FROM contents WHERE repository = ?", (repository,))
        given: dict[str, int] = {row["sha256"]: row["size"] for row in rows}
        for path, oid, commit in _file_paths(connection, repository):
            where = f"{name}: {path} of commit {commit}"
            if oid in texts and given.get(texts[oid].sha256) == texts[oid].size:
                files.add_file(texts[oid])
                yield f"{where}: was the text of a Git LFS pointer, is the file of {texts[oid].size} bytes again."
            elif oid in large and given.get(large[oid]["sha256"]) != large[oid]["size"]:
                text = pointer(large[oid]["sha256"], large[oid]["size"])
                blobs.add(text)
                files.add_file(File.small(text))
                yield f"{where}: was content that the repository was not given, is the text of its pointer again."


def _file_paths(connection: sqlite3.Connection, repository: int) -> Iterator[tuple[str, str, str]]:
    """Yield path, id and the last commit of every file that a repository has had; a folder is read once for all
    commits.
    """
    trees = Trees(connection, repository)
    query = """SELECT c.oid, c.tree FROM history h JOIN commits c ON c.oid = h.oid
        WHERE h.repository = ? ORDER BY h.sequence DESC"""
    seen: set[tuple[str, str]] = set()
    for commit, root in connection.execute(query, (repository,)).fetchall():
        folders = [("", root)]
        while folders:
            path, oid = folders.pop()
            if (path, oid) in seen:
                continue
            seen.add((path, oid))
            for name, node in trees.nodes(oid).items():
                if node.folder:
                    folders.append((f"{path}{name}/", node.oid))
                elif (path + name, node.oid) not in seen:
                    seen.add((path + name, node.oid))
                    yield path + name, node.oid, commit


def _clean_events(connection: sqlite3.Connection) -> Iterator[str]:
    r"""Replace lone surrogates, such as ``"\ud800"`` in JSON, which no answer can be written with."""
    # LIKE ignores case: JSON may have \uD800 and \ud800
    query = """SELECT e.sequence, e.number, e.data, r.name FROM events e JOIN repositories r ON r.id = e.repository
        WHERE e.data LIKE '%\\ud%'"""
    for sequence, number, data, name in connection.execute(query).fetchall():
        text = json.dumps(json.loads(data), ensure_ascii=False)
        cleaned = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        if cleaned != text:
            connection.execute(
                "UPDATE events SET data = ? WHERE sequence = ?", (json.dumps(json.loads(cleaned)), sequence)
            )
            yield f"{name}: discussion {number}: held what is not Unicode, which was replaced."
