"""What ``trace`` returns is taken wherever a table is, as are the other names of a network."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import ckptzoo
from ckptzoo import symmetry
from ckptzoo.derive import declare
from ckptzoo.symmetry import GroupElement
from tests.conftest import weights_of

NET = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


@cache
def traced() -> symmetry.Traced:
    """What ``trace`` finds in it."""
    return symmetry.trace(NET, torch.zeros(2, 4))


@cache
def weights() -> dict[str, np.ndarray]:
    """Two random members."""
    return weights_of(traced().architecture, 2)


def _rng():
    return np.random.default_rng(0)


CALLS = {
    "identity": lambda table: GroupElement.identity(table, 2),
    "random": lambda table: GroupElement.random(table, 2, _rng()),
    "check": lambda table: GroupElement.identity(traced().symmetry, 2).check(table),
    "apply": lambda table: symmetry.apply(GroupElement.random(traced().symmetry, 2, _rng()), weights(), table),
    "fold": lambda table: symmetry.fold(weights(), table),
    "monomial": symmetry.monomial,
    "unnested": symmetry.unnested,
    "common": lambda table: symmetry.common([table, table]),
    "orbits": lambda table: symmetry.orbits(table, "0.weight", (3, 4)),
    "counts_by_group": symmetry.counts_by_group,
    "count": symmetry.count,
    "random_element": lambda table: symmetry.random_element(table, 1, 2, _rng()),
    "canonicalize": lambda table: symmetry.canonicalize(weights(), table),
    "ordering_keys": lambda table: symmetry.ordering_keys(weights(), table),
    "min_mass": lambda table: symmetry.min_mass(weights(), table),
    "align": lambda table: symmetry.align(weights(), {name: array[0] for name, array in weights().items()}, table),
    "pair_distances": lambda table: symmetry.pair_distances(weights(), table),
    "remove_softmax_shift": lambda table: symmetry.remove_softmax_shift(weights(), table),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.sampled(2)
def test_what_trace_found_is_taken_as_its_table_is(name):
    of_table, of_traced = CALLS[name](traced().symmetry), CALLS[name](traced())
    if isinstance(of_table, dict):
        assert all(np.array_equal(of_table[key], of_traced[key]) for key in of_table)
    elif name not in ("count",):  # which counts the shift of the last layer where the architecture is known
        assert repr(of_table) == repr(of_traced)


@pytest.mark.parametrize("named", ["mlp-4-3-2", ckptzoo.archs.architecture("mlp-4-3-2")], ids=["name", "architecture"])
def test_names_and_architectures_are_taken_too(named):
    table = ckptzoo.archs.symmetry("mlp-4-3-2")
    weights = weights_of(ckptzoo.archs.architecture("mlp-4-3-2"), 2)
    element = GroupElement.random(named, 2, _rng())
    made, wanted = (symmetry.apply(element, weights, item) for item in (named, table))
    assert all(np.array_equal(made[name], wanted[name]) for name in made)
    assert symmetry.monomial(named) == symmetry.monomial(table)


def test_zoos_take_what_trace_found(tmp_path):
    ckptzoo.create(tmp_path / "one", arch=traced())
    ckptzoo.create(tmp_path / "two", arch=NET, symmetry=traced())
    ckptzoo.create(tmp_path / "three", arch=NET)
    declare(tmp_path / "three", traced())
    for name in ("one", "two", "three"):
        zoo = ckptzoo.open(tmp_path / name)
        assert zoo.symmetry == traced().symmetry and zoo.arch.tensors == traced().architecture.tensors
    assert ckptzoo.open(tmp_path / "one").arch.input_shape == (4,)
    with pytest.raises(ckptzoo.errors.SpecError, match="create: symmetry: expected a table of symmetries, got int"):
        ckptzoo.create(tmp_path / "four", arch=NET, symmetry=3)
