"""``derive``: write a variant of a zoo, every raw part in a gauge, with group elements and equivalence checks."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.arguments import NETWORK, checked
from ckptzoo.derive.checks import (
    PRECISIONS,
    SMALL_BYTES,
    CheckPolicy,
    Precision,
    check_columns,
    check_facts,
    check_inputs,
    import_with_torch,
)
from ckptzoo.derive.concurrency import MAX_THREADS, in_order, return_freed_memory
from ckptzoo.derive.derived_writer import DerivedTreeWriter, Row, RowRun
from ckptzoo.derive.tables import declare, symmetry_of, traced_shape, with_input_shape
from ckptzoo.derive.variant_rule import GaugeRule, VariantRule
from ckptzoo.errors import Problem, SymmetryError, UnknownNameError, ZooError
from ckptzoo.format.checks import variant_dtype
from ckptzoo.format.files import Folder
from ckptzoo.format.maintenance import add_measured
from ckptzoo.format.part import Arrays, Part
from ckptzoo.format.reader import Contents, FailedChecks, read_contents
from ckptzoo.format.tree import places_of
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Tensor
from ckptzoo.schema.documents import Document
from ckptzoo.schema.layout import GaugeName
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, gauge_named
from ckptzoo.text import Progress

STORE = ("weights", "element")
"""The contents of a variant's parts: weights and group elements, or group elements alone."""
BATCH_BYTES = 32 * 2**20
"""The maximum of bytes of raw weights in a batch, unless one checkpoint has more."""
_AT_ONCE_BYTES = 160 * 2**20
"""The bytes of raw weights of the batches that are in memory together; two of them are whatever they have."""
_OF_GAUGED = {"ties", "margin", "dead", "unresolved", "clamped", "degenerate"}
"""Columns that are null where a checkpoint is not in the gauge."""
BATCH_ROWS = 2048
"""The maximum of checkpoints in a batch, so that zoos of small networks keep every core busy."""


@dataclass(frozen=True)
class EquivalenceReport:
    """The equivalence checks of one precision.

    Parameters
    ----------
    precision
        in which the outputs were computed.
    checkpoints
        the number that were checked.
    random, real
        the largest difference of outputs on random and on real inputs, relative to the largest output of the checkpoint
        (``EquivalenceChecker.output_differences``); None where there is none.
    """

    precision: Precision
    checkpoints: int
    random: float | None
    real: float | None


@dataclass(frozen=True)
class Derived:
    """The result of ``derive``.

    Parameters
    ----------
    gauge, version
        of the variant, and of its rule.
    store
        what the parts that were written now contain.
    parts
        names of the parts that were written, one for each raw part that had none.
    checkpoints
        the number derived now.
    already
        the number that the variant had before, or that is for others to derive.
    untouched
        the number of those derived now that stay as they were: not finite, or not representable in the gauge.
    tied, unresolved
        the number of those derived now with ties, and with ties that could not be resolved.
    dead, clamped
        the number of those derived now with dead channels, and with filters whose scale was limited.
    degenerate
        the number of those derived now with blocks of matrices of lower rank, to which no group element leads.
    checked_later
        the number of those derived before that were checked for equivalence now.
    certified
        the equivalence checks on sampled inputs that were made now, by precision.
    failed
        what the stored checks of the variant say of checkpoints that are another function now, whenever they were made.
    seconds, certifying
        what it took, and about how much of that went into the checks.
    """

    gauge: str
    version: int
    store: str
    parts: tuple[str, ...]
    checkpoints: int
    already: int
    untouched: int
    tied: int
    unresolved: int
    dead: int
    clamped: int
    degenerate: int
    checked_later: int
    certified: tuple[EquivalenceReport, ...]
    failed: FailedChecks
    seconds: float
    certifying: float


_FOUND = ("tied", "unresolved", "dead", "clamped", "degenerate")
"""Findings that ``Derived`` counts where a gauge reports them for a checkpoint."""


