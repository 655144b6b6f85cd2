"""Diversity of predictions: known answers, and the definitions over all members and all pairs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import ZooError
from ckptzoo.measure.predictions import disagreement, entropy, mutual_information
from tests.support.effort import examples


def test_known_answers() -> None:
    np.testing.assert_allclose(entropy([[1, 0], [0.5, 0.5]]), [0, math.log(2)])
    assert mutual_information([0.5, 0.5], 0) == pytest.approx(math.log(2)), "two certain members that contradict"
    assert mutual_information([0.5, 0.5], math.log(2)) == 0, "two members that know nothing"
    np.testing.assert_allclose(disagreement([[4, 0], [2, 2], [3, 1], [1, 1]]), [0, 2 / 3, 0.5, 1])


@given(seed=st.integers(0, 2**32), members=st.integers(2, 7), classes=st.integers(2, 6), sharp=st.floats(0.1, 20))
@settings(max_examples=examples(60), deadline=None)
def test_sums_are_the_definitions(seed: int, members: int, classes: int, sharp: float) -> None:
    rng = np.random.default_rng(seed)
    logits = sharp * rng.normal(size=(members, 4, classes))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    mean, entropies = p.mean(0), entropy(p)
    found = mutual_information(mean, entropies.mean(0))
    for n in range(4):
        total = -sum(mean[n, c] * math.log(mean[n, c]) for c in range(classes))
        each = [-sum(q * math.log(q) for q in p[s, n]) for s in range(members)]
        divergence = sum(p[s, n, c] * math.log(p[s, n, c] / mean[n, c]) for s in range(members) for c in range(classes))
        assert found[n] == pytest.approx(total - sum(each) / members, abs=1e-12)
        assert found[n] == pytest.approx(divergence / members, abs=1e-12)
    assert (found >= 0).all() and (found <= math.log(min(members, classes)) + 1e-12).all()
    chosen = p.argmax(-1)
    votes = np.stack([np.bincount(chosen[:, n], minlength=classes) for n in range(4)])
    pairs = list(itertools.combinations(range(members), 2))
    apart = [sum(chosen[s, n] != chosen[t, n] for s, t in pairs) / len(pairs) for n in range(4)]
    np.testing.assert_allclose(disagreement(votes), apart, atol=1e-14)


@pytest.mark.parametrize("votes", [[1, 0], [[3, 1], [0, 1]], [0.5, 1.5], [3, -1], 4])
def test_what_is_no_count_is_refused(votes: object) -> None:
    with pytest.raises(ZooError, match="votes: expected counts"):
        disagreement(votes)  # type: ignore[arg-type]
