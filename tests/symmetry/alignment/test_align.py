"""Alignment against brute force and other known answers, planted copies, and what is refused."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from ckptzoo import archs
from ckptzoo.errors import SymmetryError, UnknownNameError
from ckptzoo.symmetry import GroupElement, align, apply, canonicalize
from ckptzoo.symmetry.kinds import assignment

Weights = dict[str, np.ndarray]


def random_weights(name: str, K: int, seed: int, dtype: type = np.float64) -> Weights:
    """Normal weights over the root of the fan-in, variances above 0.5, counters 0."""
    rng = np.random.default_rng(seed)
    made: Weights = {}
    for tensor in archs.architecture(name).tensors:
        shape = (K, *tensor.shape)
        if not tensor.dtype.startswith("float"):
            made[tensor.name] = np.zeros(shape, np.int64)
            continue
        array = rng.standard_normal(shape) / np.sqrt(max(1, int(np.prod(tensor.shape[1:]))))
        positive = tensor.name.endswith(("running_var", "_std"))
        made[tensor.name] = (0.5 + np.abs(array) if positive else array).astype(dtype)
    return made


def one_of(weights: Weights, k: int = 0) -> Weights:
    return {name: array[k] for name, array in weights.items()}


def permutations(name: str, K: int, seed: int) -> GroupElement:
    table = archs.symmetry(name)
    random = GroupElement.random(table, K, np.random.default_rng(seed))
    return GroupElement(random.perms, GroupElement.identity(table, K).scales)


def test_optunets_are_matched_as_by_brute_force() -> None:
    weights, reference = random_weights("optunet", 3, 1), one_of(random_weights("optunet", 1, 2))
    found = align(weights, reference, "optunet")
    inner = np.array(list(itertools.permutations(range(5))))
    both = np.array(
        [np.concatenate([5 * first + a, 5 * (1 - first) + b]) for first in (0, 1) for a in inner for b in inner]
    )
    table = archs.symmetry("optunet")
    assert len(both) == 28_800
    for k in range(3):
        copies = {name: np.broadcast_to(array[k], (len(both), *array.shape[1:])) for name, array in weights.items()}
        blocks = both[:, [0, 5]] // 5
        scales = GroupElement.identity(table, len(both)).scales
        moved = apply(GroupElement({"conv1": blocks, "conv2": both}, scales), copies, table)
        values = np.zeros(len(both))
        for name, array in moved.items():
            values += (array * reference[name]).reshape(len(both), -1).sum(axis=1)
        np.testing.assert_allclose(found.value[k], values.max(), rtol=1e-12)
    np.testing.assert_allclose(found.bound, found.value, rtol=1e-12)


@pytest.mark.parametrize("n", range(1, 8))
def test_assignments_of_many_matrices_are_those_of_each_one(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "_PIECE", 50)
    rng = np.random.default_rng(n)
    for gains in (rng.standard_normal((7, 3, n, n)), rng.integers(0, 3, (7, 3, n, n)).astype(np.float32)):
        perms, sums = assignment.assign(gains), assignment.greatest(gains)
        for at in np.ndindex(7, 3):
            assert (assignment.assign(gains[at]) == perms[at]).all() and assignment.greatest(gains[at]) == sums[at]
            best = gains[at][linear_sum_assignment(gains[at], maximize=True)].sum()
            np.testing.assert_allclose([sums[at], assignment.gained(gains[at], perms[at])], best, rtol=1e-6)
    none = assignment.assign(np.zeros((0, 2, n, n)))
    assert none.shape == (0, 2, n) and assignment.greatest(np.zeros((0, 2, n, n))).shape == (0, 2)


def test_one_hidden_layer_is_one_assignment() -> None:
    name = "mlp-7-40-3"
    weights, reference = random_weights(name, 2, 1), one_of(random_weights(name, 1, 2))
    found = align(weights, reference, name)
    for k in range(2):
        gains = (
            reference["fc1.weight"] @ weights["fc1.weight"][k].T + reference["fc2.weight"].T @ weights["fc2.weight"][k]
        )
        gains += np.outer(reference["fc1.bias"], weights["fc1.bias"][k])
        np.testing.assert_array_equal(found.element.perms["fc1"][k], linear_sum_assignment(gains, maximize=True)[1])
    np.testing.assert_allclose(found.gap, 0, atol=1e-14)
    assert not found.sweeps.any() and not found.ties.any()


@pytest.mark.parametrize(
    "name", ["mlp-6-30-30-30-4", "resnet8-conv-10", "resnet8-pad-10", "resnet18-4-10", "gaussian-mlp-6-20-20-4"]
)
def test_planted_copies_are_found_under_noise(name: str) -> None:
    """Noise of a fifth of the weights on permuted copies: the permutation is that which undoes the planted one."""
    table = archs.symmetry(name)
    reference, noise = random_weights(name, 1, 1, np.float32), random_weights(name, 2, 2, np.float32)
    g = permutations(name, 2, 3)
    noisy = {
        key: array + np.float32(0.2) * noise[key] if array.dtype == np.float32 else np.repeat(array, 2, axis=0)
        for key, array in reference.items()
    }
    found = align(apply(g, noisy, table), reference, name)
    undone = g.inverse()
    for group, perm in found.element.perms.items():
        np.testing.assert_array_equal(perm, undone.perms[group], err_msg=group)
    exact = align(
        apply(g, {key: np.repeat(array, 2, axis=0) for key, array in reference.items()}, table), reference, name
    )
    np.testing.assert_array_equal(exact.distance, 0)
    np.testing.assert_allclose(exact.gap, 0, atol=1e-6)


def test_the_distance_of_gaussians_is_that_of_wasserstein() -> None:
    """W2^2 of N(0, 1) and N(3, 4) is 3^2 + (2 - 1)^2 = 10, for each of 4 weights and 4 + 1 + 1 biases."""
    name = "gaussian-mlp-1-4-1"
    shapes = {tensor.name: tensor.shape for tensor in archs.architecture(name).tensors}
    one = {key: np.full(shape, 1.0 if key.endswith("_std") else 0.0) for key, shape in shapes.items()}
    other = {key: np.full((1, *shape), 2.0 if key.endswith("_std") else 3.0) for key, shape in shapes.items()}
    means = sum(int(np.prod(shape)) for key, shape in shapes.items() if not key.endswith("_std"))
    np.testing.assert_allclose(align(other, one, name).distance ** 2, 10 * means, rtol=1e-14)


def test_a_gauge_makes_scales_not_matter() -> None:
    name = "mlp-6-20-20-4"
    table = archs.symmetry(name)
    weights, reference = random_weights(name, 3, 1), random_weights(name, 1, 2)
    g = GroupElement.random(table, 3, np.random.default_rng(3))
    for gauge in ("min-mass", "unit-norm", "canonical"):
        one, two = (align(some, reference, name, gauge=gauge) for some in (weights, apply(g, weights, table)))
        for key in weights:
            np.testing.assert_allclose(one.weights[key], two.weights[key], rtol=1e-7, atol=1e-12)
        expected = canonicalize(reference, name, gauge=gauge).weights
        np.testing.assert_array_equal(one.reference["fc1.weight"], expected["fc1.weight"])
        for key, array in apply(one.element, weights, table).items():
            np.testing.assert_array_equal(one.weights[key], array)
    assert (align(weights, reference, name).value != one.value).all()


def test_a_reference_for_each() -> None:
    name = "mlp-6-20-20-4"
    weights, references = random_weights(name, 3, 1), random_weights(name, 3, 2)
    together = align(weights, references, name)
    for k in range(3):
        alone = align({key: array[k : k + 1] for key, array in weights.items()}, one_of(references, k), name)
        np.testing.assert_array_equal(alone.weights["fc2.weight"][0], together.weights["fc2.weight"][k])
        assert alone.value[0] == together.value[k]


def test_torch_gives_torch_with_the_same_numbers() -> None:
    name = "mlp-6-20-20-4"
    weights, reference = random_weights(name, 3, 1, np.float32), one_of(random_weights(name, 1, 2, np.float32))
    expected = align(weights, reference, name)
    found = align(
        {key: torch.from_numpy(array) for key, array in weights.items()},
        {key: torch.from_numpy(array).requires_grad_() for key, array in reference.items()},
        name,
    )
    for key, array in expected.weights.items():
        assert isinstance(found.weights[key], torch.Tensor) and not found.weights[key].requires_grad
        np.testing.assert_array_equal(found.weights[key].numpy(), array)


def test_half_precision_gives_single() -> None:
    weights, reference = (
        random_weights("optunet", 2, 1, np.float16),
        one_of(random_weights("optunet", 1, 2, np.float16)),
    )
    found = align(weights, reference, "optunet")
    single = align({key: array.astype(np.float32) for key, array in weights.items()}, reference, "optunet")
    assert found.weights["fc.weight"].dtype == np.float32
    np.testing.assert_array_equal(found.value, single.value)


def test_ties_are_counted_and_networks_that_are_not_finite_stay() -> None:
    name = "mlp-6-20-20-4"
    weights, reference = random_weights(name, 3, 1), one_of(random_weights(name, 1, 2))
    for key in ("fc1.weight", "fc1.bias"):
        weights[key][1, 4] = weights[key][1, 9]
    weights["fc2.weight"][1, :, 4] = weights["fc2.weight"][1, :, 9]
    weights["fc2.weight"][2, 3, 3] = np.nan
    found = align(weights, reference, name)
    assert found.ties.tolist() == [0, 1, 0] and found.aligned.tolist() == [True, True, False]
    np.testing.assert_array_equal(found.weights["fc1.weight"][2], weights["fc1.weight"][2])
    assert np.isnan([found.value[2], found.bound[2], found.distance[2], found.gap[2]]).all()
    np.testing.assert_array_equal(found.element.perms["fc2"][2], np.arange(20))


def test_what_is_refused() -> None:
    name = "mlp-6-20-20-4"
    weights, reference = random_weights(name, 2, 1), one_of(random_weights(name, 1, 2))

    def refused(match: str, *, error: type[Exception] = SymmetryError, **changed: Any) -> None:
        given = {"weights": weights, "reference": reference, "arch": name, **changed}
        with pytest.raises(error, match=match):
            align(given.pop("weights"), given.pop("reference"), given.pop("arch"), **given)

    refused("gauge 'min-max'.*min-mass", error=UnknownNameError, gauge="min-max")
    refused("start 'signatures'.*signature", error=UnknownNameError, start="signatures")
    lacking = {key: array for key, array in reference.items() if key != "fc1.bias"}
    refused("reference: tensor 'fc1.bias': expected it, as the weights have it, got none", reference=lacking)
    wide = {**reference, "fc1.bias": np.zeros(21)}
    refused(r"reference: tensor 'fc1.bias': expected shape \(20,\), or .*, got \(21,\)", reference=wide)
    three = random_weights(name, 3, 2)
    refused(r"reference: tensor 'fc1.weight': .* \(1 or 2, .*got \(3, 20, 6\)", reference=three)
    broken = {**reference, "fc3.weight": np.full((4, 20), np.inf)}
    refused("reference: tensor '.*': expected finite numbers, got others", reference=broken)
    refused("got shape", weights={key: array[:, :3] for key, array in weights.items()})
    refused("expected one of", arch="nothing")
