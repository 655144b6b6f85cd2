"""Recipes, the data they name, and what is refused."""

import dataclasses
import gzip
import os
import re
import struct
from dataclasses import fields
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch

from builders import data, sources
from builders import sources as gaussians
from builders.__main__ import run
from builders.build import CARDS
from builders.recipe import FOLDER, KINDS, UNITS, GaussianRecipe, Recipe, TableRecipe, names
from ckptzoo.errors import IntegrityError, SpecError, UnknownNameError, ZooError
from ckptzoo.image_sets.digits import enlarge
from ckptzoo.image_sets.idx import read_idx
from ckptzoo.schema.card import Card
from docs import recipes as recipes_page

REAL = Path(os.environ.get(data.FOLDER_VARIABLE) or Path(__file__).parents[3] / "shared" / "data")
TINY = dataclasses.replace(Recipe.load("mnist-optunet"), train=7, test=5)


def test_mnist_is_the_published_recipe() -> None:
    recipe = Recipe.load("mnist-optunet")
    assert (recipe.architecture, recipe.dataset, recipe.train, recipe.test) == ("optunet", "mnist", 60_000, 10_000)
    assert (recipe.epochs, recipe.batch, recipe.learning_rate) == (60, 64, 0.04)
    assert (recipe.momentum, recipe.weight_decay, recipe.crop_pad) == (0, 2e-4, 4)
    assert (recipe.mean, recipe.std) == (0.1307, 0.3081)
    assert (recipe.epoch_steps, recipe.steps) == (938, 56_280)
    assert [recipe.rates.learning_rate_at(epoch) for epoch in (0, 14, 15, 29, 30, 59)] == [
        0.04,
        0.04,
        0.02,
        0.02,
        0.01,
        0.01,
    ]


def test_the_toy_is_the_papers() -> None:
    recipe = Recipe.load("toy")
    assert isinstance(recipe, GaussianRecipe)
    assert (recipe.architecture, recipe.train, recipe.loss) == ("mlp-2-2-1", 2 * 200, "binary-cross-entropy")
    assert (recipe.epochs, recipe.batch, recipe.learning_rate, recipe.steps) == (10, 10, 2.0, 400)
    assert (recipe.momentum, recipe.weight_decay, recipe.rates.learning_rate_at(9)) == (0, 0, 2.0)
    assert recipe.facts()["centres"] == ((-2.5, -2.5), (2.5, 2.5))


def test_energy_is_split_ninety_to_ten() -> None:
    recipe = Recipe.load("energy-mlp")
    assert isinstance(recipe, TableRecipe)
    assert (recipe.architecture, recipe.loss) == ("mlp-8-10-10-1", "squared-error")
    assert (recipe.train, recipe.test) == (round(0.9 * 768), 768 - round(0.9 * 768))
    assert len(recipe.mean) == len(recipe.std) == 8
    assert recipe.facts()["loss"] == "squared-error"


