"""The folder that a zoo is pulled into: its lock, what it holds already, disk space, and the blocks fetched so far."""

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.format.durable import TEMPORARY, sync, write_file
from ckptzoo.format.files import Folder
from ckptzoo.format.part import Part
from ckptzoo.format.reader import Contents, read_trees
from ckptzoo.format.tree import Tree, empty_tree, places_of
from ckptzoo.hub.pull.selection import describe
from ckptzoo.remote.cache import Cache
from ckptzoo.schema import layout
from ckptzoo.schema.documents import Document, seal, unseal
from ckptzoo.schema.layout import DERIVED, PARTS, RETRACTED

PULL_FOLDER = ".ckptzoo-pull"
"""A pull's own folder inside the zoo's. Stores, listings and ``verify`` leave out names that begin with a dot."""
SELECTION_FILE = "asked.json"
"""The selection, in the pull's own folder, so that another one is not pulled into the same zoo."""
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A full disk, a used-up quota, and the limit on the size of one file (``RLIMIT_FSIZE``)."""
_NO_LIMIT = 2**62
_RETRACTED_TREE = f"{DERIVED}/{RETRACTED}"


class Destination:
    """The folder that a zoo is pulled into.

    Its own folder, ``pull_folder``, has parts that are copied byte for byte, until they are complete
    (``staged_parts``), and fetched ``blocks``, until the part that is written from them exists.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.pull_folder = root, root / PULL_FOLDER
        # Messages name a zoo by its folder, so the folder of the staged parts has the same name.
        self.staged_parts, self.blocks = self.pull_folder / "parts" / root.name, self.pull_folder / "blocks"

    def remove_temporary(self) -> None:
        """Remove what only this pull needed; the selection stays, for the next pull to compare."""
        for folder in (self.staged_parts.parent, self.blocks):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked_destination(root: Path, zoo: bytes, selection: Document, *, partial: bool) -> Iterator[Destination]:
    """Lock the folder for one pull, with the selection stored in it; it is made where it does not exist.

    ``zoo`` are the final bytes of zoo.json. ``selection`` has under ``zoo`` the digest of the zoo that it is selected
    from; ``partial`` says that it is less than everything. Raises ``ZooError`` where another pull is at work there, or
    the folder holds something else, or another selection of the zoo.
    """
    destination = Destination(root)
    check_folder(root, zoo, begun=_has_selection(destination, selection))
    destination.pull_folder.mkdir(parents=True, exist_ok=True)
    # flock(2) locks folders too, so that no file of its own is needed
    descriptor = os.open(destination.pull_folder, os.O_RDONLY)
    try:
        try:
            # The kernel releases the lock when the process ends, however it ends.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            step = "Wait until it has ended, or name another folder."
            raise ZooError(Problem(str(root), "pull", "one at a time", "another at work", step)) from None
        begun = _has_selection(destination, selection)
        check_folder(root, zoo, begun=begun)  # again: another pull may have ended between the first check and the lock
        if not begun:
            if partial and (root / layout.ZOO).is_file():
                got, step = "one that was not pulled with these options", "Name another folder."
                raise ZooError(Problem(str(root), "a folder to pull into", "an empty folder", got, step))
            write_file(destination.pull_folder / SELECTION_FILE, seal(selection))
        yield destination
    finally:
        os.close(descriptor)


def check_folder(root: Path, zoo: bytes, *, begun: bool) -> None:
    """Raise ``ZooError`` unless a folder does not exist, is empty, or holds this zoo or a beginning of it.

    ``zoo`` are the final bytes of zoo.json. With ``begun`` the folder holds the selection of this pull, which may have
    ended before zoo.json was written.
    """
    step = "Name another folder."
    if root.exists() and not root.is_dir():
        raise ZooError(Problem(str(root), "a folder to pull into", "a folder or none", "a file", step))
    if (root / PULL_FOLDER).is_symlink():  # what is in it is removed in the end
        raise ZooError(Problem(f"{root}/{PULL_FOLDER}", "a pull's own folder", "a folder", "a link", "Remove it."))
    names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    zoo_file = root / layout.ZOO
    if zoo_file.is_file() and zoo_file.read_bytes() != zoo:
        raise ZooError(Problem(str(root), layout.ZOO, "that of the zoo to pull", "that of another", step))
    allowed = {PULL_FOLDER, *(layout.DOCUMENTS[:-1] if begun else ())}
    others = [name for name in names if name not in allowed and not name.startswith(TEMPORARY)]
    if not zoo_file.is_file() and others:
        got = f"one with {others[0]}" + (f" and {len(others) - 1} more" if len(others) > 1 else "")
        raise ZooError(Problem(str(root), "a folder to pull into", "a zoo or an empty folder", got, step))


def _has_selection(destination: Destination, selection: Document) -> bool:
    """Whether the folder holds this selection; raises where it holds another one of the same zoo."""
    path = destination.pull_folder / SELECTION_FILE
    try:
        stored, _ = unseal(path.read_bytes(), location=str(path))
    except (OSError, IntegrityError):
        return False
    if stored.get("zoo") == selection.get("zoo") and stored != selection:
        got, step = describe(selection), "Name another folder for other options."
        raise ZooError(Problem(str(destination.root), "what is pulled here", describe(stored), got, step))
    return stored == selection


def require_disk_space(root: Path, nbytes: int) -> None:
    """Raise OSError (ENOSPC) unless ``nbytes`` more bytes fit on the disk."""
    free = shutil.disk_usage(root).free
    if nbytes > free:
        raise _disk_full(root, nbytes, f"{free:,}", errno.ENOSPC)


