"""A pull that leaves tensors, variants or checkpoints out: parts are written again from the blocks that they need."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.format import table
from ckptzoo.format.checks import variant_dtype
from ckptzoo.format.digests import check_part
from ckptzoo.format.durable import write_file
from ckptzoo.format.files import Folder
from ckptzoo.format.landscapes import read_landscapes
from ckptzoo.format.part import Part, PartWriter
from ckptzoo.format.predictions import DTYPE, LOGITS
from ckptzoo.format.reader import read_contents
from ckptzoo.format.tree import Tree, places_of
from ckptzoo.format.writer import finite_rows
from ckptzoo.hub.pull.destination import (
    BlockCache,
    PulledParts,
    explain_disk_full,
    locked_destination,
    require_disk_space,
)
from ckptzoo.hub.pull.page import read_card_files, read_existing, write_card_files
from ckptzoo.hub.pull.selection import ProgressMeter, PullSelection, refuse_references
from ckptzoo.hub.pull.splits import copy_figures, read_splits, write_splits
from ckptzoo.loader.remote_files import RemoteFiles
from ckptzoo.loader.selection import left_out, standing
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.documents import Document, Identity, digest_of, seal
from ckptzoo.schema.metadata import RETRACTED_COLUMNS, columns_of
from ckptzoo.text import Progress

BATCH_BYTES = 64 * 2**20
"""At most this many bytes, or one checkpoint, are in memory at a time."""
_ELEMENT_THREADS = 8
"""A group element has no stream, so its tensors are read side by side."""

CheckRows = Callable[[str, pa.Table], None]
"""A function of the tree and the rows of a part, called before it appears; it raises if they must not go in."""


def extract(
    files: RemoteFiles | Folder, selection: PullSelection, root: Path, progress: Progress | None
) -> tuple[list[str], int, int]:
    """Write what the folder lacks; return the parts that came, how many were there, and the bytes fetched.

    Weights that lie in files of others are compared with the digests that they have, before their copies appear.
    """
    zoo = _open_standing(files)
    if isinstance(files, RemoteFiles):
        refuse_references(zoo.contents.identity, files)
    writer = SubsetWriter(zoo if selection.where is None else zoo.where(selection.where), selection)
    identity, documents = Identity(zoo.name, writer.arch.digest), {layout.ARCHITECTURE: seal(writer.arch.to_json())}
    if writer.has_all_tensors:
        # as they are stored: a shape that was declared with the table is no part of the architecture's document
        identity, documents = zoo.contents.identity, read_existing(files, layout.DOCUMENTS)
        identity = replace(identity, references=False)
    zoo_document = seal(identity.to_json())
    card_files, splits = read_card_files(files), read_splits(files, zoo.contents.identity)
    # a copy of weights that lie elsewhere keeps the figures, unless layers are left out, without which there is no loss
    is_copy = zoo.contents.identity.references and writer.has_all_tensors
    figures = read_landscapes(files, zoo.contents.identity) if is_copy else ()
    documents[layout.ZOO] = zoo_document  # last, because the folder is a zoo from then on
    stored_selection = {**selection.to_json(), "zoo": digest_of(zoo.contents.identity.to_json())}
    with locked_destination(root, zoo_document, stored_selection, partial=True) as destination:
        shared, blocks = None, None
        if isinstance(files, RemoteFiles):
            shared = files.remote.cache
            files.remote.cache = blocks = BlockCache(destination.blocks, shared, keeps=shared is not None)
        for name, data in documents.items():
            if not (root / name).exists():
                write_file(root / name, data)
        write_splits(root, splits, identity)
        pulled = PulledParts(root)
        pulled.find_copies(zoo.contents)
        written: list[str] = []
        todo = [
            [subset for subset in group if (subset.tree, subset.source.digest) not in pulled.sources]
            for group in writer.subsets
        ]
        group_bytes = [sum(subset.nbytes for subset in group) for group in todo]
        # Fetched blocks of one group are on the disk beside what is written from them, then they are removed.
        needed = sum(group_bytes) + (max(group_bytes, default=0) if shared is not None else 0)
        require_disk_space(root, needed)
        with explain_disk_full(root, needed):
            meter = ProgressMeter(sum(group_bytes), progress)
            for (raw_subset, *_), group in zip(writer.subsets, todo, strict=True):
                for subset in group:
                    raw = None
                    if subset is not raw_subset:
                        raw = pulled.sources[layout.PARTS, raw_subset.source.digest].digest
                    elif zoo.contents.identity.references:
                        writer.require_sound(subset)
                    part = writer.write(subset, root, raw, check_rows=pulled.add, meter=meter)
                    pulled.sources[subset.tree, subset.source.digest] = part
                    written.append(part.path)
                if blocks is not None:
                    blocks.clear()
            if len(retractions := pulled.missing_retractions(zoo.contents.retracted)):
                written.append(write_retractions(retractions, root, check_rows=pulled.add).path)
            taken = {source: part.digest for (tree, source), part in pulled.sources.items() if tree == layout.PARTS}
            copy_figures(root, figures, taken)
            write_card_files(files, card_files, root, selection, checkpoints=len(zoo))
        destination.remove_temporary()
    fetched = sum(group_bytes) if blocks is None else blocks.fetched
    return written, sum(map(len, writer.subsets)) - sum(map(len, todo)), fetched


def _open_standing(files: RemoteFiles | Folder) -> Zoo:
    """Return the checkpoints that were not retracted; warn of those that were."""
    contents = read_contents(files)
    rows = standing(contents)
    if warning := left_out(contents, rows):
        warnings.warn(f"{files.name}: {warning}.", UserWarning, stacklevel=5)  # at the caller of pull
    return Zoo(contents, {}, rows)


@dataclass(frozen=True)
class PartSubset:
    """A part to be written into ``tree``, from the part ``source``.

    ``places`` (K,) int64 are the positions of its checkpoints among those that were selected; ``weights``, ``element``
    and ``outputs`` are the tensors that it stores of the weights, of the group element, and of predictions.
    """

    tree: str
    source: Part
    places: NDArray[np.int64]
    weights: tuple[Tensor, ...] = ()
    element: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()

    @property
    def variant(self) -> str:
        """``raw`` or a gauge."""
        return layout.RAW if self.tree == layout.PARTS else self.tree.removeprefix(f"{layout.DERIVED}/")

    @property
    def inputs(self) -> str | None:
        """The set of inputs of predictions."""
        return layout.set_name(self.variant)

    @property
    def nbytes(self) -> int:
        return len(self.places) * sum(tensor.nbytes for tensor in (*self.weights, *self.element, *self.outputs))


class SubsetWriter:
    """Plans and writes the parts that hold a selection of a zoo.

    ``zoo`` has the selected checkpoints, ``arch`` the selected tensors; ``subsets`` are the parts to write: for every
    raw part its own, then those of its variants. Raises ``UnknownNameError`` where the zoo has no such variant, module
    or tensor, ``ZooError`` where no checkpoint is left.
    """

    def __init__(self, zoo: Zoo, selection: PullSelection) -> None:
        self._gauges = selection.gauges(zoo.gauges, location=zoo.address)
        self._sets = selection.sets(zoo.predicted, location=zoo.address)
        zoo = zoo if selection.includes_raw else _only_derived(zoo, self._gauges)
        self._zoo, self._contents = zoo, zoo.contents
        tensors = selection.tensors(zoo.arch, location=zoo.address)
        self._has_all_tensors, self._includes_raw = len(tensors) == len(zoo.arch.tensors), selection.includes_raw
        self.arch = zoo.arch if self._has_all_tensors else Architecture(zoo.arch.name, tensors)
        # all of a zoo that refers to files is no part of it: parts are as if the files had been imported
        self._is_copy = zoo.contents.identity.references and selection.is_everything
        if not len(zoo):
            got = f"none where {selection.where}"
            raise ZooError(Problem(zoo.address, "checkpoints to pull", "some", got, "Ask for others."))
        self.subsets = self._plan()

    @property
    def has_all_tensors(self) -> bool:
        """Whether every tensor is selected; then the table of symmetries and group elements are kept too."""
        return self._has_all_tensors

    def require_sound(self, subset: PartSubset) -> None:
        """Compare the weights of a raw part that lie in files of others with their digests.

        Raises ``IntegrityError`` where they are others.
        """
        contents = self._contents
        number = contents.raw.parts.index(subset.source)
        start = sum(part.rows for part in contents.raw.parts[:number])
        rows = None
        if len(subset.places) < subset.source.rows or not self._has_all_tensors:
            ids = pa.chunked_array([pa.array(self._zoo.take(subset.places).ids, pa.string())])
            rows = places_of(ids, contents.ids) - start
        tensors = [tensor.name for tensor in subset.weights]
        if problems := check_part(contents, number, rows, tensors).problems:
            raise IntegrityError(problems)

    def write(
        self, subset: PartSubset, root: Path, raw: str | None, *, check_rows: CheckRows, meter: ProgressMeter
    ) -> Part:
        """Write one part into the new zoo's folder; for a variant ``raw`` is the digest of its new raw part."""
        zoo = self._zoo.take(subset.places)
        facts: Document = {name: value for name, value in subset.source.facts.items() if name != "references"}
        if not self._is_copy:
            facts["pulled"] = {"zoo": zoo.name, "part": subset.source.digest}
        kind = str(subset.source.facts["kind"])
        if raw is None:
            rows = zoo.metadata
            if not subset.weights:
                facts["bare"] = True
        else:
            rows = _derived_rows(zoo, subset)
            rows = rows.set_column(
                rows.schema.get_field_index("unit"), "unit", pa.array([raw] * len(rows), pa.string())
            )
            facts["raw"] = raw
            if "others" in facts and len(subset.places) < subset.source.rows:
                # rows do not say which inputs they took
                facts["others"] = dict.fromkeys(facts["others"])
        stems: dict[str, Sequence[Tensor]] = {}
        if subset.element:
            stems[layout.ELEMENT] = subset.element
        if subset.weights:
            stems[subset.variant] = subset.weights
        if subset.outputs:
            stems[layout.PREDICTIONS] = subset.outputs
        symmetry = self._contents.symmetry
        columns = columns_of(kind, matrices=symmetry is not None and symmetry.has_matrices)
        rows, schema = rows.select([column.name for column in columns]), table.schema_of(columns)
        writer = PartWriter(root / subset.tree, sets=stems, schema=schema, facts=facts, rows=len(subset.places))
        try:
            start, checkpoint_bytes = 0, subset.nbytes // len(subset.places)
            for arrays, count in _batches(zoo, subset):
                listed = rows.slice(start, count).to_pylist()
                if self._contents.identity.references and raw is None:
                    finite = finite_rows(arrays[layout.RAW].values(), count)
                    listed = [{**row, "finite": good} for row, good in zip(listed, finite.tolist(), strict=True)]
                writer.add(arrays, listed)
                meter.add(count * checkpoint_bytes)
                start += count
            return writer.commit(root, refuse=lambda new_rows: check_rows(subset.tree, new_rows))
        # an interrupt too: a part that was not committed leaves no files
        except BaseException:
            writer.discard()
            raise

    def _plan(self) -> list[list[PartSubset]]:
        """Return the parts to write: for every raw part its own, then those of its variants."""
        contents, ids = self._contents, self._zoo.contents.ids
        selected = places_of(pa.chunked_array([pa.array(self._zoo.ids, pa.string())]), ids)
        starts = np.cumsum([0, *(part.rows for part in contents.raw.parts)])
        derived = [subset for gauge in self._gauges for subset in self._variant_subsets(gauge)]
        predicted = [subset for name in self._sets for subset in self._prediction_subsets(name)]
        groups: list[list[PartSubset]] = []
        for start, source in zip(starts.tolist(), contents.raw.parts, strict=False):
            places = np.flatnonzero((selected >= start) & (selected < start + source.rows))
            if len(places):
                of_variants = [
                    self._with_stored_tensors(subset, source)
                    for subset in derived
                    if subset.source.facts.get("raw") == source.digest
                ]
                stores_raw = self._includes_raw and source.facts.get("bare") is not True
                raw = PartSubset(layout.PARTS, source, places, self.arch.tensors if stores_raw else ())
                of_sets = [subset for subset in predicted if subset.source.facts.get("raw") == source.digest]
                groups.append([raw, *of_variants, *of_sets])
        return groups

    def _selected_places(self, tree: Tree) -> Iterator[tuple[int, Part, NDArray[np.int64]]]:
        """Yield the parts of a derived tree that hold selected checkpoints, with their numbers and where those are."""
        places = places_of(tree.rows["id"], pa.chunked_array([pa.array(self._zoo.ids, pa.string())]))
        start = 0
        for number, part in enumerate(tree.parts):
            part_places = places[start : start + part.rows]
            start += part.rows
            if len(part_places := part_places[part_places >= 0]):  # -1: the checkpoint was not selected
                yield number, part, part_places

    def _prediction_subsets(self, inputs: str) -> Iterator[PartSubset]:
        """Yield the parts of predictions that hold selected checkpoints."""
        tree = self._contents.derived(layout.predictions_name(inputs))
        for _, part, places in self._selected_places(tree):
            logits = Tensor(LOGITS, (part.facts["examples"], part.facts["classes"]), DTYPE)
            yield PartSubset(part.tree, part, places, outputs=(logits,))

    def _variant_subsets(self, gauge: str) -> Iterator[PartSubset]:
        """Yield parts of a variant that hold selected checkpoints, with the tensors that the zoo stores for them."""
        tree = self._contents.derived(gauge)
        outline = tree.outline.select(["part", "file", "tensor", "dtype", "shape"]).to_pylist()
        for number, part, part_places in self._selected_places(tree):
            stored: dict[str, dict[str, Tensor]] = {}  # by stem and name; one name is in several shards
            for row in (row for row in outline if row["part"] == number and row["tensor"] is not None):
                tensor = Tensor(row["tensor"], tuple(row["shape"][1:]), row["dtype"])
                stored.setdefault(row["file"].rpartition("-")[0], {}).setdefault(tensor.name, tensor)
            weights, element = (tuple(stored.get(stem, {}).values()) for stem in (gauge, layout.ELEMENT))
            yield PartSubset(f"{layout.DERIVED}/{gauge}", part, part_places, weights, element)

    def _with_stored_tensors(self, subset: PartSubset, raw: Part) -> PartSubset:
        """Set the tensors that a variant's part stores: weights unless raw ones beside them determine them."""
        computable = self._has_all_tensors and self._includes_raw and raw.facts.get("bare") is not True
        if computable and not subset.weights:
            return subset
        weights = tuple(replace(tensor, dtype=variant_dtype(tensor.dtype)) for tensor in self.arch.tensors)
        return replace(subset, weights=weights, element=subset.element if self._has_all_tensors else ())