@pytest.mark.parametrize(
    ("name", "classes", "parameters", "training"),
    [
        ("cifar100", 100, 11_220_132, (50_000, 75, 391, 80, 0.1, True, 5e-4)),
        ("cifar10", 10, 11_173_962, (50_000, 75, 391, 80, 0.05, False, 5e-4)),
        ("tinyimagenet", 200, 11_271_432, (100_000, 200, 782, 32, 0.2, False, 1e-4)),
    ],
)
def test_the_residual_networks_are_the_published_ones(
    name: str, classes: int, parameters: int, training: tuple[float, ...]
) -> None:
    recipe = data.require_images(Recipe.load(f"{name}-resnet18"))
    last_batch = recipe.train - (recipe.epoch_steps - 1) * recipe.batch
    optimiser = (recipe.learning_rate, recipe.nesterov, recipe.weight_decay)
    assert (recipe.train, recipe.epochs, recipe.epoch_steps, last_batch, *optimiser) == training
    assert (recipe.architecture, recipe.dataset, recipe.test) == (f"resnet18-{classes}", name, 10_000)
    assert recipe.arch.parameters == parameters and recipe.arch[recipe.head].shape == (classes, 512)
    assert (recipe.batch, recipe.momentum, recipe.crop_pad, recipe.flip) == (128, 0.9, 4, True)
    assert (recipe.precision, recipe.dropout, recipe.loss) == ("float32", 0, "cross-entropy")
    assert all(len(values) == 3 for values in recipe.statistics(3))
    rates = [recipe.rates.learning_rate_at(epoch) / recipe.learning_rate for epoch in (0, 24, 25, 50, 74)]
    cosine = [(1 + np.cos(np.pi * epoch / 200)) / 2 for epoch in (0, 24, 25, 50, 74)]
    assert rates == pytest.approx(cosine if name == "tinyimagenet" else [1, 1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize(
    ("name", "epochs", "digest"),
    [
        ("digits-optunet", 40, "271137fb999b77463a585e5d96ab6dacbc709c6fc95a7dc8218e1c2a761175f6"),
        ("digits-optunet", 1, "3a775d602e08ec53608cebd9382a55ef7e107e17c13adf88930f1853d22ac3e2"),
        ("mnist-optunet", 60, "2cdbd75cbbf284496cab3db1d02c1cd4302fe10c1b41cd32ba35757fdba78b38"),
        ("mnist-optunet", 5, "dcd3c42690971d4c69b4a1d8f11fd44924381d16f4747a15eed7e66a2ca9811c"),
        ("toy", 10, "0430338bab552b1e7ad8b175625d96a08f68c58c1230bd44c7de692be86f783c"),
        ("energy-mlp", 60, "64917ccbd430c0c12a9ef0d13c9d03b379542918db74801a1977e721a189e3e8"),
    ],
)
def test_digests_that_zoos_hold_stay_as_they_are(name: str, epochs: int, digest: str) -> None:
    assert Recipe.load(name).shortened(epochs).digest == f"sha256:{digest}"


def test_the_facts_of_images_are_those_that_zoos_hold() -> None:
    common = ["architecture", "batch", "dataset", "epochs", "factor", "full_epochs", "learning_rate", "milestones"]
    common += ["momentum", "test", "train", "weight_decay"]
    assert sorted(Recipe.load("mnist-optunet").facts()) == sorted([*common, "crop_pad", "mean", "std"])
    assert sorted(Recipe.load("toy").facts()) == sorted([*common, "loss", "centres", "data_seed"])


def test_keys_that_are_left_out_and_their_defaults_are_one_recipe(tmp_path: Path) -> None:
    text = (FOLDER / "mnist-optunet.toml").read_text()
    file = tmp_path / "mnist-optunet.toml"
    file.write_text(f'{text}\nschedule = "milestones"\nnesterov = false\nprecision = "float32"\nflip = false\n')
    assert Recipe.load(file) == Recipe.load("mnist-optunet")
    assert Recipe.load(file).prefix == "mnist-optunet-2cdbd75c"
    changed = {"schedule": "cosine", "milestones": ()}, {"nesterov": True}, {"precision": "bfloat16"}, {"flip": True}
    plain = dataclasses.replace(Recipe.load("mnist-optunet"), momentum=0.9)
    others = [dataclasses.replace(plain, **keys) for keys in changed]
    assert len({recipe.digest for recipe in (plain, *others)}) == 5
    for keys, recipe in zip(changed, others, strict=True):
        (key, value), *_ = keys.items()
        assert recipe.facts()[key] == value and key not in plain.facts()


def test_another_precision_is_another_recipe_and_another_digest() -> None:
    recipe = Recipe.load("digits-optunet")
    double = Recipe.of("digits-optunet", precision="float64")
    assert (double.precision, double.digest != recipe.digest) == ("float64", True)
    assert Recipe.of(recipe, precision="float32").digest == recipe.digest
    assert (
        Recipe.of(recipe, 3, "float64").digest == dataclasses.replace(recipe.shortened(3), precision="float64").digest
    )


def test_a_cosine_follows_the_epochs_of_a_shortened_recipe() -> None:
    recipe = dataclasses.replace(Recipe.load("digits-optunet"), schedule="cosine", milestones=())
    assert recipe.rates.learning_rate_at(20) == pytest.approx(0.1)
    assert recipe.shortened(10).rates.learning_rate_at(5) == pytest.approx(0.1)


def test_a_mean_is_one_number_or_one_a_channel() -> None:
    plain = dataclasses.replace(Recipe.load("digits-optunet"), mean=0.5, std=0.25)
    colour = dataclasses.replace(plain, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    assert data.require_images(plain).statistics(3) == ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    assert data.require_images(colour).statistics(3) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    with pytest.raises(ZooError, match=r"mean: expected one number, or 1: one a channel of the images, got \(0\.1, "):
        data.require_images(colour).statistics(1)


@pytest.mark.parametrize("name", names())
def test_every_recipe_loads_and_is_named_after_its_file(name: str) -> None:
    assert Recipe.load(name).name == name
    assert Recipe.load(FOLDER / f"{name}.toml") == Recipe.load(name)
    card = Card.from_toml(CARDS / name / "card.toml")
    assert (card.name, card.dataset) == (name, Recipe.load(name).dataset)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lr", "learning_rate"),
        ("wd", "weight_decay"),
        ("batch_size", "batch"),
        ("arch", "architecture"),
        ("epoch", "epochs"),
        ("learning-rate", "learning_rate"),
        ("Momentum", "momentum"),
        ("milestone", "milestones"),
        ("xyz", None),
    ],
)
def test_a_key_that_is_not_known_suggests_the_near_one(tmp_path: Path, typed: str, meant: str | None) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(Recipe.load("digits-optunet").to_toml() + f"{typed} = 1\n")
    with pytest.raises(
        SpecError, match=f"key '{typed}': expected one of name, architecture, .*an unknown one"
    ) as caught:
        Recipe.load(path)
    assert (f"Did you mean {meant}?" if meant else "Correct the recipe.") in str(caught.value)


def test_the_page_of_keys_is_what_the_code_says(tmp_path: Path) -> None:
    page = recipes_page.PAGE.read_text()
    assert recipes_page.written(page) == page
    for kind in KINDS.values():
        numbers = {field.name for field in fields(kind) if "int" in str(field.type) or "float" in str(field.type)}
        assert numbers - {"data_seed"} <= UNITS.keys() and all(
            f"| `{name}` |" in page for name in numbers - recipes_page.LEFT_OUT
        )
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "my-mlp.toml"
    path.write_text(example)
    assert Recipe.load(path).name == "my-mlp"


def test_the_digest_is_of_what_decides_the_weights() -> None:
    recipe = Recipe.load("digits-optunet")
    assert dataclasses.replace(recipe, summary="other words").digest == recipe.digest
    changed = {"epochs": 7, "learning_rate": 0.21, "milestones": (20, 31), "name": "other", "mean": 0.3}
    digests = {dataclasses.replace(recipe, **{key: value}).digest for key, value in changed.items()}
    assert len(digests | {recipe.digest}) == len(changed) + 1
    assert recipe.prefix == f"digits-optunet-{recipe.digest[7:15]}"


def test_a_shortened_recipe_is_another_one_and_says_so() -> None:
    recipe = Recipe.load("mnist-optunet")
    short = recipe.shortened(5)
    assert (short.epochs, short.steps, short.facts()["full_epochs"]) == (5, 4690, 60)
    assert short.digest != recipe.digest
    assert short.shortened(3).facts()["full_epochs"] == 60
    assert recipe.shortened(60) is recipe


def test_every_problem_of_a_recipe_is_listed(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        dataclasses.replace(TINY, name="a b", batch=0, learning_rate=float("nan"), std=0.0, milestones=(3, 2))
    assert len(refused.value.problems) == 5
    with pytest.raises(UnknownNameError, match="mnist-optunet"):
        Recipe.load("mnist-optune")
    with pytest.raises(UnknownNameError, match="There is no such file"):
        Recipe.load(tmp_path / "mnist-optunet.toml")
    file = tmp_path / "mine.toml"
    text = (FOLDER / "digits-optunet.toml").read_text()
    file.write_text(text.replace("batch = 32", "bach = 32"))
    with pytest.raises(SpecError) as refused:
        Recipe.load(file)
    assert [problem.what for problem in refused.value.problems] == ["key 'bach'", "key 'batch'"]
    file.write_text(text.replace("batch = 32", "batch = '32'"))
    with pytest.raises(SpecError, match="batch: expected an integer"):
        Recipe.load(file)
    file.write_text(f'inputs = "image"\n{text}')
    with pytest.raises(SpecError, match="key 'inputs': expected one of images, table, gaussians, got 'image'"):
        Recipe.load(file)
    file.write_text(f'inputs = "table"\n{text}')
    with pytest.raises(SpecError) as refused:
        Recipe.load(file)
    assert [problem.what for problem in refused.value.problems] == [
        f"key '{key}'" for key in ("crop_pad", "target_mean", "target_std")
    ]
    file.write_text("name = ")
    with pytest.raises(SpecError, match=r"mine\.toml: file"):
        Recipe.load(file)


@pytest.mark.parametrize(
    ("name", "changed", "expected"),
    [
        ("toy", {"centres": ((0.0, 1.0),)}, "centres: expected a list of two or more points of equal length"),
        ("toy", {"centres": ((0.0, 1.0), (1.0,))}, "centres: expected a list of two or more points of equal length"),
        ("toy", {"centres": (0.0, 1.0)}, "centres: expected a list of two or more points of equal length"),
        ("toy", {"centres": ((0.0,), (float("inf"),))}, "centres: expected finite numbers"),
        ("toy", {"train": 401}, "train: expected a multiple of 2"),
        ("toy", {"data_seed": -1}, "data_seed: expected an integer"),
        ("toy", {"loss": 3}, "loss: expected a string"),
        ("energy-mlp", {"mean": 0.0}, "mean: expected a list of finite numbers"),
        ("energy-mlp", {"std": (1.0,) * 7}, "std: expected 8 finite numbers above 0, as many as in mean"),
        ("energy-mlp", {"std": (1.0,) * 7 + (0.0,)}, "std: expected 8 finite numbers above 0"),
        ("mnist-optunet", {"flip": 1}, "flip: expected true or false, got 1"),
        ("mnist-optunet", {"nesterov": "yes", "momentum": 0.9}, "nesterov: expected true or false, got 'yes'"),
        ("mnist-optunet", {"nesterov": True}, "nesterov: expected false, because there is no momentum, got True"),
        ("mnist-optunet", {"schedule": "linear"}, "schedule: expected milestones or cosine, got 'linear'"),
        ("mnist-optunet", {"schedule": "cosine"}, r"milestones: expected \(\), because the schedule cosine has none"),
        ("energy-mlp", {"schedule": "cosine", "milestones": (), "warmup": 2}, "warmup: expected 0, because the sched"),
        ("toy", {"precision": "float16"}, r"one of float32, tf32, bfloat16, float64 \(float16 needs loss scaling"),
        ("toy", {"precision": "half"}, "precision: expected one of float32, tf32, bfloat16, float64, got 'half'"),
        ("mnist-optunet", {"mean": (0.1, 0.2)}, "std: expected 2 finite numbers above 0, as many as in mean, got 0.3"),
        ("mnist-optunet", {"mean": ()}, r"mean: expected a finite number, or a list of one a channel, got \(\)"),
        ("mnist-optunet", {"std": (0.1,)}, r"std: expected a finite number above 0, as mean is one number, got \(0\.1"),
        ("energy-mlp", {"target_mean": float("nan")}, "target_mean: expected a finite number"),
        ("energy-mlp", {"target_std": 0}, "target_std: expected a finite number above 0"),
    ],
)
def test_inputs_that_make_no_sense(name: str, changed: dict[str, object], expected: str) -> None:
    with pytest.raises(SpecError, match=expected) as refused:
        dataclasses.replace(Recipe.load(name), **changed)
    assert len(refused.value.problems) == 1


def test_the_digits_are_always_the_same() -> None:
    recipe = Recipe.load("digits-optunet")
    found = data.load(recipe)
    assert found.train_images.shape == (1437, 1, 28, 28)
    assert found.test_images.shape == (360, 1, 28, 28)
    assert found.train_images.dtype == np.uint8
    assert found.classes == 10
    assert found.digest == "sha256:fb518ef501a127d02ee40c192b7c492714f702b81c5e5f68b8d21aec2b4aac70"
    assert np.bincount(np.concatenate([found.train_labels, found.test_labels])).min() > 170
    seen = data.inputs(recipe, found.train_images)
    assert seen.shape == (1437, 1, 28, 28)
    assert seen.dtype == np.float32
    assert abs(seen.mean()) < 1e-3
    assert abs(seen.std() - 1) < 1e-3


def test_enlarging_is_bilinear_with_one_rounding() -> None:
    small = np.random.default_rng(0).integers(0, 17, size=(20, 8, 8))
    exact = torch.nn.functional.interpolate(torch.from_numpy(small[:, None]).double(), size=28, mode="bilinear")
    error = enlarge(small, 28, 16) - exact[:, 0].numpy() * 255 / 16
    assert np.abs(error).max() <= 0.5 + 1e-9
    assert np.array_equal(enlarge(np.full((1, 8, 8), 16), 28, 16), np.full((1, 28, 28), 255))


def write_idx(path: Path, array: np.ndarray) -> None:
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes(), mtime=0))


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path / "mnist"
    folder.mkdir()
    for stem, count in (("train", 7), ("t10k", 5)):
        write_idx(folder / f"{stem}-images-idx3-ubyte.gz", rng.integers(0, 256, (count, 28, 28), dtype=np.uint8))
        write_idx(folder / f"{stem}-labels-idx1-ubyte.gz", rng.integers(0, 10, count, dtype=np.uint8))
    return folder


