"""Variants whose equivalence checks fail: every command says so, and nothing that is right is taken for wrong."""

import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

import ckptzoo
from ckptzoo.derive import align_zoo, declare, derive
from ckptzoo.derive.output_differences import EquivalenceChecker
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.equivalence import largest_allowed
from ckptzoo.schema.groups import AxisAction, Group, Segment, Sym
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.studies.inventory import inventory
from ckptzoo.symmetry import canonicalize, trace
from tests.support.effort import examples

N = 6


class Masked(nn.Module):
    """A network whose mask a table forgets that has the weights alone."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, N), nn.Linear(N, 2)
        self.register_buffer("mask", torch.ones(N))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)) * self.mask)


def wrong_zoo(path: Path, wrong: int) -> Path:
    """Six checkpoints, of which the last ``wrong`` have a mask that the zoo's table does not move."""
    rng = np.random.default_rng(0)
    state = Masked().state_dict()
    stack = {name: rng.standard_normal((6, *value.shape)).astype("f4") for name, value in state.items()}
    stack["mask"] = np.ones((6, N), "f4")
    stack["mask"][6 - wrong :] = np.arange(N) % 2
    arch = Architecture.of(state, name="masked", input_shape=(3,))
    with ckptzoo.create(path, arch=arch, card=ckptzoo.Card("masked", "Masks that the table forgets.")) as writer:
        writer.add(stack, [{"id": f"n{number}"} for number in range(6)])
    channels = (Segment("a", 0, 1, N),)
    actions = (
        AxisAction("a.weight", 0, channels, 1, True, "out"),
        AxisAction("a.bias", 0, channels, 1, False, "bias"),
        AxisAction("b.weight", 1, channels, -1, True, "in"),
    )
    declare(path, Symmetry((Group("a", N, Sym(), "positive"),), actions))
    return path


def read(path: Path) -> list[str]:
    """What is warned of where weights of the variant are read twice."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        zoo = ckptzoo.open(path)
        assert zoo["a.weight", "canonical"].shape == zoo["a.weight", "canonical"].shape
        zoo[:2].checkpoint("n0", variant="canonical")
    return [str(item.message) for item in caught]


def test_checks_that_fail_later_are_told_by_every_reader(tmp_path: Path) -> None:
    path = wrong_zoo(tmp_path / "zoo", 2)
    assert not derive(path).failed.ids
    assert ckptzoo.verify(path) == [] and read(path) == []
    later = derive(path, certify="all", module=Masked())
    assert later.failed.ids == ("n4", "n5")
    assert later.failed.largest > 0.1 > later.failed.allowed
    assert derive(path).failed == later.failed  # also where nothing new is checked
    for deep in (True, False):
        (problem,) = ckptzoo.verify(path, deep=deep)
        assert problem.location == "zoo/derived/canonical" and "n4, n5" in problem.got
    assert inventory(ckptzoo.open(path)).variants[1].failed == 2
    (warning,) = read(path)
    assert "n4, n5" in warning
    ckptzoo.retract(path, ["n4"], reason="A test.")
    assert derive(path).failed.ids == ("n5",)


@pytest.mark.parametrize("wrong", [0, 2])
def test_checks_that_fail_at_once(tmp_path: Path, wrong: int) -> None:
    path = wrong_zoo(tmp_path / "zoo", wrong)
    made = derive(path, module=Masked())  # the table is tried on the first four, which are right
    assert made.failed.ids == ("n4", "n5")[:wrong]
    aligned = align_zoo(path, "n0", label="first", module=Masked())
    assert set(aligned.failed.ids) <= set(made.failed.ids)
    assert len(ckptzoo.verify(path)) == bool(made.failed.ids) + bool(aligned.failed.ids)


DTYPES = ("float64", "float32", "float16", "bfloat16")


def deep_network(seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    """A random network of 1 to 12 layers, of several kinds."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    layers, act = int(rng.integers(1, 13)), (nn.ReLU, nn.Tanh, nn.GELU)[seed % 3]
    if seed % 4 == 3:
        parts = [item for _ in range(layers) for item in (nn.Linear(8, 8), nn.BatchNorm1d(8), act())]
    else:
        parts = [item for _ in range(layers) for item in (nn.Linear(8, 8), act())]
    module = nn.Sequential(*parts, nn.Linear(8, 3)).eval()
    gain = {nn.ReLU: 2**0.5, nn.Tanh: 1.5, nn.GELU: 1.5}[act]
    with torch.no_grad():
        for value in module.parameters():
            value.normal_(0, gain / 8**0.5) if value.ndim > 1 else value.add_(0.3 * torch.randn_like(value))
    return module, (8,)


@pytest.mark.parametrize("seed", range(examples(4)))
@pytest.mark.sampled(2)
def test_no_right_variant_fails(seed: int) -> None:
    module, shape = deep_network(seed)
    table = trace(module, torch.randn(4, *shape)).symmetry
    for dtype in DTYPES:
        check_right_variant(module, table, shape, dtype, seed)


def check_right_variant(module: nn.Module, table: Symmetry, shape: tuple[int, ...], dtype: str, seed: int) -> None:
    state = {name: value.to(getattr(torch, dtype)) for name, value in module.state_dict().items() if value.ndim}
    kind = np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    weights = {name: value.double().numpy()[None].astype(kind) for name, value in state.items()}
    counters = {name: value for name, value in module.state_dict().items() if not value.ndim}
    weights |= {name: value.numpy()[None] for name, value in counters.items()}
    arch = Architecture.of({**state, **counters}, name="deep", input_shape=shape)
    made: Any = canonicalize(weights, table).weights
    inputs = np.random.default_rng(seed).standard_normal((8, *shape))
    for precision in ("float64", "float32") if dtype != "float64" else ("float64",):
        found = EquivalenceChecker(arch, module).output_differences(weights, made, inputs, precision=precision)
        assert found[0] < largest_allowed(arch, precision)
        if precision == "float64":
            assert found[0] < 0.1 * largest_allowed(arch, precision)


def test_the_bound_grows_with_layers_and_epsilon_and_has_an_end() -> None:
    def bound(layers: int, dtype: torch.dtype, precision: str) -> float:
        state = {f"{number}.weight": torch.zeros(3, 3, dtype=dtype) for number in range(layers)}
        return largest_allowed(Architecture.of(state, name="layers"), precision)

    assert bound(1, torch.float64, "float64") < bound(9, torch.float64, "float64") < 1e-6
    assert (
        bound(1, torch.float64, "float32") == bound(1, torch.float32, "float64") == bound(1, torch.float16, "float64")
    )
    assert (
        bound(2, torch.float32, "float64") < bound(9, torch.float32, "float64") < bound(900, torch.float32, "float64")
    )
    assert bound(900, torch.float32, "float64") == bound(10_000, torch.bfloat16, "float32") == 0.03
