"""Scores of predicted probabilities: known answers, and plain loops over random predictions."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import ZooError
from ckptzoo.measure.predictions import accuracy, brier, ece, nll
from tests.support.effort import examples

SCORES = (accuracy, nll, brier, ece)
PREDICTED = np.array([[0.7, 0.2, 0.1], [0.05, 0.9, 0.05], [0.4, 0.35, 0.25], [0.15, 0.25, 0.6]])
LABELS = np.array([0, 1, 1, 2])


def test_known_answers() -> None:
    logs = np.log(PREDICTED)
    assert accuracy(logs, LABELS) == 0.75
    assert nll(logs, LABELS) == pytest.approx(-(math.log(0.7) + math.log(0.9) + math.log(0.35) + math.log(0.6)) / 4)
    squares = [0.09 + 0.04 + 0.01, 0.0025 + 0.01 + 0.0025, 0.16 + 0.4225 + 0.0625, 0.0225 + 0.0625 + 0.16]
    assert brier(logs, LABELS) == pytest.approx(sum(squares) / 4)
    assert ece(logs, LABELS) == pytest.approx((0.3 + 0.1 + 0.4 + 0.4) / 4), "each input is alone in its bin"


def test_inputs_of_one_bin_are_averaged_before_the_absolute_value() -> None:
    logs = np.log([[0.82, 0.18], [0.84, 0.16], [0.86, 0.14], [0.88, 0.12]])
    assert ece(logs, [0, 0, 0, 1]) == pytest.approx(abs(0.75 - 0.85))
    assert ece(logs, [0, 0, 0, 0]) == pytest.approx(0.15)


@pytest.mark.exhaustive
def test_the_calibration_error_is_that_of_torchmetrics_but_for_edges_of_bins() -> None:
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    def theirs(logs: np.ndarray, labels: np.ndarray) -> float:
        tensors = torch.from_numpy(np.exp(logs)), torch.from_numpy(labels)
        return float(multiclass_calibration_error(*tensors, num_classes=logs.shape[-1], n_bins=10, norm="l1"))

    rng = np.random.default_rng(6)
    logits = rng.normal(size=(2000, 10)) * 3
    logs, labels = logits - np.log(np.exp(logits).sum(-1, keepdims=True)), rng.integers(0, 10, 2000)
    labels[::2] = logs.argmax(-1)[::2]
    assert ece(logs, labels) == pytest.approx(theirs(logs, labels), abs=1e-6)
    edges, right = np.log([[0.5, 0.5], [0.46, 0.54]]), np.array([1, 1])
    assert ece(edges, right) == pytest.approx((0.5 + 0.46) / 2), "0.5 is in the bin below, wrong, 0.54 is right"
    edges, right = np.log([[0.5, 0.5], [0.46, 0.54]]), np.array([1, 1])
    assert theirs(edges, right) == pytest.approx(abs(0.5 - (0.5 + 0.54) / 2)), "there both are in one bin"


def test_certain_predictions() -> None:
    with np.errstate(divide="ignore"):
        logs = np.log([[1.0, 0.0], [0.0, 1.0]])
    assert [float(score(logs, [0, 1])) for score in SCORES] == [1, 0, 0, 0]
    assert [float(score(logs, [1, 0])) for score in SCORES] == [0, math.inf, 2, 1]
    uniform = np.full((6, 3), -math.log(3))
    assert nll(uniform, [0, 1, 2, 0, 1, 2]) == pytest.approx(math.log(3))
    assert accuracy(uniform, [0, 1, 2, 0, 1, 2]) == pytest.approx(1 / 3)


def looped(logs: np.ndarray, labels: np.ndarray) -> list[float]:
    """The four definitions, one input at a time."""
    count, classes = logs.shape
    hits, likelihood, squares = 0, 0.0, 0.0
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(10)]
    for row, label in zip(logs, labels, strict=True):
        chosen = max(range(classes), key=lambda c: row[c])
        hits += chosen == label
        likelihood -= row[label]
        squares += sum((math.exp(row[c]) - (c == label)) ** 2 for c in range(classes))
        confidence = math.exp(row[chosen])
        bins[min(9, math.ceil(confidence * 10) - 1)].append((confidence, chosen == label))
    error = sum(abs(sum(hit - confidence for confidence, hit in held)) for held in bins)
    return [hits / count, likelihood / count, squares / count, error / count]


@given(seed=st.integers(0, 2**32), count=st.integers(1, 40), classes=st.integers(2, 12), spread=st.floats(0.1, 8))
@settings(max_examples=examples(50))
def test_they_are_their_definitions(seed: int, count: int, classes: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(3, count, classes)) * spread
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    labels = rng.integers(0, classes, count)
    together = [score(logs, labels) for score in SCORES]
    for member in range(3):
        found = [float(score[member]) for score in together]
        assert found == pytest.approx(looped(logs[member], labels), abs=1e-12)


@pytest.mark.parametrize("score", SCORES)
def test_a_member_that_is_not_a_number_says_so_and_leaves_the_others(score: Callable[..., Any]) -> None:
    logs = np.log(np.stack([PREDICTED, PREDICTED]))
    logs[0, 2] = np.nan
    found = score(logs, np.array([0, 1, 0, 2]))
    assert math.isnan(found[0])
    assert found[1] == score(logs[1], np.array([0, 1, 0, 2]))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, -1], [0.0, 1.0, 2.0, 0.0], [[0, 1, 2, 0]]])
def test_what_does_not_fit_is_refused(score: Callable[..., Any], labels: list[Any]) -> None:
    with pytest.raises(ZooError, match="expected"):
        score(np.log(PREDICTED), labels)
