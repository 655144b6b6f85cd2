"""The style of pictures: matplotlib without pyplot, and colours that colour-blind readers can distinguish."""

import io
import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, Literal, ParamSpec, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, Locator, NullLocator
from PIL import Image

RAW_COLOUR, DERIVED_COLOUR, INK, MUTED = "#0072B2", "#D55E00", "#222222", "#6A6A6A"
"""Okabe and Ito's blue and vermilion, and two greys."""
WIDTH = 9.0
"""The width of every figure in inches; 1,440 pixels at the style's 160 dots an inch."""
_MAX_TICKS = 5
"""Steps up to this number have a tick each; more have one a power of ten."""
_FONT, _SIZE, _SMALL = "DejaVu Sans", 11, 8
"""The font, its usual size in points, and the least that is still read in a picture of this width."""
_TITLE_SIZE = 13
"""The size of the title of a picture, in points."""
_MARGINS = 12
"""Points to the left and the right of a title, together."""
_STYLE: dict[str, Any] = {
    "figure.dpi": 160,
    "savefig.dpi": "figure",
    "font.family": _FONT,
    "font.size": _SIZE,
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


def fewer_colours(png: bytes) -> bytes:
    """The picture in 256 colours, which the eye does not tell from all, in less than half the bytes."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    data = io.BytesIO()
    few = image.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
    few.save(data, "PNG", optimize=True)
    return data.getvalue()


def head(figure: Figure, title: str, handles: list[Any], *, columns: int = 3) -> None:
    """The title, in as many lines as it takes, and the key below it. ``columns`` are the columns of the key."""
    # "outside" needs a layout that makes room: constrained, or compressed, in every figure here
    figure.legend(
        handles=handles,
        title=_broken(title, (72 * figure.get_figwidth() - _MARGINS) * _SIZE / _TITLE_SIZE),
        title_fontsize=_TITLE_SIZE,
        alignment="left",
        loc="outside upper left",
        ncols=columns,
        borderaxespad=0,
        columnspacing=1.6,
    )


def _broken(text: str, room: float) -> str:
    """The text in lines no wider than ``room``, points at the usual size, broken between words."""
    first, *words = text.split(" ")
    lines = [first]
    for word in words:
        if _width(longer := f"{lines[-1]} {word}") <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return "\n".join(lines)


def abbreviated(text: str, limit: int) -> str:
    """The text with its middle left out where it is longer than ``limit``: names often differ in their ends.

    >>> abbreviated("layer3.0.conv1.weight", 12)
    'layer…weight'
    """
    return text if len(text) <= limit else f"{text[: limit // 2 - 1]}…{text[-(limit // 2) :]}"


def panel_title(axes: Axes, text: str, columns: int) -> None:
    """Write the name of one of several panels in a row: a long one is smaller, and at last shortened."""
    # what the labels of a vertical axis and the gap between panels take
    room = 72 * WIDTH / columns - 30
    limit = min(len(text), 80)
    while (size := _SIZE * min(1.0, room / _width(abbreviated(text, limit)))) < _SMALL:
        limit = min(limit - 1, int(limit * size / _SMALL))
    axes.set_title(abbreviated(text, limit), fontsize=size, pad=4)


@cache
def _width(text: str) -> float:
    """The width of a text of the usual size, in points."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        return float(TextPath((0, 0), text or " ", size=_SIZE, prop=FontProperties(_FONT)).get_extents().width) or 1.0


def log_axis(axes: Axes, which: Literal["x", "y"]) -> None:
    """A logarithmic axis with as many ticks as have room for their labels, and no others."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(_LogTicks())
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= value < 10**6 else f"{value:g}"


class _LogTicks(Locator):
    """The most of 1, 2, 5 in each power of ten and its like whose labels leave a gap to one another.

    matplotlib's own logarithmic ticks label either the powers of ten, of which narrow ranges have none, or every digit
    before them, which meet.
    """

    _DIGITS = ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
    _EVERY = (2, 3, 5, 10, 30, 100, 300)
    """Powers of ten from one tick to the next, where one each is too many."""

    def __call__(self) -> list[float]:
        axis: Any = self.axis
        return self.tick_values(*axis.get_view_interval())

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        low, high = sorted((vmin, vmax))
        if not 0 < low < high:
            return []
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        # 1e-9: an end of the axis that is a tick up to rounding
        inside = low * (1 - 1e-9), high * (1 + 1e-9)
        choices = [[digit * 10.0**power for power in powers for digit in digits] for digits in self._DIGITS]
        choices += [[10.0**power for power in powers if power % every == 0] for every in self._EVERY]
        shown: list[float] = []
        for choice in choices:
            shown = [value for value in choice if inside[0] <= value <= inside[1]] or shown
            if self._fit(shown, low, high):
                break
        return shown

    def _fit(self, ticks: Sequence[float], low: float, high: float) -> bool:
        """Whether the labels of neighbouring ticks leave a gap."""
        axis: Any = self.axis
        axes, upright = axis.axes, axis.axis_name == "y"
        window = axes.get_window_extent()
        length = (window.height if upright else window.width) * 72 / axes.get_figure(root=True).dpi
        # labels are a digit wide at least
        if (len(ticks) - 1) * 1.5 * _SIZE > length:
            return False
        start, span = math.log(low), math.log(high) - math.log(low)
        places = [length * (math.log(tick) - start) / span for tick in ticks]
        sizes = [_SIZE if upright else _width(_number(tick)) for tick in ticks]
        return all(
            after - before >= (first + second) / 2 + _SIZE
            for before, after, first, second in zip(places, places[1:], sizes, sizes[1:], strict=False)
        )


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
