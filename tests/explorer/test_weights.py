"""Components of layers against numpy's singular values, however they are read, and the histogram of all weights."""

from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.explorer import weights as module
from ckptzoo.explorer.weights import MISSING, LayerWeights, count_values, edges_of, scores


def zoo_of(
    path: Path, K: int, shape: tuple[int, ...], *, dtype: str = "float32", spoil: tuple[int, ...] = ()
) -> ckptzoo.Zoo:
    """Correlated weights with a large mean, in two tensors of a layer and two parts."""
    arch = ckptzoo.Architecture(
        "net", (ckptzoo.Tensor("fc.weight", shape, dtype), ckptzoo.Tensor("fc.bias", shape[:1], dtype))
    )
    rng = np.random.default_rng(K)
    size = int(np.prod(shape)) + shape[0]
    flat = rng.normal(size=(K, 3)) * [5, 2, 0.5] @ rng.normal(size=(3, size)) + 0.1 * rng.normal(size=(K, size)) + 7
    flat[list(spoil), 1] = np.nan
    flat = flat.astype(dtype)
    stacked = {"fc.weight": flat[:, : -shape[0]].reshape(K, *shape), "fc.bias": flat[:, -shape[0] :]}
    writer = ckptzoo.create(path, arch=arch)
    half = K // 2
    for part, rows in enumerate((slice(0, half), slice(half, K))):
        ids = [{"id": f"{part}-{at}", "unit": str(part)} for at in range(rows.stop - rows.start)]
        writer.add({name: values[rows] for name, values in stacked.items()}, ids)
        writer.commit()
    return ckptzoo.open(path)


def layer_of(zoo: ckptzoo.Zoo) -> LayerWeights:
    return LayerWeights(zoo, zoo.layers["fc"], "raw")


def flat_of(zoo: ckptzoo.Zoo) -> np.ndarray:
    return np.concatenate(
        [np.asarray(zoo[name], np.float64).reshape(len(zoo), -1) for name in zoo.layers["fc"]], axis=1
    )


def reference(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places along two components, the largest loading positive, and their shares of the variance."""
    left, values, right = np.linalg.svd(flat - flat.mean(axis=0), full_matrices=False)
    signs = np.sign(right[[0, 1], np.abs(right[:2]).argmax(axis=1)])
    return left[:, :2] * values[:2] * signs, values[:2] ** 2 / (values**2).sum()


@pytest.mark.parametrize(("K", "shape"), [(60, (3, 4)), (12, (5, 6)), (9, (8,)), (60, (8,))])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_places_are_those_of_the_singular_values(tmp_path, K, shape, dtype):
    zoo = zoo_of(tmp_path / "zoo", K, shape, dtype=dtype)
    layer = layer_of(zoo)
    found, _ = scores(layer, np.arange(K), edges_of([layer]))
    places, ratios = reference(flat_of(zoo))
    # rounded to whole steps
    np.testing.assert_allclose(found.positions * np.array(found.steps), places, atol=0.51 * max(found.steps))
    np.testing.assert_allclose(found.ratios, ratios, rtol=1e-6)
    assert (found.members, found.basis) == (K, K) and np.abs(found.positions).max() == 2**15 - 1


def test_pieces_of_any_size_give_the_same(tmp_path, monkeypatch):
    zoo = zoo_of(tmp_path / "zoo", 12, (5, 6))
    layer = layer_of(zoo)
    whole, counted = scores(layer, np.arange(12), edges_of([layer]))
    monkeypatch.setattr(module, "_BLOCK_BYTES", 12 * 6 * 4)
    monkeypatch.setattr(module, "_PIECE", 30)
    again, recounted = scores(layer, np.arange(12), edges_of([layer]))
    assert np.abs(whole.positions.astype(int) - again.positions).max() <= 1
    np.testing.assert_array_equal(counted.counts, recounted.counts)


def test_many_members_of_many_parameters_take_the_components_of_some(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SIDE", 16)
    zoo = zoo_of(tmp_path / "zoo", 40, (5, 6))
    layer, basis = layer_of(zoo), np.arange(0, 40, 2)
    found, _ = scores(layer, basis, edges_of([layer]))
    flat = flat_of(zoo)
    centred = flat[basis] - flat[basis].mean(axis=0)
    right = np.linalg.svd(centred, full_matrices=False)[2][:2]
    right *= np.sign(right[[0, 1], np.abs(right).argmax(axis=1)])[:, None]
    expected = (flat - flat[basis].mean(axis=0)) @ right.T
    np.testing.assert_allclose(found.positions * np.array(found.steps), expected, atol=0.51 * max(found.steps))
    assert (found.members, found.basis) == (40, 20)


@pytest.mark.parametrize("shape", [(3, 4), (5, 20)])
def test_members_with_weights_that_are_not_finite_have_no_place(tmp_path, shape):
    zoo = zoo_of(tmp_path / "zoo", 30, shape, spoil=(4, 17))
    layer = layer_of(zoo)
    found, counted = scores(layer, np.arange(30), edges_of([layer]))
    keep = np.setdiff1d(np.arange(30), [4, 17])
    assert (found.positions[[4, 17]] == MISSING).all() and found.members == 28 and counted.not_finite == 2
    places, _ = reference(flat_of(zoo)[keep])
    np.testing.assert_allclose(found.positions[keep] * np.array(found.steps), places, atol=0.51 * max(found.steps))


def test_weights_that_are_all_equal_are_at_the_centre(tmp_path):
    arch = ckptzoo.Architecture("net", (ckptzoo.Tensor("fc.weight", (4,)),))
    with ckptzoo.create(tmp_path / "zoo", arch=arch) as writer:
        writer.add({"fc.weight": np.full((5, 4), 1 / 3, np.float32)}, [{"id": str(at)} for at in range(5)])
    layer = layer_of(ckptzoo.open(tmp_path / "zoo"))
    found, counted = scores(layer, np.arange(5), edges_of([layer]))
    assert (found.positions == 0).all() and found.ratios == (0.0, 0.0) and counted.counts.sum() == 20


def test_all_weights_are_counted_in_numpys_bins(tmp_path):
    zoo = zoo_of(tmp_path / "zoo", 30, (3, 4))
    layer = layer_of(zoo)
    edges = edges_of([layer])
    found, flat = count_values(layer, edges), flat_of(zoo)
    np.testing.assert_array_equal(found.counts, np.histogram(flat, edges)[0])
    assert found.counts.sum() + found.beyond == flat.size and found.not_finite == 0
    np.testing.assert_array_equal(scores(layer, np.arange(30), edges)[1].counts, found.counts)