def _only_derived(zoo: Zoo, gauges: Sequence[str]) -> Zoo:
    """Select the checkpoints with weights in one of these gauges; warn of the others, which have none to write."""
    derived_ids = {name for gauge in gauges for name in zoo.having(gauge).ids}
    is_derived = np.array([name in derived_ids for name in zoo.ids], dtype=np.bool_)
    if not is_derived.all():
        count = len(zoo) - int(is_derived.sum())
        warning = f"{count} of {len(zoo)} checkpoints are not derived in {', '.join(gauges)}, and left out."
        warnings.warn(f"{zoo.address}: {warning}", UserWarning, stacklevel=6)  # at the caller of pull
    return zoo.take(is_derived)


def _derived_rows(zoo: Zoo, subset: PartSubset) -> pa.Table:
    if subset.inputs is None:
        return zoo.variant_metadata(subset.variant)
    tree = zoo.contents.derived(subset.variant)
    return tree.metadata.take(pa.array(places_of(pa.chunked_array([pa.array(zoo.ids)]), tree.rows["id"])))


def _batches(zoo: Zoo, subset: PartSubset) -> Iterator[tuple[dict[str, Mapping[str, Any]], int]]:
    """Yield the arrays of a part, some checkpoints at a time, and how many."""
    count = len(subset.places)
    step = min(count, max(1, BATCH_BYTES // max(1, subset.nbytes // count)))
    element = zoo.group_element(subset.variant) if subset.element else {}
    names = [tensor.name for tensor in subset.weights]
    stream = iter(zoo.stream(*names, variant=subset.variant, batch_size=step)) if names else None
    outputs = zoo.predictions(subset.inputs).logits if subset.inputs is not None else None
    with ThreadPoolExecutor(_ELEMENT_THREADS, "ckptzoo-element") as pool:
        for start in range(0, count, step):
            rows = slice(start, min(start + step, count))
            arrays: dict[str, Mapping[str, Any]] = {}
            if element:
                tensors = pool.map(lambda tensor, rows=rows: element[tensor.name][rows], subset.element)
                arrays[layout.ELEMENT] = {
                    tensor.name: data for tensor, data in zip(subset.element, tensors, strict=True)
                }
            if stream is not None:
                arrays[subset.variant] = next(stream).tensors
            if outputs is not None:
                arrays[layout.PREDICTIONS] = {LOGITS: np.asarray(outputs[rows])}
            yield arrays, rows.stop - start


def write_retractions(rows: pa.Table, root: Path, *, check_rows: CheckRows) -> Part:
    """Write retractions as one part."""
    tree = f"{layout.DERIVED}/{layout.RETRACTED}"
    schema, facts = table.schema_of(RETRACTED_COLUMNS), {"kind": layout.RETRACTED}
    writer = PartWriter(root / tree, sets={}, schema=schema, facts=facts)
    try:
        writer.add({}, rows.to_pylist())
        return writer.commit(root, refuse=lambda new_rows: check_rows(tree, new_rows))
    # an interrupt too: a part that was not committed leaves no files
    except BaseException:
        writer.discard()
        raise
