"""The difference between a zoo and its repository, its commits, and the repositories and parts that are refused."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.compute as pc

from ckptzoo.errors import HubError, Problem
from ckptzoo.format import snapshot as snapshot_format
from ckptzoo.format.predictions import SHARED
from ckptzoo.format.reader import ids_differ, list_trees, read_trees
from ckptzoo.format.tree import Tree, empty_tree
from ckptzoo.hub.client.models import RepoFile, RevisionListing
from ckptzoo.hub.client.stored_files import LocalFile, is_stored
from ckptzoo.hub.push.page import page_or_note
from ckptzoo.hub.push.sources import LocalPart, LocalZoo, OverlayFiles, RepositoryFiles
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture, architecture_difference
from ckptzoo.schema.card import CARD_TOML
from ckptzoo.schema.documents import Identity, unseal
from ckptzoo.text import shortened

MAX_FILES = 100
"""Files of one commit; a part that has more is a commit of its own, because half of it would not be a valid zoo."""
ALLOWED_BEFORE = frozenset({".gitattributes", ".gitignore", layout.README})
"""Files that a repository may hold before it is a zoo, because hubs and people put them into a new one."""
_SHARED_FACTS = ("gauge", "version", "symmetry", *SHARED)
"""Facts in which all parts of a derived tree agree, those that it has."""
_MAX_SHOWN_IDS = 3
_MAX_SHOWN_FACT = 80
"""Characters of a fact that messages show."""
_MAX_TITLE = 200
"""Characters of the title of a commit."""


@dataclass(frozen=True)
class CommitBatch:
    """The files that one commit adds and removes.

    ``files`` maps paths in the zoo to the file or the bytes; ``sizes`` has the bytes of each, ``sha256`` the digest of
    every file that is given as a path; ``parts`` are those that it adds, ``delete`` the paths that it removes.
    """

    files: dict[str, Path | bytes] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    delete: tuple[str, ...] = ()

    @classmethod
    def of(cls, files: dict[str, bytes], delete: tuple[str, ...] = ()) -> "CommitBatch":
        """Return files that were generated for the commit."""
        return cls(dict(files), {name: len(data) for name, data in files.items()}, delete=delete)

    @property
    def nbytes(self) -> int:
        return sum(self.sizes.values())

    @property
    def title(self) -> str:
        """The commit's title, where the caller gives none."""
        first, others = next(iter(self.parts), None), len(self.parts) - 1
        if first is None:
            return f"Write {', '.join(self.files)}"[:_MAX_TITLE]
        return f"Add {first}" + (f" and {others} more" if others else "")

    def within(self, folder: str) -> "CommitBatch":
        """Return the batch with the paths of a zoo that is in a folder of the repository."""
        return CommitBatch(
            {f"{folder}/{name}": content for name, content in self.files.items()},
            {f"{folder}/{name}": size for name, size in self.sizes.items()},
            {f"{folder}/{name}": digest for name, digest in self.sha256.items()},
            tuple(f"{folder}/{name}" for name in self.parts),
            tuple(f"{folder}/{name}" for name in self.delete),
        )

    def merge(self, other: "CommitBatch") -> "CommitBatch":
        return CommitBatch(
            self.files | other.files,
            self.sizes | other.sizes,
            self.sha256 | other.sha256,
            self.parts + other.parts,
            self.delete + other.delete,
        )


@dataclass(frozen=True)
class PushPlan:
    """The commits to make.

    They follow ``head``, None where there is no repository. ``already`` counts the parts that the repository has;
    ``notes`` are for the person; ``files`` is what the repository then holds of the zoo, None for a plan of several
    zoos.
    """

    head: str | None
    batches: tuple[CommitBatch, ...]
    already: int
    notes: tuple[str, ...] = ()
    files: OverlayFiles | None = None


