"""Checks of parts by their indices alone: against the architecture, the symmetry table and the files' sizes.

No shard is read. ``ckptzoo.format.verify`` reads them.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format.files import Files
from ckptzoo.format.header import CODES
from ckptzoo.format.limits import FREE_ROWS, rows_in
from ckptzoo.format.part import Part
from ckptzoo.format.predictions import input_problems, prediction_problems
from ckptzoo.format.table import numbers
from ckptzoo.format.tree import Tree, places_of
from ckptzoo.schema.architecture import ITEMSIZE, Architecture, name_problem
from ckptzoo.schema.documents import REFETCH, Document
from ckptzoo.schema.layout import (
    DERIVED,
    ELEMENT,
    INDEX,
    PREDICTIONS,
    RAW,
    REFERENCES,
    ROWS_ALONE,
    SET_ASIDE,
    SHARD_NAME,
    SYMMETRY,
    predictions_name,
)
from ckptzoo.schema.symmetry import Symmetry

Kind = tuple[str, tuple[int, ...]]
"""The dtype and the shape of one tensor in one checkpoint."""


MAX_PROBLEMS = 100
"""The maximum number of reported problems of one part, and of a zoo; there may be millions."""
_UNPACKED = 4096
"""Rows of an index as Python objects at a time, about 1 kB each."""


class RowLimits(NamedTuple):
    """The limits of a part for each of its checkpoints, from the architecture, known before anything is decoded.

    ``blocks`` is the maximum of index rows in a part of any kind; ``nbytes`` is the minimum of bytes of shards in a raw
    part that has weights.
    """

    blocks: int
    nbytes: int


def row_limits(arch: Architecture, symmetry: Symmetry | None) -> RowLimits:
    """The limits of every part of a zoo.

    Each tensor of a checkpoint is in one block and one shard: those of the architecture, those of the group element,
    two a group, and the outputs, in shards of at most two stems.
    """
    groups = 0 if symmetry is None else len(symmetry.groups)
    # without its table a zoo may hold the elements of groups of which nothing is known, at most two a tensor's axis
    axes = sum(len(tensor.shape) for tensor in arch.tensors) if symmetry is None else 0
    return RowLimits(len(arch.tensors) + 2 * (groups + axes) + 3, arch.nbytes)


def require_bytes(files: Files, part: Part, index: pa.Table, bytes_a_row: int) -> None:
    """Raise IntegrityError where the shards of a large raw part are too small for its checkpoints.

    Asked before the part's rows are decoded: Parquet packs rows that nobody has weights for into next to nothing.
    """
    if part.rows <= FREE_ROWS or part.facts.get("kind") != RAW or part.facts.get("bare") is True:
        return
    if "references" in part.facts:
        limit = rows_in(files.size(f"{part.path}/{REFERENCES}") or 0)
        if part.rows > limit:
            location = f"{files.name}/{part.path}/{REFERENCES}"
            raise IntegrityError(Problem(location, "checkpoints", f"at most {limit}", str(part.rows), REFETCH))
        return
    held = sum(files.size(f"{part.path}/{file}") or 0 for file in index["file"].unique().to_pylist())
    if part.rows * bytes_a_row > held:
        location, expected = f"{files.name}/{part.path}/{INDEX}", f"{held // bytes_a_row} in shards of {held} bytes"
        raise IntegrityError(Problem(location, "checkpoints", expected, str(part.rows), REFETCH))


def variant_dtype(dtype: str) -> str:
    """The dtype in which a variant has a tensor: half precisions become float32, all others stay."""
    # float16 cannot hold rescaled weights and small variances
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def element_problems(
    location: str,
    symmetry: Symmetry | None,
    digest: str | None,
    facts: Document,
    elements: Mapping[str, Kind],
    *,
    weights: bool,
) -> Iterator[Problem]:
    """Yield the problems of the group elements of one part of a variant.

    ``symmetry`` and ``digest`` are the zoo's table and its digest, None where it has none; ``facts`` are the part's;
    ``elements`` has the contents of its ``g`` shards; ``weights`` says whether the part stores the variant's weights;
    otherwise they are computed with the zoo's table.
    """
    promised = facts.get("symmetry")
    if symmetry is None or promised != digest:
        if not weights:
            got, step = str(digest or "no such file"), f"Restore {SYMMETRY} from a copy."
            yield Problem(f"{location}/{INDEX}", f"digest of {SYMMETRY}", str(promised), got, step)
        return
    if not weights and symmetry.has_matrices:
        expected_shards = "some, as products with the table's matrices have the same bits on one machine alone"
        step = "Remove the variant's folder and derive it again."
        yield Problem(f"{location}/{INDEX}", "shards with the variant's weights", expected_shards, "none", step)
    expected: dict[str, Kind] = {}
    for group in symmetry.groups:
        # the format takes permutations of any integer dtype
        dtype, _ = elements.get(f"{group.id}.perm", ("int32", ()))
        expected[f"{group.id}.perm"] = (dtype if dtype.startswith(("int", "uint")) else "int32", (group.n,))
        if group.scaled:
            expected[f"{group.id}.scale"] = ("float64", (group.n,))
        if (shape := group.matrix_shape) is not None:
            expected[f"{group.id}.matrix"] = ("float64", shape)
    for name in sorted({*expected, *elements}):
        if expected.get(name) != elements.get(name):
            wanted, got = (
                "no such tensor" if side.get(name) is None else "{} {}".format(*side[name])
                for side in (expected, elements)
            )
            yield Problem(f"{location}/g-*.safetensors", f"tensor {name!r}", wanted, got, REFETCH)


def origin_problems(files: Files, raw: Tree, tree: Tree, places: NDArray[np.int64] | None = None) -> Iterator[Problem]:
    """Parts of a variant whose rows are in another raw part than the one that they were derived from.

    ``places`` are the positions of its rows among the raw ones, -1 where they are not there; by default they are found.
    """
    bounds = np.cumsum([0, *(part.rows for part in raw.parts)])
    places = places_of(tree.rows["id"], raw.rows["id"]) if places is None else places
    owner = np.searchsorted(bounds, places, side="right") - 1
    first = 0
    for part in tree.parts:
        numbers = np.unique(owner[first : first + part.rows])  # -1 where no raw part has the row
        first += part.rows
        promised = str(part.facts.get("raw"))
        others = {raw.parts[number].digest for number in numbers[numbers >= 0].tolist()} - {promised}
        if others:
            step = f"{SET_ASIDE} Then derive it again."
            yield Problem(f"{files.name}/{part.path}", "raw part of its rows", promised, min(others), step)


def geometry_problems(files: Files, arch: Architecture, symmetry: Symmetry | None, tree: Tree) -> list[Problem]:
    """Problems of every part's index: names, sizes, shapes, dtypes, and rows that no block covers."""
    problems = [problem for _, found in problems_by_part(files, arch, symmetry, tree) for problem in found]
    return [*problems, *input_problems(files, tree)]


