"""The action on stacked weights: in numpy on a few threads, and for arrays on other devices in the array API.

In numpy every piece is gathered, scaled in float64 and rounded into its place in the output before the next one is
taken, so that the weights pass through the memory once. Pieces share nothing, and no bit depends on how they are cut
or on which thread takes them. On other devices the same operations run on the same numbers, so the bits are the same.
"""

import math
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ckptzoo.schema.groups import AxisAction
from ckptzoo.symmetry.arrays import stored_dtype
from ckptzoo.symmetry.moves import Move, cuts, rows_of, sources
from ckptzoo.symmetry.scales import scaled_variance

NUMPY_CHUNK = 2**17
"""Elements that are moved and scaled at a time: 1 MiB of float64, about a core's second-level cache."""
TASK = 2**20
"""Elements that a thread takes at a time, and for which it lists positions and factors."""
MOST_THREADS = 8
"""More cannot be kept busy: between pieces each thread needs the interpreter."""


@dataclass(frozen=True, eq=False)
class Stack:
    """One stacked tensor (K, *shape), the groups that move or scale it, and the contiguous target of the result.

    ``perms`` and ``scales`` map the ids of the move's groups that are not the identity to (K, n).
    """

    move: Move
    perms: Mapping[str, np.ndarray]
    scales: Mapping[str, np.ndarray]
    source: np.ndarray
    target: np.ndarray

    def tasks(self) -> Iterator["Task"]:
        """Yield the stack in tasks; a checkpoint that is not contiguous stays whole, as its task makes a copy of it."""
        size = math.prod(self.move.shape)
        most = TASK if self.source[:1].flags.c_contiguous else max(TASK, size)
        for some, rows in cuts(len(self.source), self.move.shape, most):
            perms = {name: perm[some] for name, perm in self.perms.items()}
            scales = {name: scale[some] for name, scale in self.scales.items()}
            yield Stack(self.move, perms, scales, self.source[some], self.target[some]), rows


Task = tuple[Stack, tuple[int, int]]
"""Some checkpoints of a stack, and which of their rows."""


class Scratch:
    """A thread's buffers, kept from piece to piece."""

    def __init__(self) -> None:
        self._held: dict[str, np.ndarray] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an array in the buffer of this name, with whatever is in it."""
        nbytes = math.prod(shape) * dtype.itemsize
        if name not in self._held or self._held[name].nbytes < nbytes:
            self._held[name] = np.empty(nbytes, np.uint8)
        return self._held[name][:nbytes].view(dtype).reshape(shape)


def run(stacks: Sequence[Stack], threads: int | None) -> None:
    """Fill the targets of all stacks on at most ``threads`` threads.

    None is one thread a core, at most ``MOST_THREADS``; the caller does little work alone. Raises ``SymmetryError``
    where a scale makes a running variance negative; the targets are half filled then.
    """
    tasks = deque(task for stack in stacks for task in stack.tasks())
    size = sum(stack.target.size for stack in stacks)
    count = min(threads or min(_cores(), MOST_THREADS), size // TASK)
    errors = {**np.geterr(), "invalid": "ignore"}  # numpy keeps these by thread: new threads get the caller's
    if count < 2:
        return _work(tasks, errors)
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(_work, tasks, errors) for _ in range(count)]:
            done.result()


def _cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(tasks: deque[Task], errors: Mapping[str, Any]) -> None:
    """Take tasks until none is left; an error ends the work of all threads."""
    scratch = Scratch()
    with np.errstate(**errors):
        while True:
            try:
                task = tasks.popleft()
            except IndexError:
                return
            try:
                _act(task, scratch)
            except BaseException:  # KeyboardInterrupt too: nobody waits for what the other threads would still do
                tasks.clear()
                raise


def _act(task: Task, scratch: Scratch) -> None:
    """Fill the task's rows of its target, piece by piece."""
    (stack, (first, last)), move = task, task[0].move
    K, (rows, columns, still) = len(stack.source), move.shape
    source = np.ascontiguousarray(stack.source).reshape(K, rows, columns * still)
    target = stack.target.reshape(source.shape)
    row, column = move.rows(stack.perms), move.columns(stack.perms)
    factors, scaled = move.factors(stack.scales), move.scaled(stack.scales)
    scaled = np.zeros(K, bool) if scaled is None else scaled
    precision = float(np.finfo(stored_dtype(source.dtype)).eps) if factors else 0.0
    for some, (start, stop) in cuts(K, (last - first, columns, still), NUMPY_CHUNK):
        span = slice(first + start, first + stop)
        moved, into = source[some, span], target[some, span]
        acting = scaled[some]
        if row is not None or column is not None:
            moved = scratch("moved", into.shape, source.dtype) if acting.any() or into.dtype != source.dtype else into
            row_here, column_here = (None if index is None else index[some] for index in (row, column))
            _gather(source[some], row_here, column_here, span, move, moved, scratch)
        if not acting.any():
            if moved is not into:
                np.copyto(into, moved, casting="unsafe")
            continue
        work = into if into.dtype == np.float64 else scratch("work", into.shape, np.dtype(np.float64))
        np.copyto(work, moved, casting="unsafe")
        for action, factor in factors:
            _scale(work, action, rows_of(factor[some], span, rows), precision)
        np.copyto(into, work, casting="same_kind")
        if (plain := np.flatnonzero(~acting)).size:
            into[plain] = moved[plain]


