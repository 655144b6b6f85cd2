"""What is in this zoo? Counts, variants, sizes and the spread of the accuracies, from the metadata alone."""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console, Group, RenderableType
from rich.table import Table

from ckptzoo.arguments import checked
from ckptzoo.console import PrintedResult, columns, facts, say
from ckptzoo.errors import AbsentError, IntegrityError
from ckptzoo.format.digests import ReferenceSummary, reference_summary
from ckptzoo.format.reader import Contents, zoo_folders
from ckptzoo.format.table import array_of, filled_with
from ckptzoo.format.tree import Tree, places_of
from ckptzoo.loader.collection import Collection, open_collection
from ckptzoo.loader.extra import extra_names
from ckptzoo.loader.filters import Filters
from ckptzoo.loader.flags import flags, usable_rows
from ckptzoo.loader.selection import MethodDraws, draws_by_method
from ckptzoo.loader.zoo import Zoo
from ckptzoo.loader.zoo import open as open_zoo
from ckptzoo.recording.units import hint, waiting_units
from ckptzoo.schema import layout
from ckptzoo.schema.documents import Document, JsonFields
from ckptzoo.schema.equivalence import checked_difference
from ckptzoo.schema.layout import predictions_name
from ckptzoo.schema.metadata import DIFFERENCES
from ckptzoo.studies.shared.result import Spread
from ckptzoo.symmetry.counts import GROUP_COLUMNS, GroupCounts, counts_by_group
from ckptzoo.text import counted, printable, size

ORIGIN = ("recipe", "dataset", "precision", "license", "contributor")
"""Columns whose distinct values say where the checkpoints come from."""
ON_THE_PAGE = ("license", "contributor")
"""Columns whose value for rows without one is on the zoo's page."""
_MAX_VALUES = 4
"""The number of distinct values of a column that are printed."""
_MAX_COLUMNS = 40
"""The number of names of columns that are printed."""
_WHOLE = "of the whole zoo"


@dataclass(frozen=True)
class VariantSummary:
    """One variant of a whole zoo, the retracted checkpoints left out.

    ``nbytes`` is the size of its shards, the group elements and the retracted checkpoints included;
    ``certificate_random`` and ``certificate_real`` are the largest over the checkpoints, None where none was measured;
    ``checked_random`` and ``checked_real`` count the checkpoints that were;
    ``failed`` counts checkpoints whose differences are larger than rounding explains (``ckptzoo.schema.equivalence``).
    """

    name: str
    checkpoints: int
    parts: int
    nbytes: int
    certificate_random: float | None = None
    certificate_real: float | None = None
    failed: int = 0
    checked_random: int = 0
    checked_real: int = 0


@dataclass(frozen=True)
class PredictionSummary:
    """A whole zoo's outputs on a set of inputs; retracted checkpoints count in ``nbytes`` of the shards alone."""

    set: str
    checkpoints: int
    examples: int
    outputs: int
    labelled: bool
    nbytes: int


