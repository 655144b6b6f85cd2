"""Random group elements acting on batches: scales, then standardisation, then permutations, while rows are in cache."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.format.header import numpy_dtype
from ckptzoo.learning.statistics import Statistics
from ckptzoo.schema.symmetry import AxisAction, Symmetry
from ckptzoo.symmetry.arrays import is_float
from ckptzoo.symmetry.moves import Move, sources
from ckptzoo.symmetry.scales import scaled_variance

Tensors = dict[str, NDArray[Any]]
"""Tensor name to (B, *shape)."""
Drawn = tuple[Mapping[str, NDArray[np.int64]], Mapping[str, NDArray[np.float64]]]
"""Permutations (B, n) by group, and scales (B, n) of the channels in their old order; groups left alone are missing."""
Read = Callable[[str, slice], NDArray[Any]]
"""A tensor's name and a run of the batch, to the weights as stored, (run, *shape)."""
_CHUNK_BYTES = 2**18
"""Weights of one tensor that are read, scaled and moved together: they stay in a core's second-level cache."""
_ENTRIES = 1024
"""From this number of entries a tensor's rows and columns are moved one after the other, checkpoint by checkpoint,
instead of by a list of where each entry comes from: measured."""
_KEPT = 8
"""Arrays of a shape that are kept at most: of a batch in use and of one ahead, in a few views."""
_HALVES = (np.dtype(np.float16), numpy_dtype("bfloat16"))


@dataclass(frozen=True, eq=False)
class _Acting:
    """What acts on one tensor of a batch: rows (B, rows), columns (B, blocks, columns), and factors in their order."""

    row: Any | None
    column: Any | None
    factors: list[tuple[AxisAction, NDArray[Any]]]

    def __getitem__(self, run: slice) -> "_Acting":
        row, column = (None if index is None else index[run] for index in (self.row, self.column))
        return _Acting(row, column, [(action, factor[run]) for action, factor in self.factors])


class Buffers:
    """Arrays for batches, each given again once nobody else holds it: fresh memory costs as much as filling it.

    Where all arrays are in use, a new one is made, so that batches which the caller keeps are never written to. Not for
    several threads at once.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[Any, ...], list[NDArray[Any]]] = {}

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array with whatever is in it."""
        held = self._held.setdefault((shape, dtype), [])
        for at in range(len(held)):
            # the list holds it, and the call; any view, tensor or buffer of it would hold it too
            if sys.getrefcount(held[at]) == 2:
                return held[at]
        made = np.empty(shape, dtype)
        if len(held) < _KEPT:
            held.append(made)
        return made


