"""The zoos in the repository: sound, complete, small, and what stock PyTorch computes from them."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import kstest
from torch import nn

import ckptzoo
from builders import posterior
from builders.posterior.comparison import METHODS
from builders.recipe import Recipe
from ckptzoo import image_sets
from ckptzoo.cli.app import run
from ckptzoo.hub import card
from ckptzoo.studies.reference import reference

ROOT = Path(__file__).parents[2]
CARDS = ROOT / "cards"
DATA = Path(os.environ.get(image_sets.FOLDER_VARIABLE) or ROOT.parent / "shared" / "data")
MEMBERS = CARDS / "mnist-optunet"
TRAJECTORIES = CARDS / "mnist-optunet-trajectories"
POSTERIORS = CARDS / "mnist-optunet-posteriors"
NARROW = CARDS / "cifar100-resnet18-w8"
REFERENCE = CARDS / "mnist14-mlp-reference"
LAST = 56_280
SAMPLE = 5


class OptuNet(nn.Module):
    """The network as anybody would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 4, bias=False)
        self.conv2 = nn.Conv2d(2, 10, 5, groups=2, bias=False)
        self.fc = nn.Linear(10, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pooled = nn.functional.max_pool2d(torch.relu(self.conv1(images)), 3)
        return self.fc(torch.relu(self.conv2(pooled)).mean((2, 3)))


class Block(nn.Module):
    """A basic block, with a 1x1 convolution where its shape changes."""

    def __init__(self, reads: int, writes: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(reads, writes, 3, stride, 1, bias=False), nn.BatchNorm2d(writes)
        self.conv2, self.bn2 = nn.Conv2d(writes, writes, 3, 1, 1, bias=False), nn.BatchNorm2d(writes)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(reads, writes, 1, stride, bias=False), nn.BatchNorm2d(writes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + self.downsample(x))


class NarrowResNet18(nn.Module):
    """The network as anybody would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        for number, (reads, writes) in enumerate([(8, 8), (8, 16), (16, 32), (32, 64)], 1):
            first = Block(reads, writes, 1 if number == 1 else 2)
            setattr(self, f"layer{number}", nn.Sequential(first, Block(writes, writes, 1)))
        self.fc = nn.Linear(64, 100)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(images)))
        for number in range(1, 5):
            x = getattr(self, f"layer{number}")(x)
        return self.fc(x.mean((2, 3)))


NETWORKS: dict[Path, type[nn.Module]] = {MEMBERS: OptuNet, POSTERIORS: OptuNet, NARROW: NarrowResNet18}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str, str], nn.Module]:
    """A checkpoint of a zoo by its id, by way of a file that ``ckptzoo export`` wrote."""
    folder = tmp_path_factory.mktemp("exported")

    def load(zoo: Path, name: str, variant: str) -> nn.Module:
        file = folder / f"{name}-{variant}.safetensors"
        assert run(["export", str(zoo), name, "--variant", variant, "-o", str(file)]) == 0
        model = NETWORKS[zoo]().eval()
        model.load_state_dict(load_file(file))
        return model

    return load


def sample(zoo: ckptzoo.Zoo) -> list[int]:
    return np.random.default_rng(0).choice(len(zoo), SAMPLE, replace=False).tolist()


def seen(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(((images / 255 - 0.1307) / 0.3081).astype(np.float32))


@pytest.mark.parametrize(
    ("folder", "members", "steps", "most"), [(MEMBERS, 8192, 1, 20_000_000), (TRAJECTORIES, 32, 22, 4_000_000)]
)
def test_sound_complete_and_small(folder: Path, members: int, steps: int, most: int) -> None:
    assert ckptzoo.verify(folder) == []
    assert card.write(folder, check=True).changes == (), f"ckptzoo card cards/{folder.name}"
    assert sum(path.stat().st_size for path in folder.rglob("*")) < most
    zoo = ckptzoo.open(folder)
    rows, recipe = zoo.metadata, Recipe.load("mnist-optunet")
    seeds = rows["seed"].unique().to_pylist()
    assert sorted(seeds) == list(range(len(seeds))) and len(seeds) >= members
    assert len(zoo) == len(seeds) * steps and zoo.last_steps().metadata["step"].unique().to_pylist() == [LAST]
    assert rows["recipe_digest"].unique().to_pylist() == [recipe.digest] and recipe.steps == LAST
    assert zoo.variants == ("raw", "canonical") and all(rows["finite"].to_pylist())
    assert not any("+" in commit for commit in rows["commit"].unique().to_pylist())


def test_draws_are_sound_complete_and_small() -> None:
    assert ckptzoo.verify(POSTERIORS) == []
    assert card.write(POSTERIORS, check=True).changes == (), f"ckptzoo card cards/{POSTERIORS.name}"
    assert sum(path.stat().st_size for path in POSTERIORS.rglob("*")) < 6_000_000
    zoo, recipe = ckptzoo.open(POSTERIORS), Recipe.load("mnist-optunet")
    assert zoo.variants == ("raw", "canonical")
    assert not any("+" in commit for commit in zoo.metadata["commit"].unique().to_pylist())
    for name in METHODS:
        model = posterior.get(name).load(recipe)
        draws = zoo.where(f"method == '{name}'")
        assert draws.metadata["recipe_digest"].unique().to_pylist() == [model.digest]
        counts = Counter(draws.metadata["seed"].to_pylist())
        assert counts == {0: min(100, model.max_draws or 100), **dict.fromkeys(range(1, 10), 10)}, name
        if model.starts == "member":
            assert {*draws.metadata["mode"].to_pylist()} <= {*ckptzoo.open(MEMBERS).metadata["member"].to_pylist()}


def test_narrow_resnets_are_sound_complete_small_and_in_half_precision() -> None:
    assert ckptzoo.verify(NARROW) == []
    assert card.write(NARROW, check=True).changes == (), f"ckptzoo card cards/{NARROW.name}"
    assert sum(path.stat().st_size for path in NARROW.rglob("*")) < 16_400_000
    zoo, recipe = ckptzoo.open(NARROW), Recipe.load(NARROW.name)
    rows = zoo.metadata
    assert {*zip(rows["seed"].to_pylist(), rows["step"].to_pylist(), strict=True)} == {
        *((seed, 2346) for seed in range(32)),
        *((seed, step) for seed in range(2) for step in (0, 391, 1173)),
    }
    assert rows["recipe_digest"].unique().to_pylist() == [recipe.digest] and recipe.steps == 2346
    assert {tensor.dtype for tensor in zoo.arch.tensors} == {"float16", "int64"}
    assert zoo.variants == ("raw", "canonical") and all(rows["finite"].to_pylist())
    assert not any("+" in commit for commit in rows["commit"].unique().to_pylist())
    assert {json.loads(text)["rounded_from"] for text in rows["extra"].to_pylist()} == {"float32"}
    assert len({*zoo.variant_metadata("canonical")["fingerprint"].to_pylist()}) == len(zoo)


def test_the_reference_posterior_is_sound_complete_and_small() -> None:
    assert ckptzoo.verify(REFERENCE) == []
    assert card.write(REFERENCE, check=True).changes == (), f"ckptzoo card cards/{REFERENCE.name}"
    assert sum(path.stat().st_size for path in REFERENCE.rglob("*")) < 8_000_000
    zoo = ckptzoo.open(REFERENCE)
    rows = zoo.metadata
    assert zoo.variants == ("raw", "canonical") and zoo.predicted == ("mnist-14x14/test-64",)
    assert {*zip(rows["seed"].to_pylist(), rows["draw"].to_pylist(), strict=True)} == {
        (seed, draw) for seed in range(8) for draw in range(50)
    }
    extras = [json.loads(text) for text in rows["extra"].to_pylist()]
    settings = {name: value for name, value in extras[0]["settings"].items() if name != "initial"}
    if find_spec("blackjax") is not None:
        model = posterior.get("hmc").load(Recipe.load("mnist14-mlp"), None, settings).from_members()
        assert rows["recipe_digest"].unique().to_pylist() == [model.digest]
    assert (settings["prior"], settings["temperature"]) == (1, 1) and {item["divergent"] for item in extras} == {0}
    assert not any("+" in commit for commit in rows["commit"].unique().to_pylist())


def test_the_reference_posterior_has_the_criteria_of_its_card() -> None:
    pytest.importorskip("arviz_stats.base", reason="the extra hmc is not installed")
    zoo = ckptzoo.open(REFERENCE)
    found = reference(zoo, shuffles=0)
    page = (REFERENCE / "README.md").read_text()
    for item in found.criteria:
        counts = (f"{number:,.0f}" for number in (item.bulk.least, item.bulk.median, item.tail.least))
        said = [f"these {len(zoo)}", item.of, f"{item.numbers}", f"{item.r_hat:.4f}", r"[\d.]+", *counts]
        line = r" \| ".join(said)
        assert re.search(rf"\| {line} \|", page), said
        # draws are nearly independent
        assert item.bulk.median > 0.8 * len(zoo)


def test_draws_of_the_reference_are_anywhere_on_their_orbits_of_scales_as_the_prior_says() -> None:
    """An exact law of the posterior: outputs do not say how large a neuron's incoming weights are, with its outgoing
    ones smaller by as much. Given their product the prior alone does, whatever the data are.
    """
    zoo = ckptzoo.open(REFERENCE)
    incoming = np.square(zoo["fc1.weight"][:].astype(np.float64)).sum(2) + np.square(zoo["fc1.bias"][:])
    outgoing = np.square(zoo["fc2.weight"][:].astype(np.float64)).sum(1)
    # with t = log |incoming|^2 and q^2 the product of both squares, the density of t is, of 197 and 10 normal weights,
    # exp((197 - 10) t / 2 - (e^t + q^2 e^-t) / 2)
    t = np.linspace(0, 8, 4001)
    logs = (197 - 10) / 2 * t - (np.exp(t) + (incoming * outgoing)[..., None] * np.exp(-t)) / 2
    shares = np.exp(logs - logs.max(-1, keepdims=True)).cumsum(-1)
    shares /= shares[..., -1:]
    at = np.log(incoming).ravel()
    places = [np.interp(one, t, share) for one, share in zip(at, shares.reshape(-1, len(t)), strict=True)]
    assert kstest(places, "uniform").pvalue > 0.001
    # chains start at members, which are nowhere near: their first layers are too small
    assert 0.9 < incoming.mean() / 197 < 1.1


def test_draws_of_dropout_share_all_but_the_last_layer() -> None:
    draws = ckptzoo.open(POSTERIORS).where("method == 'dropout' and seed == 0")
    conv1, conv2, last = (np.asarray(draws[name]) for name in ("conv1.weight", "conv2.weight", "fc.weight"))
    assert (conv1 == conv1[0]).all() and (conv2 == conv2[0]).all()
    kept = (last != 0).any(1)  # (100, 10): the inputs of the last layer that a draw keeps
    np.testing.assert_array_equal(last, np.abs(last).max(0) * np.sign(last.sum(0)) * kept[:, None])
    assert 0.7 < kept.mean() < 0.9 and len({*map(bytes, kept)}) > 50


def test_trajectories_end_in_the_members_of_the_other_zoo() -> None:
    ends, zoo = ckptzoo.open(TRAJECTORIES).last_steps(), ckptzoo.open(MEMBERS)
    same = zoo.take([zoo.ids.index(name) for name in ends.ids])
    for name in zoo.arch.names:
        np.testing.assert_array_equal(np.asarray(ends[name]), np.asarray(same[name]))


@pytest.mark.parametrize("folder", [MEMBERS, POSTERIORS], ids=["members", "posteriors"])
@pytest.mark.parametrize("variant", ["raw", "canonical"])
@pytest.mark.sampled(2)
def test_stored_outputs_are_those_of_stock_pytorch(
    exported: Callable[[Path, str, str], nn.Module], variant: str, folder: Path
) -> None:
    zoo = ckptzoo.open(folder)
    outputs, digits = zoo.predictions("digits/test-16"), image_sets.find("digits")
    assert digits is not None
    images = seen(digits.images[:16])
    for row in sample(zoo):
        with torch.inference_mode():
            found = exported(folder, zoo.ids[row], variant)(images).numpy()
        np.testing.assert_allclose(outputs.logits[row], found, rtol=2**-10, atol=1e-3)


@pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason="MNIST is not at hand")
@pytest.mark.parametrize("folder", [MEMBERS, POSTERIORS], ids=["members", "posteriors"])
@pytest.mark.sampled(2)
def test_accuracies_are_those_of_stock_pytorch(exported: Callable[[Path, str, str], nn.Module], folder: Path) -> None:
    mnist = image_sets.find("mnist", DATA)
    assert mnist is not None and len(mnist) == 10_000
    for row in sample(ckptzoo.open(folder)):
        assert_accuracy(folder, row, exported, seen(mnist.images), mnist.labels)


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "cifar100").is_dir(), reason="CIFAR-100 is not at hand")
@pytest.mark.exhaustive
def test_accuracies_of_narrow_resnets_are_those_of_stock_pytorch(
    exported: Callable[[Path, str, str], nn.Module],
) -> None:
    cifar = image_sets.find("cifar100", DATA)
    assert cifar is not None and len(cifar) == 10_000
    zoo, images = ckptzoo.open(NARROW), coloured(cifar.images)
    assert_accuracy(NARROW, zoo.metadata["step"].to_pylist().index(2346), exported, images, cifar.labels)


@pytest.mark.skipif(not (DATA / "cifar100").is_dir(), reason="CIFAR-100 is not at hand")
@pytest.mark.parametrize("variant", ["raw", "canonical"])
def test_stored_outputs_of_narrow_resnets_are_those_of_stock_pytorch(
    exported: Callable[[Path, str, str], nn.Module], variant: str
) -> None:
    zoo, cifar = ckptzoo.open(NARROW), image_sets.find("cifar100", DATA)
    assert cifar is not None
    outputs = zoo.predictions("cifar100/test-64")
    np.testing.assert_array_equal(outputs.targets, cifar.labels[:64])
    for row in sample(zoo):
        with torch.inference_mode():
            found = exported(NARROW, zoo.ids[row], variant)(coloured(cifar.images[:64])).numpy()
        np.testing.assert_allclose(outputs.logits[row], found, rtol=2**-10, atol=2e-3)


def coloured(images: np.ndarray) -> torch.Tensor:
    mean, std = (
        np.array(channels).reshape(3, 1, 1) for channels in ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
    )
    return torch.from_numpy(((images / 255 - mean) / std).astype(np.float32))


def assert_accuracy(
    folder: Path, row: int, exported: Callable[[Path, str, str], nn.Module], images: torch.Tensor, labels: np.ndarray
) -> None:
    """The stored test accuracy of a checkpoint is that of the exported network, but for a tie that fell otherwise."""
    zoo, right = ckptzoo.open(folder), 0
    network = exported(folder, zoo.ids[row], "raw")
    for start in range(0, len(images), 1000):
        with torch.inference_mode():
            found = network(images[start : start + 1000]).argmax(1).numpy()
        right += int((found == labels[start : start + 1000]).sum())
    assert abs(right - len(images) * zoo.metadata["test_accuracy"][row].as_py()) <= 1


def test_the_rows_tell_how_they_were_trained() -> None:
    told = {json.loads(text)["engine"] for text in ckptzoo.open(MEMBERS).metadata["extra"].to_pylist()}
    assert told == {"compiled"}