def plan_push(
    local: LocalZoo, repository: RepositoryFiles, listing: RevisionListing | None, *, snapshot: bool
) -> PushPlan:
    """Compare a zoo with a commit of its repository, or with none.

    Raises ``HubError`` where the repository holds another zoo, or something that is none, or parts that clash.
    """
    stored = {} if listing is None else listing.files
    if listing is not None:
        _check_same_zoo(local, repository, listing)
    documents = batch_of(not_stored(local.documents, stored))
    complete, incomplete = list[LocalPart](), list[LocalPart]()
    for part in local.parts:
        lacking = not_stored(part.files, stored)
        _check_same_bytes(repository.name, lacking, stored)
        (incomplete if lacking else complete).append(part)
    stored_parts = _parts_in(stored)
    known = local.trees
    if listing is not None and not stored_parts <= {part.path for part in local.parts}:
        known = None
        trees = merged_trees(repository, listing, [part for part in local.parts if part.path in stored_parts])
        incomplete = [part for part in incomplete if not _is_there_renumbered(trees, part)]
        _check_clashes(repository.name, trees, [part for part in incomplete if part.path not in stored_parts])
    added = [batch_of(not_stored(part.files, stored), part.path) for part in incomplete]
    there, parts = listing or RevisionListing("", {}), [*complete, *incomplete]
    files = merged_files(repository, there, parts, local.documents | local.card_files)
    _check_room(repository.name, files, {part.part.tree for part in incomplete})
    last, notes = _card_batch(local, repository, there, files, known)
    if snapshot:
        last = last.merge(snapshot_batch(repository, there, parts, known))
    batches = pack([documents, *added, last])
    already = len(local.parts) - len(incomplete)
    return PushPlan(None if listing is None else listing.commit, batches, already, notes, files)


def is_committed(batch: CommitBatch, listing: RevisionListing) -> bool:
    """Whether a commit holds what a batch adds.

    What was generated for the commit (the page, a snapshot) does not count, because the next push replaces it, unless
    the batch adds nothing else.
    """
    lasting = [name for name, content in batch.files.items() if not isinstance(content, bytes)]
    for name in lasting or batch.files:
        content = batch.files[name]
        if isinstance(content, Path):
            content = LocalFile(content, batch.sizes[name], batch.sha256[name])
        if not is_stored(content, listing.files.get(name)):
            return False
    return True


def merged_trees(repository: RepositoryFiles, listing: RevisionListing, parts: Iterable[LocalPart]) -> dict[str, Tree]:
    """Return rows and indices of a commit together with parts of this machine, which are read here."""
    files = merged_files(repository, listing, parts)
    return read_trees(files, snapshot_format.newest(files, list_trees(files)))


def merged_files(
    repository: RepositoryFiles,
    listing: RevisionListing,
    parts: Iterable[LocalPart],
    others: Mapping[str, LocalFile] | None = None,
) -> OverlayFiles:
    """The files of a commit together with parts and others, by their paths, of this machine, which are read here.

    Where every part is here no snapshot is among them, because it would have to be fetched.
    """
    local, parts, here = {name: file.path for name, file in (others or {}).items()}, list(parts), None
    for part in parts:
        local |= {name: part.root / name for name in layout.DOCUMENTS if (part.root / name).is_file()}
        local |= {name: file.path for name, file in part.files.items()}
    remote_parts = (name for name in listing.files if name.endswith(f"/{layout.INDEX}") and name not in local)
    if next(remote_parts, None) is None:
        snapshots = set(_snapshots_in(listing.files))
        listing = replace(listing, files={name: file for name, file in listing.files.items() if name not in snapshots})
        here = parts[0].root if len({part.root for part in parts}) == 1 else None
    return OverlayFiles(repository, listing, local, here)


def snapshot_batch(
    repository: RepositoryFiles,
    listing: RevisionListing,
    parts: list[LocalPart],
    trees: Mapping[str, Tree] | None = None,
) -> CommitBatch:
    """Make a snapshot of what the repository will hold, in place of those that it has; empty where one covers it.

    ``trees`` are those that it will hold, where they were read before.
    """
    stored = listing.files
    old = _snapshots_in(stored)
    count = len(_parts_in(stored) | {part.path for part in parts})
    if count == 0 or (any(_parts_covered(name) == count for name in old) and count == len(_parts_in(stored))):
        return CommitBatch()
    trees = merged_trees(repository, listing, parts) if trees is None else trees
    differ = ids_differ(trees.get(layout.PARTS, empty_tree()))
    name, data = snapshot_format.encode(trees, ids_differ=differ)
    if is_stored(data, stored.get(name)):
        return CommitBatch()
    return CommitBatch.of({name: data}, tuple(other for other in old if other != name))


def _snapshots_in(names: Iterable[str]) -> list[str]:
    prefix = f"{layout.SNAPSHOTS}/"
    return [
        name for name in names if name.startswith(prefix) and layout.SNAPSHOT_NAME.fullmatch(name.removeprefix(prefix))
    ]


