"""Which folders and servers the references of zoos lead to, recorded outside of the zoos, for this user.

A zoo names its sources, and no paths: a zoo of somebody else must not choose which files of this machine are read, nor
which servers are asked.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import ckptzoo
from ckptzoo.environment import data_root
from ckptzoo.errors import IntegrityError
from ckptzoo.format.durable import locked, make_folder, write_file
from ckptzoo.format.references import RemoteFile
from ckptzoo.schema.documents import seal, unseal
from ckptzoo.schema.layout import ZOO, Span

_FOLDER = "linked"


@dataclass(frozen=True)
class Servers:
    """How the references of a source to files on other machines are followed.

    ``named`` are addresses of servers that the user named, which may be in the user's network and speak http;
    ``endpoint`` and ``token`` are of the hub, None for those of huggingface_hub; the token stays in this process.
    ``is_linked`` says that this user linked the source here.
    """

    named: tuple[str, ...] = ()
    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)
    is_linked: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Servers, (self.named, self.endpoint, None, self.is_linked)

    def joined(self, other: "Servers") -> "Servers":
        """Return these servers, and those of a caller, whose hub and token count."""
        named = tuple(sorted({*self.named, *other.named}))
        return Servers(named, other.endpoint or self.endpoint, other.token, self.is_linked)

    def reader(self, zoo: str) -> "RangeReader":
        """The reader of files on these servers; ``zoo`` is for messages."""
        return ckptzoo.RemoteReferences(zoo, servers=self.named, endpoint=self.endpoint, token=self.token)


class RangeReader(Protocol):
    """Reads ranges of files on other machines, as ``ckptzoo.remote.referenced.RemoteReferences``."""

    def add(self, files: Iterable[RemoteFile]) -> None:
        """Make files known, so that spans may name their addresses; ZooError for an address that is refused."""
        ...

    def as_ready(self, wanted: Sequence[Span]) -> Iterator[tuple[int, memoryview]]:
        """Yield spans with their places as they come."""
        ...

    def in_order(self, wanted: Sequence[Span]) -> Iterator[memoryview]:
        """Yield spans in order."""
        ...


Follow = Path | Servers | Mapping[str, Path]
"""A folder for every source of a zoo on this machine, or folders by the names of sources; or the servers that any
other source may be read from."""


def _record(root: Path) -> tuple[Path, str]:
    """The file that records a zoo's sources, and what has to be the zoo there: its real path and its ``zoo.json``."""
    real = os.path.realpath(root)
    name = hashlib.sha256(real.encode(errors="surrogateescape")).hexdigest()[:32]
    zoo = hashlib.sha256((root / ZOO).read_bytes()).hexdigest() if (root / ZOO).is_file() else ""
    return data_root() / _FOLDER / f"{name}.json", zoo


def remember(root: Path, sources: Mapping[str, Path]) -> None:
    """Record the folders of some sources of the zoo in a folder, which this user has named."""
    _write(root, {name: os.path.realpath(place) for name, place in sources.items()}, {}, {})


def remember_files(root: Path, source: str, files: Mapping[str, tuple[int, int]]) -> None:
    """Record the inode and the time of files of a source, by path, which hold what was linked as other files."""
    _write(root, {}, {}, {source: {path: list(facts) for path, facts in files.items()}})


def remember_servers(root: Path, name: str, servers: Servers) -> None:
    """Record that a source of the zoo in a folder is on other machines, and with which servers it is read."""
    before = remembered_servers(root).get(name, Servers())
    named = sorted({*before.named, *servers.named})
    _write(root, {}, {name: {"named": named, "endpoint": servers.endpoint}}, {})


