"""R-hat and effective sample sizes of chains whose answers are known."""

from importlib import import_module

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ckptzoo.errors import ZooError
from ckptzoo.measure import convergence, tail_ess

pytest.importorskip("arviz_stats.base", reason="the extra hmc is not installed")
MODULE = import_module("ckptzoo.measure.convergence")


def chains(correlation: float, draws: int = 2000, seed: int = 0) -> NDArray[np.float64]:
    """(4, draws, 3) of stationary autoregressive chains of variance 1."""
    numbers = np.random.default_rng(seed).normal(size=(4, draws, 3))
    for draw in range(1, draws):
        numbers[:, draw] = correlation * numbers[:, draw - 1] + np.sqrt(1 - correlation**2) * numbers[:, draw]
    return numbers


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_chains_with_a_known_correlation(correlation: float) -> None:
    found = convergence(chains(correlation))
    expected = 8000 * (1 - correlation) / (1 + correlation)
    assert np.abs(found.ess / expected - 1).max() < 0.2
    assert found.rhat.max() < 1.01 + 0.02 * correlation and found.rhat.min() > 0.999


def test_a_chain_elsewhere_or_of_another_width_is_seen() -> None:
    draws = chains(0.0, 500)
    draws[0, :, 1] += 2
    draws[0, :, 2] *= 4
    found = convergence(draws)
    assert found.rhat[0] < 1.01 and found.rhat[1] > 1.2 and found.rhat[2] > 1.05
    drift = np.linspace(0, 3, 500)[None, :, None] + chains(0.0, 500)  # in each chain alike, so that halves differ
    assert convergence(drift).rhat.min() > 1.2


def test_only_ranks_count() -> None:
    draws = chains(0.5, 300)
    plain, moved = convergence(draws), convergence(np.exp(draws))
    np.testing.assert_allclose(moved.ess, plain.ess, rtol=1e-12)
    scaled = convergence(4 * draws - 1)
    np.testing.assert_allclose(scaled, plain, rtol=1e-6)
    np.testing.assert_allclose(convergence(draws[::-1]), plain, rtol=1e-9)


def test_blocks_leave_every_bit_and_take_any_array(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.concatenate([chains(0.5, 50, seed) for seed in range(3)], 2).astype(np.float32)
    whole = convergence(draws)
    monkeypatch.setattr(MODULE, "BLOCK", 4 * 4 * 50)
    for given in (draws, torch.from_numpy(draws)):
        for found, expected in zip(convergence(given), whole, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_what_never_moves_has_no_answer() -> None:
    draws = chains(0.0, 20)
    draws[..., 0] = 3.0
    draws[..., 1] = np.arange(4)[:, None]  # each chain stays at another place
    found = convergence(draws)
    assert np.isnan(found.rhat[0]) and np.isnan(found.ess[0])
    assert found.rhat[1] > 1e3 and np.isfinite(found.rhat[2])


@pytest.mark.parametrize("shape", [(1, 100, 3), (4, 3, 3), (4, 100)])
def test_too_few_chains_or_draws_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ZooError, match=r"2 chains or more of 4 draws or more.*, got \("):
        convergence(np.zeros(shape))


def test_what_is_not_finite_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = chains(0.0, 10)
    draws[2, 7, 1] = np.inf
    monkeypatch.setattr(MODULE, "BLOCK", 1)
    with pytest.raises(ZooError, match="draw 7 of parameter 1 in chain 2: expected a finite number, got inf"):
        convergence(draws)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_tails_have_draws_of_their_own(correlation: float) -> None:
    found = tail_ess(chains(correlation))
    assert found.shape == (3,)
    # of independent draws as many; neighbours that are alike lose less at a quantile than at the mean
    least, most = (0.8, 1.2) if correlation == 0 else (0.05, 0.3)
    assert least * 8000 < found.min() and found.max() < most * 8000
    stuck = chains(0.0, 500)
    # the middle moves freely, and what is far out stays where it is for long
    stuck[:, :, 0] = np.where(np.abs(stuck[:, :, 0]) > 1, np.sort(stuck[:, :, 0], axis=1), stuck[:, :, 0])
    assert tail_ess(stuck)[0] < 0.1 * convergence(chains(0.0, 500)).ess.min()
    constant = np.zeros((4, 20, 1))
    assert np.isnan(tail_ess(constant)).all()
    with pytest.raises(ZooError, match="2 chains or more"):
        tail_ess(constant[:1])
