"""Laplace's approximation as a method: its draws have the inverse curvature as covariance, and tell what they keep."""

import dataclasses

import numpy as np
import pytest
import torch

from builders import losses, posterior, rng, sources
from builders.posterior import curvature, gaussian
from builders.posterior.laplace import Laplace
from builders.posterior.method import Surroundings, flatten
from builders.recipe import Recipe
from builders.state import TrainingState
from tests.support.effort import examples

TOY = Recipe.load("toy")
NAMES = curvature.parameter_names(TOY.architecture)


def advanced(method: Laplace, modes: int = 2) -> tuple[Surroundings, TrainingState]:
    source = sources.load(TOY)
    surroundings = Surroundings(sources.data_source(method.chain, source, "cpu"), source, "mlp")
    keys = rng.member_keys(method.digest, range(modes))
    arrays = rng.initial_weights(TOY.arch, rng.member_keys(TOY.digest, range(modes)))
    state = method.start(surroundings, keys, {name: torch.from_numpy(array) for name, array in arrays.items()})
    method.advance(surroundings, state, method.steps)
    return surroundings, state


@pytest.mark.parametrize("prior_precision", [0, pytest.param(3.5, marks=pytest.mark.exhaustive)])
def test_draws_have_the_inverse_of_curvature_and_prior_as_covariance(prior_precision: float) -> None:
    method = dataclasses.replace(Laplace.load(TOY), prior_precision=prior_precision)
    surroundings, state = advanced(method)
    inputs = curvature.TrainingInputs(torch.from_numpy(surroundings.source.half("train")[0]))
    drawn = torch.stack(
        [flatten(method.draw(surroundings, state, number), NAMES) for number in range(examples(4000, 1000))]
    )
    for mode in range(2):
        weights = {name: tensor[mode] for name, tensor in state.weights.items()}
        G = curvature.gauss_newton(TOY.architecture, TOY.loss, weights, inputs)
        mean = curvature.flatten(weights, NAMES)
        tau = prior_precision or gaussian.best_precision(gaussian.decompose(G), float(mean @ mean))
        assert float(state.extra["precision"][mode]) == pytest.approx(tau)
        covariance = torch.linalg.inv(G + tau * torch.eye(len(G), dtype=torch.float64)).numpy()
        found = drawn[:, mode].double().numpy()
        variances = np.diag(covariance)
        assert (np.abs(found.mean(0) - mean.numpy()) < 5 * np.sqrt(variances / len(found))).all()
        error = np.sqrt(np.outer(variances, variances) + covariance**2) / np.sqrt(len(found))
        assert (np.abs(np.cov(found.T) - covariance) < 5 * error).all()


def test_of_a_large_network_the_last_layer_alone_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature, "MAX_DENSE_BYTES", 0)
    method = Laplace.load(TOY)
    surroundings, state = advanced(method)
    drawn = method.draw(surroundings, state, 0)
    for name in ("fc1.weight", "fc1.bias"):
        assert torch.equal(drawn[name], state.weights[name])
    for name in ("fc2.weight", "fc2.bias"):
        assert not torch.equal(drawn[name], state.weights[name])
    inputs = curvature.TrainingInputs(torch.from_numpy(surroundings.source.half("train")[0]))
    weights = {name: tensor[0] for name, tensor in state.weights.items()}
    factors = curvature.last_layer(TOY.architecture, TOY.loss, weights, inputs)
    spectrum = gaussian.decompose(factors, losses.get(TOY.loss).likelihood(1.0, TOY.train).scale)
    mean, precision = curvature.flatten(weights, factors.names), float(state.extra["precision"][0])
    normals = torch.from_numpy(rng.normals(state.keys, 0, len(mean), rng.DRAWS)[0])
    expected = curvature.unflatten(gaussian.draw(spectrum, mean, precision, normals), weights, factors.names)
    for name, tensor in expected.items():
        assert torch.allclose(drawn[name][0], tensor, atol=1e-6)


def test_it_keeps_buffers_and_serves_residual_networks_by_their_last_layer() -> None:
    residual = dataclasses.replace(Recipe.load("digits-optunet"), architecture="resnet18-10")
    assert posterior.get("laplace").load(residual).starts == "member"
