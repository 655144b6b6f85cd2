"""Some checkpoints of an opened zoo: their metadata, and their rows in every variant."""

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ckptzoo.errors import Problem, UnknownNameError, ZooError, suggestion
from ckptzoo.format.reader import Contents
from ckptzoo.format.tree import places_of
from ckptzoo.loader.checkpoint import Checkpoint
from ckptzoo.loader.derived_command import derived_command
from ckptzoo.loader.extra import PREFIX, extra_column, extra_names, names_in
from ckptzoo.loader.filters import Filters, columns_in, expression, kept, unfit
from ckptzoo.loader.lazy_tensor import StackedTensor
from ckptzoo.loader.predictions import Predictions
from ckptzoo.loader.readers import cast_reader
from ckptzoo.loader.remote_files import RemoteFiles
from ckptzoo.loader.shard_index import ShardMaps
from ckptzoo.loader.stream import Source
from ckptzoo.loader.variant import Variant
from ckptzoo.schema import layout

_CALLER = 4
"""The number of frames between a warning and the code that asks a Zoo for a variant."""


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
        self._columns: dict[str, pa.ChunkedArray] = {}
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
        _ = self.contents.ids  # raises where ids are repeated; of a remote zoo nothing has read them before
        within = [name for name in names if name.startswith(PREFIX) and name not in self._columns]
        missing = [name for name in names if name not in self._columns and not name.startswith(PREFIX)]
        if within:
            (texts,) = self.columns(["extra"]).columns
            self._columns.update(
                {name: pa.chunked_array([extra_column(texts, name, location=self.name)]) for name in within}
            )
        if missing:
            table = self.contents.columns(self.contents.raw, missing)
            everything = np.array_equal(self.rows, np.arange(len(table)))
            own = table if everything else table.take(pa.array(self.rows))
            self._columns.update(zip(missing, own.columns, strict=True))
        own_schema = self.contents.raw.rows.schema
        fields = [
            pa.field(name, self._columns[name].type) if name.startswith(PREFIX) else own_schema.field(name)
            for name in names
        ]
        return pa.Table.from_arrays([self._columns[name] for name in names], schema=pa.schema(fields))

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

    def matching(self, filters: Filters) -> NDArray[np.int64]:
        """The positions of the checkpoints whose metadata satisfy a condition, or that a mask keeps."""
        if (positions := kept(filters, len(self.rows))) is not None:
            return positions
        schema = self.contents.raw.rows.schema
        for field in self.columns(names_in(filters)).schema:
            schema = schema.append(field)
        try:
            condition = expression(filters, schema)
        except UnknownNameError as error:
            raise (self.absent_column(error.name) if error.kind == "column" else error) from None
        try:
            numbered = self.columns(columns_in(condition, schema.names) or ["id"]).append_column(
                "__row", pa.array(np.arange(len(self.rows)))
            )
            return numbered.filter(condition)["__row"].to_numpy()
        except pa.ArrowException as error:
            fault = unfit(condition, error, schema)
            raise (self.absent_column(fault.name) if isinstance(fault, UnknownNameError) else fault) from error

    def absent_column(self, name: str) -> UnknownNameError:
        """The error to raise for a column that is not there, which may be the name of a value within ``extra``."""
        known, hint = self.contents.raw.rows.schema.names, None
        # the rows of a zoo on another machine are not fetched for this
        if self.contents.files.here is not None or "extra" in self._columns:
            keys = [key.removeprefix(PREFIX) for key in sorted(extra_names(self.columns(["extra"])["extra"]))]
            asked = str(name).removeprefix(PREFIX)
            near = get_close_matches(asked, keys, n=1, cutoff=0.8)
            within = f"Did you mean {PREFIX}{near[0]}?" if near else ""
            # a column that may be meant goes before a key that is spelt in part alike
            hint = within if str(name) in keys else suggestion(str(name), known, within) or None
        return UnknownNameError(self.name, "column", str(name), known, hint)

    def last_steps(self) -> NDArray[np.int64]:
        """The position of each member's checkpoint of the last step, in order."""
        table = self.columns(["member", "step"])
        steps = table["step"].fill_null(-1).to_numpy()  # a member's only checkpoint may lack its step
        members = table["member"].combine_chunks().dictionary_encode().indices.to_numpy()
        # lexsort sorts by its last key first
        order = np.lexsort((steps, members))
        return np.sort(order[np.flatnonzero(np.diff(members[order], append=-1))])

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
            raise UnknownNameError(self.name, "variant", variant, self.names)
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
        files = self.contents.files
        prefetch = files.prefetch if isinstance(files, RemoteFiles) else None
        asked = self._asked(columns, readers) if columns else None
        return Source(readers, rows, self.ids.combine_chunks(), self.contents.revision, self.name, prefetch, asked)

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

        metadata = self.metadata.slice(position, 1).to_pylist()[0]
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
        at_hand = self.contents.files.here is not None or "id" in self._columns
        if at_hand and self.ids.index(name).as_py() >= 0:
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

    def _position(self, id: str) -> int:
        # pyarrow gives -1 for a value that is absent
        position = self.ids.index(id).as_py()
        if position < 0:
            for tombstone in self.contents.retracted.metadata.to_pylist():
                if tombstone["id"] == id:
                    reason, step = tombstone["reason"], "Its bytes stay in the zoo."
                    raise ZooError(f"{self.name}: checkpoint {id!r}: retracted, because {reason!r}. {step}")
            raise UnknownNameError(self.name, "checkpoint", id, self.ids.to_pylist())
        return position


def standing(contents: Contents) -> NDArray[np.int64]:
    """Rows of the raw tree that were not retracted, in order; ids are read only where something was."""
    rows, tombs = np.arange(len(contents.raw.rows), dtype=np.int64), contents.retracted.rows
    return rows[places_of(contents.ids, tombs["id"]) < 0] if len(tombs) else rows


def left_out(contents: Contents, rows: NDArray[np.int64]) -> str | None:
    """How many checkpoints were retracted, in words; None where none was.

    ``rows`` are the rows that were kept, as ``standing`` gives them.
    """
    count = len(contents.raw.rows)
    return (
        f"{count - len(rows)} of {count} checkpoints retracted and left out" if len(contents.retracted.rows) else None
    )
