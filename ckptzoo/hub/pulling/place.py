"""The folder that a zoo is pulled into: whose it is, what was asked, and what lies there unfinished."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.format.durable import TEMPORARY, sync, write_file
from ckptzoo.hub.pulling.asked import described
from ckptzoo.spec import layout
from ckptzoo.spec.document import Document, seal, unseal

OWN = ".ckptzoo-pull"
"""A pull's own folder inside the zoo's, whose name keeps it from being a part of the zoo."""
ASKED = "asked.json"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Place:
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
        raise ZooError(str(Problem(str(root), "a folder to pull into", "a folder or none", "a file", step)))
    if (root / OWN).is_symlink():  # what lies there is removed in the end
        raise ZooError(str(Problem(f"{root}/{OWN}", "a pull's own folder", "a folder", "a link", "Remove it.")))
    there = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    held = root / layout.ZOO
    if held.is_file() and held.read_bytes() != zoo:
        raise ZooError(str(Problem(str(root), layout.ZOO, "that of the zoo to pull", "that of another", step)))
    own = {OWN, *(layout.DOCUMENTS[:-1] if begun else ())}
    others = [name for name in there if name not in own and not name.startswith(TEMPORARY)]
    if not held.is_file() and others:
        got = f"one with {others[0]}" + (f" and {len(others) - 1} more" if len(others) > 1 else "")
        raise ZooError(str(Problem(str(root), "a folder to pull into", "a zoo or an empty folder", got, step)))


@contextmanager
def taken(root: Path, zoo: bytes, selection: Document, *, partial: bool) -> Iterator[Place]:
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
    place = Place(root)
    refuse(root, zoo, begun=_same(place, selection))
    place.own.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(place.own, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            step = "Wait until it has ended, or name another folder."
            raise ZooError(str(Problem(str(root), "pull", "one at a time", "another at work", step))) from None
        begun = _same(place, selection)
        refuse(root, zoo, begun=begun)
        if not begun:
            if partial and (root / layout.ZOO).is_file():
                got, step = "one that was not pulled with these options", "Name another folder."
                raise ZooError(str(Problem(str(root), "a folder to pull into", "an empty folder", got, step)))
            write_file(place.own / ASKED, seal(selection))
        yield place
    finally:
        os.close(descriptor)


def _same(place: Place, selection: Document) -> bool:
    """Whether the folder notes this selection; raises where it notes another one of the same zoo."""
    note = place.own / ASKED
    try:
        held, _ = unseal(note.read_bytes(), where=str(note))
    except (OSError, IntegrityError):
        return False
    if held.get("zoo") == selection.get("zoo") and held != selection:
        got, step = described(selection), "Name another folder for other options."
        raise ZooError(str(Problem(str(place.root), "what is pulled here", described(held), got, step)))
    return held == selection


def need_room(root: Path, nbytes: int) -> None:
    """Raise OSError (ENOSPC) unless so many bytes more fit on the disk."""
    free = shutil.disk_usage(root).free
    if nbytes > free:
        raise _no_room(root, nbytes, f"{free:,}", errno.ENOSPC)


@contextmanager
def saying_what_is_needed(root: Path, nbytes: int) -> Iterator[None]:
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