class Tally:
    """Sums over the rows of parts, in memory that does not grow with them.

    ``checkpoints`` is the number of rows; ``counts`` has the numbers of those that stayed as they were, and of those in
    which something was found, named as in ``Derived``; ``certified`` has the equivalence checks by precision, the most
    precise first.
    """

    def __init__(self) -> None:
        self.checkpoints = 0
        self.counts: dict[str, int] = dict.fromkeys(("untouched", *_FOUND), 0)
        self.certified: dict[Precision, EquivalenceReport] = {}

    def add(self, part: pa.Table) -> None:
        """Count the rows of a part."""
        for start in range(0, len(part), BATCH_ROWS):
            self._add(part.slice(start, BATCH_ROWS).to_pylist())

    def _add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.checkpoints += len(rows)
        self.counts["untouched"] += sum(not row["gauged"] for row in rows)
        for name in _FOUND:
            column = "ties" if name == "tied" else name
            self.counts[name] += sum(bool(row.get(column)) for row in rows)
        self.add_checks(rows)

    def add_checks(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Count the equivalence checks of rows."""
        reports = dict(self.certified)
        for precision in PRECISIONS:
            checked = [row for row in rows if row.get("certified") == precision]
            if checked:
                before = reports.get(precision, EquivalenceReport(precision, 0, None, None))
                random, real = _largest(checked, "random", before.random), _largest(checked, "real", before.real)
                reports[precision] = EquivalenceReport(precision, before.checkpoints + len(checked), random, real)
        self.certified = {precision: reports[precision] for precision in PRECISIONS if precision in reports}


def _largest(rows: Sequence[Mapping[str, Any]], inputs: str, before: float | None) -> float | None:
    """The largest difference of outputs in rows, or the one before."""
    differences = [before, *(row.get(f"certificate_{inputs}") for row in rows)]
    return max((difference for difference in differences if difference is not None), default=None)


@dataclass(frozen=True)
class RowBatch:
    """Checkpoints of one raw part that are brought into the gauge together.

    ``weights`` are as trained; ``precisions`` are those of the rows' equivalence checks, None for no check.
    """

    run: RowRun
    ids: Sequence[str]
    weights: Mapping[str, NDArray[Any]]
    precisions: Sequence[Precision | None]


@dataclass(frozen=True)
class BatchResult:
    """A batch in the gauge.

    ``arrays`` maps stems of the new part's shards to stacked tensors, and ``rows`` are the new part's. Computing took
    ``seconds``, of which ``certifying`` went into equivalence checks.
    """

    batch: RowBatch
    arrays: Mapping[str, Arrays]
    rows: list[Row]
    seconds: float
    certifying: float


class VariantJob:
    """One variant of one zoo.

    ``tree`` is the variant's; ``tally`` counts what was found in the checkpoints of the parts that were written.
    ``inputs`` are those of the equivalence checks by name, none for no checks; ``module`` is the network as a torch
    module, None for that of ``ckptzoo.archs``; ``weights`` says whether the variant's weights are stored beside the
    group elements.
    """

    def __init__(
        self,
        contents: Contents,
        symmetry: Symmetry,
        rule: VariantRule,
        inputs: Mapping[str, NDArray[Any]],
        policy: CheckPolicy,
        module: Any,
        *,
        weights: bool,
    ) -> None:
        self._contents, self._symmetry, self._rule = contents, symmetry, rule
        self._inputs, self._policy, self._module = inputs, policy, module
        self._arch = contents.architecture
        self._zoo = Zoo(contents, {}, np.arange(len(contents.raw.rows)))
        self._checker: Any = None
        facts: Document = {"kind": "variant", **rule.facts(symmetry), "symmetry": symmetry.digest}
        kinds = GroupElement.identity(symmetry, 1).to_tensors()
        self._sets = {layout.ELEMENT: [Tensor(name, kind.shape[1:], kind.dtype.name) for name, kind in kinds.items()]}
        if weights:
            stored = (replace(tensor, dtype=variant_dtype(tensor.dtype)) for tensor in self._arch.tensors)
            self._sets[rule.name] = list(stored)
        self.tree = DerivedTreeWriter(contents, rule.name, facts, self._sets, what="variant", error=SymmetryError)
        self.tally = Tally()

    def prepare(self) -> None:
        """Load torch where equivalence checks are wanted, and test the symmetry table against the forward function.

        The table is tried on the first finite ones of four checkpoints, or on one of a large network; on the next ones
        where none of them has finite outputs.
        """
        if not self._inputs:
            return
        self._checker = import_with_torch("output_differences").EquivalenceChecker(self._arch, self._module)
        small = self._arch.nbytes <= SMALL_BYTES
        # of weights in files of others it is not known before they are read
        may_be = self._zoo.column("finite").fill_null(self._contents.identity.references).to_numpy()
        candidates, inputs, at_once = np.flatnonzero(may_be), next(iter(self._inputs.values())), 4 if small else 1
        for start in range(0, len(candidates), at_once):
            rows = candidates[start : start + at_once]
            own = {name: self._zoo[name][rows] for name in self._arch.names}
            finite = np.logical_and.reduce(
                [np.isfinite(array).all(axis=tuple(range(1, array.ndim))) for array in own.values()]
            )
            if not finite.all():
                own = {name: array[finite] for name, array in own.items()}
            is_tried = finite.any() and self._checker.check_table(self._symmetry, own, inputs if small else inputs[:2])
            del own
            return_freed_memory()
            if is_tried:
                return

    @property
    def threads(self) -> int:
        """The maximum number of batches that are solved at a time; one more is in memory, while it is written."""
        # checks hold one checkpoint in float64 at a time (EquivalenceChecker)
        copied = 2 * self._arch.nbytes if self._inputs else 0
        return max(1, min(MAX_THREADS, (_AT_ONCE_BYTES - copied) // max(BATCH_BYTES, self._arch.nbytes) - 1))

    def batches(self, parts: Sequence[tuple[int, Part]]) -> Iterator[RowBatch]:
        """Yield batches of the checkpoints of parts that are not yet derived when their turn comes."""
        metadata = self._contents.raw.rows.select(["id"])
        precisions: list[Precision | None] = []
        done = 0
        for run in self.tree.runs(parts, max(1, min(BATCH_ROWS, BATCH_BYTES // self._arch.nbytes))):
            if run.first:
                precisions = [None] * run.raw.rows
                if self._inputs:
                    precisions = self._policy.precisions(self.tree.finite(run))
                done = 0
            count = run.rows.stop - run.rows.start
            ids = metadata["id"].slice(run.rows.start, count).to_pylist()
            weights = {name: self._zoo[name][run.rows] for name in self._arch.names}
            yield RowBatch(run, ids, weights, precisions[done : done + count])
            done += count

    def solve(self, batch: RowBatch) -> BatchResult:
        """Bring a batch into the variant and check it; called by several threads."""
        started = time.perf_counter()
        # one thread here: batches are spread over the cores
        found = self._rule.transform(batch.weights, self._symmetry)
        report = found.report
        columns: dict[str, Sequence[Any]] = {
            "id": batch.ids,
            "gauged": report.gauged.tolist(),
            "ties": report.ties.tolist(),
            "margin": report.margin.tolist(),
            "dead": report.dead.tolist(),
            "unresolved": report.unresolved.tolist(),
            "clamped": report.clamped.tolist(),
        }
        if self._symmetry.has_matrices:
            columns["degenerate"] = report.degenerate.tolist()
        if found.fingerprints is not None:
            columns["fingerprint"] = found.fingerprints
        solved = time.perf_counter()
        if self._inputs:
            weights = batch.weights, found.weights
            columns |= check_columns(self._checker, *weights, self._inputs, batch.precisions)
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        for row in rows:
            # such a row has the raw weights and the identity (docs/format.md): what the gauge found does not apply
            if not row["gauged"]:
                row.update(dict.fromkeys(_OF_GAUGED & row.keys()))
        arrays = {self._rule.name: found.weights, layout.ELEMENT: found.element.to_tensors()}
        stored = {stem: arrays[stem] for stem in self._sets}
        ended = time.perf_counter()
        return BatchResult(batch, stored, rows, ended - started, ended - solved)

    def store(self, result: BatchResult) -> None:
        """Write a batch; the last one of a part publishes it."""
        # "certificate" is the word on disk, docs/format.md
        facts = {"certificate": check_facts(self._inputs, self._policy), **self._rule.notes}
        self.tally.add(self.tree.store(result.batch.run, result.arrays, result.rows, facts))


class MissingChecks:
    """The equivalence checks of a variant's checkpoints that were derived without them.

    The variant of ``contents`` is complete; ``inputs``, ``policy`` and ``module`` are as in ``VariantJob``.
    """

    def __init__(
        self, contents: Contents, gauge: str, inputs: Mapping[str, NDArray[Any]], policy: CheckPolicy, module: Any
    ) -> None:
        self._zoo, self._gauge = Zoo(contents, {}, np.arange(len(contents.raw.rows))), gauge
        self._inputs, self._policy, self._module = inputs, policy, module
        self._checker: Any = None

    def make(self, tally: Tally, share: tuple[int, int], progress: Progress | None) -> int:
        """Make the checks and store those of each part when it is done; returns the number of checkpoints."""
        contents = self._zoo.contents
        parts = list(_starts(contents.derived(self._gauge).parts))[share[0] :: share[1]]
        todo = [(part, *self._missing(part, start)) for part, start in parts]
        total, done = sum(len(rows) for _, rows, _ in todo), 0
        if not total:
            return 0
        self._checker = import_with_torch("output_differences").EquivalenceChecker(contents.architecture, self._module)
        step = max(1, min(BATCH_ROWS, BATCH_BYTES // contents.architecture.nbytes))
        facts = {"certificate": check_facts(self._inputs, self._policy)}
        for part, rows, precisions in todo:
            batches = ((rows[at : at + step], precisions[at : at + step]) for at in range(0, len(rows), step))
            made: list[Row] = []
            with closing(in_order(self._check, batches)) as results:
                for checked in results:
                    made += [{**row, "unit": part.digest} for row in checked if row["certified"] is not None]
                    done += len(checked)
                    if progress is not None:
                        progress(done, total)
            add_measured(contents.root, made, facts)
            tally.add_checks(made)
        return total

    def _missing(self, part: Part, start: int) -> tuple[NDArray[np.int64], list[Precision | None]]:
        """The rows of the zoo that are a part's checkpoints without a check that the policy wants, with its precision.

        Checks in another precision are left as they are.
        """
        contents = self._zoo.contents
        tree = contents.derived(self._gauge)
        figures = [f"certificate_{name}" for name in self._inputs]
        table = contents.columns(tree, ["id", "certified", *figures]).slice(start, part.rows)
        rows = places_of(table["id"], contents.ids)
        finite = contents.columns(contents.raw, ["finite"])["finite"].fill_null(False).to_numpy()[rows]
        wanted = self._policy.precisions(finite)
        made = table["certified"].to_pylist()
        complete = zip(*(table[name].is_valid().to_pylist() for name in figures), strict=True)
        missing = [
            at
            for at, (precision, before, has) in enumerate(zip(wanted, made, complete, strict=True))
            if precision is not None and (before is None or (before == precision and not all(has)))
        ]
        return rows[missing], [wanted[at] for at in missing]

    def _check(self, batch: tuple[NDArray[np.int64], list[Precision | None]]) -> list[Row]:
        rows, precisions = batch
        zoo = self._zoo.take(rows)
        names = zoo.arch.names
        raw, derived = ({name: zoo[name, variant][:] for name in names} for variant in (layout.RAW, self._gauge))
        columns = {"id": zoo.ids, **check_columns(self._checker, raw, derived, self._inputs, precisions)}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _starts(parts: Sequence[Part]) -> Iterator[tuple[Part, int]]:
    """Parts of a tree, each with the number of its first row."""
    start = 0
    for part in parts:
        yield part, start
        start += part.rows


@checked
def derive(
    path: str | Path,
    *,
    gauge: GaugeName = "canonical",
    store: str = "weights",
    certify: str = "auto",
    inputs: NDArray[Any] | None = None,
    module: NETWORK | None = None,
    input_shape: Sequence[int] | None = None,
    share: tuple[int, int] = (0, 1),
    progress: Progress | None = None,
) -> Derived:
    """Bring every checkpoint of a zoo into a gauge and write the variant beside the raw weights.

    ``variant = cast(apply(g, raw))``: weights at least float32, g with permutations in int32, scales and matrices in
    float64. With matrices ``variant = apply(g, fold(raw))`` to rounding, and g is NaN where blocks are degenerate.
    Each raw part gives one derived part; what was derived before is left alone, so a second call adds nothing and
    a killed one is carried on from the last part that it finished. Checks that checkpoints derived before lack are
    added where they are asked for by ``"all"`` or ``"sample"``: as figures measured later, beside the variant.

    Parameters
    ----------
    path
        the zoo's folder.
    gauge
        a name in ``ckptzoo.symmetry.GAUGES``; also the variant's name.
    store
        ``"weights"`` writes weights and group elements; ``"element"`` writes the elements alone, and the weights are
        computed when they are read. Parts that are there stay as they are stored. Where the table has matrices weights
        are always stored: products of matrices have the same bits on one machine with one library alone.
    certify
        which checkpoints are checked for equivalence, by comparing raw and derived outputs on a few inputs. ``"all"``:
        every one, in float64 up to 4 MiB a checkpoint; in larger networks in float32, and in float64 on a sample of
        each part: the first, the last and others evenly between, 8 in all. ``"sample"``: the sample alone, in float64.
        ``"none"``: none, and torch is not needed. ``"auto"``: all up to 4 MiB a checkpoint, else the sample.
        Checkpoints that are not finite are not checked.
    inputs
        (B, *input_shape) real inputs for the check, as the network takes them, beside 8 random ones where the zoo's
        architecture has an input shape.
    module
        the network as a torch module, for the check of one that is not in ``ckptzoo.archs``; where the zoo has no
        symmetry table the module is traced for one.
    input_shape
        of one input, such as ``(3, 32, 32)``, where the zoo's architecture does not say it: for random inputs, and to
        trace the module, where that of ``inputs`` is enough.
    share
        ``(i, n)`` for every n-th of the raw parts that are not derived, from the i-th, so that n processes or machines
        that share the folder derive a zoo together; the parts have the same digests.
    progress
        called after every batch.

    Raises
    ------
    UnknownNameError
        No such gauge, store or rule for equivalence checks.
    ZooError
        Checks are asked for by ``"all"`` or ``"sample"``, and no forward function or no input is known.
    SymmetryError
        The network has no symmetry table, the table is wrong, the gauge is not defined for it, or the variant was
        made by another version of the gauge or with another table; or elements alone are to be stored, and the table
        has matrices.
    MissingExtraError
        A check is wanted and torch is not installed.

    Notes
    -----
    A batch is 32 MiB of raw weights, or one checkpoint. One a core, at most four, is solved and checked at a time
    while the one before is written, and fewer where checkpoints have more than 32 MiB. Memory is that of 160 MiB of
    weights, or of two checkpoints, with float64 copies of 96 MiB, or of one checkpoint, for the check and the
    activations of 8 inputs. Before anything is written the table is tested against the forward
    function, with random group elements in float64, where checks are wanted. The check is made on these inputs alone
    and is no proof for others. Tested in tests/derive.
    """
    return derive_by(
        GaugeRule(gauge_named(gauge, "derive")),
        path,
        store=store,
        certify=certify,
        inputs=inputs,
        module=module,
        input_shape=input_shape,
        share=share,
        progress=progress,
    )


def derive_by(
    rule: VariantRule,
    path: str | Path,
    *,
    store: str,
    certify: str,
    inputs: NDArray[Any] | None,
    module: Any,
    input_shape: Sequence[int] | None,
    share: tuple[int, int],
    progress: Progress | None,
) -> Derived:
    """Write the variant that a rule makes; parameters and errors are those of ``derive``."""
    if store not in STORE:
        raise UnknownNameError("derive", "store", store, STORE)
    began = time.perf_counter()
    contents = read_contents(Folder(path))
    shape = traced_shape(contents.architecture, input_shape, inputs)
    symmetry = symmetry_of(contents, module, shape)
    policy = CheckPolicy.of(certify, contents.architecture)
    if store == "element" and symmetry.has_matrices:
        expected = "'weights', as the table has matrices, whose products have the same bits on one machine alone"
        step = "Store the weights: --store weights."
        raise SymmetryError(Problem(contents.identity.name, "store", expected, repr(store), step))
    checked = check_inputs(with_input_shape(contents.architecture, input_shape), policy, inputs, module=module)
    if certify in ("all", "sample") and not checked:
        expected, got = "a forward function and inputs", "a network that is not in ckptzoo.archs"
        step = "Name the network and its inputs: --module FILE.py:NAME and --input-shape SHAPE, or check none."
        raise ZooError(Problem(contents.identity.name, "equivalence check", expected, got, step))
    # with the table, which the zoo has once the first part appears
    declared = replace(contents, symmetry=symmetry)
    job = VariantJob(declared, symmetry, rule, checked, policy, module, weights=store == "weights")
    job.tree.catch_up()
    todo = job.tree.todo(share)
    adds_checks = bool(checked) and certify in ("all", "sample")
    checks_share, checked_later = 0.0, 0
    with ExitStack() as settings:
        # the table is tried on a network that is named also where all is derived: it may be another's
        tries_table = bool(checked) and module is not None
        if checked and (todo or adds_checks or tries_table):
            settings.enter_context(import_with_torch("forward").one_thread())
            settings.enter_context(import_with_torch("forward").attention_by_products())
        if todo or tries_table:
            job.prepare()
        if todo:
            if contents.symmetry is None:
                declare(contents.root, symmetry, input_shape=shape)
            checks_share = _derive_parts(job, todo, progress)
        if adds_checks:
            later = MissingChecks(read_contents(Folder(path)), rule.name, checked, policy, module)
            checked_later = later.make(job.tally, share, progress)
    seconds, tally = time.perf_counter() - began, job.tally
    return Derived(
        gauge=rule.name,
        version=rule.facts(symmetry)["version"],
        store=store,
        parts=tuple(job.tree.parts),
        checkpoints=tally.checkpoints,
        already=len(contents.raw.rows) - tally.checkpoints,
        **tally.counts,
        checked_later=checked_later,
        certified=tuple(tally.certified.values()),
        failed=_failed(path, rule.name),
        seconds=seconds,
        certifying=seconds * checks_share,
    )


def _failed(path: str | Path, name: str) -> FailedChecks:
    """Return the failed checks that are stored for a variant."""
    contents = read_contents(Folder(path))
    return contents.failed_checks(name) if name in contents.derived_parts else FailedChecks((), 0.0, 0.0)


def _derive_parts(job: VariantJob, parts: Sequence[tuple[int, Part]], progress: Progress | None) -> float:
    """Derive parts, solving ahead of what is written; returns the share of the time that went into checks."""
    total, done, spent, certifying = sum(part.rows for _, part in parts), 0, 0.0, 0.0
    try:
        with closing(in_order(job.solve, job.batches(parts), max_threads=job.threads)) as results:
            for result in results:
                job.store(result)
                done += len(result.rows)
                spent, certifying = spent + result.seconds, certifying + result.certifying
                del result  # before the next is waited for
                if progress is not None:
                    progress(done, total)
    finally:
        job.tree.discard()
    return certifying / spent if spent else 0.0
