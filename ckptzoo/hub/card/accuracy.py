"""How good the checkpoints are, measured and claimed apart."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.hub.card.figures import figure, mean_sd, sound
from ckptzoo.hub.card.histogram import Scale, histogram
from ckptzoo.hub.card.markdown import fenced
from ckptzoo.loader.zoo import Zoo
from ckptzoo.words import counted

MOST = 1e9
"""Figures beyond this are not shown; a loss of such a size says only that something went wrong."""


@dataclass(frozen=True)
class Quality:
    """Two columns that say the same thing, once measured and once claimed, and how to speak of it.

    Parameters
    ----------
    times, unit : figures are shown multiplied by this, with this behind them.
    """

    measured: str
    claimed: str
    name: str
    times: int = 1
    unit: str = ""

    def value(self, number: float) -> str:
        """One figure in words."""
        return f"{self.times * number:.2f}{self.unit}" if self.unit else figure(float(number))


QUALITIES = (
    Quality("test_accuracy", "claimed_test_accuracy", "test accuracy", 100, " %"),
    Quality("test_loss", "claimed_test_loss", "test loss"),
)
"""What a card shows a histogram of: the first that is known of any checkpoint."""


def quality_of(rows: pa.Table) -> Quality | None:
    """What is known of these checkpoints, the accuracy where it is."""
    for quality in QUALITIES:
        if any(rows[name].null_count < len(rows) for name in (quality.measured, quality.claimed)):
            return quality
    return None


def mean_of(zoo: Zoo) -> tuple[str, str] | None:
    """Name and mean of what was measured at each member's last step, for the top of the card."""
    rows = zoo.last_steps().metadata
    quality = quality_of(rows)
    if quality is None:
        return None
    found = _figures(rows, quality.measured)[sound(rows)]
    found = found[~np.isnan(found)]
    return (quality.name, f"{quality.value(mean_sd(found)[0])} on average") if len(found) else None


def accuracy(zoo: Zoo) -> str:
    """Spread and histogram of each member's last step; empty where nothing is known."""
    rows = zoo.last_steps().metadata
    quality = quality_of(rows)
    if quality is None:
        return ""
    good = sound(rows)
    measured, claimed = (_figures(rows, name) for name in (quality.measured, quality.claimed))
    known = np.concatenate([values[good & ~np.isnan(values)] for values in (measured, claimed)])
    scale, text = Scale.of(known * quality.times) if len(known) else None, list[str]()
    for values, source in ((measured, "Measured"), (claimed, "Claimed by contributors, not measured")):
        found = values[good & ~np.isnan(values)]
        if len(found):
            text += [
                f"**{source}** for {_spread(found, quality)}",
                fenced(histogram(found * quality.times, scale, unit=quality.unit)),
            ]
    both = good & ~np.isnan(measured) & ~np.isnan(claimed)
    if both.any():
        gap = measured[both] - claimed[both]
        ends = " to ".join(f"{value:+.4f}" for value in (float(gap.min()), float(gap.max())))
        text.append(f"Measured less claimed, where both are known ({int(both.sum()):,}): {ends}.")
    notes = [f"Each member's last step ({counted(len(rows), 'checkpoint')})."] if len(rows) < len(zoo) else []
    if not good.all():
        notes.append(f"{int((~good).sum()):,} that diverged or are not finite are left out.")
    unknown = int((good & np.isnan(measured) & np.isnan(claimed)).sum())
    if unknown:
        notes.append(f"Of {unknown:,} nothing is known.")
    return "\n\n".join([*text, *([" ".join(notes)] if notes else [])])


def _figures(rows: pa.Table, name: str) -> NDArray[np.float64]:
    """(N,) a column, NaN where nothing is known or no sense can be made of it."""
    found = rows[name].fill_null(float("nan")).to_numpy().astype(np.float64)
    return np.where(np.abs(found) <= MOST, found, np.nan)


def _spread(found: NDArray[np.float64], quality: Quality) -> str:
    mean, sd = mean_sd(found)
    number = counted(len(found), "checkpoint")
    if len(found) == 1:
        return f"{number}: {quality.value(mean)}."
    ends = f"{quality.value(float(found.min()))} to {quality.value(float(found.max()))}"
    return f"{number}: {quality.name} {quality.value(mean)} on average, standard deviation {quality.value(sd)}, {ends}."
