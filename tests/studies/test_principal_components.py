"""Principal components of layers, however they are read."""

from collections.abc import Callable

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.measure.components import principal_components
from ckptzoo.studies import principal_components as module
from ckptzoo.studies.principal_components import bytes_to_read, layer_components

Make = Callable[..., tuple[ckptzoo.Zoo, dict[str, np.ndarray]]]
NAMES = ("hidden.weight", "hidden.bias")


def joined(zoo: ckptzoo.Zoo, variant: str) -> np.ndarray:
    return np.concatenate([np.asarray(zoo[name, variant]).reshape(len(zoo), -1) for name in NAMES], axis=1)


@pytest.mark.parametrize("count", [2, 5, 9, 10, 40])
def test_a_layers_components_are_those_of_all_its_weights(perceptrons: Make, count: int) -> None:
    zoo, _ = perceptrons(count)
    read: list[int] = []
    found = layer_components(zoo, "hidden", NAMES, ("raw", "first-weight"), seed=0, read=read.append)
    assert (found.parameters, found.members, tuple(found.components)) == (9, count, ("raw", "first-weight"))
    for variant, components in found.components.items():
        expected = principal_components(joined(zoo, variant)).variances
        np.testing.assert_allclose(components.variances, expected, rtol=1e-9, atol=1e-12)
    assert sum(read) == bytes_to_read(zoo, NAMES, ("raw", "first-weight")) == count * 9 * 4 * 2


@pytest.mark.parametrize("store", ["weights", "element"])
@pytest.mark.parametrize("nbytes", [1, 30, 70, 10_000])
def test_pieces_do_not_matter(perceptrons: Make, monkeypatch: pytest.MonkeyPatch, nbytes: int, store: str) -> None:
    zoo, _ = perceptrons(7, gauge=False)
    derive(zoo.path, gauge="canonical", store=store)
    zoo = ckptzoo.open(zoo.path).take([4, 1, 2, 6])
    monkeypatch.setattr(module, "_BLOCK_BYTES", nbytes)
    monkeypatch.setattr(module, "BATCH_BYTES", nbytes)
    found = layer_components(zoo, "hidden", NAMES, ("raw", "canonical"), seed=0, read=lambda _: None)
    for variant, components in found.components.items():
        np.testing.assert_allclose(components.variances, principal_components(joined(zoo, variant)).variances)


def test_wide_layers_of_many_members_are_studied_on_a_seeded_sample(
    perceptrons: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SIDE", 6)
    zoo, _ = perceptrons(50, gauge=False)
    read: list[int] = []
    one, same, other = (layer_components(zoo, "hidden", NAMES, ("raw",), seed=at, read=read.append) for at in (1, 1, 2))
    assert one.members == 6 and len(one.components["raw"].variances) == 5
    np.testing.assert_array_equal(one.components["raw"].variances, same.components["raw"].variances)
    assert (one.components["raw"].variances != other.components["raw"].variances).all()
    assert sum(read) == 3 * bytes_to_read(zoo, NAMES, ("raw",)) == 3 * 6 * 9 * 4
    assert layer_components(zoo, "out", ("out.weight",), ("raw",), seed=0, read=read.append).members == 50, (
        "6 parameters"
    )
    assert layer_components(zoo.take(slice(6)), "hidden", NAMES, ("raw",), seed=0, read=read.append).members == 6


def test_one_member_has_no_components(perceptrons: Make) -> None:
    zoo, _ = perceptrons(1)
    found = layer_components(zoo, "hidden", NAMES, ("raw", "first-weight"), seed=0, read=lambda _: None)
    assert found.components == {} and found.to_json()["components"] == {}
