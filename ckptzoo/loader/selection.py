"""Some checkpoints of an opened zoo: their metadata, and their rows in every variant."""

import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from shlex import quote
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.errors import Problem, UnknownNameError, ZooError, suggestion
from ckptzoo.format.packed import RUN_ROWS
from ckptzoo.format.reader import Contents
from ckptzoo.format.table import array_of, filled_with
from ckptzoo.format.tree import places_of
from ckptzoo.lazy_names import lazy_module
from ckptzoo.loader.checkpoint import Checkpoint
from ckptzoo.loader.derived_command import derived_command
from ckptzoo.loader.extra import PREFIX, extra_column, extra_names, names_in
from ckptzoo.loader.lazy_tensor import StackedTensor
from ckptzoo.loader.predictions import Predictions
from ckptzoo.loader.readers import cast_reader
from ckptzoo.loader.shard_index import ShardMaps
from ckptzoo.loader.stream import RowIds, Source
from ckptzoo.loader.variant import Variant
from ckptzoo.schema import layout

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from ckptzoo.loader.filters import Filters
else:
    pc = lazy_module("pyarrow.compute")

_CALLER = 4
"""The number of frames between a warning and the code that asks a Zoo for a variant."""

_LABELS = ("member", "method", "mode")
"""The columns of texts that say what a checkpoint is; others are as long, and most rows share them."""


@dataclass(frozen=True)
class MethodDraws:
    """The draws of one approximate posterior.

    ``modes`` is the number of members or chains that the draws are taken around, 0 where the rows do not say.
    """

    method: str
    modes: int
    draws: int


def draws_by_method(rows: pa.Table) -> tuple[MethodDraws, ...]:
    """The draws of every method, the method with most of them first; independent runs are left out.

    ``rows`` have the columns ``method`` and ``mode``.
    """
    drawn = rows.select(["method", "mode"]).filter(pc.field("method").is_valid())
    counts = drawn.group_by("method").aggregate([("mode", "count_distinct"), ([], "count_all")]).to_pylist()
    found = [MethodDraws(item["method"], item["mode_count_distinct"], item["count_all"]) for item in counts]
    return tuple(sorted(found, key=lambda item: (-item.draws, item.method)))


