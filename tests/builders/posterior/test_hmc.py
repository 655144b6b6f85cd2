"""Hamiltonian Monte Carlo: laws of its trajectories, a posterior in closed form, rejections, and stops."""

import dataclasses
import json
import math
import sys
import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ckptzoo
from builders import posterior, rng, sources
from builders.build import build as build_members
from builders.checkpointing import BuildFolder, Unit
from builders.energy import Spent
from builders.posterior.build import build
from builders.posterior.method import Surroundings, flatten, parameters
from builders.recipe import Recipe
from builders.state import TrainingState
from ckptzoo.errors import MissingExtraError, SpecError, ZooError
from tests.support.builds import QUIET
from tests.support.effort import examples

pytestmark = pytest.mark.skipif(find_spec("blackjax") is None, reason="the extra hmc is not installed")
TOY = Recipe.load("toy")
LINEAR = dataclasses.replace(TOY, architecture="mlp-2-1", loss="squared-error", precision="float64")
SHORT: dict[str, Any] = {"least_leapfrogs": 1, "most_leapfrogs": 10, "thinning": 1}


def method_of(recipe: Recipe, **changes: Any) -> Any:
    return posterior.get("hmc").load(recipe, None, {**SHORT, **changes})


def surroundings_of(method: Any) -> Surroundings:
    source = sources.load(method.recipe)
    return Surroundings(sources.data_source(method.chain, source, "cpu"), source, "mlp")


def started(method: Any, modes: int) -> tuple[Surroundings, TrainingState]:
    surroundings = surroundings_of(method)
    return surroundings, method.start(surroundings, rng.member_keys(method.digest, range(modes)), None)


def positions(state: TrainingState, recipe: Recipe = TOY) -> np.ndarray:
    """(M, P): the weights as they are stored."""
    return flatten(state.weights, parameters(recipe.arch)).numpy().copy()


@pytest.mark.exhaustive
def test_half_the_step_has_a_quarter_of_the_energy_error() -> None:
    import jax
    from blackjax.mcmc import integrators, metrics

    from builders.posterior.log_density import examples_last, log_density

    recipe = dataclasses.replace(TOY, architecture="mlp-tanh-2-4-1", precision="float64")
    source = sources.load(recipe)
    arrays = sources.train_inputs(recipe, source, 0, recipe.train), source.half("train")[1]
    generator = np.random.default_rng(0)
    start, momentum = generator.normal(size=(2, recipe.arch.parameters)) / 2
    with jax.enable_x64(True):
        density = log_density(recipe, 1.0, 1.0, *map(jax.numpy.asarray, examples_last(recipe, *arrays)))
        kinetic = metrics.default_metric(jax.numpy.ones(len(start))).kinetic_energy
        leap = integrators.velocity_verlet(density, kinetic)

        @jax.jit
        def error(size: float, count: int) -> Any:
            state = integrators.new_integrator_state(density, start, momentum)
            end = jax.lax.fori_loop(0, count, lambda _, state: leap(state, size), state)
            energies = [kinetic(point.momentum) - point.logdensity for point in (state, end)]
            return energies[1] - energies[0]

        errors = [float(error(0.01 / 2**halvings, 20 * 2**halvings)) for halvings in range(4)]
    ratios = np.divide(errors[:-1], errors[1:])
    assert np.abs(ratios[1:] - 4).max() < 0.1 and abs(errors[0]) > 1e-4


