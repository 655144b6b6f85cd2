"""Permuting the initial weights and every later draw alike permutes the result (arXiv 2310.08287, Propositions 3, 4)."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from builders import engines, posterior, rng, sources
from builders.data_source import Feed, TrainingBatch
from builders.posterior.method import Method, Surroundings, flatten, unflatten
from builders.recipe import Recipe
from builders.state import Tensors, TrainingState

RECIPE = dataclasses.replace(Recipe.load("toy"), architecture="mlp-2-5-4-1", learning_rate=0.1, momentum=0.5)
NAMES = list(RECIPE.arch.names)
FIRST, SECOND = torch.tensor([3, 0, 4, 1, 2]), torch.tensor([2, 3, 1, 0])
SETTINGS: dict[str, dict[str, Any]] = {
    "dropout": {"p": 0.4},
    "bnn": {},
    "sghmc": {"epochs": 4, "batch": 16, "burn_in": 1, "first_draw": 2, "resample_momentum": 7, "step_size": 2e-3},
    "csghmc": {"epochs": 4, "cycles": 2, "noisy": 1, "draws_per_cycle": 1, "step_size": 0.05},
    "swag": {"snapshots": 3, "distance": 1, "ramp": 1},
    "laplace": {},
    "hmc": {"burn_in": 0, "transitions": 6, "thinning": 2, "most_leapfrogs": 8, "step_size": 0.01},
}


def permuted(tensors: Tensors) -> Tensors:
    """The same network with the neurons of both hidden layers in another order; stacked along any leading axes."""
    weight1, bias1, weight2, bias2, weight3, bias3 = (tensors[name] for name in NAMES)
    moved = [weight1[..., FIRST, :], bias1[..., FIRST], weight2[..., SECOND, :][..., FIRST]]
    return dict(zip(NAMES, [*moved, bias2[..., SECOND], weight3[..., SECOND], bias3], strict=True))


def permuted_rows(flat: torch.Tensor, like: Tensors) -> torch.Tensor:
    return flatten(permuted(unflatten(flat, like, NAMES)), NAMES)


@dataclass(frozen=True, eq=False)
class PermutedMasks:
    """A training set whose masks of dropped units are permuted as the second hidden layer is."""

    feed: Feed

    @property
    def recipe(self) -> Recipe:
        return self.feed.recipe

    @property
    def device(self) -> torch.device:
        return self.feed.device

    def network_inputs(self, raw: torch.Tensor) -> torch.Tensor:
        return self.feed.network_inputs(raw)

    def batches(self, keys: NDArray[np.uint64], start: int, stop: int) -> Iterator[TrainingBatch]:
        for batch in self.feed.batches(keys, start, stop):
            yield batch if batch.scales is None else batch._replace(scales=batch.scales[..., SECOND])


def initial(keys: NDArray[np.uint64]) -> Tensors:
    return {name: torch.from_numpy(array) for name, array in rng.initial_weights(RECIPE.arch, keys).items()}


def close(found: Tensors, expected: Tensors) -> bool:
    # chains amplify roundings, which differ with the order in which neurons are summed
    return all(torch.allclose(found[name], expected[name], rtol=1e-3, atol=2e-3) for name in expected)


@pytest.mark.parametrize("engine", ["general", "mlp"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_sgd(engine: str, dropout: float) -> None:
    recipe = dataclasses.replace(RECIPE, dropout=dropout)
    feed = sources.data_source(recipe, sources.load(recipe), "cpu")
    keys = rng.member_keys(recipe.digest, range(3))
    plain, other = (
        TrainingState(keys, weights, {name: torch.zeros_like(tensor) for name, tensor in weights.items()})
        for weights in (initial(keys), permuted(initial(keys)))
    )
    engines.get(engine)(feed, plain, 60)
    engines.get(engine)(PermutedMasks(feed), other, 60)
    assert not close(plain.weights, initial(keys))
    assert not close(other.weights, plain.weights)
    assert close(other.weights, permuted(plain.weights))


def drawn_by(method: Method, masks: Callable[[Feed], Feed], start: Tensors) -> tuple[TrainingState, list[Tensors]]:
    source = sources.load(RECIPE)
    surroundings = Surroundings(masks(sources.data_source(method.chain, source, "cpu")), source, "mlp")
    state = method.start(surroundings, rng.member_keys(method.digest, range(3)), start)
    method.advance(surroundings, state, method.steps // 2)
    method.advance(surroundings, state, method.steps)
    return state, [method.draw(surroundings, state, number) for number in range(3)]


@pytest.fixture
def permute_momenta(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Tensors], None]]:
    """Lets the normal numbers of blackjax be permuted as the weights are; what is compiled before and after is not."""

    def permute(like: Tensors) -> None:
        order = permuted_rows(torch.arange(RECIPE.arch.parameters)[None], like)[0].numpy()
        noise = metrics.generate_gaussian_noise
        monkeypatch.setattr(metrics, "generate_gaussian_noise", lambda *given, **named: noise(*given, **named)[order])
        jax.clear_caches()

    import jax
    from blackjax.mcmc import metrics

    yield permute
    jax.clear_caches()


PLAIN: dict[str, Any] = {}
OTHER = {"nesterov": True, "schedule": "cosine", "precision": "float64"}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        # what jax compiles for HMC takes most of the time
        pytest.param(name, keys, marks=pytest.mark.exhaustive if name == "hmc" or keys is OTHER else ())
        for name in posterior.names()
        for keys in (PLAIN, OTHER)
    ],
)
@pytest.mark.sampled(4)
def test_every_method(
    name: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    recipe = dataclasses.replace(RECIPE, epochs=3, **keys)
    method = posterior.get(name).load(recipe, None, SETTINGS[name])
    start = initial(rng.member_keys(method.digest, range(3)))
    _, plain = drawn_by(method, lambda feed: feed, start)
    normals, count = rng.normals, RECIPE.arch.parameters

    def permuted_normals(*arguments: Any) -> NDArray[np.float64]:
        drawn = torch.from_numpy(normals(*arguments))
        rows = drawn.reshape(-1, drawn.shape[-1])
        # the numbers behind those of the weights, one a snapshot, belong to no neuron
        moved = torch.cat([permuted_rows(rows[:, :count], start), rows[:, count:]], 1)
        return moved.reshape(drawn.shape).numpy()

    monkeypatch.setattr(rng, "normals", permuted_normals)
    if name == "dropout":
        kept = rng.kept_units

        def permuted_units(*arguments: Any) -> NDArray[np.bool_]:
            masks = kept(*arguments)
            return masks[..., SECOND.numpy()] if arguments[-1] == rng.DRAWN_MASKS else masks

        monkeypatch.setattr(rng, "kept_units", permuted_units)
    if name == "hmc":
        request.getfixturevalue("permute_momenta")(start)
    _, other = drawn_by(method, PermutedMasks, permuted(start))
    for first, second in zip(plain, other, strict=True):
        assert not close(second, first)
        assert close(second, permuted(first))
