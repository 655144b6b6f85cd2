"""Laplace's approximation: known posteriors, the distribution of draws, and the prior precision."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from builders import losses, rng
from builders.posterior.curvature import LastLayer, TrainingInputs, flatten, gauss_newton, parameter_names
from builders.posterior.gaussian import Spectrum, best_precision, decompose, draw, log_marginal_likelihood
from ckptzoo import archs
from ckptzoo.errors import ZooError
from tests.builders.posterior.test_curvature import examples_of, network, outputs_of, permute
from tests.support.effort import examples

PURPOSE = 77
FEW = examples(20_000, 4_000)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def matrix_of(rank: int, size: int, seed: int) -> torch.Tensor:
    """Random, positive semidefinite, of this rank."""
    rows = np.random.default_rng(seed).standard_normal((rank, size))
    return torch.from_numpy(rows.T @ rows)


def draws(spectrum: Spectrum, mean: torch.Tensor, precision: float, count: int) -> np.ndarray:
    """(count, P), of as many members."""
    normals = rng.normals(rng.member_keys("sha256:" + 64 * "0", range(count)), 0, len(mean), PURPOSE)
    return np.stack([draw(spectrum, mean, precision, torch.from_numpy(row)).numpy() for row in normals])


def assert_moments(made: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> None:
    """Mean and every entry of the covariance are within 5 of their standard errors."""
    variances, count = np.diag(covariance), len(made)
    assert (np.abs(made.mean(0) - mean) < 5 * np.sqrt(variances / count)).all()
    errors = np.sqrt((np.outer(variances, variances) + covariance**2) / count)
    assert (np.abs(np.cov(made.T) - covariance) < 5 * errors).all()


def test_draws_of_a_network_have_the_covariance_of_laplace() -> None:
    weights, inputs = network("mlp-tanh-2-3-2"), TrainingInputs(examples_of((2,), 30))
    names = parameter_names("mlp-tanh-2-3-2")
    curvature, mean = gauss_newton("mlp-tanh-2-3-2", "cross-entropy", weights, inputs), flatten(weights, names)
    expected = np.linalg.inv(curvature.numpy() + 0.7 * np.eye(len(mean)))
    assert_moments(draws(decompose(curvature), mean, 0.7, examples(20_000, 4000)), mean.numpy(), expected)


@pytest.mark.parametrize("has_bias", [True, False])
def test_draws_of_a_last_layer_have_the_covariance_of_its_factors(has_bias: bool) -> None:
    outputs, inputs, size = 3, 4, 4 - has_bias
    factors = LastLayer("fc", has_bias, matrix_of(6, inputs, 1), matrix_of(2, outputs, 2), 5)
    product = torch.kron(factors.outputs, factors.inputs).numpy() / 5 * 0.25
    # weights row after row, then the biases
    flat = np.arange(outputs * inputs).reshape(outputs, inputs)
    order = np.concatenate([flat[:, :size].ravel(), flat[:, size:].ravel()])
    expected = np.linalg.inv(product[order][:, order] + 0.3 * np.eye(outputs * inputs))
    mean = torch.arange(outputs * inputs, dtype=torch.float64)
    spectrum = decompose(factors, 0.25)
    assert_moments(draws(spectrum, mean, 0.3, FEW), mean.numpy(), expected)
    root = torch.stack([spectrum.inverse_root(0.3, row) for row in torch.eye(12, dtype=torch.float64)])
    assert np.allclose(root @ root, expected, rtol=1e-10) and torch.allclose(root, root.T)


class Planted:
    """A linear model with a known posterior: y = theta_1 x_1 + ... + theta_4 + noise of a known variance."""

    variance, precision = 0.3, 1.7

    def __init__(self) -> None:
        generator = np.random.default_rng(8)
        self.inputs = generator.standard_normal((25, 3))
        self.design = np.hstack([self.inputs, np.ones((25, 1))])
        noise = math.sqrt(self.variance) * generator.standard_normal(25)
        self.targets = self.design @ [1.0, -2.0, 0.5, 3.0] + noise
        self.information = self.design.T @ self.design / self.variance
        self.covariance = np.linalg.inv(self.information + self.precision * np.eye(4))
        self.mean = self.covariance @ self.design.T @ self.targets / self.variance

    def evidence(self, precision: float) -> float:
        """The exact logarithm of the marginal likelihood: the targets are jointly normal."""
        joint = self.variance * np.eye(25) + self.design @ self.design.T / precision
        _, log_det = np.linalg.slogdet(2 * math.pi * joint)
        return -(log_det + self.targets @ np.linalg.solve(joint, self.targets)) / 2

    def at_mode(self, precision: float) -> tuple[np.ndarray, float]:
        """The likeliest weights a posteriori and the log-likelihood there."""
        mode = np.linalg.solve(self.information + precision * np.eye(4), self.design.T @ self.targets / self.variance)
        errors = ((self.targets - self.design @ mode) ** 2).sum() / self.variance
        return mode, -(errors + 25 * math.log(2 * math.pi * self.variance)) / 2

    def spectrum(self) -> Spectrum:
        weights = network("mlp-3-1")
        curvature = gauss_newton("mlp-3-1", "squared-error", weights, TrainingInputs(torch.from_numpy(self.inputs)))
        # of a squared error (f - y)^2 the negative log-likelihood of this noise is 1 / (2 variance) times as much
        return decompose(curvature, 1 / (2 * self.variance))


def test_a_linear_model_has_its_exact_posterior() -> None:
    planted = Planted()
    made = draws(planted.spectrum(), torch.from_numpy(planted.mean), planted.precision, FEW)
    assert_moments(made, planted.mean, planted.covariance)


@pytest.mark.parametrize("precision", [0.02, 1.7, 40.0])
def test_a_linear_model_has_its_exact_marginal_likelihood(precision: float) -> None:
    planted = Planted()
    mode, log_likelihood = planted.at_mode(precision)
    found = log_marginal_likelihood(
        planted.spectrum(), precision, log_likelihood=log_likelihood, square_norm=float(mode @ mode)
    )
    assert found == pytest.approx(planted.evidence(precision), rel=1e-12)


def test_the_likelihood_of_a_squared_error_is_the_greatest_over_the_noise() -> None:
    errors = np.random.default_rng(0).standard_normal(40) * 0.2

    def log_likelihood(variance: float) -> float:
        return -float((errors**2 / variance + np.log(2 * math.pi * variance)).sum()) / 2

    mean = float((errors**2).mean())
    found = losses.get("squared-error").likelihood(mean, 40)
    assert found.log == pytest.approx(log_likelihood(mean), rel=1e-12)
    assert found.log > max(log_likelihood(mean * 1.01), log_likelihood(mean / 1.01))
    assert found.scale * mean * 40 == pytest.approx(float((errors**2).sum() / (2 * mean)), rel=1e-12)
    for mean in (0.0, math.nan, math.inf):
        with pytest.raises(ZooError, match="squared error: mean of training: expected finite and above 0, got"):
            losses.get("squared-error").likelihood(mean, 40)


@given(
    values=st.lists(st.floats(1e-6, 1e8), min_size=1, max_size=8),
    zeros=st.integers(0, 4),
    square_norm=st.floats(1e-6, 1e6),
)
@settings(max_examples=examples(300))
def test_the_best_precision_is_where_the_marginal_likelihood_is_greatest(
    values: list[float], zeros: int, square_norm: float
) -> None:
    spectrum = decompose(torch.diag(torch.tensor(values + zeros * [0.0], dtype=torch.float64)))
    best = best_precision(spectrum, square_norm)
    determined = sum(value / (value + best) for value in values)
    assert best * square_norm == pytest.approx(determined, rel=1e-9)

    def at(precision: float) -> float:
        return log_marginal_likelihood(spectrum, precision, log_likelihood=-3.0, square_norm=square_norm)

    slack = 1e-9 * (1 + abs(at(best)))
    assert all(at(best * factor) <= at(best) + slack for factor in (1e-3, 0.5, 0.99, 1.01, 2.0, 1e3))


@pytest.mark.parametrize("precision", [0.0, -1.0, math.nan, math.inf])
def test_a_precision_out_of_range_is_refused(precision: float) -> None:
    spectrum, zeros = decompose(matrix_of(3, 3, 0)), torch.zeros(3, dtype=torch.float64)
    with pytest.raises(ZooError, match="laplace: prior precision: expected a finite number above 0, got"):
        draw(spectrum, zeros, precision, zeros)
    with pytest.raises(ZooError, match="laplace: prior precision: expected a finite number above 0, got"):
        log_marginal_likelihood(spectrum, precision, log_likelihood=0.0, square_norm=1.0)


def test_without_curvature_or_weights_no_precision_is_best() -> None:
    for matrix, square_norm in ((torch.zeros(2, 2), 1.0), (torch.eye(2), 0.0), (torch.eye(2), math.nan)):
        with pytest.raises(ZooError, match="laplace: best prior precision: expected both finite and above 0, got"):
            best_precision(decompose(matrix.double()), square_norm)


def test_a_curvature_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ZooError, match="laplace: curvature: expected finite numbers, got others"):
        decompose(torch.tensor([[1.0, math.nan], [math.nan, 1.0]], dtype=torch.float64))


@pytest.mark.parametrize(("architecture", "shape"), [("optunet", (1, 28, 28)), ("mlp-tanh-3-5-4", (3,))])
def test_draws_follow_permuted_weights(architecture: str, shape: tuple[int, ...]) -> None:
    weights, inputs = network(architecture), TrainingInputs(examples_of(shape, 60))
    permuted, order, signs = permute(architecture, weights, 6)
    names, normals = parameter_names(architecture), torch.from_numpy(examples_of((len(order),), 1).numpy()[0])
    made: list[torch.Tensor] = []
    for some, numbers in ((weights, normals), (permuted, signs * normals[order])):
        spectrum = decompose(gauss_newton(architecture, "cross-entropy", some, inputs))
        made.append(draw(spectrum, flatten(some, names), 1e-2, numbers))
    assert float((made[1] - signs * made[0][order]).abs().max() / made[0].abs().max()) < 1e-8


@pytest.mark.parametrize("architecture", ["optunet", "mlp-tanh-6-5-3"])
def test_laplace_torch_agrees(architecture: str) -> None:
    laplace = pytest.importorskip("laplace")
    shape = (1, 28, 28) if architecture == "optunet" else (6,)
    weights, inputs = network(architecture), examples_of(shape, 40)
    outputs = outputs_of(architecture, weights, inputs)
    labels = torch.from_numpy(np.random.default_rng(3).integers(outputs.shape[1], size=40))
    curvature = gauss_newton(architecture, "cross-entropy", weights, TrainingInputs(inputs))
    model = archs.get(architecture)().double().eval()
    model.load_state_dict(weights)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = laplace.Laplace(model, "classification", subset_of_weights="all", hessian_structure="full")
        fitted.fit(DataLoader(TensorDataset(inputs, labels), batch_size=20))
        theirs = float(fitted.log_marginal_likelihood(torch.tensor(2.5, dtype=torch.float64)))
    assert float((fitted.H - curvature).abs().max() / curvature.abs().max()) < 1e-6
    vector = flatten(weights, parameter_names(architecture))
    mean_loss = float(torch.nn.functional.cross_entropy(outputs, labels))
    likelihood = losses.get("cross-entropy").likelihood(mean_loss, 40)
    ours = log_marginal_likelihood(
        decompose(curvature, likelihood.scale),
        2.5,
        log_likelihood=likelihood.log,
        square_norm=float(vector @ vector),
    )
    # laplace-torch leaves the prior's and the determinant's constants out, which cancel
    assert ours == pytest.approx(theirs, rel=1e-6)
