"""Histograms in plain text."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

MOST_ROWS, LEAST_ROWS = 20, 5
WIDTH = 32
_EIGHTHS = " ▏▎▍▌▋▊▉"
_STEPS = (1, 2, 5)


@dataclass(frozen=True)
class Scale:
    """Equal bins whose edges are multiples of a round step, a number times 10 to a power.

    Parameters
    ----------
    step, power : the width of a bin is ``step * 10**power``.
    first, count : the first bin starts at ``first`` steps; so many follow one another.
    """

    step: int
    power: int
    first: int
    count: int

    def edge(self, number: int) -> float:
        """The lower edge of a bin, correctly rounded."""
        return _scaled((self.first + number) * self.step, self.power)

    @property
    def digits(self) -> int:
        """Decimals that show every edge in full."""
        return max(0, -self.power)

    @classmethod
    def of(cls, values: ArrayLike) -> "Scale":
        """Bins for figures: the more there are, the finer, and without a few that lie far out."""
        ordered = np.sort(np.asarray(values, np.float64))
        rows = next((rows for rows in range(LEAST_ROWS, MOST_ROWS) if rows**3 > 16 * len(ordered)), MOST_ROWS)
        return cls.over(*_middle(ordered), rows)

    @classmethod
    def over(cls, least: float, most: float, rows: int) -> "Scale":
        """The finest scale that covers a range with at most so many bins, two or more."""
        span = max(most - least, 1e-9 * max(abs(least), abs(most)), 1e-12)
        power = math.floor(math.log10(span / rows)) - 1
        while True:
            for step in _STEPS:
                unit = _scaled(step, power)
                first, last = math.floor(least / unit), math.ceil(most / unit)
                first -= _scaled(first * step, power) > least
                last += _scaled(last * step, power) < most
                count = max(last - first, 1)
                if count <= rows:
                    return cls(step, power, first, count)
            power += 1


def histogram(values: ArrayLike, scale: Scale | None = None, *, unit: str = "") -> str:
    """Lines of ``from - to  count  bar``, one for each bin.

    Parameters
    ----------
    values : (N,) finite figures, at least one.
    scale : the bins; by default those of these figures.
    unit : written behind the edges.

    Notes
    -----
    Where a few figures lie far from the others, the bins are those of the middle 98 %; two lines more say how many lie
    beyond the bins. The text depends on the set of values alone. ``tests/hub/test_card_histogram.py`` counts again.
    """
    found = np.sort(np.asarray(values, np.float64))
    scale = scale or Scale.of(found)
    edges = np.array([scale.edge(number) for number in range(scale.count + 1)])
    low, high = int(np.searchsorted(found, edges[0])), int(np.searchsorted(found, edges[-1], side="right"))
    inside = found[low:high]
    numbers = np.clip(np.searchsorted(edges, inside, side="right") - 1, 0, scale.count - 1)
    bins = np.bincount(numbers, minlength=scale.count).tolist()
    texts = [f"{edge:.{scale.digits}f}" for edge in edges.tolist()]
    wide = max(map(len, texts))
    rows = [(f"{a:>{wide}} - {b:>{wide}}{unit}", n) for a, b, n in zip(texts, texts[1:], bins, strict=False)]
    if low:
        rows.insert(0, (f"{'below':>{wide}}   {texts[0]:>{wide}}{unit}", low))
    if high < len(found):
        rows.append((f"{'above':>{wide}}   {texts[-1]:>{wide}}{unit}", len(found) - high))
    label, most = max(len(text) for text, _ in rows), max(number for _, number in rows)
    digits = max(len(f"{number:,}") for _, number in rows)
    return "\n".join(f"{text:>{label}}  {number:>{digits},}  {_bar(number, most)}".rstrip() for text, number in rows)


def _middle(ordered: NDArray[np.float64]) -> tuple[float, float]:
    """The range that the bins cover: everything, or the middle where a few lie far out."""
    cut = len(ordered) // 100
    ends, core = ordered[[0, -1]].tolist(), ordered[[cut, len(ordered) - 1 - cut]].tolist()
    far = 0 < 4 * (core[1] - core[0]) < ends[1] - ends[0]
    return tuple(core if far else ends)


def _bar(number: int, most: int) -> str:
    """A bar of eighths; what is not nothing is seen."""
    eighths = max(number > 0, round(number * WIDTH * 8 / most))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _scaled(number: int, power: int) -> float:
    return float(number * 10**power) if power >= 0 else number / 10**-power
