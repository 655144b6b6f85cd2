"""The action on arrays that numpy cannot reach, in the operations of the array API.

The same operations on the same numbers as in ``ckptzoo.symmetry.host``, one at a time, so the same bits.
"""

from collections.abc import Mapping
from typing import Any

from array_api_compat import array_namespace

from ckptzoo.symmetry.moves import Move, cuts, rows_of, sources
from ckptzoo.symmetry.variance import scaled_variance

PIECE = 2**24
"""Elements that are moved and scaled at a time: 128 MiB of float64."""


def act(move: Move, perms: Mapping[str, Any], scales: Mapping[str, Any], source: Any, target: Any) -> None:
    """Fill a target (K, *shape) from a source of the same shape on the same device.

    Parameters
    ----------
    perms, scales : group id to (K, n) on that device; of the move's groups those that are not the identity.
    target : contiguous, of the dtype of derived weights.

    Raises
    ------
    SymmetryError
        A scale makes a running variance negative; the target is half filled then.
    """
    xp: Any = array_namespace(source)
    K, (rows, columns, still) = source.shape[0], move.shape
    source = xp.reshape(source, (K, rows, columns * still))
    target = xp.reshape(target, source.shape)
    row, column = move.rows(perms), move.columns(perms)
    factors, scaled = move.factors(scales), move.scaled(scales)
    for some, (start, stop) in cuts(K, move.shape, PIECE):
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