@dataclass(frozen=True)
class Inventory(PrintedResult, JsonFields, derived=("nbytes",)):
    """The contents of a zoo, or of a selection of one.

    ``total`` counts the zoo's checkpoints but for the retracted ones; ``diverged``, ``not_finite`` and ``retracted``
    count checkpoints too, not members, the last of the whole zoo. ``layers`` maps layers to their tensors' names and
    shapes. ``test_accuracy`` is over the last steps of members that are finite and did not diverge, None where none was
    measured; ``stated`` of its values contributors state and nobody measured in the zoo. ``told`` has the distinct
    values of the columns in ``ORIGIN``, with the number of checkpoints that have each, and ``untold`` the number
    without one: the zoo's page says what holds for these where licence or contributor is lacking. ``groups`` are the
    symmetries of each group of channels. ``columns`` are those in which some checkpoint of the selection has a value,
    and ``extra.<key>`` for what is within the column ``extra``. ``references`` is what the zoo refers to, None of one
    that holds its weights. ``waiting`` counts checkpoints that were recorded into
    the folder and not gathered yet.
    """

    name: str
    path: str
    architecture: str
    parameters: int
    layers: dict[str, dict[str, tuple[int, ...]]]
    checkpoint_bytes: int
    checkpoints: int
    total: int
    members: int
    retracted: int
    diverged: int
    not_finite: int
    variants: tuple[VariantSummary, ...]
    predictions: tuple[PredictionSummary, ...]
    test_accuracy: Spread | None
    # these names are keys of ckptzoo info --json
    told: dict[str, dict[str, int]]
    untold: dict[str, int]
    groups: tuple[GroupCounts, ...] = ()
    draws: tuple[MethodDraws, ...] = ()
    columns: tuple[str, ...] = ()
    stated: int = 0
    references: ReferenceSummary | None = None
    waiting: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all shards of the zoo."""
        return sum(item.nbytes for item in (*self.variants, *self.predictions))

    def to_json(self) -> Document:
        """Everything by name; what is unknown is None."""
        layers = [
            {"layer": layer, "tensors": [{"name": name, "shape": list(shape)} for name, shape in tensors.items()]}
            for layer, tensors in self.layers.items()
        ]
        return {**super().to_json(), "layers": layers}

    def print(self, console: Console | None = None) -> None:
        (console or Console()).print(Group(*self.lines()), markup=False, highlight=False)

    def lines(self) -> Iterator[RenderableType]:
        """The lines that ``print`` prints."""
        yield facts(self._facts())
        yield ""
        yield self._variants()
        if self.predictions:
            yield ""
            yield self._predictions()
        if self.groups:
            yield ""
            yield self._groups()

    def _groups(self) -> Table:
        table = columns(*GROUP_COLUMNS)
        for item in self.groups:
            table.add_row(*map(printable, item.shown))
        return table

    def _facts(self) -> list[tuple[str, str]]:
        of_total = f" of {self.total:,}" if self._selected else ""
        several = self.members != self.checkpoints
        counts = [counted(self.members, "member")]
        for number, what in (
            (self.diverged, "diverged"),
            (self.not_finite, "not finite"),
            (self.retracted, "retracted and left out"),
        ):
            counts += [f"{counted(number, 'checkpoint') if several else f'{number:,}'} {what}"] if number else []
        raw = any(item.name == layout.RAW for item in self.variants)
        per = f"{size(self.checkpoint_bytes)} of raw weights a checkpoint" if raw else "raw weights are not held"
        layers = ", ".join(self.layers) if len(self.layers) <= 8 else f"{len(self.layers)} layers"
        rows = [
            ("zoo", self.name),
            ("path", self.path),
            ("architecture", f"{self.architecture}: {self.parameters:,} parameters in {layers}"),
            ("checkpoints", f"{self.checkpoints:,}{of_total} ({', '.join(counts)})"),
            *(("draws" if not at else "", _drawn(item)) for at, item in enumerate(self.draws)),
            *([] if self.references is None else [("references", str(self.references))]),
            ("size", f"{size(self.nbytes)} ({f'{_WHOLE}; ' if self._selected else ''}{per})"),
        ]
        if (spread := self.test_accuracy) is not None:
            text = f"mean {spread.mean:.2%}, sd {spread.sd:.2%}, {spread.least:.2%} to {spread.most:.2%}"
            members = f"{counted(spread.count, 'member')} at their last step"
            of = members if several else counted(spread.count, "checkpoint")
            measured = (
                f"{spread.count - self.stated:,} measured, {self.stated:,} stated by contributors, not measured again"
            )
            rows.append(("test accuracy", f"{text} ({of}{f': {measured}' if self.stated else ''})"))
        rows += [(column, self._values(column)) for column in self.told]
        if self.waiting:
            rows.append(("waiting", hint(self.path, self.waiting)))
        left = len(self.columns) - _MAX_COLUMNS
        more = f" and {left:,} more, which --json lists" if left > 0 else ""
        rows.append(("columns", f"{', '.join(self.columns[:_MAX_COLUMNS])}{more}"))
        return rows

    def _values(self, column: str) -> str:
        """The values of a column as they are printed, with how many checkpoints have each."""
        values, untold = list(self.told[column].items()), self.untold[column]
        if len(values) == 1 and not untold:
            return values[0][0]
        shown = [f"{value} ({count:,})" for value, count in values[:_MAX_VALUES]]
        if left := values[_MAX_VALUES:]:
            shown.append(f"{len(left):,} more ({sum(count for _, count in left):,})")
        if untold:
            shown.append(f"{'as on the page of the zoo' if column in ON_THE_PAGE else 'not stated'} ({untold:,})")
        return ", ".join(shown)

    @property
    def _selected(self) -> bool:
        return self.checkpoints != self.total

    def _headed(self, column: str) -> str:
        return f"{column}\n({_WHOLE})" if self._selected else column

    def _variants(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column(self._headed("variant"), no_wrap=True)
        for name in ("checkpoints", "parts", "size"):
            table.add_column(name, justify="right", no_wrap=True)
        for name in ("certificate (random)", "certificate (real)", ""):
            table.add_column(name, justify="right")
        for item in self.variants:
            certificates = [
                "-" if value is None else checked_difference(value, checked, item.checkpoints)
                for value, checked in (
                    (item.certificate_random, item.checked_random),
                    (item.certificate_real, item.checked_real),
                )
            ]
            row = [printable(item.name), f"{item.checkpoints:,}", f"{item.parts:,}", size(item.nbytes), *certificates]
            table.add_row(*row, f"{item.failed:,} of another function" if item.failed else "")
        return table

    def _predictions(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column(self._headed("predictions"), no_wrap=True)
        for name in ("checkpoints", "examples", "outputs", "labels", "size"):
            table.add_column(name, justify="right", no_wrap=True)
        for item in self.predictions:
            numbers = [f"{number:,}" for number in (item.checkpoints, item.examples, item.outputs)]
            table.add_row(printable(item.set), *numbers, "yes" if item.labelled else "no", size(item.nbytes))
        return table


@checked
def inventory(zoo: Zoo) -> Inventory:
    """Take stock of a zoo or of a selection of one.

    Parameters
    ----------
    zoo
        what ``ckptzoo.open`` gives, or a selection of it.

    Notes
    -----
    Reads metadata and indices; no weights. Variants and sizes are those of the whole zoo.

    Examples
    --------
    >>> from ckptzoo.studies.inventory import inventory
    >>> found = inventory(ckptzoo.open("cards/mnist-optunet"))
    >>> found.checkpoints, found.parameters, round(found.test_accuracy.mean, 3)
    (8192, 392, 0.883)
    """
    contents, arch, rows = zoo.contents, zoo.arch, _Rows()
    # first every column at once, which are kept where they are few
    for run in zoo.metadata_runs():
        rows.add(run)
        del run  # not held while the next is read
    last = zoo.last_steps()
    members, accuracies, usable_count, stated = len(last), np.empty(len(last)), 0, 0
    may_be_stated = contents.stated("test_accuracy")
    for run in last.metadata_runs(*(["id"] if may_be_stated else []), "test_accuracy", "diverged", "finite"):
        accuracy = filled_with(run["test_accuracy"], float("nan"))
        usable = usable_rows(run)
        count = int(usable.sum())
        accuracies[usable_count : usable_count + count] = accuracy[usable]
        usable_count += count
        if may_be_stated:
            known = run["id"].filter(pa.array(usable & np.isfinite(accuracy))).to_pylist()
            stated += len(may_be_stated.intersection(known))
    del last  # of ten million members it takes 80 MB
    layers = {layer: {name: arch[name].shape for name in names} for layer, names in arch.layers.items()}
    retracted = contents.retracted.rows
    gone = retracted["id"] if len(retracted) else None
    # of a zoo that was pulled without the weights as trained, raw parts hold rows alone
    bare = sum(part.rows for part in contents.raw.parts if part.facts.get("bare") is True)
    variants = [_variant(contents, layout.RAW, contents.raw, gone)] if not bare or bare < len(contents.raw.rows) else []
    variants += [_variant(contents, name, contents.derived(name), gone) for name in zoo.variants if name != layout.RAW]
    told = {column: counts for column in ORIGIN if (counts := _ordered(rows.told[column]))}
    return Inventory(
        name=zoo.name,
        path=zoo.address,
        architecture=arch.name,
        parameters=arch.parameters,
        layers=layers,
        checkpoint_bytes=arch.nbytes,
        checkpoints=len(zoo),
        # retracted checkpoints stay on disk, so the rows of the tree still have them
        total=len(contents.raw.rows) - len(zoo.retracted["id"].unique()),
        members=members,
        retracted=len(zoo.retracted["id"].unique()),
        diverged=rows.diverged,
        not_finite=rows.not_finite,
        variants=tuple(variants),
        predictions=tuple(_predicted(name, contents.derived(predictions_name(name)), gone) for name in zoo.predicted),
        test_accuracy=Spread.of(accuracies[:usable_count]),
        told=told,
        untold={column: len(zoo) - sum(counts.values()) for column, counts in told.items()},
        groups=() if contents.symmetry is None else counts_by_group(contents.symmetry),
        draws=draws_by_method(pa.concat_tables(rows.draws)) if rows.draws else (),
        columns=tuple(rows.filled()),
        stated=stated,
        references=reference_summary(contents),
        waiting=waiting_units(Path(zoo.address)) if Path(zoo.address).is_dir() else 0,
    )


class _Rows:
    """Tallies of the rows of the metadata, which are added some at a time."""

    def __init__(self) -> None:
        self.diverged = self.not_finite = 0
        self.told = {column: Counter[Any]() for column in ORIGIN}
        self.draws: list[pa.Table] = []
        self._names: tuple[str, ...] = ()
        self._filled = set[str]()
        self._within_extra: set[str] | None = None

    def add(self, run: pa.Table) -> None:
        """Take some rows, with every column."""
        self._names = tuple(run.column_names)
        self._filled |= {name for name in self._names if run[name].null_count < len(run)}
        self.diverged += int(flags(run, "diverged").sum())
        self.not_finite += int((~flags(run, "finite", missing=True)).sum())
        for column, counts in self.told.items():
            counts.update({item["values"].as_py(): item["counts"].as_py() for item in run[column].value_counts()})
        drawn = run.select(["method", "mode"]).filter(run["method"].is_valid())
        self.draws += [drawn] if len(drawn) else []
        if self._within_extra is None:
            self._within_extra = extra_names(run["extra"])

    def filled(self) -> list[str]:
        """The columns with a value, and the names within ``extra`` in place of that column."""
        within = {"extra": sorted(self._within_extra or ())}
        return [item for name in self._names if name in self._filled for item in within.get(name, [name])]


@dataclass(frozen=True)
class ZooListing(PrintedResult, JsonFields):
    """The zoos of a folder or of a collection.

    ``zoos`` maps folders to inventories; ``notes`` say which zoos differ from the collection's record: missing,
    changed, or not in it. ``path`` is the folder, or the address of a collection.
    """

    name: str
    zoos: dict[str, Inventory]
    notes: tuple[str, ...] = ()
    is_collection: bool = False
    path: str = ""

    def print(self, console: Console | None = None) -> None:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("zoo", no_wrap=True)
        for name in ("checkpoints", "members", "size", "test accuracy"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("architecture")
        for folder, item in self.zoos.items():
            accuracy = "-" if item.test_accuracy is None else f"{item.test_accuracy.mean:.2%}"
            numbers = (f"{item.checkpoints:,}", f"{item.members:,}", size(item.nbytes), accuracy)
            table.add_row(printable(folder), *numbers, printable(item.architecture))
        console = console or Console()
        several = f"{counted(len(self.zoos), 'zoo')}"
        head = f"a folder with {several}, no collection yet: ckptzoo collection {quote(self.path)}"
        say(console, printable(f"collection of {several}" if self.is_collection else head), "")
        console.print(table, markup=False, highlight=False)
        say(console, *(printable(f"note: {note}") for note in self.notes))


@checked
def take_stock(address: str, where: Filters = None) -> Inventory | ZooListing:
    """Take stock of a zoo, or of each zoo of a collection or of a folder.

    Parameters
    ----------
    address
        of a zoo or a collection, as ``ckptzoo.open`` takes it, or a folder whose folders are zoos.
    where
        a condition on checkpoints.

    Examples
    --------
    >>> from ckptzoo.studies.inventory import take_stock
    >>> take_stock("zoos").zoos["toy"].checkpoints
    64
    """
    path = Path(address)
    # an empty path is the working folder
    names = zoo_folders(path) if address and path.is_dir() and not (path / layout.ZOO).exists() else []
    if names and not (path / layout.COLLECTION).exists():
        listed = _listing(path.resolve().name, {folder: open_zoo(path / folder) for folder in names}, where)
        return replace(listed, path=address)
    try:
        zoo = open_zoo(address)
    except IntegrityError as error:
        # of anything but a collection the first error says what it is
        if error.problem.what != layout.ZOO:
            raise
        try:
            collection = open_collection(address)
        except IntegrityError as other:
            raise (error if other.problem.location.endswith(layout.COLLECTION) and not names else other) from None
        return replace(_listing_of(collection, names, where), is_collection=True, path=address)
    return inventory(zoo if where is None else zoo.where(where))


def _listing_of(collection: Collection, folders: Sequence[str], where: Filters) -> ZooListing:
    """List the zoos of a collection as they are now, here in ``folders``, and how they differ from its record."""
    zoos, notes = dict[str, Zoo](), list[str]()
    entries = {entry.folder: entry for entry in collection.entries}
    for folder in dict.fromkeys((*entries, *folders)):
        if folder not in entries:
            notes.append(f"{folder} is not in the collection; ckptzoo collection FOLDER adds it.")
            continue
        try:
            zoos[folder] = open_zoo(collection.address_of(folder))
        except (IntegrityError, AbsentError) as error:
            notes.append(f"{folder} cannot be read: {error.problem}")
            continue
        if zoos[folder].revision != entries[folder].revision:
            notes.append(f"{folder} has changed since the collection was written; write it again.")
    return _listing(collection.name, zoos, where, notes)


def _listing(name: str, zoos: Mapping[str, Zoo], where: Filters, notes: Sequence[str] = ()) -> ZooListing:
    """List the contents of zoos; with a condition only zoos in which something is selected."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        chosen = {folder: zoo if where is None else zoo.where(where) for folder, zoo in zoos.items()}
    # a column that is empty in one zoo decides nothing where another zoo has values
    for warning in () if any(map(len, chosen.values())) else said:
        warnings.warn(warning.message, stacklevel=3)
    inventories = {folder: inventory(zoo) for folder, zoo in chosen.items() if where is None or len(zoo)}
    return ZooListing(name, inventories, tuple(notes))


