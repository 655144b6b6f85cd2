"""A zoo of few parts, written from one of many; parts never change, so that it is another zoo, in another folder."""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pyarrow as pa

from ckptzoo.arguments import checked
from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.format import table
from ckptzoo.format.durable import Staging, make_folder, naming, sync, write_file
from ckptzoo.format.files import DEREFERENCE, Folder, leads_outside
from ckptzoo.format.maintenance import belongs_to_zoo
from ckptzoo.format.part import Arrays, Part, PartWriter
from ckptzoo.format.reader import Contents, read_contents
from ckptzoo.format.shard import ShardMap
from ckptzoo.format.tree import Tree
from ckptzoo.format.verify import damaged
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Tensor
from ckptzoo.schema.card import CARD_TOML, Card
from ckptzoo.schema.documents import REFETCH, Document, canonical
from ckptzoo.schema.metadata import columns_of
from ckptzoo.text import Progress

MERGED_ROWS, MERGED_BYTES = 2**17, 16 * 2**30
"""The maximum of checkpoints of a part that others are merged into, and of their raw weights' bytes."""
_BATCH_ROWS, _BATCH_BYTES = 2048, 32 * 2**20
"""The maximum of checkpoints that are copied at a time, and of their bytes, unless one has more."""


@dataclass(frozen=True)
class _Held:
    """A part with its rows and its index."""

    part: Part
    rows: pa.Table
    index: pa.Table

    @property
    def facts(self) -> Document:
        """The facts that parts must share to be merged: without those that name other parts, and without counts."""
        facts = {name: value for name, value in self.part.facts.items() if name != "raw"}
        if _counts_of(facts.get("others")) is not None:
            facts.pop("others", None)
        if (rule := _rule_of(facts)) is not None:
            facts["certificate"] = {**facts["certificate"], "rule": {**rule, "checkpoints": None}}
        # that a zoo is a part of another one says why its splits may name checkpoints that it lacks
        if isinstance(pulled := facts.get("pulled"), dict):
            facts["pulled"] = {"zoo": pulled.get("zoo")}
        return facts

    @property
    def sets(self) -> dict[str, tuple[Tensor, ...]]:
        """The tensors by the stem of their shards, in their order there."""
        found: dict[str, dict[str, Tensor]] = {}
        columns = [self.index[name].to_pylist() for name in ("file", "offset", "tensor", "dtype", "shape")]
        # an index may list blocks in any order
        for file, _, name, dtype, shape in sorted(zip(*columns, strict=True), key=lambda row: row[:2]):
            if name is not None:
                tensor = Tensor(name, tuple(shape[1:]), dtype)
                found.setdefault(file.rpartition("-")[0], {}).setdefault(name, tensor)
        return {stem: tuple(tensors.values()) for stem, tensors in found.items()}


@checked
def merge_parts(path: str | Path, to: str | Path, *, progress: Progress | None = None) -> dict[str, tuple[int, int]]:
    """Write a new zoo with the checkpoints of another in few parts, and everything that was derived of them.

    The zoo itself stays as it is: parts never change. The new one has the same documents, rows, weights and splits, in
    the same order and to the last bit; its revision and the digests of its parts are others, and its card names the
    revision that it was merged from. Tombstones and figures that were measured later come along.

    Parameters
    ----------
    path
        the zoo's folder.
    to
        the new zoo's folder, which does not exist or is empty.
    progress
        called with the raw checkpoints that are copied.

    Returns
    -------
    dict[str, tuple[int, int]]
        How many parts every tree had, and has.

    Raises
    ------
    ZooError
        Something is in the new folder, or it is in the zoo's.
    IntegrityError
        The zoo is damaged; nothing is written.

    Notes
    -----
    Raw parts in a row become one, of at most 131,072 checkpoints and 16 GiB, where they agree in their facts and in
    what was derived of them and how. Every shard is read twice, to check it and to copy it, in bounded memory; rows and
    indices are in memory. The folder appears whole, as the last step: where the process is killed before, nothing is
    there.

    Examples
    --------
    >>> ckptzoo.merge_parts("zoos/few", "zoos/fewer")["parts"]
    (1, 1)
    """
    # a folder cannot take the place of a link to one
    root, contents = Path(os.path.realpath(to)), read_contents(Folder(Path(path).absolute()))
    source = Path(os.path.realpath(path))
    if root != source and (root.is_relative_to(source) or source.is_relative_to(root)):
        got = "one in the zoo's folder" if root.is_relative_to(source) else "one that the zoo's folder is in"
        step = "Name another folder, such as one beside the zoo."
        raise ZooError(Problem(str(to), "a new zoo", f"a folder apart from {source}", got, step))
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        step = "Name another folder."
        raise ZooError(Problem(str(to), "a new zoo", "no folder or an empty one", "one with files", step))
    if contents.identity.references:
        step = f"Copy the weights first: ckptzoo materialize {quote(str(source))} --to NEWZOO."
        raise ZooError(Problem(source.name, "parts", "parts with their weights", "references to files", step))
    with naming(root):
        staging = Staging(root.parent)
    # in a folder of its own, because a part is written under the lock of its zoo, and the outer one is locked
    made = staging.path / root.name
    try:
        merger = _Merger(contents, made)
        with naming(root):
            made.mkdir()
            merger.copy_documents()
        merger.write(progress)
        with naming(root):
            sync(made)
            made.rename(root)
            sync(root.parent)
    finally:
        staging.discard()
    return merger.counts