class Mover:
    """The actions of a table on the tensors of an architecture, looked up once for all batches.

    Parameters
    ----------
    shapes : tensor name to its shape in one checkpoint.
    table : the symmetries; None where nothing is drawn.
    statistics : by which weights are standardised between scales and permutations.

    Notes
    -----
    Permutations move bits. Scales act in float64 on variances and in the tensor's own precision elsewhere, at least
    float32: a weight that is scaled on two axes is rounded four times. No bit depends on the other checkpoints of a
    batch. Beside the result a few MiB.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], table: Symmetry | None, statistics: Statistics | None = None
    ) -> None:
        self._statistics = statistics
        actions = {name: () if table is None else table.actions_on(name) for name in shapes}
        self._moves = {
            name: None if table is None or not actions[name] else Move.of(shape, actions[name], table)
            for name, shape in shapes.items()
        }

    def views(
        self, read: Read, B: int, draws: Sequence[Drawn], empty: Callable[..., NDArray[Any]] = np.empty
    ) -> list[Tensors]:
        """A view of the batch for each of the draws.

        Parameters
        ----------
        read : reads the weights; nothing that it gives is kept or changed, unless it may be written to.
        B : checkpoints.
        empty : makes the arrays, from shape and dtype.
        """
        views: list[Tensors] = [{} for _ in draws]
        for name, move in self._moves.items():
            for made, found in zip(views, self._views_of(name, move, read, B, draws, empty), strict=True):
                made[name] = found
        return views

    def _views_of(
        self,
        name: str,
        move: Move | None,
        read: Read,
        B: int,
        draws: Sequence[Drawn],
        empty: Callable[..., NDArray[Any]],
    ) -> list[NDArray[Any]]:
        first = read(name, slice(0, 1))
        dtype = np.dtype(np.float32) if first.dtype in _HALVES else first.dtype
        floats = is_float(first)
        acting = [_acting(move, perms, scales if floats else {}, dtype) for perms, scales in draws]
        standard = self._statistics.near(name, first.astype(dtype)) if floats and self._statistics else None
        if standard is None and not any(map(_changes, acting)):
            whole = read(name, slice(0, B))
            return [whole.astype(dtype, copy=False)] * len(draws)
        targets = [empty((B, *first.shape[1:]), dtype) for _ in draws]
        for run in _runs(B, first.nbytes):
            stored = read(name, run)
            source = stored.astype(dtype, copy=False)
            free = len(draws) == 1 and source.flags.writeable and source.flags.c_contiguous
            for one, target in zip(acting, targets, strict=True):
                work, own = _scaled(source, one[run].factors, free=free)
                if standard is not None:
                    work = np.subtract(work, standard[0], out=work if own else None)
                    np.divide(work, standard[1], out=work)
                _move(work, one[run], move, target[run])
        return targets


def _changes(acting: _Acting) -> bool:
    return acting.row is not None or acting.column is not None or bool(acting.factors)


def _acting(move: Move | None, perms: Mapping[str, Any], scales: Mapping[str, Any], dtype: np.dtype[Any]) -> _Acting:
    if move is None:
        return _Acting(None, None, [])
    factors = [
        (action, factor if action.exponent == 2 else factor.astype(dtype)) for action, factor in move.factors(scales)
    ]
    return _Acting(move.rows(perms), move.columns(perms), factors)


def _runs(B: int, row_bytes: int) -> Iterator[slice]:
    step = max(1, _CHUNK_BYTES // max(1, row_bytes))
    return (slice(start, min(start + step, B)) for start in range(0, B, step))


def _scaled(
    source: NDArray[Any], factors: Sequence[tuple[AxisAction, NDArray[Any]]], *, free: bool
) -> tuple[NDArray[Any], bool]:
    """The weights under their factors, and whether they may be written to; where ``free``, in their own memory."""
    if not factors:
        return source, free
    work = source
    for action, factor in factors:
        K, blocks, width = factor.shape
        # axis 0 has a factor a row, which are the blocks then; the others one for each position in the rows of a block
        work = work.reshape(K, blocks, -1) if width == 1 else work.reshape(K, blocks, -1, width)
        factor = factor if width == 1 else factor[:, :, None]
        if action.exponent == 2:
            precision = float(np.finfo(source.dtype).eps)
            found = scaled_variance(work.astype(np.float64), factor, action.eps, precision, action.tensor)
            work = found.astype(source.dtype)
        else:
            act = np.divide if action.exponent == -1 else np.multiply
            work = act(work, factor, out=work if free else None)
        free = True
    return work.reshape(source.shape), True


def _move(source: NDArray[Any], acting: _Acting, move: Move | None, target: NDArray[Any]) -> None:
    """Fill the target (B, *shape), contiguous, with what comes to each of its positions."""
    row, column = acting.row, acting.column
    if move is None or (row is None and column is None):
        target[...] = source
        return
    source = np.ascontiguousarray(source)
    B, (rows, columns, still) = len(source), move.shape
    if column is not None and column.shape[1] == 1 and rows * columns >= _ENTRIES:
        lines = np.empty((rows, columns, still), source.dtype)
        whole, into = source.reshape(B, rows, columns, still), target.reshape(B, rows, columns, still)
        for at in range(B):
            # with its default, mode="raise", take fills a buffer first and copies it to ``out``
            here = whole[at] if row is None else whole[at].take(row[at], 0, lines, "clip")
            here.take(column[at, 0], 1, into[at], "clip")
        return
    index = sources(row, column, slice(0, rows), move.shape)
    entries = (B * rows, columns * still) if column is None else (B * rows * columns, still)
    source.reshape(entries).take(index, 0, target.reshape(*index.shape, -1), "clip")
