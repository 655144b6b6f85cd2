"""Pairs of positions, and the tests of their marginals."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.loader.lazy_tensor import StackedTensor
from ckptzoo.measure.marginals import uniformity
from ckptzoo.schema.documents import canonical
from ckptzoo.studies import equal_marginals
from ckptzoo.studies.equal_marginals import PairTests, compare_pairs, position_pairs
from tests.support.effort import examples

Write = Callable[[np.ndarray], dict[str, StackedTensor]]


@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=40), most=st.integers(1, 30), seed=st.integers(0, 99))
@settings(max_examples=examples(200), deadline=None)
def test_pairs_are_disjoint_of_their_kind_and_as_many_as_there_can_be(labels: list[int], most: int, seed: int) -> None:
    held = np.array(labels)
    within, across = position_pairs(held, np.random.default_rng(seed), most)
    again = position_pairs(held, np.random.default_rng(seed), most)
    for pairs, same in zip((within, across), again, strict=True):
        np.testing.assert_array_equal(pairs, same)
        assert pairs.shape == (len(pairs), 2) and len(np.unique(pairs)) == pairs.size
    assert (held[within[:, 0]] == held[within[:, 1]]).all()
    assert (held[across[:, 0]] != held[across[:, 1]]).all()
    assert len(within) == min(most, sum(count // 2 for count in np.bincount(held).tolist()))
    left = np.delete(held, across.ravel())
    assert len(across) == most or len(np.unique(left)) <= 1


def test_every_pair_is_as_likely_as_another() -> None:
    labels, rng = np.array([0, 1, 0, 0, 1, 2, 0]), np.random.default_rng(0)
    found = np.zeros((2, 7, 7))
    for _ in range(3000):
        for kind, pairs in enumerate(position_pairs(labels, rng)):
            np.add.at(found[kind], tuple(np.sort(pairs, axis=1).T), 1)
    orbit = found[0][np.ix_([0, 2, 3, 6], [0, 2, 3, 6])][np.triu_indices(4, 1)]
    np.testing.assert_allclose(orbit, 1000, atol=4 * (3000 * 2 / 9) ** 0.5)
    assert found[0, 1, 4] == 3000 and (found[1][labels[:, None] == labels] == 0).all()
    assert (found[1][np.triu(labels[:, None] != labels)] > 300).all()


@pytest.fixture
def stacked(tmp_path) -> Write:
    """Write values (K, P) as a zoo's only tensor, in float64."""

    def write(values: np.ndarray) -> dict[str, StackedTensor]:
        arch = ckptzoo.Architecture("one", (ckptzoo.Tensor("w", (values.shape[1] // 2, 2), "float64"),))
        path = tmp_path / f"zoo{len(list(tmp_path.iterdir()))}"
        with ckptzoo.create(path, arch=arch) as writer:
            writer.add({"w": values.reshape(len(values), -1, 2)}, [{"id": f"m{at}"} for at in range(len(values))])
        return {"raw": ckptzoo.open(path)["w"]}

    return write


def test_the_two_samples_are_of_different_members(stacked: Write) -> None:
    # Every position holds the same number of a member: the same members on both sides would give p = 1, and sides
    # that depended on each other no uniform p.
    values = np.repeat(np.random.default_rng(1).normal(size=(61, 1)), 800, axis=1)
    p = compare_pairs(stacked(values), np.arange(800).reshape(-1, 2), np.random.default_rng(2)).p["raw"]
    assert len(p) == 400 and uniformity(p) > 0.05
    assert len(np.unique(p)) > 5 and (p < 0.05).mean() == pytest.approx(0.035, abs=0.025)


def test_shifted_positions_are_told_apart_and_equal_ones_are_not(stacked: Write) -> None:
    rng = np.random.default_rng(3)
    values = rng.exponential(size=(200, 400))
    values[:, ::4] += 1
    pairs = np.arange(400).reshape(-1, 2)
    found = compare_pairs(stacked(values), pairs, rng).p["raw"]
    assert found[::2].max() < 1e-6 and uniformity(found[1::2]) > 0.05


def test_few_members_are_not_compared(stacked: Write) -> None:
    pairs = np.array([[0, 1], [2, 3]])
    assert compare_pairs(stacked(np.ones((7, 4))), pairs, np.random.default_rng(0)).pairs == 0
    values = np.zeros((8, 4))
    values[:, 1] = 1
    found = compare_pairs(stacked(values), pairs, np.random.default_rng(0))
    np.testing.assert_allclose(found.p["raw"], [2 / 70, 1]), "the smallest p-value of two samples of four"
    assert found.share("raw") == 0.5 and equal_marginals.LEAST == 8


def test_figures_of_p_values() -> None:
    one = PairTests({"raw": np.array([0.01, 0.2, 0.6]), "g": np.array([0.5, 0.04, 0.001])})
    two = PairTests({"raw": np.array([0.9]), "g": np.array([0.05])})
    joined = PairTests.join([one, two])
    assert joined.pairs == 4 and joined.share("g") == 0.5 and joined.median("raw") == pytest.approx(0.4)
    plain = json.loads(canonical(joined.to_json()))
    assert plain["below"] == {"raw": 0.25, "g": 0.5} and plain["uniform"]["raw"] == joined.uniform("raw")
    none = PairTests({"raw": np.empty(0)})
    assert none.to_json() == {"pairs": 0, "below": {"raw": None}, "median": {"raw": None}, "uniform": {"raw": None}}
