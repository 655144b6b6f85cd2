"""The folder that a zoo is pulled into: whose it is, what was asked, and what lies there unfinished.

What the folder holds already of what is pulled into it, and what must not come into it.

Where a pull keeps the blocks that it has fetched, until the part that needs them is there.
"""

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.format.durable import TEMPORARY, sync, write_file
from ckptzoo.format.files import Folder
from ckptzoo.format.part import Part
from ckptzoo.format.reader import list_trees, read_tree
from ckptzoo.format.tree import Tree, empty_tree
from ckptzoo.hub.pull.selection import described
from ckptzoo.remote.cache import Cache
from ckptzoo.schema import layout
from ckptzoo.schema.documents import Document, seal, unseal
from ckptzoo.schema.layout import DERIVED, PARTS, RETRACTED

OWN = ".ckptzoo-pull"
"""A pull's own folder inside the zoo's, whose name keeps it from being a part of the zoo."""
ASKED = "asked.json"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Destination:
    """The folder that a zoo is pulled into, held against other pulls.

    Attributes
    ----------
    root : the zoo's folder.
    parts : where parts lie that are copied byte by byte, until they are whole.
    blocks : where blocks lie, until the part that is made of them is there.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.own = root, root / OWN
        self.parts, self.blocks = self.own / "parts" / root.name, self.own / "blocks"

    def finish(self) -> None:
        """Remove what was needed only meanwhile; what was asked for stays, for the next pull to compare."""
        for folder in (self.parts.parent, self.blocks):
            shutil.rmtree(folder, ignore_errors=True)


def refuse(root: Path, zoo: bytes, *, begun: bool) -> None:
    """Raise unless a zoo may be pulled into a folder: it is not there, empty, or holds this zoo or a beginning of it.

    Parameters
    ----------
    zoo : the bytes of zoo.json, as they are to be there.
    begun : the folder notes this pull, which may have ended before zoo.json was there.

    Raises
    ------
    ZooError
        Something else is there.
    """
    step = "Name another folder."
    if root.exists() and not root.is_dir():
        raise ZooError(Problem(str(root), "a folder to pull into", "a folder or none", "a file", step))
    if (root / OWN).is_symlink():  # what lies there is removed in the end
        raise ZooError(Problem(f"{root}/{OWN}", "a pull's own folder", "a folder", "a link", "Remove it."))
    there = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    held = root / layout.ZOO
    if held.is_file() and held.read_bytes() != zoo:
        raise ZooError(Problem(str(root), layout.ZOO, "that of the zoo to pull", "that of another", step))
    own = {OWN, *(layout.DOCUMENTS[:-1] if begun else ())}
    others = [name for name in there if name not in own and not name.startswith(TEMPORARY)]
    if not held.is_file() and others:
        got = f"one with {others[0]}" + (f" and {len(others) - 1} more" if len(others) > 1 else "")
        raise ZooError(Problem(str(root), "a folder to pull into", "a zoo or an empty folder", got, step))


@contextmanager
def locked_destination(root: Path, zoo: bytes, selection: Document, *, partial: bool) -> Iterator[Destination]:
    """The folder for one pull, which notes there what was asked for.

    Parameters
    ----------
    root : the zoo's folder; made where there is none.
    zoo : the bytes of zoo.json, as they are to be there.
    selection : what is asked for, and under ``zoo`` the digest of what it is asked of.
    partial : whether that is less than everything.

    Raises
    ------
    ZooError
        Another pull is at work there, or the folder holds something else, or another selection of the zoo.
    """
    place = Destination(root)
    refuse(root, zoo, begun=_same(place, selection))
    place.own.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(place.own, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            step = "Wait until it has ended, or name another folder."
            raise ZooError(Problem(str(root), "pull", "one at a time", "another at work", step)) from None
        begun = _same(place, selection)
        refuse(root, zoo, begun=begun)
        if not begun:
            if partial and (root / layout.ZOO).is_file():
                got, step = "one that was not pulled with these options", "Name another folder."
                raise ZooError(Problem(str(root), "a folder to pull into", "an empty folder", got, step))
            write_file(place.own / ASKED, seal(selection))
        yield place
    finally:
        os.close(descriptor)


def _same(place: Destination, selection: Document) -> bool:
    """Whether the folder notes this selection; raises where it notes another one of the same zoo."""
    note = place.own / ASKED
    try:
        held, _ = unseal(note.read_bytes(), location=str(note))
    except (OSError, IntegrityError):
        return False
    if held.get("zoo") == selection.get("zoo") and held != selection:
        got, step = described(selection), "Name another folder for other options."
        raise ZooError(Problem(str(place.root), "what is pulled here", described(held), got, step))
    return held == selection


def need_room(root: Path, nbytes: int) -> None:
    """Raise OSError (ENOSPC) unless so many bytes more fit on the disk."""
    free = shutil.disk_usage(root).free
    if nbytes > free:
        raise _no_room(root, nbytes, f"{free:,}", errno.ENOSPC)


@contextmanager
def explain_disk_full(root: Path, nbytes: int) -> Iterator[None]:
    """Say of a full disk how many bytes were needed."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL and error.filename != str(root):
            raise _no_room(root, nbytes, error.strerror or "none", error.errno) from error
        raise


