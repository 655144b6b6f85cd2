"""Some checkpoints of an opened zoo, and where they are: their rows in every variant, their tensors by name.

Filters on metadata: as pyarrow and datasets take them, as an expression, or as text from a command line.

The checkpoints of a zoo that were not retracted.
"""

import ast
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.format.reader import Contents
from ckptzoo.format.tree import places_of
from ckptzoo.loader.checkpoint import Checkpoint
from ckptzoo.loader.lazy_tensor import StackedTensor
from ckptzoo.loader.predictions import Predictions
from ckptzoo.loader.remote_files import RemoteFiles
from ckptzoo.loader.shard_index import Maps
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
    if filters == []:
        return pc.scalar(True)
    try:
        for item in filters:
            for name, *_ in [item] if isinstance(item, tuple) else item:
                _known(name, columns)
        return pq.filters_to_expression(filters)
    except (TypeError, ValueError) as error:
        raise ZooError(
            f"where: filters: expected [(column, operator, value), ...], got {filters!r}. {_STEP}"
        ) from error


def used(condition: pc.Expression, columns: list[str]) -> list[str]:
    """The columns that a condition may read: those whose names stand in it."""
    words = set(re.findall(r"\w+", str(condition)))
    return [name for name in columns if name in words]


def parse(text: str, columns: list[str]) -> pc.Expression:
    """A condition in Python's syntax: columns, numbers, strings, comparisons, ``in``, and, or, not. Never evaluated."""
    if len(text) > 10_000:
        raise ZooError(f"where: condition: expected at most 10,000 characters, got {len(text)}. {_STEP}")
    try:
        return _made(ast.parse(text.strip(), mode="eval").body, columns)
    except (SyntaxError, RecursionError, MemoryError, ValueError, pa.ArrowException) as error:
        step = "Compare with ==." if re.search(r"[^=!<>]=[^=]", text) else _STEP
        raise ZooError(f"where: {text[:200]!r}: expected a condition, got {error}. {step}") from error


def _made(node: ast.expr, columns: list[str]) -> pc.Expression:
    match node:
        case ast.BoolOp(op=op, values=values):
            parts = [_made(value, columns) for value in values]
            made = parts[0]
            for part in parts[1:]:
                made = made & part if isinstance(op, ast.And) else made | part
            return made
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~_made(operand, columns)
        case ast.Compare(left=left, ops=ops, comparators=others):
            terms = [left, *others]
            made = None
            for a, op, b in zip(terms, ops, others, strict=False):
                part = _compared(a, op, b, columns)
                made = part if made is None else made & part
            assert made is not None
            return made
        case ast.Name(id=name):
            return pc.field(_known(name, columns))
    raise ZooError(f"where: {ast.unparse(node)!r}: expected a comparison, got {type(node).__name__}. {_STEP}")


def _compared(a: ast.expr, op: ast.cmpop, b: ast.expr, columns: list[str]) -> pc.Expression:
    if isinstance(op, ast.In | ast.NotIn) and isinstance(b, ast.List | ast.Tuple):
        values = [_constant(item) for item in b.elts]
        found = _term(a, columns).isin(values)
        return found if isinstance(op, ast.In) else ~found
    if isinstance(op, ast.Is | ast.IsNot) and isinstance(b, ast.Constant) and b.value is None:
        found = _term(a, columns).is_null()
        return found if isinstance(op, ast.Is) else ~found
    if type(op) not in _COMPARE:
        step = "To find missing values write: seed is None."
        raise ZooError(f"where: {ast.unparse(a)!r}: expected < <= == != >= > or in, got {type(op).__name__}. {step}")
    return _COMPARE[type(op)](_term(a, columns), _term(b, columns))


def _term(node: ast.expr, columns: list[str]) -> pc.Expression:
    if isinstance(node, ast.Name):
        return pc.field(_known(node.id, columns))
    return pc.scalar(_constant(node))


def _constant(node: ast.expr) -> Any:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_constant(node.operand)
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool):
        return node.value
    raise ZooError(f"where: {ast.unparse(node)!r}: expected a column, a number or a string, got another thing. {_STEP}")


