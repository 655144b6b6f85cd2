"""Alignment over matrices: disguises are undone, heads found, brute force, a distance that never rises, refusals."""

import itertools

import numpy as np
import pytest
import torch

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import AxisAction, Group, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import align, apply, barycentre, canonicalize, pair_distances
from ckptzoo.symmetry.alignment import matching
from ckptzoo.symmetry.alignment.align import Aligned
from tests.support.matrix_tables import Weights, decoder, disguise, low_rank, packed, repeated, weights_of

TABLES = {
    "rotary, RMSNorm": decoder(),
    "rotary, LayerNorm": decoder(stream="orthogonal_mean"),
    "norms of queries and keys": decoder(normed=True),
    "few words": decoder(words=2),
    "packed": packed(d=12, heads=2, k=2, hidden=20),
    "low rank": low_rank(),
}


def relative(found: Aligned) -> np.ndarray:
    size = np.sqrt(sum((value.astype(np.float64) ** 2).sum() for value in found.reference.values()))
    return found.distance / size


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(("dtype", "least"), [(np.float64, 1e-10), (np.float32, 1e-4)])
@pytest.mark.sampled(4)
def test_a_disguise_of_the_reference_is_undone(name: str, dtype: type, least: float) -> None:
    table, shapes = TABLES[name]
    reference = weights_of(shapes, 1, 1, dtype)
    g = disguise(table, 4, 2)
    weights = apply(g, repeated(reference, 4), table)
    found = align(weights, reference, table)
    assert (relative(found) < least).all()
    assert (np.abs(found.gap) < least).all() and found.aligned.all()
    found.element.check(table)
    moved = apply(found.element, weights, table)
    for key, value in found.weights.items():
        np.testing.assert_allclose(moved[key], value, atol=10 * least * np.abs(value).max())
    undone = g.inverse()
    for group, perm in found.element.perms.items():
        np.testing.assert_array_equal(perm, undone.perms[group])


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.sampled(2)
def test_noise_keeps_the_distance_far_below_that_of_canonical_forms(name: str) -> None:
    table, shapes = TABLES[name]
    reference = weights_of(shapes, 1, 1)
    weights = apply(disguise(table, 4, 2), repeated(reference, 4, noise=0.1, seed=3), table)
    found = align(weights, reference, table)
    one, two = (canonicalize(some, table).weights for some in (reference, weights))
    apart = np.sqrt(sum(((one[key] - two[key]) ** 2).sum() for key in one) / 4)
    apart /= np.sqrt(sum((one[key] ** 2).sum() for key in one))
    assert relative(found).max() < 0.25
    assert relative(found).mean() < 0.6 * apart


def test_planted_heads_are_found_and_the_distance_is_that_of_the_noise() -> None:
    """12 of 12 heads at 10 % noise; balanced weights differ by about as much."""
    table, shapes = packed(d=96, heads=12, k=8)
    reference = weights_of(shapes, 1, 1)
    g = disguise(table, 3, 2)
    found = align(apply(g, repeated(reference, 3, noise=0.1, seed=3), table), reference, table)
    np.testing.assert_array_equal(found.element.perms["qk"], g.inverse().perms["qk"])
    assert (relative(found) < 0.11).all()


