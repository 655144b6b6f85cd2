"""What a repository lacks of a zoo, and in which commits it is to come."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ckptzoo.errors import HubError, Problem
from ckptzoo.hub.client.answers import Listing, Stored, is_stored
from ckptzoo.hub.publishing.gathered import Afar
from ckptzoo.hub.publishing.joined import (
    known_under_another_name,
    refuse_clashes,
    snapshot_count,
    snapshot_of,
    snapshots_in,
    trees_of,
)
from ckptzoo.hub.publishing.local import LocalFile, LocalPart, LocalZoo
from ckptzoo.spec import layout
from ckptzoo.spec.document import unseal

MAX_FILES = 100
"""Files of one commit; a part that has more is a commit of its own, because half of it would be no zoo."""
_BESIDE = frozenset({".gitattributes", ".gitignore", layout.CARD})
"""What a repository may hold before it is a zoo."""


@dataclass(frozen=True)
class Group:
    """What one commit adds and removes.

    Parameters
    ----------
    files : paths in the zoo, to the file or the bytes.
    sha256 : of every file that is given as a path.
    parts : the parts that it adds.
    """

    files: dict[str, Path | bytes] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    delete: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return sum(self.sizes.values())

    def joined(self, other: "Group") -> "Group":
        """Both in one."""
        return Group(
            self.files | other.files,
            self.sizes | other.sizes,
            self.sha256 | other.sha256,
            self.parts + other.parts,
            self.delete + other.delete,
        )


@dataclass(frozen=True)
class Difference:
    """What is to be done: the commits in order, upon a head; and how many parts are there already."""

    head: str | None
    groups: tuple[Group, ...]
    already: int


def difference(local: LocalZoo, afar: Afar, listing: Listing | None, *, snapshot: bool) -> Difference:
    """Compare a zoo with a commit of its repository, or with none.

    Raises
    ------
    HubError
        The repository holds another zoo, or something that is none, or parts that clash.
    """
    held = {} if listing is None else listing.files
    if listing is not None:
        _refuse_strangers(local, afar, listing)
    documents = [_group(_lacking(local.documents, held))]
    there, lacking = list[LocalPart](), list[LocalPart]()
    for part in local.parts:
        missing = _lacking(part.files, held)
        _refuse_others(afar.name, missing, held)
        (lacking if missing else there).append(part)
    named = _parts_in(held)
    if listing is not None and not named <= {part.path for part in local.parts}:
        trees = trees_of(afar, listing, [part for part in local.parts if part.path in named])
        lacking = [part for part in lacking if not known_under_another_name(trees, part)]
        refuse_clashes(afar.name, trees, [part for part in lacking if part.path not in named])
    added = [_group(_lacking(part.files, held), part.path) for part in lacking]
    last = _group({name: file for name, file in local.cards.items() if not file.is_stored(held.get(name))})
    if snapshot:
        last = last.joined(_snapshot(afar, listing, [*there, *lacking], held))
    groups = _packed([*documents, *added, last])
    return Difference(None if listing is None else listing.commit, groups, len(local.parts) - len(lacking))


def is_there(group: Group, listing: Listing) -> bool:
    """Whether a commit holds what a group adds; snapshots do not count, because the next push replaces them."""
    snapshots = snapshots_in(group.files)
    return all(
        is_stored(content, listing.files.get(name))
        if isinstance(content, bytes)
        else LocalFile(content, group.sizes[name], group.sha256[name]).is_stored(listing.files.get(name))
        for name, content in group.files.items()
        if name not in snapshots
    )


def _refuse_strangers(local: LocalZoo, afar: Afar, listing: Listing) -> None:
    """Refuse a repository of another zoo, and one that holds something else."""
    held = listing.files
    if layout.ZOO not in held:
        others = [name for name in held if name not in _BESIDE]
        if others:
            got, step = f"{len(others)} files, such as {others[0]}", "Choose another repository."
            raise HubError(Problem(afar.name, "repository", "a zoo, or an empty one", got, step))
        return
    for name, file in local.documents.items():
        if name in held and not file.is_stored(held[name]):
            own, theirs = _digest(file.path.read_bytes(), name), _digest(afar.read([name], listing)[0], name)
            what = "zoo" if name == layout.ZOO else name
            step = "Push to another repository: this one holds another zoo."
            if name != layout.ZOO:
                step = "Fetch the repository's with ckptzoo pull; documents of a zoo are never replaced."
            raise HubError(Problem(afar.name, what, f"digest {own}", theirs, step))


def _digest(data: bytes, name: str) -> str:
    try:
        return unseal(data, where=name)[1]
    except Exception:
        return "an unreadable document"


def _refuse_others(where: str, missing: dict[str, LocalFile], held: dict[str, Stored]) -> None:
    """Refuse a part of which the repository has files with other bytes."""
    for name in missing:
        if name in held:
            step = "One of the two is damaged: ckptzoo verify says which."
            expected = f"{missing[name].size} bytes with sha256 {missing[name].sha256}"
            got = f"{held[name].size} bytes with {held[name].sha256 or held[name].oid}"
            raise HubError(Problem(where, name, expected, got, step))


def _lacking(files: dict[str, LocalFile], held: dict[str, Stored]) -> dict[str, LocalFile]:
    return {name: file for name, file in files.items() if not file.is_stored(held.get(name))}


def _parts_in(names: Iterable[str]) -> set[str]:
    """Folders of parts that some paths lie in."""
    found: set[str] = set()
    for name in names:
        pieces = name.split("/")
        depth = {layout.PARTS: 2, layout.DERIVED: 3}.get(pieces[0], 0)
        if depth and len(pieces) > depth and layout.PART_NAME.fullmatch(pieces[depth - 1]):
            found.add("/".join(pieces[:depth]))
    return found


def _snapshot(afar: Afar, listing: Listing | None, parts: list[LocalPart], held: dict[str, Stored]) -> Group:
    """A snapshot of what the repository will hold, in place of those that it has; none where one covers it already."""
    old = snapshots_in(held)
    count = len(_parts_in(held) | {part.path for part in parts})
    if any(snapshot_count(name) == count for name in old) and count == len(_parts_in(held)):
        return Group()
    trees = trees_of(afar, listing or Listing("", {}), parts)
    if not trees:
        return Group()
    name, data = snapshot_of(trees)
    if is_stored(data, held.get(name)):
        return Group()
    return Group({name: data}, {name: len(data)}, delete=tuple(other for other in old if other != name))


def _group(files: dict[str, LocalFile], part: str | None = None) -> Group:
    return Group(
        {name: file.path for name, file in files.items()},
        {name: file.size for name, file in files.items()},
        {name: file.sha256 for name, file in files.items()},
        (part,) if part is not None else (),
    )


def _packed(items: list[Group]) -> tuple[Group, ...]:
    """The items in their order, as many in one commit as fit."""
    made: list[Group] = []
    for item in items:
        count = len(item.files) + len(item.delete)
        if not count:
            continue
        if made and len(made[-1].files) + len(made[-1].delete) + count <= MAX_FILES:
            made[-1] = made[-1].joined(item)
        else:
            made.append(item)
    return tuple(made)
