"""Means of many networks: disguised copies of one, the objective, what is left out, and reading in batches."""

from collections.abc import Iterator

import numpy as np
import pytest

from ckptzoo import archs
from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry import GroupElement, align, apply, barycentre
from tests.symmetry.alignment.test_align import Weights, one_of, permutations, random_weights


def in_batches(weights: Weights, size: int) -> Iterator[Weights]:
    for start in range(0, len(next(iter(weights.values()))), size):
        yield {name: array[start : start + size] for name, array in weights.items()}


@pytest.mark.parametrize("name", ["optunet", "mlp-6-30-30-4", "resnet8-pad-10"])
def test_permuted_copies_of_one_network_are_that_network(name: str) -> None:
    table = archs.symmetry(name)
    one = random_weights(name, 1, 1, np.float32)
    copies = {key: np.repeat(array, 9, axis=0) for key, array in one.items()}
    copies = apply(permutations(name, 9, 2), copies, table)
    found = barycentre(lambda: in_batches(copies, 4), name)
    assert found.used.all() and max(float(std.max()) for std in found.std.values()) == 0
    first = align(one, found.mean, name)
    np.testing.assert_allclose(first.distance, 0, atol=1e-12)
    placed = apply(found.element, copies, table)
    for key, array in found.mean.items():
        np.testing.assert_array_equal(placed[key], np.broadcast_to(array.astype(np.float32), placed[key].shape))


def test_the_objective_is_the_sum_over_pairs_and_does_not_fall() -> None:
    name = "mlp-6-12-12-4"
    weights = random_weights(name, 10, 1)
    found = barycentre(lambda: [weights], name)
    placed = apply(found.element, weights, archs.symmetry(name))
    flat = np.concatenate([array.reshape(10, -1) for array in placed.values()], axis=1)
    pairs = flat @ flat.T
    assert (np.diff(found.objective) >= -1e-9).all() and len(found.objective) > 2
    np.testing.assert_allclose(found.objective[-1], pairs[np.triu_indices(10, 1)].sum(), rtol=1e-9)
    np.testing.assert_allclose(found.mean["fc2.weight"], placed["fc2.weight"].mean(axis=0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.std["fc2.weight"], placed["fc2.weight"].std(axis=0, ddof=1), rtol=1e-9, atol=1e-12)
    to_one = align(weights, one_of(weights), name).weights
    flat = np.concatenate([array.reshape(10, -1) for array in to_one.values()], axis=1)
    assert found.objective[-1] > (flat @ flat.T)[np.triu_indices(10, 1)].sum()


@pytest.mark.exhaustive
def test_the_result_depends_neither_on_batches_nor_on_the_order_of_channels() -> None:
    name = "mlp-6-12-12-4"
    weights = random_weights(name, 10, 1)
    whole = barycentre(lambda: [weights], name)
    pieces = barycentre(lambda: in_batches(weights, 3), name)
    np.testing.assert_allclose(whole.mean["fc1.weight"], pieces.mean["fc1.weight"], rtol=1e-12)
    still = permutations(name, 10, 5)
    scales = {key: np.ones_like(scale) for key, scale in still.scales.items()}
    # the first network decides the order of the mean's channels
    perms = {key: np.concatenate([np.arange(perm.shape[1])[None], perm[1:]]) for key, perm in still.perms.items()}
    other = barycentre(lambda: [apply(GroupElement(perms, scales), weights, archs.symmetry(name))], name)
    np.testing.assert_allclose(whole.mean["fc1.weight"], other.mean["fc1.weight"], rtol=1e-12)


def test_many_networks_are_matched_in_blocks() -> None:
    """200 noisy copies: three are matched to one sum at a time."""
    name, rng = "mlp-6-12-12-4", np.random.default_rng(3)
    one = random_weights(name, 1, 1)
    noisy = {key: array + 0.05 * rng.standard_normal((200, *array.shape[1:])) for key, array in one.items()}
    found = barycentre(lambda: in_batches(apply(permutations(name, 200, 2), noisy, archs.symmetry(name)), 64), name)
    assert align(one, found.mean, name).distance[0] < 0.05 * np.sqrt(1.2 * sum(a.size for a in one.values()) / 200)
    np.testing.assert_allclose(np.mean([std.mean() for std in found.std.values()]), 0.05, rtol=0.02)


def test_networks_that_are_not_finite_do_not_count() -> None:
    weights = random_weights("optunet", 5, 1)
    weights["fc.weight"][0, 2, 3] = np.inf
    weights["conv1.weight"][3, 0, 0, 0] = np.nan
    found = barycentre(lambda: in_batches(weights, 2), "optunet")
    assert found.used.tolist() == [False, True, True, False, True]
    kept = {name: array[[1, 2, 4]] for name, array in weights.items()}
    np.testing.assert_array_equal(found.mean["fc.weight"], barycentre(lambda: [kept], "optunet").mean["fc.weight"])
    for perm in found.element.perms.values():
        np.testing.assert_array_equal(perm[[0, 3]], np.tile(np.arange(perm.shape[1]), (2, 1)))
    with pytest.raises(SymmetryError, match="finite networks: expected 2 or more, got 1"):
        barycentre(lambda: [{name: array[:2] for name, array in weights.items()}], "optunet")
    with pytest.raises(SymmetryError, match="finite networks: expected 2 or more, got 0"):
        barycentre(list, "optunet")