@pytest.mark.exhaustive
def test_a_linear_network_has_its_posterior_in_closed_form() -> None:
    prior, temperature, modes = 0.5, 40.0, examples(2000, 100)
    changes = {"prior": prior, "temperature": temperature, "burn_in": 60, "transitions": 40, "step_size": 0.1}
    method = method_of(LINEAR, **changes, thinning=20)
    surroundings, state = started(method, modes // 2)
    # others start at given weights, far out in the prior and on one side of it
    keys = rng.member_keys(method.digest, range(modes // 2, modes))
    weights = {name: tensor + 3 * prior for name, tensor in state.weights.items()}
    drawn: list[np.ndarray] = []
    for chains in (state, method.start(surroundings, keys, weights)):
        for step, numbers in method.stops(range(method.max_draws)):
            method.advance(surroundings, chains, step)
            drawn += [flatten(method.draw(surroundings, chains, n), parameters(LINEAR.arch)).numpy() for n in numbers]
    found, modes = np.concatenate(drawn), 2 * modes
    assert found.shape == (modes, 3)
    source = sources.load(LINEAR)
    inputs, targets = (array.astype(np.float64) for array in source.half("train"))
    design = np.column_stack([inputs, np.ones(len(inputs))])
    covariance = np.linalg.inv(2 / temperature * design.T @ design + np.eye(3) / prior**2)
    mean = covariance @ (2 / temperature * design.T @ targets)
    deviations = np.sqrt(np.diag(covariance))
    assert (np.abs(found.mean(0) - mean) < 5 * deviations / math.sqrt(modes)).all()
    error = np.sqrt(np.outer(deviations**2, deviations**2) + covariance**2) / math.sqrt(modes)
    assert (np.abs(np.cov(found.T) - covariance) < 5 * error).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize("burn_in", [0, 60])
def test_a_rejected_transition_repeats_the_weights(burn_in: int) -> None:
    method = method_of(TOY, burn_in=burn_in, transitions=6, target_acceptance=0.5, step_size=0.1)
    surroundings, state = started(method, 12)
    method.advance(surroundings, state, burn_in)
    assert not state.extra["accepted"].any()
    seen = [positions(state)]
    for step in range(burn_in, method.steps):
        before = state.extra["accepted"].clone()
        method.advance(surroundings, state, step + 1)
        seen.append(positions(state))
        accepted = (state.extra["accepted"] - before).numpy()
        assert ((seen[-1] != seen[-2]).any(1) == accepted.astype(bool)).all()
        assert step > burn_in or set(accepted) == {0, 1}, "of the first after burn-in some are rejected, some are not"
    assert [facts["acceptance"] for facts in method.mode_facts(state)] == (
        state.extra["accepted"].double() / 6
    ).tolist()


@pytest.mark.exhaustive
def test_draws_of_a_zoo_are_the_chain_after_each_transition(tmp_path: Path) -> None:
    changes = {**SHORT, "burn_in": 60, "transitions": 6, "target_acceptance": 0.5}
    build("hmc", TOY, tmp_path / "zoo", modes=3, draws=6, changes=changes, console=QUIET)
    zoo, method = ckptzoo.open(tmp_path / "zoo"), method_of(TOY, **changes)
    surroundings, state = started(method, 3)
    rows = zoo.metadata.to_pylist()
    weights = {name: zoo[name][:] for name in zoo.arch.names}
    repeated = 0
    for step in range(61, 67):
        before = positions(state)
        method.advance(surroundings, state, step)
        for mode in range(3):
            row = next(row for row, facts in enumerate(rows) if (facts["seed"], facts["step"]) == (mode, step))
            drawn = np.concatenate([array[row].ravel() for array in weights.values()])
            assert drawn.tobytes() == positions(state)[mode].tobytes()
            repeated += drawn.tobytes() == before[mode].tobytes()
            extra = json.loads(rows[row]["extra"])
            assert extra["acceptance"] == method.mode_facts(state)[mode]["acceptance"]
            assert (extra["engine"], rows[row]["method"]) == ("blackjax", "hmc")
    assert repeated


@pytest.mark.exhaustive
@pytest.mark.slow
def test_chains_start_at_members_where_a_zoo_is_named(tmp_path: Path) -> None:
    recipe = TOY.shortened(1)
    build_members(recipe, tmp_path / "members", members=2, console=QUIET)
    # steps so short that draws are where chains start
    changes = {**SHORT, "burn_in": 0, "transitions": 2, "step_size": 1e-12}
    build("hmc", recipe, tmp_path / "zoo", modes=2, draws=2, start=tmp_path / "members", changes=changes, console=QUIET)
    starts, zoo = ckptzoo.open(tmp_path / "members"), ckptzoo.open(tmp_path / "zoo")
    rows, names = zoo.metadata.to_pylist(), starts.metadata["member"].to_pylist()
    plain = method_of(recipe, **changes)
    assert {row["recipe_digest"] for row in rows} == {plain.from_members().digest} != {plain.digest} and len(rows) == 4
    for number, row in enumerate(rows):
        assert row["mode"] == names[row["seed"]]
        assert json.loads(row["extra"])["settings"]["initial"] == "member"
        for name in zoo.arch.names:
            np.testing.assert_allclose(zoo[name][number], starts[name][row["seed"]], atol=1e-5)


@pytest.mark.exhaustive
def test_stops_change_no_bit(tmp_path: Path) -> None:
    method = method_of(TOY, burn_in=40, transitions=10)
    surroundings, whole = started(method, 2)
    method.advance(surroundings, whole, method.steps)
    unit, folder = Unit("chains", (0, 1)), BuildFolder(tmp_path)
    for stop in (1, 2, 34, 35, 36, 40, 41, 50):
        surroundings, state = started(method, 2)
        folder.restore(unit, state)
        method.advance(surroundings, state, stop)
        folder.save(unit, state, Spent())
    for name, tensor in whole.extra.items():
        assert tensor.numpy().tobytes() == state.extra[name].numpy().tobytes(), name
    assert positions(whole).tobytes() == positions(state).tobytes()


@pytest.mark.parametrize(
    "recipe",
    [
        TOY,
        pytest.param(
            dataclasses.replace(TOY, architecture="mlp-2-30-20-1", precision="float64"), marks=pytest.mark.exhaustive
        ),
    ],
)
@pytest.mark.exhaustive
def test_a_chain_does_not_depend_on_those_beside_it(recipe: Recipe) -> None:
    method = method_of(recipe, burn_in=25, transitions=5)
    surroundings, together = started(method, 5)
    for group in together.split(2):
        method.advance(surroundings, group, method.steps)
    for mode in range(5):
        keys = rng.member_keys(method.digest, [mode])
        alone = method.start(surroundings, keys, None)
        method.advance(surroundings, alone, method.steps)
        for name, tensor in alone.weights.items():
            assert tensor[0].numpy().tobytes() == together.weights[name][mode].numpy().tobytes()


@pytest.mark.exhaustive
def test_the_warm_up_adapts_as_blackjax_does() -> None:
    import jax
    from blackjax.adaptation import window_adaptation

    from builders.posterior import hmc

    method = method_of(TOY, burn_in=160, transitions=1, target_acceptance=0.7, step_size=0.2)
    generator, windows = np.random.default_rng(0), hmc._windows(160)
    assert windows[:, 1].sum() == 1 and 0 < windows[:, 0].sum() < 160
    with jax.enable_x64(True):
        _, state = started(method, 1)
        leaves = [state.extra[name][0].numpy() for name in hmc._NAMES]
        chain = jax.tree.unflatten(hmc._TREE, leaves)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            init, update, final = window_adaptation.base(True, target_acceptance_rate=0.7)
        update, adapted = jax.jit(update), jax.jit(partial(hmc._adapted, method))
        expected = init(chain.hmc.position, 0.2)
        for step in range(160):
            position, acceptance = generator.normal(size=9), generator.uniform()
            chain = chain._replace(hmc=chain.hmc._replace(position=position))
            chain = adapted(windows, step, acceptance, chain)
            expected = update(expected, tuple(windows[step].astype(int)), position, acceptance)
            size, scaling = (expected.step_size, expected.inverse_mass_matrix) if step < 159 else final(expected)
            assert float(chain.step_size) == pytest.approx(float(size), rel=1e-12)
            np.testing.assert_allclose(chain.scaling.inverse_mass_matrix, scaling, rtol=1e-12)
        assert not np.allclose(scaling, 1)


@pytest.mark.exhaustive
def test_energies_that_are_not_finite_are_refused_by_mode_and_step(tmp_path: Path) -> None:
    with pytest.raises(
        ZooError, match=r"energy of mode toy-hmc-\w{8}-000000 after 0 transitions: expected finite, got inf"
    ):
        build("hmc", TOY, tmp_path / "zoo", modes=2, draws=1, changes={**SHORT, "temperature": 1e-320}, console=QUIET)
    method = method_of(TOY, burn_in=0, transitions=9)
    surroundings, state = started(method, 3)
    method.advance(surroundings, state, 4)
    state.extra["hmc.logdensity"][2] = math.nan
    with pytest.raises(
        ZooError, match=r"energy of mode toy-hmc-\w{8}-000002 after 4 transitions: expected finite, got nan"
    ):
        method.advance(surroundings, state, 9)
    weights = {name: torch.full((1, *TOY.arch[name].shape), 1e30) for name in TOY.arch.names}
    with pytest.raises(ZooError, match="mode with key 5 after 0 transitions: expected finite, got"):
        method.start(surroundings, np.array([5], np.uint64), weights)


def test_what_is_refused(tmp_path: Path) -> None:
    for changes, message in (
        ({"architecture": "resnet8-conv-1"}, "architecture: expected mlp-... or optunet, got resnet8-conv-1"),
        ({"precision": "bfloat16"}, "precision: expected float32 or float64, got bfloat16"),
    ):
        with pytest.raises(SpecError, match=message):
            method_of(dataclasses.replace(TOY, **changes))
    for changes, message in (
        ({"least_leapfrogs": 11}, "least_leapfrogs: expected at most most_leapfrogs, 10, got 11"),
        ({"thinning": 5, "transitions": 4}, "thinning: expected at most transitions, 4"),
        ({"burn_in": 999_999, "transitions": 2}, "transitions: expected at most 1 beside 999999 of burn-in"),
        ({"target_acceptance": 1}, "target_acceptance: expected a number above 0 to 0.999"),
        ({"prior": 0}, "prior: expected a number above 0"),
    ):
        with pytest.raises(SpecError, match=message):
            method_of(TOY, **changes)
    with pytest.raises(
        ZooError, match="engine of method hmc: expected none, because blackjax takes the steps, got mlp"
    ):
        build("hmc", TOY, tmp_path / "zoo", modes=1, draws=1, engine="mlp", console=QUIET)
    with pytest.raises(ZooError, match="draws of a mode of hmc: expected at most 2, got 3"):
        build("hmc", TOY, tmp_path / "zoo", modes=1, draws=3, changes={"transitions": 5, "thinning": 2}, console=QUIET)
    assert not (tmp_path / "zoo").exists()


def test_without_blackjax_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'ckptzoo\[hmc\]'"):
        posterior.get("hmc")
