"""The digits that scikit-learn brings, Fashion-MNIST beside MNIST, and pixels as networks see them."""

import re
from pathlib import Path

import numpy as np
import pytest

from builders import data
from builders.recipe import ImageRecipe, Recipe
from ckptzoo import image_sets
from ckptzoo.image_sets import ImageSet
from tests.cli.test_predict import idx

RNG = np.random.default_rng(0)


def test_digits_are_those_that_the_recipe_holds_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.delenv(image_sets.FOLDER_VARIABLE, raising=False)
    recipe = Recipe.load("digits-optunet")
    assert isinstance(recipe, ImageRecipe)
    trained, found = data.load(recipe), image_sets.find("digits")
    assert found is not None and len(found) == recipe.test
    assert np.array_equal(found.images, trained.test_images) and np.array_equal(found.labels, trained.test_labels)
    seen = found.normalized((recipe.mean,), (recipe.std,))
    assert np.array_equal(seen, data.inputs(recipe, trained.test_images))
    np.savez(tmp_path / "digits_test.npz", images=np.zeros((2, 3, 3), np.uint8), labels=np.array([1, 2]))
    own = image_sets.find("digits", tmp_path)
    assert own is not None and own.labels.tolist() == [1, 2], "files in the folder come first"


def test_fashion_mnist_is_never_taken_for_mnist(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (3, 28, 28), dtype=np.uint8)
    idx(tmp_path / "fashion-mnist", images, np.array([1, 2, 9]))
    for folder in (tmp_path, tmp_path / "fashion-mnist"):
        found = image_sets.find("fashion-mnist", folder)
        assert found is not None and np.array_equal(found.images[:, 0], images)
        assert image_sets.find("mnist", folder) is None
    idx(tmp_path / "anything", images, np.array([1, 2, 9]))
    assert image_sets.find("mnist", tmp_path / "anything") is not None


@pytest.mark.parametrize(
    ("mean", "std"), [((0.3,), (0.5,)), ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0)), ((0.5,), (1.0, 2.0, 3.0))]
)
def test_pixels_are_scaled_channel_by_channel(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    images = RNG.integers(0, 256, (5, 3, 4, 6), dtype=np.uint8)
    found = ImageSet("a", images, np.zeros(5, np.int64)).normalized(mean, std, limit=4)
    centre, width = (np.array(values).reshape(1, -1, 1, 1) for values in (mean, std))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, ((images[:4] / 255 - centre) / width).astype(np.float32))


PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "image_sets.md").read_text()


def test_the_page_lists_every_data_set_with_its_numbers() -> None:
    listed = {
        name
        for row in re.findall(r"^\| (`.+?) \|(?:[^|\n]*\|){3}$", PAGE, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", row)
    }
    assert listed == {*image_sets.KNOWN, "digits"}
    for known in image_sets.KNOWN.values():
        (row,) = [line for line in PAGE.splitlines() if line.startswith("|") and f"`{known.name}`" in line]
        assert all(f"{count:,}" in row for count in known.counts.values()) and f"{known.classes}" in row
    assert all(name.replace("_", "-") in PAGE for name in image_sets.EXTRA_CORRUPTIONS)


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "image_sets.md", "exec"), {})
    assert "(360, 1, 28, 28) uint8" in capsys.readouterr().out
