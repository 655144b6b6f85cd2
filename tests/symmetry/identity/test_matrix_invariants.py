"""Sketches of checkpoints with matrices: the same for all of an orbit, smooth, and other ones for other networks."""

import functools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ckptzoo import archs
from ckptzoo.errors import SymmetryError
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, canonicalize, fingerprint, fold, sketches, trace
from ckptzoo.symmetry.identity.forms import BOUNDS
from ckptzoo.symmetry.identity.invariants import invariants
from tests.support.effort import ALL
from tests.symmetry.matrices.every_kind import Weights, changed, grouped_queries, table, weights_of

K = 6
TABLES = {
    "RMSNorm": table(),
    "LayerNorm": table("orthogonal_mean"),
    "packed": table(packed=True),
    "heads alone": table("none"),
    "grouped queries": grouped_queries(),
    "grouped queries, real parts first": grouped_queries(halves=True),
}


class Transformer(nn.Module):
    """Patches, two layers of attention, a head."""

    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.patches = nn.Linear(5, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, activation, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.patches(x)).mean(1))


@functools.cache
def traced(activation: Any) -> tuple[Symmetry, Weights]:
    torch.manual_seed(0)
    module = Transformer(activation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = trace(module.eval(), torch.randn(2, 4, 5))
    rng = np.random.default_rng(0)
    state = {tensor.name: module.state_dict()[tensor.name].numpy() for tensor in found.architecture.tensors}
    weights: Weights = {}
    for name, value in state.items():
        # a fold adds some biases, times weights, to others, where a change of a small one is a smaller change
        size = 0.3 if name.endswith("bias") else 0.1
        weights[name] = value + size * rng.standard_normal((K, *value.shape))
    return found.symmetry, weights


@pytest.fixture(scope="module", params=[*TABLES, "torch relu", "torch gelu", "torch tanh"])
def networks(request: pytest.FixtureRequest) -> tuple[Symmetry, Weights]:
    if request.param in TABLES:
        return TABLES[request.param], weights_of(TABLES[request.param], K, np.random.default_rng(0))
    return traced(torch.tanh if request.param == "torch tanh" else request.param.split()[1])


def moderate(symmetry: Symmetry, seed: int) -> GroupElement:
    """Random elements with matrices of condition 10 at most."""
    element = GroupElement.random(symmetry, K, np.random.default_rng(seed), spread=0.5)
    matrices = dict(element.matrices)
    for name, matrix in matrices.items():
        if symmetry[name].scale == "linear":
            U, values, V = np.linalg.svd(matrix)
            matrices[name] = (U * np.clip(values, 0.32, 3.2)[..., None, :]) @ V
    scales = {name: np.sign(scale) * np.clip(np.abs(scale), 0.32, 3.2) for name, scale in element.scales.items()}
    return GroupElement(element.perms, scales, matrices)


def sketched(weights: Weights, symmetry: Symmetry) -> np.ndarray:
    return sketches(canonicalize(weights, symmetry), symmetry)


def test_two_disguises_have_one_canonical_form() -> None:
    """Every kind is there, complex numbers among them whose parts are halves of each head."""
    for symmetry in TABLES.values():
        weights = weights_of(symmetry, K, np.random.default_rng(0))
        one = canonicalize(weights, symmetry).weights
        other = canonicalize(apply(moderate(symmetry, 1), weights, symmetry), symmetry).weights
        for name, value in one.items():
            assert np.linalg.norm(value - other[name]) < 1e-11 * np.linalg.norm(value), name


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.sampled(4)
def test_all_of_an_orbit_have_one_sketch(networks: tuple[Symmetry, Weights], dtype: Any) -> None:
    symmetry, weights = networks
    one = sketched({name: array.astype(dtype) for name, array in weights.items()}, symmetry)
    assert one.shape == (K, 16) and np.isfinite(one).all()
    for seed in (1, 2):
        moved = apply(moderate(symmetry, seed), fold(weights, symmetry), symmetry)
        other = sketched({name: array.astype(dtype) for name, array in moved.items()}, symmetry)
        assert np.abs(one - other).max() <= BOUNDS[np.dtype(dtype).name]


@pytest.mark.sampled(4)
def test_a_change_of_any_tensor_moves_it(networks: tuple[Symmetry, Weights]) -> None:
    symmetry, weights = networks
    one, rng = sketched(weights, symmetry), np.random.default_rng(3)
    gains = {action.tensor for action in symmetry.actions if action.role == "gain"} if "gain" in weights else set()
    names = sorted(weights.keys() - gains)
    for name in names if ALL else names[::4]:
        for other in (changed(weights, name, 1e-3, rng), {**weights, name: weights[name] * 1.001}):
            moves = np.abs(sketched(other, symmetry) - one).max(axis=1)
            assert moves.min() > BOUNDS["float32"], name


@pytest.mark.sampled(4)
def test_sketches_are_smooth_and_others_are_far(networks: tuple[Symmetry, Weights]) -> None:
    """Steps of the sketch are in proportion to steps of the weights, and networks are apart by thousands of bounds."""
    symmetry, weights = networks
    one = sketched(weights, symmetry)
    for name in ("head", "o") if "o" in weights else ("head.weight", "patches.weight"):
        near, far = (
            sketched(changed(weights, name, size, np.random.default_rng(5)), symmetry) - one for size in (1e-7, 1e-5)
        )
        assert np.abs(far - 100 * near).max() < 1e-3 * np.abs(far).max() + 1e-9
    distances = np.abs(one[:, None] - one).max(axis=2) + np.eye(K)
    assert distances.min() > 1e4 * BOUNDS["float32"]


def test_blocks_of_equal_and_of_no_singular_values() -> None:
    """A sketch depends on nothing that is left open in the gauge: an orthogonal matrix, or a limit."""
    symmetry = TABLES["RMSNorm"]
    weights = weights_of(symmetry, K, np.random.default_rng(0))
    weights["v"][:, :2] = np.linalg.qr(weights["v"][:, :2].swapaxes(1, 2))[0].swapaxes(1, 2)[:, :2]
    weights["v"][:, 2:4] = 0
    weights["o"][:, :, :2] = np.linalg.qr(weights["o"][:, :, :2])[0]
    weights["low.in"][:, 1] = weights["low.in"][:, 0]
    weights["v.bias"][:, :4] = 0
    one = canonicalize(weights, symmetry)
    assert (one.report.degenerate == 3).all()
    moved = apply(moderate(symmetry, 1), weights, symmetry)
    other = sketches(canonicalize(moved, symmetry), symmetry)
    assert np.abs(other - sketches(one, symmetry)).max() < 1e-11


def test_rows_are_described_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    symmetry = TABLES["packed"]
    weights = canonicalize(weights_of(symmetry, K, np.random.default_rng(0)), symmetry).weights
    whole = invariants(weights, symmetry)
    monkeypatch.setattr("ckptzoo.symmetry.identity.invariants.INVARIANT_BYTES", 1)
    pieces = invariants(weights, symmetry)
    np.testing.assert_allclose(pieces.sketches, whole.sketches, rtol=0, atol=1e-13)
    for name, values in whole.channels.items():
        np.testing.assert_allclose(pieces.channels[name], values, rtol=0, atol=1e-12)
    for name, values in whole.turning.items():
        np.testing.assert_allclose(pieces.turning[name], values, rtol=0, atol=1e-11)
    none = invariants({name: array[:0] for name, array in weights.items()}, symmetry)
    assert none.sketches.shape == (0, 16)


def test_descriptions_move_with_their_channels() -> None:
    symmetry = TABLES["LayerNorm"]
    weights = canonicalize(weights_of(symmetry, K, np.random.default_rng(0)), symmetry).weights
    element = moderate(symmetry, 7)
    still = GroupElement.identity(symmetry, K)
    flips = {name: np.where(scale < 0, -1.0, 1.0) for name, scale in element.scales.items()}
    turns = {name: item for name, item in element.matrices.items() if name == "x"}
    element = GroupElement(element.perms, flips, {**still.matrices, **turns})
    one, two = (invariants(stack, symmetry) for stack in (weights, apply(element, weights, symmetry)))
    for name, values in one.channels.items():
        moved = np.take_along_axis(values, element.perms[name][:, :, None], 1)
        np.testing.assert_allclose(two.channels[name], moved, rtol=0, atol=1e-11, err_msg=name)
    for name in ("odd", "gated"):
        moved = np.take_along_axis(one.turning[name], element.perms[name][:, :, None], 1) * flips[name][:, :, None]
        np.testing.assert_allclose(two.turning[name], moved, rtol=0, atol=1e-10, err_msg=name)
        assert np.abs(moved).max() > 0.1
    turned = turns["x"][:, 0] @ one.turning["x"]
    np.testing.assert_allclose(two.turning["x"], turned, rtol=0, atol=1e-10)


def test_digests_where_no_matrix_is_and_sketches_of_any_table() -> None:
    symmetry = TABLES["RMSNorm"]
    weights = weights_of(symmetry, K, np.random.default_rng(0))
    weights["q"][2, 0, 0] = np.nan
    canonical = canonicalize(weights, symmetry)
    assert fingerprint(canonical) == [None] * K
    found = sketches(canonical, symmetry)
    assert np.isnan(found[2]).all() and np.isfinite(np.delete(found, 2, axis=0)).all()
    arch, plain = archs.architecture("mlp-4-6-2"), archs.symmetry("mlp-4-6-2")
    rng = np.random.default_rng(0)
    weights = {tensor.name: rng.standard_normal((K, *tensor.shape)) for tensor in arch.tensors}
    moved = apply(GroupElement.random(plain, K, rng, spread=0.5), weights, plain)
    one, two = (canonicalize(stack, plain) for stack in (weights, moved))
    assert None not in fingerprint(one)
    np.testing.assert_allclose(sketches(one, plain), sketches(two, plain), rtol=0, atol=1e-12)
    with pytest.raises(SymmetryError, match=r"gauge 'unit-norm': expected .* Use canonical"):
        sketches(canonicalize(weights, plain, gauge="unit-norm"), plain)
