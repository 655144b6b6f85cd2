"""Data sets of rows: points drawn around centres, and the table of energy efficiency."""

import dataclasses
import io
import math
import os
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import ckptzoo
from builders import data, sources, tables
from builders import sources as gaussians
from builders.__main__ import run
from builders.build import build
from builders.recipe import GaussianRecipe, Recipe, TableRecipe
from builders.rng import philox
from ckptzoo.errors import IntegrityError, ZooError
from ckptzoo.loader.permutation import derive_key, keyed_permutation

REAL = Path(os.environ.get(data.FOLDER_VARIABLE) or Path(__file__).parents[3] / "shared" / "data")
HEADER = "X1,X2,X3,X4,X5,X6,X7,X8,Y1,Y2"


def toy() -> GaussianRecipe:
    """The recipe of that name."""
    recipe = Recipe.load("toy")
    assert isinstance(recipe, GaussianRecipe)
    return recipe


def test_the_toy_is_always_the_same_and_a_line_separates_it() -> None:
    source = gaussians.load_gaussians(toy())
    assert source.digest == "sha256:9031fd2b7bb2c9f265bb480dc6833d8761263a2857a66594df13f32ffa4e0cdc"
    assert [half.shape for half in (source.train_inputs, source.test_inputs)] == [(400, 2), (400, 2)]
    assert source.train_inputs.dtype == source.train_targets.dtype == np.float32
    assert np.array_equal(np.unique(source.train_targets, return_counts=True), [[0, 1], [200, 200]])
    along, label = source.train_inputs.sum(1), source.train_targets
    assert along[label == 0].max() < along[label == 1].min()
    assert not np.isin(source.train_inputs, source.test_inputs).any()


def test_classes_are_normal_around_their_centres() -> None:
    centres = ((0.0, 5.0, -2.0), (1.0, 1.0, 1.0), (-3.0, 0.0, 0.5))
    recipe = dataclasses.replace(toy(), centres=centres, train=30_000, test=3, data_seed=11)
    source = gaussians.load_gaussians(recipe)
    for label, centre in enumerate(centres):
        points = source.train_inputs[source.train_targets == label].astype(np.float64)
        assert len(points) == 10_000
        assert np.abs(points.mean(0) - centre).max() < 5 / math.sqrt(10_000)
        assert np.abs(np.cov(points.T) - np.eye(3)).max() < 5 * math.sqrt(2 / 10_000)
    assert gaussians.load_gaussians(recipe).digest == source.digest
    assert gaussians.load_gaussians(dataclasses.replace(recipe, data_seed=12)).digest != source.digest


def test_normal_numbers_are_those_of_box_and_muller() -> None:
    made = gaussians.normals(7, 1, 5, 3)
    key = derive_key(7)
    for row in range(5):
        for column in range(3):
            words = philox((column // 2, row, 1, 0), key)
            u, v = (((int(word[0]) >> 8) + 0.5) / 2**24 for word in words[:2])
            turn = math.sin if column % 2 else math.cos
            assert made[row, column] == pytest.approx(math.sqrt(-2 * math.log(u)) * turn(2 * math.pi * v), rel=1e-12)
    many = np.sort(gaussians.normals(3, 0, 20_000, 1)[:, 0])
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in many])
    gap = np.abs(below - (np.arange(20_000) + 0.5) / 20_000).max()
    assert gap < 1.95 / math.sqrt(20_000), "Kolmogorov and Smirnov, at a level of 0.001"


@pytest.fixture
def energy(tmp_path: Path) -> tuple[TableRecipe, Path, np.ndarray]:
    """A table of the right form in a folder, and the recipe that agrees with it."""
    rng = np.random.default_rng(0)
    values = np.round(rng.normal(size=(768, 10)) * 10 ** rng.uniform(-1, 2, 10) + 5, 3)
    folder = tmp_path / "energy"
    folder.mkdir()
    lines = [HEADER, *(",".join(map(repr, row)) for row in values.tolist())]
    (folder / "ENB2012_data.csv").write_text("\n".join(lines) + "\n")
    train = values[np.asarray(keyed_permutation(np.arange(768), 768, derive_key(0)))[:691], :9]
    mean, std = train.mean(0).tolist(), train.std(0).tolist()
    recipe = dataclasses.replace(
        Recipe.load("energy-mlp"), mean=(*mean[:8],), std=(*std[:8],), target_mean=mean[8], target_std=std[8]
    )
    assert isinstance(recipe, TableRecipe)
    return recipe, folder, values


