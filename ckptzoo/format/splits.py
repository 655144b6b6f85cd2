"""Splits of a zoo: made or written, listed, and the checkpoints of a part found."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.arguments import checked
from ckptzoo.errors import IntegrityError, Problem, SpecError, UnknownNameError, ZooError
from ckptzoo.format import durable
from ckptzoo.format.files import Files, Folder
from ckptzoo.format.reader import read_contents, read_documents
from ckptzoo.format.table import array_of, array_of_values
from ckptzoo.format.tree import Tree, places_of
from ckptzoo.lazy_names import lazy_module
from ckptzoo.schema import layout
from ckptzoo.schema.documents import Identity, digest_of
from ckptzoo.schema.split import ID, MEMBER, HashSplit, ListSplit, Split, decode, encode

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = lazy_module("pyarrow.compute")

COLUMNS = ("id", "member", "mode")
"""The columns that decide a split."""
FRACTIONS = {"train": 0.7, "val": 0.15, "test": 0.15}
_SHOWN = 3


def members_of(rows: pa.Table) -> pa.ChunkedArray:
    """(N,) the unit of every checkpoint that no split may cut: the mode of a draw, else the member, else its own id.

    ``rows`` have the columns ``id``, ``member`` and ``mode``.
    """
    return pc.call_function("coalesce", [rows["mode"], rows["member"], rows["id"]])


def split_names(files: Files) -> tuple[str, ...]:
    """The names of a zoo's splits."""
    found = (layout.SPLIT_FILE.fullmatch(file) for file in files.listed(layout.SPLITS))
    return tuple(match[1] for match in found if match)


def read_split(files: Files, name: str, identity: Identity) -> Split:
    """A split of a zoo, its digest checked.

    Raises ``UnknownNameError`` if the zoo has no such split, and ``IntegrityError`` if the document is damaged, or that
    of another zoo or another split.
    """
    if name not in (known := split_names(files)):
        step = None if known else f"Make one: ckptzoo splits make {quote(str(files.here or 'ZOO'))} main."
        raise UnknownNameError(files.name, "split", name, known, step)
    location = f"{files.name}/{layout.split_file(name)}"
    split, zoo = decode(files.read(layout.split_file(name)), location=location), digest_of(identity.to_json())
    for what, expected, got in (("name", name, split.name), ("digest of the zoo", zoo, split.zoo)):
        if got != expected:
            step = "It is the split of another zoo, or under another name: make or import one here."
            raise IntegrityError(Problem(location, what, expected, got[:160], step))
    return split


def part_numbers(split: Split, rows: pa.Table) -> NDArray[np.int64]:
    """(N,) int64 the number of each checkpoint's part, from 0 in the order of ``split.parts``; -1 for those in none.

    ``rows`` have the columns ``id``, ``member`` and ``mode``.
    """
    if isinstance(split, HashSplit):
        encoded = members_of(rows).combine_chunks().dictionary_encode()
        numbers = {name: number for number, name in enumerate(split.parts)}
        own = np.array([numbers[split.part_of(member)] for member in encoded.dictionary.to_pylist()], dtype=np.int64)
        return own[np.from_dlpack(encoded.indices).astype(np.int64)]
    items = pa.chunked_array([array_of_values([item for part in split.lists.values() for item in part], pa.string())])
    owners = np.repeat(np.arange(len(split.parts)), [len(part) for part in split.lists.values()])
    return np.append(owners, -1)[places_of(rows[split.by], items)]  # -1 of those in no list is the last


@checked
def make_split(
    path: str | Path, name: str, fractions: Mapping[str, float] | None = None, *, seed: int = 0
) -> HashSplit:
    """Split a zoo's members by their hashes; the same arguments give the same bytes, and a growing zoo moves nobody.

    Parameters
    ----------
    path
        the zoo's folder.
    name
        of the split: small letters, digits and hyphens.
    fractions
        of the members that each part is expected to have, in order; together 1. By default train 0.7, val 0.15 and test
        0.15.
    seed
        another one gives another split.

    Raises
    ------
    SpecError
        A name or the fractions are none.
    ZooError
        The zoo has another split of this name.

    Notes
    -----
    A member's checkpoints are all in one part, and so are all draws around one mode of a posterior. How many each part
    has is left to chance.

    Examples
    --------
    >>> split = ckptzoo.make_split("zoos/few", "thirds", {"train": 0.67, "test": 0.33})
    >>> zoo = ckptzoo.open("zoos/few")
    >>> len(zoo.split("thirds", "train")), len(zoo.split("thirds", "test"))
    (13, 3)
    """
    files = Folder(path)
    identity, _, _ = read_documents(files)
    split = HashSplit(name, digest_of(identity.to_json()), seed, dict(fractions or FRACTIONS))
    _write(files, split)
    return split


