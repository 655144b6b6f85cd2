"""What a repository will hold after a push: which parts clash with those of others, and a snapshot of all."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow.compute as pc

from ckptzoo.errors import HubError, Problem
from ckptzoo.format import snapshot
from ckptzoo.format.predictions import SHARED
from ckptzoo.format.reader import list_trees, read_tree
from ckptzoo.format.tree import Tree
from ckptzoo.hub.client.answers import Listing
from ckptzoo.hub.publishing.gathered import Gathered, Repository
from ckptzoo.hub.publishing.local import LocalFile, LocalPart
from ckptzoo.spec import layout
from ckptzoo.words import shortened

_TOMBS = f"{layout.DERIVED}/{layout.RETRACTED}"
_SHOWN = 3
_ALIKE = ("gauge", "version", "symmetry", *SHARED)
"""Facts in which all parts of a derived tree agree, those that it has."""
_LONG = 80


def trees_of(repository: Repository, listing: Listing, parts: Iterable[LocalPart]) -> dict[str, Tree]:
    """Rows and indices of a commit together with parts of this machine, which are read here."""
    files = files_of(repository, listing, parts)
    names = {tree: held for tree, held in list_trees(files).items() if held}
    known = snapshot.newest(files, names)
    return {tree: read_tree(files, tree, held, known) for tree, held in names.items()}


def files_of(
    repository: Repository, listing: Listing, parts: Iterable[LocalPart], others: Mapping[str, LocalFile] | None = None
) -> Gathered:
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
    return Gathered(repository, listing, local)


def known_under_another_name(trees: dict[str, Tree], part: LocalPart) -> bool:
    """Whether a commit has this part under another number, as happens to what two people add at once."""
    tree = trees.get(part.part.tree)
    others = () if tree is None else (held.digest for held in tree.parts if held.name != part.part.name)
    return part.part.digest in others


def refuse_clashes(where: str, trees: dict[str, Tree], parts: Sequence[LocalPart]) -> None:
    """Refuse parts that hold what a commit has under another part.

    Raises
    ------
    HubError
        A checkpoint's id or a unit is there already, a variant of a checkpoint is, or a variant's versions would be
        mixed; the message names them.
    """
    problems = [problem for part in parts if part.part.tree in trees for problem in _clashes(where, trees, part)]
    if problems:
        raise HubError(problems[0])


def _clashes(where: str, trees: dict[str, Tree], part: LocalPart) -> Iterator[Problem]:
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
            yield Problem(where, f"{what} of {part.path}", "new ones", f"{shown}{more}, which it has", step)
    for fact in _ALIKE:
        own = str(part.part.facts.get(fact))
        if held := {str(other.facts.get(fact)) for other in tree.parts} - {own}:
            step = "Derive it anew as the others were derived, with the same ckptzoo and inputs, or under another name."
            expected = shortened(", ".join(sorted(held)), _LONG)
            yield Problem(where, f"{fact} of {part.path}", expected, shortened(own, _LONG), step)


def snapshots_in(names: Iterable[str]) -> list[str]:
    """Those of some paths that are snapshots."""
    prefix = f"{layout.SNAPSHOTS}/"
    return [
        name for name in names if name.startswith(prefix) and layout.SNAPSHOT_NAME.fullmatch(name.removeprefix(prefix))
    ]


def snapshot_count(name: str) -> int:
    """How many parts a snapshot covers, from its path."""
    return int(name.rpartition("/")[2][:6])
