"""Public checkpoints on their way into zoos: six MNIST CNNs and four CIFAR-10 ResNets. Skipped where they are not.

The CNNs are those of hendrycks/outlier-exposure: pixels from 0 to 1, and ``x sigmoid(1.702 x)`` as GELU, with which the
accuracies that their authors logged come out to the last image.
"""

import csv
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ckptzoo
from ckptzoo.hub.contributions.contribute import contribute
from ckptzoo.hub.contributions.review import review
from tests.support.effort import ALL
from tests.support.hosted import Hosted

DATA = Path(os.environ.get("CKPTZOO_DATA") or Path(__file__).parents[4] / "shared" / "data")
CHECKPOINTS = DATA.parent / "checkpoints"
RESNETS = CHECKPOINTS / "cifar10_resnet_akamaster"
CNNS = CHECKPOINTS / "mnist_cnn_outlier_exposure"
NEW = "lab/real"


class Cnn(nn.Module):
    """The network of the MNIST checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = F.max_pool2d(gelu(F.max_pool2d(self.conv1(images), 2)), 1)
        hidden = gelu(F.max_pool2d(self.conv2(hidden), 2)).flatten(1)
        return self.fc2(gelu(self.fc1(hidden)))


def gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def claims() -> dict[Path, float]:
    """Each CNN's file, and the accuracy in the last line of its log."""
    found: dict[Path, float] = {}
    for path in sorted(CNNS.glob("*.pt")):
        log = path.with_name(path.name.partition("_epoch_")[0] + "_training_results.csv")
        *_, last = csv.DictReader(log.read_text().splitlines())
        found[path] = 1 - float(last["test_error(%)"]) / 100
    return found


def card(folder: Path, text: str) -> Path:
    path = folder / "contribution.toml"
    path.write_text(text)
    return path


@pytest.mark.exhaustive
@pytest.mark.skipif(not CNNS.is_dir() or not (DATA / "mnist").is_dir(), reason="no CNN checkpoints or no MNIST")
def test_convolutional_networks(server: Hosted, tmp_path: Path) -> None:
    said = claims()
    assert len(said) == 6
    if not ALL:  # one for the new zoo and one to contribute
        said = dict(list(said.items())[:2])
    head = """
contributor = "Ada Example"
license = "Apache-2.0"
source = "https://github.com/hendrycks/outlier-exposure"
dataset = "mnist"
[evaluation]
mean = 0
std = 1
[zoo]
name = "mnist-cnn"
architecture = "cnn"
input_shape = [1, 28, 28]
"""
    listed = [
        f'[[checkpoint]]\nfile = "{path.name}"\nclaimed_test_accuracy = {value}\n' for path, value in said.items()
    ]
    text = head + "".join(listed)
    first, *others = said
    how = {"module": Cnn, "data": DATA, "endpoint": server.url}
    five = text.replace(listed[0], "")
    made = contribute(
        others, to=NEW, card=card(tmp_path, five), new=tmp_path / "zoo", token=server.tokens["write"], **how
    )
    assert made.status == "published" and made.passed, made.checks
    assert [entry.claimed for entry in made.entries] == [entry.measured for entry in made.entries]

    one = card(tmp_path, head + listed[0])
    more = contribute([first], to=NEW, card=one, token=server.tokens["contribute"], **how)
    assert more.status == "proposed" and more.passed
    found = review(NEW, 1, merge=True, token=server.tokens["write"], **how)
    undone = [check.name for check in found.checks if check.outcome != "passed"]
    assert found.merged is not None and undone == ["near copies"], found.checks  # there are 5 members to compare with
    zoo = ckptzoo.open(NEW, endpoint=server.url)
    rows = zoo.metadata.to_pylist()
    assert len(rows) == len(said) and {row["license"] for row in rows} == {"Apache-2.0"}
    for row in rows:
        assert round(row["test_accuracy"], 4) == round(row["claimed_test_accuracy"], 4) >= 0.988
    assert zoo.symmetry is not None and {group.scale for group in zoo.symmetry.groups} == {"none"}
    exact = torch.load(first, weights_only=True, map_location="cpu")
    (batch,) = zoo.take([len(rows) - 1]).stream(batch_size=1)
    assert all(np.array_equal(batch[name][0], exact[name].numpy()) for name in zoo.arch.names)


@pytest.mark.exhaustive
@pytest.mark.skipif(not RESNETS.is_dir(), reason="no ResNet checkpoints")
@pytest.mark.parametrize("depth", [20, 32, 44, 56] if ALL else [20])
def test_residual_networks(server: Hosted, tmp_path: Path, depth: int) -> None:
    (path,) = RESNETS.glob(f"resnet{depth}-*.th")
    text = f"""
contributor = "Ada Example"
license = "BSD-2-Clause"
source = "https://github.com/akamaster/pytorch_resnet_cifar10"
dataset = "cifar10"
[evaluation]
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
[zoo]
name = "cifar10-resnet{depth}"
forward = "resnet{depth}-pad-10"
"""
    made = contribute(
        [path],
        to=NEW,
        card=card(tmp_path, text),
        new=tmp_path / "zoo",
        data=DATA,
        endpoint=server.url,
        token=server.tokens["write"],
    )
    assert made.status == "published" and made.passed, made.checks
    assert [check.outcome for check in made.checks if check.name != "accuracy"] == ["passed"] * 6
    assert any("module. left out" in note for note in made.notes)
    zoo = ckptzoo.open(NEW, endpoint=server.url)
    exact = torch.load(path, weights_only=True, map_location="cpu")["state_dict"]
    (batch,) = zoo.stream(batch_size=1)
    for name, value in exact.items():
        assert np.array_equal(batch[name.removeprefix("module.")][0], value.numpy())
    assert "best_prec1" in zoo.metadata["extra"][0].as_py()
    copy = tmp_path / "again.th"
    copy.write_bytes(path.read_bytes())
    again = contribute(
        [copy], to=NEW, card=card(tmp_path, text), endpoint=server.url, token=server.tokens["contribute"]
    )
    assert again.status == "merged" and again.entries[0].copy is not None
