"""Mutual information of pairs of members: its laws, known answers, float64, and the bound on its error."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax

from ckptzoo.errors import ZooError
from ckptzoo.measure import pairwise
from ckptzoo.measure.pairwise import PairwiseInformation, pairwise_mutual_information
from ckptzoo.measure.predictions import entropy, mutual_information
from tests.support.effort import examples


def reference(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In float64 for every pair the mutual information of the ensemble of two, and the entropy of its average."""
    p = softmax(logits.astype(np.float64), axis=-1)
    M = len(p)
    information, entropies = np.zeros((2, M, M))
    for i in range(M):
        for j in range(M):
            mean = (p[i] + p[j]) / 2
            information[i, j] = mutual_information(mean, (entropy(p[i]) + entropy(p[j])) / 2).mean()
            entropies[i, j] = entropy(mean).mean()
    return information, entropies


@pytest.fixture(params=["numpy", "numba"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways, whatever the number of members."""
    monkeypatch.setattr(pairwise, "COMPILED_MEMBERS", 2 if request.param == "numba" else 10**9)


@pytest.mark.usefixtures("either")
def test_known_answers() -> None:
    certain = np.array([[[0.0, -np.inf]], [[-np.inf, 0.0]], [[-np.inf, 7.0]], [[3.0, 3.0]]])
    half = -0.75 * math.log(0.75) - 0.25 * math.log(0.25) - math.log(2) / 2  # of a certain and an ignorant member
    expected = [
        [0, math.log(2), math.log(2), half],
        [math.log(2), 0, 0, half],
        [math.log(2), 0, 0, half],
        [half, half, half, 0],
    ]
    np.testing.assert_allclose(pairwise_mutual_information(certain), expected, atol=1e-7)


@given(
    seed=st.integers(0, 2**32),
    members=st.integers(2, 20),
    inputs=st.integers(1, 30),
    classes=st.integers(1, 12),
    spread=st.sampled_from([0.0, 0.01, 1.0, 8.0, 1000.0]),
    width=st.sampled_from([1, 7, 64, 4096]),
    compiled=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_laws(seed: int, members: int, inputs: int, classes: int, spread: float, width: int, compiled: bool) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(members, inputs, classes)) * spread
    logits[-1] = logits[0] + rng.normal(size=(inputs, 1)).round(3) * 2**10  # the same softmax, to rounding
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairwise, "WIDTH", width)
        patch.setattr(pairwise, "COMPILED_MEMBERS", 2 if compiled else 100)
        found = pairwise_mutual_information(logits)
        logits[-1] = logits[0]
        assert pairwise_mutual_information(logits)[-1, 0] == 0, "equal members"
    np.testing.assert_array_equal(found, found.T)
    assert (found.diagonal() == 0).all() and (found >= 0).all() and (found <= math.log(2)).all()
    expected, entropies = reference(logits)
    bound = (70 * entropies + 4) * 2.0**-24
    assert (np.abs(found - expected) <= bound + 1e-9).all()  # 1e-9: the shift above rounds the logits in float64


@pytest.mark.usefixtures("either")
def test_the_bound_holds_for_full_widths_of_confident_and_of_ignorant_members() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(6, 3000, 10)) * np.array([0.01, 0.5, 2, 8, 30, 200])[:, None, None]
    expected, entropies = reference(logits)
    error = np.abs(pairwise_mutual_information(logits) - expected)
    assert (error <= (70 * entropies + 4) * 2.0**-24).all() and error.max() < 1e-7


def test_the_logarithms_are_as_exact_as_the_bound_takes_them_to_be() -> None:
    from ckptzoo.measure.pairwise_compiled import segment_sum

    rng = np.random.default_rng(2)
    small, near_one = np.exp(rng.uniform(-86, 0, 50_000)), 1 - rng.uniform(0, 0.01, 5000) ** 2
    values = np.concatenate([small, near_one, [1.0]]).astype(np.float32)
    exact = values.astype(np.float64) * np.log(values.astype(np.float64))
    np.testing.assert_array_max_ulp(np.log(values), np.log(values.astype(np.float64)).astype(np.float32), 4)
    halves = values / 2
    found = np.array([segment_sum(halves[k : k + 1], halves[k : k + 1]) for k in range(len(values))])
    assert (np.abs(found - exact) <= (4 * 2.0**-23 + 2.0**-24) * np.abs(exact)).all()


def test_without_numba_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = np.random.default_rng(8).normal(size=(100, 5, 3))
    fast = pairwise_mutual_information(logits)
    monkeypatch.setattr(pairwise, "find_spec", lambda name: None)
    np.testing.assert_allclose(pairwise_mutual_information(logits), fast, atol=1e-6)


@pytest.mark.usefixtures("either")
def test_blocks_of_inputs_add_up_and_logarithms_of_probabilities_are_logits() -> None:
    logits = np.random.default_rng(3).normal(size=(11, 50, 4)).astype(np.float16)
    pairs = PairwiseInformation(11)
    for block in np.split(logits, [1, 20, 20], axis=1):
        pairs.add(block)
    whole = pairwise_mutual_information(logits)
    assert pairs.inputs == 50
    np.testing.assert_allclose(pairs.mutual_information, whole, atol=1e-6)
    logs = log_softmax(logits.astype(np.float64), axis=-1)
    np.testing.assert_allclose(pairwise_mutual_information(logs), whole, atol=1e-6)
    np.testing.assert_array_equal(pairwise_mutual_information(logits), whole)


@pytest.mark.usefixtures("either")
def test_members_may_come_in_any_order() -> None:
    rng = np.random.default_rng(4)
    logits, order = rng.normal(size=(19, 40, 3)) * 3, rng.permutation(19)
    found = pairwise_mutual_information(logits[order])
    np.testing.assert_array_equal(found, pairwise_mutual_information(logits)[np.ix_(order, order)])


def test_memory_is_that_of_the_pairs_and_of_a_few_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairwise, "WIDTH", 500)
    logits = np.zeros((40, 3000, 10), np.float16)
    tracemalloc.start()
    pairwise_mutual_information(logits)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * 500 * 32 + 8 * 8 * 40**2 + 200_000


def test_what_is_no_prediction_is_refused() -> None:
    good = np.zeros((3, 2, 4))
    for wrong in (np.nan, np.inf):
        bad = good.copy()
        bad[1, 0, 2] = wrong
        with pytest.raises(ZooError, match="logits: expected finite ones, got others of member 1"):
            pairwise_mutual_information(bad)
    with pytest.raises(ZooError, match=r"others of members 0, 1, 2"):
        pairwise_mutual_information(np.full_like(good, -np.inf))
    with pytest.raises(ZooError, match=r"members: expected 2 or more, got 1"):
        pairwise_mutual_information(good[:1])
    with pytest.raises(ZooError, match=r"expected \(3, n, C\), got \(3, 2\)"):
        pairwise_mutual_information(good[:, :, 0])
    with pytest.raises(ZooError, match=r"expected \(2, n, C\), got \(3, 2, 4\)"):
        PairwiseInformation(2).add(good)
    with pytest.raises(ZooError, match="inputs: expected at least one"):
        pairwise_mutual_information(good[:, :0])
