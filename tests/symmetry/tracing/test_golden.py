"""Tables of the networks in these tests and of the registry, bit for bit as the first tracer made them, by torch.fx.

That of tokens with positions is recorded again: its stream has orthogonal matrices. So are two with products of values
that are scaled apart, which have the scales of both (by ReLUs, and halves of which one is behind tanh), and those that
read squares, in which signs end (variances, filter response normalisation)."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from ckptzoo import archs
from ckptzoo.symmetry import trace
from tests.symmetry import test_networks
from tests.symmetry.tracing import (
    test_blocks,
    test_elementwise,
    test_linear,
    test_normalization,
    test_reduction,
    test_shape,
)
from tests.symmetry.tracing.helpers import images, net, rows

GOLDEN: dict[str, str] = json.loads(Path(__file__).with_name("golden_tables.json").read_text())
"""Network to the digest of its table without folds."""
FOLDED: dict[str, str] = json.loads(Path(__file__).with_name("golden_folds.json").read_text())
"""The same with folds, for the networks that have some: those with LayerNorms."""
REGISTERED = ("optunet", "mlp-6-5-4-3", "mlp-tanh-6-5-4-3", "resnet8-pad-3", "resnet8-conv-3", "resnet20-pad-10")
REGISTERED += ("resnet20-conv-10", "resnet18-10", "resnet18-4-10")
BY_DEFAULT = {f"registry: {name}" for name in ("optunet", "mlp-tanh-6-5-4-3", "resnet8-conv-3")}
Network = Callable[[], tuple[nn.Module, torch.Tensor]]


def networks() -> Iterator[tuple[str, Network]]:
    """Every network with its name; it is made when it is called."""
    for module in (test_blocks, test_elementwise, test_linear, test_normalization, test_reduction, test_shape):
        for name, case in module.CASES.items():
            yield (
                f"{module.__name__.rpartition('.')[2]}: {name}",
                lambda case=case: (
                    net(case.forward, **case.parts),
                    case.example,
                ),
            )
    for name, (forward, parts, _, _) in test_blocks.COMPLETE.items():
        example = rows(2) if isinstance(parts["a"](), nn.Linear) else images(2, 2)
        yield (
            f"complete: {name}",
            lambda forward=forward, parts=parts, example=example: (net(forward, **parts), example),
        )
    for kind, shape in test_networks.INPUTS.items():
        yield f"declared: {kind.__name__}", lambda kind=kind, shape=shape: (kind(), torch.randn(1, *shape))
    for name in REGISTERED:
        shape = (3, 8, 8) if name.startswith("resnet") else archs.architecture(name).input_shape
        assert shape is not None
        yield f"registry: {name}", lambda name=name, shape=shape: (archs.get(name)(), torch.randn(1, *shape))


NETWORKS = dict(networks())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.exhaustive) for name in NETWORKS],
)
def test_tables_are_those_that_zoos_hold(name: str) -> None:
    module, example = NETWORKS[name]()
    table = trace(module, example).symmetry
    assert replace(table, folds=()).digest == GOLDEN[name]
    assert table.digest == FOLDED.get(name, GOLDEN[name])


def test_every_recorded_network_is_still_there() -> None:
    assert GOLDEN.keys() == NETWORKS.keys()
