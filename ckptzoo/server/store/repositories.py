"""Make, find, change and remove repositories, and note which contents each was given."""

import sqlite3
from dataclasses import dataclass

from ckptzoo.server.access import AccessTarget
from ckptzoo.server.errors import Refusal
from ckptzoo.server.store.commits import MAIN, History, now
from ckptzoo.server.store.git_objects import File, Node, Trees

LARGE = (".safetensors", ".parquet", ".arrow", ".bin", ".npy", ".npz", ".pt", ".pth", ".gz", ".zip", ".zst")
"""Endings of files that are stored apart from commits (LFS), however small."""
ATTRIBUTES = "".join(f"*{ending} filter=lfs diff=lfs merge=lfs -text\n" for ending in LARGE).encode()
"""The content of .gitattributes in a new repository; git reads it, the server does not."""


@dataclass(frozen=True)
class Repository:
    """One repository; in a ``closed`` one only accounts with a role may open pull requests and discussions."""

    id: int
    kind: str
    name: str
    private: bool
    created: str
    closed: bool

    @property
    def target(self) -> AccessTarget:
        """The argument of ``access.may``."""
        return AccessTarget(self.name, self.id, self.private, self.closed)


def _repository(row: sqlite3.Row) -> Repository:
    return Repository(row["id"], row["kind"], row["name"], bool(row["private"]), row["created"], bool(row["closed"]))


def find(connection: sqlite3.Connection, kind: str, name: str) -> Repository | None:
    """Return the repository of this kind and name."""
    row = connection.execute("SELECT * FROM repositories WHERE kind = ? AND name = ?", (kind, name)).fetchone()
    return None if row is None else _repository(row)


def by_id(connection: sqlite3.Connection, id: int) -> Repository | None:
    """Return the repository that has this number."""
    row = connection.execute("SELECT * FROM repositories WHERE id = ?", (id,)).fetchone()
    return None if row is None else _repository(row)


def listed(connection: sqlite3.Connection, kind: str) -> list[Repository]:
    """Return every repository of a kind, the newest first."""
    rows = connection.execute("SELECT * FROM repositories WHERE kind = ? ORDER BY id DESC", (kind,))
    return [_repository(row) for row in rows]


def with_heads(connection: sqlite3.Connection) -> list[tuple[Repository, str, str]]:
    """Return every repository with the last commit of main and its date, the last changed first."""
    rows = connection.execute(
        """SELECT r.*, c.oid AS head, c.date AS changed FROM repositories r
        JOIN refs f ON f.repository = r.id AND f.name = ? JOIN commits c ON c.oid = f.oid ORDER BY c.date DESC, r.id""",
        (MAIN,),
    )
    return [(_repository(row), row["head"], row["changed"]) for row in rows]


def create(connection: sqlite3.Connection, kind: str, name: str, *, private: bool, author: str) -> Repository:
    """Make a repository with one commit, which holds .gitattributes; the blob of ``ATTRIBUTES`` is stored already."""
    if find(connection, kind, name) is not None:
        # create_repo(exist_ok=True) of huggingface_hub goes on after a 409
        raise Refusal(409, f"You already created this {kind} repo: {name}")
    row = (kind, name, int(private), now())
    connection.execute("INSERT INTO repositories (kind, name, private, created) VALUES (?, ?, ?, ?)", row)
    repository = find(connection, kind, name)
    assert repository is not None
    trees, history = Trees(connection, repository.id), History(connection, repository.id)
    file = File.small(ATTRIBUTES)
    trees.add_file(file)
    tree = trees.add({".gitattributes": Node(file.oid, False)})
    history.point(MAIN, history.add(tree, (), author=author, title="initial commit"))
    return repository


def move(connection: sqlite3.Connection, repository: Repository, name: str) -> None:
    """Give a repository another name."""
    if find(connection, repository.kind, name) is not None:
        raise Refusal(409, f"Repository already exists: {name}")
    connection.execute("UPDATE repositories SET name = ? WHERE id = ?", (name, repository.id))


def set_private(connection: sqlite3.Connection, repository: Repository, private: bool) -> None:
    """Hide a repository from those who have no role in it, or show it."""
    connection.execute("UPDATE repositories SET private = ? WHERE id = ?", (int(private), repository.id))


def set_closed(connection: sqlite3.Connection, repository: Repository, closed: bool) -> None:
    """Leave pull requests and discussions to those who have a role, or open them to every account."""
    connection.execute("UPDATE repositories SET closed = ? WHERE id = ?", (int(closed), repository.id))


def remove(connection: sqlite3.Connection, repository: Repository) -> None:
    """Remove a repository with its refs and discussions; the blobs stay on the disk."""
    connection.execute("DELETE FROM repositories WHERE id = ?", (repository.id,))


def give(connection: sqlite3.Connection, repository: int, sha256: str, size: int) -> None:
    """Note that a caller with access to the repository has sent this content."""
    # by SELECT, because the repository may have been removed while the content arrived
    row = (repository, sha256, size)
    connection.execute("INSERT OR IGNORE INTO contents SELECT r.id, ?2, ?3 FROM repositories r WHERE r.id = ?1", row)


def given(connection: sqlite3.Connection, repository: int, sha256: str) -> int | None:
    """Return the size of a content that the repository was given, None where it was not. A content has to be sent to
    each repository, so that its digest alone gives nobody its bytes.
    """
    query = "SELECT size FROM contents WHERE repository = ? AND sha256 = ?"
    row = connection.execute(query, (repository, sha256)).fetchone()
    return None if row is None else row["size"]
