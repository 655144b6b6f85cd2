"""Descriptions of checkpoints and their channels that no order of channels changes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo import archs
from ckptzoo.symmetry import apply, canonicalize
from ckptzoo.symmetry.identity.forms import SETTLED
from ckptzoo.symmetry.identity.invariants import invariants
from tests.support.effort import examples
from tests.support.symmetry_tables import Network, networks

K = 3
law = settings(max_examples=examples(100), deadline=None)
seeds = st.integers(0, 2**32 - 1)


@pytest.mark.slow
@law
@given(networks(nested=True), seeds, seeds)
def test_sketches_stay_and_descriptions_move_with_their_channels(net: Network, a: int, b: int) -> None:
    weights, g = net.weights(K, a), net.permutations(K, b)
    one, two = (invariants(stack, net.table) for stack in (weights, apply(g, weights, net.table)))
    np.testing.assert_allclose(two.sketches, one.sketches, rtol=0, atol=1e-11)
    for name, values in one.channels.items():
        moved = np.take_along_axis(values, g.perms[name][:, :, None], 1)
        np.testing.assert_allclose(two.channels[name], moved, rtol=0, atol=1e-11, err_msg=name)


@law
@given(networks(nested=True), seeds, st.sampled_from([1e-3, 1e-6, 1e-9]))
def test_weights_that_are_close_have_close_sketches(net: Network, seed: int, distance: float) -> None:
    weights, rng = net.weights(K, seed), np.random.default_rng(seed)
    near = dict(weights)
    for name, array in weights.items():
        if array.dtype.kind == "f":
            step = rng.standard_normal(array.shape).reshape(K, -1)
            step /= np.linalg.norm(step, axis=1, keepdims=True)
            step *= distance * np.linalg.norm(array.reshape(K, -1), axis=1, keepdims=True)
            near[name] = array + step.reshape(array.shape)
    one, two = (invariants(stack, net.table).sketches for stack in (weights, near))
    width = SETTLED.width(distance, distance, [array.dtype for array in weights.values()])
    assert (np.abs(one - two) <= width).all()


def test_sketches_of_other_networks_are_far_apart() -> None:
    """200 random OptuNets: the nearest two are a hundred thousand tolerances apart."""
    rng, table = np.random.default_rng(0), archs.symmetry("optunet")
    weights = {
        tensor.name: rng.standard_normal((200, *tensor.shape)) for tensor in archs.architecture("optunet").tensors
    }
    sketches = invariants(canonicalize(weights, table).weights, table).sketches
    distances = np.abs(sketches[:, None] - sketches).max(axis=2) + 9 * np.eye(200)
    assert distances.min() > 1e5 * 4 * np.finfo(np.float32).eps


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_extreme_and_empty_weights(size: float) -> None:
    table = archs.symmetry("mlp-4-3-2")
    rng = np.random.default_rng(0)
    weights = {
        tensor.name: rng.standard_normal((K, *tensor.shape)) for tensor in archs.architecture("mlp-4-3-2").tensors
    }
    found = invariants({name: array * size for name, array in weights.items()}, table)
    np.testing.assert_allclose(found.sketches, invariants(weights, table).sketches, rtol=0, atol=1e-11)
    zeros = {name: array * 0 for name, array in weights.items()}
    assert (invariants(zeros, table).sketches == 0).all()
    none = {name: array[:0] for name, array in weights.items()}
    found = invariants(none, table)
    assert found.sketches.shape == (0, 8)
