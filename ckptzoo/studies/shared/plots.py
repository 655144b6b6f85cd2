"""The style of pictures: matplotlib without pyplot, and colours that colour-blind readers can distinguish."""

import io
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RAW_COLOUR, DERIVED_COLOUR, INK, MUTED = "#0072B2", "#D55E00", "#222222", "#6A6A6A"
"""Okabe and Ito's blue and vermilion, and two greys."""
WIDTH = 9.0
"""The width of every figure in inches; 1,440 pixels at the style's 160 dots an inch."""
_MAX_TICKS = 5
"""Steps up to this number have a tick each; more have one a power of ten."""
_STYLE: dict[str, Any] = {
    "figure.dpi": 160,
    "savefig.dpi": "figure",
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9A9A9A",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "text.color": INK,
    "text.parse_math": False,  # names of zoos and tensors may hold dollar signs
}


_P = ParamSpec("_P")
_R = TypeVar("_R")


def styled(draw: Callable[_P, _R]) -> Callable[_P, _R]:
    """Draw in matplotlib's defaults and this style, whatever the caller's settings, which are restored."""

    @wraps(draw)
    def drawn(*args: _P.args, **named: _P.kwargs) -> _R:
        settings: dict[Any, Any] = {**matplotlib.rcParamsDefault, **_STYLE}
        del settings["backend"]  # setting one would switch the backend of the caller's pyplot
        with matplotlib.rc_context(settings):
            return draw(*args, **named)

    return drawn


@styled
def png(figure: Figure) -> bytes:
    """The picture's bytes, the same for the same figure; letters that the font lacks become boxes."""
    data = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        # without a name of its own matplotlib would write its version and make the bytes depend on it
        figure.savefig(data, format="png", metadata={"Software": "ckptzoo"})
    return data.getvalue()


def head(figure: Figure, title: str, handles: list[Any], *, columns: int = 3) -> None:
    """The title and the key, one above the other at the left. ``columns`` are the columns of the key."""
    # "outside" needs a layout that makes room: constrained, or compressed, in every figure here
    figure.legend(
        handles=handles,
        title=title,
        title_fontsize=13,
        alignment="left",
        loc="outside upper left",
        ncols=columns,
        borderaxespad=0,
        columnspacing=1.6,
    )


def abbreviated(text: str, limit: int) -> str:
    """The text with its middle left out where it is longer than ``limit``: names often differ in their ends.

    >>> abbreviated("layer3.0.conv1.weight", 12)
    'layer…weight'
    """
    return text if len(text) <= limit else f"{text[: limit // 2 - 1]}…{text[-(limit // 2) :]}"


def step_axis(axes: Axes, steps: Sequence[int]) -> None:
    """A logarithmic axis, linear from 0 to the first step after it; one step after 0 at least."""
    shown = sorted(set(steps))
    first = next(step for step in shown if step > 0)
    decades = [10**power for power in range(12) if first <= 10**power <= shown[-1]]
    ticks = shown if len(shown) <= _MAX_TICKS else [*([0] if shown[0] == 0 else []), *decades]
    # step 0 has no logarithm
    axes.set_xscale("symlog", linthresh=first, linscale=0.6)
    axes.set_xticks(ticks, [f"{tick // 1000}k" if tick and tick % 1000 == 0 else str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(-0.15 * first if shown[0] == 0 else 0.8 * first, 1.4 * shown[-1])
    axes.set_xlabel("step")
