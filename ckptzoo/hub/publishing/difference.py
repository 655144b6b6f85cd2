"""What a repository lacks of a zoo, and in which commits it is to come."""

from collections.abc import Iterable
from dataclasses import dataclass

from ckptzoo.errors import HubError, Problem
from ckptzoo.format import snapshot_writer
from ckptzoo.hub.client.answers import Listing, Stored, is_stored
from ckptzoo.hub.publishing.gathered import Repository
from ckptzoo.hub.publishing.group import Group
from ckptzoo.hub.publishing.joined import (
    files_of,
    known_under_another_name,
    refuse_clashes,
    snapshot_count,
    snapshots_in,
    trees_of,
)
from ckptzoo.hub.publishing.local import LocalFile, LocalPart, LocalZoo
from ckptzoo.hub.publishing.page import page_or_note
from ckptzoo.spec import layout
from ckptzoo.spec.card import FILE
from ckptzoo.spec.document import unseal

MAX_FILES = 100
"""Files of one commit; a part that has more is a commit of its own, because half of it would be no zoo."""
_BESIDE = frozenset({".gitattributes", ".gitignore", layout.CARD})
"""What a repository may hold before it is a zoo."""


@dataclass(frozen=True)
class Difference:
    """What is to be done: the commits in order, upon a head; how many parts are there already; and what to know."""

    head: str | None
    groups: tuple[Group, ...]
    already: int
    notes: tuple[str, ...] = ()


def difference(local: LocalZoo, repository: Repository, listing: Listing | None, *, snapshot: bool) -> Difference:
    """Compare a zoo with a commit of its repository, or with none.

    Raises
    ------
    HubError
        The repository holds another zoo, or something that is none, or parts that clash.
    """
    held = {} if listing is None else listing.files
    if listing is not None:
        _refuse_strangers(local, repository, listing)
    documents = [_group(_lacking(local.documents, held))]
    there, lacking = list[LocalPart](), list[LocalPart]()
    for part in local.parts:
        missing = _lacking(part.files, held)
        _refuse_others(repository.name, missing, held)
        (lacking if missing else there).append(part)
    named = _parts_in(held)
    if listing is not None and not named <= {part.path for part in local.parts}:
        trees = trees_of(repository, listing, [part for part in local.parts if part.path in named])
        lacking = [part for part in lacking if not known_under_another_name(trees, part)]
        refuse_clashes(repository.name, trees, [part for part in lacking if part.path not in named])
    added = [_group(_lacking(part.files, held), part.path) for part in lacking]
    last, notes = _cards(local, repository, listing or Listing("", {}), [*there, *lacking])
    if snapshot:
        last = last.joined(snapshot_group(repository, listing or Listing("", {}), [*there, *lacking]))
    groups = _packed([*documents, *added, last])
    return Difference(None if listing is None else listing.commit, groups, len(local.parts) - len(lacking), notes)


def is_there(group: Group, listing: Listing) -> bool:
    """Whether a commit holds what a group adds.

    What was made for the commit (the page, a snapshot) does not count, because the next push replaces it, unless the
    group adds nothing else.
    """
    lasting = [name for name, content in group.files.items() if not isinstance(content, bytes)]
    for name in lasting or group.files:
        content, stored = group.files[name], listing.files.get(name)
        there = (
            is_stored(content, stored)
            if isinstance(content, bytes)
            else LocalFile(content, group.sizes[name], group.sha256[name]).is_stored(stored)
        )
        if not there:
            return False
    return True


def _refuse_strangers(local: LocalZoo, repository: Repository, listing: Listing) -> None:
    """Refuse a repository of another zoo, and one that holds something else."""
    held = listing.files
    if layout.ZOO not in held:
        others = [name for name in held if name not in _BESIDE]
        if others:
            got, step = f"{len(others)} files, such as {others[0]}", "Choose another repository."
            raise HubError(Problem(repository.name, "repository", "a zoo, or an empty one", got, step))
        return
    for name, file in local.documents.items():
        if name in held and not file.is_stored(held[name]):
            own, theirs = _digest(file.path.read_bytes(), name), _digest(repository.read([name], listing)[0], name)
            what = "zoo" if name == layout.ZOO else name
            step = "Push to another repository: this one holds another zoo."
            if name != layout.ZOO:
                step = "Fetch the repository's with ckptzoo pull; documents of a zoo are never replaced."
            raise HubError(Problem(repository.name, what, f"digest {own}", theirs, step))


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


def _cards(
    local: LocalZoo, repository: Repository, listing: Listing, parts: list[LocalPart]
) -> tuple[Group, tuple[str, ...]]:
    """What a person wrote, and the page of what the repository will hold; the folder's own where no card says more."""
    held, cards = listing.files, dict(local.cards)
    files = files_of(repository, listing, parts, local.documents | cards)
    page = page_or_note(files, repository.repo, own=FILE in cards)
    if page.told and (page.data is not None or layout.CARD in held):
        cards.pop(layout.CARD, None)
    group = _group(_lacking(cards, held))
    if page.data is not None and not is_stored(page.data, held.get(layout.CARD)):
        group = group.joined(Group.of({layout.CARD: page.data}))
    return group, page.notes


def snapshot_group(repository: Repository, listing: Listing, parts: list[LocalPart]) -> Group:
    """A snapshot of what the repository will hold, in place of those that it has; none where one covers it already."""
    held = listing.files
    old = snapshots_in(held)
    count = len(_parts_in(held) | {part.path for part in parts})
    if any(snapshot_count(name) == count for name in old) and count == len(_parts_in(held)):
        return Group()
    trees = trees_of(repository, listing, parts)
    if not trees:
        return Group()
    name, data = snapshot_writer.encode(trees)
    if is_stored(data, held.get(name)):
        return Group()
    return Group.of({name: data}, tuple(other for other in old if other != name))


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