def problems_by_part(
    files: Files, arch: Architecture, symmetry: Symmetry | None, tree: Tree
) -> Iterator[tuple[slice, list[Problem]]]:
    """Yield for every part of a tree its rows of the index, and the problems of these."""
    outline = tree.outline
    owners = numbers(outline["part"])
    bounds = np.searchsorted(owners, np.arange(len(tree.parts) + 1))
    table = symmetry, None if symmetry is None or tree.kind != "variant" else symmetry.digest
    rows = _index_rows(outline)
    for part, start, stop in zip(tree.parts, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        found = _PartIndex(files, part)
        found.read(itertools.islice(rows, stop - start))
        # further checks would only repeat what is wrong with the index
        if not found.problems:
            found.compare_shards()
            found.compare_kind(arch, *table)
        yield slice(start, stop), found.problems


def _index_rows(outline: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of an index, some thousands unpacked at a time: a part's alone may be two."""
    names = ["file", "tensor", "row_start", "row_stop", "offset", "nbytes", "dtype", "shape"]
    for start in range(0, len(outline), _UNPACKED):
        columns = outline.slice(start, _UNPACKED).select(names).to_pydict()
        yield from zip(*columns.values(), strict=True)


class _PartIndex:
    """The shards and tensors in the index of a part, and their problems.

    ``problems`` are those found so far.
    """

    def __init__(self, files: Files, part: Part) -> None:
        self.problems: list[Problem] = []
        self._files, self._part, self._location = files, part, f"{files.name}/{part.path}"
        self._sizes: dict[str, int] = {}
        """Bytes of each shard."""
        self._shard_rows: dict[str, tuple[int, int]] = {}
        """First row of each shard, and the one behind its last."""
        self._row_zero: dict[tuple[str, str], int] = {}
        """Offset at which a tensor's row 0 of the part would be in a shard: one for all its blocks there."""
        self._rows: dict[str, list[tuple[int, int]]] = {}
        """The rows of every shard of a stem."""
        self._spans: dict[tuple[str, str], list[tuple[int, int]]] = {}
        """The rows of every block of a stem's tensor."""
        self._kinds: dict[tuple[str, str], Kind] = {}
        """Dtype and shape of a stem's tensor in one checkpoint."""

    def _wrong(self, file: str, what: str, expected: object, got: object) -> None:
        self.problems.append(Problem(f"{self._location}/{file}", what, str(expected), str(got), REFETCH))

    def read(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Take every row of the index, and note what contradicts itself or another row."""
        shard = ""
        for file, tensor, start, stop, *block in rows:
            if len(self.problems) >= MAX_PROBLEMS:
                continue
            if not (name := SHARD_NAME.fullmatch(file)):
                self._wrong(INDEX, "name of a shard", "<stem>-<number>.safetensors", repr(file))
            elif not 0 <= start < stop <= self._part.rows:
                self._wrong(file, "rows", f"within 0 to {self._part.rows}", f"{start} to {stop}")
            elif tensor is None:
                if file in self._sizes:
                    self._wrong(file, "entries of the whole shard", "one", "two")
                self._sizes[file], self._shard_rows[file], shard = block[1], (start, stop), file
                self._rows.setdefault(name[1], []).append((start, stop))
            elif file != shard:
                what, got = f"order of the rows of {tensor!r}", f"{file} behind {shard!r}"
                self._wrong(INDEX, what, "behind the row of their shard", got)
            else:
                self._read_block(name[1], file, tensor, start, stop, *block)

    def _read_block(
        self, stem: str, file: str, tensor: str, start: int, stop: int, offset: int, nbytes: int, dtype: str, shape: Any
    ) -> None:
        """Take one block of a tensor in a shard that was taken."""
        if name_problem(tensor) or dtype not in CODES or not shape or shape[0] != stop - start:
            self._wrong(file, f"tensor {tensor!r}", "a name, a dtype and the shape of its rows", f"{dtype} {shape}")
            return
        size, (first, behind) = self._sizes[file], self._shard_rows[file]
        # bounded one by one before they are multiplied: an untrusted shape could be made of huge numbers
        if any(not 0 <= size < 2**40 for size in shape) or nbytes != _nbytes(dtype, shape):
            self._wrong(file, f"bytes of {tensor!r}", "those of its shape", f"{nbytes} for {dtype} {tuple(shape)}")
        # the first 8 bytes of a safetensors file are the length of its header
        elif offset < 8 or offset + nbytes > size:
            self._wrong(file, f"offset of {tensor!r}", f"within the shard's {size} bytes", offset)
        elif start < first or stop > behind:
            self._wrong(file, f"rows of {tensor!r}", f"within {first} to {behind}", f"{start} to {stop}")
        elif (origin := offset - start * (nbytes // shape[0])) != self._row_zero.setdefault((file, tensor), origin):
            self._wrong(file, f"offset of {tensor!r}", "right behind the rows before", f"{offset} at row {start}")
        else:
            self._spans.setdefault((stem, tensor), []).append((start, stop))
            kind = self._kinds.setdefault((stem, tensor), (dtype, tuple(shape[1:])))
            if kind != (dtype, tuple(shape[1:])):
                expected = f"{kind[0]} {kind[1]} in every block"
                self._wrong(file, f"tensor {tensor!r}", expected, f"{dtype} {shape[1:]}")

    def compare_shards(self) -> None:
        """Note shards of another size than the files have, and rows that no block covers, or two."""
        for file, size in self._sizes.items():
            actual = self._files.size(f"{self._part.path}/{file}")
            if actual is None:
                self._wrong(file, "file", f"{size} bytes", "no file")
            elif actual != size:
                self._wrong(file, "size", f"{size} bytes", f"{actual} bytes")
        everything = f"all of 0 to {self._part.rows}, once"
        for stem, covered in self._rows.items():
            if not _covers(covered, self._part.rows):
                self._wrong(f"{stem}-*.safetensors", "rows of the shards", everything, sorted(covered))
        for (stem, tensor), covered in self._spans.items():
            if not _covers(covered, self._part.rows):
                self._wrong(f"{stem}-*.safetensors", f"rows of {tensor!r}", everything, covered[:4])

    def compare_kind(self, arch: Architecture, symmetry: Symmetry | None, digest: str | None) -> None:
        """Note a folder or tensors that a part of its kind does not have, or lacks."""
        part, rows = self._part, self._rows
        kind = str(part.facts.get("kind"))
        folders = {
            "raw": "parts",
            **{alone: f"{DERIVED}/{alone}" for alone in ROWS_ALONE},
            "variant": f"derived/{part.facts.get('gauge')}",
            "predictions": f"derived/{predictions_name(str(part.facts.get('set')))}",
        }
        if part.tree != folders.get(kind, part.tree):
            self._wrong(INDEX, f"folder of a part of kind {kind!r}", folders[kind], part.tree)
        if kind == PREDICTIONS:
            self.problems += prediction_problems(self._location, part, rows, self._kinds)
            return
        for stem in sorted(set(rows) - {ELEMENT}):
            self._compare_tensors(stem, arch)
        bare = part.facts.get("bare") is True or "references" in part.facts
        if part.facts.get("kind") == RAW and part.rows and bare == (RAW in rows):
            self._wrong(INDEX, "shards", *(("none", "some") if bare else ("raw-00.safetensors and on", "none")))
        if kind == "variant" and part.rows:
            elements = {tensor: kind for (stem, tensor), kind in self._kinds.items() if stem == ELEMENT}
            weights = str(part.facts.get("gauge")) in rows
            self.problems += element_problems(self._location, symmetry, digest, part.facts, elements, weights=weights)

    def _compare_tensors(self, stem: str, arch: Architecture) -> None:
        """Note tensors of a stem that are not those of the architecture."""
        for tensor in arch.tensors:
            dtype, shape = self._kinds.get((stem, tensor.name), ("no such tensor", ()))
            stored = tensor.dtype if stem == RAW else variant_dtype(tensor.dtype)
            if (dtype, shape) != (stored, tensor.shape):
                expected = f"{stored} {tensor.shape}"
                self._wrong(f"{stem}-*.safetensors", f"tensor {tensor.name!r}", expected, f"{dtype} {shape}")
        for name in sorted(name for own, name in self._kinds if own == stem and name not in arch):
            self._wrong(f"{stem}-*.safetensors", f"tensor {name!r}", "a tensor of architecture.json", "another one")


def _nbytes(dtype: str, shape: list[int]) -> int:
    total = ITEMSIZE[dtype]
    for size in shape:
        total *= size
    return total


def _covers(spans: list[tuple[int, int]], rows: int) -> bool:
    """Whether the spans take every row once."""
    end = 0
    for start, stop in sorted(spans):
        if start != end:
            return False
        end = stop
    return end == rows
