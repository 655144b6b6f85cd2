"""Random group elements acting on batches: scales and matrices, then standardisation, then permutations, in cache."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.format.header import numpy_dtype
from ckptzoo.learning.standardization import Statistics
from ckptzoo.loader.readers import MmapReader, TensorReader
from ckptzoo.schema.groups import AxisAction
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import is_float
from ckptzoo.symmetry.matrix_action import mixed_channels, multiply
from ckptzoo.symmetry.moves import Move, sources
from ckptzoo.symmetry.scales import scaled_variance

Tensors = dict[str, NDArray[Any]]
"""Tensor name to (B, *shape)."""
Drawn = tuple[Mapping[str, NDArray[np.int64]], Mapping[str, NDArray[np.float64]]]
"""Permutations (B, n) by group, and scales (B, n) of the channels in their old order; groups left alone are missing."""
_CHUNK_BYTES = 2**20
"""Weights of one tensor that are moved and scaled together: about a core's second-level cache."""
_ENTRIES = 1024
"""From this number of entries a tensor's rows and columns are moved one after the other, checkpoint by checkpoint,
instead of by a list of where each entry comes from: measured."""
_KEPT = 8
"""The maximum number of kept arrays of a shape: of a batch in use and of one ahead, in a few views."""
_LIST = [np.empty(0)]
_UNUSED = sys.getrefcount(_LIST[0])
"""The reference count of an array that only a list holds, in this version of Python."""
# computed in float32: with 11 or 8 bits, scales and standardisation would lose digits
_HALVES = (np.dtype(np.float16), numpy_dtype("bfloat16"))


@dataclass(frozen=True, eq=False)
class _Acting:
    """Actions on one tensor of a batch: rows (B, rows), columns (B, blocks, columns), and factors in their order."""

    row: Any | None
    column: Any | None
    factors: list[tuple[AxisAction, NDArray[Any]]]

    def __getitem__(self, run: slice) -> "_Acting":
        row, column = (None if index is None else index[run] for index in (self.row, self.column))
        return _Acting(row, column, [(action, factor[run]) for action, factor in self.factors])


class Buffers:
    """Arrays for batches, reused once nobody else holds them: fresh memory costs as much as filling it.

    Where all arrays are in use, a new one is made, so that batches which the caller keeps are never written to. Not for
    several threads at once.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[Any, ...], list[NDArray[Any]]] = {}

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array with arbitrary content."""
        held = self._held.setdefault((shape, dtype), [])
        for at in range(len(held)):
            # any view, tensor or buffer of it would hold it too
            if sys.getrefcount(held[at]) == _UNUSED:
                return held[at]
        # without zeros: the caller fills all of it
        made = np.empty(shape, dtype)
        if len(held) < _KEPT:
            held.append(made)
        return made


