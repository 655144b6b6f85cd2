"""Histograms of any number of values of any range, filled in one pass in bounded memory.

The bins are the floats' own leading bits: sign, exponent and nine bits of the significand, so a bin is between
1/512 and 1/1024 of its values wide wherever they lie, and no range need be known beforehand.

How the elements of each weight tensor are distributed over all checkpoints of a zoo.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.loader.zoo import Zoo
from ckptzoo.studies.shared.weights import batches
from ckptzoo.text import Progress

_BITS = 18
_SHIFT = 32 - _BITS
_HALF = 2 ** (_BITS - 1)
_LAST = 0x7F800000 >> _SHIFT
"""The bin of infinities; what lies there or above is not counted."""
_CHUNK = 2**20


class ValueHistogram:
    """Counts of float values, with their mean and standard deviation.

    Notes
    -----
    2 MB each, whatever is added; about 10 ns a value. Values are counted as float32. Known answers:
    ``tests/studies/test_density.py``.
    """

    def __init__(self) -> None:
        self._bins = np.zeros(2**_BITS, np.int64)
        self._sums = np.zeros(2, np.float64)
        self._least, self._most = np.inf, -np.inf

    def add(self, values: NDArray[np.generic]) -> None:
        """Count all elements of an array of floats."""
        flat = values.reshape(-1)
        for start in range(0, len(flat), _CHUNK):
            with np.errstate(over="ignore"):
                piece = np.ascontiguousarray(flat[start : start + _CHUNK], np.float32)
            self._bins += np.bincount(piece.view(np.uint32) >> _SHIFT, minlength=2**_BITS)
            finite = piece[np.isfinite(piece)].astype(np.float64)
            self._least = min(self._least, float(finite.min(initial=np.inf)))
            self._most = max(self._most, float(finite.max(initial=-np.inf)))
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
        return float(np.sqrt(max(0.0, self._sums[1] / self.total - self.mean**2))) if self.total else float("nan")

    def quantile(self, q: float) -> float:
        """The value below which a fraction ``q`` lies, to 1/512 of itself."""
        below, edges = self._cumulative(), _edges()
        at = int(np.searchsorted(below, max(q * below[-1], 0.5)))
        share = float(np.clip((q * below[-1] - below[at - 1]) / (below[at] - below[at - 1]), 0, 1))
        found = edges[at - 1] + share * (edges[at] - edges[at - 1])
        return float(np.clip(found, self._least, self._most))

    def density(self, edges: NDArray[np.float64]) -> NDArray[np.float64]:
        """(B,) heights over bins with these (B + 1,) edges; values outside count towards the total of one."""
        share = np.interp(edges, _edges(), self._cumulative()) / max(1, self.total)
        return np.diff(share) / np.diff(edges)

    def _ascending(self) -> NDArray[np.int64]:
        """Counts of the finite bins, from the most negative to the most positive."""
        positive, negative = self._bins[:_LAST], self._bins[_HALF : _HALF + _LAST]
        return np.concatenate([negative[::-1], positive])

    def _cumulative(self) -> NDArray[np.float64]:
        return np.concatenate([[0], np.cumsum(self._ascending())]).astype(np.float64)


def _edges() -> NDArray[np.float64]:
    """The bins' edges, ascending."""
    lower = (np.arange(_LAST, dtype=np.uint32) << _SHIFT).view(np.float32).astype(np.float64)
    upper = np.append(lower, np.finfo(np.float32).max.astype(np.float64))
    return np.concatenate([-upper[:0:-1], upper])


BINS = 100
"""At most; twice the square root of the number of values where that is less, and 10 at least."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """All elements of one tensor over all checkpoints, in one or two variants.

    Parameters
    ----------
    edges : (B + 1,) of the bins, the same for every variant; they leave out the outermost 0.1 % at either end.
    heights : variant to (B,) densities.
    mean, sd : variant to figures of all the elements.
    """

    tensor: str
    shape: tuple[int, ...]
    edges: NDArray[np.float64]
    heights: dict[str, NDArray[np.float64]]
    mean: dict[str, float]
    sd: dict[str, float]


def histograms(
    zoo: Zoo, tensors: Sequence[str], variants: Sequence[str], progress: Progress | None
) -> tuple[Histogram, ...]:
    """The histogram of each of these tensors.

    Parameters
    ----------
    tensors : their names, such as ``weight_names`` gives.
    variants : the gauges that are compared; they share the bins.
    progress : called as weights are read.

    Notes
    -----
    One pass over the tensors in every variant, in bounded memory.
    """
    total = sum(zoo[name, variant].nbytes for name in tensors for variant in variants)
    done, made = 0, list[Histogram]()
    for name in tensors:
        counts = {variant: ValueHistogram() for variant in variants}
        for variant in variants:
            for array in batches(zoo, name, variant):
                counts[variant].add(array)
                done += array.nbytes
                if progress is not None:
                    progress(done, total)
        low = min(found.quantile(0.001) for found in counts.values())
        high = max(found.quantile(0.999) for found in counts.values())
        margin = 0.02 * (high - low) or max(1e-6, 0.1 * abs(high))
        values = min(found.total for found in counts.values())
        edges = np.linspace(low - margin, high + margin, int(np.clip(2 * values**0.5, 10, BINS)) + 1)
        made.append(
            Histogram(
                name,
                zoo.arch[name].shape,
                edges,
                {variant: found.density(edges) for variant, found in counts.items()},
                {variant: found.mean for variant, found in counts.items()},
                {variant: found.sd for variant, found in counts.items()},
            )
        )
    return tuple(made)
