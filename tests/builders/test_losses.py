"""Losses: their gradients are autograd's, and what is measured has known answers."""

import math

import numpy as np
import pytest
import torch

from builders import losses
from builders.losses import MemberOutputs
from ckptzoo.measure import predictions


def examples(name: str, members: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and targets of some networks."""
    rng = np.random.default_rng(2)
    width = 5 if name == "cross-entropy" else 1
    labels = rng.integers(0, max(2, width), (members, batch)).astype(np.float32)
    targets = rng.normal(size=(members, batch)).astype(np.float32) if name == "squared-error" else labels
    return torch.from_numpy(3 * rng.normal(size=(members, batch, width)).astype(np.float32)), torch.from_numpy(targets)


@pytest.mark.parametrize("name", losses.LOSSES)
def test_the_slope_is_the_gradient_of_the_mean(name: str) -> None:
    loss = losses.get(name)
    outputs, targets = examples(name, 4, 7)
    found = loss.output_gradient(outputs, targets)
    assert (found.shape, found.dtype) == (outputs.shape, torch.float32)
    for number in range(4):
        one = outputs[number].clone().requires_grad_()
        loss.mean(one, targets[number]).backward()
        torch.testing.assert_close(found[number], one.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", losses.LOSSES)
def test_the_mean_is_the_measured_loss(name: str) -> None:
    loss = losses.get(name)
    outputs, targets = examples(name, 1, 50)
    half = MemberOutputs(outputs.double().numpy(), targets[0].numpy())
    found = loss.columns(half, half)
    assert found["train_loss"][0] == found["test_loss"][0] == pytest.approx(loss.mean(outputs[0], targets[0]).item())
    assert outputs.shape[-1] == loss.outputs(targets[0].numpy())


@pytest.mark.parametrize("name", losses.LOSSES)
def test_the_hessian_of_the_outputs_is_its_root_squared(name: str) -> None:
    loss = losses.get(name)
    outputs, targets = (values[0].double() for values in examples(name, 1, 6))
    roots = loss.hessian_root(outputs)
    assert roots.dtype == torch.float64
    for row, target, root in zip(outputs, targets, roots, strict=True):

        def of_one(values: torch.Tensor, target: torch.Tensor = target) -> torch.Tensor:
            return loss.mean(values[None], target[None])

        torch.testing.assert_close(
            root @ root.T, torch.autograd.functional.hessian(of_one, row), rtol=1e-10, atol=1e-14
        )
    assert loss.hessian_root(1e4 * outputs.float()).isfinite().all()


@pytest.mark.parametrize(("name", "total"), [("cross-entropy", -6.0), ("binary-cross-entropy", -6.0)])
def test_a_cross_entropy_is_a_negative_log_likelihood(name: str, total: float) -> None:
    assert losses.get(name).likelihood(1.5, 4) == (total, 1.0)


def test_one_logit_is_measured_as_two() -> None:
    outputs, targets = examples("binary-cross-entropy", 3, 200)
    half = MemberOutputs(outputs.double().numpy(), targets[0].numpy())
    found = losses.get("binary-cross-entropy").columns(half, half)
    two = np.concatenate([np.zeros_like(half.outputs), half.outputs], -1)
    again = losses.get("cross-entropy").columns(MemberOutputs(two, half.targets), MemberOutputs(two, half.targets))
    assert set(found) == set(again)
    for column, values in found.items():
        assert np.allclose(values, again[column], rtol=1e-12, atol=0)
    logs = two - np.logaddexp(two[..., :1], two[..., 1:])
    labels = half.targets.astype(int)
    for column, score in (("test_accuracy", predictions.accuracy), ("test_brier", predictions.brier)):
        assert np.allclose(found[column], score(logs, labels))


def test_large_logits_have_a_finite_loss() -> None:
    half = MemberOutputs(np.array([[[1000.0], [-1000.0]]]), np.array([1.0, 1.0]))
    assert losses.get("binary-cross-entropy").columns(half, half)["train_loss"] == 500


@pytest.mark.parametrize(
    ("name", "width", "bound"), [("cross-entropy", 4, math.log(4)), ("binary-cross-entropy", 1, math.log(2))]
)
def test_a_classifier_diverges_above_equal_probabilities(name: str, width: int, bound: float) -> None:
    labels = np.array([0, 1, 1])
    outputs = np.zeros((3, 3, width))
    outputs[1, :, -1] = -1e-3 if width == 1 else 1e-2
    outputs[2] = np.nan
    found = losses.get(name).columns(MemberOutputs(outputs, labels), MemberOutputs(outputs, labels))
    assert found["train_loss"][0] == pytest.approx(bound)
    assert found["train_loss"][1] > bound
    assert found["diverged"].tolist() == [False, True, True]
    assert np.isnan(found["test_accuracy"][2])


def test_a_regression_diverges_above_the_variance_of_its_targets() -> None:
    targets = np.array([0.0, 1.0, 5.0], dtype=np.float32)
    outputs = np.stack([np.full((3, 1), 2.0), np.full((3, 1), 2.1), np.full((3, 1), np.nan), np.full((3, 1), 1e200)])
    half = MemberOutputs(outputs, targets)
    found = losses.get("squared-error").columns(half, half)
    assert found["train_loss"][:2] == pytest.approx([14 / 3, 14 / 3 + 0.01])
    assert found["diverged"].tolist() == [False, True, True, True]
    assert set(found) == {"train_loss", "test_loss", "diverged"}
