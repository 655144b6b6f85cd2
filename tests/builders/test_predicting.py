"""Outputs on a recipe's own test set and on another, stored as the networks are built."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import ckptzoo
from builders import data
from builders.__main__ import run
from builders.predicting import NORMALISATIONS, input_sets
from builders.recipe import FOLDER, ImageRecipe, Recipe
from ckptzoo import archs
from ckptzoo.errors import SpecError, ZooError

OWN = (
    (FOLDER / "digits-optunet.toml")
    .read_text()
    .replace('"digits-optunet"', '"mine"')
    .replace("epochs = 40", "epochs = 1")
)


def others(folder: Path, size: int = 28, name: str = "clothes") -> np.ndarray:
    """Test images of another data set, as idx files or packed; returns the pixels."""
    images = np.random.default_rng(5).integers(0, 256, (7, size, size), dtype=np.uint8)
    (folder / name).mkdir(parents=True)
    if size != 28:
        np.savez(folder / name / f"{name}_test.npz", images=images, labels=np.zeros(7, np.int64))
        return images
    for stem, array in (("images-idx3", images), ("labels-idx1", np.arange(7, dtype=np.uint8))):
        header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        (folder / name / f"t10k-{stem}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))
    return images


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(OWN + 'ood = "clothes"\n')
    return path


def test_the_other_set_is_no_part_of_the_digest(recipe: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.toml"
    plain.write_text(OWN)
    one, two = Recipe.load(plain), Recipe.load(recipe)
    assert isinstance(two, ImageRecipe)
    assert two.ood == "clothes"
    assert (one.digest, one.facts()) == (two.digest, two.facts())
    assert two.shortened(3).digest == one.shortened(3).digest
    assert getattr(two.shortened(3), "ood", None) == "clothes"
    for wrong in ('"digits"', "7"):
        plain.write_text(OWN + f"ood = {wrong}\n")
        with pytest.raises(SpecError, match=r"ood.*the name of another data set"):
            Recipe.load(plain)


def test_a_build_stores_outputs_on_both(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = others(tmp_path / "data")
    path = tmp_path / "zoo"
    command = ["build", str(recipe), "--to", str(path), "--data", str(tmp_path / "data"), "--keep-steps", "5"]
    assert run([*command, "--members", "2", "--predictions"]) == 0
    zoo, made_by = ckptzoo.open(path), Recipe.load(recipe)
    source = data.load(made_by)
    seen = {
        "digits/test": data.inputs(made_by, source.test_images),
        "clothes/test": data.inputs(made_by, images[:, None]),
    }
    assert sorted(zoo.predicted) == sorted(seen)
    network = archs.get("optunet")().eval()
    for name, inputs in seen.items():
        found = zoo.predictions(name)
        for row, identity in enumerate(zoo.ids):
            network.load_state_dict(zoo.checkpoint(identity).state_dict())
            with torch.inference_mode():
                expected = network(torch.from_numpy(inputs)).numpy()
            np.testing.assert_allclose(np.asarray(found.logits)[row], expected, rtol=2e-3, atol=2e-3)
    labels = zoo.predictions("digits/test").targets
    assert labels is not None
    assert np.array_equal(labels, source.test_labels)
    assert zoo.predictions("clothes/test").targets is None

    before = sorted(path.rglob("*"))
    assert run([*command, "--members", "2", "--predictions"]) == 0
    assert "nothing was added" in capsys.readouterr().out
    assert sorted(path.rglob("*")) == before
    assert run([*command, "--members", "3"]) == 0
    assert run([*command, "--members", "3", "--predictions"]) == 0
    assert ckptzoo.open(path).predictions("clothes/test").logits.shape == (6, 7, 10)
    assert ckptzoo.verify(path) == []


def test_a_set_that_is_missing_or_does_not_fit_stops_the_build_first(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["build", str(recipe), "--to", str(tmp_path / "zoo"), "--members", "1", "--predictions"]
    assert run([*command, "--data", str(tmp_path)]) == 2
    where = f"got none in {tmp_path / 'clothes'} or {tmp_path.parent / 'clothes'}. Name a folder"
    assert f"out-of-distribution set: expected clothes, {where}" in capsys.readouterr().err
    assert not (tmp_path / "zoo").exists()
    others(tmp_path, size=20)
    with pytest.raises(
        ZooError, match=r"clothes: images: expected \(1, 28, 28\), as those of digits, got \(1, 20, 20\)"
    ):
        input_sets(Recipe.load(recipe), tmp_path)


def test_the_other_set_may_lie_beside_the_recipes_own(recipe: Path, tmp_path: Path) -> None:
    images = others(tmp_path / "data")
    (tmp_path / "data" / "digits").mkdir()
    found = input_sets(Recipe.load(recipe), tmp_path / "data" / "digits")[1]
    assert np.array_equal(found.inputs, data.inputs(Recipe.load(recipe), images[:, None]))
    others(tmp_path / "data" / "digits", size=20)
    with pytest.raises(ZooError, match=r"got \(1, 20, 20\)"):
        input_sets(Recipe.load(recipe), tmp_path / "data" / "digits")  # what lies within comes first


def test_labels_that_are_not_among_the_outputs_are_left_out(tmp_path: Path) -> None:
    (points,) = input_sets(Recipe.load("toy"))
    assert (points.name, points.inputs.shape, points.targets) == ("two-gaussians/test", (400, 2), None)
    assert run(["build", "toy", "--members", "2", "--epochs", "1", "--to", str(tmp_path), "--predictions"]) == 0
    found = ckptzoo.open(tmp_path).predictions("two-gaussians/test")
    assert (found.logits.shape, found.targets) == ((2, 400, 1), None)
    text = (FOLDER / "toy.toml").read_text().replace('"mlp-2-2-1"', '"mlp-2-2-2"').replace('"binary-', '"')
    (tmp_path / "two.toml").write_text(text)
    (points,) = input_sets(Recipe.load(tmp_path / "two.toml"))
    assert points.targets is not None
    assert np.array_equal(np.bincount(points.targets), [200, 200])


REAL = Path(data.folder_of(None) or Path(__file__).parents[3] / "shared" / "data")


@pytest.mark.exhaustive
@pytest.mark.skipif(not (REAL / "fashion-mnist").is_dir(), reason=f"no Fashion-MNIST under ${data.FOLDER_VARIABLE}")
def test_the_real_sets() -> None:
    own, other = input_sets(Recipe.load("mnist-optunet"), REAL)
    assert (own.name, other.name) == ("mnist/test", "fashion-mnist/test")
    assert own.inputs.shape == other.inputs.shape == (10_000, 1, 28, 28)
    assert own.targets is not None
    assert np.array_equal(np.bincount(own.targets)[:3], [980, 1135, 1032])
    assert other.targets is None
    assert other.inputs.min() == pytest.approx(-0.1307 / 0.3081)
    assert other.inputs.max() == pytest.approx((1 - 0.1307) / 0.3081)


def test_the_other_set_in_other_normalisations(recipe: Path, tmp_path: Path) -> None:
    images = others(tmp_path)
    sets = input_sets(Recipe.load(recipe), tmp_path, normalisations=NORMALISATIONS)
    assert [item.name for item in sets[1:]] == [
        *("clothes/test", "clothes/test-own-statistics", "clothes/test-unnormalised"),
    ]
    own, plain = sets[2].inputs, sets[3].inputs
    assert abs(own.mean()) < 1e-4 and abs(own.std() - 1) < 1e-4
    assert np.allclose(plain[:, 0], images / 255, atol=1e-7)
