"""Blocks and files that were fetched once, on disk under their digests.

    <root>/<zoo>/address.json              which zoo this is
    <root>/<zoo>/revisions/<name>.json     what a revision was found to be, and the files it holds
    <root>/<zoo>/blobs/<2 hex>/<digest>    bytes

Every file appears by one rename, and a blob is compared with its name whenever it is read, so a process that dies, a
machine that loses power, or two processes that fetch the same, leave nothing wrong behind. No lock is held while
anything is fetched. Blobs are copied when read, never mapped: whoever removes or cuts one harms no reader.

Where the cache is, what it holds, and making room in it: ``ckptzoo cache ls`` and ``prune``.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.remote.stores import FileEntry

TEMPORARY = ".tmp-"
SCAN_SHARE = 32
"""Room is made anew whenever a process has written the limit over this."""
ROOM_SHARE = 0.9
"""Of the limit, what stays when room is made."""
TOUCH_SECONDS = 60.0
"""A blob's time of use is exact to this."""
GONE = "gone"
"""A file of this name says that the zoo cannot be fetched any more."""
_DIGEST = re.compile(r"(sha256|git)-[0-9a-f]{40,64}")


@dataclass(frozen=True)
class RevisionRecord:
    """What a revision was found to be."""

    revision: str
    entries: dict[str, FileEntry]


class Cache:
    """The part of a cache that belongs to one zoo, bounded together with all others below the same root.

    Parameters
    ----------
    root : of the whole cache; made when first written to.
    address : the zoo, without revision.
    limit : bytes of all blobs below the root. It may be exceeded by what processes write at the same time, up to
        limit / 32 each.
    evicts : whether room may be made by removing what was not used for longest; never so in a process that could not
        fetch it again.
    """

    def __init__(self, root: Path, address: str, *, limit: int, evicts: bool = True) -> None:
        self.root, self.address, self.limit, self.evicts = root, address, limit, evicts
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", address).strip(".-")[-80:]
        self.folder = root / f"{slug}-{hashlib.sha256(address.encode()).hexdigest()[:16]}"
        self._written: int | None = None
        self._broken = False

    def read(self, digest: str) -> bytes | None:
        """The bytes of a digest (``sha256:<hex>`` or ``git:<hex>``), or None; those that are not right are removed."""
        path = self._path(digest)
        try:
            with path.open("rb") as file:
                data, used = file.read(), os.fstat(file.fileno()).st_mtime
        except OSError:
            return None
        if not is_right(digest, data):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        if time.time() - used > TOUCH_SECONDS:
            with contextlib.suppress(OSError):
                os.utime(path)
        return data

    def holds(self, digest: str) -> bool:
        """Whether there are bytes under this digest, right or wrong."""
        return self._path(digest).exists()

    def write(self, digest: str, data: bytes | memoryview) -> None:
        """Keep bytes that were checked; where the disk is full or may not be written, warn once and go on without."""
        path = self._path(digest)
        if self._broken or len(data) > self.limit or path.exists():
            return
        if self._written is None or self._written > self.limit // SCAN_SHARE:
            self._written = 0
            self._make_room(len(data))
        self._written += len(data)
        self._put(path, data)

    def remember(self, asked: str, found: RevisionRecord) -> None:
        """Keep what a revision was found to be."""
        with contextlib.suppress(OSError):
            (self.folder / GONE).unlink(missing_ok=True)
        if self.remembered(asked) == found:
            return
        listed = {entry.name: [entry.size, entry.digest] for entry in found.entries.values()}
        content = {"asked": asked, "revision": found.revision, "entries": listed, "saved": time.time()}
        self._put(self.folder / "address.json", json.dumps({"address": self.address}).encode())
        for name in {asked, found.revision}:
            self._put(self._revision(name), json.dumps(content).encode())

    def remembered(self, asked: str) -> RevisionRecord | None:
        """What a revision was found to be when it was last looked up, or None."""
        try:
            content: Any = json.loads(self._revision(asked).read_bytes())
            entries = {name: FileEntry(name, *facts) for name, facts in content["entries"].items()}
            return RevisionRecord(str(content["revision"]), entries)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def mark_gone(self) -> None:
        """Note that the zoo is no longer where it was; from now on its blobs are kept when room is made."""
        if self.folder.is_dir():
            self._put(self.folder / GONE, b"")

    def _revision(self, name: str) -> Path:
        return self.folder / "revisions" / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"

    def _path(self, digest: str) -> Path:
        name = digest.replace(":", "-")
        if not _DIGEST.fullmatch(name):
            raise ValueError(f"not a digest: {digest[:80]!r}")
        return self.folder / "blobs" / name.partition("-")[2][:2] / name

    def _put(self, path: Path, data: bytes | memoryview) -> None:
        """A file under a temporary name, locked while it is written, then renamed."""
        temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
        try:
            _make(path.parent, self.root)
            with temporary.open("xb") as file:
                with contextlib.suppress(OSError):  # some network file systems have no locks
                    fcntl.flock(file, fcntl.LOCK_EX)
                file.write(data)
                file.flush()
                temporary.replace(path)
        except FileNotFoundError:
            pass  # another process removed the folder or took the file for a leftover: it is not cached, that is all
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            self._unwritten(error)

    def _unwritten(self, error: OSError) -> None:
        """Told of what could not be written: say so once, and go on without."""
        if not self._broken:
            self._broken = True
            said = f"{self.root}: the cache cannot be written ({error.strerror or error}); reading goes on without"
            warnings.warn(f"{said}. Make room, or name another folder in CKPTZOO_CACHE.", UserWarning, stacklevel=3)

    def _make_room(self, nbytes: int) -> None:
        """Remove what was not used for longest; one process at a time, the others go on."""
        if not self.evicts:
            return
        try:
            _make(self.root, self.root)
            with (self.root / ".lock").open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                blobs = sorted(blobs_of(self.root, kept=False), key=lambda blob: (blob.used, blob.path))
                total = sum(blob.nbytes for blob in blobs_of(self.root)) + nbytes
                if total > self.limit:
                    for blob in blobs:
                        if total <= self.limit * ROOM_SHARE:
                            break
                        blob.path.unlink(missing_ok=True)
                        total -= blob.nbytes
                sweep(self.root)
        except OSError:
            return  # another process is at it, or nothing may be removed


