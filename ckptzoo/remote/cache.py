"""Blocks and files that were fetched once, on disk under their digests; ``ckptzoo cache ls`` and ``prune``.

    <root>/<zoo>/address.json              the zoo's address
    <root>/<zoo>/revisions/<name>.json     which commit a revision was, and the files it holds; sealed
    <root>/<zoo>/blobs/<2 hex>/<digest>    bytes; of those whose digest nobody states, ``range-<hex of their place>``:
                                           their sha256, and then the bytes

Every file appears by one rename, and a blob is compared with its name whenever it is read, so a process that dies, a
machine that loses power, or two processes that fetch the same, leave nothing wrong behind. No lock is held while
anything is fetched. Blobs are copied when read, never mapped: removing or truncating one does no harm to a reader.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ckptzoo.errors import IntegrityError, Problem, UnknownNameError, ZooError
from ckptzoo.format import table
from ckptzoo.format.durable import regular
from ckptzoo.remote.stores import FileEntry, listed
from ckptzoo.schema.documents import MAX_BYTES, Document, seal, unseal

SCAN_SHARE = 32
"""A process makes room again whenever it has written 1/32 of the limit: each time reads the whole folder."""
ROOM_SHARE = 0.9
"""The share of the limit that is left when room is made."""
TOUCH_SECONDS = 60.0
"""The time of a blob's last use is exact to this many seconds; touching it at every read would write to the disk."""
TEMPORARY = ".tmp-"
"""How the names of files begin that are being written."""
GONE = "gone"
"""The name of a file that marks a zoo which cannot be fetched any more."""
_MAX_ADDRESS = 2**16
"""Bytes of ``address.json``."""
_DIGEST = re.compile(r"(sha256|git|range):[0-9a-f]{40,64}")
_RANGE, _SHA256_BYTES = "range:", 32


@dataclass(frozen=True)
class RevisionRecord:
    """Which commit, or digest of a listing, a revision was when it was looked up, and its files by name."""

    revision: str
    entries: dict[str, FileEntry]


