"""Tables that are declared and tables that are traced from the modules say the same, whatever the groups are called."""

import pytest
import torch

from ckptzoo import archs
from ckptzoo.schema.groups import Like
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import count, trace

NAMES = (
    "optunet",
    "mlp-5-4-3-2",
    "mlp-tanh-5-4-3-2",
    "resnet20-pad-10",
    "resnet20-conv-10",
    "resnet18-10",
    "resnet18-4-10",
)


def described(table: Symmetry) -> tuple[set, set]:
    """The groups by what they do to which positions, and which of them move like which."""
    places: dict[str, list[tuple]] = {group.id: [] for group in table.groups}
    for act in table.actions:
        for name in {item.group for item in act.segments}:
            runs = [
                (item.offset + item.inner * i, item.inner)
                for item in act.segments
                if item.group == name
                for i in range(item.count)
            ]
            places[name].append(
                (act.tensor, act.axis, act.exponent, act.role, act.blocks, act.eps, act.in_mass, tuple(runs))
            )
    names = {name: tuple(sorted(found)) for name, found in places.items()}
    groups = {
        (names[item.id], item.n, type(item.perm).__name__ if not isinstance(item.perm, Like) else "Sym", item.scale)
        for item in table.groups
    }
    together: dict[str, set] = {}
    for group in table.groups:
        together.setdefault(table.leader(group.id).id, set()).add(names[group.id])
    return groups, {frozenset(found) for found in together.values()}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(6)
def test_a_declared_table_is_the_traced_one(name: str) -> None:
    arch = archs.architecture(name)
    shape = (3, 8, 8) if name.startswith("resnet") else arch.input_shape
    assert shape is not None
    traced = trace(archs.get(name)(), torch.randn(2, *shape))
    assert traced.notes == () and traced.worst < 1e-12
    assert count(traced.symmetry) == count(archs.symmetry(name))
    assert traced.architecture.tensors == arch.tensors
    assert described(traced.symmetry) == described(archs.symmetry(name))