def _known(name: str, columns: list[str]) -> str:
    if name not in columns:
        if (meant := {"true": "True", "false": "False", "null": "None", "none": "None"}.get(name.lower())) is not None:
            hint = "seed is None" if meant == "None" else f"diverged == {meant}"
            raise ZooError(f"where: {name!r}: expected {meant}, got {name}. Write, for example, {hint}.")
        raise UnknownNameError("where", "column", name, columns)
    return name


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
        self._places: dict[str, NDArray[np.int64]] = {layout.RAW: rows}

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
        _ = self.contents.ids
        lacking = [name for name in names if name not in self._columns]
        if lacking:
            table = self.contents.raw.rows.select(lacking)
            everything = np.array_equal(self.rows, np.arange(len(table)))
            taken = table if everything else table.take(pa.array(self.rows))
            self._columns.update(zip(lacking, taken.columns, strict=True))
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
        """The places of the checkpoints whose metadata satisfy a condition."""
        known = self.contents.raw.rows.schema.names
        condition = expression(filters, known)
        try:
            numbered = self.columns(used(condition, known) or ["id"]).append_column(
                "__row", pa.array(np.arange(len(self.rows)))
            )
            return numbered.filter(condition)["__row"].to_numpy()
        except pa.ArrowException as error:
            raise ZooError(f"{self.name}: where: expected a condition on the columns, got {error}.") from error

    def last_steps(self) -> NDArray[np.int64]:
        """The place of each member's checkpoint of the last step, in order."""
        table = self.columns(["member", "step"])
        steps = table["step"].fill_null(-1).to_numpy()
        members = table["member"].combine_chunks().dictionary_encode().indices.to_numpy()
        order = np.lexsort((steps, members))
        return np.sort(order[np.flatnonzero(np.diff(members[order], append=-1))])

    @cached_property
    def predicted(self) -> tuple[str, ...]:
        """Every set of inputs that was predicted."""
        contents = self.contents
        found = {layout.set_name(name): name for name in contents.derived_parts}
        return tuple(
            inputs for inputs, name in found.items() if inputs is not None and contents.kind(name) == layout.PREDICTIONS
        )

    def having(self, name: str) -> NDArray[np.int64]:
        """The places of the checkpoints that were derived in a gauge, or predicted on a set of inputs."""
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
        self._all(rows, "predictions", inputs, f"predict {{}} {inputs}")
        return Predictions(self.contents, inputs, self.ids, rows)

    def placed(self, variant: str) -> tuple[Variant, NDArray[np.int64]]:
        """A variant, and where these checkpoints are in it.

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
            raw = None if variant == layout.RAW else self.placed(layout.RAW)[0]
            self.variants[variant] = Variant(self.contents, variant, raw)
        found = self.variants[variant]
        if variant not in self._places:
            rows = places_of(self.ids, found.tree.rows["id"])
            self._all(rows, "variant", variant, f"derive {{}} --gauge {variant}")
            self._places[variant] = rows
        return found, self._places[variant]

    def stacked(self, name: str, variant: str) -> StackedTensor:
        """A tensor of every checkpoint in a gauge."""
        held, rows = self.placed(variant)
        return StackedTensor(held.stack(self.tensor(name)), rows, name=name)

    def group_element(self, variant: str) -> dict[str, StackedTensor]:
        """The group elements of a variant."""
        held, rows = self.placed(variant)
        return {name: StackedTensor(stack, rows, name=name) for name, stack in held.group_element().items()}

    def source(self, names: Sequence[str], variant: str) -> Source:
        """What a stream of these tensors and layers reads; everything where there are no names."""
        held, rows = self.placed(variant)
        arch = self.contents.architecture
        wanted: list[str] = []
        for name in names:
            wanted += arch.layers[name] if name in arch.layers and name not in arch else (self.tensor(name),)
        stacks = {name: held.stack(name) for name in wanted or arch.names}
        files = self.contents.files
        bring = files.prefetch if isinstance(files, RemoteFiles) else None
        return Source(stacks, rows, self.ids.combine_chunks(), self.contents.revision, self.name, bring)

    def checkpoint(self, id: str, variant: str) -> Checkpoint:
        """One checkpoint by its id."""
        at = self._place(id)
        held, rows = self.placed(variant)
        row, maps = rows[at : at + 1], Maps()

        def read(name: str, private: bool) -> NDArray[Any]:
            return held.stack(self.tensor(name)).gather(row, private=maps if private else None)[0, ...]

        def ahead() -> None:
            held.will_need(int(row[0]))

        facts = self.metadata.slice(at, 1).to_pylist()[0]
        return Checkpoint(self.contents.architecture, facts, variant, read, ahead)

    def tensor(self, name: str) -> str:
        """The tensor that is stored under this name or alias."""
        arch = self.contents.architecture
        for tensor in (arch[name],) if name in arch else arch.tensors:
            if name == tensor.name or name in tensor.aliases:
                return tensor.name
        known = [other for tensor in arch.tensors for other in (tensor.name, *tensor.aliases)]
        raise UnknownNameError(self.name, "tensor", name, arch.layers.get(name, known))

    def _all(self, rows: NDArray[np.int64], what: str, name: str, command: str) -> None:
        """Refuse a derived thing that some of these checkpoints lack; ``command`` with the zoo's folder makes it."""
        if missing := int((rows < 0).sum()):
            here = self.contents.files.here
            step = "" if here is None else f", or run ckptzoo {command.format(here)}"
            raise ZooError(
                f"{self.name}: {what} {name!r}: expected all {len(rows)} checkpoints, got {len(rows) - missing}. "
                f"Take those with zoo.having({name!r}){step}."
            )

    def _place(self, id: str) -> int:
        at = self.ids.index(id).as_py()
        if at < 0:
            for tomb in self.contents.retracted.metadata.to_pylist():
                if tomb["id"] == id:
                    step = "Its bytes stay in the zoo."
                    raise ZooError(f"{self.name}: checkpoint {id!r}: retracted, because {tomb['reason']!r}. {step}")
            raise UnknownNameError(self.name, "checkpoint", id, self.ids.to_pylist())
        return at


def standing(contents: Contents) -> NDArray[np.int64]:
    """Their rows of the raw tree, in order; ids are read only where something was retracted."""
    rows, tombs = np.arange(len(contents.raw.rows), dtype=np.int64), contents.retracted.rows
    return rows[places_of(contents.ids, tombs["id"]) < 0] if len(tombs) else rows


def left_out(contents: Contents, rows: NDArray[np.int64]) -> str | None:
    """How many of the checkpoints are not among the standing rows, in words; None where nothing was retracted."""
    count = len(contents.raw.rows)
    return (
        f"{count - len(rows)} of {count} checkpoints retracted and left out" if len(contents.retracted.rows) else None
    )