@dataclass(frozen=True)
class Blob:
    """One file of bytes in the cache, with the time of its last use."""

    path: Path
    nbytes: int
    used: float


def is_right(digest: str, data: bytes | memoryview) -> bool:
    """Whether bytes have this digest, ``sha256:<hex>`` or ``git:<hex>`` (sha1 of git's blob)."""
    kind, _, expected = digest.partition(":")
    made = hashlib.sha256() if kind == "sha256" else hashlib.sha1(b"blob %d\0" % len(data), usedforsecurity=False)
    made.update(data)
    return made.hexdigest() == expected


def blobs_of(root: Path, *, kept: bool = True) -> Iterator[Blob]:
    """Every blob below a cache's root, or below one zoo's folder; without ``kept`` not those of zoos that are gone."""
    folders = [root] if (root / "blobs").is_dir() else sorted(root.iterdir()) if root.is_dir() else []
    for folder in folders:
        if not kept and (folder / GONE).exists():
            continue
        for path in folder.glob("blobs/*/*"):
            with contextlib.suppress(OSError):
                if not path.name.startswith(TEMPORARY):
                    found = path.stat()
                    yield Blob(path, found.st_size, found.st_mtime)


def sweep(root: Path) -> None:
    """Remove files that processes which died left half written; those being written are locked."""
    for left in root.glob(f"*/**/{TEMPORARY}*"):
        with contextlib.suppress(OSError), left.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink(missing_ok=True)


def _make(folder: Path, root: Path) -> None:
    """The folder, with a note in the root that tells backups to leave it out."""
    folder.mkdir(parents=True, exist_ok=True)
    tag = root / "CACHEDIR.TAG"
    if not tag.exists():
        tag.write_text("Signature: 8a477f597d28d172789f06886806bc55\n# Fetched by ckptzoo; may be removed.\n")


DEFAULT_LIMIT = 32 * 2**30
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?\s*")
_TRUE = ("1", "on", "yes", "true")


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """``$CKPTZOO_CACHE``, else ``$HF_HOME/ckptzoo``, else ``$XDG_CACHE_HOME/ckptzoo``, else ``~/.cache/ckptzoo``."""
    if named := environment.get("CKPTZOO_CACHE"):
        return Path(named).expanduser().absolute()
    above = environment.get("HF_HOME") or environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(above).expanduser().absolute() / "ckptzoo"


def cache_limit(environment: Mapping[str, str] = os.environ) -> int:
    """Bytes from ``$CKPTZOO_CACHE_SIZE`` (``20GB``, ``512MiB``), else 32 GiB."""
    text = environment.get("CKPTZOO_CACHE_SIZE")
    return parse_size(text, location="CKPTZOO_CACHE_SIZE") if text else DEFAULT_LIMIT


