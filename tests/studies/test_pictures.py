"""The pictures: which are made, that equal input gives equal bytes, and that they show what they should."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

import ckptzoo
from ckptzoo.errors import MissingExtraError
from ckptzoo.studies.overview import overview
from ckptzoo.studies.plots import overview as pictures
from ckptzoo.studies.shared import plots
from tests.support.pictures import share

Make = Callable[..., tuple[ckptzoo.Zoo, dict[str, np.ndarray]]]


@pytest.mark.slow
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
