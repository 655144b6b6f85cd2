"""The distances that ``ckptzoo.measure.distances`` needs, compiled by Numba: both norms of a pair in one pass.

Differences are taken directly, in float32 or float64, and added up over ``RUN`` columns before the sums go on in
float64. A vector holds one column of several rows, so that the sums of every pair are taken column by column: no bit
depends on the threads, nor on the length of the processor's vectors, but on whether it multiplies and adds at once.

The arithmetic is a subtraction, an absolute value, a sum, and a product that is added, for each vector. A processor
that starts four of these a cycle, such as Zen 3, does 8 pairs a cycle in float32 at most; ``_add_two_rows`` alone
reaches four fifths of it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from ckptzoo.measure.panels import Panel, run_tasks

RUN = 128
"""Columns whose differences are summed in the type they are computed in; sums of these are in float64."""
VECTOR = 64
"""Bytes of a vector: one register with AVX-512, two with AVX2, four with SSE or NEON."""
VECTORS = 4
"""Vectors of rows that a task compares with the rows of a panel."""
EXPONENT = 50
"""The largest element of a run is scaled to 2^49 .. 2^50: sums of ``RUN`` squares stay below 2^128, where float32 ends,
and squares of differences above 2^-113 of it do not underflow."""

_INT, _LONG = ir.IntType(32), ir.IntType(64)
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True}


class Packed(NamedTuple):
    """Centred columns, ordered for ``add_tile``: those of ``rows`` rows, ``width`` of them.

    ``values`` are (runs, vectors, RUN, lanes) float32 or float64: row ``vector * lanes + lane``, column ``run * RUN +
    c``. After the last row come rows of zeros; after the last column, anything. ``units`` are (runs,) float64, the
    power of two by which the values of a run are to be multiplied.
    """

    values: NDArray[Any]
    units: NDArray[np.float64]
    rows: int
    width: int


def add_distances(
    panels: Sequence[Panel], x: NDArray[Any], y: NDArray[Any], dtype: type[np.floating[Any]], limit: float
) -> bool:
    """Add the distances in some columns to those of the panels.

    Returns whether they are all finite and below the limit; otherwise nothing is added.

    Errors are bounded as in ``ckptzoo.measure.Distances``. With u the unit roundoff of the type, elements a and b are
    rounded by u (abs a + abs b) together, so the difference d is wrong by that and its square by 2 abs d times that;
    sums over a run add at most (RUN + 1) u of the absolute differences and (RUN + 2) u of the squares.

    Memory: a copy of the columns in that type, and for each thread 0.2 MB and 1 KB a row. ``x`` and ``y`` are (m, w)
    and (n, w), of any real dtype and strides. The differences have ``dtype``, float32 or float64; ``limit`` bounds the
    absolute values of centred elements.
    """
    count, width = len(x) + len(y), x.shape[1]
    lanes, runs = VECTOR // np.dtype(dtype).itemsize, -(-width // RUN)
    # one row of zeros at least, so that rows can be taken in twos
    vectors = count // lanes + 1
    packed = Packed(np.empty((runs, vectors, RUN, lanes), dtype), np.empty(runs), count, width)

    def packer() -> Callable[[int], None]:
        memory = np.empty(count * RUN)

        def act(run: int) -> None:
            columns = slice(run * RUN, min(run * RUN + RUN, width))
            rows = memory[: count * (columns.stop - columns.start)].reshape(count, -1)
            rows[: len(x)], rows[len(x) :] = x[:, columns], y[:, columns]
            packed.units[run] = pack(rows, packed.values[run], limit)

        return act

    run_tasks(range(runs), packer, max_threads=runs)
    if not np.isfinite(packed.units).all():
        return False
    tasks = [
        (panel, first, min(first + VECTORS, vectors))
        for panel in panels
        for first in range(panel.start // lanes, vectors, VECTORS)
    ]
    rows_of_panel = max(panel.stop - panel.start for panel in panels)

    def adder() -> Callable[[tuple[Panel, int, int]], None]:
        sums = np.empty((VECTORS, rows_of_panel + 1, 2, lanes))

        def act(task: tuple[Panel, int, int]) -> None:
            panel, first, last = task
            add_tile(packed, panel.start, panel.stop, first, last, sums, panel.manhattan, panel.squares)

        return act

    run_tasks(tasks, adder, max_threads=len(tasks))
    return True


def _cached(function: Callable[..., Any]) -> Any:
    """Return the compiled function, cached on disk where Numba has a writable folder."""
    try:
        return njit(function, cache=True, **_OPTIONS)
    except RuntimeError:  # "no locator available"
        return njit(function, **_OPTIONS)


def _vectors(typed: Callable[..., Any]) -> Callable[..., Any]:
    """Numba's decorator, which supplies the first argument itself."""
    return intrinsic(typed)