class Selection:
    """Checkpoints of a zoo in some order.

    ``variants`` are the opened variants, a mapping that the selections of a zoo share and extend; ``rows`` are (N,)
    int64, the checkpoints' rows of the raw tree.
    """

    def __init__(self, contents: Contents, variants: dict[str, Variant], rows: NDArray[np.int64]) -> None:
        self.contents, self.variants, self.rows = contents, variants, rows
        self._within_extra: dict[str, pa.ChunkedArray] = {}
        self._rows_in: dict[str, NDArray[np.int64]] = {layout.RAW: rows}

    @property
    def name(self) -> str:
        """The zoo's name."""
        return self.contents.identity.name

    @property
    def metadata(self) -> pa.Table:
        """One row per checkpoint."""
        return self.columns(self.contents.raw.rows.schema.names)

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Some columns of the metadata, one row per checkpoint; no others are read.

        ``extra.optim.lr`` is a value within ``extra``.
        """
        raw, own = self.contents.raw, [name for name in names if not name.startswith(PREFIX)]
        if "id" in own:
            self.contents.check_ids()
        table = self.contents.columns(raw, own, None if self._is_whole else self.rows)
        if len(own) == len(names):
            return table
        columns = {name: table[name] for name in own}
        columns |= {name: self._value_within_extra(name) for name in names if name.startswith(PREFIX)}
        fields = [
            pa.field(name, columns[name].type) if name.startswith(PREFIX) else raw.rows.schema.field(name)
            for name in names
        ]
        return pa.Table.from_arrays([columns[name] for name in names], schema=pa.schema(fields))

    def runs(self, names: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Yield some columns of the metadata, a bounded number of rows at a time, each after its first position."""
        if "id" in names:
            self.contents.check_ids()
        if self._is_whole:
            yield from self.contents.runs(self.contents.raw, names)
            return
        if len(self.rows) > RUN_ROWS and bool((self.rows[1:] >= self.rows[:-1]).all()):
            # columns of large tables are not kept: they are gone through once, not read for every run
            for start, run in self.contents.runs(self.contents.raw, names):
                first, last = np.searchsorted(self.rows, [start, start + len(run)]).tolist()
                if first < last:
                    yield first, run.take(array_of(self.rows[first:last] - start))
            return
        for start in range(0, len(self.rows), RUN_ROWS):
            yield start, self.contents.columns(self.contents.raw, names, self.rows[start : start + RUN_ROWS])

    @cached_property
    def _is_whole(self) -> bool:
        """Whether these are all rows of the raw tree, in order."""
        if len(self.rows) != len(self.contents.raw.rows):
            return False
        starts = range(0, len(self.rows), RUN_ROWS)
        runs = ((start, self.rows[start : start + RUN_ROWS]) for start in starts)
        return all(np.array_equal(run, np.arange(start, start + len(run))) for start, run in runs)

    def _value_within_extra(self, name: str) -> pa.ChunkedArray:
        if name not in self._within_extra:
            texts = (run["extra"] for _, run in self.runs(["extra"]))
            self._within_extra[name] = extra_column(texts, name, location=self.name)
        return self._within_extra[name]

    @property
    def ids(self) -> pa.ChunkedArray:
        """(N,) the checkpoints' ids."""
        return self.columns(["id"])["id"]

    @cached_property
    def gauges(self) -> tuple[str, ...]:
        """Every gauge that was derived."""
        contents = self.contents
        return tuple(name for name in contents.variants if contents.kind(name) == "variant")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """``raw``, where the zoo holds such weights or no checkpoints, and every gauge that was derived."""
        parts = self.contents.raw.parts
        bare = bool(parts) and all(part.facts.get("bare") is True for part in parts)
        return self.gauges if bare else (layout.RAW, *self.gauges)

    def matching(self, filters: "Filters") -> NDArray[np.int64]:
        """The positions of the checkpoints whose metadata satisfy a condition, or that a mask keeps."""
        from ckptzoo.loader.filters import columns_in, expression, kept, unfit, without_values

        if (positions := kept(filters, len(self.rows))) is not None:
            return positions
        schema = self.contents.raw.rows.schema
        within = {name: self._value_within_extra(name) for name in names_in(filters)}
        for name, column in within.items():
            schema = schema.append(pa.field(name, column.type))
        try:
            condition = expression(filters, schema)
        except UnknownNameError as error:
            raise (self.absent_column(error.name) if error.kind == "column" else error) from None
        own = [name for name in columns_in(condition, schema.names) if name not in within]
        # a condition that asks for unknown values, as in `finite is None or finite`, decides about them
        if (
            "finite" in own
            and self.contents.identity.references
            and not re.search(r"is_(null|valid)\(finite\b", str(condition))
        ):
            self._require_finite_known()
        found = [np.empty(0, np.int64)]
        nulls = dict.fromkeys([*own, *within], 0)
        try:
            for start, run in self.runs(own or ["finite"]):
                for name, column in within.items():
                    run = run.append_column(name, column.slice(start, len(run)))
                found.append(start + condition.positions(run))
                nulls = {name: missing + run[name].null_count for name, missing in nulls.items()}
        except pa.ArrowException as error:
            fault = unfit(condition, error, schema)
            raise (self.absent_column(fault.name) if isinstance(fault, UnknownNameError) else fault) from error
        positions = np.concatenate(found)
        if not len(positions) and (note := without_values(condition, nulls, len(self.rows))) is not None:
            warnings.warn(f"{self.name}: {note}", UserWarning, stacklevel=3)  # at the caller of Zoo.where
        return positions

    def _require_finite_known(self) -> None:
        """Raise ZooError where the zoo refers to weights that nobody has read yet."""
        unknown = sum(run["finite"].null_count for _, run in self.runs(["finite"]))
        if unknown:
            got = f"none for {unknown:,} of {len(self.rows):,}, whose weights were not read yet"
            here = self.contents.files.here
            run = (
                "Pull the zoo, and run ckptzoo verify FOLDER"
                if here is None
                else f"Run ckptzoo verify {quote(str(here))}"
            )
            step = f"{run}, which reads all of them once; or write finite is None or finite."
            raise ZooError(Problem(self.name, "column 'finite'", "a value of each checkpoint", got, step))

    def absent_column(self, name: str) -> UnknownNameError:
        """The error to raise for a column that is not there, which may be the name of a value within ``extra``."""
        known, hint = self.contents.raw.rows.schema.names, None
        # the rows of a zoo on another machine are not fetched for this
        if self.contents.files.here is not None:
            _, first = next(self.runs(["extra"]), (0, None))
            texts = pa.chunked_array([], pa.string()) if first is None else first["extra"]
            keys = [key.removeprefix(PREFIX) for key in sorted(extra_names(texts))]
            asked = str(name).removeprefix(PREFIX)
            near = get_close_matches(asked, keys, n=1, cutoff=0.8)
            within = f"Did you mean {PREFIX}{near[0]}?" if near else ""
            # a column that may be meant goes before a key that is spelt in part alike
            hint = within if str(name) in keys else suggestion(str(name), known, within) or None
        return UnknownNameError(self.name, "column", str(name), known, hint)

    def last_steps(self) -> NDArray[np.int64]:
        """The position of each member's checkpoint of the last step, in order."""
        count = len(self.rows)
        # 12 bytes tell millions of members apart, and take a fraction of the memory of their names
        first, second = np.empty(count, np.int64), np.empty(count, np.int32)
        for start, run in self.runs(["member"]):
            own = slice(start, start + len(run))
            texts = run["member"].to_pylist()
            if run["member"].null_count:  # checkpoints without one are members of their own
                texts = [f"\0{at}" if text is None else text for at, text in enumerate(texts, start)]
            first[own] = np.fromiter(map(hash, texts), np.int64, len(texts))
            second[own] = np.fromiter((hash(text + "/") for text in texts), np.int64, len(texts)).astype(np.int32)
        order, start = np.argsort(first, kind="stable"), 0
        steps, is_last = np.empty(count, np.int64), np.zeros(count, np.bool_)
        for at, run in self.runs(["step"]):
            steps[at : at + len(run)] = filled_with(run["step"], -1)  # an only checkpoint may lack its step
        while start < count:
            stop = min(start + RUN_ROWS, count)
            while stop < count and first[order[stop]] == first[order[stop - 1]]:
                stop += 1
            rows = order[start:stop]
            # lexsort sorts by its last key first
            rows = rows[np.lexsort((steps[rows], second[rows], first[rows]))]
            others = (first[rows[1:]] != first[rows[:-1]]) | (second[rows[1:]] != second[rows[:-1]])
            is_last[rows[np.append(others, True)]] = True
            start = stop
        del first, second, order, steps  # of ten million rows 280 MB
        return np.flatnonzero(is_last)

    @cached_property
    def predicted(self) -> tuple[str, ...]:
        """Every set of inputs that was predicted."""
        contents = self.contents
        names = {layout.set_name(name): name for name in contents.derived_parts}
        return tuple(
            inputs for inputs, name in names.items() if inputs is not None and contents.kind(name) == layout.PREDICTIONS
        )

    def having(self, name: str) -> NDArray[np.int64]:
        """The positions of the checkpoints that were derived in a gauge, or predicted on a set of inputs."""
        if name == layout.RAW and layout.RAW in self.names:
            return np.arange(len(self.rows))
        if name in self.predicted:
            name = layout.predictions_name(name)
        elif name not in self.names:
            raise UnknownNameError(self.name, "variant or set", name, (*self.names, *self.predicted))
        return np.flatnonzero(places_of(self.ids, self.contents.derived(name).rows["id"]) >= 0)

    def predictions(self, inputs: str) -> Predictions:
        """The outputs of these checkpoints on a set of inputs.

        Raises ``UnknownNameError`` if there is no such set and ``ZooError`` if not every checkpoint has been evaluated
        on it.
        """
        if inputs not in self.predicted:
            raise UnknownNameError(self.name, "set of predictions", inputs, self.predicted)
        rows = places_of(self.ids, self.contents.derived(layout.predictions_name(inputs)).rows["id"])
        self._require_all(rows, "predictions", inputs)
        return Predictions(self.contents, inputs, self.ids, rows)

    def variant_rows(self, variant: str) -> tuple[Variant, NDArray[np.int64]]:
        """A variant, and the rows of these checkpoints in it.

        Raises ``UnknownNameError`` if there is no such variant and ``ZooError`` if not every checkpoint has been
        derived.
        """
        if variant != layout.RAW and variant not in self.gauges:
            here = self.contents.files.here
            can_be_made = here is not None and variant in get_args(layout.GaugeName)
            step = f"Run {derived_command(self.contents, variant, str(here))}." if can_be_made else None
            raise UnknownNameError(self.name, "variant", variant, self.names, step)
        if variant not in self.variants:
            raw = None if variant == layout.RAW else self.variant_rows(layout.RAW)[0]
            self.variants[variant] = Variant(self.contents, variant, raw)
            if variant != layout.RAW and (failed := self.contents.failed_checks(variant)).ids:
                warnings.warn(str(failed.problem(self.name, variant)), UserWarning, stacklevel=_CALLER)
        opened = self.variants[variant]
        if variant not in self._rows_in:
            rows = places_of(self.ids, opened.tree.rows["id"])
            self._require_all(rows, "variant", variant)
            self._rows_in[variant] = rows
        return opened, self._rows_in[variant]

    def stacked(self, name: str, variant: str) -> StackedTensor:
        """A tensor of every checkpoint in a gauge."""
        opened, rows = self.variant_rows(variant)
        return StackedTensor(opened.reader(self.tensor(name)), rows, name=name)

    def group_element(self, variant: str) -> dict[str, StackedTensor]:
        """The group elements of a variant."""
        opened, rows = self.variant_rows(variant)
        return {name: StackedTensor(reader, rows, name=name) for name, reader in opened.group_element().items()}

    def source(
        self, names: Sequence[str], variant: str, columns: str | Sequence[str] = (), dtype: Any = None
    ) -> Source:
        """The source of a stream of these tensors, layers and columns; all tensors where there are no names."""
        opened, rows = self.variant_rows(variant)
        arch = self.contents.architecture
        wanted: list[str] = []
        for name in names:
            wanted += arch.named(name) or (self.tensor(name),)
        readers = {name: cast_reader(opened.reader(name), dtype, self.name) for name in wanted or arch.names}
        prefetch = opened.prefetch if opened.reads_elsewhere else None
        asked = self._asked(columns, readers) if columns else None
        self.contents.check_ids()
        ids = RowIds(self.contents.raw.rows, self.rows)
        return Source(readers, rows, ids, self.contents.revision, self.name, prefetch, asked)

    def labels(self) -> list[str]:
        """The columns of numbers and truth values that have some, and those that name members, methods and modes."""
        arch = self.contents.architecture
        fields = [field for field in self.contents.raw.rows.schema if field.name not in arch]
        names = [
            field.name
            for field in fields
            if pa.types.is_integer(field.type)
            or pa.types.is_floating(field.type)
            or pa.types.is_boolean(field.type)
            or field.name in _LABELS
        ]
        table = self.columns(names)
        return [name for name in names if table[name].null_count < len(table)]

    def _asked(self, names: Sequence[str], tensors: Collection[str]) -> pa.Table:
        """Columns that go along with these tensors."""
        names = [names] if isinstance(names, str) else list(dict.fromkeys(names))
        known = self.contents.raw.rows.schema.names
        for name in names:
            if name not in known and not name.startswith(PREFIX):
                raise self.absent_column(name)
            if name in tensors:
                step = "Leave one of them out, and read the column from zoo.metadata."
                raise ZooError(Problem(self.name, f"column {name!r}", "another name than a tensor's", "both", step))
        return self.columns(names).combine_chunks()

    def checkpoint(self, id: str, variant: str) -> Checkpoint:
        """One checkpoint by its id."""
        return self.checkpoint_at(self._position(id), variant)

    def checkpoint_at(self, position: int, variant: str) -> Checkpoint:
        """One checkpoint by its position, from 0."""
        opened, rows = self.variant_rows(variant)
        row, maps = rows[position : position + 1], ShardMaps()

        def read(name: str, private: bool) -> NDArray[Any]:
            return opened.reader(self.tensor(name)).gather(row, private=maps if private else None)[0, ...]

        def prefetch() -> None:
            opened.will_need(int(row[0]))

        metadata = partial(self.contents.row, int(self.rows[position]))
        return Checkpoint(self.contents.architecture, metadata, variant, read, prefetch)

    def tensor(self, name: str) -> str:
        """The tensor that is stored under this name or alias."""
        arch = self.contents.architecture
        for tensor in (arch[name],) if name in arch else arch.tensors:
            if name == tensor.name or name in tensor.aliases:
                return tensor.name
        known = [other for tensor in arch.tensors for other in (tensor.name, *tensor.aliases)]
        raise UnknownNameError(self.name, "tensor", name, arch.named(name) or known, self._other_use(name))

    def _other_use(self, name: str) -> str | None:
        """The next step where the name of a tensor is expected and this is the name of something else."""
        arch = self.contents.architecture
        tensor = next(iter(arch.named(name) or arch.names), "")
        if arch.named(name):
            what = "layer" if name in arch.layers else "module"
            return f"{name!r} is a {what}: read its tensors by their names, or stream them all: zoo.stream({name!r})."
        if name in self.names:
            return f"{name!r} is a variant: write zoo[{tensor!r}, {name!r}]."
        if name in self.contents.raw.rows.schema.names:
            return f"{name!r} is a column: write zoo.metadata[{name!r}]."
        # the ids of a zoo on another machine are not fetched for this
        if self.contents.files.here is not None and self.place_of(name) >= 0:
            return f"{name!r} is a checkpoint: write zoo.checkpoint({name!r})."
        return None

    def _require_all(self, rows: NDArray[np.int64], what: str, name: str) -> None:
        """Raise where some of these checkpoints lack what is derived, with the command that makes it."""
        if missing := int((rows < 0).sum()):
            here = self.contents.files.here
            run = "" if here is None else f", or run {derived_command(self.contents, name, str(here))}"
            expected, got = f"all {len(rows):,} checkpoints", f"{len(rows) - missing:,} ({missing:,} without it)"
            step = f"Take those that have it with zoo.having({name!r}){run}."
            raise ZooError(Problem(self.name, f"{what} {name!r}", expected, got, step))

    def place_of(self, id: str) -> int:
        """The position of a checkpoint, -1 where these have none of this id."""
        for start, run in self.runs(["id"]):
            # pyarrow gives -1 for a value that is absent
            if (position := run["id"].index(id).as_py()) >= 0:
                return start + position
        return -1

    def _position(self, id: str) -> int:
        if (position := self.place_of(id)) < 0:
            for tombstone in self.contents.retracted.metadata.to_pylist():
                if tombstone["id"] == id:
                    reason, step = tombstone["reason"], "Its bytes stay in the zoo."
                    raise ZooError(f"{self.name}: checkpoint {id!r}: retracted, because {reason!r}. {step}")
            _, first = next(self.runs(["id"]), (0, None))  # of millions of ids the first ones are enough
            raise UnknownNameError(self.name, "checkpoint", id, [] if first is None else first["id"].to_pylist())
        return position


def standing(contents: Contents) -> NDArray[np.int64]:
    """Rows of the raw tree that were not retracted, in order; ids are read only where something was."""
    rows, tombs = np.arange(len(contents.raw.rows), dtype=np.int64), contents.retracted.rows
    if not len(tombs):
        return rows
    contents.check_ids()
    withdrawn = tombs["id"]
    kept = [places_of(run["id"], withdrawn) < 0 for _, run in contents.raw.rows.runs(["id"])]
    return rows[np.concatenate(kept)] if kept else rows


def left_out(contents: Contents, rows: NDArray[np.int64]) -> str | None:
    """How many checkpoints were retracted, in words; None where none was.

    ``rows`` are the rows that were kept, as ``standing`` gives them.
    """
    count = len(contents.raw.rows)
    return (
        f"{count - len(rows)} of {count} checkpoints retracted and left out" if len(contents.retracted.rows) else None
    )
