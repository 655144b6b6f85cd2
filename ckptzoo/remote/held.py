"""Where the cache is, what it holds, and making room in it: ``ckptzoo cache ls`` and ``prune``."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.remote.cache import GONE, Blob, blobs_of, sweep

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
    return bytes_of(text, where="CKPTZOO_CACHE_SIZE") if text else DEFAULT_LIMIT


def is_offline(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether ``$CKPTZOO_OFFLINE`` or ``$HF_HUB_OFFLINE`` says that the network is not to be used."""
    return any(environment.get(name, "").lower() in _TRUE for name in ("CKPTZOO_OFFLINE", "HF_HUB_OFFLINE"))


def bytes_of(text: str, *, where: str) -> int:
    """A size as a person writes it, in bytes.

    Raises
    ------
    ZooError
        It is no size.
    """
    matched = _SIZE.fullmatch(text)
    if matched is None:
        raise ZooError(f"{where}: size: expected, for example, 20GB or 512MiB, got {text!r}. Correct it.")
    return int(float(matched[1]) * (1024 if matched[3] else 1000) ** " kMGT".index(matched[2] or " "))


@dataclass(frozen=True)
class Held:
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


def held(root: Path) -> list[Held]:
    """What the cache has of every zoo, the one used last first."""
    made: list[Held] = []
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        if folder.is_dir():
            blobs = list(blobs_of(folder))
            used = max((blob.used for blob in blobs), default=0.0)
            nbytes = sum(blob.nbytes for blob in blobs)
            gone, revisions = (folder / GONE).exists(), _revisions(folder)
            made.append(Held(_address(folder), folder, len(blobs), nbytes, used, gone, revisions))
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