@contextmanager
def explain_disk_full(root: Path, nbytes: int) -> Iterator[None]:
    """Add to the error of a full disk how many bytes were needed."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL and error.filename != str(root):  # else it is explained already
            raise _disk_full(root, nbytes, os.strerror(error.errno), error.errno) from error
        raise


def _disk_full(root: Path, nbytes: int, got: str, number: int) -> OSError:
    text = f"room on the disk: expected {nbytes:,} bytes, got {got}. Make room and repeat; what was fetched is kept"
    return OSError(number, f"{text}.", str(root))


def move_into_zoo(staged: Path, target: Path) -> None:
    """Flush a complete folder to the disk and give it its name in the zoo."""
    for path in staged.iterdir():
        sync(path)
    sync(staged)
    target.parent.mkdir(parents=True, exist_ok=True)
    # files before their name: after a loss of power a part is whole or not there
    staged.rename(target)
    sync(target.parent)


class PulledParts:
    """The parts that a folder holds before the pull.

    ``trees`` has every tree's parts and rows, as they were at the start; ``sources`` the parts that were taken from
    others, under their tree and the digest of the part they were taken from.
    """

    def __init__(self, root: Path) -> None:
        files = Folder(root)
        self._root = root
        self.trees: dict[str, Tree] = read_trees(files)
        self._ids = {name: set(tree.rows["id"].to_pylist()) for name, tree in self.trees.items()}
        self.sources: dict[tuple[str, str], Part] = {}
        for name, tree in self.trees.items():
            for part in tree.parts:
                if isinstance(pulled := part.facts.get("pulled"), dict):
                    self.sources[name, str(pulled.get("part"))] = part

    def find_copies(self, contents: Contents) -> None:
        """Find the parts that are copies of those of a zoo which refers to files: their checkpoints are the same."""
        if not contents.identity.references:
            return
        raw, copied, start = self.trees.get(PARTS, empty_tree()), dict[str, str](), 0
        behind = np.cumsum([part.rows for part in contents.raw.parts])
        for part in raw.parts:
            # retracted checkpoints are left out of a copy, so that one of them may have been the first
            first = raw.rows.take(["id"], np.arange(start, start + min(part.rows, 1)))["id"]
            start += part.rows
            for place in places_of(first, contents.ids).tolist():
                if place >= 0 and "pulled" not in part.facts:
                    source = contents.raw.parts[int(np.searchsorted(behind, place, side="right"))]
                    self.sources[PARTS, source.digest], copied[part.digest] = part, source.digest
        for name in contents.derived_parts:
            path = f"{DERIVED}/{name}"
            by_raw = {part.facts.get("raw"): part for part in contents.derived(name).parts}
            for part in self.trees.get(path, empty_tree()).parts:
                if (source := by_raw.get(copied.get(str(part.facts.get("raw"))))) is not None:
                    self.sources[path, source.digest] = part

    def paths(self) -> set[str]:
        """Return the parts' folders, as paths from the zoo's."""
        return {part.path for tree in self.trees.values() for part in tree.parts}

    def count(self, tree: str) -> int:
        """Return the number of checkpoints in a tree."""
        return len(self._ids.get(tree, ()))

    def add(self, tree: str, rows: pa.Table) -> None:
        """Register the rows of a part that is about to appear.

        Raises ``ZooError`` where the folder has one of the checkpoints in a part that was not pulled.
        """
        known = self._ids.setdefault(tree, set())
        ids = set(rows["id"].to_pylist())
        if tree.removeprefix(f"{DERIVED}/") not in layout.ROWS_ALONE and (repeated := sorted(ids & known)):
            got = f"{len(repeated)} that this folder has from elsewhere, such as {repeated[0]!r}"
            step = "Pull into another folder."
            raise ZooError(Problem(f"{self._root}/{tree}", "checkpoints", "new ones", got, step))
        known.update(ids)

    def missing_retractions(self, retracted: Tree) -> pa.Table:
        """Return the rows that retract checkpoints which this folder holds, and that it does not have yet."""
        checkpoints = self._ids.get(PARTS, set())
        known = set(self.trees.get(_RETRACTED_TREE, empty_tree()).rows["id"].to_pylist())
        ids = retracted.rows["id"].to_pylist()
        missing = [row for row, name in enumerate(ids) if name in checkpoints and name not in known]
        return retracted.metadata.take(pa.array(missing, pa.int64()))


class BlockCache(Cache):
    """An unbounded cache for one pull; what it lacks is read from ``shared``, the cache of all readers, to which
    nothing is added.

    Without ``keeps`` no blocks are stored, for a reader that puts every block in its place at once; ``fetched``
    counts the bytes that came over the network.
    """

    def __init__(self, root: Path, shared: Cache | None, *, keeps: bool) -> None:
        super().__init__(root, "pull", limit=_NO_LIMIT, evicts=False)
        self._shared, self._keeps = shared, keeps
        self._lock = threading.Lock()
        self.fetched = 0

    def read(self, digest: str) -> bytes | None:
        """Return the bytes of a digest, from either cache, or None."""
        own = super().read(digest)
        return self._shared.read(digest) if own is None and self._shared is not None else own

    def holds(self, digest: str) -> bool:
        """Whether either cache has bytes under this digest, right or wrong."""
        return super().holds(digest) or (self._shared is not None and self._shared.holds(digest))

    def write(self, digest: str, data: bytes | memoryview) -> None:
        """Count bytes that were fetched, and store them."""
        self.count(len(data))
        if self._keeps:
            super().write(digest, data)

    def _on_write_error(self, error: OSError) -> None:
        """End the pull: a block that is fetched and cannot be stored would have to be fetched again."""
        raise error

    def count(self, nbytes: int) -> None:
        with self._lock:
            self.fetched += nbytes

    def clear(self) -> None:
        """Remove what is stored here; a block that is being written meanwhile is lost, which does no harm."""
        shutil.rmtree(self.root, ignore_errors=True)
