"""Networks written and trained by others, traced as their authors wrote them; skipped where they are absent."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo import archs
from ckptzoo.symmetry import count, trace
from tests.symmetry.tracing.helpers import stays

DATA = Path(os.environ.get("CKPTZOO_DATA") or Path(__file__).parents[4] / "shared" / "data")
CHECKPOINTS = DATA.parent / "checkpoints"


class LambdaLayer(nn.Module):
    """akamaster/pytorch_resnet_cifar10, resnet.py (BSD-2-Clause), as the three classes after it."""

    def __init__(self, lambd) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lambd(x)


class BasicBlock(nn.Module):
    def __init__(self, in_planes: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = LambdaLayer(
                lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, planes // 4, planes // 4), "constant", 0)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        out = F.relu(out)
        return out


class ResNet(nn.Module):
    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        planes, layers = 16, []
        for width, stride in ((16, 1), (32, 2), (64, 2)):
            blocks = []
            for step in [stride] + [1] * (num_blocks - 1):
                blocks.append(BasicBlock(planes, width, step))
                planes = width
            layers.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3 = layers
        self.linear = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer1(out)
        out = self.layer2(out)
        out = self.layer3(out)
        out = F.avg_pool2d(out, out.size()[3])
        out = out.view(out.size(0), -1)
        out = self.linear(out)
        return out


class ConvNet(nn.Module):
    """hendrycks/outlier-exposure, MNIST (Apache-2.0)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.conv2_drop = nn.Dropout2d()
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
        x = x.view(-1, 320)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, training=self.training)
        return self.fc2(x)


def _load(module: nn.Module, folder: str, file: str) -> nn.Module:
    path = CHECKPOINTS / folder / file
    if not path.exists():
        pytest.skip(f"no {file}")
    found = torch.load(path, weights_only=True, map_location="cpu")
    missing, strange = module.load_state_dict(found.get("state_dict", found), strict=False)
    assert not strange and all(name.endswith("num_batches_tracked") for name in missing)
    return module


@pytest.mark.parametrize(
    ("file", "blocks"),
    [("resnet20-12fca82f.th", 3), ("resnet32-d509ac18.th", 5), ("resnet44-014dd654.th", 7), ("resnet56-4bfd9763.th", 9)],
)
def test_residual_networks_with_padded_shortcuts(file: str, blocks: int) -> None:
    module = _load(nn.DataParallel(ResNet(blocks)), "cifar10_resnet_akamaster", file)
    example = torch.randn(1, 3, 32, 32)
    traced = trace(module, example)
    stays(module, traced.symmetry, torch.randn(1, 3, 16, 16))
    assert traced.worst < 1e-9 and traced.notes == ()
    assert all(action.tensor.startswith("module.") for action in traced.symmetry.actions)
    declared = archs.symmetry(f"resnet{6 * blocks + 2}-pad-10")
    assert count(traced.symmetry) == count(declared)


@pytest.mark.parametrize("file", ["baseline_epoch_9.pt", "oe_tune_epoch_4.pt"])
def test_convolutional_networks_of_mnist(file: str) -> None:
    module = _load(ConvNet(), "mnist_cnn_outlier_exposure", file)
    example = torch.randn(2, 1, 28, 28)
    traced = trace(module, example)
    stays(module, traced.symmetry, example)
    assert traced.notes == ()
    assert [(group.id, group.n, group.scale) for group in traced.symmetry.groups] == [
        ("conv1", 10, "positive"),
        ("conv2", 20, "positive"),
        ("fc1", 50, "positive"),
    ]
    (action,) = (action for action in traced.symmetry.actions_on("fc1.weight") if action.axis == 1)
    assert [(item.inner, item.count) for item in action.segments] == [(16, 20)]