def _parts_covered(snapshot: str) -> int:
    """Return the number of parts that a snapshot covers, from its path: the first six digits of its name."""
    return int(snapshot.rpartition("/")[2][:6])


def _parts_in(names: Iterable[str]) -> set[str]:
    """Folders of the parts that some paths are in."""
    folders: set[str] = set()
    for name in names:
        pieces = name.split("/")
        depth = {layout.PARTS: 2, layout.DERIVED: 3}.get(pieces[0], 0)  # parts/<part>, derived/<tree>/<part>
        if depth and len(pieces) > depth and layout.PART_NAME.fullmatch(pieces[depth - 1]):
            folders.add("/".join(pieces[:depth]))
    return folders


def _card_batch(
    local: LocalZoo,
    repository: RepositoryFiles,
    listing: RevisionListing,
    files: OverlayFiles,
    trees: Mapping[str, Tree] | None,
) -> tuple[CommitBatch, tuple[str, ...]]:
    """Return card, pictures and page of what the repository will hold; the folder's own page without a card."""
    stored, card_files = listing.files, dict(local.card_files)
    has_card = CARD_TOML in card_files
    page = page_or_note(files, repository.repo, repository.folder, local_card=has_card, trees=trees)
    if page.has_card and (page.data is not None or layout.README in stored):
        for name in (layout.README, layout.CROISSANT):
            card_files.pop(name, None)
    batch = batch_of(not_stored(card_files, stored))
    made = {name: data for name, data in page.files.items() if not is_stored(data, stored.get(name))}
    return batch.merge(CommitBatch.of(made)) if made else batch, page.notes


def not_stored(files: Mapping[str, LocalFile], stored: Mapping[str, RepoFile]) -> dict[str, LocalFile]:
    """Return the files that a commit does not hold with these bytes."""
    return {name: file for name, file in files.items() if not is_stored(file, stored.get(name))}


def batch_of(files: Mapping[str, LocalFile], part: str | None = None) -> CommitBatch:
    """Return files of this machine, all of a part or of none."""
    return CommitBatch(
        {name: file.path for name, file in files.items()},
        {name: file.size for name, file in files.items()},
        {name: file.sha256 for name, file in files.items()},
        (part,) if part is not None else (),
    )


def pack(batches: Iterable[CommitBatch]) -> tuple[CommitBatch, ...]:
    """Merge batches in their order, as many in one commit as fit."""
    packed: list[CommitBatch] = []
    for batch in batches:
        count = len(batch.files) + len(batch.delete)
        if not count:
            continue
        if packed and len(packed[-1].files) + len(packed[-1].delete) + count <= MAX_FILES:
            packed[-1] = packed[-1].merge(batch)
        else:
            packed.append(batch)
    return tuple(packed)


def _check_same_zoo(local: LocalZoo, repository: RepositoryFiles, listing: RevisionListing) -> None:
    """Refuse a repository of another zoo, and one that holds something else."""
    stored = listing.files
    if layout.ZOO not in stored:
        others = [name for name in stored if name not in ALLOWED_BEFORE]
        if others:
            got, step = f"{len(others)} files, such as {others[0]}", "Choose another repository."
            if layout.COLLECTION in stored:
                got, step = "a collection", "Choose another repository, or push a collection that has the zoo."
            raise HubError(Problem(repository.name, "repository", "a zoo, or an empty one", got, step))
        return
    for name, file in local.documents.items():
        if name in stored and not is_stored(file, stored[name]):
            (theirs,) = repository.read([name], listing)
            if name in (layout.ZOO, layout.ARCHITECTURE) and (differs := _other_zoo(local, repository, listing)):
                expected, got = differs
                step = "Push to another repository: this one holds another zoo."
                raise HubError(Problem(repository.name, "zoo", expected, got, step))
            step = "Fetch the repository's with ckptzoo pull; documents of a zoo are never replaced."
            expected, got = f"digest {_digest(file.path.read_bytes(), name)}", _digest(theirs, name)
            raise HubError(Problem(repository.name, name, expected, got, step))


