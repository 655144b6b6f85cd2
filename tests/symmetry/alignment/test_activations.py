"""Matching by activations: planted copies, one assignment a group, wreath and Like groups, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from ckptzoo import archs
from ckptzoo.errors import SymmetryError, UnknownNameError
from ckptzoo.symmetry import GroupElement, align, apply
from tests.symmetry.alignment.test_align import Weights, one_of, permutations, random_weights

NAME = "mlp-6-20-12-4"
INPUTS = np.random.default_rng(9).standard_normal((50, 6))


def hidden(weights: Weights) -> dict[str, np.ndarray]:
    """What the hidden layers hold (K, n, examples), before the ReLU, so that no channel is dead."""
    found: dict[str, np.ndarray] = {}
    values = np.broadcast_to(INPUTS.T, (len(weights["fc1.weight"]), *INPUTS.T.shape))
    for layer in ("fc1", "fc2"):
        found[layer] = weights[f"{layer}.weight"] @ values + weights[f"{layer}.bias"][:, :, None]
        values = np.maximum(found[layer], 0)
    return found


def chosen(activations: dict[str, np.ndarray], groups: set[str]) -> dict[str, np.ndarray]:
    return {key: array for key, array in activations.items() if key in groups}


def by_activations(weights: Weights, reference: Weights, **options: Any) -> Any:
    stacked = {key: array[None] for key, array in reference.items()}
    activations = (hidden(weights), one_of(hidden(stacked)))
    return align(weights, reference, NAME, method="activations", activations=activations, **options)


def test_each_group_is_one_assignment() -> None:
    weights, reference = random_weights(NAME, 3, 1), one_of(random_weights(NAME, 1, 2))
    found, theirs = by_activations(weights, reference), hidden({key: array[None] for key, array in reference.items()})
    for group, ours in hidden(weights).items():
        for k in range(3):
            expected = linear_sum_assignment(theirs[group][0] @ ours[k].T, maximize=True)[1]
            np.testing.assert_array_equal(found.element.perms[group][k], expected)
    by_weights = align(weights, reference, NAME)
    np.testing.assert_allclose(found.bound, by_weights.bound, rtol=1e-12)
    assert (found.value <= found.bound).all() and not found.sweeps.any()


@pytest.mark.parametrize("gauge", [None, "unit-norm", "canonical"])
def test_permuted_copies_are_found(gauge: str | None) -> None:
    """Copies that are scaled too are found where a gauge removes the scales."""
    table, one = archs.symmetry(NAME), random_weights(NAME, 1, 1)
    copies = {key: np.repeat(array, 4, axis=0) for key, array in one.items()}
    spread = 0.0 if gauge is None else 1.0
    g = GroupElement.random(table, 4, np.random.default_rng(2), spread=spread)
    found = by_activations(apply(g, copies, table), one_of(one), gauge=gauge)
    np.testing.assert_allclose(found.distance, 0, atol=1e-10)
    for group, perm in found.element.perms.items():
        if gauge != "canonical":  # which puts the reference in another order
            np.testing.assert_array_equal(perm, g.inverse().perms[group])


def test_wreath_groups_move_in_blocks() -> None:
    table, rng = archs.symmetry("optunet"), np.random.default_rng(3)
    weights = {key: np.repeat(array, 2, axis=0) for key, array in random_weights("optunet", 1, 1).items()}
    theirs = {"conv1": rng.random((2, 30)), "conv2": rng.random((10, 30))}
    g = permutations("optunet", 2, 4)
    ours = {group: np.take_along_axis(array[None], g.perms[group][:, :, None], 1) for group, array in theirs.items()}
    for given in ({"conv1", "conv2"}, {"conv2"}):
        both = chosen(ours, given), chosen(theirs, given)
        found = align(apply(g, weights, table), one_of(weights), "optunet", method="activations", activations=both)
        np.testing.assert_array_equal(found.distance, 0)
    with pytest.raises(SymmetryError, match="group 'conv2': expected those of the networks and of the reference, got"):
        alone = chosen(ours, {"conv1"}), chosen(theirs, {"conv1"})
        align(weights, one_of(weights), "optunet", method="activations", activations=alone)


def test_groups_that_are_like_another_add_up() -> None:
    name, rng = "resnet8-pad-10", np.random.default_rng(5)
    table = archs.symmetry(name)
    weights = {key: np.repeat(array, 2, axis=0) for key, array in random_weights(name, 1, 1).items()}
    theirs = {group.id: rng.random((group.n, 200)) for group in table.groups}
    g = permutations(name, 2, 6)
    ours = {group: np.take_along_axis(array[None], g.perms[group][:, :, None], 1) for group, array in theirs.items()}
    found = align(apply(g, weights, table), one_of(weights), name, method="activations", activations=(ours, theirs))
    np.testing.assert_array_equal(found.distance, 0)
    leaders = {group.id for group in table.groups if table.leader(group.id) == group}
    both = chosen(ours, leaders), chosen(theirs, leaders)
    assert (
        align(apply(g, weights, table), one_of(weights), name, method="activations", activations=both).distance.max()
        == 0
    )


def test_torch_and_networks_that_are_not_finite() -> None:
    weights, reference = random_weights(NAME, 2, 1, np.float32), one_of(random_weights(NAME, 1, 2, np.float32))
    expected = by_activations(weights, reference)
    ours = hidden(weights)
    theirs = one_of(hidden({key: array[None] for key, array in reference.items()}))
    one, other = ({key: torch.from_numpy(array) for key, array in side.items()} for side in (ours, theirs))
    found = align(weights, reference, NAME, method="activations", activations=(one, other))
    np.testing.assert_array_equal(found.element.perms["fc2"], expected.element.perms["fc2"])
    ours["fc1"][1, 3, 3] = np.inf
    found = align(weights, reference, NAME, method="activations", activations=(ours, theirs))
    assert found.aligned.tolist() == [True, False] and np.isnan(found.value[1])
    np.testing.assert_array_equal(found.element.perms["fc2"][1], np.arange(12))


def test_what_is_refused() -> None:
    weights, reference = random_weights(NAME, 2, 1), one_of(random_weights(NAME, 1, 2))
    ours = hidden(weights)
    theirs = one_of(hidden({key: array[None] for key, array in reference.items()}))

    def refused(match: str, activations: Any, method: str = "activations") -> None:
        with pytest.raises((SymmetryError, UnknownNameError), match=match):
            align(weights, reference, NAME, method=method, activations=activations)

    refused("expected them with method 'activations' and no other, got none", None)
    refused("no other, got some for method 'weights'", (ours, theirs), "weights")
    refused("method 'activation'.*activations", (ours, theirs), "activation")
    refused(
        "group 'fc2': expected those of the networks and of the reference, got none", ({"fc1": ours["fc1"]}, theirs)
    )
    refused("group 'fc9': expected one of fc1, fc2, got another", ({**ours, "fc9": ours["fc1"]}, theirs))
    refused(r"group 'fc1': expected \(2, 20, examples\), got \(1, 20, 50\)", ({**ours, "fc1": ours["fc1"][:1]}, theirs))
    refused(r"group 'fc1': expected 49 examples, .* got 50", (ours, {**theirs, "fc1": theirs["fc1"][:, :49]}))
    refused("group 'fc1': expected finite numbers", (ours, {**theirs, "fc1": np.full((20, 50), np.nan)}))
