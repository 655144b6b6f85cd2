"""A zoo of two-layer perceptrons with known weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.schema.groups import AxisAction, Group, Segment, Sym
from ckptzoo.schema.symmetry import Symmetry

Weights = dict[str, np.ndarray]

PERCEPTRON = ckptzoo.Architecture(
    "perceptron",
    (
        ckptzoo.Tensor("hidden.weight", (3, 2)),
        ckptzoo.Tensor("hidden.bias", (3,)),
        ckptzoo.Tensor("out.weight", (2, 3)),
        ckptzoo.Tensor("steps", (), "int64", "buffer"),
    ),
)
UNITS = Segment("units", 0, 1, 3)
SYMMETRY = Symmetry(
    (Group("units", 3, Sym(), "positive"),),
    (
        AxisAction("hidden.weight", 0, (UNITS,), 1, True, "out"),
        AxisAction("hidden.bias", 0, (UNITS,), 1, False, "bias"),
        AxisAction("out.weight", 1, (UNITS,), -1, True, "in"),
    ),
)


@pytest.fixture
def perceptrons(tmp_path: Path) -> Callable[..., tuple[ckptzoo.Zoo, Weights]]:
    """Make a zoo of so many perceptrons, raw and in first-weight; ``rows`` adds columns to each row."""

    def make(
        count: int = 300, *, rows: Callable[[int], dict[str, Any]] = lambda _: {}, gauge: bool = True, name: str = "p"
    ) -> tuple[ckptzoo.Zoo, Weights]:
        rng = np.random.default_rng(count)
        weights: Weights = {}
        for tensor in PERCEPTRON.tensors:
            weights[tensor.name] = (rng.normal(size=(count, *tensor.shape)) * 2).astype(tensor.dtype)
        made = [{"id": f"p{at}", "seed": at, "test_accuracy": 0.5 + at % 500 / 1000, **rows(at)} for at in range(count)]
        with ckptzoo.create(tmp_path / name, arch=PERCEPTRON, symmetry=SYMMETRY, card=ckptzoo.Card(name)) as writer:
            writer.add(weights, made)
        if gauge:
            derive(tmp_path / name, gauge="first-weight")
        return ckptzoo.open(tmp_path / name), weights

    return make


@pytest.fixture
def sorted_units(tmp_path: Path) -> Callable[..., ckptzoo.Zoo]:
    """Make a zoo of perceptrons whose hidden units have these first weights, in the gauge first-weight.

    ``keys`` is (K, n), between -1 and 1: unit i of checkpoint k has the incoming weights (key, sqrt(1 - key^2)) over
    ``scales`` (K, n). ``rows`` adds columns to each row.
    """

    def make(
        keys: np.ndarray,
        scales: np.ndarray | float = 1.0,
        rows: Callable[[int], dict[str, Any]] = lambda _: {},
        *,
        kind: str = "positive",
        name: str = "units",
    ) -> ckptzoo.Zoo:
        K, n = keys.shape
        arch = ckptzoo.Architecture(
            "units", (ckptzoo.Tensor("hidden.weight", (n, 2), "float64"), ckptzoo.Tensor("out.weight", (2, n)))
        )
        units = Segment("units", 0, 1, n)
        actions = (
            AxisAction("hidden.weight", 0, (units,), 1, True, "out"),
            AxisAction("out.weight", 1, (units,), -1, True, "in"),
        )
        table = Symmetry((Group("units", n, Sym(), kind),), actions)
        incoming = np.stack([keys, np.sqrt(1 - keys**2)], axis=2) / np.broadcast_to(scales, keys.shape)[:, :, None]
        weights = {"hidden.weight": incoming, "out.weight": np.ones((K, 2, n), np.float32)}
        made = [{"id": f"u{at}", **rows(at)} for at in range(K)]
        with ckptzoo.create(tmp_path / name, arch=arch, symmetry=table) as writer:
            writer.add(weights, made)
        derive(tmp_path / name, gauge="first-weight")
        return ckptzoo.open(tmp_path / name)

    return make
