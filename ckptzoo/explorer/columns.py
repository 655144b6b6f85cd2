"""The columns of a page, from its members' rows and those of their variant, and their histograms."""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, SpecError
from ckptzoo.format.splits import COLUMNS as COLUMNS_OF_SPLITS
from ckptzoo.format.splits import part_numbers, read_split
from ckptzoo.format.tree import places_of
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.documents import JsonFields
from ckptzoo.schema.metadata import COLUMNS, VARIANT_COLUMNS

MAX_VALUES = 254
"""Distinct texts of a column that are kept apart, in one byte with a number for null; a column of more is left out."""
NULL = 255
"""The number of a null among texts."""
MAX_SPLITS = 4
"""Splits of a zoo that the page tells of."""
MAX_SHOWN = 200
"""Characters of a text that is a value of many rows."""
_DOCS = {column.name: column.doc for column in (*VARIANT_COLUMNS, *COLUMNS)}
_KEYS = ("id", "member", "mode", "unit", "created", "extra", "commit", "dataset_digest", "recipe_digest", "source")
"""Columns that the details leave out: names of rows, of which the page has the id, and provenance."""
BARS = ("method", "contributor", "recipe", "license", "dataset", "mode")
"""Columns of texts that are drawn as bars, where rows differ in them or say anything."""


Values = NDArray[np.float64]
Scale = Literal["linear", "log"]

BINS = 60
"""The most bins of a histogram: twice the square root of the number of values where that is less, and 8 at least."""
_FEWEST_BINS = 8
_MAX_WHOLE = 40
"""Whole numbers in a range of at most this many get a bin each."""
_TAIL = 0.005
"""The fraction of the values at either end that may be beyond the bins, where they are far from all others."""
_FAR = 6.0
"""The ratio of the range of all values to that between the tails from which on the tails are left out."""

_HUGE = 1e300
"""Larger values, and on a logarithmic scale their inverses, are in no bin: sums and powers of them are no floats."""


@dataclass(frozen=True, eq=False)
class ColumnHistogram(JsonFields):
    """Counts of values in bins.

    ``edges`` (B + 1,) rise; bin i holds ``edges[i] <= v < edges[i + 1]``, the last one its upper edge too. They are
    empty where no value can be shown. ``counts`` (B,) int64 are those of ``numpy.histogram(values, edges)``.
    ``missing``, ``nan`` and ``infinite`` count the values that are null, NaN and infinite, and ``beyond`` the finite
    values in no bin, on a logarithmic scale those of 0 and less too.
    """

    edges: Values
    counts: NDArray[np.int64]
    missing: int
    nan: int
    infinite: int
    beyond: int


def histogram(values: Values, is_null: NDArray[np.bool_], scale: Scale = "linear") -> ColumnHistogram:
    """Return the histogram of a column (N,) float64, whose values where ``is_null`` (N,) do not matter."""
    known = values[~is_null]
    finite = known[np.isfinite(known)]
    shown = finite[np.abs(finite) < _HUGE]
    if scale == "log":
        shown = shown[shown > 1 / _HUGE]
    edges = _edges(shown, scale) if len(shown) else np.empty(0)
    counts = np.histogram(finite, edges)[0] if len(edges) else np.empty(0, np.int64)
    return ColumnHistogram(
        edges,
        counts.astype(np.int64),
        missing=int(is_null.sum()),
        nan=int(np.isnan(known).sum()),
        infinite=int(np.isinf(known).sum()),
        beyond=int(len(finite) - counts.sum()),
    )


def _edges(values: Values, scale: Scale) -> Values:
    """Return edges of bins for finite values, at least one; positive ones on a logarithmic scale."""
    low, high = float(values.min()), float(values.max())
    # halves between whole numbers are exact below 2**52
    if scale == "linear" and high - low <= _MAX_WHOLE and abs(high) < 2**50 and (values == np.floor(values)).all():
        return np.arange(low - 0.5, high + 1.0, 1.0)
    on_scale = np.log10(values) if scale == "log" else values
    ends = np.array([on_scale.min(), on_scale.max()])
    inner = np.quantile(on_scale, [_TAIL, 1 - _TAIL])
    width = inner[1] - inner[0]
    if width > 0 and ends[1] - ends[0] > _FAR * width:
        ends = np.clip(ends, inner[0] - 0.1 * width, inner[1] + 0.1 * width)
    bins = int(np.clip(2 * len(values) ** 0.5, _FEWEST_BINS, BINS))
    if ends[1] - ends[0] <= max(1e-12 * np.abs(ends).max(), 1 / _HUGE):
        half = 0.001 * np.abs(ends).max() or 0.5
        ends = np.array([ends[0] - half, ends[1] + half])
        return 10.0**ends if scale == "log" else ends
    edges = np.linspace(ends[0], ends[1], bins + 1)
    if scale == "log":
        edges = 10.0**edges
    # a logarithm and its power must not leave out the least and the largest value by rounding
    edges[0] = low if ends[0] == on_scale.min() else edges[0]
    edges[-1] = high if ends[1] == on_scale.max() else edges[-1]
    return edges


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
    histogram: ColumnHistogram


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
    known: list[Measure] = []
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
                known.append(Measure(name, kind, values[rows], is_null[rows], counted))
                break
    return known


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


def splits(zoo: Zoo, rows: NDArray[np.int64]) -> list[Category]:
    """Return each split of the zoo as a column of texts, the parts in their order; a damaged split is left out."""
    found: list[Category] = []
    for name in zoo.splits[:MAX_SPLITS]:
        try:
            split = read_split(zoo.contents.files, name, zoo.contents.identity)
        except (IntegrityError, SpecError) as error:
            warnings.warn(f"{error} The page says nothing of the split.", UserWarning, stacklevel=4)
            continue
        numbers = part_numbers(split, pa.table({column: zoo.column(column) for column in COLUMNS_OF_SPLITS}))
        counts = np.bincount(numbers[numbers >= 0], minlength=len(split.parts))
        codes = np.where(numbers < 0, NULL, numbers).astype(np.uint8)
        missing = int((numbers < 0).sum())
        found.append(Category(f"split.{name}", tuple(split.parts), codes[rows], tuple(counts.tolist()), missing))
    return [category for category in found if len(category.texts) <= MAX_VALUES]


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