class _Merger:
    """Writes the parts of a zoo again, fewer of them, into the folder ``target``."""

    def __init__(self, contents: Contents, target: Path) -> None:
        self._contents, self._target = contents, target
        self._digests: dict[str, str] = {}
        """The digests of new parts by those of the parts that are in them."""
        trees = {name: contents.derived(name) for name in contents.derived_parts}
        if contents.retracted.parts:
            trees[layout.RETRACTED] = contents.retracted
        self._trees = {f"{layout.DERIVED}/{name}": tree for name, tree in trees.items()}
        self.counts: dict[str, tuple[int, int]] = {}

    def copy_documents(self) -> None:
        """Copy documents, splits and pictures, and the card with a note."""
        source = self._contents.root
        folders = (source / name for name in (layout.SPLITS, layout.PICTURES))
        inner = (path for folder in folders for path in sorted(folder.rglob("*")))
        for path in (*(source / name for name in (layout.README, *layout.DOCUMENTS)), *inner):
            name = path.relative_to(source).as_posix()
            if not path.is_file() or not belongs_to_zoo(name):
                continue
            if (outside := leads_outside(path, source)) is not None:
                location = f"{source.name}/{name}"
                got = f"a link to {outside}"
                raise IntegrityError(Problem(location, "file", "one in the zoo's folder", got, DEREFERENCE))
            make_folder((self._target / name).parent)
            write_file(self._target / name, path.read_bytes())
        card = Card.from_toml(source / CARD_TOML) if (source / CARD_TOML).is_file() else Card(source.name)
        count = len(self._contents.raw.parts)
        note = f"Merged from {count:,} parts of revision `{self._contents.revision}`."
        notes = f"{card.notes}\n\n{note}" if card.notes else note
        write_file(self._target / CARD_TOML, replace(card, notes=notes).to_toml().encode())

    def write(self, progress: Progress | None) -> None:
        """Write all parts: raw ones with what is derived of them, then rows that stand alone."""
        raw = list(_held(self._contents.raw))
        by_raw: dict[str, list[_Held]] = {}
        for path, tree in self._trees.items():
            if path.rpartition("/")[2] not in layout.ROWS_ALONE:
                for held in _held(tree):
                    by_raw.setdefault(str(held.part.facts.get("raw")), []).append(held)
        if lost := by_raw.keys() - {held.part.digest for held in raw}:
            got = f"of {len(lost)} others, such as {min(lost)}"
            location = f"{self._contents.files.name}/{by_raw[min(lost)][0].part.path}"
            raise IntegrityError(Problem(location, "raw part of its rows", "one of this zoo", got, REFETCH))
        done, total = 0, sum(held.part.rows for held in raw)
        for group in _groups(raw, by_raw, self._contents.architecture.nbytes):
            new = self._merge(group, {})
            for together in zip(*(by_raw.get(held.part.digest, []) for held in group), strict=True):
                self._merge(together, {"raw": new.digest})
            done += new.rows
            if progress is not None:
                progress(done, total)
        for path in (path for path in self._trees if path.rpartition("/")[2] in layout.ROWS_ALONE):
            listed = list(_held(self._trees[path]))
            for _, group in itertools.groupby(listed, key=lambda held: canonical(held.facts)):
                self._merge(list(group), {})

    def _merge(self, group: Sequence[_Held], facts: Document) -> Part:
        """Write the rows and tensors of some parts as one."""
        first, root = group[0], self._contents.root
        kind = str(first.part.facts["kind"])
        symmetry = self._contents.symmetry
        columns = columns_of(kind, matrices=symmetry is not None and symmetry.has_matrices)
        for held in group:
            if problems := damaged(root, held.part, held.index):
                raise IntegrityError(problems)
        rows = sum(held.part.rows for held in group)
        writer = PartWriter(
            self._target / first.part.tree,
            sets=first.sets,
            schema=table.schema_of(columns),
            facts={**first.facts, **_summed([held.part.facts for held in group]), **facts},
            rows=rows,
        )
        try:
            for held in group:
                for arrays, start, stop in _batches(root, held):
                    some = held.rows.slice(start, stop - start).select([column.name for column in columns])
                    writer.add(arrays, [self._renamed(row) for row in some.to_pylist()])
            part = writer.commit(self._target, refuse=lambda _: None)
        except BaseException:  # KeyboardInterrupt too
            writer.discard()
            raise
        self._digests |= {held.part.digest: part.digest for held in group}
        before, after = self.counts.get(part.tree, (0, 0))
        self.counts[part.tree] = before + len(group), after + 1
        return part

    def _renamed(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row whose unit, where it is the digest of a part, is that of the new part."""
        return {**row, "unit": self._digests[row["unit"]]} if row.get("unit") in self._digests else row


def _counts_of(others: object) -> dict[str, int | None] | None:
    """Return the numbers of rows by the digest of the inputs that they took, None where rows do not say it."""
    if others is None:
        return {}
    if isinstance(others, dict) and all(count is None or type(count) is int for count in others.values()):
        return others
    return None


def _rule_of(facts: Document) -> Document | None:
    """Return the rule of equivalence checks with a number of checkpoints, where a part's facts have one."""
    certificate = facts.get("certificate")
    rule = certificate.get("rule") if isinstance(certificate, dict) else None
    return rule if isinstance(rule, dict) and type(rule.get("checkpoints")) is int else None


def _summed(listed: Sequence[Document]) -> Document:
    """Return the facts with counts of a part that others are merged into, whose facts agree but for these."""
    summed: Document = {}
    counts = [_counts_of(facts.get("others")) or {} for facts in listed]
    others: dict[str, int | None] = {}
    for digest in sorted({digest for own in counts for digest in own}):
        known = [number for own in counts if (number := own.get(digest, 0)) is not None]
        others[digest] = sum(known) if len(known) == len(counts) else None
    if others:
        summed["others"] = others
    if rules := [rule for rule in map(_rule_of, listed) if rule is not None]:
        rule = {**rules[0], "checkpoints": sum(rule["checkpoints"] for rule in rules)}
        summed["certificate"] = {**listed[0]["certificate"], "rule": rule}
    return summed


def _described(sets: Mapping[str, Sequence[Tensor]]) -> list[list[Any]]:
    """Return the stems with their tensors, in an order that does not depend on that of the tensors."""
    return [[stem, sorted(map(str, tensors))] for stem, tensors in sorted(sets.items())]


def _held(tree: Tree) -> Iterator[_Held]:
    """Yield the parts of a tree with their rows and index."""
    rows, index, start = tree.metadata, tree.index.drop_columns(["part"]), 0
    bounds = np.searchsorted(tree.index["part"].to_numpy(), np.arange(len(tree.parts) + 1)).tolist()
    for part, first, behind in zip(tree.parts, bounds[:-1], bounds[1:], strict=True):
        yield _Held(part, rows.slice(start, part.rows), index.slice(first, behind - first))
        start += part.rows


def _groups(raw: Sequence[_Held], by_raw: Mapping[str, Sequence[_Held]], row_bytes: int) -> Iterator[list[_Held]]:
    """Yield raw parts in a row that become one."""

    def signature(held: _Held) -> bytes:
        together = [held, *by_raw.get(held.part.digest, ())]
        return canonical([[each.part.tree, each.facts, _described(each.sets)] for each in together])

    most = max(1, min(MERGED_ROWS, MERGED_BYTES // row_bytes))
    group: list[_Held] = []
    agreed, rows = b"", 0
    for held in raw:
        own = signature(held)
        if group and (own != agreed or rows + held.part.rows > most):
            yield group
            group, rows = [], 0
        agreed = own
        group.append(held)
        rows += held.part.rows
    if group:
        yield group


def _batches(root: Path, held: _Held) -> Iterator[tuple[Mapping[str, Arrays], int, int]]:
    """Yield the tensors of some rows at a time by stem, as they are stored, and the first row and the one behind."""
    maps: dict[str, ShardMap] = {}
    spans: list[tuple[str, int, int]] = []
    places: dict[str, dict[str, tuple[int, str, tuple[int, ...]]]] = {}
    for row in held.index.to_pylist():
        file, start, stop = row["file"], row["row_start"], row["row_stop"]
        if row["tensor"] is None:
            maps[file] = ShardMap(root / held.part.path / file, nbytes=row["nbytes"])
            spans.append((file, start, stop))
            continue
        # blocks of a tensor lie one behind the other in a shard, and an index may list them in any order
        own, name = places.setdefault(file, {}), row["tensor"]
        if name not in own or row["offset"] < own[name][0]:
            own[name] = row["offset"], row["dtype"], tuple(row["shape"][1:])
    row_bytes = sum(tensor.nbytes for tensors in held.sets.values() for tensor in tensors)
    step = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, row_bytes)))
    edges = {edge for _, start, stop in spans for edge in (start, stop)}
    cuts = sorted({*range(0, held.part.rows, step), held.part.rows, *edges})
    for start, stop in itertools.pairwise(cuts):
        arrays: dict[str, dict[str, Any]] = {}
        for file, first, behind in spans:
            if first <= start and stop <= behind:
                arrays[file.rpartition("-")[0]] = {
                    name: maps[file].array(offset, dtype, (behind - first, *shape))[start - first : stop - first]
                    for name, (offset, dtype, shape) in places.get(file, {}).items()
                }
        yield arrays, start, stop
