"""The ResNets of He et al. for CIFAR."""

import torch
from torch import nn


class ResNetCIFAR(nn.Module):
    """A ResNet for colour images of 32x32 pixels: ResNet-20, 32, 44, 56, ...

    A 3x3 convolution, three stages of (depth - 2) / 6 basic blocks with 16, 32 and 64 channels, mean over space,
    linear. ResNet-20 has 0.27 million parameters. The tensors have the names of akamaster/pytorch_resnet_cifar10;
    PyTorch's default initialisation. Source: arXiv 1512.03385, section 4.2. Where the shape changes, the shortcut
    ``"pad"`` takes every second pixel and pads with channels of zeros (option A), and ``"conv"`` is a 1x1 convolution
    and a BatchNorm (option B); ``depth`` is 6 n + 2, the number of convolutions and linear layers without shortcuts.
    """

    def __init__(self, shortcut: str, depth: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(shortcut, depth, 16, 16)
        self.layer2 = _stage(shortcut, depth, 16, 32)
        self.layer3 = _stage(shortcut, depth, 32, 64)
        self.linear = nn.Linear(64, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, 3, H, W), normalised, to logits (B, classes)."""
        hidden = torch.relu(self.bn1(self.conv1(images)))
        hidden = self.layer3(self.layer2(self.layer1(hidden)))
        return self.linear(hidden.mean(dim=(-2, -1)))


def _stage(shortcut: str, depth: int, n_in: int, n: int) -> nn.Sequential:
    others = (depth - 2) // 6 - 1
    return nn.Sequential(_CIFARBlock(shortcut, n_in, n), *(_CIFARBlock(shortcut, n, n) for _ in range(others)))


class _CIFARBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, shortcut: str, n_in: int, n: int) -> None:
        super().__init__()
        stride = n // n_in
        self.conv1 = nn.Conv2d(n_in, n, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(n)
        self.conv2 = nn.Conv2d(n, n, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n)
        self.shortcut = nn.Sequential()
        if n_in != n and shortcut == "pad":
            self.shortcut = _Padded(n // 4)  # on both sides, as n is twice n_in
        elif n_in != n:
            self.shortcut = nn.Sequential(nn.Conv2d(n_in, n, 1, stride, bias=False), nn.BatchNorm2d(n))

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        """(B, n_in, H, W) to (B, n, H / stride, W / stride)."""
        hidden = torch.relu(self.bn1(self.conv1(stream)))
        return torch.relu(self.bn2(self.conv2(hidden)) + self.shortcut(stream))


class _Padded(nn.Module):
    """Every second pixel, between ``zeros`` channels of zeros on either side."""

    def __init__(self, zeros: int) -> None:
        super().__init__()
        self.zeros = zeros

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        """(B, n, H, W) to (B, n + 2 zeros, H / 2, W / 2)."""
        return nn.functional.pad(stream[:, :, ::2, ::2], (0, 0, 0, 0, self.zeros, self.zeros))
