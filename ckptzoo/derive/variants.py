"""Write a variant of a zoo: every raw part in a gauge, with the group elements and certificates.

One variant of one zoo while it is being written: what is done to a batch of its checkpoints.

What became of the checkpoints that were derived, counted part by part.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.derive.checks import PRECISIONS, SMALL_BYTES, CheckPolicy, Precision, described, probes_of, torch_side
from ckptzoo.derive.concurrency import BackgroundWriter, in_order
from ckptzoo.derive.derived_writer import DerivedTreeWriter, Row, RowRun
from ckptzoo.derive.tables import declare, symmetry_of
from ckptzoo.errors import SymmetryError, UnknownNameError, ZooError
from ckptzoo.format.checks import variant_dtype
from ckptzoo.format.files import Folder
from ckptzoo.format.part import Arrays, Part
from ckptzoo.format.reader import Contents, read_contents
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Tensor
from ckptzoo.schema.documents import Document
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GAUGES, Canonical, Gauge, GroupElement, canonicalize
from ckptzoo.symmetry.fingerprint import fingerprint
from ckptzoo.text import Progress


@dataclass(frozen=True)
class EquivalenceReport:
    """Certificates of one precision.

    Parameters
    ----------
    precision : in which the outputs were computed.
    checkpoints : how many have one.
    random, real : the largest on random and on real inputs; None where there is none.
    """

    precision: Precision
    checkpoints: int
    random: float | None
    real: float | None


@dataclass(frozen=True)
class Derived:
    """What ``derive`` did.

    Parameters
    ----------
    gauge, version : the gauge.
    store : what the parts hold that were written now.
    parts : names of the parts that were written, one for each raw part that had none.
    checkpoints : how many were derived now.
    already : how many the variant had before.
    untouched : how many of those derived now stay as they were: not finite, or not representable in the gauge.
    tied, unresolved : how many of those derived now have ties, and ties that could not be resolved.
    dead, clamped : how many of those derived now have dead channels, and filters whose scale was limited.
    certified : their certificates, by precision.
    seconds, certifying : what it took, and about how much of that went into certificates.
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
    certified: tuple[EquivalenceReport, ...]
    seconds: float
    certifying: float