def _gather(
    source: np.ndarray,
    row: np.ndarray | None,
    column: np.ndarray | None,
    span: slice,
    move: Move,
    into: np.ndarray,
    scratch: Scratch,
) -> None:
    """Copy the sources of a span of rows of k checkpoints (k, rows, columns * still) into place."""
    k, (rows, columns, still) = len(source), move.shape
    if k == 1 and (column is None or column.shape[1] == 1):
        lines = source[0, span]
        if row is not None:
            lines = into[0] if column is None else scratch("lines", lines.shape, lines.dtype)
            # with its default, mode="raise", np.take fills a buffer first and copies it to ``out``
            np.take(source[0], row[0, span], axis=0, out=lines, mode="clip")
        if column is not None:
            shape = len(lines), columns, still
            np.take(lines.reshape(shape), column[0, 0], axis=1, out=into.reshape(shape), mode="clip")
        return
    index = sources(row, column, span, move.shape)
    entries = (k * rows, columns * still) if column is None else (k * rows * columns, still)
    np.take(source.reshape(entries), index, axis=0, out=into.reshape(*index.shape, -1), mode="clip")


def _scale(work: np.ndarray, action: AxisAction, factor: np.ndarray, precision: float) -> None:
    if action.exponent == -1:
        np.divide(work, factor, out=work)
    elif action.exponent == 1:
        np.multiply(work, factor, out=work)
    else:
        work[:] = scaled_variance(work, factor, action.eps, precision, action.tensor)


DEVICE_CHUNK = 2**24
"""Elements that are moved and scaled at a time: 128 MiB of float64."""


def act(move: Move, perms: Mapping[str, Any], scales: Mapping[str, Any], source: Any, target: Any) -> None:
    """Fill a target (K, *shape) from a source of the same shape on the same device.

    ``perms`` and ``scales`` map the ids of the move's groups that are not the identity to (K, n) on that device; the
    target is contiguous and has the dtype of derived weights. Raises ``SymmetryError`` where a scale makes a running
    variance negative; the target is half filled then.
    """
    xp: Any = array_namespace(source)
    K, (rows, columns, still) = source.shape[0], move.shape
    source = xp.reshape(source, (K, rows, columns * still))
    target = xp.reshape(target, source.shape)
    row, column = move.rows(perms), move.columns(perms)
    factors, scaled = move.factors(scales), move.scaled(scales)
    for some, (start, stop) in cuts(K, move.shape, DEVICE_CHUNK):
        span = slice(start, stop)
        moved = source[some, span]
        if row is not None or column is not None:
            row_here, column_here = (None if index is None else index[some] for index in (row, column))
            index = xp.reshape(sources(row_here, column_here, span, move.shape), (-1,))
            entries = (-1, columns * still) if column is None else (-1, still)
            moved = xp.reshape(xp.take(xp.reshape(source[some], entries), index, axis=0), moved.shape)
        made = xp.astype(moved, target.dtype, copy=False)
        if scaled is not None:
            work = xp.astype(moved, xp.float64)
            for action, factor in factors:
                factor = rows_of(factor[some], span, rows)
                if action.exponent == -1:
                    work = work / factor
                elif action.exponent == 1:
                    work = work * factor
                else:
                    precision = float(xp.finfo(target.dtype).eps)
                    work = scaled_variance(work, factor, action.eps, precision, action.tensor)
            made = xp.where(scaled[some, None, None], xp.astype(work, target.dtype), made)
        target[some, span] = made
