"""Methods on planted Gaussians: their draws have the mean and the covariance that theory says."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from builders import rng
from builders.posterior.bnn import Bnn
from builders.posterior.csghmc import CyclicalSghmc
from builders.posterior.method import StepNormals
from builders.posterior.sghmc import Sghmc, adapt, shortened
from builders.posterior.swag import Swag
from tests.builders.posterior.planted import TOY, flat_draw, planted, start
from tests.support.effort import examples

WEIGHTS = TOY.arch.parameters
MODES = examples(4000, 500)
CURVATURE = torch.linspace(0.5, 3.0, WEIGHTS)
CENTRE = torch.linspace(-1.0, 1.0, WEIGHTS)


def standard_error_of_variances(variances: np.ndarray, count: int) -> np.ndarray:
    return variances * math.sqrt(2 / (count - 1))


@pytest.mark.slow
def test_swag_recovers_a_covariance_across_tensors() -> None:
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(WEIGHTS, WEIGHTS, generator=generator)
    covariance = (factor @ factor.T).double().numpy()
    method = dataclasses.replace(Swag.load(TOY), snapshots=examples(4000, 1500), distance=1, scale=1.0)

    def snapshots(step: int, modes: int) -> torch.Tensor:
        return CENTRE + torch.randn(modes, WEIGHTS, generator=generator) @ factor.T

    surroundings = planted(method, snapshots=snapshots)
    state = start(method, surroundings, 1)
    method.advance(surroundings, state, method.steps)
    mean, variance = method.moments(state)
    count, diagonal = method.snapshots, np.diag(covariance)
    error = np.sqrt(np.outer(diagonal, diagonal) + covariance**2) / math.sqrt(count)
    assert (np.abs(mean[0].numpy() - CENTRE.numpy()) < 5 * np.sqrt(diagonal / count)).all()
    assert (np.abs(variance[0].numpy() - diagonal) < 5 * np.diag(error)).all()
    # the running mean of the first snapshots is far from the mean of all: their deviations add less than 2 % here
    deviations = state.extra["deviations"][0].double().numpy()
    low_rank = deviations.T @ deviations / (count - 1)
    assert (np.abs(low_rank - covariance) < 5 * error + 0.02 * np.sqrt(np.outer(diagonal, diagonal))).all()
    draws = np.stack([flat_draw(method, surroundings, state, number)[0] for number in range(examples(4000, 1000))])
    expected = (np.diag(variance[0].numpy()) + low_rank) / 2
    spread = np.sqrt(np.outer(np.diag(expected), np.diag(expected)) + expected**2) / math.sqrt(len(draws))
    assert (np.abs(np.cov(draws.T) - expected) < 5 * spread).all()
    assert np.abs(expected[0, 5] / covariance[0, 5] - 0.5) < 0.3  # half of it, by the formula: not lost between tensors


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0])
def test_swag_draws_scale_with_the_root_of_the_scale(scale: float) -> None:
    method = dataclasses.replace(Swag.load(TOY), snapshots=4, distance=1, ramp=1)
    surroundings = planted(method, snapshots=lambda step, modes: CENTRE * (1 + step / 7) * torch.ones(modes, 1))
    state = start(method, surroundings, 2)
    method.advance(surroundings, state, method.steps)
    unit = dataclasses.replace(method, scale=1.0)
    mean = method.moments(state)[0].numpy()
    offset = flat_draw(dataclasses.replace(method, scale=scale), surroundings, state, 3) - mean
    full = flat_draw(unit, surroundings, state, 3) - mean
    assert np.allclose(offset, math.sqrt(scale) * full, atol=1e-6)
    assert not state.extra["deviations"][:, 0].any()  # the first snapshot is its own running mean


@pytest.mark.exhaustive
def test_sghmc_has_the_gaussian_as_its_stationary_distribution() -> None:
    base = Sghmc.load(TOY)
    noise, count = 10.0, TOY.train
    # a prior so broad that it is none: its precision is drawn at the first step
    settings = {"burn_in": 200, "first_draw": 2000, "epochs": 2000, "rate": 1e9, "initial_precision": 0}
    rarely = {"resample_momentum": 10**9, "resample_precision": 10**9}
    method = dataclasses.replace(base, step_size=0.1, friction=0.1, **settings, **rarely)
    generator = torch.Generator().manual_seed(1)

    def formula(weights: torch.Tensor, step: int) -> torch.Tensor:
        return (CURVATURE * (weights - CENTRE) + noise * torch.randn(weights.shape, generator=generator)) / count

    surroundings = planted(method, formula=formula)
    state = start(method, surroundings, MODES)
    burn_in = method.burn_in * method.chain.epoch_steps
    method.advance(surroundings, state, burn_in + 1500)
    found = flat_draw(method, surroundings, state, 0)
    # of gradients that are mostly noise, V is the variance, and the noise that SGHMC leaves out is that of the batches
    scale = state.extra["scale"].mean(0).double().numpy()
    assert np.abs(np.sqrt(scale) / noise - 1).max() < 0.2
    variances = 1 / CURVATURE.double().numpy()
    assert (np.abs(found.mean(0) - CENTRE.numpy()) < 5 * np.sqrt(variances / MODES)).all()
    assert (np.abs(found.var(0, ddof=1) - variances) < 5 * standard_error_of_variances(variances, MODES) + 0.03).all()
    correlations = np.corrcoef(found.T)[np.triu_indices(WEIGHTS, 1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(MODES)


@pytest.mark.slow
def test_sghmc_draws_precisions_from_their_conditional() -> None:
    stats = pytest.importorskip("scipy.stats")
    method = dataclasses.replace(Sghmc.load(TOY), step_size=1e-9, resample_precision=1)
    surroundings = planted(method, formula=lambda weights, step: torch.zeros_like(weights))
    state = start(method, surroundings, MODES)
    squares = {name: tensor.double().square().flatten(1).sum(1).numpy() for name, tensor in state.weights.items()}
    method.advance(surroundings, state, 1)
    for number, (name, tensor) in enumerate(state.weights.items()):
        shape, rate = method.shape + tensor[0].numel() / 2, method.rate + squares[name] / 2
        assert stats.kstest(state.extra["precision"][:, number].numpy() * rate, "gamma", (shape,)).pvalue > 1e-3


def test_the_scales_adapt_by_the_printed_equations() -> None:
    generator = torch.Generator().manual_seed(2)
    window, mean, scale = (1 + torch.rand(2, 3, generator=generator, dtype=torch.float64) for _ in range(3))
    expected = [tensor.clone() for tensor in (window, mean, scale)]
    for _ in range(5):
        gradient = torch.randn(2, 3, generator=generator, dtype=torch.float64)
        adapt(window, mean, scale, gradient)
        expected[0] = expected[0] - expected[1] ** 2 / (expected[2] + 1e-6) * expected[0] + 1
        expected[1] = expected[1] + (gradient - expected[1]) / (expected[0] + 1e-6)
        expected[2] = expected[2] + (gradient**2 - expected[2]) / (expected[0] + 1e-6)
    for found, exact in zip((window, mean, scale), expected, strict=True):
        assert torch.allclose(found, exact, rtol=1e-12)


def test_long_gradients_are_shortened_to_the_limit_of_the_last_norms() -> None:
    norms, seen = torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64)
    for length in (1.0, 2.0, 3.0, 4.0, 5.0):
        gradient = torch.tensor([[length, 0.0], [0.0, 1.0]])
        assert torch.equal(shortened(gradient, norms, seen, 1.0), gradient)
    limit = 3 + math.sqrt(2)
    found = shortened(torch.tensor([[30.0, 40.0], [0.0, 0.5]]), norms, seen, 1.0)
    assert torch.allclose(found, torch.tensor([[0.6 * limit, 0.8 * limit], [0.0, 0.5]]))
    assert norms[0].tolist() == [1, 2, 3, 4, 5] and norms[1].tolist() == [0.5, 1, 1, 1, 1]
    assert seen.tolist() == [5, 6]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_cyclical_sghmc_has_the_gaussian_as_its_stationary_distribution() -> None:
    base = CyclicalSghmc.load(TOY)
    method = dataclasses.replace(base, epochs=40, cycles=1, noisy=40, draws_per_cycle=1, step_size=0.4, friction=0.5)
    count, decay = TOY.train, TOY.weight_decay
    surroundings = planted(method, formula=lambda weights, step: CURVATURE * (weights - CENTRE) - decay * weights)
    state = start(method, surroundings, MODES)
    method.advance(surroundings, state, method.steps)
    found = flat_draw(method, surroundings, state, 0)
    variances = 1 / (count * CURVATURE.double().numpy())
    assert (np.abs(found.mean(0) - CENTRE.numpy()) < 5 * np.sqrt(variances / MODES)).all()
    error = standard_error_of_variances(variances, MODES)
    assert (np.abs(found.var(0, ddof=1) - variances) < 5 * error + 0.03 * variances).all()


def test_the_cycle_is_a_cosine() -> None:
    method = dataclasses.replace(CyclicalSghmc.load(TOY), epochs=8, cycles=2, draws_per_cycle=2, noisy=1)
    steps = 4 * method.chain.epoch_steps
    assert method.rate_at(0) == method.rate_at(steps) == method.step_size
    assert method.rate_at(steps // 2) == pytest.approx(method.step_size / 2)
    assert method.rate_at(2 * steps - 1) < 1e-4 * method.step_size or steps < 200
    assert sorted(method.draw_steps) == [step * method.chain.epoch_steps for step in (3, 4, 7, 8)]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_variational_network_finds_the_best_gaussian() -> None:
    method = dataclasses.replace(Bnn.load(TOY), prior=0.7, draws_per_step=3, initial_rho_linear=-2.0)
    count = TOY.train
    surroundings = planted(method, formula=lambda weights, step: CURVATURE * (weights - CENTRE) / count, rate=20.0)
    state = start(method, surroundings, 200)
    method.advance(surroundings, state, 1500)
    precision = CURVATURE.double().numpy() + 1 / 0.7**2
    gaussian = method.gaussian(surroundings, state)
    assert gaussian is not None
    names = list(TOY.arch.names)
    means = np.concatenate([gaussian[name].flatten(1).double().numpy() for name in names], 1)
    deviations = np.concatenate([gaussian[f"{name}_std"].flatten(1).double().numpy() for name in names], 1)
    assert np.allclose(means.mean(0), (CURVATURE * CENTRE).numpy() / precision, atol=0.02)
    assert np.allclose(deviations.mean(0), precision**-0.5, rtol=0.03)
    count = examples(2000, 500)
    draws = np.stack([flat_draw(method, surroundings, state, number)[0] for number in range(count)])
    assert (np.abs(draws.mean(0) - means[0]) < 5 * deviations[0] / math.sqrt(count)).all()
    error = standard_error_of_variances(deviations[0] ** 2, count)
    assert (np.abs(draws.var(0, ddof=1) - deviations[0] ** 2) < 5 * error).all()


@pytest.mark.parametrize("temperature", [1, 0.01, 12.0])
def test_its_steps_follow_the_gradient_of_the_printed_objective(temperature: float) -> None:
    method = dataclasses.replace(Bnn.load(TOY), temperature=temperature, prior=0.8)
    surroundings = planted(method, formula=lambda weights, step: weights.sin() * CURVATURE, rate=0.1)
    state = start(method, surroundings, 2)
    mean = torch.cat([state.weights[name].flatten(1) for name in TOY.arch.names], 1).double().requires_grad_()
    rho = state.extra["rho"].double().requires_grad_()
    drawn = [StepNormals(state.keys, rng.NOISE, state.extra["rho"])[index] for index in range(3)]
    method.advance(surroundings, state, 1)
    deviation, prior = torch.log1p(torch.exp(rho)), 0.8
    losses = [(-(mean + deviation * z.double()).cos() * CURVATURE).sum() for z in drawn]
    divergence = (torch.log(prior / deviation) + (deviation**2 + mean**2) / (2 * prior**2) - 0.5).sum()
    (sum(losses) / len(losses) + temperature / TOY.train * divergence).backward()
    assert mean.grad is not None and rho.grad is not None
    found = torch.cat([state.weights[name].flatten(1) for name in TOY.arch.names], 1)
    momentum_free = 0.1  # the first step of SGD is the same with momentum
    assert torch.allclose(found.double(), mean.detach() - momentum_free * mean.grad, atol=1e-6)
    assert torch.allclose(state.extra["rho"].double(), rho.detach() - momentum_free * rho.grad, atol=1e-6)
