"""Fitted scales: exact for one group, copies in any scale are found, normalised channels, monotone, and refusals."""

import itertools
from typing import Any

import numpy as np
import pytest

from ckptzoo import archs
from ckptzoo.errors import SymmetryError, UnknownNameError
from ckptzoo.symmetry import GroupElement, align, apply
from ckptzoo.symmetry.alignment import matching
from tests.symmetry.alignment.test_align import Weights, one_of, random_weights

NAMES = ("mlp-6-9-3", "mlp-tanh-6-9-5-3", "optunet", "resnet8-pad-10")


def positive(weights: Weights) -> Weights:
    """Running variances that are some."""
    return {name: np.abs(array) + 0.5 if "running_var" in name else array for name, array in weights.items()}


def pair(name: str, K: int) -> tuple[Weights, Weights]:
    return positive(random_weights(name, K, 1)), one_of(positive(random_weights(name, 1, 2)))


def test_one_hidden_layer_is_exact() -> None:
    weights, reference = pair("mlp-3-4-2", 5)
    found = align(weights, reference, "mlp-3-4-2", scales="fit")
    scales = np.geomspace(1e-3, 1e3, 40_001)
    assert found.scales == "fit" and np.isnan(found.bound).all() and np.isnan(found.gap).all()
    for k in range(5):
        b = {name: array[k] for name, array in weights.items()}
        costs = np.empty((4, 4))
        for i, j in itertools.product(range(4), repeat=2):
            wrote = [np.append(net["fc1.weight"][at], net["fc1.bias"][at]) for net, at in ((reference, i), (b, j))]
            reads = [net["fc2.weight"][:, at] for net, at in ((reference, i), (b, j))]
            costs[i, j] = min(
                ((wrote[0][:, None] - scales * wrote[1][:, None]) ** 2).sum(0)
                + ((reads[0][:, None] - reads[1][:, None] / scales) ** 2).sum(0)
            )
        best = min(costs[range(4), perm].sum() for perm in itertools.permutations(range(4)))
        best += ((reference["fc2.bias"] - b["fc2.bias"]) ** 2).sum()
        assert found.distance[k] ** 2 <= best + 1e-12
        np.testing.assert_allclose(found.distance[k] ** 2, best, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gauge", [None, "min-mass"])
@pytest.mark.sampled(2)
def test_copies_in_any_order_and_scale_are_found(name: str, gauge: str | None) -> None:
    table, (_, reference) = archs.symmetry(name), pair(name, 1)
    copies = {key: np.repeat(array[None], 3, axis=0) for key, array in reference.items()}
    g = GroupElement.random(table, 3, np.random.default_rng(3), spread=0.3)
    found = align(apply(g, copies, table), reference, name, scales="fit", gauge=gauge)
    assert found.aligned.all() and (found.distance < 1e-8).all()


def test_single_precision_and_networks_that_are_not_finite() -> None:
    weights, reference = pair("optunet", 3)
    expected = align(weights, reference, "optunet", scales="fit")
    single = {name: array.astype(np.float32) for name, array in weights.items()}
    single["fc.bias"][1, 0] = np.nan
    found = align(single, reference, "optunet", scales="fit")
    assert found.aligned.tolist() == [True, False, True] and found.weights["fc.weight"].dtype == np.float32
    np.testing.assert_array_equal(found.weights["conv2.weight"][1], single["conv2.weight"][1])
    np.testing.assert_allclose(found.distance[[0, 2]], expected.distance[[0, 2]], rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(2)
def test_no_sweep_raises_the_distance(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, reference = pair(name, 2)
    distances: list[np.ndarray] = []
    for sweeps in range(4):
        monkeypatch.setattr(matching, "MAX_SWEEPS", sweeps)
        distances.append(align(weights, reference, name, scales="fit").distance)
    for before, after in itertools.pairwise(distances):
        assert (after <= before * (1 + 1e-12)).all()
    assert (distances[1] < distances[0]).any() or name.startswith("mlp-tanh")


def test_normalised_channels_have_the_norms_of_the_reference() -> None:
    """They would vanish where the distance is least."""
    name = "resnet8-pad-10"
    weights, reference = pair(name, 2)
    found = align(weights, reference, name, scales="fit")
    for layer in ("conv1", "layer2.0.conv1"):
        filters = [
            np.linalg.norm(array.reshape(*array.shape[:-3], -1), axis=-1)
            for array in (found.weights[f"{layer}.weight"], reference[f"{layer}.weight"])
        ]
        if layer == "conv1":  # what it reads has no scale
            np.testing.assert_allclose(filters[0], np.broadcast_to(filters[1], filters[0].shape), rtol=1e-6)
        assert (filters[0] > 0.05 * filters[1]).all()
    signs = np.sign(found.weights["bn1.weight"]) * np.sign(reference["bn1.weight"])
    assert (signs == 1).all()


def test_what_is_refused() -> None:
    weights, reference = pair("mlp-3-4-2", 2)
    for error, match, options in (
        (UnknownNameError, "scales 'fitted'", {"scales": "fitted"}),
        (SymmetryError, "expected method 'weights', got 'activations'", {"scales": "fit", "method": "activations"}),
    ):
        given: dict[str, Any] = options
        with pytest.raises(error, match=match):
            align(weights, reference, "mlp-3-4-2", **given)
