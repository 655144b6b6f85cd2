"""The rule for bandwidths, against its words."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import ZooError
from ckptzoo.measure.kernels import bandwidths_of
from tests.support.effort import examples


def in_words(distances: list[float]) -> list[float]:
    low = min(distances)
    if low < 0.1:
        low = max(sorted(distances)[int(np.floor(0.05 * len(distances)))], 0.1)
    low = low / 2
    high = 2 * max(max(distances), 0.3)
    return [low * (high / low) ** (i / 9) for i in range(10)]


@given(
    st.lists(st.floats(0, 100) | st.floats(0, 0.2), min_size=1, max_size=130),
    st.sampled_from([0.0, 0.05, 0.1, 0.3]),
)
@settings(max_examples=examples(300), deadline=None)
def test_the_rule_is_its_words(distances: list[float], offset: float) -> None:
    moved = [value + offset for value in distances]
    np.testing.assert_allclose(bandwidths_of(moved), in_words(moved), rtol=1e-12)


def test_known_answers() -> None:
    far = bandwidths_of([0.1, 5.0])
    assert far[0] == 0.05 and far[-1] == pytest.approx(10)
    np.testing.assert_allclose(far[1:] / far[:-1], 200 ** (1 / 9))
    assert bandwidths_of([0.0])[0] == 0.05 and bandwidths_of([0.0])[-1] == pytest.approx(0.6)


@pytest.mark.parametrize(("count", "place"), [(19, 0), (20, 1), (39, 1), (40, 2), (60, 3), (250_000, 12_500)])
def test_the_place_is_the_floor_of_a_twentieth(count: int, place: int) -> None:
    distances = np.arange(count, dtype=np.float64)
    assert place == int(np.floor(0.05 * count))
    assert bandwidths_of(np.random.default_rng(0).permutation(distances))[0] == max(place, 0.1) / 2


@pytest.mark.parametrize("bad", [[], [1.0, np.inf], [np.nan], [-1.0]])
def test_what_is_no_distance_is_refused(bad: list[float]) -> None:
    with pytest.raises(ZooError, match="expected finite ones, 0 or above"):
        bandwidths_of(bad)
