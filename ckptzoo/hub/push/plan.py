"""What a repository lacks of a zoo, and in which commits it is to come.

What a repository will hold after a push: which parts clash with those of others, and a snapshot of all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow.compute as pc

from ckptzoo.errors import HubError, Problem
from ckptzoo.format import snapshot as snapshot_format
from ckptzoo.format.predictions import SHARED
from ckptzoo.format.reader import list_trees, read_tree
from ckptzoo.format.tree import Tree
from ckptzoo.hub.client.models import Listing, RepoFile, is_stored
from ckptzoo.hub.push.page import page_or_note
from ckptzoo.hub.push.sources import CommitBatch, LocalFile, LocalPart, LocalZoo, OverlayFiles, RepositoryFiles
from ckptzoo.schema import layout
from ckptzoo.schema.card import CARD_TOML
from ckptzoo.schema.documents import unseal
from ckptzoo.text import shortened

_TOMBS = f"{layout.DERIVED}/{layout.RETRACTED}"
_SHOWN = 3
_ALIKE = ("gauge", "version", "symmetry", *SHARED)
"""Facts in which all parts of a derived tree agree, those that it has."""
_LONG = 80


def trees_of(repository: RepositoryFiles, listing: Listing, parts: Iterable[LocalPart]) -> dict[str, Tree]:
    """Rows and indices of a commit together with parts of this machine, which are read here."""
    files = files_of(repository, listing, parts)
    names = {tree: held for tree, held in list_trees(files).items() if held}
    known = snapshot_format.newest(files, names)
    return {tree: read_tree(files, tree, held, known) for tree, held in names.items()}


def files_of(
    repository: RepositoryFiles,
    listing: Listing,
    parts: Iterable[LocalPart],
    others: Mapping[str, LocalFile] | None = None,
) -> OverlayFiles:
    """The files of a commit together with parts and others, by their paths, of this machine, which are read here.

    Where every part lies here no snapshot is among them, because it would have to be fetched.
    """
    local = {name: file.path for name, file in (others or {}).items()}
    for part in parts:
        local |= {name: file.path for name, file in part.files.items()}
    afar_too = (name for name in listing.files if name.endswith(f"/{layout.INDEX}") and name not in local)
    if next(afar_too, None) is None:
        left = set(snapshots_in(listing.files))
        listing = replace(listing, files={name: held for name, held in listing.files.items() if name not in left})
    return OverlayFiles(repository, listing, local)


def known_under_another_name(trees: dict[str, Tree], part: LocalPart) -> bool:
    """Whether a commit has this part under another number, as happens to what two people add at once."""
    tree = trees.get(part.part.tree)
    others = () if tree is None else (held.digest for held in tree.parts if held.name != part.part.name)
    return part.part.digest in others


def refuse_clashes(location: str, trees: dict[str, Tree], parts: Sequence[LocalPart]) -> None:
    """Refuse parts that hold what a commit has under another part.

    Raises
    ------
    HubError
        A checkpoint's id or a unit is there already, a variant of a checkpoint is, or a variant's versions would be
        mixed; the message names them.
    """
    problems = [problem for part in parts if part.part.tree in trees for problem in _clashes(location, trees, part)]
    if problems:
        raise HubError(problems[0])


def _clashes(location: str, trees: dict[str, Tree], part: LocalPart) -> Iterator[Problem]:
    tree = trees[part.part.tree]
    raw, tombs = part.part.tree == layout.PARTS, part.part.tree == _TOMBS
    columns = {"id": "checkpoints", "unit": "units"} if raw else {} if tombs else {"id": "checkpoints"}
    for column, what in columns.items():
        mine = part.rows[column]
        both = mine.filter(pc.call_function("is_in", [mine], pc.SetLookupOptions(tree.rows[column].combine_chunks())))
        both = both.drop_null().unique()
        if len(both):
            shown = ", ".join(repr(name.as_py()) for name in both[:_SHOWN])
            more = f" and {len(both) - _SHOWN} more" if len(both) > _SHOWN else ""
            step = "Leave them out, or give them other ids; they were written by somebody else, or twice."
            yield Problem(location, f"{what} of {part.path}", "new ones", f"{shown}{more}, which it has", step)
    for fact in _ALIKE:
        own = str(part.part.facts.get(fact))
        if held := {str(other.facts.get(fact)) for other in tree.parts} - {own}:
            step = "Derive it anew as the others were derived, with the same ckptzoo and inputs, or under another name."
            expected = shortened(", ".join(sorted(held)), _LONG)
            yield Problem(location, f"{fact} of {part.path}", expected, shortened(own, _LONG), step)


def snapshots_in(names: Iterable[str]) -> list[str]:
    """Those of some paths that are snapshots."""
    prefix = f"{layout.SNAPSHOTS}/"
    return [
        name for name in names if name.startswith(prefix) and layout.SNAPSHOT_NAME.fullmatch(name.removeprefix(prefix))
    ]


def snapshot_count(name: str) -> int:
    """How many parts a snapshot covers, from its path."""
    return int(name.rpartition("/")[2][:6])


MAX_FILES = 100
"""Files of one commit; a part that has more is a commit of its own, because half of it would be no zoo."""
_BESIDE = frozenset({".gitattributes", ".gitignore", layout.README})
"""What a repository may hold before it is a zoo."""


@dataclass(frozen=True)
class PushPlan:
    """What is to be done: the commits in order, upon a head; how many parts are there already; and what to know."""

    head: str | None
    groups: tuple[CommitBatch, ...]
    already: int
    notes: tuple[str, ...] = ()


def difference(local: LocalZoo, repository: RepositoryFiles, listing: Listing | None, *, snapshot: bool) -> PushPlan:
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
        last = last.merge(snapshot_group(repository, listing or Listing("", {}), [*there, *lacking]))
    groups = _packed([*documents, *added, last])
    return PushPlan(None if listing is None else listing.commit, groups, len(local.parts) - len(lacking), notes)


def is_there(group: CommitBatch, listing: Listing) -> bool:
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


def _refuse_strangers(local: LocalZoo, repository: RepositoryFiles, listing: Listing) -> None:
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
        return unseal(data, location=name)[1]
    except Exception:
        return "an unreadable document"


def _refuse_others(location: str, missing: dict[str, LocalFile], held: dict[str, RepoFile]) -> None:
    """Refuse a part of which the repository has files with other bytes."""
    for name in missing:
        if name in held:
            step = "One of the two is damaged: ckptzoo verify says which."
            expected = f"{missing[name].size} bytes with sha256 {missing[name].sha256}"
            got = f"{held[name].size} bytes with {held[name].sha256 or held[name].oid}"
            raise HubError(Problem(location, name, expected, got, step))


def _lacking(files: dict[str, LocalFile], held: dict[str, RepoFile]) -> dict[str, LocalFile]:
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
    local: LocalZoo, repository: RepositoryFiles, listing: Listing, parts: list[LocalPart]
) -> tuple[CommitBatch, tuple[str, ...]]:
    """What a person wrote, and the page of what the repository will hold; the folder's own where no card says more."""
    held, cards = listing.files, dict(local.cards)
    files = files_of(repository, listing, parts, local.documents | cards)
    page = page_or_note(files, repository.repo, own=CARD_TOML in cards)
    if page.told and (page.data is not None or layout.README in held):
        cards.pop(layout.README, None)
    group = _group(_lacking(cards, held))
    if page.data is not None and not is_stored(page.data, held.get(layout.README)):
        group = group.merge(CommitBatch.of({layout.README: page.data}))
    return group, page.notes


