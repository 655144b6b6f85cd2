"""Growing ensembles, against averages of the members that should be in them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.measure.predictions import accuracy, brier, ece, nll
from ckptzoo.studies.ensemble_scores import DisjointEnsembles, SummedPredictions, log_softmax, scores
from tests.support.effort import examples


def test_logarithms_of_a_softmax() -> None:
    logits = np.random.default_rng(0).normal(size=(3, 5, 4))
    exact = np.log(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(log_softmax(logits), exact, atol=1e-14)
    extreme = np.array([[6e4, -6e4, 0], [0, 0, 0]], np.float16)
    np.testing.assert_allclose(log_softmax(extreme), [[0, -120000, -60000], [-np.log(3)] * 3])


@given(
    seed=st.integers(0, 2**32),
    members=st.integers(1, 40),
    sizes=st.sets(st.integers(2, 24), max_size=6).map(sorted),
)
@settings(max_examples=examples(60), deadline=None)
def test_ensembles_of_every_size_are_averages_of_the_members_that_came(
    seed: int, members: int, sizes: list[int]
) -> None:
    logits = 3 * np.random.default_rng(seed).normal(size=(members, 5, 3))
    p = np.exp(log_softmax(logits))
    entropies = -(p * np.log(p)).sum(-1)
    growing = DisjointEnsembles(sizes)
    seen: dict[int, int] = dict.fromkeys(sizes, 0)
    for at in range(members):
        member = SummedPredictions.of(log_softmax(logits[at]))
        for whole in growing.add(member):
            assert (at + 1) % whole.size == 0
            seen[whole.size] += 1
            those = slice(at + 1 - whole.size, at + 1)
            mean = p[those].mean(0)
            np.testing.assert_allclose(np.exp(whole.logs), mean, rtol=1e-12)
            information = -(mean * np.log(mean)).sum(-1) - entropies[those].mean(0)
            np.testing.assert_allclose(whole.mutual_information, information, atol=1e-12)
        assert member.size == 1
        np.testing.assert_array_equal(member.probabilities, p[at])
    assert seen == {size: members // size for size in sizes}


def test_certain_members_that_contradict_stay_finite() -> None:
    whole = SummedPredictions.of(log_softmax(np.array([[6e4, -6e4, -6e4]])))
    whole.add(SummedPredictions.of(log_softmax(np.array([[-6e4, 6e4, -6e4]]))))
    np.testing.assert_allclose(whole.logs, [[-np.log(2), -np.log(2), -700]])
    np.testing.assert_allclose(whole.mutual_information, np.log(2))


def test_scores_of_sets_and_their_signs() -> None:
    logs = np.log([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4], [0.5, 0.5], [0.45, 0.55], [0.2, 0.8]])
    information = np.array([0.1, 0.1, 0.2, 0.0, 0.1, 0.05])
    targets = np.array([0, 1, 1])
    sets = {"own": slice(0, 3), "other": slice(3, 6)}
    found = scores(logs, None, sets, targets)
    own = {"accuracy": accuracy, "nll": nll, "brier": brier, "ece": ece}
    right = {name: float(score(logs[:3], targets)) for name, score in own.items()}
    assert found["own"] == {**right, "confidence": pytest.approx((0.9 + 0.7 + 0.6) / 3)}
    assert found["other"] == {"auroc": pytest.approx(7 / 9), "fpr95": pytest.approx(2 / 3)}, "doubt 0.5, 0.45, 0.2"
    found = scores(logs, information, sets, targets)
    assert found["own"]["mutual_information"] == pytest.approx(0.4 / 3)
    assert found["other"]["mutual_information"] == pytest.approx(0.05)
    assert found["other"]["information_auroc"] == pytest.approx(1 / 9) and found["other"]["information_fpr95"] == 1