def _no_room(root: Path, nbytes: int, got: str, number: int) -> OSError:
    said = f"room on the disk: expected {nbytes:,} bytes, got {got}. Make room and repeat; what was fetched is kept"
    return OSError(number, f"{said}.", str(root))


def publish(folder: Path, target: Path) -> None:
    """Flush a folder and give it its name in the zoo, whole."""
    for path in folder.iterdir():
        sync(path)
    sync(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder.rename(target)
    sync(target.parent)


class PulledParts:
    """The parts of a zoo's folder.

    Attributes
    ----------
    trees : every tree's parts and rows, as they were at the start.
    sources : the parts that were cut from others, under their tree and the digest of the part they were cut from.
    """

    def __init__(self, root: Path) -> None:
        files = Folder(root)
        self._root = root
        self.trees: dict[str, Tree] = {
            tree: read_tree(files, tree, names, None) for tree, names in list_trees(files).items() if names
        }
        self._ids = {tree: set(found.rows["id"].to_pylist()) for tree, found in self.trees.items()}
        self.sources: dict[tuple[str, str], Part] = {}
        for tree, found in self.trees.items():
            for part in found.parts:
                if isinstance(pulled := part.facts.get("pulled"), dict):
                    self.sources[tree, str(pulled.get("part"))] = part

    def parts(self) -> set[str]:
        """The parts' folders, from the zoo's."""
        return {part.path for found in self.trees.values() for part in found.parts}

    def count(self, tree: str) -> int:
        """How many checkpoints a tree has."""
        return len(self._ids.get(tree, ()))

    def add(self, tree: str, rows: list[dict[str, Any]]) -> None:
        """Note the rows of a part that is about to appear.

        Raises
        ------
        ZooError
            The folder has one of the checkpoints from elsewhere.
        """
        held = self._ids.setdefault(tree, set())
        ids = {str(row["id"]) for row in rows}
        if tree != f"{DERIVED}/{RETRACTED}" and (again := sorted(ids & held)):
            where, got = (
                f"{self._root}/{tree}",
                f"{len(again)} that this folder has from elsewhere, such as {again[0]!r}",
            )
            step = "Pull into another folder."
            raise ZooError(Problem(where, "checkpoints", "new ones", got, step))
        held.update(ids)

    def lacking_tombstones(self, retracted: Tree) -> pa.Table:
        """Retractions of checkpoints that this folder holds, which it does not know yet."""
        held = self._ids.get(PARTS, set())
        known = set(self.trees.get(f"{DERIVED}/{RETRACTED}", empty_tree()).rows["id"].to_pylist())
        ids = retracted.rows["id"].to_pylist()
        wanted = [at for at, name in enumerate(ids) if name in held and name not in known]
        return retracted.metadata.take(pa.array(wanted, pa.int64()))


_NO_LIMIT = 2**62


class BlockCache(Cache):
    """A cache for one pull, without bound, below which lies the cache that all readers share.

    Parameters
    ----------
    root : a folder of the pull's own.
    shared : what was read from afar before may be here; nothing is added to it.
    keeps : whether blocks are kept here; a reader that puts every block in its place at once needs none kept.

    Attributes
    ----------
    fetched : bytes that came from afar.
    """

    def __init__(self, root: Path, shared: Cache | None, *, keeps: bool) -> None:
        super().__init__(root, "pull", limit=_NO_LIMIT, evicts=False)
        self._shared, self._keeps = shared, keeps
        self._lock = threading.Lock()
        self.fetched = 0

    def read(self, digest: str) -> bytes | None:
        """The bytes of a digest, from either cache, or None."""
        own = super().read(digest)
        return self._shared.read(digest) if own is None and self._shared is not None else own

    def holds(self, digest: str) -> bool:
        """Whether either cache has bytes under this digest, right or wrong."""
        return super().holds(digest) or (self._shared is not None and self._shared.holds(digest))

    def write(self, digest: str, data: bytes | memoryview) -> None:
        """Count bytes that came from afar, and keep them."""
        self.count(len(data))
        if self._keeps:
            super().write(digest, data)

    def _unwritten(self, error: OSError) -> None:
        """A pull ends here: what it fetches and does not keep it would have to fetch again."""
        raise error

    def count(self, nbytes: int) -> None:
        """So many bytes more came from afar."""
        with self._lock:
            self.fetched += nbytes

    def clear(self) -> None:
        """Forget what is kept here; what is being written meanwhile is lost, which harms nobody."""
        shutil.rmtree(self.root, ignore_errors=True)