def snapshot_group(repository: RepositoryFiles, listing: Listing, parts: list[LocalPart]) -> CommitBatch:
    """A snapshot of what the repository will hold, in place of those that it has; none where one covers it already."""
    held = listing.files
    old = snapshots_in(held)
    count = len(_parts_in(held) | {part.path for part in parts})
    if any(snapshot_count(name) == count for name in old) and count == len(_parts_in(held)):
        return CommitBatch()
    trees = trees_of(repository, listing, parts)
    if not trees:
        return CommitBatch()
    name, data = snapshot_format.encode(trees)
    if is_stored(data, held.get(name)):
        return CommitBatch()
    return CommitBatch.of({name: data}, tuple(other for other in old if other != name))


def _group(files: dict[str, LocalFile], part: str | None = None) -> CommitBatch:
    return CommitBatch(
        {name: file.path for name, file in files.items()},
        {name: file.size for name, file in files.items()},
        {name: file.sha256 for name, file in files.items()},
        (part,) if part is not None else (),
    )


def _packed(items: list[CommitBatch]) -> tuple[CommitBatch, ...]:
    """The items in their order, as many in one commit as fit."""
    made: list[CommitBatch] = []
    for item in items:
        count = len(item.files) + len(item.delete)
        if not count:
            continue
        if made and len(made[-1].files) + len(made[-1].delete) + count <= MAX_FILES:
            made[-1] = made[-1].merge(item)
        else:
            made.append(item)
    return tuple(made)
