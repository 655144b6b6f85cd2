"""The sums of pairs that ``ckptzoo.measure.pairwise`` needs, compiled by Numba: one pass over two rows a pair."""

from typing import Any

import numpy as np
from numba import njit

SEGMENT = 256
"""Terms that are summed in float32; sums of these are in float64."""
_SQRT_HALF = np.int32(0x3F3504F3)
"""The bits of float32's sqrt(1/2)."""
_BITS = np.int32(23)
"""Bits of a float32's significand, without the leading one."""
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True}


@njit(fastmath={"contract", "reassoc", "nsz"}, **_OPTIONS)
def segment_sum(p: Any, q: Any) -> Any:
    """The sum of m log m over m = p + q, in float32, reordered so that several terms are computed at once. ``p`` and
    ``q`` are (n,) float32, whose sums are normal positive numbers.
    """
    total = np.float32(0)
    for k in range(len(p)):  # from 0: LLVM makes vectors of it where no index can be negative
        mean = np.float32(p[k] + q[k])
        # mean = significand * 2^exponent with a significand from sqrt(1/2) to sqrt(2)
        bits = np.int32(mean.view(np.int32))
        exponent = np.int32(np.int32(bits - _SQRT_HALF) >> _BITS)
        shifted = np.int32(bits - np.int32(exponent << _BITS))
        x, e = np.float32(shifted.view(np.float32) - np.float32(1)), np.float32(exponent)
        # log(1 + x) = x - x^2 / 2 + x^3 P(x), and log 2 in two parts, of which e times the first is exact: as in logf
        # of the Cephes library (Moshier), with a relative error of 7e-8
        y = np.float32(7.0376836292e-2)
        y = y * x + np.float32(-1.1514610310e-1)
        y = y * x + np.float32(1.1676998740e-1)
        y = y * x + np.float32(-1.2420140846e-1)
        y = y * x + np.float32(1.4249322787e-1)
        y = y * x + np.float32(-1.6668057665e-1)
        y = y * x + np.float32(2.0000714765e-1)
        y = y * x + np.float32(-2.4999993993e-1)
        y = y * x + np.float32(3.3333331174e-1)
        square = x * x
        y = y * x * square + e * np.float32(-2.12194440e-4) - np.float32(0.5) * square
        total += mean * (x + y + e * np.float32(0.693359375))
    return total


@njit(**_OPTIONS)
def add_columns(halves: Any, sums: Any, start: int, stop: int) -> None:
    """Add the sums of m log m of some pairs to ``sums``, (M, M) float64: j in ``start .. stop - 1``, i up to j.

    ``halves`` are (M, w) float32, half the probabilities of each member.
    """
    width = halves.shape[1]
    for i in range(stop):
        for j in range(max(i, start), stop):
            total = 0.0
            for first in range(0, width, SEGMENT):
                last = min(first + SEGMENT, width)
                total += segment_sum(halves[i, first:last], halves[j, first:last])
            sums[i, j] += total
