"""Figures of the loss around every checkpoint: trace and largest eigenvalue of its Hessian, stored in the zoo."""

import hashlib
import time
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console

import ckptzoo
from ckptzoo import archs
from ckptzoo.arguments import NETWORK, Seed, Within, checked
from ckptzoo.console import PrintedResult
from ckptzoo.derive.checks import import_with_torch
from ckptzoo.derive.concurrency import cores
from ckptzoo.derive.predictions import MAX_THREADS, checked_inputs, digest_of_inputs
from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.landscapes import FIGURES, add_landscape, read_landscapes
from ckptzoo.format.tree import places_of
from ckptzoo.loader.filters import Filters
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.spectra import lanczos, traces
from ckptzoo.schema.documents import Document, JsonFields
from ckptzoo.schema.layout import SET_NAME
from ckptzoo.text import Progress, counted

EXACT_SIZE = 1_000
"""The number of parameters up to which whole Hessians are computed."""
TOLERANCE = 1e-3
"""The bound of an eigenvalue, relative to it, at which no more steps are taken."""
_BASIS_BYTES = 2**30
"""Bytes of the vectors of Lanczos' method for a stack: larger networks have fewer steps."""
_ROWS, _LARGE_ROWS = 1_024, 64
"""Checkpoints of a file, of networks with whole Hessians and of others: what is lost at most when a call is killed."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Landscape(PrintedResult, JsonFields):
    """The result of ``landscape``.

    Parameters
    ----------
    set
        the name of the set of inputs.
    files
        those that were written, by their paths in the zoo.
    checkpoints
        the number measured now.
    already
        the number measured before.
    examples
        the number of inputs.
    parameters
        the rows of a Hessian.
    exact
        whether whole Hessians were computed, else errors are stored with the figures.
    not_finite
        the number measured now whose weights, or Hessians, are not finite.
    seconds
        what it took.
    """

    set: str
    files: tuple[str, ...]
    checkpoints: int
    already: int
    examples: int
    parameters: int
    exact: bool
    not_finite: int
    seconds: float

    def print(self, console: Console | None = None) -> None:
        """Print it on a rich console, by default the standard output.

        Parameters
        ----------
        console
            a rich console; None for the standard output.
        """
        done = f"{counted(self.checkpoints, 'checkpoint')} measured on {counted(self.examples, 'example')}"
        lines = [f"{self.set}: {done}, {self.already:,} were there already."]
        if self.checkpoints:
            way = "whole Hessians, exact" if self.exact else "Lanczos and Hutchinson, with their errors"
            lines.append(f"{counted(self.parameters, 'parameter')}: {way}; took {self.seconds:.1f} s")
        if self.not_finite:
            lines.append(f"{self.not_finite:,} with weights or Hessians that are not finite: their figures are NaN")
        (console or Console()).print("\n".join(lines), markup=False, highlight=False)


@checked
def landscape(
    path: str | Path,
    inputs: NDArray[Any],
    targets: NDArray[Any],
    *,
    set: str,
    where: Filters = None,
    module: NETWORK | None = None,
    probes: Annotated[int, Within(30, 100_000)] = 64,
    steps: Annotated[int, Within(2, 1_000)] = 32,
    seed: Seed = 0,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Landscape:
    r"""Measure trace and largest eigenvalue of the Hessian of every checkpoint's loss, and store them in the zoo.

    The loss is the mean cross-entropy on the inputs in nats, its Hessian that with respect to the parameters, in
    float64. Up to 1,000 parameters whole Hessians are computed, so that both figures are exact. Of larger networks the
    eigenvalue is that of Lanczos' method, with a bound on its distance from an eigenvalue. Their trace is Hutchinson's
    estimate outside of the vectors of that method (arXiv 2010.09649), with its standard error. ``Zoo.landscape`` reads
    them.

    What was measured before is left alone: a second call adds nothing, and one after a killed one continues.

    Parameters
    ----------
    path
        the zoo's folder.
    inputs
        (N, *input_shape) float32, as the network takes them.
    targets
        (N,) labels from 0.
    set
        the name of the set, ``<data set>/<split>``, such as ``mnist/test-1000``; small letters, digits, hyphens.
    where
        which checkpoints, as ``Zoo.where`` takes it.
    module
        the network as a torch module, for one that is not in ``ckptzoo.archs``.
    probes
        vectors of random signs of an estimated trace; of fewer than 30 intervals would be too short. Half a 95 %
        interval is the standard error times ``ckptzoo.measure.spectra.interval_factor(probes)``, by Student's t.
    steps
        the most of Lanczos' method; it ends where the bound is a thousandth of the eigenvalue. Its vectors take 1 GiB
        at most, so that networks of more than 4 million parameters have fewer.
    seed
        of all random vectors; a checkpoint's also depend on its id, and on nothing else.
    device
        where products are computed, as torch names it.
    progress
        called after every stack of checkpoints.

    Raises
    ------
    ZooError
        The name, the inputs or the labels make no sense, no forward function is known, the checkpoints are Gaussians,
        no checkpoint is chosen, or the set was measured before on other inputs or with other labels.
    MissingExtraError
        torch is not installed.

    Notes
    -----
    Both figures are invariant under permutations of hidden units, and not under rescaling: the same function has
    Hessians as large as one likes (Dinh et al., arXiv 1703.04933). Compare checkpoints as trained by one recipe, or of
    one gauge.

    Time: for each checkpoint as many gradients of gradients as there are parameters, or ``steps`` and ``probes``; for
    OptuNet 0.15 s for 1,000 images. Figures of a checkpoint differ by rounding (1e-9 of their size) with the number of
    inputs that are computed together, and not with threads. Tested in tests/derive/test_landscapes.py.
    """
    began = time.perf_counter()
    zoo = ckptzoo.open(path)
    zoo = zoo if where is None else zoo.where(where)
    job = _LandscapeJob(zoo, inputs, targets, set, module, probes, steps, seed, device)
    for rows in job.blocks():
        job.measure_and_store(rows, progress)
    return Landscape(
        set=set,
        files=tuple(job.files),
        checkpoints=job.checkpoints,
        already=len(zoo) - len(job.missing),
        examples=len(inputs),
        parameters=job.hessians.size,
        exact=job.is_exact,
        not_finite=job.not_finite,
        seconds=time.perf_counter() - began,
    )


class _LandscapeJob:
    """Measures the checkpoints of a selection that lack figures; it refuses what cannot be measured when it is made."""

    def __init__(
        self,
        zoo: Zoo,
        inputs: NDArray[Any],
        targets: NDArray[Any],
        name: str,
        module: Any,
        probes: int,
        steps: int,
        seed: int,
        device: str,
    ) -> None:
        location = f"{zoo.name}: landscape"
        _refuse(zoo, name, module, location)
        single, labels = checked_inputs(zoo.contents, inputs, command="landscape"), np.asarray(targets)
        self.hessians = import_with_torch("hessians").Hessians(zoo.arch, single, labels, module=module, device=device)
        self.is_exact = self.hessians.size <= EXACT_SIZE
        self._facts: Document = {
            "set": name,
            "examples": len(single),
            "inputs": digest_of_inputs(single),
            "targets": f"sha256:{hashlib.sha256(labels.astype('<i8').tobytes()).hexdigest()}",
            "loss": "cross-entropy",
            "probes": 0 if self.is_exact else probes,
            "steps": 0 if self.is_exact else steps,
            "tolerance": 0.0 if self.is_exact else TOLERANCE,
            "seed": 0 if self.is_exact else seed,
        }
        self._zoo, self._probes, self._seed = zoo, probes, seed
        vectors = 8 * self.hessians.size * self.hessians.stack_size
        self._steps = min(steps, max(2, _BASIS_BYTES // vectors))
        self._ids = zoo.ids
        known = self._known(location)
        self.missing = [row for row, checkpoint in enumerate(self._ids) if checkpoint not in known]
        self.files: list[str] = []
        self.checkpoints = self.not_finite = 0

    def _known(self, location: str) -> frozenset[str]:
        """Ids that have figures on the set, which has to be the same inputs and labels."""
        contents = self._zoo.contents
        known = set[str]()
        for one in read_landscapes(contents.files, contents.identity):
            if one.set != self._facts["set"]:
                continue
            for fact in ("inputs", "targets"):
                if one.facts[fact] != self._facts[fact]:
                    step = "Take the same, or give the set another name."
                    expected, got = one.facts[fact], self._facts[fact]
                    raise ZooError(Problem(location, f"{fact} of {one.set}", f"{expected}, as before", got, step))
            known.update(one.rows["id"].to_pylist())
        return frozenset(known)

    def blocks(self) -> Iterator[list[int]]:
        """Yield the rows of every file that is to be written."""
        size = _ROWS if self.is_exact else _LARGE_ROWS
        for start in range(0, len(self.missing), size):
            yield self.missing[start : start + size]

    def measure_and_store(self, rows: list[int], progress: Progress | None) -> None:
        """Measure some checkpoints, and write the file of their figures."""
        size, found = self.hessians.stack_size, list[Values]()
        stacks = (rows[start : start + size] for start in range(0, len(rows), size))
        forward = import_with_torch("forward")
        with (
            forward.one_thread(),
            forward.full_precision(),
            # not ``in_order``, which lets the system take back what one product has freed before the next one
            ThreadPoolExecutor(min(cores(), MAX_THREADS)) as pool,
            closing(cast(Generator[Values], pool.map(self._measure, stacks))) as results,
        ):
            for figures in results:
                found.append(figures)
                self.checkpoints += len(figures)
                if progress is not None:
                    progress(self.checkpoints, len(self.missing))
        whole = np.concatenate(found)
        self.not_finite += int(np.isnan(whole[:, 1]).sum())
        self.files.append(add_landscape(self._zoo.contents.root, self._table(rows, whole), self._facts))

    def _table(self, rows: list[int], figures: Values) -> pa.Table:
        raw = self._zoo.contents.raw
        digests = np.repeat(np.array([part.digest for part in raw.parts], object), [part.rows for part in raw.parts])
        ids = pa.chunked_array([[self._ids[row] for row in rows]])
        columns: dict[str, Any] = {"id": ids, "unit": digests[places_of(ids, raw.rows["id"])].tolist()}
        for at, name in enumerate(FIGURES):
            lacking = np.full(len(rows), self.is_exact and name.endswith("_error"))
            columns[name] = pa.array(figures[:, at], mask=lacking)
        return pa.table(columns)

    def _measure(self, rows: list[int]) -> Values:
        """(K, figures) of some checkpoints; called by several threads."""
        # filled up to one size, so that figures do not depend on how many are measured together
        size = self.hessians.stack_size
        filled = [*rows, *[rows[-1]] * (size - len(rows))] if size > len(rows) else rows
        weights = {name: np.asarray(self._zoo[name][filled]) for name in self._zoo.arch.names}
        is_finite = np.ones(len(filled), bool)
        for array in weights.values():
            if array.dtype.kind not in "iub":
                is_finite &= np.isfinite(array.reshape(len(filled), -1).astype(np.float64)).all(1)
        # torch's functions for eigenvalues and numpy's raise for NaN
        calm = {
            name: np.where(_beside(is_finite, array), array, array.dtype.type(0)) for name, array in weights.items()
        }
        with np.errstate(all="ignore"):
            figures = np.stack(self._exact(calm) if self.is_exact else self._estimated(calm, filled), 1)
        figures[~is_finite | ~np.isfinite(figures[:, :4].sum(1))] = np.nan
        return figures[: len(rows)]

    def _exact(self, weights: Mapping[str, NDArray[Any]]) -> tuple[Values, ...]:
        losses, matrices = self.hessians.matrices(weights)
        is_finite = np.isfinite(matrices).all((1, 2))
        tops = np.linalg.eigvalsh(np.where(is_finite[:, None, None], matrices, 0))[:, -1]
        none = np.zeros(len(matrices))
        return losses, np.where(is_finite, np.trace(matrices, axis1=1, axis2=2), np.nan), none, tops, none

    def _estimated(self, weights: Mapping[str, NDArray[Any]], rows: list[int]) -> tuple[Values, ...]:
        generators = [self._generator(row) for row in rows]
        starts = np.stack([rng.standard_normal(self.hessians.size) for rng in generators])

        def product(vectors: Values) -> Values:
            return self.hessians.products(weights, vectors)

        found = lanczos(product, starts, steps=self._steps, tolerance=TOLERANCE)
        values, errors = traces(product, found, generators, probes=self._probes, at_once=self.hessians.directions)
        return self.hessians.losses(weights), values, errors, found.values, found.bounds

    def _generator(self, row: int) -> np.random.Generator:
        words = np.frombuffer(hashlib.sha256(self._ids[row].encode()).digest(), "<u4")
        return np.random.default_rng(np.random.SeedSequence([self._seed, *map(int, words)]))


def _refuse(zoo: Zoo, name: str, module: Any, location: str) -> None:
    """Raise ``ZooError`` for a selection of which nothing can be measured, or a name that is none of a set."""
    if not SET_NAME.fullmatch(name):
        expected, step = "<data set>/<split> in small letters, digits and hyphens, up to 51", "Call it mnist/test."
        raise ZooError(Problem(location, "name of the set", expected, repr(name), step))
    if (base := archs.base_of(zoo.arch.forward)) is not None:
        step = "Draw networks from them with ckptzoo.derive.draws, and measure those."
        raise ZooError(Problem(location, "checkpoints", f"networks {base}", "Gaussians over their weights", step))
    if module is None and not archs.known(zoo.arch.forward):
        got, step = repr(zoo.arch.forward) if zoo.arch.forward else "none", "Name your own: --module FILE.py:NAME."
        raise ZooError(Problem(location, "forward function", "one of ckptzoo.archs", got, step))
    if not len(zoo):
        raise ZooError(Problem(location, "checkpoints", "at least one", "none", "Select others."))


def _beside(flags: NDArray[np.bool_], array: NDArray[Any]) -> NDArray[np.bool_]:
    return flags.reshape(-1, *[1] * (array.ndim - 1))