@checked
def write_split(
    path: str | Path,
    name: str,
    parts: Mapping[str, Sequence[str]],
    *,
    by: str = ID,
    allow_shared_members: bool = False,
) -> ListSplit:
    """Write a split that lists its checkpoints or members, such as one that a paper used.

    Parameters
    ----------
    path
        the zoo's folder.
    name
        of the split: small letters, digits and hyphens.
    parts
        the ids or members of every part, in order.
    by
        ``id``, or ``member`` for all checkpoints of each member.
    allow_shared_members
        whether checkpoints of one member may be in several parts; the split says so then.

    Raises
    ------
    SpecError
        Something is listed twice, a part is empty, or a name is none.
    ZooError
        The zoo lacks some of them, has another split of this name, or a member would be in several parts.

    Examples
    --------
    >>> ids = ckptzoo.open("zoos/few").ids
    >>> split = ckptzoo.write_split("zoos/few", "paper", {"train": ids[:12], "test": ids[12:]})
    >>> len(ckptzoo.open("zoos/few").split("paper", "test"))
    4
    """
    files = Folder(path)
    location = f"{files.name}/{layout.split_file(name)}"
    if by not in (ID, MEMBER):
        step = "Choose one of them."
        raise SpecError(Problem(location, "by", f"{ID!r} or {MEMBER!r}", repr(by)[:80], step))
    if empty := [part for part, items in parts.items() if not len(items)]:
        raise SpecError(Problem(location, f"part {empty[0]!r}", f"one {by} or more", "none", "Leave it out."))
    contents = read_contents(files)
    lists = {part: tuple(sorted(items)) for part, items in parts.items()}
    split = ListSplit(name, digest_of(contents.identity.to_json()), by, lists)
    rows = contents.raw.rows.select(COLUMNS)
    if unknown := _unknown(by, lists, rows):
        shown = ", ".join(repr(item)[:80] for item in unknown[:_SHOWN])
        step = "Correct the list, or import these checkpoints first."
        expected = f"{by}s of this zoo"
        raise ZooError(Problem(location, f"{by}s", expected, f"{len(unknown):,} others, such as {shown}", step))
    shared = shared_members(split, rows)
    if shared and not allow_shared_members:
        got = f"{len(shared):,} in several, such as {shared[0]!r}"
        step = "List whole members, or allow it with allow_shared_members (--allow-shared-members)."
        raise ZooError(Problem(location, "members", "each in one part", got, step))
    if shared:
        split = ListSplit(name, split.zoo, by, lists, shared_members=True)
    _write(files, split)
    return split


def split_problems(files: Files, identity: Identity, raw: Tree) -> Iterator[Problem]:
    """Yield the problems of a zoo's splits.

    ``raw`` is the tree of its checkpoints. The lists of a zoo that was cut from another one may name checkpoints that
    it lacks.
    """
    is_cut = any("pulled" in part.facts for part in raw.parts)
    for name in split_names(files):
        location = f"{files.name}/{layout.split_file(name)}"
        try:
            split = read_split(files, name, identity)
        except IntegrityError as error:
            yield from error.problems
            continue
        if not isinstance(split, ListSplit):
            continue
        rows = raw.rows.select(COLUMNS)
        if not is_cut and (unknown := _unknown(split.by, split.lists, rows)):
            got = f"{len(unknown):,} others, such as {unknown[0][:80]!r}"
            yield Problem(location, f"{split.by}s", "those of this zoo", got, "Restore the parts that have them.")
        shared = shared_members(split, rows)
        if shared and not split.shared_members:
            got = f"{len(shared):,} in several, such as {shared[0][:80]!r}"
            yield Problem(location, "members", "each in one part", got, "Import the split again under another name.")


def _unknown(by: str, lists: Mapping[str, Sequence[str]], rows: pa.Table) -> list[str]:
    """Ids or members in lists that are none of these rows'."""
    known = set(rows[by].to_pylist())
    return [item for items in lists.values() for item in items if item not in known]


def shared_members(split: Split, rows: pa.Table) -> list[str]:
    """The members of which checkpoints are in several parts; none of them in a split by hashes.

    ``rows`` have the columns ``id``, ``member`` and ``mode``.
    """
    numbers = part_numbers(split, rows)
    own = members_of(rows).filter(array_of(numbers >= 0))
    pairs = pa.table({"member": own, "part": numbers[numbers >= 0]}).group_by("member")
    counts = pairs.aggregate([("part", "count_distinct")])
    return sorted(counts.filter(pc.field("part_count_distinct") > 1)["member"].to_pylist())


@dataclass(frozen=True)
class PartCount:
    """The size of one part of a split.

    ``part`` is None for what is in no part.
    """

    part: str | None
    members: int
    checkpoints: int


def part_counts(split: Split, rows: pa.Table) -> tuple[PartCount, ...]:
    """Count each part, and what is in none.

    ``rows`` are the zoo's, with the columns ``id``, ``member`` and ``mode``.
    """
    numbers, members = part_numbers(split, rows), members_of(rows)
    counts: list[PartCount] = []
    for number, part in [*enumerate(split.parts), (-1, None)]:
        own = members.filter(array_of(numbers == number))
        counts.append(PartCount(part, len(own.unique()), len(own)))
    return tuple(counts)


def _write(files: Folder, split: Split) -> None:
    """Write a split's document; equal bytes that are there stay, others are refused."""
    path, data = files.here / layout.split_file(split.name), encode(split)
    with durable.locked(files.here):
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            durable.write_file(path, data)
            durable.sync(files.here)
            return
        if path.read_bytes() != data:
            step = f"Choose another name; results of others may rest on it. If they do not, remove {path} first."
            location = f"{files.name}/{layout.split_file(split.name)}"
            raise ZooError(Problem(location, "split", "this one, or none of the name", "another one", step))