class Tally:
    """Sums over the rows of parts, in memory that does not grow with them.

    Attributes
    ----------
    checkpoints : how many rows were counted.
    counts : those that stayed as they were, and those in which something was found, named as in ``Derived``.
    certified : the certificates by precision, the most precise first.
    """

    def __init__(self) -> None:
        self.checkpoints = 0
        self.counts: dict[str, int] = dict.fromkeys(("untouched", "tied", "unresolved", "dead", "clamped"), 0)
        self.certified: dict[Precision, EquivalenceReport] = {}

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Count the rows of a part."""
        self.checkpoints += len(rows)
        self.counts["untouched"] += sum(not row["gauged"] for row in rows)
        for name in ("tied", "unresolved", "dead", "clamped"):
            column = "ties" if name == "tied" else name
            self.counts[name] += sum(bool(row[column]) for row in rows)
        found = dict(self.certified)
        for precision in PRECISIONS:
            some = [row for row in rows if row.get("certified") == precision]
            if some:
                before = found.get(precision, EquivalenceReport(precision, 0, None, None))
                random, real = _worst(some, "random", before.random), _worst(some, "real", before.real)
                found[precision] = EquivalenceReport(precision, before.checkpoints + len(some), random, real)
        self.certified = {precision: found[precision] for precision in PRECISIONS if precision in found}


def _worst(rows: Sequence[Mapping[str, Any]], inputs: str, before: float | None) -> float | None:
    """The largest certificate of rows, and the one before."""
    found = [before, *(row.get(f"certificate_{inputs}") for row in rows)]
    return max((gap for gap in found if gap is not None), default=None)


BATCH_BYTES = 96 * 2**20
BATCH_ROWS = 2048
"""At most so many bytes of raw weights, and so many checkpoints, are taken at a time."""


def rows_at_a_time(nbytes: int) -> int:
    """How many checkpoints of ``nbytes`` each are taken at a time."""
    return max(1, min(BATCH_ROWS, BATCH_BYTES // nbytes))


def batches(rows: int, nbytes: int) -> Iterator[slice]:
    """Rows of checkpoints of ``nbytes`` each, in runs of at most ``BATCH_BYTES`` or one."""
    step = rows_at_a_time(nbytes)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


@dataclass(frozen=True)
class RowBatch:
    """Checkpoints of one raw part that are taken at a time.

    Parameters
    ----------
    run : their rows.
    ids : of the rows.
    weights : as trained.
    precisions : of the rows' certificates.
    """

    run: RowRun
    ids: Sequence[str]
    weights: Mapping[str, NDArray[Any]]
    precisions: Sequence[Precision | None]


@dataclass(frozen=True)
class BatchResult:
    """What becomes of a batch.

    Parameters
    ----------
    batch : the batch.
    arrays : for each stem of the new part's shards its stacked tensors.
    rows : the new part's.
    seconds, certifying : what it took, and how much of that went into certificates.
    """

    batch: RowBatch
    arrays: Mapping[str, Arrays]
    rows: list[Row]
    seconds: float
    certifying: float


class VariantJob:
    """One variant of one zoo.

    Parameters
    ----------
    contents : of the zoo.
    symmetry : its table.
    gauge : the gauge.
    probes : inputs of the certificates by name; none for no certificates.
    rule : which checkpoints get one.
    weights : whether the variant's weights are stored beside the group elements.

    Attributes
    ----------
    tree : the variant's.
    tally : what was found in the checkpoints of the parts that were written.
    """

    def __init__(
        self,
        contents: Contents,
        symmetry: Symmetry,
        gauge: Gauge,
        probes: Mapping[str, NDArray[Any]],
        rule: CheckPolicy,
        module: Any,
        *,
        weights: bool,
    ) -> None:
        self._contents, self._symmetry, self._gauge = contents, symmetry, gauge
        self._probes, self._rule, self._module = probes, rule, module
        self._arch = contents.architecture
        self._zoo = Zoo(contents, {}, np.arange(len(contents.raw.rows)))
        self._certifier: Any = None
        facts: Document = {
            "kind": "variant",
            "gauge": gauge.name,
            "version": gauge.version,
            "symmetry": symmetry.digest,
        }
        kinds = GroupElement.identity(symmetry, 1).to_tensors()
        self._sets = {layout.ELEMENT: [Tensor(name, kind.shape[1:], kind.dtype.name) for name, kind in kinds.items()]}
        if weights:
            stored = (replace(tensor, dtype=variant_dtype(tensor.dtype)) for tensor in self._arch.tensors)
            self._sets[gauge.name] = list(stored)
        self.tree = DerivedTreeWriter(contents, gauge.name, facts, self._sets, what="variant", error=SymmetryError)
        self.tally = Tally()

    def prepare(self) -> None:
        """Load torch where certificates are wanted, and hold the symmetry table against the forward function.

        The table is tried on four finite checkpoints, or on one of a large network.
        """
        if not self._probes:
            return
        self._certifier = torch_side("equivalence").EquivalenceChecker(self._arch, self._module)
        small = self._arch.nbytes <= SMALL_BYTES
        rows = np.flatnonzero(self._zoo.metadata["finite"].fill_null(False).to_numpy())[: 4 if small else 1]
        if len(rows):
            weights = {name: self._zoo[name][rows] for name in self._arch.names}
            inputs = next(iter(self._probes.values()))
            self._certifier.check_table(self._symmetry, weights, inputs if small else inputs[:2])

    def batches(self, parts: Sequence[tuple[int, Part]]) -> Iterator[RowBatch]:
        """The checkpoints of parts that are not held when their turn comes, batch by batch."""
        metadata = self._contents.raw.metadata
        precisions: list[Precision | None] = []
        done = 0
        for run in self.tree.runs(parts, rows_at_a_time(self._arch.nbytes)):
            if run.first:
                finite = metadata["finite"].slice(run.rows.start, run.raw.rows).fill_null(False).to_numpy()
                precisions = self._rule.precisions(finite) if self._probes else [None] * run.raw.rows
                done = 0
            count = run.rows.stop - run.rows.start
            ids = metadata["id"].slice(run.rows.start, count).to_pylist()
            weights = {name: self._zoo[name][run.rows] for name in self._arch.names}
            yield RowBatch(run, ids, weights, precisions[done : done + count])
            done += count

    def solve(self, batch: RowBatch) -> BatchResult:
        """Bring a batch into the gauge and certify it; called by several threads."""
        started = time.perf_counter()
        made = canonicalize(batch.weights, self._symmetry, gauge=self._gauge.name, threads=1)
        report = made.report
        columns: dict[str, Sequence[Any]] = {
            "id": batch.ids,
            "gauged": report.gauged.tolist(),
            "ties": report.ties.tolist(),
            "margin": report.margin.tolist(),
            "dead": report.dead.tolist(),
            "unresolved": report.unresolved.tolist(),
            "clamped": report.clamped.tolist(),
        }
        if self._gauge.complete:
            columns["fingerprint"] = fingerprint(made)
        solved = time.perf_counter()
        columns |= self._certificates(batch, made)
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        for row in rows:
            if not row["gauged"]:
                row.update(ties=None, margin=None, dead=None, unresolved=None, clamped=None)
        arrays = {self._gauge.name: made.weights, layout.ELEMENT: made.element.to_tensors()}
        kept = {stem: arrays[stem] for stem in self._sets}
        ended = time.perf_counter()
        return BatchResult(batch, kept, rows, ended - started, ended - solved)

    def store(self, made: BatchResult) -> None:
        """Write a batch; with the last one of a part the part appears."""
        facts = {"certificate": self._described()}
        self.tally.add(self.tree.store(made.batch.run, made.arrays, made.rows, facts))

    def _described(self) -> Document:
        """The inputs of the certificates and the rule; nothing where there are none."""
        inputs = {name: described(probe) for name, probe in self._probes.items()}
        return {**inputs, "rule": self._rule.to_json()} if inputs else {}

    def _certificates(self, batch: RowBatch, made: Canonical) -> dict[str, Sequence[Any]]:
        """The columns of the certificates: null where the rule has none, or where raw outputs are not finite."""
        if not self._probes:
            return {}
        precisions = np.array(batch.precisions, object)
        found = {f"certificate_{name}": np.full(len(precisions), np.nan) for name in self._probes}
        for precision in PRECISIONS:
            if not len(rows := np.flatnonzero(precisions == precision)):
                continue
            one, two = (_taken(weights, rows) for weights in (batch.weights, made.weights))
            for name, inputs in self._probes.items():
                found[f"certificate_{name}"][rows] = self._certifier.output_differences(
                    one, two, inputs, precision=precision
                )
        columns = {name: [None if gap != gap else gap for gap in gaps.tolist()] for name, gaps in found.items()}
        certified = [
            precision if any(gap is not None for gap in gaps) else None
            for precision, *gaps in zip(batch.precisions, *columns.values(), strict=True)
        ]
        return {**columns, "certified": certified}


def _taken(weights: Mapping[str, NDArray[Any]], rows: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
    """Rows of stacked weights, without a copy where these are all."""
    whole = len(rows) == len(next(iter(weights.values())))
    return weights if whole else {name: array[rows] for name, array in weights.items()}


STORE = ("weights", "element")
"""What a variant's parts hold: weights and group elements, or group elements alone."""


