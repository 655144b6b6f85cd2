"""Distances of all pairs against alignment pair by pair, copies, and what is refused."""

import numpy as np
import pytest

from ckptzoo import archs
from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry import align, apply, pair_distances
from ckptzoo.symmetry.alignment import pairs
from tests.symmetry.alignment.test_align import one_of, permutations, random_weights


@pytest.mark.parametrize("name", ["optunet", "mlp-5-7-3", "mlp-4-3-2", "gaussian-mlp-4-6-2"])
@pytest.mark.parametrize("tile_bytes", [1, 2**23])
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
