"""Sums of weights that are rounded are those of sorted weights, whatever the order of channels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo import archs
from ckptzoo.symmetry.moments import Moments
from tests.support.effort import examples

GRID = 2.0**36


def _to_grid(values: np.ndarray) -> np.ndarray:
    return np.round(values * GRID) / GRID


def _to_bits(values: np.ndarray) -> np.ndarray:
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 2.0**40) / 2.0**40, exponent)


def _weights(count: int, kind: str, seed: int) -> np.ndarray:
    """Return weights (2, 12, count), of which most rows have sums at the border between two rounded numbers."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((2, 12, count))
    if kind == "zeros":
        weights *= rng.random(weights.shape) < 0.2
        weights[:, 3] = 0
    if kind == "sizes":
        weights *= 10.0 ** rng.uniform(-100, 80, (2, 12, 1))
    if kind == "cancelled":
        weights -= weights.mean(axis=2, keepdims=True)
    if kind == "border" and count > 1:
        total = weights[:, :, 1:].sum(axis=2)
        weights[:, :, 0] = (np.floor(total * GRID) + 0.5) / GRID - total
    if kind == "border of norms" and count > 1:
        total = np.square(weights[:, :, 1:]).sum(axis=2)
        mantissa, exponent = np.frexp(np.sqrt(total + 1))
        border = np.ldexp((np.floor(mantissa * 2.0**40) + 0.5) / 2.0**40, exponent)
        weights[:, :, 0] = np.sqrt(np.square(border) - total)
    return weights


@pytest.mark.parametrize("kind", ["normal", "zeros", "sizes", "cancelled", "border", "border of norms"])
@given(count=st.integers(1, 3000), seed=st.integers(0, 2**32 - 1), single=st.booleans())
@settings(max_examples=examples(60, 4), deadline=None)
def test_rounded_sums_and_norms_are_those_of_sorted_weights(kind: str, count: int, seed: int, single: bool) -> None:
    weights = _weights(count, kind, seed).astype(np.float32 if single and kind != "sizes" else np.float64)
    table = archs.symmetry(f"mlp-1-{count}-12-1")
    arrays = {tensor.name: np.ones((2, *tensor.shape)) for tensor in archs.architecture(f"mlp-1-{count}-12-1").tensors}
    arrays["fc2.weight"] = weights
    for moments in (Moments(arrays, table), Moments(arrays, table, cubes=True)):
        (writer, *_), group = moments.writers("fc2"), "fc2"
        sums = moments.sums(writer, group, {}, rounded=_to_grid)
        assert _to_grid(sums).tobytes() == _to_grid(moments.sums(writer, group, {})).tobytes()
        norms = moments.norms(writer, group, {}, {}, rounded=_to_bits).values
        assert _to_bits(norms).tobytes() == _to_bits(moments.norms(writer, group, {}, {}).values).tobytes()
