"""Write a variant of a zoo: every raw part in a gauge, with the group elements and a certificate per checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.derive.probes import certificate_module, described, probes_of
from ckptzoo.errors import SymmetryError, UnknownNameError
from ckptzoo.format import durable, table
from ckptzoo.format.part import Part, PartWriter
from ckptzoo.format.reader import Contents, list_trees, read_contents, read_tree
from ckptzoo.loader.zoo import Zoo
from ckptzoo.spec import layout
from ckptzoo.spec.architecture import Architecture, Tensor
from ckptzoo.spec.document import Document, seal
from ckptzoo.spec.metadata import VARIANT_COLUMNS
from ckptzoo.spec.symmetry import Symmetry
from ckptzoo.symmetry import GAUGES, Canonical, Gauge, GroupElement, canonicalize

BATCH_BYTES = 32 * 2**20
BATCH_ROWS = 1024
"""At most so many bytes of raw weights, and so many checkpoints, are taken at a time."""

Progress = Callable[[int, int], None]
"""Called with the checkpoints done and the checkpoints in all."""
Ahead = Callable[[int], None]


@dataclass(frozen=True)
class Derived:
    """What ``derive`` did.

    Parameters
    ----------
    gauge, version : the gauge.
    parts : names of the parts that were written, one for each raw part that had none.
    checkpoints : how many were derived now.
    already : how many the variant had before.
    untouched : how many of those derived now stay as they were: not finite, or not representable in the gauge.
    tied, dead : how many of those derived now have ties, or dead channels.
    worst_random, worst_real : largest certificate among those derived now; None where there is none.
    """

    gauge: str
    version: int
    parts: tuple[str, ...]
    checkpoints: int
    already: int
    untouched: int
    tied: int
    dead: int
    worst_random: float | None
    worst_real: float | None


def derive(
    path: str | Path,
    *,
    gauge: str = "first-weight",
    certify: bool = True,
    inputs: NDArray[Any] | None = None,
    progress: Progress | None = None,
) -> Derived:
    """Bring every checkpoint of a zoo into a gauge and write the variant beside the raw weights.

    ``variant = cast(apply(g, raw))``: weights at least float32, g with permutations in int32 and scales in float64.
    Each raw part gives one derived part; what was derived before is left alone, so a second call adds nothing and
    a killed one is carried on.

    Parameters
    ----------
    path : the zoo's folder.
    gauge : a name in ``ckptzoo.symmetry.GAUGES``; also the variant's name.
    certify : compare raw and derived outputs in float64 for every checkpoint whose forward function is known.
    inputs : (B, *input_shape) real inputs for the certificates, as the network takes them, beside random ones.
    progress : called after every batch.

    Raises
    ------
    UnknownNameError
        No such gauge.
    SymmetryError
        The network has no symmetry table, the table is wrong, the gauge is not defined for it, or the variant was
        made by another version of the gauge or with another table.
    MissingExtraError
        A certificate is wanted and torch is not installed.

    Notes
    -----
    Memory is bounded by a batch of 32 MiB of raw weights (or one checkpoint) and a few float64 copies of it, and for
    certificates by the activations of 32 checkpoints. tests/derive holds the laws.
    """
    if gauge not in GAUGES:
        raise UnknownNameError("derive", "gauge", gauge, tuple(GAUGES))
    root = Path(path).absolute()
    contents = read_contents(root)
    symmetry = symmetry_of(contents)
    probes = probes_of(contents.architecture, inputs) if certify else {}
    work = _Work(contents, symmetry, GAUGES[gauge], probes)
    work.catch_up()
    starts = np.cumsum([0, *(part.rows for part in contents.raw.parts)]).tolist()
    todo = [
        (start, part) for start, part in zip(starts, contents.raw.parts, strict=False) if part.digest not in work.held
    ]
    if todo and probes:
        work.check_table()
    total, done = sum(part.rows for _, part in todo), 0
    names: list[str] = []
    rows: list[dict[str, Any]] = []
    for start, part in todo:
        name, written = work.write(start, part, progress and partial(_ahead, progress, done, total))
        done += part.rows
        if name is not None:
            names.append(name)
            rows += written
    return Derived(
        gauge=gauge,
        version=GAUGES[gauge].version,
        parts=tuple(names),
        checkpoints=len(rows),
        already=len(contents.raw.metadata) - len(rows),
        untouched=sum(not row["gauged"] for row in rows),
        tied=sum(bool(row["ties"]) for row in rows),
        dead=sum(bool(row["dead"]) for row in rows),
        worst_random=_worst(rows, "certificate_random"),
        worst_real=_worst(rows, "certificate_real"),
    )


def symmetry_of(contents: Contents) -> Symmetry:
    """The zoo's symmetry table; one from ``ckptzoo.archs`` is written into the zoo as ``symmetry.json``.

    Raises
    ------
    SymmetryError
        Neither the zoo nor the registry has one.
    SpecError
        The registry's table does not fit the zoo's architecture.
    """
    root, arch = contents.root, contents.architecture
    where = f"{root.name}/{layout.SYMMETRY}"
    if contents.symmetry is not None:
        return contents.symmetry
    symmetry = archs.symmetry(arch.forward) if arch.forward in archs.names() else None
    if symmetry is None:
        raise SymmetryError(
            f"{where}: symmetry table of {arch.name}: expected one, got none. "
            "Declare it when the zoo is created: ckptzoo.create(..., symmetry=...)."
        )
    symmetry.check(arch)
    with durable.locked(root):
        if not (root / layout.SYMMETRY).exists():
            durable.write_file(root / layout.SYMMETRY, seal(symmetry.to_json()))
    return symmetry


class _TakenError(Exception):
    """Another process derived the part meanwhile."""


class _Work:
    """One variant of one zoo while it is being written."""

    def __init__(
        self, contents: Contents, symmetry: Symmetry, gauge: Gauge, probes: Mapping[str, NDArray[Any]]
    ) -> None:
        self._contents, self._symmetry, self._gauge, self._probes = contents, symmetry, gauge, probes
        self._root, arch = contents.root, contents.architecture
        self._zoo = Zoo(contents, {}, np.arange(len(contents.raw.metadata)))
        self._certifier = certificate_module().Certifier(arch) if probes else None
        self._tree = f"{layout.DERIVED}/{gauge.name}"
        self._facts: Document = {
            "kind": "variant",
            "gauge": gauge.name,
            "version": gauge.version,
            "symmetry": symmetry.digest,
        }
        self._seen: set[str] = set()
        self.held: set[str] = set()

    def catch_up(self) -> None:
        """Learn which raw parts have been derived, and refuse to mix versions or tables."""
        names = list_trees(self._root).get(self._tree, ())
        fresh = tuple(name for name in names if name not in self._seen)
        tree = read_tree(self._root, self._tree, fresh, None)
        for part in tree.parts:
            for key, expected in self._facts.items():
                if part.facts.get(key) != expected:
                    raise SymmetryError(
                        f"{self._root.name}/{part.path}: {key} of the variant: expected {expected!r}, got "
                        f"{part.facts.get(key)!r}. Remove {self._tree} and derive it anew."
                    )
        self.held.update(unit for unit in tree.metadata["unit"].unique().to_pylist())
        self._seen.update(fresh)

    def check_table(self) -> None:
        """Hold the symmetry table against the forward function, on the first finite checkpoints."""
        rows = np.flatnonzero(self._zoo.metadata["finite"].to_numpy())[:4]
        if self._certifier is not None and len(rows):
            weights = {name: self._zoo[name][rows] for name in self._contents.architecture.names}
            self._certifier.check_table(self._symmetry, weights, next(iter(self._probes.values())))

    def write(self, start: int, raw: Part, ahead: Ahead | None) -> tuple[str | None, list[dict[str, Any]]]:
        """Derive one raw part; returns the new part's name, or None where another process was faster."""
        arch = self._contents.architecture
        step = max(1, min(BATCH_ROWS, BATCH_BYTES // arch.nbytes))
        probes = {name: described(inputs) for name, inputs in self._probes.items()}
        writer = PartWriter(
            self._root / self._tree,
            sets={self._gauge.name: _stored(arch), layout.ELEMENT: _element_tensors(self._symmetry)},
            schema=table.schema_of(VARIANT_COLUMNS),
            facts={**self._facts, "raw": raw.digest, "certificate": probes},
        )
        try:
            for at in range(0, raw.rows, step):
                stop = min(at + step, raw.rows)
                weights = {name: self._zoo[name][start + at : start + stop] for name in arch.names}
                made = canonicalize(weights, self._symmetry, gauge=self._gauge.name)
                arrays = {self._gauge.name: made.weights, layout.ELEMENT: made.element.to_tensors()}
                writer.add(arrays, self._rows(slice(start + at, start + stop), raw, weights, made))
                if ahead is not None:
                    ahead(stop)
            return writer.commit(self._root, refuse=partial(self._refuse, raw)).name, writer.rows
        except _TakenError:
            writer.discard()
            return None, []
        except BaseException:
            writer.discard()
            raise

    def _refuse(self, raw: Part, rows: object) -> None:
        self.catch_up()
        if raw.digest in self.held:
            raise _TakenError

    def _rows(
        self, rows: slice, raw: Part, weights: Mapping[str, NDArray[Any]], made: Canonical
    ) -> list[dict[str, Any]]:
        held = self._contents.raw.metadata.slice(rows.start, rows.stop - rows.start)
        report = made.report
        columns: dict[str, Sequence[Any]] = {
            "id": held["id"].to_pylist(),
            "gauged": report.gauged.tolist(),
            "ties": report.ties.tolist(),
            "margin": report.margin.tolist(),
            "dead": report.dead.tolist(),
        }
        for name, inputs in self._probes.items():
            assert self._certifier is not None
            columns[f"certificate_{name}"] = self._certifier.gaps(weights, made.weights, inputs).tolist()
        listed = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        for row, finite in zip(listed, held["finite"].to_pylist(), strict=True):
            row["unit"] = raw.digest
            if not row["gauged"]:
                row.update(ties=None, margin=None, dead=None)
            if not finite:
                row.update({f"certificate_{name}": None for name in self._probes})
        return listed


def _ahead(progress: Progress, done: int, total: int, count: int) -> None:
    progress(done + count, total)


def _stored(arch: Architecture) -> list[Tensor]:
    """The tensors of a variant: floats of at least four bytes."""
    half = ("float16", "bfloat16")
    return [replace(tensor, dtype="float32") if tensor.dtype in half else tensor for tensor in arch.tensors]


def _element_tensors(symmetry: Symmetry) -> list[Tensor]:
    kinds = GroupElement.identity(symmetry, 1).to_tensors()
    return [Tensor(name, array.shape[1:], array.dtype.name) for name, array in kinds.items()]


def _worst(rows: Sequence[Mapping[str, Any]], column: str) -> float | None:
    return max((row[column] for row in rows if row.get(column) is not None), default=None)
