"""One variant of one zoo while it is being written: what is done to a batch of its checkpoints."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.derive.growing import Growing, Row, Run
from ckptzoo.derive.probes import described, torch_side
from ckptzoo.derive.result import Tally
from ckptzoo.derive.rule import PRECISIONS, SMALL_BYTES, Precision, Rule
from ckptzoo.errors import SymmetryError
from ckptzoo.format.part import Arrays, Part
from ckptzoo.format.reader import Contents
from ckptzoo.format.variants import variant_dtype
from ckptzoo.loader.zoo import Zoo
from ckptzoo.spec import layout
from ckptzoo.spec.architecture import Tensor
from ckptzoo.spec.document import Document
from ckptzoo.spec.symmetry import Symmetry
from ckptzoo.symmetry import Canonical, Gauge, GroupElement, canonicalize
from ckptzoo.symmetry.fingerprint import fingerprint

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
class Batch:
    """Checkpoints of one raw part that are taken at a time.

    Parameters
    ----------
    run : their rows.
    ids : of the rows.
    weights : as trained.
    precisions : of the rows' certificates.
    """

    run: Run
    ids: Sequence[str]
    weights: Mapping[str, NDArray[Any]]
    precisions: Sequence[Precision | None]


@dataclass(frozen=True)
class Made:
    """What becomes of a batch.

    Parameters
    ----------
    batch : the batch.
    arrays : for each stem of the new part's shards its stacked tensors.
    rows : the new part's.
    seconds, certifying : what it took, and how much of that went into certificates.
    """

    batch: Batch
    arrays: Mapping[str, Arrays]
    rows: list[Row]
    seconds: float
    certifying: float


class Work:
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
        rule: Rule,
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
        self.tree = Growing(contents, gauge.name, facts, self._sets, what="variant", error=SymmetryError)
        self.tally = Tally()

    def prepare(self) -> None:
        """Load torch where certificates are wanted, and hold the symmetry table against the forward function.

        The table is tried on four finite checkpoints, or on one of a large network.
        """
        if not self._probes:
            return
        self._certifier = torch_side("certificate").Certifier(self._arch, self._module)
        small = self._arch.nbytes <= SMALL_BYTES
        rows = np.flatnonzero(self._zoo.metadata["finite"].fill_null(False).to_numpy())[: 4 if small else 1]
        if len(rows):
            weights = {name: self._zoo[name][rows] for name in self._arch.names}
            inputs = next(iter(self._probes.values()))
            self._certifier.check_table(self._symmetry, weights, inputs if small else inputs[:2])

    def batches(self, parts: Sequence[tuple[int, Part]]) -> Iterator[Batch]:
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
            yield Batch(run, ids, weights, precisions[done : done + count])
            done += count

    def solve(self, batch: Batch) -> Made:
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
        return Made(batch, kept, rows, ended - started, ended - solved)

    def store(self, made: Made) -> None:
        """Write a batch; with the last one of a part the part appears."""
        facts = {"certificate": self._described()}
        self.tally.add(self.tree.store(made.batch.run, made.arrays, made.rows, facts))

    def _described(self) -> Document:
        """The inputs of the certificates and the rule; nothing where there are none."""
        inputs = {name: described(probe) for name, probe in self._probes.items()}
        return {**inputs, "rule": self._rule.to_json()} if inputs else {}

    def _certificates(self, batch: Batch, made: Canonical) -> dict[str, Sequence[Any]]:
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
                found[f"certificate_{name}"][rows] = self._certifier.gaps(one, two, inputs, precision=precision)
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
