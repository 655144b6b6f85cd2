"""Bytes in files named by their sha256, which appear whole or not at all."""

import fcntl
import hashlib
import os
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ckptzoo.errors import Problem, ZooError
from ckptzoo.server.errors import Refusal

_CHUNK_BYTES = 2**20
"""Parts are joined this many bytes at a time."""


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(root: Path, *, shared: bool = False, seconds: float = 600) -> Iterator[float]:
    """Hold the lock of a folder's blobs; yield when it was acquired, by ``time.monotonic()``.

    It is ``shared`` with others to store and name blobs, and exclusive to remove some, for which ``seconds`` is the
    longest wait.

    Raises ZooError: others keep it, such as a backup.
    """
    descriptor = os.open(root / "blobs.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                # who waits to be alone does not keep others from sharing it
                fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    step = "Wait until the backup is made."
                    problem = Problem(str(root), "blobs", "nobody else who holds them", "somebody", step)
                    raise ZooError(problem) from None
                time.sleep(0.005)
        yield time.monotonic()
    finally:
        os.close(descriptor)


def named_blobs(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the sha256 and the size of every blob that a database names."""
    rows = connection.execute("SELECT sha256, size FROM files UNION SELECT sha256, size FROM contents ORDER BY sha256")
    return {row[0]: row[1] for row in rows}


class IncomingFile:
    """A file that is being written, with its digest so far."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.size, self._limit = path, 0, limit
        self._digest = hashlib.sha256()
        # closed to other users of the machine: repositories may be private
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")

    def write(self, data: bytes) -> None:
        """Append; refuse more bytes than were announced."""
        if self.size + len(data) > self._limit:
            raise Refusal(413, f"Body: expected at most {self._limit} bytes, got more.")
        self._file.write(data)
        self._digest.update(data)
        self.size += len(data)

    def finish(self) -> str:
        """Flush to the disk and return the sha256."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._digest.hexdigest()

    def discard(self) -> None:
        """Remove it, if it is still there."""
        try:
            self._file.close()
        except OSError:  # closing flushes first, which fails on a full disk
            self._file.close()
        finally:
            self.path.unlink(missing_ok=True)


class Blobs:
    """The folders ``blobs/`` (complete files, never changed) and ``incoming/`` (files that are being written).

    Unfinished files of an earlier process are removed.

    A blob is flushed, renamed into place, and its folder flushed, before its name is given to anyone.
    ``test_killed_at_any_moment`` in ``tests/server/test_durability.py`` kills the process meanwhile.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._blobs, self._incoming = root, root / "blobs", root / "incoming"
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._flushed = {folder.name for folder in self._blobs.iterdir()}
        """Folders of blobs whose own names are on the disk: those found here once ``blobs/`` is flushed below."""
        self._uploads: dict[str, tuple[str, float]] = {}
        """Uploads in parts that are in progress, the oldest first: the contributor, and when they began."""
        self._lock = threading.Lock()
        shutil.rmtree(self._incoming, ignore_errors=True)
        self._incoming.mkdir()
        # an earlier version let other users of the machine read them
        for folder in (self._blobs, self._incoming):
            folder.chmod(0o700)
        sync(self._blobs)
        sync(root)

    def path(self, sha256: str) -> Path:
        """Return the path of a complete blob."""
        return self._blobs / sha256[:2] / sha256

    def held(self) -> AbstractContextManager[float]:
        """Hold the shared lock while blobs are named, so that none of them is removed; see ``garbage``."""
        return locked(self._root, shared=True)

    def touch(self, *digests: str) -> bool:
        """Make stored blobs as young as new ones; return whether all of them are there."""
        with self.held():
            try:
                for sha256 in digests:
                    os.utime(self.path(sha256))
            except FileNotFoundError:
                return False
            return True

    def arrive(self, limit: int) -> IncomingFile:
        """Begin a file of at most ``limit`` bytes."""
        return IncomingFile(self._incoming / secrets.token_hex(16), limit)

    def keep(self, arriving: IncomingFile, sha256: str, size: int) -> None:
        """Put a finished file in its place if it matches the announced size and digest.

        Raises Refusal: the size or the digest differ; the file is gone.
        """
        try:
            digest = arriving.finish()
            if (digest, arriving.size) != (sha256, size):
                message = f"Content: expected {size} bytes with sha256 {sha256}, got {arriving.size} with {digest}."
                raise Refusal(422, message)
            target = self.path(sha256)
            # several threads may make the same folder; each relies on it only when its name is on the disk
            if target.parent.name not in self._flushed:
                target.parent.mkdir(exist_ok=True)
                sync(self._blobs)
                self._flushed.add(target.parent.name)
            with self.held():
                arriving.path.replace(target)
            # a rename is on the disk once its folder is (fsync(2))
            sync(target.parent)
        finally:
            arriving.discard()

    def add(self, data: bytes) -> str:
        """Store bytes that are in memory; return their sha256."""
        sha256 = hashlib.sha256(data).hexdigest()
        if not self.touch(sha256):
            arriving = self.arrive(len(data))
            try:
                arriving.write(data)
                self.keep(arriving, sha256, len(data))
            finally:
                arriving.discard()
        return sha256

    def begin_upload(self, contributor: str = "", limit: int = 0) -> str:
        """Begin an upload in parts; return its id. Where a contributor has ``limit`` of them, the oldest ends."""
        upload = secrets.token_hex(16)
        with self._lock:
            begun = [name for name, (owner, _) in self._uploads.items() if contributor and owner == contributor]
            for name in begun[: max(len(begun) + 1 - limit, 0)]:
                self._end_upload(name)
            self._uploads[upload] = contributor, time.time()
        return upload

    def _end_upload(self, upload: str) -> None:
        self._uploads.pop(upload, None)
        shutil.rmtree(self._folder(upload), ignore_errors=True)

    def _folder(self, upload: str) -> Path:
        return self._incoming / f"parts-{upload}"

    def arrive_part(self, upload: str, limit: int) -> IncomingFile:
        """Begin a part of at most ``limit`` bytes."""
        folder = self._folder(upload)
        with self._lock:
            if upload not in self._uploads:
                raise Refusal(404, "Upload: expected one under way, got one that ended. Start it again.")
            folder.mkdir(exist_ok=True)
        return IncomingFile(folder / secrets.token_hex(16), limit)

    def keep_part(self, arriving: IncomingFile, number: int, size: int) -> str:
        """Put a finished part in its place; return its ETag. A repeated part replaces the earlier one."""
        try:
            digest = arriving.finish()
            if arriving.size != size:
                raise Refusal(422, f"Part {number}: expected {size} bytes, got {arriving.size}.")
            # nothing is flushed beyond the file: uploads in parts end with the process
            arriving.path.replace(arriving.path.with_name(f"{number}-{digest}"))
            return digest
        finally:
            arriving.discard()

    def join(self, upload: str, etags: list[str], sha256: str, size: int) -> None:
        """Make the blob from all parts of an upload, in order. Parts are required even of a stored blob, because a
        client that knows its digest may not have its bytes.
        """
        folder = self._folder(upload)
        paths = [folder / f"{number}-{etag}" for number, etag in enumerate(etags, 1)]
        missing = [number for number, path in enumerate(paths, 1) if not path.is_file()]
        if missing:
            raise Refusal(400, f"Parts: expected all {len(etags)}, part {missing[0]} is missing or is another one.")
        arriving = self.arrive(size)
        try:
            for path in paths:
                for chunk in _chunks(path):
                    arriving.write(chunk)
            self.keep(arriving, sha256, size)
        finally:
            arriving.discard()
        with self._lock:
            self._end_upload(upload)

    def sweep(self, seconds: float) -> None:
        """Remove uploads in parts to which nothing was added for ``seconds``."""
        with self._lock:
            for upload, (_, begun) in list(self._uploads.items()):
                folder = self._folder(upload)
                if (folder.stat().st_mtime if folder.is_dir() else begun) < time.time() - seconds:
                    self._end_upload(upload)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
