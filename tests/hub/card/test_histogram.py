"""Histograms in plain text count every figure once, in bins with round edges."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.hub.card.contents import BAR_WIDTH, MAX_BINS, RoundBins, histogram

FIGURES = st.lists(st.floats(-1e9, 1e9) | st.floats(0, 1), min_size=1, max_size=300)
LINE = re.compile(r"(.+?)  +([\d,]+)(?:  ([█▏▎▍▌▋▊▉]+))?")


def lines(text: str) -> list[tuple[str, int, str]]:
    """Label, count and bar of every line."""
    found = [LINE.fullmatch(line) for line in text.splitlines()]
    assert all(found), text
    return [(one[1].strip(), int(one[2].replace(",", "")), one[3] or "") for one in found if one is not None]


@settings(deadline=None)
@given(FIGURES)
def test_every_figure_is_counted_once_and_in_its_bin(values: list[float]) -> None:
    text = histogram(values)
    assert text == histogram(values[::-1])
    found = lines(text)
    assert sum(number for _, number, _ in found) == len(values) and len(found) <= MAX_BINS + 2
    for label, number, bar in found:
        assert bool(bar) == bool(number) and len(bar) <= BAR_WIDTH
        if " - " in label and (ends := re.findall(r"-?[\d.]+", label)):
            low, high = map(float, ends)
            inside = sum(low <= value <= high for value in values)
            assert number <= inside
    assert max((number, len(bar)) for _, number, bar in found)[1] == BAR_WIDTH


@settings(deadline=None)
@given(st.floats(-1e9, 1e9), st.floats(0, 1e9), st.integers(2, 30))
def test_a_scale_covers_its_range_with_round_steps(least: float, span: float, rows: int) -> None:
    scale = RoundBins.over(least, least + span, rows)
    assert scale.edge(0) <= least and scale.edge(scale.count) >= least + span
    assert 1 <= scale.count <= rows and scale.step in (1, 2, 5)


def test_a_known_histogram() -> None:
    values = [0.831, 0.85, 0.85, 0.872, 0.89, 0.9]
    assert histogram([100 * value for value in values], unit=" %") == (
        "82 - 84 %  1  ████████████████\n"
        "84 - 86 %  2  ████████████████████████████████\n"
        "86 - 88 %  1  ████████████████\n"
        "88 - 90 %  2  ████████████████████████████████"
    )


def test_a_few_far_out_do_not_flatten_the_others() -> None:
    values = [*np.linspace(0.9, 0.91, 400), 0.1, 0.2, 0.99]
    found = lines(histogram(values))
    assert found[0][:2] == ("below   0.900", 2) and found[-1][:2] == ("above   0.910", 1)
    assert sum(number for _, number, _ in found[1:-1]) == 400 and len(found) > 8


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e9, 1e-12])
def test_equal_figures_are_one_bin(value: float) -> None:
    assert sum(number for _, number, _ in lines(histogram([value] * 5))) == 5


def test_bins_can_be_those_of_others() -> None:
    found = lines(histogram([0.5, 1.5, 7.0], RoundBins(1, 0, 1, 3)))
    assert found == [
        ("below   1", 1, "█" * BAR_WIDTH), ("1 - 2", 1, "█" * BAR_WIDTH), ("2 - 3", 0, ""), ("3 - 4", 0, ""),
        ("above   4", 1, "█" * BAR_WIDTH),
    ]  # fmt: skip
