"""Histograms of all elements of weight tensors, over any number of checkpoints, in one pass and bounded memory.

The bins are the floats' own leading bits: sign, exponent and nine bits of the significand, so a bin is between
1/512 and 1/1024 of its values wide wherever they are, and no range need be known beforehand.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.loader.zoo import Zoo
from ckptzoo.studies.shared.selection import BATCH_BYTES
from ckptzoo.text import Progress

BINS = 100
"""The most bins of a histogram: twice the square root of the number of values where that is less, and 10 at least."""
_BITS = 18
"""Leading bits of a float32 that number its bin: 1 of sign, 8 of exponent, 9 of significand."""
_SHIFT = 32 - _BITS
_HALF = 2 ** (_BITS - 1)
"""The first bin of negative values: the sign is the highest bit."""
_LAST = 0x7F800000 >> _SHIFT
"""The bin of infinities (0x7F800000 is infinity in float32); it and those above, of NaN, are not counted."""
_CHUNK = 2**20
"""Values that are converted at a time."""


class ValueHistogram:
    """Counts of float values, with their mean and standard deviation. 2 MB each, whatever is added; about 10 ns a
    value. Values are counted as float32. Tested in ``tests/studies/test_value_histograms.py``.
    """

    def __init__(self) -> None:
        self._bins = np.zeros(2**_BITS, np.int64)
        self._sums = np.zeros(2, np.float64)
        self._least, self._most = np.inf, -np.inf

    def add(self, values: NDArray[np.generic]) -> None:
        flat = values.reshape(-1)
        for start in range(0, len(flat), _CHUNK):
            with np.errstate(over="ignore"):  # float64 beyond the range of float32 becomes infinite
                chunk = np.ascontiguousarray(flat[start : start + _CHUNK], np.float32)
            self._bins += np.bincount(chunk.view(np.uint32) >> _SHIFT, minlength=2**_BITS)
            finite = chunk[np.isfinite(chunk)].astype(np.float64)
            self._least = min(self._least, float(finite.min(initial=np.inf)))
            self._most = max(self._most, float(finite.max(initial=-np.inf)))
            # in float64: float32 would lose the small ones among millions
            self._sums += finite.sum(), np.square(finite, out=finite).sum()

    @property
    def total(self) -> int:
        """Finite values that were counted."""
        return int(self._ascending().sum())

    @property
    def mean(self) -> float:
        """Mean of the values; NaN where there are none."""
        return float(self._sums[0] / self.total) if self.total else float("nan")

    @property
    def sd(self) -> float:
        """Standard deviation about the mean, divisor n; NaN where there are no values."""
        # the variance of equal values can round to below 0
        return float(np.sqrt(max(0.0, self._sums[1] / self.total - self.mean**2))) if self.total else float("nan")

    def quantile(self, q: float) -> float:
        """The value that a fraction ``q`` of all is below, to 1/512 of itself."""
        below, edges = self._cumulative(), _edges()
        target = q * below[-1]
        # 0.5: below the first value all counts are 0, and a target of 0 would end before the first bin
        upper = int(np.searchsorted(below, max(target, 0.5)))
        share = float(np.clip((target - below[upper - 1]) / (below[upper] - below[upper - 1]), 0, 1))
        value = edges[upper - 1] + share * (edges[upper] - edges[upper - 1])
        return float(np.clip(value, self._least, self._most))

    def density(self, edges: NDArray[np.float64]) -> NDArray[np.float64]:
        """(B,) heights over bins with these (B + 1,) edges; values outside count towards the total of one."""
        share = np.interp(edges, _edges(), self._cumulative()) / max(1, self.total)
        return np.diff(share) / np.diff(edges)

    def _ascending(self) -> NDArray[np.int64]:
        """Counts of the finite bins, from the most negative to the most positive."""
        positive, negative = self._bins[:_LAST], self._bins[_HALF : _HALF + _LAST]
        # those of negative values ascend with their size, so away from 0
        return np.concatenate([negative[::-1], positive])

    def _cumulative(self) -> NDArray[np.float64]:
        return np.concatenate([[0], np.cumsum(self._ascending())]).astype(np.float64)


def _edges() -> NDArray[np.float64]:
    """The bins' edges, ascending."""
    # bit patterns of positive float32 ascend with their values
    lower = (np.arange(_LAST, dtype=np.uint32) << _SHIFT).view(np.float32).astype(np.float64)
    # the last finite bin ends at the largest float32, not at infinity
    upper = np.append(lower, np.finfo(np.float32).max.astype(np.float64))
    # both signs share the edge 0
    return np.concatenate([-upper[:0:-1], upper])


@dataclass(frozen=True, eq=False)
class TensorHistogram:
    """All elements of one tensor over all checkpoints, in one or two variants.

    ``edges`` are (B + 1,) of the bins, the same for every variant; they leave out the outermost 0.1 % at either end;
    ``heights`` maps variants to (B,) densities.
    """

    tensor: str
    shape: tuple[int, ...]
    edges: NDArray[np.float64]
    heights: dict[str, NDArray[np.float64]]
    mean: dict[str, float]
    sd: dict[str, float]


def histograms(
    zoo: Zoo, tensors: Sequence[str], variants: Sequence[str], progress: Progress | None
) -> tuple[TensorHistogram, ...]:
    """The histogram of each of these tensors.

    One pass over the tensors in every variant, in bounded memory. The variants are the gauges that are compared, which
    share the bins; ``tensors`` are names such as ``weight_names`` gives.
    """
    total = sum(zoo[name, variant].nbytes for name in tensors for variant in variants)
    done, results = 0, list[TensorHistogram]()
    for name in tensors:
        counts = {variant: ValueHistogram() for variant in variants}
        for variant in variants:
            for batch in zoo.batches(name, variant=variant, max_bytes=BATCH_BYTES):
                counts[variant].add(batch[name])
                done += batch[name].nbytes
                if progress is not None:
                    progress(done, total)
        low = min(values.quantile(0.001) for values in counts.values())
        high = max(values.quantile(0.999) for values in counts.values())
        # values that are all equal, such as gains of 1, have no range
        margin = 0.02 * (high - low) or max(1e-6, 0.1 * abs(high))
        fewest = min(values.total for values in counts.values())
        edges = np.linspace(low - margin, high + margin, int(np.clip(2 * fewest**0.5, 10, BINS)) + 1)
        results.append(
            TensorHistogram(
                name,
                zoo.arch[name].shape,
                edges,
                {variant: values.density(edges) for variant, values in counts.items()},
                {variant: values.mean for variant, values in counts.items()},
                {variant: values.sd for variant, values in counts.items()},
            )
        )
    return tuple(results)