class Mover:
    """The actions of a table on the tensors of an architecture, looked up once for all batches.

    Permutations move bits. Matrices act in float64. Scales act in float64 on variances and in the tensor's own
    precision elsewhere, at least float32: a weight that is scaled on two axes is rounded four times. No bit depends on
    the other checkpoints of a batch. Beside the result a few MiB, and a tensor of the batch where matrices act.

    ``shapes`` maps tensor names to shapes in one checkpoint; ``table`` is None where nothing is drawn; weights are
    standardised by ``statistics`` between scales and permutations.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], table: Symmetry | None, statistics: Statistics | None = None
    ) -> None:
        self._statistics = statistics
        actions = {name: () if table is None else table.actions_on(name) for name in shapes}
        self._mixed = {name: [] if table is None else mixed_channels(found, table) for name, found in actions.items()}
        self._moves = {
            name: None if table is None or not actions[name] else Move.of(shape, actions[name], table)
            for name, shape in shapes.items()
        }

    def views(
        self,
        readers: Mapping[str, TensorReader],
        rows: NDArray[np.int64],
        draws: Sequence[Drawn],
        empty: Callable[..., NDArray[Any]] = np.empty,
        matrices: Sequence[Mapping[str, NDArray[np.float64]]] = (),
    ) -> list[Tensors]:
        """A view of a batch for each of the draws.

        ``rows`` are (B,) rows of the tree; ``empty`` returns an array of a shape and dtype; ``matrices`` are, for each
        draw, matrices (B, blocks, k, k) or (B, n, 2) of the blocks in their old order, by group.
        """
        views: list[Tensors] = [{} for _ in draws]
        # where standardisation is the same for all positions that a permutation exchanges, rows are moved first, so
        # that they are read once; products and differences of single weights are the same before and behind
        first = self._statistics is None or self._statistics.commutes
        moved = [(perms, _moved(scales, perms) if first else scales) for perms, scales in draws]
        for name, move in self._moves.items():
            if move is not None and any(item.group in matrix for matrix in matrices for item in self._mixed[name]):
                found = [
                    self._mixed_view(name, move, readers[name], rows, draw, matrix, empty)
                    for draw, matrix in zip(draws, matrices, strict=True)
                ]
            else:
                found = self._views_of(name, move, readers[name], rows, moved, first, empty)
            for made, array in zip(views, found, strict=True):
                made[name] = array
        return views

    def _views_of(
        self,
        name: str,
        move: Move | None,
        reader: TensorReader,
        rows: NDArray[np.int64],
        draws: Sequence[Drawn],
        moves_first: bool,
        empty: Callable[..., NDArray[Any]],
    ) -> list[NDArray[Any]]:
        dtype = np.dtype(np.float32) if reader.dtype in _HALVES else reader.dtype
        shape = (len(rows), *reader.shape)
        floats = is_float(np.empty(0, dtype))
        acting = [_acting(move, perms, scales if floats else {}, dtype) for perms, scales in draws]
        standard = (
            self._statistics.near(name, np.empty((0, *reader.shape), dtype)) if floats and self._statistics else None
        )
        if standard is None and not any(map(_changes, acting)):
            alike = reader.gather(rows).astype(dtype, copy=False)
            # each view has memory of its own, as callers may write to it
            return [alike, *(alike.copy() for _ in draws[1:])]
        targets = [empty(shape, dtype) for _ in draws]
        held, places = reader.among(rows) if isinstance(reader, MmapReader) else (reader.gather(rows), None)
        held, places = np.ascontiguousarray(held), np.arange(len(rows)) if places is None else places
        if reader.dtype != dtype:
            held, places = held[places].astype(dtype), np.arange(len(rows))
        for run in _runs(len(rows), reader.row_bytes):
            for whole, target in zip(acting, targets, strict=True):
                one, into = whole[run], target[run]
                if moves_first:
                    _move(held, places[run], one, move, into)
                    _scale(into, one.factors)
                    _standardize(into, standard)
                else:
                    # a copy, as indexing by an array makes
                    work = held[places[run]]
                    _scale(work, one.factors)
                    _standardize(work, standard)
                    _move(work, np.arange(len(work)), one, move, into)
        return targets

    def _mixed_view(
        self,
        name: str,
        move: Move,
        reader: TensorReader,
        rows: NDArray[np.int64],
        draw: Drawn,
        matrices: Mapping[str, NDArray[np.float64]],
        empty: Callable[..., NDArray[Any]],
    ) -> NDArray[Any]:
        """One view of a tensor whose channels matrices mix, in float64, before scales and standardisation."""
        dtype = np.dtype(np.float32) if reader.dtype in _HALVES else reader.dtype
        acting = _acting(move, *draw, dtype)
        standard = self._statistics.near(name, np.empty((0, *reader.shape), dtype)) if self._statistics else None
        target = empty((len(rows), *reader.shape), dtype)
        mixed = [item for item in self._mixed[name] if item.group in matrices]
        held = reader.gather(rows)
        for run in _runs(len(rows), reader.row_bytes):
            work = np.array(held[run], np.float64, order="C")
            multiply(work, mixed, {item.group: matrices[item.group][run] for item in mixed})
            work = work.astype(dtype)
            one = acting[run]
            _scale(work, one.factors)
            _standardize(work, standard)
            _move(work, np.arange(len(work)), one, move, target[run])
        return target


def _changes(acting: _Acting) -> bool:
    return acting.row is not None or acting.column is not None or bool(acting.factors)


def _acting(move: Move | None, perms: Mapping[str, Any], scales: Mapping[str, Any], dtype: np.dtype[Any]) -> _Acting:
    if move is None:
        return _Acting(None, None, [])
    factors = [
        # float64 for variances: (v + eps) s^2 - eps cancels where v is small
        (action, factor if action.exponent == 2 else factor.astype(dtype))
        for action, factor in move.factors(scales)
    ]
    return _Acting(move.rows(perms), move.columns(perms), factors)


def _runs(B: int, row_bytes: int) -> Iterator[slice]:
    step = max(1, _CHUNK_BYTES // max(1, row_bytes))
    return (slice(start, min(start + step, B)) for start in range(0, B, step))


def _moved(scales: Mapping[str, Any], perms: Mapping[str, Any]) -> dict[str, Any]:
    """The scales of the channels in their new order."""
    return {
        name: np.take_along_axis(scale, perms[name], axis=1) if name in perms else scale
        for name, scale in scales.items()
    }


def _scale(weights: NDArray[Any], factors: Sequence[tuple[AxisAction, NDArray[Any]]]) -> None:
    """Multiply contiguous weights (B, *shape) by their factors, in place."""
    for action, factor in factors:
        K, blocks, width = factor.shape
        # axis 0 has a factor a row, which are the blocks then; the others one for each position in the rows of a block
        work = weights.reshape(K, blocks, -1) if width == 1 else weights.reshape(K, blocks, -1, width)
        factor = factor if width == 1 else factor[:, :, None]
        if action.exponent == 2:
            precision = float(np.finfo(weights.dtype).eps)
            work[...] = scaled_variance(work.astype(np.float64), factor, action.eps, precision, action.tensor)
        elif action.exponent == -1:
            np.divide(work, factor, out=work)
        else:
            np.multiply(work, factor, out=work)


def _standardize(weights: NDArray[Any], standard: tuple[NDArray[Any], NDArray[Any]] | None) -> None:
    if standard is not None:
        np.subtract(weights, standard[0], out=weights)
        np.divide(weights, standard[1], out=weights)


def _move(
    held: NDArray[Any], places: NDArray[np.int64], acting: _Acting, move: Move | None, target: NDArray[Any]
) -> None:
    """Fill the target (B, *shape), contiguous, with what comes to each position from the rows at B places."""
    row, column = acting.row, acting.column
    if move is None or (row is None and column is None):
        # with its default, mode="raise", take fills a buffer first and copies it to ``out``
        held.take(places, 0, target, "clip")
        return
    B, M, (rows, columns, still) = len(places), len(held), move.shape
    if column is not None and column.shape[1] == 1 and rows * columns >= _ENTRIES:
        lines = np.empty((rows, columns, still), held.dtype)
        whole, into = held.reshape(M, rows, columns, still), target.reshape(B, rows, columns, still)
        for at, place in enumerate(places):
            here = whole[place] if row is None else whole[place].take(row[at], 0, lines, "clip")
            here.take(column[at, 0], 1, into[at], "clip")
        return
    index = sources(row, column, slice(0, rows), move.shape)
    each = rows if column is None else rows * columns
    index += (each * (places - np.arange(B))).reshape(B, *[1] * (index.ndim - 1))
    entries = (M * each, columns * still if column is None else still)
    held.reshape(entries).take(index, 0, target.reshape(*index.shape, -1), "clip")
