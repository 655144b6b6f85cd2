"""Sums of cosines under permutations of neurons, of every kind of table, against networks that were permuted."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo import archs, symmetry
from ckptzoo.errors import SymmetryError
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, neurons
from ckptzoo.symmetry.kinds.registry import permutations_of
from ckptzoo.symmetry.neurons import Neurons, neurons_of
from tests.support import matrix_tables
from tests.support.derived_zoos import weights_of
from tests.support.effort import FEW_EXAMPLES, examples
from tests.support.symmetry_tables import Network, networks


def element_of(found: Neurons, K: int, seed: int) -> GroupElement:
    """The elements of which ``found.orders`` with this seed has the permutations; groups that stay in place do."""
    drawn, kept = (
        GroupElement.random(found.table, K, np.random.default_rng(seed), spread=0.0),
        GroupElement.identity(found.table, K),
    )
    moved = {permutations_of(found.table[name]).together(found.table[name]) or name for name in found.groups}
    for group in found.table.groups:
        leader = found.table.leader(group.id)
        if (permutations_of(leader).together(leader) or leader.id) in moved:
            kept.perms[group.id][:] = drawn.perms[group.id]
    return kept


def check_sums(found: Neurons, first: dict[str, Any], second: dict[str, Any]) -> None:
    """Sums of entries by the orders differ as sums of cosines do, once the first networks are really permuted."""
    K = len(next(iter(first.values())))
    orders = found.orders(K, np.random.default_rng(1))
    element = element_of(found, K, 1)
    element.check(found.table)
    ours, theirs = found.unit(first), found.unit(second)
    permuted = found.unit(symmetry.apply(element, first, found.table))
    entries = found.similarities(ours, theirs)
    change = sum(
        np.take_along_axis(array, order[:, None, :], 1)[:, 0].sum(1) - np.trace(array, axis1=1, axis2=2)
        for array, order in zip(entries, orders, strict=True)
    )
    expected = sum(
        ((permuted[name].astype(np.float64) - ours[name]) * theirs[name]).reshape(K, -1).sum(1) for name in ours
    )
    np.testing.assert_allclose(change, expected, atol=1e-4)


@settings(max_examples=examples(150, FEW_EXAMPLES), deadline=None)
@given(net=networks(nested=True), seed=st.integers(0, 99))
def test_sums_of_any_table_are_those_of_permuted_networks(net: Network, seed: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(neurons, "LEAST", 2)
        try:
            found = neurons_of(net.table, [name for name in net.shapes if name not in net.counts], location="net")
        except SymmetryError as error:
            assert "permutations of neurons" in str(error)
            return
    check_sums(found, net.weights(4, seed), net.weights(4, seed + 100))


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("optunet", ("conv1", "conv2")),
        ("mlp-4-8-3", ("fc1",)),
        ("mlp-4-8-7-9-3", ("fc1", "fc3")),
        ("mlp-tanh-4-8-3", ("fc1",)),
        pytest.param("resnet8-pad-3", None, marks=pytest.mark.exhaustive),
    ],
)
def test_groups_of_known_networks(name: str, groups: tuple[str, ...] | None) -> None:
    arch, table = archs.architecture(name), archs.symmetry(name)
    found = neurons_of(table, [tensor.name for tensor in arch.tensors if "float" in tensor.dtype], location=name)
    assert groups is None or found.groups == groups, found.groups
    first, second = (weights_of(3, seed, arch=arch) for seed in (0, 1))
    check_sums(found, first, second)
    # what is summed depends on no scale of either network, and on no permutation of both
    entries = found.similarities(found.unit(first), found.unit(second))
    spread = 0.2 if "resnet" in name else 1.0
    for seed in (2, 3):
        scales = GroupElement.random(table, 3, np.random.default_rng(seed), spread=spread).scales
        scaled = GroupElement(GroupElement.identity(table, 3).perms, scales)
        moved = found.unit(symmetry.apply(scaled, first, table))
        for one, other in zip(found.similarities(moved, found.unit(second)), entries, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    element = GroupElement.random(table, 3, np.random.default_rng(4), spread=0.0)
    both = [found.unit(symmetry.apply(element, weights, table)) for weights in (first, second)]
    for one, other in zip(found.similarities(*both), entries, strict=True):
        np.testing.assert_allclose(*(np.trace(item, axis1=1, axis2=2) for item in (one, other)), atol=1e-5)


@pytest.mark.parametrize("made", [matrix_tables.decoder, matrix_tables.packed, matrix_tables.low_rank])
def test_tables_with_matrices_have_the_permutations_among_them(made: Any) -> None:
    table, shapes = made()
    try:
        found = neurons_of(table, list(shapes), location="net")
    except SymmetryError as error:
        assert "permutations of neurons" in str(error)
        return
    check_sums(found, *(matrix_tables.weights_of(shapes, 3, seed) for seed in (0, 1)))


def test_neurons_without_incoming_weights_are_similar_to_none() -> None:
    arch = archs.architecture("mlp-4-8-3")
    first, second = (weights_of(2, seed, arch=arch) for seed in (0, 1))
    first["fc1.weight"][0, 2] = 0
    found = neurons_of(archs.symmetry("mlp-4-8-3"), list(first), location="net")
    (entries,) = found.similarities(found.unit(first), found.unit(second))
    assert np.isfinite(entries).all() and not entries[0, 2].any() and entries[1, 2].all()


@pytest.mark.parametrize("table", [archs.symmetry("mlp-4-4-3"), Symmetry((), ())])
def test_too_few_permutations_are_refused(table: Symmetry) -> None:
    with pytest.raises(SymmetryError, match=r"net: permutations of neurons: expected 100 or more, got .*\. Test"):
        neurons_of(table, ["fc1.weight"], location="net")


@pytest.mark.parametrize("hidden", [170, 171, 256])
def test_any_number_of_neurons_is_counted(hidden: int) -> None:
    """256! is above the greatest float, as is the factorial of any number above 170."""
    found = neurons_of(archs.symmetry(f"mlp-4-{hidden}-3"), ["fc1.weight"], location="net")
    assert found.log10 == pytest.approx(math.log10(math.factorial(hidden)), rel=1e-12)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["mlp-4-8-3", "optunet"])
def test_neurons_that_are_not_finite_are_similar_to_none(name: str, bad: float) -> None:
    arch = archs.architecture(name)
    floats = [tensor.name for tensor in arch.tensors if "float" in tensor.dtype]
    found = neurons_of(archs.symmetry(name), floats, location="net")
    first, second = (weights_of(2, seed, arch=arch) for seed in (0, 1))
    whole = found.similarities(found.unit(first), found.unit(second))
    for array in first.values():
        array[0].reshape(-1)[0] = bad
    for one, other in zip(found.similarities(found.unit(first), found.unit(second)), whole, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one[1], other[1], atol=1e-6)
