"""Which folders on this machine the references of zoos lead to, recorded outside of the zoos, for this user.

A zoo names its sources, and no paths: a zoo of somebody else must not choose which files of this machine are read.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from ckptzoo.environment import data_root
from ckptzoo.errors import IntegrityError
from ckptzoo.format.durable import locked, make_folder, write_file
from ckptzoo.schema.documents import seal, unseal
from ckptzoo.schema.layout import ZOO

Follow = Path | Mapping[str, Path]
"""A folder for every source of a zoo, or folders by the names of sources."""
_FOLDER = "linked"


def _record(root: Path) -> tuple[Path, str]:
    """The file that records a zoo's sources, and what has to be the zoo there: its real path and its ``zoo.json``."""
    real = os.path.realpath(root)
    name = hashlib.sha256(real.encode(errors="surrogateescape")).hexdigest()[:32]
    zoo = hashlib.sha256((root / ZOO).read_bytes()).hexdigest() if (root / ZOO).is_file() else ""
    return data_root() / _FOLDER / f"{name}.json", zoo


def remember(root: Path, sources: Mapping[str, Path]) -> None:
    """Record the folders of some sources of the zoo in a folder, which this user has named."""
    path, zoo = _record(root)
    make_folder(path.parent)
    with locked(path.parent):
        known = {name: str(place) for name, place in remembered(root).items()}
        known |= {name: os.path.realpath(place) for name, place in sources.items()}
        write_file(path, seal({"zoo": zoo, "folder": os.path.realpath(root), "sources": known}))


def forget(root: Path) -> None:
    """Remove what was recorded of a zoo that was in a folder before."""
    path, _ = _record(root)
    path.unlink(missing_ok=True)


def remembered(root: Path) -> dict[str, Path]:
    """The folders by the names of the sources of the zoo in a folder; none of another zoo that was there before."""
    try:
        path, zoo = _record(root)
        content, _ = unseal(path.read_bytes(), location=str(path))
    except (OSError, IntegrityError):
        return {}
    known = content.get("sources")
    if content.get("zoo") != zoo or content.get("folder") != os.path.realpath(root) or not isinstance(known, dict):
        return {}
    return {str(name): Path(str(place)) for name, place in known.items()}


def followed(root: Path | None, follow: Follow | None, names: list[str]) -> dict[str, Path]:
    """The folders that the sources of a zoo are followed to: those that are given, else those that were recorded.

    ``root`` is the zoo's folder, None where it is on another machine: then nothing is followed.
    """
    if root is None:
        return {}
    if follow is None:
        return remembered(root)
    return dict(follow) if isinstance(follow, Mapping) else dict.fromkeys(names, follow)