def test_heads_of_one_channel_are_matched_as_by_brute_force() -> None:
    """Matrices are signs then: all 3! (2^3)^2 elements."""
    table, shapes = packed(d=5, heads=3, k=1)
    still = [Group("x", 5, Sym(), "none"), *table.groups[2:4]]
    names = ("qkv", "qkv.bias", "o")
    actions = [act for act in table.actions if act.tensor in names and act.groups & {"qk", "vo"}]
    table = Symmetry(tuple(still), (*actions, AxisAction("unused", 0, (Segment("x", 0, 1, 5),), 1, True, "out")))
    shapes = {**{name: shapes[name] for name in names}, "unused": (5,)}
    weights, reference = weights_of(shapes, 3, 1), weights_of(shapes, 1, 2)
    weights["unused"][:] = reference["unused"][:] = np.arange(5.0)
    found = align(weights, reference, table)
    balanced = align(weights, weights, table).reference
    A = {key: value[0] for key, value in found.reference.items()}
    signs = [np.array(choice) for choice in itertools.product((-1.0, 1.0), repeat=3)]
    for row in range(3):
        B = {key: value[row] for key, value in balanced.items()}
        best = -np.inf
        for order in itertools.permutations(range(3)):
            value = sum(float((A[key] * B[key]).sum()) for key in ("unused",))
            for group, parts in (("qk", (0, 3)), ("vo", (6,))):
                gains = np.zeros(3)
                for start, i in itertools.product(parts, range(3)):
                    j = order[i]
                    gains[i] += A["qkv"][start + i] @ B["qkv"][start + j]
                    gains[i] += A["qkv.bias"][start + i] * B["qkv.bias"][start + j]
                if group == "vo":
                    gains += [A["o"][:, i] @ B["o"][:, order[i]] for i in range(3)]
                value += max(float(choice @ gains) for choice in signs)
            best = max(best, value)
        np.testing.assert_allclose(found.value[row], best, rtol=1e-12)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.sampled(2)