def test_a_table_is_split_and_standardised(energy: tuple[TableRecipe, Path, np.ndarray]) -> None:
    recipe, folder, values = energy
    source = tables.load(recipe, folder)
    assert source.digest == tables.load(recipe, folder.parent).digest
    assert [half.shape for half in (source.train_inputs, source.test_inputs)] == [(691, 8), (77, 8)]
    both = np.column_stack([source.train_inputs, source.train_targets]).astype(np.float64)
    assert np.abs(both.mean(0)).max() < 1e-6
    assert np.abs(both.std(0) - 1).max() < 1e-6
    back = np.concatenate([source.train_inputs, source.test_inputs]) * recipe.std + recipe.mean
    assert np.allclose(np.sort(back, axis=0), np.sort(values[:, :8], axis=0), rtol=1e-5, atol=1e-4)
    targets = np.concatenate([source.train_targets, source.test_targets]) * recipe.target_std + recipe.target_mean
    order = np.argsort(back[:, 0])
    assert np.allclose(targets[order], values[np.argsort(values[:, 0]), 8], rtol=1e-5, atol=1e-4)
    assert np.array_equal(sources.test_inputs(recipe, source, 5), source.test_inputs[:5])


def test_statistics_that_are_not_those_of_the_training_rows(energy: tuple[TableRecipe, Path, np.ndarray]) -> None:
    recipe, folder, _ = energy
    wrong = dataclasses.replace(recipe, target_mean=recipe.target_mean + 0.01 * recipe.target_std, std=(1.0,) * 8)
    with pytest.raises(IntegrityError) as refused:
        tables.load(wrong, folder)
    assert [problem.what for problem in refused.value.problems] == ["mean, target_mean", "std, target_std"]
    with pytest.raises(IntegrityError, match="means and deviations: expected 8, one a column, got 7"):
        tables.load(dataclasses.replace(recipe, mean=(0.0,) * 7, std=(1.0,) * 7), folder)
    with pytest.raises(IntegrityError, match="rows to train and test: expected 768 in all, got 691 and 76"):
        tables.load(dataclasses.replace(recipe, test=76), folder)


def test_files_that_are_not_the_table(energy: tuple[TableRecipe, Path, np.ndarray]) -> None:
    recipe, folder, _ = energy
    path = folder / "ENB2012_data.csv"
    good = path.read_text()
    for wrong, what in (
        ("", "first line: expected X1,.* got nothing"),
        (good.replace("X1,", "X0,"), "first line: expected X1,.* got X0"),
        (good.rpartition("\n")[0].rpartition("\n")[0], "rows: expected 768 of ten finite numbers, got 767"),
        (good + "1,2\n", "rows: expected ten numbers each"),
        (good + "1,2,3,4,5,6,7,8,9,x\n", "rows: expected ten numbers each, got could not convert"),
        (good.rpartition("\n")[0].rpartition(",")[0] + ",nan\n", "rows: expected 768 of ten finite numbers"),
    ):
        path.write_text(wrong)
        with pytest.raises(IntegrityError, match=rf"ENB2012_data\.csv: {what}"):
            tables.load(recipe, folder)
    path.unlink()
    with pytest.raises(ZooError, match=r"energy: data: expected ENB2012_data\.csv, got no such file.*uci\.edu"):
        tables.load(recipe, folder)


def test_without_a_folder_the_table_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(data.FOLDER_VARIABLE, raising=False)
    assert run(["build", "energy-mlp", "--members", "2", "--to", str(tmp_path / "zoo")]) != 0
    message = capsys.readouterr().err
    assert "energy: data: expected a folder with ENB2012_data.csv, got none." in message
    assert "https://archive.ics.uci.edu/dataset/242/energy+efficiency" in message
    assert message.count("\n") == 1
    assert not (tmp_path / "zoo").exists()


def test_a_regression_leaves_what_it_cannot_measure_empty(
    tmp_path: Path, energy: tuple[TableRecipe, Path, np.ndarray]
) -> None:
    recipe, folder, _ = energy
    path = tmp_path / "zoo"
    build(recipe.shortened(2), path, members=5, folder=folder, console=Console(file=io.StringIO()))
    table = ckptzoo.open(path).metadata
    for column in ("train_accuracy", "test_accuracy", "test_nll", "test_brier", "test_ece"):
        assert table[column].null_count == 5
    assert all(0 < value < 3 for column in ("train_loss", "test_loss") for value in table[column].to_pylist())
    assert table["diverged"].to_pylist() == [value > 1 for value in table["train_loss"].to_pylist()]


@pytest.mark.skipif(not (REAL / "energy").is_dir(), reason=f"no energy table under ${data.FOLDER_VARIABLE}")
def test_the_real_table() -> None:
    recipe = Recipe.load("energy-mlp")
    source = sources.load(recipe, REAL)
    assert source.digest == "sha256:9408ec23beec208449debc9074289e97a460b7e75c8e74e2e2b9abe5b46e8193"
    assert len(source.half("train")[0]) == 691
