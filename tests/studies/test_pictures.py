"""The pictures: which are made, that equal input gives equal bytes, and that they show what they should."""

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from matplotlib.transforms import Affine2D, Bbox

import ckptzoo
from ckptzoo.errors import MissingExtraError
from ckptzoo.studies.overview import overview
from ckptzoo.studies.plots import overview as pictures
from ckptzoo.studies.shared import plots
from tests.support.effort import examples
from tests.support.pictures import share

Make = Callable[..., tuple[ckptzoo.Zoo, dict[str, np.ndarray]]]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_equal_overviews_give_equal_bytes_whatever_the_settings(perceptrons: Make, tmp_path: Path) -> None:
    zoo, _ = perceptrons(rows=lambda at: {"diverged": at % 50 == 0})
    one = overview(zoo).plot(tmp_path / "one")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "savefig.dpi": 20}):
        two = overview(zoo).plot(tmp_path / "two")
        assert matplotlib.rcParams["font.size"] == 30
    assert [path.name for path in one] == ["accuracy.png", "marginals.png", "scatter.png", "summary.json"]
    for first, second in zip(one, two, strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert {path.name for path in (tmp_path / "one").iterdir()} == {path.name for path in one}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_both_variants_and_the_diverged_are_seen(perceptrons: Make, tmp_path: Path) -> None:
    zoo, _ = perceptrons(rows=lambda at: {"diverged": at % 10 == 0})
    for path in overview(zoo).plot(tmp_path)[:3]:
        image = imread(path)
        assert image.shape[1] == 1440 and 400 < image.shape[0] < 1000
        assert share(path, plots.RAW_COLOUR) > 1e-3, path
        assert share(path, plots.DERIVED_COLOUR) > 1e-3, path
    raw = overview(zoo.where("diverged == False"), "raw").plot(tmp_path)
    assert all(share(path, plots.DERIVED_COLOUR) == 0 for path in raw[:3])


def test_a_picture_with_nothing_to_show_is_left_out(perceptrons: Make, tmp_path: Path) -> None:
    zoo, _ = perceptrons(5, rows=lambda _: {"test_accuracy": None}, gauge=False)
    assert [path.name for path in overview(zoo).plot(tmp_path)] == ["marginals.png", "scatter.png", "summary.json"]
    assert json.loads((tmp_path / "summary.json").read_bytes())["test_accuracy"] is None


@pytest.mark.parametrize("name", ["$x^2_", "網", "a" * 80])
@pytest.mark.sampled(2)
def test_any_name_of_a_zoo_can_be_drawn(name: str) -> None:
    assert plots.png(pictures.accuracy(name, np.array([0.5, 0.6]), np.array([])))


def test_a_single_network_can_be_drawn(perceptrons: Make, tmp_path: Path) -> None:
    assert len(overview(perceptrons(1, gauge=False)[0]).plot(tmp_path / "pictures")) == 4


def test_odd_accuracies_can_be_drawn() -> None:
    for values in ([0.5], [0.5, 0.5], [0.0, 1.0], [0.1] * 50 + [0.9], np.linspace(0.1, 0.9, 1000)):
        figure = pictures.accuracy("a", np.array(values), np.array([np.nan, 0.1]))
        heights = [patch.get_height() for patch in figure.axes[0].containers[0]]  # type: ignore[attr-defined]
        assert sum(heights) == len(values)
        assert plots.png(figure)


def test_bins_hold_equally_many_possible_accuracies() -> None:
    figure = pictures.accuracy("a", np.arange(100, 200) / 360, np.array([]))
    widths = {round(patch.get_width() * 3.6, 6) for patch in figure.axes[0].containers[0]}  # type: ignore[attr-defined]
    assert len(widths) == 1 and float(widths.pop()).is_integer()


def test_contours_hold_the_mass_they_say() -> None:
    points = np.random.default_rng(0).normal(size=(20_000, 2))
    heights = pictures._smoothed(points, -6.0, 6.0)
    assert heights is not None
    centres = -6 + (np.arange(len(heights)) + 0.5) * 12 / len(heights)
    levels = pictures._levels(heights)
    for mass, level in zip(sorted(pictures.MASSES, reverse=True), levels, strict=True):
        inside = heights[heights >= level].sum() / heights.sum()
        assert inside == pytest.approx(mass, abs=0.01)
        radius = np.abs(centres[(heights >= level).any(axis=1)]).max()
        assert radius == pytest.approx(np.sqrt(-2 * np.log(1 - mass)), rel=0.1)


def texts(figure: Figure, labels: list[Text]) -> list[Bbox]:
    """Where the texts of a figure are, in points, when it is drawn."""
    plots.png(figure)
    renderer = FigureCanvasAgg(figure).get_renderer()
    scale = 72 / figure.dpi
    shown = [label for label in labels if label.get_text() and label.get_visible()]
    return [label.get_window_extent(renderer).transformed(Affine2D().scale(scale)) for label in shown]


@pytest.mark.parametrize("which", ["x", "y"])
@pytest.mark.sampled(2)
def test_labels_of_logarithmic_axes_leave_a_gap(which: Literal["x", "y"]) -> None:
    rng = np.random.default_rng(1)
    cases = [(8.5, 200.0, 4.0), (0.9, 1.1, 2.0), (1.0, 1.0001, 3.0), (1e-300, 1e300, 2.0), (3.0, 3e5, 1.6)]
    for _ in range(examples(60, 4)):
        low = float(10 ** rng.uniform(-8, 8))
        cases.append((low, low * float(10**10 ** rng.uniform(-2, 1.5)), float(rng.uniform(1.5, 9))))
    for low, high, inches in cases:
        figure = Figure(figsize=(inches, inches), layout="constrained")
        axes = figure.add_subplot()
        plots.log_axis(axes, which)
        (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
        axis = axes.xaxis if which == "x" else axes.yaxis
        boxes = texts(figure, axis.get_ticklabels())
        sides = sorted((box.x0, box.x1) if which == "x" else (box.y0, box.y1) for box in boxes)
        assert all(after[0] - before[1] > 3 for before, after in itertools.pairwise(sides)), (low, high, inches)
        # twice a number and more has a tick in it
        assert len(boxes) > 0 or high < 2 * low, (low, high, inches)


@pytest.mark.parametrize("columns", [2, 4])
@pytest.mark.sampled(2)
def test_names_of_panels_stay_above_them(columns: int) -> None:
    for name in (
        "fc.weight",
        "layer2.0.downsample.0.weight",
        "W" * 300,
        "encoder.layers.11.self_attention.in_proj_weight",
    ):
        figure = Figure(figsize=(plots.WIDTH, 3), layout="constrained")
        panels = [figure.add_subplot(1, columns, place + 1) for place in range(columns)]
        for axes in panels:
            plots.panel_title(axes, name, columns)
        boxes = texts(figure, [axes.title for axes in panels])
        assert all(after.x0 - before.x1 > 0 for before, after in itertools.pairwise(boxes)), name
        assert boxes[-1].x1 <= 72 * plots.WIDTH + 1 and min(box.height for box in boxes) >= 7, name


@pytest.mark.parametrize("words", [1, 8, 20, 60])
def test_titles_stay_within_their_picture(words: int) -> None:
    @plots.styled
    def drawn() -> Figure:
        figure = Figure(figsize=(plots.WIDTH, 4), layout="constrained")
        axes = figure.add_subplot()
        plots.head(figure, " ".join(["cifar100-resnet18-w8,", *["orders"] * words]), axes.plot([0, 1], label="a"))
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        (legend,) = figure.legends
        box = legend.get_title().get_window_extent(canvas.get_renderer())
        assert box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height
        # below it there is room for the picture
        assert axes.get_window_extent().y1 < box.y0 + 1
        return figure

    lines = drawn().legends[0].get_title().get_text().count("\n")
    assert (lines == 0) == (words <= 8)


def test_without_matplotlib_the_extra_is_named(
    perceptrons: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = overview(perceptrons(3, gauge=False)[0])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "ckptzoo.studies.plots.overview")
    monkeypatch.delattr("ckptzoo.studies.plots.overview")
    with pytest.raises(MissingExtraError, match=r"ckptzoo\[plot\]"):
        found.plot(tmp_path / "none")
    assert not (tmp_path / "none").exists()
