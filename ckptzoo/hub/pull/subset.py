"""A pull that leaves tensors, variants or checkpoints out: parts are written anew from blocks that are fetched.

Parts that are written anew from some of what a zoo holds: some tensors, some variants, some checkpoints.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError
from ckptzoo.format import table
from ckptzoo.format.checks import variant_dtype
from ckptzoo.format.durable import write_file
from ckptzoo.format.part import Part, PartWriter
from ckptzoo.format.reader import read_contents
from ckptzoo.format.tree import places_of
from ckptzoo.hub.pull.destination import BlockCache, PulledParts, explain_disk_full, locked_destination, need_room
from ckptzoo.hub.pull.page import read_cards, write_cards
from ckptzoo.hub.pull.selection import Meter, PullSelection
from ckptzoo.loader.remote_files import RemoteFiles
from ckptzoo.loader.selection import left_out, standing
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.documents import Document, Identity, digest_of, seal
from ckptzoo.schema.metadata import COLUMNS, RETRACTED_COLUMNS, VARIANT_COLUMNS
from ckptzoo.text import Progress

BATCH_BYTES = 64 * 2**20
"""At most so many bytes, or one checkpoint, are held at a time."""

Refuse = Callable[[str, list[dict[str, Any]]], None]
"""Told the tree and the rows of a part before it appears; raises if they must not go in."""


@dataclass(frozen=True)
class PartSubset:
    """One part that is to be written.

    Parameters
    ----------
    tree : where it goes.
    source : the part that it is made from.
    places : (K,) int64, its checkpoints among those that were selected.
    weights, element : the tensors that it stores of the weights, and of the group element.
    """

    tree: str
    source: Part
    places: NDArray[np.int64]
    weights: tuple[Tensor, ...]
    element: tuple[Tensor, ...] = ()

    @property
    def variant(self) -> str:
        """``raw`` or a gauge."""
        return layout.RAW if self.tree == layout.PARTS else self.tree.removeprefix(f"{layout.DERIVED}/")

    @property
    def nbytes(self) -> int:
        """Of what it stores."""
        return len(self.places) * sum(tensor.nbytes for tensor in (*self.weights, *self.element))


class SubsetWriter:
    """What is to be written of a zoo, and its writing.

    Parameters
    ----------
    zoo : the checkpoints that were selected.
    asked : which variants and tensors.

    Raises
    ------
    UnknownNameError
        The zoo has no such variant, module or tensor.
    ZooError
        No checkpoint is left.
    """

    def __init__(self, zoo: Zoo, asked: PullSelection) -> None:
        self._gauges = asked.gauges(zoo.gauges, location=zoo.address)
        zoo = zoo if asked.raw else _derived(zoo, self._gauges)
        self._zoo, self._contents = zoo, zoo.contents
        tensors = asked.tensors(zoo.arch, location=zoo.address)
        self._whole, self._raw = len(tensors) == len(zoo.arch.tensors), asked.raw
        self.arch = zoo.arch if self._whole else Architecture(zoo.arch.name, tensors)
        if not len(zoo):
            step = "Ask for others."
            raise ZooError(Problem(zoo.address, "checkpoints to pull", "some", f"none where {asked.where}", step))
        self.cuts = self._all()

    @property
    def whole(self) -> bool:
        """Whether every tensor is asked for; then groups and their elements are kept too."""
        return self._whole

    def write(self, cut: PartSubset, root: Path, raw: str | None, *, refuse: Refuse, meter: Meter) -> Part:
        """Write one part.

        Parameters
        ----------
        root : the new zoo's folder.
        raw : for a variant's part, the digest of the new raw part of its checkpoints.
        """
        zoo = self._zoo.take(cut.places)
        facts: Document = {**cut.source.facts, "pulled": {"zoo": zoo.name, "part": cut.source.digest}}
        if raw is None:
            rows, columns = zoo.metadata, COLUMNS
            if not cut.weights:
                facts["bare"] = True
        else:
            rows, columns = zoo.variant_metadata(cut.variant), VARIANT_COLUMNS
            rows = rows.set_column(
                rows.schema.get_field_index("unit"), "unit", pa.array([raw] * len(rows), pa.string())
            )
            facts["raw"] = raw
        stems: dict[str, Sequence[Tensor]] = {}
        if cut.element:
            stems[layout.ELEMENT] = cut.element
        if cut.weights:
            stems[cut.variant] = cut.weights
        writer = PartWriter(
            root / cut.tree, sets=stems, schema=table.schema_of(columns), facts=facts, rows=len(cut.places)
        )
        try:
            at, each = 0, cut.nbytes // len(cut.places)
            for arrays, count in _batches(zoo, cut):
                writer.add(arrays, rows.slice(at, count).to_pylist())
                meter.moved(count * each)
                at += count
            return writer.commit(root, refuse=lambda found: refuse(cut.tree, found))
        except BaseException:
            writer.discard()
            raise

    def _all(self) -> list[list[PartSubset]]:
        """The parts to write: for every raw part its own, and those of its variants behind it."""
        contents, ids = self._contents, self._zoo.contents.ids
        selected = places_of(pa.chunked_array([pa.array(self._zoo.ids, pa.string())]), ids)
        starts = np.cumsum([0, *(part.rows for part in contents.raw.parts)])
        derived = [cut for gauge in self._gauges for cut in self._derived(gauge)]
        made: list[list[PartSubset]] = []
        for start, source in zip(starts.tolist(), contents.raw.parts, strict=False):
            places = np.flatnonzero((selected >= start) & (selected < start + source.rows))
            if len(places):
                mine = [self._stores(cut, source) for cut in derived if cut.source.facts.get("raw") == source.digest]
                kept = self._raw and source.facts.get("bare") is not True
                made.append([PartSubset(layout.PARTS, source, places, self.arch.tensors if kept else ()), *mine])
        return made

    def _derived(self, gauge: str) -> Iterator[PartSubset]:
        """The parts of a variant that hold selected checkpoints, with the tensors that they store afar."""
        tree = self._contents.derived(gauge)
        places = places_of(tree.rows["id"], pa.chunked_array([pa.array(self._zoo.ids, pa.string())]))
        outline = tree.outline.select(["part", "file", "tensor", "dtype", "shape"]).to_pylist()
        at = 0
        for number, part in enumerate(tree.parts):
            mine = places[at : at + part.rows]
            at += part.rows
            held: dict[str, dict[str, Tensor]] = {}
            for row in (row for row in outline if row["part"] == number and row["tensor"] is not None):
                kind = Tensor(row["tensor"], tuple(row["shape"][1:]), row["dtype"])
                held.setdefault(row["file"].rpartition("-")[0], {}).setdefault(kind.name, kind)
            if len(mine := mine[mine >= 0]):
                element = tuple(held.get(layout.ELEMENT, {}).values())
                yield PartSubset(f"{layout.DERIVED}/{gauge}", part, mine, tuple(held.get(gauge, {}).values()), element)

    def _stores(self, cut: PartSubset, raw: Part) -> PartSubset:
        """What a variant's part stores here: weights wherever they cannot be computed from raw ones beside them."""
        if self._whole and self._raw and raw.facts.get("bare") is not True and not cut.weights:
            return cut
        stored = tuple(replace(tensor, dtype=variant_dtype(tensor.dtype)) for tensor in self.arch.tensors)
        return replace(cut, weights=stored, element=cut.element if self._whole else ())


