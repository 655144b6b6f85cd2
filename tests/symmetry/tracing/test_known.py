"""Traces against tables that were declared by hand, and against known counts."""

import pytest
import torch
from torch import nn

from ckptzoo import archs
from ckptzoo.schema.groups import AxisAction, Group, Segment, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import count, trace
from tests.symmetry import test_networks
from tests.symmetry.tracing.helpers import checked_trace


def _renamed(table: Symmetry) -> tuple[dict[str, object], list[AxisAction]]:
    """Groups and actions with names by first appearance; groups that are permuted alike as one set.

    The outer permutation of a wreath product is named by the groups that share it.
    """
    actions = sorted(table.actions, key=lambda action: (action.tensor, action.axis))
    names: dict[str, str] = {}
    for action in actions:
        for segment in sorted(action.segments, key=lambda item: item.offset):
            names.setdefault(segment.group, f"group {len(names)}")
    together: dict[str, set[str]] = {}
    for group in table.groups:
        together.setdefault(_mover(table, group), set()).add(names[group.id])
    groups: dict[str, object] = {}
    for group in table.groups:
        perm = table.leader(group.id).perm
        kind = (perm.g, perm.k) if isinstance(perm, Wreath) else type(perm).__name__
        groups[names[group.id]] = (group.n, group.scale, kind, sorted(together[_mover(table, group)]))
    renamed = [
        AxisAction(
            action.tensor,
            action.axis,
            tuple(
                Segment(names[item.group], item.offset, item.inner, item.count)
                for item in sorted(action.segments, key=lambda item: item.offset)
            ),
            action.exponent,
            action.in_mass,
            action.role,
            action.blocks,
            action.eps,
        )
        for action in actions
    ]
    return groups, renamed


def _mover(table: Symmetry, group: Group) -> str:
    leader = table.leader(group.id)
    return f"blocks of {leader.perm.outer}" if isinstance(leader.perm, Wreath) else leader.id


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("optunet", None),
        ("mlp-6-5-4-3", None),
        ("mlp-tanh-6-5-4-3", None),
        ("resnet8-pad-3", 8),
        ("resnet8-conv-3", 8),
        ("resnet20-pad-10", 8),
        ("resnet20-conv-10", 8),
    ],
)
@pytest.mark.sampled(4)
def test_the_registry(name: str, size: int | None) -> None:
    shape = archs.architecture(name).input_shape
    assert shape is not None
    module = archs.get(name)()
    traced = checked_trace(module, torch.randn(1, *((shape[0], size, size) if size else shape)))
    assert _renamed(traced.symmetry) == _renamed(archs.symmetry(name))
    assert traced.notes == ()
    assert {tensor.name: tensor.shape for tensor in traced.architecture.tensors} == {
        tensor.name: tensor.shape for tensor in archs.architecture(name).tensors
    }


@pytest.mark.slow
@pytest.mark.exhaustive
def test_resnet18() -> None:
    traced = trace(archs.get("resnet18-10")(), torch.randn(1, 3, 8, 8))
    assert traced.symmetry == archs.symmetry("resnet18-10")
    found = count(traced.symmetry)
    assert round(found.log10_permutations, 2) == 5934.49
    assert (found.scaling_without_eps, traced.notes) == (7680, ())
    assert traced.worst < 1e-12


@pytest.mark.slow
@pytest.mark.exhaustive
def test_counts_of_resnet20() -> None:
    for shortcut, expected in (("pad", 475.59), ("conv", 551.38)):
        traced = trace(archs.get(f"resnet20-{shortcut}-10")(), torch.randn(1, 3, 8, 8))
        assert round(count(traced.symmetry).log10_permutations, 2) == expected


@pytest.mark.parametrize("kind", [test_networks.Flattened, test_networks.Padded, test_networks.Odd])
def test_tables_declared_beside_their_networks(kind: type[nn.Module]) -> None:
    traced = checked_trace(kind(), torch.randn(1, *test_networks.INPUTS[kind]))
    assert _renamed(traced.symmetry) == _renamed(kind.table)


@pytest.mark.parametrize("kind", [test_networks.Grouped, test_networks.Normalised])
def test_networks_that_can_be_declared_in_several_ways(kind: type[nn.Module]) -> None:
    traced = checked_trace(kind(), torch.randn(1, *test_networks.INPUTS[kind]))
    assert count(traced.symmetry) == count(kind.table)
