"""Builders, predictions and measurements see the same colour images, whatever form they are stored in."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import builders.sources
import ckptzoo
from builders import data
from builders.data_source import DataSource
from builders.predicting import NORMALISATIONS, input_sets
from builders.recipe import Recipe
from ckptzoo import archs, image_sets
from ckptzoo.hub.contributions.evaluation import EvaluatorPool, evaluations
from ckptzoo.hub.contributions.inputs import inputs_of
from ckptzoo.image_sets import lookup
from tests.support import image_set_files as made

RECIPE = """
name = "colour"
architecture = "mlp-3072-4-10"
dataset = "cifar10"
train = 15
test = 4
epochs = 2
batch = 4
learning_rate = 0.01
momentum = 0.9
weight_decay = 0.0
milestones = []
factor = 0.1
crop_pad = 4
flip = true
mean = [0.5, 0.4, 0.3]
std = [0.2, 0.25, 0.3]
ood = "svhn/test-3"
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The same images as rows of bytes and as arrays, and another data set beside them."""
    monkeypatch.setitem(lookup.KNOWN, "cifar10", made.small("cifar10"))  # type: ignore[arg-type]
    monkeypatch.setitem(lookup.KNOWN, "svhn", made.small("svhn", counts={"test": 5}))  # type: ignore[arg-type]
    arrays = made.cifar_arrays(10)
    made.write_binary(tmp_path / "binary" / "cifar-10-batches-bin", 10, arrays)
    made.write_npz(tmp_path / "npz" / "cifar10", 10, arrays)
    for form in ("binary", "npz"):
        images = np.full((5, 32, 32, 3), np.arange(0, 250, 50, dtype=np.uint8)[:, None, None, None])
        images[..., 1] += 5
        (tmp_path / form / "svhn").mkdir()
        np.savez(tmp_path / form / "svhn" / "svhn_test.npz", images=images, labels=np.arange(5))
    return [tmp_path / "binary", tmp_path / "npz"]


def test_recipes_predictions_and_measurements_see_the_same_images(folders: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "colour.toml"
    path.write_text(RECIPE)
    recipe = Recipe.load(path)
    sources = [data.load(recipe, folder) for folder in folders]
    source = sources[0]
    assert source.digest == sources[1].digest and source.train_images.shape == (15, 3, 32, 32) and source.classes == 10
    mean, std = (np.array(values).reshape(3, 1, 1) for values in ((0.5, 0.4, 0.3), (0.2, 0.25, 0.3)))
    expected = ((source.test_images / 255 - mean) / std).astype(np.float32)
    assert np.array_equal(builders.sources.test_inputs(recipe, source), expected)
    seen = DataSource.of(recipe, source, "cpu").network_inputs(torch.from_numpy(source.test_images))
    np.testing.assert_allclose(seen.numpy(), expected, rtol=0, atol=1e-5)

    name, rng = "resnet8-pad-10", np.random.default_rng(3)
    arch = archs.architecture(name)
    writer = ckptzoo.create(tmp_path / "zoo", arch=arch, symmetry=None, card=ckptzoo.Card("colour", "Colour."))
    state = archs.get(name)().state_dict()
    weights = {key: value.numpy()[None] + rng.normal(0, 0.01, (2, *value.shape)) for key, value in state.items()}
    weights = {key: np.abs(array).astype(state[key].numpy().dtype) for key, array in weights.items()}
    extra = json.dumps({"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.25, 0.3]})
    writer.add(weights, [{"id": f"net-{row}", "dataset": "cifar10", "extra": extra} for row in range(2)])
    writer.commit()
    zoo = ckptzoo.open(tmp_path / "zoo")
    own, other = (inputs_of(zoo, name, data=folders[1]) for name in ("cifar10/test", "svhn/test-3"))
    assert np.array_equal(own.inputs, expected)
    assert own.targets is not None and np.array_equal(own.targets, source.test_labels)
    assert other.inputs.shape == (3, 3, 32, 32) and other.targets is None

    network = archs.get(name)().eval()
    network.load_state_dict(zoo.checkpoint("net-1").state_dict())
    with torch.inference_mode():
        logs = network(torch.from_numpy(expected)).double().log_softmax(-1).numpy()
    pool = EvaluatorPool(zoo.arch, data=folders[0])
    one = {tensor.name: np.asarray(zoo[tensor.name][1:2]) for tensor in arch.tensors}
    (figures,) = pool.measure(one, evaluations(zoo)[1])
    assert figures is not None
    assert figures["test_nll"] == pytest.approx(-logs[np.arange(4), source.test_labels].mean(), rel=1e-5)


def test_corrupted_images_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "CIFAR-100-C"
    folder.mkdir()
    # a sparse file of the real size
    images = np.lib.format.open_memmap(folder / "jpeg_compression.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    images[20_005] = np.arange(3)
    images.flush()
    np.save(folder / "labels.npy", np.tile(np.arange(10_000) % 100, 5))
    found = image_sets.find("cifar100-c/jpeg-compression-3", tmp_path)
    assert found is not None and len(found) == 10_000 and np.array_equal(found.labels, np.arange(10_000) % 100)
    assert np.array_equal(found.images[5], np.broadcast_to(np.arange(3)[:, None, None], (3, 32, 32)))
    assert found.images.sum() == 3 * 32 * 32


def test_another_set_in_its_own_statistics_channel_by_channel(folders: list[Path], tmp_path: Path) -> None:
    recipe = tmp_path / "colour.toml"
    recipe.write_text(RECIPE)
    sets = input_sets(Recipe.load(recipe), folders[0], normalisations=NORMALISATIONS)
    assert [item.name for item in sets] == [
        *("cifar10/test", "svhn/test-3", "svhn/test-3-own-statistics", "svhn/test-3-unnormalised"),
    ]
    own, plain = sets[2].inputs, sets[3].inputs
    assert own.shape == (3, 3, 32, 32)
    np.testing.assert_allclose(own.mean((0, 2, 3)), 0, atol=1e-6)
    np.testing.assert_allclose(own.std((0, 2, 3)), 1, atol=1e-6)
    assert np.allclose(plain[:, 1, 0, 0], [5 / 255, 55 / 255, 105 / 255])


def test_pixels_need_as_many_numbers_as_channels() -> None:
    images = np.zeros((1, 3, 2, 2), np.uint8)
    with pytest.raises(
        ckptzoo.ZooError, match="mean and std: expected one number or one a channel, got 2 for images of 3"
    ):
        image_sets.network_inputs(images, (0.1, 0.2), 1.0)