@_cached
def pack(rows: Any, values: Any, limit: float) -> float:
    """Centre the columns of a run, scale them and put them in order; return the unit, or infinity.

    ``rows`` are (N, w) float64, and ``values`` are the (vectors, RUN, lanes) of a run of ``Packed``. Infinity is
    returned where an absolute value is above ``limit`` or not finite.
    """
    count, width = rows.shape
    lanes = values.shape[2]
    means, least, most = np.zeros(width), rows[0].copy(), rows[0].copy()
    for row in range(count):
        for c in range(width):
            value = rows[row, c]
            means[c] += value
            least[c] = min(least[c], value)
            most[c] = max(most[c], value)
    largest = 0.0
    for c in range(width):
        means[c] /= count
        # the mean of a column in which something is not finite, or overflows, is not finite either
        if not np.isfinite(means[c]):
            return np.inf
        largest = max(largest, most[c] - means[c], means[c] - least[c])
    if not largest < limit:
        return np.inf
    # below 2^-900, which weights are not, the scale would overflow
    exponent = max(math.frexp(largest)[1], -900)
    scale = math.ldexp(1.0, EXPONENT - exponent)
    for row in range(count):
        vector, lane = divmod(row, lanes)
        for c in range(width):
            values[vector, c, lane] = (rows[row, c] - means[c]) * scale
    for row in range(count, len(values) * lanes):
        vector, lane = divmod(row, lanes)
        values[vector, :, lane] = 0
    return math.ldexp(1.0, exponent - EXPONENT)


@_vectors
def _add_two_rows(typing: Any, row: Any, other: Any, vector: Any, unit: Any, sums: Any) -> Any:
    """Add the sums of absolute and of squared differences between each of two rows and a vector of rows.

    ``row`` and ``other`` are (w,) of ``Packed.values``, some columns of a row; ``vector`` has the same columns of
    ``lanes`` rows, (w, lanes), and ``unit`` is the columns' unit. ``sums`` are (2, 2, lanes) float64: for each row the
    absolute differences and the squares.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, size = context.get_value_type(vector.dtype), vector.dtype.bitwidth // 8
        lanes = VECTOR // size
        numbers, doubles = ir.VectorType(number, lanes), ir.VectorType(ir.DoubleType(), lanes)

        def called(name: str, *operands: Any) -> Any:
            kind = ir.FunctionType(numbers, [numbers] * len(operands))
            # LLVM's intrinsics for vectors carry the type in their names
            name = f"llvm.{name}.v{lanes}f{8 * size}"
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), operands)

        def spread(value: Any, kind: ir.VectorType) -> Any:
            undefined = ir.Constant(kind, ir.Undefined)
            first = builder.insert_element(undefined, value, _INT(0))
            return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_INT, lanes), [0] * lanes))

        def vector_at(data: Any, place: Any, kind: ir.VectorType) -> Any:
            return builder.bitcast(builder.gep(data, [place]), kind.as_pointer())

        left, right, others, scale, into = (
            argument if kind is types.float64 else context.make_array(kind)(context, builder, argument)
            for kind, argument in zip(signature.args, arguments, strict=True)
        )
        totals = [cgutils.alloca_once(builder, numbers) for _ in range(4)]  # LLVM makes them registers
        for total in totals:
            builder.store(ir.Constant(numbers, [0.0] * lanes), total)
        with cgutils.for_range(builder, builder.extract_value(others.shape, 0)) as loop:
            place = builder.mul(loop.index, _LONG(lanes))
            later = builder.load(vector_at(others.data, place, numbers), align=size)
            for one, absolute, squares in ((left, *totals[:2]), (right, *totals[2:])):
                difference = builder.fsub(spread(builder.load(builder.gep(one.data, [place])), numbers), later)
                # two rows share the load of the vector
                builder.store(builder.fadd(builder.load(absolute), called("fabs", difference)), absolute)
                builder.store(called("fmuladd", difference, difference, builder.load(squares)), squares)
        scales = spread(scale, doubles), spread(builder.fmul(scale, scale), doubles)
        for k, total in enumerate(totals):
            pointer = vector_at(into.data, _LONG(k * lanes), doubles)
            value = builder.load(total) if size == 8 else builder.fpext(builder.load(total), doubles)
            value = builder.fadd(builder.load(pointer, align=8), builder.fmul(value, scales[k % 2]))
            builder.store(value, pointer, align=8)
        return context.get_dummy_value()

    return types.void(row, other, vector, types.float64, sums), build


@_cached
def add_tile(
    packed: Packed, start: int, stop: int, first: int, last: int, sums: Any, manhattan: Any, squares: Any
) -> None:
    """Add the distances between the rows ``start .. stop - 1`` and later ones, in vectors ``first .. last - 1``.

    ``sums`` are (last - first or more, stop - start + 1 or more, 2, lanes) float64, overwritten; ``manhattan`` and
    ``squares`` are the panel's sums for these rows.
    """
    lanes = packed.values.shape[3]
    sums[:] = 0
    for run in range(len(packed.units)):
        values, width = packed.values[run], min(RUN, packed.width - run * RUN)
        for row in range(start, stop, 2):
            left = values[row // lanes, :width, row % lanes]
            right = values[(row + 1) // lanes, :width, (row + 1) % lanes]
            # vectors before have no row after this one
            for vector in range(max(first, (row + 1) // lanes), last):
                place = row - start
                into = sums[vector - first, place : place + 2]
                _add_two_rows(left, right, values[vector, :width], packed.units[run], into)
    for vector in range(first, last):
        for row in range(stop - start):
            for lane in range(max(0, start - vector * lanes), min(lanes, packed.rows - vector * lanes)):
                column = vector * lanes + lane - start
                manhattan[row, column] += sums[vector - first, row, 0, lane]
                squares[row, column] += sums[vector - first, row, 1, lane]
