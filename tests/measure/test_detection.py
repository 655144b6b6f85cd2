"""Areas and rates of scores that detect one kind of input: known answers, all pairs, scikit-learn and torchmetrics."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from ckptzoo.errors import ZooError
from ckptzoo.measure.predictions import auroc, average_precision, fpr
from tests.support.effort import examples


def test_known_answers() -> None:
    assert auroc([3, 4], [1, 2]) == 1 and fpr([3, 4], [1, 2]) == 0
    assert auroc([1, 2], [3, 4]) == 0 and fpr([1, 2], [3, 4]) == 1
    assert auroc([1, 1], [1, 1, 1]) == 0.5 and fpr([1, 1], [1, 1, 1]) == 1
    assert auroc([1, 3], [2, 3]) == (0 + 0 + 1 + 0.5) / 4
    positives = np.arange(20)
    assert fpr(positives, [0, 0.5, 1, 1.5]) == 0.5, "the threshold is 1: 19 of 20 are there or above"
    assert fpr(positives, [0, 0.5, 1, 1.5], 0.96) == 1 and fpr(positives, [0, 0.5, 1, 1.5], 0.9) == 0


def test_known_average_precisions() -> None:
    assert average_precision([3, 4], [1, 2]) == 1
    assert average_precision([1], [2]) == 0.5 and average_precision([1, 3], [2]) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision([1, 1, 1], [1, 1]) == 0.6, "equal scores are one threshold"
    assert average_precision([2, 1], [2, 0]) == pytest.approx((1 / 2 + 2 / 3) / 2), "a tie at the top counts against"


@pytest.mark.parametrize("count", [1, 10, 100_000])
def test_a_reversed_ranking_of_equal_sizes_tends_to_one_less_log_2(count: int) -> None:
    found = average_precision(np.arange(count), np.arange(count) + count)
    assert found == pytest.approx(math.fsum(k / (k + count) for k in range(1, count + 1)) / count, abs=1e-14)
    # the sum is that of k / (k + n), a Riemann sum whose error is below half a step
    assert abs(found - (1 - math.log(2))) <= 0.5 / count


def test_confidences_of_one_are_ties() -> None:
    confidence = np.array([1.0, 1.0, 0.9, 1.0, 1.0, 0.5, 0.2])
    other, own = -confidence[[2, 3, 5]], -confidence[[0, 1, 4, 6]]
    expected = (1 / 2 + 2 / 3 + 3 / 7) / 3  # thresholds 0.5, 0.9 and 1, of which the last flags everything
    assert average_precision(other, own) == pytest.approx(expected, abs=1e-15)


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
    precisions = [
        sum(k >= s for k in positives) / (sum(k >= s for k in positives) + sum(t >= s for t in negatives))
        for s in positives
    ]
    assert average_precision(positives, negatives) == pytest.approx(sum(precisions) / len(positives), abs=1e-14)
    assert average_precision(positives, negatives) == pytest.approx(average_precision_score(labels, both), abs=1e-12)
    false, true, _ = roc_curve(labels, both, drop_intermediate=False)
    assert fpr(positives, negatives, recall) == false[np.argmax(true >= recall)]


def test_scikit_learn_on_many_scores() -> None:
    rng = np.random.default_rng(0)
    positives, negatives = rng.normal(1, 1, 5000).astype(np.float16), rng.normal(0, 2, 3000).astype(np.float16)
    labels, both = [1] * 5000 + [0] * 3000, np.concatenate([positives, negatives])
    assert auroc(positives, negatives) == pytest.approx(roc_auc_score(labels, both), abs=1e-12)
    assert average_precision(positives, negatives) == pytest.approx(average_precision_score(labels, both), abs=1e-12)
    false, true, _ = roc_curve(labels, both, drop_intermediate=False)
    assert fpr(positives, negatives) == false[np.argmax(true >= 0.95)]
    assert auroc(-negatives, -positives) == auroc(positives, negatives)
    np.testing.assert_array_equal(positives, np.random.default_rng(0).normal(1, 1, 5000).astype(np.float16))


@pytest.mark.exhaustive
def test_torchmetrics_within_0_and_1_and_its_sigmoid_outside() -> None:
    import torch
    from torchmetrics.functional.classification import binary_average_precision

    def theirs(positives: np.ndarray, negatives: np.ndarray) -> float:
        labels = torch.arange(len(positives) + len(negatives)) < len(positives)
        return float(binary_average_precision(torch.from_numpy(np.concatenate([positives, negatives])), labels))

    rng = np.random.default_rng(5)
    positives, negatives = rng.beta(2, 1, 3000).astype(np.float32), rng.beta(1, 2, 2000).astype(np.float32)
    assert average_precision(positives, negatives) == pytest.approx(theirs(positives, negatives), abs=1e-5)
    high = np.full(30, 40, np.float32), np.full(20, 20, np.float32)
    assert average_precision(*high) == 1 and theirs(*high) == pytest.approx(0.6), "both sigmoids are 1"
    # -max p of members that are nearly certain, in float32's steps of 2^-24
    sure = -1 + np.arange(16, dtype=np.float32) * np.float32(2**-24)
    positives, negatives = sure[1::2], sure[::2]
    sigmoids = (torch.sigmoid(torch.from_numpy(scores)).numpy() for scores in (positives, negatives))
    found = average_precision(*sigmoids)
    assert theirs(positives, negatives) == pytest.approx(found, abs=1e-6) != average_precision(positives, negatives)


@pytest.mark.parametrize("measure", [auroc, average_precision, fpr])
@pytest.mark.parametrize("wrong", [([], [1]), ([1], []), ([[1]], [1]), ([np.nan], [1]), ([1], [1, np.nan])])
def test_what_is_no_score_is_refused(measure: Callable[..., float], wrong: tuple[Any, Any]) -> None:
    with pytest.raises(ZooError, match="expected"):
        measure(*wrong)


@pytest.mark.parametrize("recall", [0, -1, 1.01, float("nan")])
def test_a_recall_out_of_range_is_refused(recall: float) -> None:
    with pytest.raises(ZooError, match="recall: expected above 0"):
        fpr([1], [1], recall)
