"""Ids of files, folders and commits, computed as git does."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_FOLDER, _FILE = "40000", "100644"


@dataclass(frozen=True)
class Node:
    """What a name in a folder stands for."""

    oid: str
    folder: bool


def object_id(kind: str, content: bytes) -> str:
    """``sha1(kind + " " + size + "\\0" + content)``, in hex; kind is ``blob``, ``tree`` or ``commit``."""
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def pointer(sha256: str, size: int) -> bytes:
    """The text that stands for a large file, by the Git LFS specification."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def sort_key(name: str, node: Node) -> bytes:
    """Names of folders sort as if they ended with ``/``."""
    return f"{name}/".encode() if node.folder else name.encode()


def tree_content(nodes: Mapping[str, Node]) -> bytes:
    """A folder as bytes: ``mode name \\0 id`` of each entry, sorted."""
    return b"".join(
        f"{_FOLDER if node.folder else _FILE} {name}\0".encode() + bytes.fromhex(node.oid)
        for name, node in sorted(nodes.items(), key=lambda item: sort_key(*item))
    )


def tree_nodes(content: bytes) -> dict[str, Node]:
    """The entries of a folder, in git's order."""
    nodes: dict[str, Node] = {}
    at = 0
    while at < len(content):
        end = content.index(b"\0", at)
        mode, name = content[at:end].decode().split(" ", 1)
        nodes[name] = Node(content[end + 1 : end + 21].hex(), mode == _FOLDER)
        at = end + 21
    return nodes


def commit_content(tree: str, parents: Iterable[str], author: str, seconds: int, message: str) -> bytes:
    """A commit as bytes."""
    person = f"{author} <{author}@localhost> {seconds} +0000"
    above = [f"tree {tree}", *(f"parent {parent}" for parent in parents), f"author {person}", f"committer {person}"]
    return ("\n".join(above) + f"\n\n{message}\n").encode()
