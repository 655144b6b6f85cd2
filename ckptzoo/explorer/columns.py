"""The columns of a page, from its members' rows and those of their variant."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ckptzoo.explorer.histograms import Histogram, Scale, Values, histogram
from ckptzoo.format.tree import places_of
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.metadata import COLUMNS, VARIANT_COLUMNS

MAX_VALUES = 254
"""Distinct texts of a column that are kept apart, in one byte with a number for null; a column of more is left out."""
NULL = 255
"""The number of a null among texts."""
MAX_SHOWN = 200
"""Characters of a text that is a value of many rows."""
_DOCS = {column.name: column.doc for column in (*VARIANT_COLUMNS, *COLUMNS)}
_KEYS = ("id", "member", "mode", "unit", "created", "extra", "commit", "dataset_digest", "recipe_digest", "source")
"""Columns that the details leave out: names of rows, of which the page has the id, and provenance."""
BARS = ("method", "contributor", "recipe", "license", "dataset")
"""Columns of texts that are drawn as bars, where rows differ in them or say anything."""


@dataclass(frozen=True)
class MeasureKind:
    """A column that is drawn as a histogram.

    The first of ``names`` with a value is taken, from the metadata or from the variant's rows. ``of_variant`` tells
    that it is in the variant's rows, which ``zoo.where`` does not read: a range of it is copied as ids.
    """

    names: tuple[str, ...]
    title: str
    scale: Scale = "linear"
    of_variant: bool = False


MEASURES = (
    MeasureKind(("test_accuracy",), "Test accuracy"),
    MeasureKind(("test_nll", "test_loss"), "Test negative log-likelihood"),
    MeasureKind(("test_brier",), "Test Brier score"),
    MeasureKind(("test_ece",), "Expected calibration error"),
    MeasureKind(("margin",), "Margin between channels", of_variant=True),
    MeasureKind(("certificate_real", "certificate_random"), "Equivalence check", "log", of_variant=True),
    MeasureKind(("ties",), "Ties", of_variant=True),
)


@dataclass(frozen=True, eq=False)
class Measure:
    """A column that is drawn as a histogram.

    ``values`` (n,) float64 are those of the rows that the page has, NaN where ``is_null`` (n,); ``histogram`` is that
    of all rows, also those that the page has not.
    """

    name: str
    kind: MeasureKind
    values: Values
    is_null: NDArray[np.bool_]
    histogram: Histogram


@dataclass(frozen=True, eq=False)
class Category:
    """A column of texts of which there are few.

    ``texts`` are in the order of their numbers, the most frequent first; ``codes`` (n,) uint8 are the numbers in the
    rows that the page has, ``NULL`` for none. ``counts`` by text and ``missing``, the rows without a text, are those of
    all rows.
    """

    name: str
    texts: tuple[str, ...]
    codes: NDArray[np.uint8]
    counts: tuple[int, ...]
    missing: int


def sampled(ids: pa.ChunkedArray, limit: int) -> NDArray[np.int64]:
    """Return the positions of at most ``limit`` rows, in order: those whose ids have the least keyed digests, so that a
    row that is added to the zoo later displaces at most one other.
    """
    if len(ids) <= limit:
        return np.arange(len(ids))
    digests = (hashlib.blake2b(id.encode(), digest_size=8, key=b"ckptzoo page").digest() for id in ids.to_pylist())
    # big-endian, so that numbers are in the order of the digests
    keys = np.frombuffer(b"".join(digests), ">u8")
    return np.sort(np.argsort(keys, kind="stable")[:limit])


def measures(zoo: Zoo, variant: str | None, rows: NDArray[np.int64]) -> list[Measure]:
    """Return every histogram for which some row has a value.

    ``zoo`` has all members, and ``rows`` are the positions of those that the page has; ``variant`` is the gauge whose
    rows are read, None for none.
    """
    found: list[Measure] = []
    for kind in MEASURES:
        if kind.of_variant and variant is None:
            continue
        for name in kind.names:
            column = variant_column(zoo, variant, name) if kind.of_variant and variant else zoo.column(name)
            if column.null_count < len(column):
                values, is_null = numbers(column)
                if kind.of_variant:
                    # float32 is enough where ids are copied and no ranges
                    values = values.astype(np.float32).astype(np.float64)
                counted = histogram(values, is_null, kind.scale)
                found.append(Measure(name, kind, values[rows], is_null[rows], counted))
                break
    return found


def variant_column(zoo: Zoo, variant: str, name: str) -> pa.ChunkedArray:
    """Return (N,) a column of a variant's rows, null for members that were not derived; no other is read."""
    tree = zoo.contents.derived(variant)
    places = places_of(zoo.column("id"), tree.rows["id"])
    column = zoo.contents.columns(tree, [name])[name]
    return column.take(pa.array(places, mask=places < 0))


def numbers(column: pa.ChunkedArray) -> tuple[Values, NDArray[np.bool_]]:
    """Return a column of numbers as float64, and where it is null."""
    is_null = column.is_null().to_numpy().astype(bool)
    # Arrow's safe cast refuses integers beyond 2**53, which float64 rounds
    filled = column.cast(pa.float64(), safe=False).fill_null(float("nan")) if len(column) else column
    return np.asarray(filled.to_numpy(), np.float64), is_null


def category(zoo: Zoo, name: str, rows: NDArray[np.int64]) -> Category | None:
    """Return a column of texts; None where there are none, or more than ``MAX_VALUES``."""
    column = zoo.column(name)
    counts = [item for item in column.value_counts().to_pylist() if item["values"] is not None]
    if not 0 < len(counts) <= MAX_VALUES:
        return None
    # Arrow counts in the order in which values come
    counts.sort(key=lambda item: (-item["counts"], item["values"]))
    texts = [item["values"] for item in counts]
    # index_in gives null for what is not in the set: here for null alone
    codes = pc.call_function("index_in", [column], pc.SetLookupOptions(pa.array(texts, pa.string())))
    known = codes.fill_null(NULL).to_numpy().astype(np.uint8)
    return Category(name, tuple(texts), known[rows], tuple(item["counts"] for item in counts), column.null_count)


def detail_names(zoo: Zoo, drawn: Sequence[str]) -> list[str]:
    """Return the columns of the metadata that the details of a member show besides those that are drawn."""
    kept = (column.name for column in COLUMNS if column.name not in (*_KEYS, *drawn))
    return [name for name in kept if zoo.column(name).null_count < len(zoo)]


def document(name: str) -> str:
    """Return the description of a column."""
    return _DOCS.get(name, "")


def constant_or_values(column: pa.ChunkedArray, rows: NDArray[np.int64]) -> Any:
    """Return the value of a column whose rows are all the same, or an array of those of some rows.

    The value is a text, number or truth value; the array is int32 or float64 for whole numbers, float32 for others,
    uint8 for truth values, with NaN or 255 for null.
    """
    if len(column.unique()) == 1:
        return column[0].as_py()
    if pa.types.is_boolean(column.type):
        return column.cast(pa.uint8()).fill_null(NULL).to_numpy().astype(np.uint8)[rows]
    values, is_null = numbers(column)
    if pa.types.is_integer(column.type):
        fits = not is_null.any() and np.abs(values).max(initial=0) < 2**31
        return values[rows].astype("<i4" if fits else "<f8")
    # numpy warns of numbers beyond float32, which become infinite
    with np.errstate(over="ignore"):
        return values[rows].astype("<f4")
