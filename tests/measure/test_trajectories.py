"""Long runs are judged in windows, by distances that are not all in memory."""

import tracemalloc

import numpy as np
import pytest

from ckptzoo.measure import trajectories
from ckptzoo.measure.trajectories import order_of, strangers
from tests.support.effort import examples


def run(seed: int, count: int, tensors: int = 3) -> list[np.ndarray]:
    """Weights that drift and jitter."""
    draw = np.random.default_rng(seed)
    ways = [draw.standard_normal((count, 24)) + draw.standard_normal(24) for _ in range(tensors)]
    return [np.cumsum(way, axis=0) for way in ways]


@pytest.mark.parametrize("seed", range(examples(20, 2)))
def test_windows_find_what_all_distances_tell(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, count = np.random.default_rng(seed), 150
    monkeypatch.setattr(trajectories, "_WINDOW", 40)
    # not nearer to one another than swaps that could be taken for oscillation; less than 40 // 2 - 3 steps apart
    places = [(int(at), int(at + draw.integers(1, 17))) for at in range(3, count - 24, 48) if draw.random() < 0.8]
    order = list(range(count))
    for i, j in places:
        order[i], order[j] = j, i
    swapped = [values[order] for values in run(seed, count)]
    assert order_of(swapped) == (places, True)
    monkeypatch.undo()
    assert order_of(swapped) == (places, True)
    assert strangers(run(seed, count)) == []


@pytest.mark.slow
def test_distances_of_a_long_run_are_bounded() -> None:
    count, order = 1300, np.arange(1300)
    order[[300, 400]] = order[[400, 300]]
    tensors = [values[order] for values in run(0, count, 18)]
    tracemalloc.start()
    try:
        assert order_of(tensors) == ([(300, 400)], True)
        assert strangers(tensors) == [300, 400]
        # the products of all steps in all tensors are 240 MB
        assert tracemalloc.get_traced_memory()[1] < 60e6
    finally:
        tracemalloc.stop()
