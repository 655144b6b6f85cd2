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


def products(ours: Weights, theirs: Weights, groups: set[str] | None = None) -> dict[str, np.ndarray]:
    """Of activations (K, n, examples) with those of one reference (n, examples)."""
    return {key: theirs[key] @ ours[key].swapaxes(1, 2) for key in groups or ours}


def reference_hidden(reference: Weights) -> Weights:
    return one_of(hidden({key: array[None] for key, array in reference.items()}))


def by_activations(weights: Weights, reference: Weights, **options: Any) -> Any:
    activations = products(hidden(weights), reference_hidden(reference))
    return align(weights, reference, NAME, method="activations", activations=activations, **options)


def test_each_group_is_one_assignment() -> None:
    weights, reference = random_weights(NAME, 3, 1), one_of(random_weights(NAME, 1, 2))
    found, theirs = by_activations(weights, reference), reference_hidden(reference)
    for group, ours in hidden(weights).items():
        for k in range(3):
            expected = linear_sum_assignment(theirs[group] @ ours[k].T, maximize=True)[1]
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
        some = products(ours, theirs, given)
        found = align(apply(g, weights, table), one_of(weights), "optunet", method="activations", activations=some)
        np.testing.assert_array_equal(found.distance, 0)
    with pytest.raises(SymmetryError, match="group 'conv2': expected some, got none"):
        alone = products(ours, theirs, {"conv1"})
        align(weights, one_of(weights), "optunet", method="activations", activations=alone)


def test_groups_that_are_like_another_add_up() -> None:
    name, rng = "resnet8-pad-10", np.random.default_rng(5)
    table = archs.symmetry(name)
    weights = {key: np.repeat(array, 2, axis=0) for key, array in random_weights(name, 1, 1).items()}
    theirs = {group.id: rng.random((group.n, 200)) for group in table.groups}
    g = permutations(name, 2, 6)
    ours = {group: np.take_along_axis(array[None], g.perms[group][:, :, None], 1) for group, array in theirs.items()}
    leaders = {group.id for group in table.groups if table.leader(group.id) == group}
    for groups in (None, leaders):
        some = products(ours, theirs, groups)
        found = align(apply(g, weights, table), one_of(weights), name, method="activations", activations=some)
        np.testing.assert_array_equal(found.distance, 0)


def test_channels_that_hold_the_same_are_ties() -> None:
    weights, reference = random_weights(NAME, 2, 1), one_of(random_weights(NAME, 1, 2))
    ours, theirs = hidden(weights), reference_hidden(reference)
    ours["fc1"][1, [3, 7]] = 0
    found = align(weights, reference, NAME, method="activations", activations=products(ours, theirs))
    assert found.ties.tolist() == [0, 1]


def test_torch_and_networks_that_are_not_finite() -> None:
    weights, reference = random_weights(NAME, 2, 1, np.float32), one_of(random_weights(NAME, 1, 2, np.float32))
    expected = by_activations(weights, reference)
    ours, theirs = hidden(weights), reference_hidden(reference)
    given = {key: torch.from_numpy(array) for key, array in products(ours, theirs).items()}
    found = align(weights, reference, NAME, method="activations", activations=given)
    np.testing.assert_array_equal(found.element.perms["fc2"], expected.element.perms["fc2"])
    ours["fc1"][1, 3, 3] = np.inf
    found = align(weights, reference, NAME, method="activations", activations=products(ours, theirs))
    assert found.aligned.tolist() == [True, False] and np.isnan(found.value[1])
    np.testing.assert_array_equal(found.element.perms["fc2"][1], np.arange(12))


def test_a_reference_for_each_network() -> None:
    weights, references = random_weights(NAME, 3, 1), random_weights(NAME, 3, 2)
    ours, theirs = hidden(weights), hidden(references)
    both = products(ours, theirs)
    found = align(weights, references, NAME, method="activations", activations=both, gauge="unit-norm")
    for k in range(3):
        one, some = ({key: array[k : k + 1] for key, array in side.items()} for side in (weights, both))
        reference = {key: array[k] for key, array in references.items()}
        alone = align(one, reference, NAME, method="activations", activations=some, gauge="unit-norm")
        np.testing.assert_array_equal(found.element.perms["fc1"][k], alone.element.perms["fc1"][0])


def test_what_is_refused() -> None:
    weights, reference = random_weights(NAME, 2, 1), one_of(random_weights(NAME, 1, 2))
    given = products(hidden(weights), reference_hidden(reference))

    def refused(match: str, activations: Any, method: str = "activations") -> None:
        with pytest.raises((SymmetryError, UnknownNameError), match=match):
            align(weights, reference, NAME, method=method, activations=activations)

    refused("expected them with method 'activations' and no other, got none", None)
    refused("no other, got some for method 'weights'", given, "weights")
    refused("method 'activation'.*activations", given, "activation")
    refused("group 'fc2': expected some, got none", {"fc1": given["fc1"]})
    refused("group 'fc9': expected one of fc1, fc2, got another", {**given, "fc9": given["fc1"]})
    refused(r"group 'fc1': expected \(2, 20, 20\), got \(1, 20, 20\)", {**given, "fc1": given["fc1"][:1]})
    refused(r"group 'fc1': expected \(2, 20, 20\), got \(2, 20, 12\)", {**given, "fc1": given["fc1"][:, :, :12]})
