"""Random group elements acting on batches that are read one after the other: scales in place, then permutations."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import is_float
from ckptzoo.symmetry.moves import Move, sources
from ckptzoo.symmetry.scales import scaled_variance

Tensors = dict[str, NDArray[Any]]
"""Tensor name to (B, *shape)."""
_ENTRIES = 1024
"""From this number of entries a tensor's rows and columns are moved one after the other, checkpoint by checkpoint,
instead of through a list of where each entry comes from: measured."""


class Mover:
    """The actions of a table on the tensors of an architecture, looked up once for all batches.

    Parameters
    ----------
    shapes : tensor name to its shape in one checkpoint.
    table : the symmetries.

    Notes
    -----
    Permutations move bits. Scales act in float64 on variances and in the tensor's own precision elsewhere: a weight
    that is scaled on two axes is rounded up to four times. No bit depends on the other checkpoints of a batch.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], table: Symmetry) -> None:
        self._moves = {name: Move.of(shape, table.actions_on(name), table) for name, shape in shapes.items()}

    def scaled(self, tensors: Tensors, scales: Mapping[str, NDArray[np.float64]], *, owned: bool) -> Tensors:
        """Every channel times its scale, group to (B, n) in the order of the tensors.

        Parameters
        ----------
        owned : whether the tensors may be overwritten where that is possible.
        """
        made = dict(tensors)
        for name, array in tensors.items():
            move = self._moves[name]
            factors = move.factors(scales) if is_float(array) else []
            if not factors:
                continue
            # what does not move is one element a row
            work: Any = array.reshape(len(array), move.shape[0], -1)
            free = owned and array.flags.writeable and array.flags.c_contiguous
            for action, factor in factors:
                if action.exponent == 2:
                    values = work.astype(np.float64)
                    found = scaled_variance(values, factor, action.eps, float(np.finfo(array.dtype).eps), action.tensor)
                    work, free = found.astype(array.dtype), True
                    continue
                act = np.divide if action.exponent == -1 else np.multiply
                factor = factor.astype(array.dtype)
                if 1 < factor.shape[1] < work.shape[1]:
                    factor = np.repeat(factor, work.shape[1] // factor.shape[1], axis=1)
                work, free = act(work, factor, out=work if free else None), True
            made[name] = work.reshape(array.shape)
        return made

    def permuted(self, tensors: Tensors, perms: Mapping[str, NDArray[np.int64]]) -> Tensors:
        """New arrays in which every channel is where its group's permutation (B, n) puts it; others as they are."""
        made = dict(tensors)
        for name, array in tensors.items():
            move = self._moves[name]
            row, column = move.rows(perms), move.columns(perms)
            if row is not None or column is not None:
                made[name] = np.empty(array.shape, array.dtype)
                _gather(np.ascontiguousarray(array), row, column, move, made[name])
        return made


def _gather(source: NDArray[Any], row: Any | None, column: Any | None, move: Move, target: NDArray[Any]) -> None:
    """Fill the target (B, *shape): from rows (B, rows) and columns (B, blocks, columns)."""
    B, (rows, columns, still) = len(source), move.shape
    if column is not None and column.shape[1] == 1 and rows * columns >= _ENTRIES:
        lines = np.empty((rows, columns, still), source.dtype) if row is not None else None
        whole, into = source.reshape(B, rows, columns, still), target.reshape(B, rows, columns, still)
        for at in range(B):
            here = whole[at]
            if lines is not None and row is not None:
                # with its default, mode="raise", np.take fills a buffer first and copies it to ``out``
                here = np.take(here, row[at], axis=0, out=lines, mode="clip")
            np.take(here, column[at, 0], axis=1, out=into[at], mode="clip")
        return
    index = sources(row, column, slice(0, rows), move.shape)
    entries = (B * rows, columns * still) if column is None else (B * rows * columns, still)
    np.take(source.reshape(entries), index, axis=0, out=target.reshape(*index.shape, -1), mode="clip")
