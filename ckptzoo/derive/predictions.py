"""Predictions: the outputs of every checkpoint of a zoo on a set of inputs, stored beside the weights."""

import hashlib
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

import ckptzoo
from ckptzoo import archs
from ckptzoo.arguments import NETWORK, checked
from ckptzoo.console import PrintedResult
from ckptzoo.derive.checks import import_with_torch
from ckptzoo.derive.concurrency import ACTIVATIONS_BYTES, in_order
from ckptzoo.derive.derived_writer import DerivedTreeWriter, Row, RowRun
from ckptzoo.derive.tables import unless_layers
from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.files import Folder
from ckptzoo.format.part import Part
from ckptzoo.format.predictions import DTYPE, LOGITS, encode_targets
from ckptzoo.format.reader import Contents, read_contents
from ckptzoo.loader.filters import Filters
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.architecture import Tensor
from ckptzoo.schema.documents import Document
from ckptzoo.schema.layout import PREDICTIONS, SET_NAME, predictions_name
from ckptzoo.text import Progress, counted

MAX_THREADS = 64
"""The maximum number of stacks that are evaluated at a time, one per core."""


@dataclass(frozen=True)
class Predicted(PrintedResult):
    """The result of ``predict``.

    Parameters
    ----------
    set
        the name of the set of inputs.
    parts
        names of the parts that were written, one for each raw part that had none.
    checkpoints
        the number evaluated now.
    already
        the number evaluated before.
    examples, classes
        inputs, and outputs for each.
    not_finite
        the number of checkpoints evaluated now with an output that is not finite as it is stored.
    overflowed
        outputs of theirs that are finite in float32, are beyond float16 (65,504) and stored as infinities.
    seconds
        what it took.
    """

    set: str
    parts: tuple[str, ...]
    checkpoints: int
    already: int
    examples: int
    classes: int
    not_finite: int
    overflowed: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Everything by name."""
        return {**asdict(self), "parts": list(self.parts)}

    def print(self, console: Console | None = None) -> None:
        """Print it on a rich console, by default the standard output.

        Parameters
        ----------
        console
            a rich console; None for the standard output.
        """
        shape = f"{counted(self.examples, 'example')}, {counted(self.classes, 'output')} each"
        done = f"{counted(self.checkpoints, 'checkpoint')} evaluated on {shape}"
        lines = [f"{self.set}: {done}, {self.already:,} were there already."]
        if self.checkpoints:
            lines.append(f"took {self.seconds:.1f} s")
        if self.not_finite:
            lines.append(f"{self.not_finite:,} with outputs that are not finite")
        if self.overflowed:
            lines.append(f"{counted(self.overflowed, 'output')} beyond float16, stored as infinities")
        (console or Console()).print("\n".join(lines), markup=False, highlight=False)


@checked
def predict(
    path: str | Path,
    inputs: NDArray[Any],
    *,
    set: str,
    targets: NDArray[Any] | None = None,
    others: Sequence[tuple[Collection[str], NDArray[Any]]] = (),
    where: Filters = None,
    module: NETWORK | None = None,
    device: str = "cpu",
    share: tuple[int, int] = (0, 1),
    progress: Progress | None = None,
) -> Predicted:
    """Evaluate every checkpoint of a zoo on some inputs and store the outputs beside the weights, in float16.

    ``logits[k, n] = float16(f(inputs[n]; weights[k]))``, computed in float32 and rounded once. Each raw part gives one
    derived part; what was evaluated before is left alone, so a second call adds nothing, and one after a killed one
    continues behind the last part that was finished. ``Zoo.predictions`` reads them.

    Parameters
    ----------
    path
        the zoo's folder.
    inputs
        (N, *input_shape) float32, as the network takes them.
    set
        the name of the set, ``<data set>/<split>``, such as ``fashion-mnist/test``; small letters, digits, hyphens.
    targets
        (N,) integers from 0, the labels; None where they are not among the network's classes.
    others
        ids of checkpoints that take the same examples in another form, such as scaled otherwise, and those inputs.
    where
        which checkpoints, as ``Zoo.where`` takes it; all those of a part, or none.
    module
        the network as a torch module, for one that is not in ``ckptzoo.archs``.
    device
        where outputs are computed, as torch names it.
    share
        as ``ckptzoo.derive.derive`` takes it.
    progress
        called after every stack of checkpoints.

    Raises
    ------
    ZooError
        The name, the inputs or the labels make no sense, no forward function is known, or the set was predicted before
        on other inputs or with other labels.
    MissingExtraError
        torch is not installed.

    Notes
    -----
    K times N forward passes, of up to 8 checkpoints at once and on every core; of up to 64 where ``archs.stacked`` has
    a function. Memory for a core: its stack's outputs and the activations of at most 512 images of 28x28 pixels, of a
    quarter of them in networks of more than 4 MiB, or of one input. Retracted checkpoints are evaluated too. NaNs are
    all stored as one. The bytes are the same for any number of cores, and may differ in the last bit between
    processors. Tested in tests/derive/test_predictions.py.
    """
    began = time.perf_counter()
    contents = read_contents(Folder(path))
    forward, facts, inputs = _prepared(contents, inputs, set, targets, module, device)
    forms = [(ids, checked_inputs(contents, other, inputs.shape)) for ids, other in others]
    job = _PredictionJob(contents, forward, facts, inputs, forms)
    job.tree.catch_up()
    missing = job.tree.todo(share)
    todo = missing if where is None else _selected(contents, missing, where)
    left_out = sum(part.rows for _, part in job.tree.todo()) - sum(part.rows for _, part in todo)
    if todo:
        forward_module = import_with_torch("forward")
        with forward_module.one_thread(), forward_module.full_precision():
            _predict_parts(job, todo, progress)
    return Predicted(
        set=set,
        parts=tuple(job.tree.parts),
        checkpoints=job.checkpoints,
        already=len(contents.raw.rows) - left_out - job.checkpoints,
        examples=facts["examples"],
        classes=facts["classes"],
        not_finite=job.not_finite,
        overflowed=job.overflowed,
        seconds=time.perf_counter() - began,
    )


def _prepared(
    contents: Contents, inputs: NDArray[Any], name: str, targets: NDArray[Any] | None, module: Any, device: str
) -> tuple[Any, Document, NDArray[np.float32]]:
    """The network, the facts of all parts, and the inputs in float32."""
    arch = contents.architecture
    location = f"{contents.identity.name}: predict"
    if not SET_NAME.fullmatch(name):
        expected = "<data set>/<split> in small letters, digits and hyphens, up to 51"
        step = "Call it mnist/test, for example."
        raise ZooError(Problem(location, "name of the set", expected, repr(name), step))
    if module is None and not archs.known(arch.forward):
        step = "Name your own: --module FILE.py:NAME, or predict(..., module=...) from Python."
        got = repr(arch.forward) if arch.forward else "none"
        raise ZooError(
            Problem(location, "forward function", "one of ckptzoo.archs", got, unless_layers(contents, step))
        )
    single = checked_inputs(contents, inputs)
    forward = import_with_torch("forward").Forward(arch, module, device=device)
    classes = forward.features(single.shape[1:])
    text = None if targets is None else _encoded_targets(targets, len(single), classes, location)
    facts: Document = {
        "kind": PREDICTIONS,
        "set": name,
        "outputs": LOGITS,
        "examples": len(single),
        "classes": classes,
        "inputs": digest_of_inputs(single),
        "targets": text,
    }
    return forward, facts, single


def checked_inputs(
    contents: Contents,
    inputs: NDArray[Any],
    expected_shape: tuple[int, ...] | None = None,
    *,
    command: str = "predict",
) -> NDArray[np.float32]:
    """The inputs in float32, as the network takes them: images as vectors where it takes vectors.

    Raises ``ZooError`` if they have another shape, or there are none.
    """
    shape, single = contents.architecture.input_shape, np.ascontiguousarray(inputs, np.float32)
    if shape is not None and len(shape) == 1 and single.shape[1:] != shape and single[:1].size == shape[0]:
        single = single.reshape(len(single), -1)
    fits = single.ndim and len(single) and (shape is None or single.shape[1:] == shape)
    if not fits or (expected_shape is not None and single.shape != expected_shape):
        expected = f"(N, {str(shape)[1:]}" if shape else "(N, ...) with N from 1"
        location = f"{contents.identity.name}: {command}"
        step = "Pass inputs of the size that the network takes: --inputs FILE.npz, or an array in Python."
        what = "shape of the inputs"
        raise ZooError(Problem(location, what, str(expected_shape or expected), str(single.shape), step))
    return single


def _selected(contents: Contents, parts: list[tuple[int, Part]], where: Filters) -> list[tuple[int, Part]]:
    """Those parts all of whose checkpoints match; retracted ones do not count."""
    zoo = ckptzoo.open(contents.root)
    chosen, standing = set(zoo.where(where).ids), set(zoo.ids)
    selected: list[tuple[int, Part]] = []
    for start, part in parts:
        ids = standing.intersection(contents.ids.slice(start, part.rows).to_pylist())
        if ids and ids <= chosen:
            selected.append((start, part))
        elif ids & chosen:
            got = f"{len(ids & chosen)} of {len(ids)} in {part.path}"
            step = "Choose whole parts: outputs are stored for all checkpoints of one."
            raise ZooError(Problem(f"{contents.identity.name}: predict", "where", "all of a part or none", got, step))
    return selected


def digest_of_inputs(inputs: NDArray[np.float32]) -> str:
    """``sha256:...`` of the shape, as in ``(10000, 1, 28, 28)``, a line end, and the little-endian float32 bytes."""
    sha256 = hashlib.sha256(f"{tuple(inputs.shape)}\n".encode())
    # little-endian on every machine: the digest is compared with that of others
    sha256.update(np.ascontiguousarray(inputs, "<f4").data.cast("B"))
    return "sha256:" + sha256.hexdigest()


def _encoded_targets(targets: NDArray[Any], examples: int, classes: int, location: str) -> str:
    """Labels as a part's facts record them."""
    labels = np.asarray(targets)
    fits = labels.shape == (examples,) and labels.dtype.kind in "iu"
    if not fits or int(labels.min()) < 0 or int(labels.max()) >= classes:
        got = f"{labels.dtype} {labels.shape}" + (f" from {labels.min()} to {labels.max()}" if fits else "")
        step = "Leave them out where they are not among the network's classes."
        raise ZooError(Problem(location, "targets", f"{examples} integers from 0 to {classes - 1}", got, step))
    return encode_targets(labels)