def _other_zoo(local: LocalZoo, repository: RepositoryFiles, listing: RevisionListing) -> tuple[str, str] | None:
    """Return the zoo that is pushed and that of the repository by their names; None where these cannot be read."""
    try:
        names = [name for name in (layout.ZOO, layout.ARCHITECTURE) if name in listing.files]
        theirs = dict(zip(names, repository.read(names, listing), strict=True))
        ours = {name: local.documents[name].path.read_bytes() for name in names}
        (mine, arch), (other, other_arch) = (
            (
                Identity.from_json(unseal(files[layout.ZOO], location=layout.ZOO)[0], location=layout.ZOO).name,
                Architecture.from_json(unseal(files[layout.ARCHITECTURE], location=layout.ARCHITECTURE)[0]),
            )
            for files in (ours, theirs)
        )
    except Exception:  # somebody else wrote them: not JSON, not UTF-8, without a document
        return None
    said = [f"{name!r} of {architecture.name!r}" for name, architecture in ((mine, arch), (other, other_arch))]
    difference = architecture_difference(arch, other_arch)
    got = f"{said[1]}, whose tensors differ: {difference}" if difference else said[1]
    return (said[0], got) if difference or said[0] != said[1] else (said[0], "another zoo of these names")


def _digest(data: bytes, name: str) -> str:
    """Return the digest of a document, for a message; the document may hold anything."""
    try:
        return unseal(data, location=name)[1]
    except Exception:  # somebody else wrote it: not JSON, not UTF-8, nested too deeply
        return "an unreadable document"


def _check_same_bytes(location: str, missing: dict[str, LocalFile], stored: dict[str, RepoFile]) -> None:
    """Refuse a part of which the repository has files with other bytes."""
    for name in missing:
        if name in stored:
            step = "One of the two is damaged: ckptzoo verify says which."
            expected = f"{missing[name].size} bytes with sha256 {missing[name].sha256}"
            got = f"{stored[name].size} bytes with {stored[name].sha256 or stored[name].oid}"
            raise HubError(Problem(location, name, expected, got, step))


def _check_room(location: str, files: OverlayFiles, trees: Iterable[str]) -> None:
    """Refuse parts that would make a folder larger than a hub's may be."""
    for tree in sorted(trees):
        count = sum(layout.PART_NAME.fullmatch(name) is not None for name in files.listed(tree))
        if problem := layout.folder_problem(f"{location}/{tree}", count):
            raise HubError(problem)


def _is_there_renumbered(trees: dict[str, Tree], part: LocalPart) -> bool:
    """Tell whether a commit has this part under another number, as happens when two people add parts at once."""
    tree = trees.get(part.part.tree)
    others = () if tree is None else (other.digest for other in tree.parts if other.name != part.part.name)
    return part.part.digest in others


def _check_clashes(location: str, trees: dict[str, Tree], parts: Sequence[LocalPart]) -> None:
    """Refuse parts that hold what a commit has in another part.

    Raises ``HubError`` where a checkpoint's id or unit, or a variant of a checkpoint, exists, or a variant's versions
    would be mixed; the message names them.
    """
    problems = [problem for part in parts if part.part.tree in trees for problem in _clashes(location, trees, part)]
    if problems:
        raise HubError(problems[0])


def _clashes(location: str, trees: dict[str, Tree], part: LocalPart) -> Iterator[Problem]:
    tree = trees[part.part.tree]
    # Units are those of raw parts: a variant's column of that name holds the digest of its raw part.
    columns = {"id": "checkpoints", "unit": "units"} if part.part.tree == layout.PARTS else {"id": "checkpoints"}
    if part.part.tree.removeprefix(f"{layout.DERIVED}/") in layout.ROWS_ALONE:
        columns = {}
    for column, what in columns.items():
        own = part.rows[column]
        # Arrow's is_in finds null among nulls, and rows may have no unit
        both = own.filter(pc.call_function("is_in", [own], pc.SetLookupOptions(tree.rows[column].combine_chunks())))
        both = both.drop_null().unique()
        if len(both):
            shown = ", ".join(repr(name.as_py()) for name in both[:_MAX_SHOWN_IDS])
            more = f" and {len(both) - _MAX_SHOWN_IDS} more" if len(both) > _MAX_SHOWN_IDS else ""
            step = "Leave them out, or give them other ids; they were written by somebody else, or twice."
            yield Problem(location, f"{what} of {part.path}", "new ones", f"{shown}{more}, which it has", step)
    for fact in _SHARED_FACTS:
        own = str(part.part.facts.get(fact))
        if theirs := {str(other.facts.get(fact)) for other in tree.parts} - {own}:
            step = "Derive it again as the others were, with the same ckptzoo and inputs, or under another name."
            expected = shortened(", ".join(sorted(theirs)), _MAX_SHOWN_FACT)
            yield Problem(location, f"{fact} of {part.path}", expected, shortened(own, _MAX_SHOWN_FACT), step)
