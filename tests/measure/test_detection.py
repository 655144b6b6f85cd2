"""Areas and rates of scores that detect one kind of input: known answers, all pairs, and scikit-learn."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from ckptzoo.errors import ZooError
from ckptzoo.measure.predictions import auroc, fpr
from tests.support.effort import examples


def test_known_answers() -> None:
    assert auroc([3, 4], [1, 2]) == 1 and fpr([3, 4], [1, 2]) == 0
    assert auroc([1, 2], [3, 4]) == 0 and fpr([1, 2], [3, 4]) == 1
    assert auroc([1, 1], [1, 1, 1]) == 0.5 and fpr([1, 1], [1, 1, 1]) == 1
    assert auroc([1, 3], [2, 3]) == (0 + 0 + 1 + 0.5) / 4
    positives = np.arange(20)
    assert fpr(positives, [0, 0.5, 1, 1.5]) == 0.5, "the threshold is 1: 19 of 20 are there or above"
    assert fpr(positives, [0, 0.5, 1, 1.5], 0.96) == 1 and fpr(positives, [0, 0.5, 1, 1.5], 0.9) == 0


scores = st.lists(st.integers(-6, 6), min_size=1, max_size=60)


@given(positives=scores, negatives=scores, recall=st.sampled_from([0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 1.0]))
@settings(max_examples=examples(150), deadline=None)
def test_definitions_and_scikit_learn_with_many_ties(positives: list[int], negatives: list[int], recall: float) -> None:
    pairs = [(s > t) + (s == t) / 2 for s in positives for t in negatives]
    assert auroc(positives, negatives) == pytest.approx(sum(pairs) / len(pairs), abs=1e-14)
    threshold = max(x for x in positives if sum(s >= x for s in positives) / len(positives) >= recall)
    assert fpr(positives, negatives, recall) == sum(t >= threshold for t in negatives) / len(negatives)
    labels, both = [1] * len(positives) + [0] * len(negatives), positives + negatives
    assert auroc(positives, negatives) == pytest.approx(roc_auc_score(labels, both), abs=1e-12)
    false, true, _ = roc_curve(labels, both, drop_intermediate=False)
    assert fpr(positives, negatives, recall) == false[np.argmax(true >= recall)]


def test_scikit_learn_on_many_scores() -> None:
    rng = np.random.default_rng(0)
    positives, negatives = rng.normal(1, 1, 5000).astype(np.float16), rng.normal(0, 2, 3000).astype(np.float16)
    labels, both = [1] * 5000 + [0] * 3000, np.concatenate([positives, negatives])
    assert auroc(positives, negatives) == pytest.approx(roc_auc_score(labels, both), abs=1e-12)
    false, true, _ = roc_curve(labels, both, drop_intermediate=False)
    assert fpr(positives, negatives) == false[np.argmax(true >= 0.95)]
    assert auroc(-negatives, -positives) == auroc(positives, negatives)
    np.testing.assert_array_equal(positives, np.random.default_rng(0).normal(1, 1, 5000).astype(np.float16))


@pytest.mark.parametrize("measure", [auroc, fpr])
@pytest.mark.parametrize("wrong", [([], [1]), ([1], []), ([[1]], [1]), ([np.nan], [1]), ([1], [1, np.nan])])
def test_what_is_no_score_is_refused(measure: Callable[..., float], wrong: tuple[Any, Any]) -> None:
    with pytest.raises(ZooError, match="expected"):
        measure(*wrong)


@pytest.mark.parametrize("recall", [0, -1, 1.01, float("nan")])
def test_a_recall_out_of_range_is_refused(recall: float) -> None:
    with pytest.raises(ZooError, match="recall: expected above 0"):
        fpr([1], [1], recall)