def test_mnist_is_read_from_its_folder_the_one_above_or_the_environment(
    mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = {data.load(TINY, folder).digest for folder in (mnist, mnist.parent)}
    monkeypatch.setenv(data.FOLDER_VARIABLE, str(mnist.parent))
    digests.add(data.load(TINY).digest)
    packed = mnist / "train-labels-idx1-ubyte.gz"
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    digests.add(data.load(TINY).digest)
    assert len(digests) == 1


def test_damaged_data_is_refused_by_name(mnist: Path) -> None:
    path = mnist / "train-images-idx3-ubyte.gz"
    good = path.read_bytes()
    plain = gzip.decompress(good)
    for wrong, what in (
        (good[: len(good) // 2], "gzip stream"),
        (b"not gzip", "gzip stream"),
        (gzip.compress(plain[:-1]), "bytes behind the header: expected 5488, got 5487"),
        (gzip.compress(plain + b"x"), "bytes behind the header: expected 5488, got more"),
        (gzip.compress(b""), "header: .* got nothing"),
        (gzip.compress(plain[:7] + b"\x08" + plain[8:]), "header: expected 00000803000000070000001c0000001c"),
    ):
        path.write_bytes(wrong)
        with pytest.raises(IntegrityError, match=what) as refused:
            data.load(TINY, mnist)
        assert path.name in str(refused.value)
    path.write_bytes(good)
    labels = mnist / "t10k-labels-idx1-ubyte.gz"
    write_idx(labels, np.array([0, 1, 2, 3, 10], dtype=np.uint8))
    with pytest.raises(IntegrityError, match="values: expected 0 to 9, got 10"):
        data.load(TINY, mnist)
    labels.unlink()
    with pytest.raises(ZooError, match=r"t10k-labels-idx1-ubyte\.gz, got no such file.*--data"):
        data.load(TINY, mnist)


def test_no_more_is_unpacked_than_is_expected(tmp_path: Path) -> None:
    bomb = tmp_path / "x.gz"
    with gzip.open(bomb, "wb") as file:
        file.write(struct.pack(">HBBI", 0, 8, 1, 5))
        for _ in range(64):
            file.write(bytes(2**20))
    with pytest.raises(IntegrityError, match="got more"):
        read_idx(tmp_path, "x", (5,))


def test_a_datasets_table_gives_the_same_arrays(mnist: Path) -> None:
    direct = data.load(TINY, mnist)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=10)})
    splits = {
        half: datasets.Dataset.from_dict(
            {
                "image": list(getattr(direct, f"{half}_images")[:, 0]),
                "label": getattr(direct, f"{half}_labels").tolist(),
            },
            features=features,
        )
        for half in ("train", "test")
    }
    assert data.from_datasets("mnist", splits).digest == direct.digest