def _derived(zoo: Zoo, gauges: Sequence[str]) -> Zoo:
    """The checkpoints that have weights in one of these gauges; others, which have none to write, are left out."""
    known = {name for gauge in gauges for name in zoo.having(gauge).ids}
    having = np.array([name in known for name in zoo.ids], dtype=np.bool_)
    if not having.all():
        left = f"{len(zoo) - int(having.sum())} of {len(zoo)} checkpoints are not derived in {', '.join(gauges)}"
        warnings.warn(f"{zoo.address}: {left}, and left out.", UserWarning, stacklevel=5)
    return zoo.take(having)


def _batches(zoo: Zoo, cut: PartSubset) -> Iterator[tuple[dict[str, Mapping[str, Any]], int]]:
    """The arrays of a part, some checkpoints at a time."""
    count = len(cut.places)
    step = min(count, max(1, BATCH_BYTES // max(1, cut.nbytes // count)))
    element = zoo.group_element(cut.variant) if cut.element else {}
    names = [tensor.name for tensor in cut.weights]
    stream = iter(zoo.stream(*names, variant=cut.variant, batch_size=step)) if names else None
    with ThreadPoolExecutor(8, "ckptzoo-element") as pool:
        for start in range(0, count, step):
            some = slice(start, min(start + step, count))
            arrays: dict[str, Mapping[str, Any]] = {}
            if element:
                found = pool.map(lambda tensor, some=some: element[tensor.name][some], cut.element)
                arrays[layout.ELEMENT] = {tensor.name: data for tensor, data in zip(cut.element, found, strict=True)}
            if stream is not None:
                arrays[cut.variant] = next(stream).tensors
            yield arrays, some.stop - start


def write_tombstones(rows: pa.Table, root: Path, *, refuse: Refuse) -> Part:
    """Write retractions as one part."""
    writer = PartWriter(
        root / layout.DERIVED / layout.RETRACTED,
        sets={},
        schema=table.schema_of(RETRACTED_COLUMNS),
        facts={"kind": layout.RETRACTED},
    )
    try:
        writer.add({}, rows.to_pylist())
        return writer.commit(root, refuse=lambda found: refuse(f"{layout.DERIVED}/{layout.RETRACTED}", found))
    except BaseException:
        writer.discard()
        raise


def extract(
    files: RemoteFiles, asked: PullSelection, root: Path, progress: Progress | None
) -> tuple[list[str], int, int]:
    """Write what the folder lacks; returns the parts that came, how many were there, and the bytes fetched."""
    zoo = _standing(files)
    selected = zoo if asked.where is None else zoo.where(asked.where)
    cuts = SubsetWriter(selected, asked)
    symmetry = zoo.contents.identity.symmetry if cuts.whole else None
    identity = seal(Identity(zoo.name, cuts.arch.digest, symmetry).to_json())
    cards = read_cards(files)
    documents = {layout.ARCHITECTURE: seal(cuts.arch.to_json())}
    if cuts.whole and files.size(layout.SYMMETRY) is not None:
        documents[layout.SYMMETRY] = files.read(layout.SYMMETRY)
    documents[layout.ZOO] = identity
    selection = {**asked.to_json(), "zoo": digest_of(zoo.contents.identity.to_json())}
    with locked_destination(root, identity, selection, partial=True) as place:
        remote = files.remote
        shared = remote.cache
        remote.cache = blocks = BlockCache(place.blocks, shared, keeps=shared is not None)
        for name, data in documents.items():
            if not (root / name).exists():
                write_file(root / name, data)
        held = PulledParts(root)
        parts: list[str] = []
        todo = [[cut for cut in one if (cut.tree, cut.source.digest) not in held.sources] for one in cuts.cuts]
        sizes = [sum(cut.nbytes for cut in some) for some in todo]
        needed = sum(sizes) + (max(sizes, default=0) if shared is not None else 0)
        need_room(root, needed)
        with explain_disk_full(root, needed):
            meter = Meter(sum(sizes), progress)
            for (first, *_), some in zip(cuts.cuts, todo, strict=True):
                for cut in some:
                    raw = None if cut is first else held.sources[layout.PARTS, first.source.digest].digest
                    part = cuts.write(cut, root, raw, refuse=held.add, meter=meter)
                    held.sources[cut.tree, cut.source.digest] = part
                    parts.append(part.path)
                blocks.clear()
            if len(tombs := held.lacking_tombstones(zoo.contents.retracted)):
                parts.append(write_tombstones(tombs, root, refuse=held.add).path)
            write_cards(files, cards, root, asked, of=len(zoo))
        place.finish()
    return parts, sum(map(len, cuts.cuts)) - sum(map(len, todo)), blocks.fetched


def _standing(files: RemoteFiles) -> Zoo:
    """The checkpoints that were not retracted."""
    contents = read_contents(files)
    rows = standing(contents)
    if told := left_out(contents, rows):
        warnings.warn(f"{files.name}: {told}.", UserWarning, stacklevel=4)
    return Zoo(contents, {}, rows)
