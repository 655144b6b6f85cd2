"""Some checkpoints of an opened zoo: the filters that choose them, and their rows in every variant.

A filter is a condition on the metadata as pyarrow and ``datasets`` take it, a pyarrow expression, or text from a
command line.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ckptzoo.errors import Problem, UnknownNameError, ZooError
from ckptzoo.format.reader import Contents
from ckptzoo.format.tree import places_of
from ckptzoo.loader.checkpoint import Checkpoint
from ckptzoo.loader.lazy_tensor import StackedTensor
from ckptzoo.loader.predictions import Predictions
from ckptzoo.loader.remote_files import RemoteFiles
from ckptzoo.loader.shard_index import ShardMaps
from ckptzoo.loader.stream import Source
from ckptzoo.loader.variant import Variant
from ckptzoo.schema import layout

Filters = Any
"""``[("a", ">", 1)]`` (all hold), ``[[...], [...]]`` (any list holds), or a ``pyarrow.compute.Expression``."""

_COMPARE = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}
_PYTHON_WORDS = {"true": "True", "false": "False", "null": "None", "none": "None"}
"""What SQL and JSON call Python's constants."""
_MAX_CONDITION = 10_000
_STEP = "Write, for example, test_accuracy > 0.8 and seed < 500."


def expression(filters: Filters, columns: list[str]) -> pc.Expression:
    """Any accepted form as one expression over known columns.

    Raises
    ------
    UnknownNameError
        A column that the metadata lacks.
    ZooError
        The filters do not have an accepted form.
    """
    if isinstance(filters, pc.Expression):
        return filters
    if isinstance(filters, str):
        return parse(filters, columns)
    # pyarrow refuses an empty list as malformed
    if filters == []:
        return pc.scalar(True)
    try:
        for item in filters:
            for name, *_ in [item] if isinstance(item, tuple) else item:
                _known_column(name, columns)
        return pq.filters_to_expression(filters)
    except (TypeError, ValueError) as error:
        problem = Problem("where", "filters", "[(column, operator, value), ...]", repr(filters), _STEP)
        raise ZooError(problem) from error


def columns_in(condition: pc.Expression, columns: list[str]) -> list[str]:
    """The columns that a condition may read: those whose names are in its text, which pyarrow gives no list of."""
    words = set(re.findall(r"\w+", str(condition)))
    return [name for name in columns if name in words]


def parse(text: str, columns: list[str]) -> pc.Expression:
    """A condition in Python's syntax: columns, numbers, strings, comparisons, ``in``, and, or, not. Never evaluated."""
    if len(text) > _MAX_CONDITION:
        raise ZooError(Problem("where", "condition", f"at most {_MAX_CONDITION:,} characters", str(len(text)), _STEP))
    try:
        return _condition(ast.parse(text.strip(), mode="eval").body, columns)
    # the parser raises MemoryError or RecursionError where brackets are nested too deep for it
    except (SyntaxError, RecursionError, MemoryError, ValueError, pa.ArrowException) as error:
        step = "Compare with ==." if re.search(r"[^=!<>]=[^=]", text) else _STEP
        raise ZooError(Problem("where", repr(text[:200]), "a condition", str(error), step)) from error


def _condition(node: ast.expr, columns: list[str]) -> pc.Expression:
    match node:
        case ast.BoolOp(op=op, values=values):
            terms = [_condition(value, columns) for value in values]
            combined = terms[0]
            for term in terms[1:]:
                # pyarrow overloads & and |; "and" would ask an expression for its truth, which it has none of
                combined = combined & term if isinstance(op, ast.And) else combined | term
            return combined
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~_condition(operand, columns)
        case ast.Compare(left=left, ops=ops, comparators=others):
            operands = [left, *others]
            combined = None
            for a, op, b in zip(operands, ops, others, strict=False):  # 0 < a < 1 is 0 < a and a < 1
                term = _comparison(a, op, b, columns)
                combined = term if combined is None else combined & term
            assert combined is not None
            return combined
        case ast.Name(id=name):
            return pc.field(_known_column(name, columns))
    raise ZooError(Problem("where", repr(ast.unparse(node)), "a comparison", type(node).__name__, _STEP))


def _comparison(a: ast.expr, op: ast.cmpop, b: ast.expr, columns: list[str]) -> pc.Expression:
    if isinstance(op, ast.In | ast.NotIn) and isinstance(b, ast.List | ast.Tuple):
        values = [_constant(item) for item in b.elts]
        among = _operand(a, columns).isin(values)
        return among if isinstance(op, ast.In) else ~among
    if isinstance(op, ast.Is | ast.IsNot) and isinstance(b, ast.Constant) and b.value is None:
        missing = _operand(a, columns).is_null()
        return missing if isinstance(op, ast.Is) else ~missing
    if type(op) not in _COMPARE:
        step = "To find missing values write: seed is None."
        raise ZooError(Problem("where", repr(ast.unparse(a)), "< <= == != >= > or in", type(op).__name__, step))
    return _COMPARE[type(op)](_operand(a, columns), _operand(b, columns))


def _operand(node: ast.expr, columns: list[str]) -> pc.Expression:
    if isinstance(node, ast.Name):
        return pc.field(_known_column(node.id, columns))
    return pc.scalar(_constant(node))


def _constant(node: ast.expr) -> Any:
    # Python's grammar has no negative numbers: -1 is a minus before the constant 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_constant(node.operand)
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool):
        return node.value
    problem = Problem("where", repr(ast.unparse(node)), "a column, a number or a string", "another thing", _STEP)
    raise ZooError(problem)