def _write(root: Path, folders: dict[str, str], servers: dict[str, Any], files: dict[str, Any]) -> None:
    path, zoo = _record(root)
    make_folder(path.parent)
    with locked(path.parent):
        known = {name: str(place) for name, place in remembered(root).items()} | folders
        others: dict[str, Any] = {
            name: {"named": list(item.named), "endpoint": item.endpoint}
            for name, item in remembered_servers(root).items()
        } | servers
        accepted = _read(root, "files")
        accepted |= {name: {**accepted.get(name, {}), **own} for name, own in files.items()}
        record: dict[str, Any] = {"zoo": zoo, "folder": os.path.realpath(root), "sources": known}
        record |= {key: value for key, value in (("servers", others), ("files", accepted)) if value}
        write_file(path, seal(record))


def remember_moved(root: Path, to: Path) -> None:
    """Record of the zoo in a folder for another place, to which it is moved next, what is recorded of it here."""
    path, zoo = _record(root)
    try:
        content, _ = unseal(path.read_bytes(), location=str(path))
    except (FileNotFoundError, IntegrityError):
        return
    target, _ = _record(to)
    with locked(path.parent):
        write_file(target, seal({**content, "zoo": zoo, "folder": os.path.realpath(to)}))


def forget(root: Path) -> None:
    """Remove what was recorded of a zoo that was in a folder before."""
    path, _ = _record(root)
    path.unlink(missing_ok=True)


def remembered(root: Path) -> dict[str, Path]:
    """The folders by the names of the sources of the zoo in a folder; none of another zoo that was there before."""
    return {name: Path(str(place)) for name, place in _read(root, "sources").items()}


def remembered_files(root: Path | None) -> dict[tuple[str, str], tuple[int, int]]:
    """The inode and the time of files that hold what was linked, by source and path, as ``remember_files``."""
    found = dict[tuple[str, str], tuple[int, int]]()
    for source, files in _read(root, "files").items() if root is not None else ():
        for path, facts in files.items() if isinstance(files, dict) else ():
            match facts:
                case [int(inode), int(mtime)]:
                    found[source, path] = inode, mtime
                case _:
                    pass
    return found


def remembered_servers(root: Path) -> dict[str, Servers]:
    """The servers by the names of the sources on other machines of the zoo in a folder, as ``remembered``."""
    found = dict[str, Servers]()
    for name, item in _read(root, "servers").items():
        match item:
            case {"named": [*named], "endpoint": str() | None as endpoint}:
                found[name] = Servers(tuple(map(str, named)), endpoint, is_linked=True)
            case _:
                pass
    return found


def _read(root: Path, key: str) -> dict[str, Any]:
    """An entry of the record of the zoo in a folder; empty where it is of another zoo, or is not there."""
    try:
        path, zoo = _record(root)
        content, _ = unseal(path.read_bytes(), location=str(path))
    except (OSError, IntegrityError):
        return {}
    known = content.get(key)
    if content.get("zoo") != zoo or content.get("folder") != os.path.realpath(root) or not isinstance(known, dict):
        return {}
    return {str(name): item for name, item in known.items()}


def followed(root: Path | None, follow: Follow | None, names: list[str]) -> dict[str, Path]:
    """The folders that the sources of a zoo are followed to: those that are given, else those that were recorded.

    ``root`` is the zoo's folder, None where it is on another machine: then nothing is followed.
    """
    if root is None:
        return {}
    if follow is None or isinstance(follow, Servers):
        return remembered(root)
    return dict(follow) if isinstance(follow, Mapping) else dict.fromkeys(names, follow)


def followed_servers(
    root: Path | None, follow: Follow | None, names: list[str], hub: tuple[str | None, str | None] = (None, None)
) -> dict[str, Servers]:
    """With which servers the sources of a zoo on other machines are read, as ``followed``; of no others.

    ``hub`` is the address of the hub, and the token, that a caller names.
    """
    known = {} if root is None else remembered_servers(root)
    if any(hub):
        known = {name: item.joined(Servers((), *hub)) for name, item in known.items()}
    if not isinstance(follow, Servers):
        return known
    return {name: known[name].joined(follow) if name in known else follow for name in names}