def derive(
    path: str | Path,
    *,
    gauge: str = "canonical",
    store: str = "weights",
    certify: str = "auto",
    inputs: NDArray[Any] | None = None,
    module: Any = None,
    progress: Progress | None = None,
) -> Derived:
    """Bring every checkpoint of a zoo into a gauge and write the variant beside the raw weights.

    ``variant = cast(apply(g, raw))``: weights at least float32, g with permutations in int32 and scales in float64.
    Each raw part gives one derived part; what was derived before is left alone, so a second call adds nothing and
    a killed one is carried on from the last part that it finished.

    Parameters
    ----------
    path : the zoo's folder.
    gauge : a name in ``ckptzoo.symmetry.GAUGES``; also the variant's name.
    store : ``"weights"`` writes weights and group elements; ``"element"`` writes the elements alone, and the weights
        are computed when they are read. Parts that are there stay as they are stored.
    certify : which checkpoints are certified, by comparing raw and derived outputs. ``"all"``: every one, in float64
        up to 4 MiB a checkpoint; in larger networks in float32, and in float64 on a sample of each part: the first,
        the last and others evenly between, 8 in all. ``"sample"``: the sample alone, in float64. ``"none"``: none,
        and torch is not needed. ``"auto"``: all up to 4 MiB a checkpoint, else the sample. Checkpoints that are not
        finite have no certificate.
    inputs : (B, *input_shape) real inputs for the certificates, as the network takes them, beside 8 random ones where
        the zoo's architecture has an input shape.
    module : the network as a torch module, for the certificates of one that is not in ``ckptzoo.archs``.
    progress : called after every batch.

    Raises
    ------
    UnknownNameError
        No such gauge, store or rule for certificates.
    ZooError
        Certificates are asked for by ``"all"`` or ``"sample"``, and no forward function or no input is known.
    SymmetryError
        The network has no symmetry table, the table is wrong, the gauge is not defined for it, or the variant was
        made by another version of the gauge or with another table.
    MissingExtraError
        A certificate is wanted and torch is not installed.

    Notes
    -----
    A batch is 96 MiB of raw weights, or one checkpoint. One a core, at most four, is solved and certified at a time
    while earlier ones are written; memory is bounded by a few batches a core, with float64 copies of them for
    certificates and the activations of 8 inputs. Before anything is written the table is held against the forward
    function, with random group elements in float64, where certificates are wanted. Laws: tests/derive.
    """
    for kind, name, known in (("gauge", gauge, tuple(GAUGES)), ("store", store, STORE)):
        if name not in known:
            raise UnknownNameError("derive", kind, name, known)
    began = time.perf_counter()
    contents = read_contents(Folder(path))
    symmetry, rule = symmetry_of(contents), CheckPolicy.of(certify, contents.architecture)
    probes = probes_of(contents.architecture, rule, inputs, module=module)
    if certify in ("all", "sample") and not probes:
        raise ZooError(
            f"{contents.identity.name}: certificates: expected a forward function and inputs, got a network that "
            "is not in ckptzoo.archs. Pass derive(..., module=..., inputs=...) from Python, or certify none."
        )
    work = VariantJob(contents, symmetry, GAUGES[gauge], probes, rule, module, weights=store == "weights")
    work.tree.catch_up()
    todo = work.tree.todo()
    share = 0.0
    if todo:
        with torch_side("forward").one_thread() if probes else nullcontext():
            work.prepare()
            if contents.symmetry is None:
                declare(contents.root, symmetry)
            share = _written(work, todo, progress)
    seconds, tally = time.perf_counter() - began, work.tally
    return Derived(
        gauge=gauge,
        version=GAUGES[gauge].version,
        store=store,
        parts=tuple(work.tree.parts),
        checkpoints=tally.checkpoints,
        already=len(contents.raw.rows) - tally.checkpoints,
        **tally.counts,
        certified=tuple(tally.certified.values()),
        seconds=seconds,
        certifying=seconds * share,
    )


def _written(work: VariantJob, parts: Sequence[tuple[int, Part]], progress: Progress | None) -> float:
    """Derive parts, solving ahead and writing behind; returns the share of the work that was for certificates."""
    total, done, spent, certifying = sum(part.rows for _, part in parts), 0, 0.0, 0.0
    try:
        with BackgroundWriter() as behind, closing(in_order(work.solve, work.batches(parts))) as solved:
            for made in solved:
                behind(work.store, made)
                done, spent, certifying = done + len(made.rows), spent + made.seconds, certifying + made.certifying
                if progress is not None:
                    progress(done, total)
    finally:
        work.tree.discard()
    return certifying / spent if spent else 0.0
