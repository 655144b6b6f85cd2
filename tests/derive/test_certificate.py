"""Certificates: what they measure, and that they see what they must."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ckptzoo import archs
from ckptzoo.derive.certificate import Certifier
from ckptzoo.errors import SymmetryError
from ckptzoo.spec.symmetry import AxisAction, Group, Segment, Sym, Symmetry
from ckptzoo.symmetry import canonicalize

ARCH = archs.architecture("optunet")
TABLE = archs.symmetry("optunet")
INPUTS = np.random.default_rng(1).random((4, 1, 28, 28))


def _weights(K: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {tensor.name: rng.standard_normal((K, *tensor.shape)).astype(np.float32) / 3 for tensor in ARCH.tensors}


def test_the_gap_is_the_largest_relative_difference_of_the_outputs() -> None:
    one, two = _weights(3), _weights(3, seed=1)
    found = Certifier(ARCH).gaps(one, two, INPUTS)
    for at in range(3):
        outputs = []
        for weights in (one, two):
            model = archs.get("optunet")().double()
            model.load_state_dict({name: torch.from_numpy(array[at]).double() for name, array in weights.items()})
            outputs.append(model(torch.from_numpy(INPUTS)).detach().numpy())
        gap = np.linalg.norm(outputs[1] - outputs[0], axis=1) / np.linalg.norm(outputs[0], axis=1)
        assert found[at] == pytest.approx(gap.max(), rel=1e-12)


def test_one_changed_weight_is_seen_in_its_own_checkpoint() -> None:
    one = _weights(40)
    two = {name: array.copy() for name, array in one.items()}
    two["fc.weight"][37, 4] *= 1.001
    found = Certifier(ARCH).gaps(one, two, INPUTS)
    assert found[37] > 1e-6
    assert (np.delete(found, 37) == 0).all()


def test_a_gauge_changes_nothing_but_one_rounding() -> None:
    one = _weights(8)
    double = {name: array.astype(np.float64) for name, array in one.items()}
    certifier = Certifier(ARCH)
    assert certifier.gaps(double, canonicalize(double, TABLE).weights, INPUTS).max() < 1e-13
    assert 0 < certifier.gaps(one, canonicalize(one, TABLE).weights, INPUTS).max() < 2e-6


def test_silent_networks_agree_and_outputs_that_are_not_finite_have_no_certificate() -> None:
    one = {name: np.zeros_like(array) for name, array in _weights(3).items()}
    two = {name: array.copy() for name, array in one.items()}
    two["fc.bias"][1] = 1
    two["fc.bias"][2] = np.nan
    found = Certifier(ARCH).gaps(one, two, INPUTS)
    assert found[0] == 0 and found[1] == np.inf and np.isnan(found[2])


def test_right_tables_pass_and_wrong_ones_are_refused() -> None:
    certifier, weights = Certifier(ARCH), _weights(4)
    certifier.check_table(TABLE, weights, INPUTS)
    across = Symmetry(
        (Group("h", 10, Sym(), "positive"),),
        (
            AxisAction("conv2.weight", 0, (Segment("h", 0, 1, 10),), 1, True, "out"),
            AxisAction("fc.weight", 1, (Segment("h", 0, 1, 10),), -1, True, "in"),
        ),
    )
    forgotten = replace(TABLE, actions=(*TABLE.actions[:3], replace(TABLE.actions[3], exponent=0)))
    for wrong in (across, forgotten):
        with pytest.raises(SymmetryError, match="random group elements"):
            certifier.check_table(wrong, weights, INPUTS)