def _drawn(item: MethodDraws) -> str:
    around = f" around {counted(item.modes, 'mode')}" if item.modes else ""
    return f"{item.method}: {item.draws:,}{around}"


def _variant(contents: Contents, name: str, tree: Tree, gone: pa.ChunkedArray | None) -> VariantSummary:
    kept = _standing(tree, gone)
    summary = VariantSummary(name, int(kept.sum()), len(tree.parts), _nbytes(tree))
    if name == layout.RAW:
        return summary
    found, places = contents.columns(tree, ["certified", *DIFFERENCES]), array_of(np.flatnonzero(kept))
    random, real = (found[column].take(places).drop_null() for column in DIFFERENCES)
    return replace(
        summary,
        certificate_random=_largest(random),
        certificate_real=_largest(real),
        failed=len(contents.failed_checks(name).ids),
        checked_random=len(random),
        checked_real=len(real),
    )


def _predicted(name: str, tree: Tree, gone: pa.ChunkedArray | None) -> PredictionSummary:
    stored = tree.parts[0].facts  # the same in every part
    shape, count = (stored["examples"], stored["classes"]), int(_standing(tree, gone).sum())
    return PredictionSummary(name, count, *shape, stored["targets"] is not None, _nbytes(tree))


def _standing(tree: Tree, gone: pa.ChunkedArray | None) -> NDArray[np.bool_]:
    """(N,) the rows whose checkpoints were not retracted; ids are read only where something was."""
    return np.ones(len(tree.rows), bool) if gone is None else places_of(tree.rows["id"], gone) < 0


def _nbytes(tree: Tree) -> int:
    """Bytes of all shards, from the index rows without a tensor's name, one a shard."""
    index = tree.blocks.select(["tensor", "nbytes"])
    return sum(index.filter(index["tensor"].is_null())["nbytes"].to_pylist())


def _largest(column: pa.ChunkedArray) -> float | None:
    measured = filled_with(column, float("nan"))
    return float(measured.max()) if len(measured) else None


def _ordered(counts: Mapping[Any, int]) -> dict[str, int]:
    """The distinct values, the most frequent first; empty ones are left out."""
    # equally frequent ones by their text, whatever the order of the rows
    ordered = sorted(counts, key=lambda value: (-counts[value], str(value)))
    return {str(value): counts[value] for value in ordered if value}
