"""Distances of all pairs against alignment pair by pair, copies, and what is refused."""

import itertools

import numpy as np
import pytest

from ckptzoo import archs
from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry import GroupElement, align, apply, pair_distances
from ckptzoo.symmetry.alignment import pairs
from ckptzoo.symmetry.alignment.pairs import aligned_distances, distances_between
from tests.symmetry.alignment.test_align import one_of, permutations, random_weights


@pytest.mark.parametrize("name", ["optunet", "mlp-5-7-3", "mlp-4-3-2", "gaussian-mlp-4-6-2"])
@pytest.mark.parametrize("tile_bytes", [1, 2**23])
@pytest.mark.sampled(2)
def test_each_distance_is_that_of_alignment(name: str, tile_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_TILE_BYTES", tile_bytes)
    weights = random_weights(name, 7, 1)
    found = pair_distances(weights, name)
    for k in range(7):
        np.testing.assert_allclose(found[k], align(weights, one_of(weights, k), name).distance, atol=1e-7)
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_array_equal(np.diag(found), 0)


def test_permuted_copies_have_the_distances_of_their_originals() -> None:
    weights = random_weights("optunet", 9, 1, np.float32)
    other = apply(permutations("optunet", 9, 2), weights, archs.symmetry("optunet"))
    both = {name: np.concatenate([array, other[name]]) for name, array in weights.items()}
    found = pair_distances(both, "optunet")
    np.testing.assert_allclose(found[:9, 9:], found[:9, :9], atol=0.02)
    np.testing.assert_allclose(np.diag(found[:9, 9:]), 0, atol=0.02)


def every_element(name: str) -> GroupElement:
    """Each permutation with each choice of signs, of a network with one hidden layer."""
    (group,) = archs.symmetry(name).groups
    signs = list(itertools.product((1.0, -1.0), repeat=group.n)) if group.flips else [(1.0,) * group.n]
    both = list(itertools.product(itertools.permutations(range(group.n)), signs))
    perms, scales = (np.array([item[at] for item in both]) for at in (0, 1))
    return GroupElement({group.id: perms}, {group.id: scales} if group.scaled else {})


@pytest.mark.parametrize("name", ["mlp-3-4-2", "mlp-tanh-3-4-2"])
def test_distances_between_two_sets_are_least_over_all_elements(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_TILE_BYTES", 1000)
    table, element = archs.symmetry(name), every_element(name)
    first, second = random_weights(name, 3, 1), random_weights(name, 5, 2)
    expected = np.empty((3, 5))
    for row, column in np.ndindex(3, 5):
        one = {key: np.repeat(array[[column]], len(element), axis=0) for key, array in second.items()}
        moved = apply(element, one, table)
        squares = sum(np.square(moved[key] - first[key][row]).reshape(len(element), -1).sum(1) for key in first)
        expected[row, column] = np.sqrt(squares.min())
    np.testing.assert_allclose(distances_between(first, second, table), expected, atol=1e-7)
    some = {key: array[:3] for key, array in second.items()}
    np.testing.assert_allclose(aligned_distances(first, some, table), np.diag(expected), atol=1e-12)


@pytest.mark.parametrize("name", ["optunet", "optunet-2-3-3-8-4-2", "mlp-tanh-3-9-2", "gaussian-mlp-4-6-2"])
def test_copies_have_distance_0(name: str) -> None:
    table, weights = archs.symmetry(name), random_weights(name, 6, 1)
    drawn = GroupElement.random(table, 6, np.random.default_rng(3), spread=0.0)
    copies = apply(drawn, weights, table)
    np.testing.assert_allclose(aligned_distances(weights, copies, table), 0, atol=1e-12)
    np.testing.assert_allclose(np.diag(distances_between(weights, copies, table)), 0, atol=1e-6)


def test_networks_that_are_not_finite() -> None:
    weights = random_weights("optunet", 4, 1)
    weights["fc.bias"][2, 0] = np.nan
    found = pair_distances(weights, "optunet", threads=1)
    assert np.isnan(found[2]).all() and np.isnan(found[:, 2]).all()
    kept = {name: array[[0, 1, 3]] for name, array in weights.items()}
    np.testing.assert_array_equal(found[np.ix_([0, 1, 3], [0, 1, 3])], pair_distances(kept, "optunet"))
    assert pair_distances({name: array[:0] for name, array in weights.items()}, "optunet").shape == (0, 0)


@pytest.mark.parametrize("name", ["mlp-4-5-5-2", "resnet8-pad-10"])
def test_groups_that_meet_in_a_tensor_are_refused(name: str) -> None:
    with pytest.raises(
        SymmetryError, match=r"hidden layers: expected one, or several .*, got several that meet, '.+' and '.+'. Align"
    ):
        pair_distances(random_weights(name, 2, 1), name)
