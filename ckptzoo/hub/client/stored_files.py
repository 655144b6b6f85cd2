"""Whether a hub already has a file: the one rule, for bytes and for files of this machine."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ckptzoo.hub.client.models import RepoFile


@dataclass(frozen=True)
class LocalFile:
    """One file of this machine: its path, its size in bytes, and its sha256 in hex."""

    path: Path
    size: int
    sha256: str


def is_stored(content: bytes | LocalFile, stored: RepoFile | None) -> bool:
    """Whether a file of a repository has this content; False where the repository has no such file.

    The size and the sha256 decide, or git's id of the content where the hub gives no sha256, or the size alone where it
    gives neither. A local file is read only where the hub gives no sha256 of a file of the same size.
    """
    size = len(content) if isinstance(content, bytes) else content.size
    if stored is None or stored.size != size:
        return False
    if stored.sha256 is not None:
        return _sha256(content) == stored.sha256
    return stored.oid is None or _git_id(content) == stored.oid


def _sha256(content: bytes | LocalFile) -> str:
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else content.sha256


def _git_id(content: bytes | LocalFile) -> str:
    """Return the id that git gives a file of this content: the sha1 of a header and the bytes."""
    data = content if isinstance(content, bytes) else content.path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