def test_counts_and_names_that_do_not_fit(mnist: Path) -> None:
    with pytest.raises(IntegrityError, match="test images and labels: expected 300 of each, got 360"):
        data.load(dataclasses.replace(Recipe.load("digits-optunet"), test=300))
    with pytest.raises(UnknownNameError, match="digits or mnist"):
        data.load(dataclasses.replace(TINY, dataset="digit"))
    with pytest.raises(UnknownNameError, match="energy"):
        sources.load(dataclasses.replace(Recipe.load("energy-mlp"), dataset="energie"))
    toy = Recipe.load("toy")
    with pytest.raises(ZooError, match="recipe 'toy': inputs: expected images, got one for gaussian data"):
        data.inputs(toy, np.zeros((1, 1, 28, 28), np.uint8))
    assert isinstance(toy, GaussianRecipe)
    assert sources.load(toy).digest == gaussians.load_gaussians(toy).digest


def test_the_commands_that_read_recipes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipes"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in names())
    file = tmp_path / "inputs.npy"
    assert run(["inputs", "digits-optunet", "-o", str(file), "--limit", "50"]) == 0
    recipe = Recipe.load("digits-optunet")
    assert np.array_equal(np.load(file), data.inputs(recipe, data.load(recipe).test_images[:50]))
    assert run(["inputs", "toy", "-o", str(file)]) == 0
    points = np.load(file)
    assert (points.shape, points.dtype) == ((400, 2), np.float32)
    assert "400 test inputs of two-gaussians, float32 (400, 2)." in capsys.readouterr().out
    assert run(["inputs", "digits-optune", "-o", str(file)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("builders: error: builders: recipe 'digits-optune'")
    assert message.count("\n") == 1


@pytest.mark.exhaustive
@pytest.mark.skipif(not (REAL / "mnist").is_dir(), reason=f"no MNIST under ${data.FOLDER_VARIABLE}")
def test_the_real_mnist() -> None:
    recipe = Recipe.load("mnist-optunet")
    found = data.load(recipe, REAL)
    assert found.digest == "sha256:fa86381e713b39272ea755ea670821b4d07ee9836ff9882ae887ef0384ee6459"
    assert found.train_images.mean() / 255 == pytest.approx(recipe.mean, abs=1e-4)
    assert found.train_images.std() / 255 == pytest.approx(recipe.std, abs=1e-4)
