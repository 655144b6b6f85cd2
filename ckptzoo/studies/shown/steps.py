"""An axis of optimiser steps."""

from collections.abc import Sequence

from matplotlib.axes import Axes

_FEW = 5


def step_axis(axes: Axes, steps: Sequence[int]) -> None:
    """A logarithmic axis, linear from 0 to the first step after it; one step after 0 at least."""
    shown = sorted(set(steps))
    least = next(step for step in shown if step > 0)
    decades = [10**power for power in range(12) if least <= 10**power <= shown[-1]]
    ticks = shown if len(shown) <= _FEW else [*([0] if shown[0] == 0 else []), *decades]
    axes.set_xscale("symlog", linthresh=least, linscale=0.6)
    axes.set_xticks(ticks, [f"{tick // 1000}k" if tick and tick % 1000 == 0 else str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(-0.15 * least if shown[0] == 0 else 0.8 * least, 1.4 * shown[-1])
    axes.set_xlabel("step")