def test_the_distance_never_rises(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of unrelated networks, which take several sweeps."""
    table, shapes = TABLES[name]
    weights, reference = weights_of(shapes, 4, 1), weights_of(shapes, 1, 2)
    distances = []
    for sweeps in (1, 2, 3, 5, 8, 13, 100):
        monkeypatch.setattr(matching, "MAX_SWEEPS", sweeps)
        found = align(weights, reference, table)
        distances.append(found.distance)
        assert (found.value <= found.bound).all()
    assert (np.diff(distances, axis=0) <= 1e-12 * distances[0]).all()
    assert (distances[-1] < distances[0]).any() and (found.sweeps > 1).any()
    # nothing drawn near what was found is closer
    rng = np.random.default_rng(0)
    for seed in range(20):
        near = disguise(table, 4, seed, spread=0.0)
        for group, matrix in near.matrices.items():
            if matrix.ndim == 4 and table[group].scale != "orthogonal_mean":
                skew = 1e-3 * rng.standard_normal(matrix.shape)
                matrix[:] = np.linalg.qr(np.eye(matrix.shape[-1]) + skew - skew.swapaxes(-1, -2))[0]
                matrix *= np.sign(np.diagonal(matrix, axis1=-2, axis2=-1))[..., None, :]
            elif matrix.ndim == 3:
                angle = 1e-3 * rng.standard_normal(matrix.shape[:2])
                matrix[:] = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
            else:
                matrix[:] = np.eye(matrix.shape[-1])
        one = type(near).identity(table, 4)
        moved = apply(type(near)(one.perms, one.scales, near.matrices), found.weights, table)
        square = sum(((moved[key] - found.reference[key]) ** 2).reshape(4, -1).sum(axis=1) for key in moved)
        assert (np.sqrt(square) > found.distance * (1 - 1e-4)).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["rotary, RMSNorm", "packed"])
@pytest.mark.sampled(2)
def test_the_result_depends_neither_on_the_disguise_nor_on_the_batch(name: str) -> None:
    table, shapes = TABLES[name]
    weights, reference = weights_of(shapes, 3, 1), weights_of(shapes, 1, 2)
    found = align(weights, reference, table)
    other = align(apply(disguise(table, 3, 3), weights, table), reference, table)
    np.testing.assert_allclose(other.distance, found.distance, rtol=1e-5)
    for row in range(3):
        alone = align({key: value[row : row + 1] for key, value in weights.items()}, reference, table)
        for key, value in alone.weights.items():
            np.testing.assert_array_equal(value[0], found.weights[key][row])


def test_a_gauge_makes_scales_not_matter() -> None:
    table, shapes = packed()
    reference = weights_of(shapes, 1, 1)
    weights = apply(disguise(table, 3, 2, resized=True), repeated(reference, 3), table)
    assert (relative(align(weights, reference, table)) > 0.1).all()
    found = align(weights, reference, table, gauge="canonical")
    assert (relative(found) < 1e-9).all()
    for key, value in apply(found.element, weights, table).items():
        np.testing.assert_allclose(found.weights[key], value, atol=1e-9)


def test_blocks_of_lower_rank_keep_their_products() -> None:
    """No element leads to the limit, whose products of queries and keys are those of the raw weights."""
    table, shapes = packed()
    reference = weights_of(shapes, 1, 1)
    reference["qkv"][:, 3] = reference["qkv"][:, 2]
    reference["qkv.bias"][:] = 0
    weights = apply(disguise(table, 2, 2), repeated(reference, 2), table)
    found = align(weights, reference, table)
    assert (relative(found) < 1e-9).all()
    lost = np.isnan(found.element.matrices["qk"]).any(axis=(2, 3))
    np.testing.assert_array_equal(lost.sum(axis=1), 1)
    assert np.isfinite(found.element.matrices["vo"]).all()
    for made, raw in ((found.reference["qkv"], reference["qkv"]),):
        q, k = (made[0, start : start + 4] for start in (0, 12))
        expected = raw[0, 0:4].T @ raw[0, 12:16]
        np.testing.assert_allclose(q.T @ k, expected, atol=1e-10)


def test_torch_gives_torch_and_rows_that_are_not_finite_stay() -> None:
    table, shapes = decoder()
    weights, reference = weights_of(shapes, 3, 1), weights_of(shapes, 1, 2)
    expected = align(weights, reference, table)
    weights["v"][1, 0, 0] = np.nan
    found = align({key: torch.from_numpy(value) for key, value in weights.items()}, reference, table)
    np.testing.assert_array_equal(found.aligned, [True, False, True])
    assert np.isnan(found.distance[1]) and isinstance(found.weights["q"], torch.Tensor)
    for key, value in expected.weights.items():
        np.testing.assert_array_equal(found.weights[key][2].numpy(), value[2])
        np.testing.assert_array_equal(found.weights[key][1].numpy(), weights[key][1])


def test_what_is_refused() -> None:
    table, shapes = decoder()
    weights = weights_of(shapes, 2, 1)
    reference: Weights = {key: value[0] for key, value in weights.items()}
    products = {"gate": np.zeros((2, 7, 7))}
    with pytest.raises(SymmetryError, match=r"scales 'fit': expected a table without matrices.*monomial\(table\)"):
        align(weights, reference, table, scales="fit")
    with pytest.raises(SymmetryError, match="method 'activations': expected a table without matrices"):
        align(weights, reference, table, method="activations", activations=products)
    with pytest.raises(SymmetryError, match=r"barycentre: symmetry table: .*monomial\(table\)"):
        barycentre(lambda: [weights], table)
    with pytest.raises(SymmetryError, match="pairs: symmetry table: expected one without matrices"):
        pair_distances(weights, table)
    with pytest.raises(SymmetryError, match="tensor 'gain': expected gains of 1"):
        align({**weights, "gain": 2 * weights["gain"]}, reference, table)
    grouped = Symmetry(
        (
            Group("a", 4, Wreath("o", 2, 2), "linear"),
            Group("b", 4, Wreath("o", 2, 2), "none"),
            Group("c", 4, Wreath("o", 2, 2), "none"),
        ),
        (
            AxisAction("v", 0, (Segment("a", 0, 1, 4),), 1, True, "out"),
            AxisAction("w", 0, (Segment("b", 0, 1, 4),), 1, True, "out"),
            AxisAction("w", 1, (Segment("c", 0, 1, 4),), -1, True, "in", blocks=2),
        ),
    )
    given = weights_of({"v": (4, 3), "w": (4, 2)}, 1, 1)
    with pytest.raises(SymmetryError, match="blocks of matrices alone, got a convolution in groups"):
        align(given, given, grouped)
