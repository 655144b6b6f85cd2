"""Predictions: the outputs of every checkpoint of a zoo on a set of inputs, stored beside the weights."""

import hashlib
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from ckptzoo import archs
from ckptzoo.derive.checks import torch_side
from ckptzoo.derive.concurrency import BackgroundWriter, in_order
from ckptzoo.derive.derived_writer import DerivedTreeWriter, Row, RowRun
from ckptzoo.errors import ZooError
from ckptzoo.format.files import Folder
from ckptzoo.format.part import Part
from ckptzoo.format.predictions import DTYPE, LOGITS, encode_targets
from ckptzoo.format.reader import Contents, read_contents
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.documents import Document
from ckptzoo.schema.layout import PREDICTIONS, SET_NAME, predictions_name
from ckptzoo.text import Progress, counted

STACK = 8
STACK_BYTES = 2**20
"""Checkpoints that are evaluated at once: so many, of so many bytes together; one of a larger network."""
INPUT_BYTES = 512 * 4 * 28 * 28
"""Inputs that go through a stack of checkpoints at once, counted for each of them."""
MOST_THREADS = 64
"""Stacks that are evaluated at a time, one a core."""


@dataclass(frozen=True)
class Predicted:
    """What ``predict`` did.

    Parameters
    ----------
    set : the name of the set of inputs.
    parts : names of the parts that were written, one for each raw part that had none.
    checkpoints : how many were evaluated now.
    already : how many had been before.
    examples, classes : inputs, and outputs for each.
    not_finite : how many of the checkpoints evaluated now have an output that is not finite as it is stored.
    overflowed : outputs of theirs that are finite in float32, lie beyond float16 (65,504) and are stored as infinities.
    seconds : what it took.
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
        """Print it on a rich console, by default the standard output."""
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


def predict(
    path: str | Path,
    inputs: NDArray[Any],
    *,
    set: str,
    targets: NDArray[Any] | None = None,
    module: Any = None,
    progress: Progress | None = None,
) -> Predicted:
    """Evaluate every checkpoint of a zoo on some inputs and store the outputs beside the weights, in float16.

    ``logits[k, n] = float16(f(inputs[n]; weights[k]))``, computed in float32 and rounded once. Each raw part gives one
    derived part; what was evaluated before is left alone, so a second call adds nothing and a killed one is carried on
    from the last part that it finished. ``Zoo.predictions`` reads them.

    Parameters
    ----------
    path : the zoo's folder.
    inputs : (N, *input_shape) float32, as the network takes them.
    set : the name of the set, ``<data set>/<split>``, such as ``fashion-mnist/test``; small letters, digits, hyphens.
    targets : (N,) integers from 0, the labels; None where they are not among the network's classes.
    module : the network as a torch module, for one that is not in ``ckptzoo.archs``.
    progress : called after every stack of checkpoints.

    Raises
    ------
    ZooError
        The name, the inputs or the labels make no sense, no forward function is known, or the set was predicted before
        on other inputs or with other labels.
    MissingExtraError
        torch is not installed.

    Notes
    -----
    K times N forward passes, of up to 8 checkpoints at once and on every core. Memory for a core: its stack's outputs
    and the activations of at most 512 images of 28x28 pixels, or of one input. Retracted checkpoints are evaluated
    too. NaNs are all stored as one. The bytes are the same for any number of cores, and may differ in the last bit
    between processors. Laws: tests/derive/test_predictions.py.
    """
    began = time.perf_counter()
    contents = read_contents(Folder(path))
    forward, facts, inputs = _prepared(contents, inputs, set, targets, module)
    work = _PredictionJob(contents, forward, facts, inputs)
    work.tree.catch_up()
    todo = work.tree.todo()
    if todo:
        with torch_side("forward").one_thread():
            _written(work, todo, progress)
    return Predicted(
        set=set,
        parts=tuple(work.tree.parts),
        checkpoints=work.checkpoints,
        already=len(contents.raw.rows) - work.checkpoints,
        examples=facts["examples"],
        classes=facts["classes"],
        not_finite=work.not_finite,
        overflowed=work.overflowed,
        seconds=time.perf_counter() - began,
    )


def _prepared(
    contents: Contents, inputs: NDArray[Any], name: str, targets: NDArray[Any] | None, module: Any
) -> tuple[Any, Document, NDArray[np.float32]]:
    """The network, the facts of all parts, and the inputs in float32."""
    arch = contents.architecture
    where = f"{contents.identity.name}: predict"
    if not SET_NAME.fullmatch(name):
        expected = "<data set>/<split> in small letters, digits and hyphens, up to 51"
        raise ZooError(f"{where}: name of the set: expected {expected}, got {name!r}. Call it mnist/test, for example.")
    if module is None and not archs.known(arch.forward):
        step = "Pass ckptzoo.derive.predict(..., module=...) from Python."
        raise ZooError(f"{where}: network: expected one of ckptzoo.archs, got {arch.name!r}. {step}")
    seen = np.ascontiguousarray(inputs, np.float32)
    if not seen.ndim or not len(seen) or (arch.input_shape is not None and seen.shape[1:] != arch.input_shape):
        expected = f"(N, {str(arch.input_shape)[1:]}" if arch.input_shape else "(N, ...) with N from 1"
        step = "Pass them as the network takes them."
        raise ZooError(f"{where}: shape of the inputs: expected {expected}, got {seen.shape}. {step}")
    forward = torch_side("forward").Forward(arch, module)
    classes = forward.features(seen.shape[1:])
    text = None if targets is None else _checked(targets, len(seen), classes, where)
    facts: Document = {
        "kind": PREDICTIONS,
        "set": name,
        "outputs": LOGITS,
        "examples": len(seen),
        "classes": classes,
        "inputs": digest_of_inputs(seen),
        "targets": text,
    }
    return forward, facts, seen


def digest_of_inputs(inputs: NDArray[np.float32]) -> str:
    """``sha256:...`` of the shape, as in ``(10000, 1, 28, 28)``, a line end, and the little-endian float32 bytes."""
    total = hashlib.sha256(f"{tuple(inputs.shape)}\n".encode())
    total.update(np.ascontiguousarray(inputs, "<f4").data.cast("B"))
    return "sha256:" + total.hexdigest()


def _checked(targets: NDArray[Any], examples: int, classes: int, location: str) -> str:
    """Labels as the facts hold them."""
    labels = np.asarray(targets)
    fits = labels.shape == (examples,) and labels.dtype.kind in "iu"
    if not fits or int(labels.min()) < 0 or int(labels.max()) >= classes:
        got = f"{labels.dtype} {labels.shape}" + (f" from {labels.min()} to {labels.max()}" if fits else "")
        step = "Leave them out where they are not among the network's classes."
        raise ZooError(f"{location}: targets: expected {examples} integers from 0 to {classes - 1}, got {got}. {step}")
    return encode_targets(labels)


class _PredictionJob:
    """Evaluates runs of checkpoints and stores what comes of them."""

    def __init__(self, contents: Contents, forward: Any, facts: Document, inputs: NDArray[np.float32]) -> None:
        self._zoo = Zoo(contents, {}, np.arange(len(contents.raw.rows)))
        self._forward, self._arch = forward, contents.architecture
        self.stack = _stack(self._arch)
        self._batches = forward.batches(inputs, max(1, INPUT_BYTES // (self.stack * inputs[0].nbytes)))
        self._ids = contents.ids
        shape = (facts["examples"], facts["classes"])
        sets = {PREDICTIONS: [Tensor(LOGITS, shape, DTYPE)]}
        self.tree = DerivedTreeWriter(contents, predictions_name(facts["set"]), facts, sets, what="predictions")
        self._shape = shape
        self.checkpoints = self.not_finite = self.overflowed = 0
        self._waiting = 0

    def evaluate(self, run: RowRun) -> tuple[RowRun, NDArray[np.float16], NDArray[np.int64]]:
        """(K, N, C) outputs of a run, and for each checkpoint how many lie beyond float16; called by several threads.

        A short stack is filled up, so that every checkpoint is computed in company of the same size.
        """
        count = run.rows.stop - run.rows.start
        places = np.minimum(np.arange(self.stack), count - 1)
        weights = {name: self._zoo[name][run.rows][places] for name in self._arch.names}
        made = np.empty((count, *self._shape), DTYPE)
        beyond = np.zeros(count, np.int64)
        at = 0
        for outputs in self._forward.outputs(weights, self._batches, stacked=self.stack > 1):
            found = outputs.numpy()[:count, : self._shape[0] - at]
            with np.errstate(over="ignore"):
                half = found.astype(DTYPE)
            half[np.isnan(half)] = np.nan
            made[:, at : at + found.shape[1]] = half
            beyond += np.count_nonzero(np.isinf(half) & np.isfinite(found), axis=(1, 2))
            at += found.shape[1]
        return run, made, beyond

    def store(self, made: tuple[RowRun, NDArray[np.float16], NDArray[np.int64]]) -> None:
        """Write a run, and count what is in a part when it appears."""
        run, logits, beyond = made
        finite = np.logical_and.reduce(np.isfinite(logits), axis=(1, 2))
        ids = self._ids.slice(run.rows.start, len(logits)).to_pylist()
        rows: list[Row] = [{"id": name, "finite": good} for name, good in zip(ids, finite.tolist(), strict=True)]
        self._waiting = int(beyond.sum()) + (0 if run.first else self._waiting)
        written = self.tree.store(run, {PREDICTIONS: {LOGITS: logits}}, rows, {})
        self.checkpoints += len(written)
        self.not_finite += sum(not row["finite"] for row in written)
        self.overflowed += self._waiting if written else 0


def _stack(arch: Architecture) -> int:
    """Checkpoints that are evaluated at once."""
    return max(1, min(STACK, STACK_BYTES // arch.nbytes))


def _written(work: _PredictionJob, parts: Sequence[tuple[int, Part]], progress: Progress | None) -> None:
    """Predict parts, evaluating ahead and writing behind."""
    total, done = sum(part.rows for _, part in parts), 0
    runs = work.tree.runs(parts, work.stack)
    try:
        with BackgroundWriter() as behind, closing(in_order(work.evaluate, runs, most=MOST_THREADS)) as evaluated:
            for made in evaluated:
                behind(work.store, made)
                done += len(made[1])
                if progress is not None:
                    progress(done, total)
    finally:
        work.tree.discard()
