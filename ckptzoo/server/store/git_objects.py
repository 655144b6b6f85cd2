"""Files, folders and commits with the ids that git gives them; folders are read, listed, changed and compared."""

import hashlib
import math
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ckptzoo.server.errors import Refusal
from ckptzoo.server.kept import ENTRY_BYTES, Kept
from ckptzoo.server.store.database import ROW_BYTES

# Without the 0 before 40000 that git ls-tree shows: the bytes of a tree have none.
_FOLDER, _FILE = "40000", "100644"
"""The modes of git's tree entries."""
_SHA1_BYTES = 20
_QUERY_IDS = 500
"""Files that one query asks for; older versions of SQLite take at most 999 variables."""
_KEPT_BYTES = 32 * 2**20
"""The maximum of memory for folders that were read: each request asks for one of a zoo's thousands of parts by path."""
_NODE_BYTES = 320
"""Bytes of an entry in memory: its name, its id, a node, and its slot."""
_POINTER_BYTES = 1024
"""The largest number of bytes of a pointer, by the Git LFS specification."""
# The specification was at hawser.github.com before it was called Git LFS.
_POINTER = re.compile(rb"\s*version https?://(?:git-lfs|hawser)\.github\.com/spec/")
_POINTER_OID = re.compile(rb"^oid sha256:([0-9a-f]{64})\s*$", re.MULTILINE)
# Numbers of 18 digits fit the signed 64 bits of SQLite's integers.
_POINTER_SIZE = re.compile(rb"^size (\d{1,18})\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Node:
    """The entry of a name in a folder."""

    oid: str
    folder: bool


def object_id(kind: str, content: bytes) -> str:
    """Return ``sha1(kind + " " + size + "\\0" + content)``, in hex; kind is ``blob``, ``tree`` or ``commit``."""
    # git's choice of a hash; contents are compared by their sha256.
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def pointer(sha256: str, size: int) -> bytes:
    """Return the text that stands for a large file, by the Git LFS specification."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def is_pointer(content: bytes) -> bool:
    """Return whether clients of Git LFS would take these bytes for a pointer, in any version and with any line ends."""
    return (
        len(content) < _POINTER_BYTES
        and _POINTER.match(content) is not None
        and _POINTER_OID.search(content) is not None
        and _POINTER_SIZE.search(content) is not None
    )


def pointer_file(content: bytes) -> "File | None":
    """Return the large file whose pointer these bytes are, exactly as ``pointer`` writes it; None for other bytes."""
    if not is_pointer(content):
        return None
    sha256, size = _POINTER_OID.search(content), _POINTER_SIZE.search(content)
    assert sha256 is not None and size is not None
    file = File.apart(sha256[1].decode(), int(size[1]))
    return file if pointer(file.sha256, file.size) == content else None


def sort_key(name: str, node: Node) -> bytes:
    """Return the key of the order of git's trees: names of folders sort as if they ended with ``/``."""
    return f"{name}/".encode() if node.folder else name.encode()


def tree_content(nodes: Mapping[str, Node]) -> bytes:
    """Return a folder as bytes: ``mode name \\0 id`` of each entry, sorted."""
    return b"".join(
        f"{_FOLDER if node.folder else _FILE} {name}\0".encode() + bytes.fromhex(node.oid)
        for name, node in sorted(nodes.items(), key=lambda item: sort_key(*item))
    )


def tree_nodes(content: bytes) -> dict[str, Node]:
    """Return the entries of a folder, in git's order."""
    nodes: dict[str, Node] = {}
    start = 0
    while start < len(content):
        end = content.index(b"\0", start)
        mode, name = content[start:end].decode().split(" ", 1)
        start = end + 1 + _SHA1_BYTES
        nodes[name] = Node(content[end + 1 : start].hex(), mode == _FOLDER)
    return nodes


def commit_content(tree: str, parents: Iterable[str], author: str, seconds: int, message: str) -> bytes:
    """Return a commit as bytes."""
    person = f"{author} <{author}@localhost> {seconds} +0000"  # git wants an address; the server knows none
    above = [f"tree {tree}", *(f"parent {parent}" for parent in parents), f"author {person}", f"committer {person}"]
    return ("\n".join(above) + f"\n\n{message}\n").encode()


Changes = dict[str, str | None]
"""Paths, and the file that each is to hold; None removes it."""


@dataclass(frozen=True)
class File:
    """A file's content: its git id, its size, its sha256, and whether it is stored apart as a large file (LFS)."""

    oid: str
    size: int
    sha256: str
    large: bool

    @classmethod
    def small(cls, content: bytes) -> "File":
        """Return a file that git stores as it is."""
        return cls(object_id("blob", content), len(content), hashlib.sha256(content).hexdigest(), False)

    @classmethod
    def apart(cls, sha256: str, size: int) -> "File":
        """Return a file for which git stores a pointer."""
        return cls(object_id("blob", pointer(sha256, size)), size, sha256, True)

    @property
    def pointer_size(self) -> int:
        """The size of the pointer that git stores for a large file."""
        return len(pointer(self.sha256, self.size))


# ids are digests, so that an entry holds in every transaction and for every database
_KEPT: Kept[Mapping[str, Node]] = Kept(_KEPT_BYTES, lambda nodes: ENTRY_BYTES + _NODE_BYTES * len(nodes))


class Trees:
    """The folders of every repository and the files of one, for as long as one transaction lasts.

    ``written_bytes`` is what its new rows take up.

    In a folder git names a large file by the id of its pointer, which a small file with the pointer's text would have,
    too. Commits refuse such a text (``is_pointer``). Where an earlier version took one, the id stands for the large
    file in repositories that were given its bytes, and for the text in all others, so that nobody gets by a digest
    what he was not given.
    """

    def __init__(self, connection: sqlite3.Connection, repository: int) -> None:
        self.connection, self._repository = connection, repository
        # a folder that is too large to be kept is read once in a transaction
        self._nodes: dict[str, Mapping[str, Node]] = {}
        self.written_bytes = 0

    def nodes(self, oid: str | None) -> Mapping[str, Node]:
        """Return the entries of one folder, which others may hold too; None is an empty one."""

        def read() -> Mapping[str, Node]:
            row = self.connection.execute("SELECT content FROM trees WHERE oid = ?", (oid,)).fetchone()
            return MappingProxyType(tree_nodes(row["content"]))

        if oid is None:
            return {}
        if oid not in self._nodes:
            self._nodes[oid] = _KEPT.get(oid, read)
        return self._nodes[oid]

    def add(self, nodes: Mapping[str, Node]) -> str:
        """Store a folder; return its id."""
        content = tree_content(nodes)
        oid = object_id("tree", content)
        inserted = self.connection.execute("INSERT OR IGNORE INTO trees VALUES (?, ?)", (oid, content))
        self.written_bytes += inserted.rowcount * (ROW_BYTES + len(content))
        return oid

    def file(self, oid: str) -> File:
        """Return the facts about a file."""
        return self.files([oid])[oid]

    def files(self, oids: Iterable[str]) -> dict[str, File]:
        """Return the facts about each of some files."""
        by_oid: dict[str, File] = {}
        wanted = list(dict.fromkeys(oids))
        for start in range(0, len(wanted), _QUERY_IDS):
            some = wanted[start : start + _QUERY_IDS]
            query = f"""SELECT f.oid, f.size, f.sha256, f.large, c.size IS NOT NULL FROM files f LEFT JOIN contents c
                ON f.large AND c.repository = ? AND c.sha256 = f.sha256 AND c.size = f.size
                WHERE f.oid IN ({", ".join("?" * len(some))})"""
            for oid, size, sha256, large, given in self.connection.execute(query, (self._repository, *some)):
                if given:
                    by_oid[oid] = File(oid, size, sha256, True)
                elif not large:
                    by_oid.setdefault(oid, File(oid, size, sha256, False))
                elif oid not in by_oid:
                    by_oid[oid] = File.small(pointer(sha256, size))
        return by_oid

    def add_file(self, file: File) -> None:
        """Store what is known of a file."""
        row = (file.oid, file.size, file.sha256, int(file.large))
        inserted = self.connection.execute("INSERT OR IGNORE INTO files VALUES (?, ?, ?, ?)", row)
        self.written_bytes += inserted.rowcount * ROW_BYTES

    def find(self, root: str, path: str) -> Node | None:
        """Return the entry of this path below a folder; the empty path is the folder itself."""
        node = Node(root, True)
        for part in path.split("/") if path else ():
            child = self.nodes(node.oid).get(part) if node.folder else None
            if child is None:
                return None
            node = child
        return node

    def walk(
        self, root: str, path: str = "", *, recursive: bool = True, after: bytes = b""
    ) -> Iterator[tuple[str, Node]]:
        """Yield everything below a folder, in the order of git's names.

        ``root`` is the folder's id, and ``path`` its path, with which the paths begin. ``after`` is the ``position`` of
        an entry; those up to and including it are left out.
        """
        prefix = f"{path}/" if path else ""
        for name, node in self.nodes(root).items():
            key = prefix.encode() + sort_key(name, node)
            if key > after:
                yield prefix + name, node
            if recursive and node.folder and (key > after or after.startswith(key)):
                yield from self.walk(node.oid, prefix + name, after=after)

    def changed(self, root: str | None, changes: Changes) -> str:
        """Apply changes to a folder and store the result; folders that become empty are removed.

        Raises Refusal: a path would be a file and a folder at once.
        """
        nodes = dict(self.nodes(root))
        below: dict[str, Changes] = {}
        for path, oid in changes.items():
            first, _, path_below = path.partition("/")
            if path_below:
                below.setdefault(first, {})[path_below] = oid
            elif oid is None and not (first in nodes and nodes[first].folder):
                nodes.pop(first, None)
        for name, inner in below.items():
            existing = nodes.get(name)
            if existing is not None and not existing.folder:
                if any(oid is not None for oid in inner.values()):
                    raise Refusal(400, f"{name}: expected a file or a folder, got both.")
                continue
            oid = self.changed(None if existing is None else existing.oid, inner)
            if self.nodes(oid):
                nodes[name] = Node(oid, True)
            else:
                nodes.pop(name, None)
        for path, oid in changes.items():
            if oid is None or "/" in path:
                continue
            if path in nodes and nodes[path].folder:
                raise Refusal(400, f"{path}: expected a file or a folder, got both.")
            nodes[path] = Node(oid, False)
        return self.add(nodes)

    def differing(self, before: str | None, after: str | None, paths: Iterable[str]) -> Iterator[str]:
        """Yield those of some paths, of files or folders, that are not the same below two folders."""
        if before == after:
            return
        old, new = self.nodes(before), self.nodes(after)
        below: dict[str, list[str]] = {}
        for path in paths:
            first, _, path_below = path.partition("/")
            if old.get(first) == new.get(first):
                continue
            if path_below:
                below.setdefault(first, []).append(path_below)
            else:
                yield path
        for name, inner in below.items():
            was, now = (
                node.oid if (node := entries.get(name)) is not None and node.folder else None for entries in (old, new)
            )
            yield from (f"{name}/{path}" for path in self.differing(was, now, inner))

    def difference(
        self, before: str | None, after: str | None, prefix: str = "", *, end: float = math.inf
    ) -> dict[str, tuple[str | None, str | None]]:
        """Return the paths of the files that differ between two folders, with their ids before and after.

        Raises Refusal with status 413: it is later than ``end``, by ``time.monotonic()``.
        """
        if before == after:
            return {}
        if time.monotonic() > end:
            raise Refusal(413, "Difference: expected fewer changes, these take too long to compare.")
        old, new = self.nodes(before), self.nodes(after)
        changed: dict[str, tuple[str | None, str | None]] = {}
        for name in sorted({*old, *new}):
            old_node, new_node = old.get(name), new.get(name)
            if old_node == new_node:
                continue
            path = prefix + name
            if (old_node is not None and old_node.folder) or (new_node is not None and new_node.folder):
                inner = [node.oid if node is not None and node.folder else None for node in (old_node, new_node)]
                changed.update(self.difference(inner[0], inner[1], f"{path}/", end=end))
            files = [None if node is None or node.folder else node.oid for node in (old_node, new_node)]
            if files != [None, None]:
                changed[path] = (files[0], files[1])
        return changed


def position(path: str, node: Node) -> bytes:
    """Return the key by which a walk is ordered and continued."""
    return sort_key(path, node)