def _known_column(name: str, columns: list[str]) -> str:
    if name not in columns:
        if (word := _PYTHON_WORDS.get(name.lower())) is not None:
            example = "seed is None" if word == "None" else f"diverged == {word}"
            raise ZooError(Problem("where", repr(name), word, name, f"Write, for example, {example}."))
        raise UnknownNameError("where", "column", name, columns)
    return name


@dataclass(frozen=True)
class MethodDraws:
    """The draws of one approximate posterior.

    Parameters
    ----------
    method : its name.
    modes : the number of members or chains that the draws are taken around; 0 where the rows do not say.
    draws : the number of checkpoints.
    """

    method: str
    modes: int
    draws: int


def draws_by_method(rows: pa.Table) -> tuple[MethodDraws, ...]:
    """The draws of every method, the method with most of them first; independent runs are left out.

    Parameters
    ----------
    rows : with the columns ``method`` and ``mode``.
    """
    drawn = rows.select(["method", "mode"]).filter(pc.field("method").is_valid())
    counts = drawn.group_by("method").aggregate([("mode", "count_distinct"), ([], "count_all")]).to_pylist()
    found = [MethodDraws(item["method"], item["mode_count_distinct"], item["count_all"]) for item in counts]
    return tuple(sorted(found, key=lambda item: (-item.draws, item.method)))


class Selection:
    """Checkpoints of a zoo in some order.

    Parameters
    ----------
    contents : of the zoo.
    variants : those that were opened; shared between the selections of a zoo, and added to.
    rows : (N,) int64, the checkpoints' rows of the raw tree.
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
        """Some columns of the metadata, one row per checkpoint; no others are read."""
        _ = self.contents.ids  # raises where ids are repeated; of a remote zoo nothing has read them before
        missing = [name for name in names if name not in self._columns]
        if missing:
            table = self.contents.raw.rows.select(missing)
            everything = np.array_equal(self.rows, np.arange(len(table)))
            own = table if everything else table.take(pa.array(self.rows))
            self._columns.update(zip(missing, own.columns, strict=True))
        fields = [self.contents.raw.rows.schema.field(name) for name in names]
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
        """The positions of the checkpoints whose metadata satisfy a condition."""
        known = self.contents.raw.rows.schema.names
        condition = expression(filters, known)
        try:
            numbered = self.columns(columns_in(condition, known) or ["id"]).append_column(
                "__row", pa.array(np.arange(len(self.rows)))
            )
            return numbered.filter(condition)["__row"].to_numpy()
        except pa.ArrowException as error:
            problem = Problem(self.name, "where", "a condition on the columns", str(error), _STEP)
            raise ZooError(problem) from error

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

        Raises
        ------
        UnknownNameError
            No such set.
        ZooError
            Not every checkpoint has been evaluated on it.
        """
        if inputs not in self.predicted:
            raise UnknownNameError(self.name, "set of predictions", inputs, self.predicted)
        rows = places_of(self.ids, self.contents.derived(layout.predictions_name(inputs)).rows["id"])
        self._require_all(rows, "predictions", inputs, f"predict {{}} {inputs}")
        return Predictions(self.contents, inputs, self.ids, rows)

    def variant_rows(self, variant: str) -> tuple[Variant, NDArray[np.int64]]:
        """A variant, and the rows of these checkpoints in it.

        Raises
        ------
        UnknownNameError
            No such variant.
        ZooError
            Not every checkpoint has been derived.
        """
        if variant != layout.RAW and variant not in self.gauges:
            raise UnknownNameError(self.name, "variant", variant, self.names)
        if variant not in self.variants:
            raw = None if variant == layout.RAW else self.variant_rows(layout.RAW)[0]
            self.variants[variant] = Variant(self.contents, variant, raw)
        opened = self.variants[variant]
        if variant not in self._rows_in:
            rows = places_of(self.ids, opened.tree.rows["id"])
            self._require_all(rows, "variant", variant, f"derive {{}} --gauge {variant}")
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

    def source(self, names: Sequence[str], variant: str) -> Source:
        """What a stream of these tensors and layers reads; everything where there are no names."""
        opened, rows = self.variant_rows(variant)
        arch = self.contents.architecture
        wanted: list[str] = []
        for name in names:
            wanted += arch.layers[name] if name in arch.layers and name not in arch else (self.tensor(name),)
        readers = {name: opened.reader(name) for name in wanted or arch.names}
        files = self.contents.files
        prefetch = files.prefetch if isinstance(files, RemoteFiles) else None
        return Source(readers, rows, self.ids.combine_chunks(), self.contents.revision, self.name, prefetch)

    def checkpoint(self, id: str, variant: str) -> Checkpoint:
        """One checkpoint by its id."""
        position = self._position(id)
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
        raise UnknownNameError(self.name, "tensor", name, arch.layers.get(name, known))

    def _require_all(self, rows: NDArray[np.int64], what: str, name: str, command: str) -> None:
        """Raise where some of these checkpoints lack what is derived; ``command`` with the zoo's folder makes it."""
        if missing := int((rows < 0).sum()):
            here = self.contents.files.here
            run = "" if here is None else f", or run ckptzoo {command.format(here)}"
            expected, got = f"all {len(rows)} checkpoints", str(len(rows) - missing)
            step = f"Take those with zoo.having({name!r}){run}."
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

    Parameters
    ----------
    rows : those that were not, as ``standing`` gives them.
    """
    count = len(contents.raw.rows)
    return (
        f"{count - len(rows)} of {count} checkpoints retracted and left out" if len(contents.retracted.rows) else None
    )