class _PredictionJob:
    """Evaluates runs of checkpoints and stores their outputs."""

    def __init__(
        self,
        contents: Contents,
        forward: Any,
        facts: Document,
        inputs: NDArray[np.float32],
        others: Sequence[tuple[Collection[str], NDArray[np.float32]]],
    ) -> None:
        self._zoo = Zoo(contents, {}, np.arange(len(contents.raw.rows)))
        self._arch, forms = contents.architecture, (inputs, *(each for _, each in others))
        self._forward = import_with_torch("forward").StackedForward(forward, self._arch, *forms)
        self._digests = [digest_of_inputs(each) for _, each in others]
        self._ids = contents.ids
        form_of_id = {name: number for number, (ids, _) in enumerate(others, 1) for name in ids}
        self._forms = np.array([form_of_id.get(name, 0) for name in self._ids.to_pylist()], np.int64)
        shape = (facts["examples"], facts["classes"])
        sets = {PREDICTIONS: [Tensor(LOGITS, shape, DTYPE)]}
        self.tree = DerivedTreeWriter(contents, predictions_name(facts["set"]), facts, sets, what="predictions")
        self._shape = shape
        self.checkpoints = self.not_finite = self.overflowed = 0
        self._waiting = 0

    @property
    def stack_size(self) -> int:
        """Checkpoints that are evaluated at once."""
        return self._forward.size

    def evaluate(self, run: RowRun) -> tuple[RowRun, NDArray[np.float16], NDArray[np.int64]]:
        """(K, N, C) outputs of a run, and for each checkpoint the number beyond float16; called by several threads."""
        count = run.rows.stop - run.rows.start
        logits = np.empty((count, *self._shape), DTYPE)
        beyond = np.zeros(count, np.int64)
        weights = {name: self._zoo[name][run.rows] for name in self._arch.names}
        forms = self._forms[run.rows]
        for form in (found := np.unique(forms)):
            # a slice copies nothing
            rows = slice(None) if len(found) == 1 else np.flatnonzero(forms == form)
            logits[rows], beyond[rows] = self._outputs({name: array[rows] for name, array in weights.items()}, form)
        return run, logits, beyond

    def _outputs(self, weights: Mapping[str, NDArray[Any]], form: int) -> tuple[NDArray[np.float16], NDArray[np.int64]]:
        """(K, N, C) outputs of stacked weights, and for each checkpoint the number beyond float16."""
        count, start = len(next(iter(weights.values()))), 0
        logits = np.empty((count, *self._shape), DTYPE)
        beyond = np.zeros(count, np.int64)
        for single in self._forward.outputs(weights, form):
            # float16 ends at 65,504; what is beyond becomes infinite
            with np.errstate(over="ignore"):
                half = single.astype(DTYPE)
            half[np.isnan(half)] = np.nan  # one bit pattern for every NaN
            logits[:, start : start + single.shape[1]] = half
            beyond += np.count_nonzero(np.isinf(half) & np.isfinite(single), axis=(1, 2))
            start += single.shape[1]
        return logits, beyond

    def _facts_of(self, run: RowRun) -> Document:
        """The number of rows of the part that begins with other inputs than the tree's, by their digest."""
        forms = self._forms[run.rows.start : run.rows.start + run.raw.rows]
        counts = {digest: int(np.count_nonzero(forms == form)) for form, digest in enumerate(self._digests, 1)}
        others = {digest: count for digest, count in counts.items() if count}
        return {"others": others} if others else {}

    def store(self, result: tuple[RowRun, NDArray[np.float16], NDArray[np.int64]]) -> None:
        """Write a run, and count what is in a part when it appears."""
        run, logits, beyond = result
        finite = np.logical_and.reduce(np.isfinite(logits), axis=(1, 2))
        ids = self._ids.slice(run.rows.start, len(logits)).to_pylist()
        rows: list[Row] = [{"id": name, "finite": good} for name, good in zip(ids, finite.tolist(), strict=True)]
        self._waiting = int(beyond.sum()) + (0 if run.first else self._waiting)
        facts = self._facts_of(run) if run.first else {}
        written = self.tree.store(run, {PREDICTIONS: {LOGITS: logits}}, rows, facts)
        self.checkpoints += len(written)
        self.not_finite += written["finite"].to_pylist().count(False)
        self.overflowed += self._waiting if len(written) else 0


def _predict_parts(job: _PredictionJob, parts: Sequence[tuple[int, Part]], progress: Progress | None) -> None:
    """Predict parts, evaluating ahead of what is written."""
    total, done = sum(part.rows for _, part in parts), 0
    runs = job.tree.runs(parts, job.stack_size)
    try:
        ahead = in_order(job.evaluate, runs, max_threads=MAX_THREADS, mapped_bytes=ACTIVATIONS_BYTES)
        with closing(ahead) as results:
            for result in results:
                job.store(result)
                done += len(result[1])
                del result  # before the next is waited for
                if progress is not None:
                    progress(done, total)
    finally:
        job.tree.discard()