class Cache:
    """The part of a cache that belongs to one zoo, bounded together with all others below the same root.

    ``root``, the folder of the whole cache, is made when first written to; ``address`` has no revision. ``limit``
    bounds the bytes of all blobs below the root; processes that write at the same time may exceed it by limit / 32
    each. With ``evicts`` blobs that were not used for longest are removed to make room; a process that is offline
    could not fetch them again.
    """

    def __init__(self, root: Path, address: str, *, limit: int, evicts: bool = True) -> None:
        self.root, self.address, self.limit, self.evicts = root, address, limit, evicts
        # a file system's name has at most 255 bytes; the digest tells apart what the slug has cut or replaced
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", address).strip(".-")[-80:]
        self.folder = root / f"{slug}-{hashlib.sha256(address.encode()).hexdigest()[:16]}"
        self._written: int | None = None
        self._broken = False

    def read(self, digest: str) -> bytes | None:
        """Return the bytes of a digest (``sha256:<hex>`` or ``git:<hex>``), or None; a damaged blob is removed.

        ``range:<hex>`` in place of a digest is a name for bytes whose digest nobody states; they have their own, which
        is that of the bytes as they came.
        """
        path = self._path(digest)
        try:
            with open(path, "rb", opener=regular) as file:
                data, used = file.read(), os.fstat(file.fileno()).st_mtime
        except OSError:
            return None
        own = digest
        if digest.startswith(_RANGE):
            own, data = f"sha256:{data[:_SHA256_BYTES].hex()}", data[_SHA256_BYTES:]
        if not is_right(own, data):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        if time.time() - used > TOUCH_SECONDS:
            with contextlib.suppress(OSError):
                os.utime(path)
        return data

    def holds(self, digest: str) -> bool:
        """Return whether there is a blob under this digest; it is not read, and may be damaged."""
        return self._path(digest).exists()

    def write(self, digest: str, data: bytes | memoryview) -> None:
        """Keep bytes that were checked; where the disk is full or may not be written, warn once and go on without."""
        path = self._path(digest)
        if self._broken or len(data) > self.limit or path.exists():
            return
        if self._written is None and not (self.folder / "address.json").exists():
            self._put_address()
        if self._written is None or self._written > self.limit // SCAN_SHARE:
            self._written = 0
            self._make_room(len(data))
        self._written += len(data)
        self._put(path, *([hashlib.sha256(data).digest()] if digest.startswith(_RANGE) else []), data)

    def remember(self, asked: str, record: RevisionRecord) -> None:
        """Keep what a revision is now, under the name that was asked for and under its own."""
        with contextlib.suppress(OSError):
            (self.folder / GONE).unlink(missing_ok=True)
        if self.remembered(asked) == record:
            return
        entries = {entry.name: [entry.size, entry.digest] for entry in record.entries.values()}
        content = {"asked": asked, "revision": record.revision, "entries": entries, "saved": time.time()}
        if len(data := seal(content)) > MAX_BYTES:
            return  # it would not be read
        self._put_address()
        for name in {asked, record.revision}:
            self._put(self._revision(name), data)

    def remembered(self, asked: str) -> RevisionRecord | None:
        """Return what a revision was when it was last looked up, or None; what is damaged counts as not there."""
        try:
            content = _sealed(self._revision(asked))
            if asked not in (content["asked"], content["revision"]):
                return None  # another revision's file under this name
            entries = [_entry(name, facts) for name, facts in content["entries"].items()]
            return RevisionRecord(_text(content["revision"]), listed(entries, location=self.address))
        except (IntegrityError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def mark_gone(self) -> None:
        """Note that the zoo is no longer where it was; from now on its blobs are kept when room is made."""
        if self.folder.is_dir():
            self._put(self.folder / GONE, b"")

    def _revision(self, name: str) -> Path:
        return self.folder / "revisions" / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"

    def _path(self, digest: str) -> Path:
        kind, _, digits = _checked_digest(digest).partition(":")
        return Path(f"{self.folder}/blobs/{digits[:2]}/{kind}-{digits}")

    def _put_address(self) -> None:
        self._put(self.folder / "address.json", json.dumps({"address": self.address}).encode())

    def _put(self, path: Path, *pieces: bytes | memoryview) -> None:
        """Write a file under a temporary name and rename it."""
        try:
            if not path.parent.exists():
                _make_folder(path.parent, self.root)
            # without fsync: what a loss of power leaves of the bytes has another digest, and is fetched again
            with temporary_file(path.parent) as (temporary, file):
                for piece in pieces:
                    file.write(piece)
                file.flush()
                temporary.replace(path)
        except FileNotFoundError:
            pass  # another process removed the folder: then it is not cached
        except OSError as error:
            self._on_write_error(error)

    def _on_write_error(self, error: OSError) -> None:
        """Warn that the cache cannot be written, and do not write to it again."""
        if not self._broken:
            self._broken = True
            reason = f"{self.root}: the cache cannot be written ({error.strerror or error}); reading goes on without"
            warnings.warn(f"{reason}. Make room, or name another folder in CKPTZOO_CACHE.", UserWarning, stacklevel=3)

    def _make_room(self, nbytes: int) -> None:
        """Remove what was not used for longest; one process at a time, the others skip it."""
        if not self.evicts:
            return
        try:
            _make_folder(self.root, self.root)
            with open(self.root / ".lock", "ab", opener=regular) as lock:
                # the kernel releases it when the process ends, however it ends
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                blobs = sorted(blobs_of(self.root, with_gone=False), key=lambda blob: (blob.used, blob.path))
                total = sum(blob.nbytes for blob in blobs_of(self.root)) + nbytes
                if total > self.limit:
                    for blob in blobs:
                        if total <= self.limit * ROOM_SHARE:
                            break
                        blob.path.unlink(missing_ok=True)
                        total -= blob.nbytes
                sweep(self.root)
        except OSError:
            return  # another process does it, or nothing may be removed


def is_right(digest: str, data: bytes | memoryview) -> bool:
    """Return whether bytes have this digest, ``sha256:<hex>`` or ``git:<hex>`` (git's id of a blob)."""
    kind, _, expected = digest.partition(":")
    # git hashes "blob <size>\0" before the bytes; FIPS builds of OpenSSL refuse sha1 that counts as security
    actual = hashlib.sha256() if kind == "sha256" else hashlib.sha1(b"blob %d\0" % len(data), usedforsecurity=False)
    actual.update(data)
    return actual.hexdigest() == expected


def _make_folder(folder: Path, root: Path) -> None:
    """Make a folder, and the root with a tag that tells backups to leave it out (https://bford.info/cachedir)."""
    folder.mkdir(parents=True, exist_ok=True)
    tag = root / "CACHEDIR.TAG"
    if not tag.exists():
        tag.write_text("Signature: 8a477f597d28d172789f06886806bc55\n# Fetched by ckptzoo; may be removed.\n")


@dataclass(frozen=True)
class CachedFile:
    """One file of bytes in the cache, with the time of its last use."""

    path: Path
    nbytes: int
    used: float


def blobs_of(root: Path, *, with_gone: bool = True) -> Iterator[CachedFile]:
    """Yield the blobs below a cache's root, or below one zoo's folder; ``with_gone`` includes zoos that are gone."""
    folders = [root] if (root / "blobs").is_dir() else sorted(root.iterdir()) if root.is_dir() else []
    for folder in folders:
        if not with_gone and (folder / GONE).exists():
            continue
        for path in folder.glob("blobs/*/*"):
            with contextlib.suppress(OSError):
                facts = path.lstat()
                # nothing here makes folders, links and pipes, and what they lead to is not the cache's
                if not path.name.startswith(TEMPORARY) and stat.S_ISREG(facts.st_mode):
                    yield CachedFile(path, facts.st_size, facts.st_mtime)


@contextlib.contextmanager
def temporary_file(folder: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Open a new file to write and rename, locked so that ``sweep`` leaves it alone; removed unless it was renamed."""
    while True:
        path = folder / f"{TEMPORARY}{secrets.token_hex(8)}"
        with path.open("xb") as file:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
            if not os.fstat(file.fileno()).st_nlink:
                continue  # swept between its making and its lock
            try:
                yield path, file
            finally:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
            return


def sweep(root: Path) -> None:
    """Remove files that were left half written by processes that died; those being written are locked."""
    for leftover in root.glob(f"*/**/{TEMPORARY}*"):
        with contextlib.suppress(OSError), open(leftover, "rb", opener=regular) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink(missing_ok=True)


@dataclass(frozen=True)
class CacheEntry:
    """The files of one zoo in the cache.

    Parameters
    ----------
    address
        of the zoo.
    folder
        in the cache.
    files, nbytes
        blocks and whole files, and their bytes.
    used
        when one of them was last used, in seconds since 1970; 0 where there is none.
    gone
        the zoo was not where it had been when it was last opened; its blobs are kept when room is made.
    revisions
        each commit or digest that was found, with the revision that was asked for; the last first.
    """

    address: str
    folder: Path
    files: int
    nbytes: int
    used: float
    gone: bool
    revisions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Pruned:
    """The number of files that were removed, or would be, and their bytes.

    Parameters
    ----------
    files
        how many.
    nbytes
        bytes of all of them.
    """

    files: int
    nbytes: int

    @classmethod
    def of(cls, blobs: list[CachedFile]) -> "Pruned":
        """These blobs.

        Parameters
        ----------
        blobs
            files of the cache.
        """
        return cls(len(blobs), sum(blob.nbytes for blob in blobs))


def cached_zoos(root: Path) -> list[CacheEntry]:
    """The files of every zoo in the cache, the one used last first.

    Parameters
    ----------
    root
        the cache's folder.
    """
    entries: list[CacheEntry] = []
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        if folder.is_dir():
            blobs = list(blobs_of(folder))
            used = max((blob.used for blob in blobs), default=0.0)
            nbytes = sum(blob.nbytes for blob in blobs)
            gone, revisions = (folder / GONE).exists(), _revisions(folder)
            entries.append(CacheEntry(_address(folder), folder, len(blobs), nbytes, used, gone, revisions))
    return sorted(entries, key=lambda item: (-item.used, item.address))


def prune(
    root: Path, *, address: str | None = None, max_bytes: int | None = None, before: float | None = None
) -> Pruned:
    """Remove from the cache what was asked for; parameters and errors are those of ``prunable``.

    Parameters
    ----------
    root
        the cache's folder.
    address
        as in ``prunable``.
    max_bytes
        as in ``prunable``.
    before
        as in ``prunable``.
    """
    blobs = prunable(root, address=address, max_bytes=max_bytes, before=before)
    for item in cached_zoos(root):
        if item.address == address:
            shutil.rmtree(item.folder, ignore_errors=True)
    for blob in blobs:
        with contextlib.suppress(OSError):
            blob.path.unlink(missing_ok=True)
    sweep(root)
    return Pruned.of(blobs)


def prunable(
    root: Path, *, address: str | None = None, max_bytes: int | None = None, before: float | None = None
) -> list[CachedFile]:
    """The files that would be removed from the cache, in the order of removal.

    Parameters
    ----------
    root
        the cache's folder.
    address
        all that belongs to this zoo, even if it cannot be fetched again.
    max_bytes
        bytes that may stay; what was not used for longest goes first.
    before
        blobs not used since, in seconds since 1970.

    Raises
    ------
    UnknownNameError
        The cache has nothing of this zoo.
    ZooError
        None of the three was given.
    """
    if address is None and max_bytes is None and before is None:
        raise ZooError(Problem("prune", "what to remove", "a zoo, a size or an age", "none", "Name one."))
    removed: list[CachedFile] = []
    if address is not None:
        known = {item.address: item for item in cached_zoos(root)}
        if address not in known:
            raise UnknownNameError(str(root), "zoo", address, list(known))
        removed += blobs_of(known[address].folder)
    already = {blob.path for blob in removed}
    total = sum(blob.nbytes for blob in blobs_of(root)) - sum(blob.nbytes for blob in removed)
    for blob in sorted(blobs_of(root, with_gone=False), key=lambda blob: (blob.used, blob.path)):
        is_due = (before is not None and blob.used < before) or (max_bytes is not None and total > max_bytes)
        if is_due and blob.path not in already:
            removed.append(blob)
            total -= blob.nbytes
    return removed


def _revisions(folder: Path) -> tuple[tuple[str, str], ...]:
    """Return ``CacheEntry.revisions`` from the files that can be read."""
    latest: dict[str, tuple[float, str]] = {}
    for path in sorted((folder / "revisions").glob("*.json")):
        try:
            content = _sealed(path)
            revision, asked, saved = _text(content["revision"]), _text(content["asked"]), float(content["saved"])
        except (IntegrityError, ValueError, KeyError, TypeError, OverflowError):
            continue
        latest[revision] = max(latest.get(revision, (0.0, "")), (saved, asked))
    newest = sorted(latest.items(), key=lambda item: (-item[1][0], item[0]))
    return tuple((revision, asked) for revision, (_, asked) in newest)


def _entry(name: str, facts: object) -> FileEntry:
    """Return a file of a revision, as ``Cache.remember`` writes it; ValueError for anything else."""
    # a bool is an int for Python, and no size
    match facts:
        case [int(size), None] if not isinstance(size, bool):
            return FileEntry(name, size)
        case [int(size), str(digest)] if not isinstance(size, bool):
            return FileEntry(name, size, _checked_digest(digest))
    raise ValueError(f"{facts!r}"[:80])


def _checked_digest(digest: str) -> str:
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"not a digest: {digest[:80]!r}")
    return digest


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"not a text: {value!r}"[:80])
    return value


def _sealed(path: Path) -> Document:
    """Return the content of a sealed document; IntegrityError where it is missing, too large or damaged."""
    content, _ = unseal(table.read_bytes(path, location=str(path), max_bytes=MAX_BYTES), location=str(path))
    return content


def _address(folder: Path) -> str:
    try:
        data = table.read_bytes(folder / "address.json", location=folder.name, max_bytes=_MAX_ADDRESS)
        return str(json.loads(data)["address"])
    except (IntegrityError, ValueError, KeyError, TypeError, RecursionError):
        return folder.name
