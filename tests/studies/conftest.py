"""A zoo of two-layer perceptrons with known weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.spec.symmetry import AxisAction, Group, Segment, Sym, Symmetry

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