def is_offline(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether ``$CKPTZOO_OFFLINE`` or ``$HF_HUB_OFFLINE`` says that the network is not to be used."""
    return any(environment.get(name, "").lower() in _TRUE for name in ("CKPTZOO_OFFLINE", "HF_HUB_OFFLINE"))


def parse_size(text: str, *, location: str) -> int:
    """A size as a person writes it, in bytes.

    Raises
    ------
    ZooError
        It is no size.
    """
    matched = _SIZE.fullmatch(text)
    if matched is None:
        raise ZooError(f"{location}: size: expected, for example, 20GB or 512MiB, got {text!r}. Correct it.")
    return int(float(matched[1]) * (1024 if matched[3] else 1000) ** " kMGT".index(matched[2] or " "))


@dataclass(frozen=True)
class CacheEntry:
    """What the cache has of one zoo.

    Parameters
    ----------
    address : of the zoo.
    folder : in the cache.
    files, nbytes : blocks and whole files, and their bytes.
    used : when one of them was last used, in seconds since 1970; 0 where there is none.
    gone : the zoo was not where it had been when it was last opened; its blobs are kept when room is made.
    revisions : what was found when it was looked up and what had been asked for, the last first.
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
    """What was removed, or would be."""

    files: int
    nbytes: int

    @classmethod
    def of(cls, blobs: list[Blob]) -> "Pruned":
        """These blobs."""
        return cls(len(blobs), sum(blob.nbytes for blob in blobs))


def held(root: Path) -> list[CacheEntry]:
    """What the cache has of every zoo, the one used last first."""
    made: list[CacheEntry] = []
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        if folder.is_dir():
            blobs = list(blobs_of(folder))
            used = max((blob.used for blob in blobs), default=0.0)
            nbytes = sum(blob.nbytes for blob in blobs)
            gone, revisions = (folder / GONE).exists(), _revisions(folder)
            made.append(CacheEntry(_address(folder), folder, len(blobs), nbytes, used, gone, revisions))
    return sorted(made, key=lambda item: (-item.used, item.address))


def prune(root: Path, *, address: str | None = None, most: int | None = None, before: float | None = None) -> Pruned:
    """Remove from the cache what was asked for; parameters and errors are those of ``prunable``."""
    gone = prunable(root, address=address, most=most, before=before)
    for item in held(root):
        if item.address == address:
            shutil.rmtree(item.folder, ignore_errors=True)
    for blob in gone:
        with contextlib.suppress(OSError):
            blob.path.unlink(missing_ok=True)
    sweep(root)
    return Pruned.of(gone)


def prunable(
    root: Path, *, address: str | None = None, most: int | None = None, before: float | None = None
) -> list[Blob]:
    """What would be removed from the cache, in the order in which it would be.

    Parameters
    ----------
    address : all that belongs to this zoo, even if it cannot be fetched again.
    most : bytes that may stay; what was not used for longest goes first.
    before : blobs not used since, in seconds since 1970.

    Raises
    ------
    UnknownNameError
        The cache has nothing of this zoo.
    ZooError
        None of the three was given.
    """
    if address is None and most is None and before is None:
        raise ZooError("prune: what to remove: expected a zoo, a size or an age, got none. Name one.")
    gone: list[Blob] = []
    if address is not None:
        known = {item.address: item for item in held(root)}
        if address not in known:
            raise UnknownNameError(str(root), "zoo", address, list(known))
        gone += blobs_of(known[address].folder)
    own = {blob.path for blob in gone}
    total = sum(blob.nbytes for blob in blobs_of(root)) - sum(blob.nbytes for blob in gone)
    for blob in sorted(blobs_of(root, kept=False), key=lambda blob: (blob.used, blob.path)):
        late = (before is not None and blob.used < before) or (most is not None and total > most)
        if late and blob.path not in own:
            gone.append(blob)
            total -= blob.nbytes
    return gone


def _revisions(folder: Path) -> tuple[tuple[str, str], ...]:
    found: dict[str, tuple[float, str]] = {}
    for path in sorted((folder / "revisions").glob("*.json")):
        try:
            content = json.loads(path.read_bytes())
            revision, asked, saved = str(content["revision"]), str(content["asked"]), float(content["saved"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        found[revision] = max(found.get(revision, (0.0, "")), (saved, asked))
    newest = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
    return tuple((revision, asked) for revision, (_, asked) in newest)


def _address(folder: Path) -> str:
    try:
        return str(json.loads((folder / "address.json").read_bytes())["address"])
    except (OSError, ValueError, KeyError, TypeError):
        return folder.name
