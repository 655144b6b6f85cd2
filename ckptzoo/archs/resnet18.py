"""ResNet-18 for small images."""

import torch
from torch import nn


class ResNet18(nn.Module):
    """ResNet-18 for colour images of 32x32 or 64x64 pixels.

    A 3x3 convolution without max-pooling, four stages of two basic blocks with 64, 128, 256 and 512 channels, mean
    over space, linear. Shortcuts that change the shape are a 1x1 convolution and a BatchNorm. 11.2 million
    parameters; torchvision's names, PyTorch's default initialisation. Source: arXiv 1512.03385, table 1 and
    section 4.2.

    Parameters
    ----------
    classes : number of logits.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(_Block(64, 64, 1), _Block(64, 64, 1))
        self.layer2 = nn.Sequential(_Block(64, 128, 2), _Block(128, 128, 1))
        self.layer3 = nn.Sequential(_Block(128, 256, 2), _Block(256, 256, 1))
        self.layer4 = nn.Sequential(_Block(256, 512, 2), _Block(512, 512, 1))
        self.fc = nn.Linear(512, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, 3, H, W), normalised, to logits (B, classes)."""
        hidden = torch.relu(self.bn1(self.conv1(images)))
        hidden = self.layer4(self.layer3(self.layer2(self.layer1(hidden))))
        return self.fc(hidden.mean(dim=(-2, -1)))


class _Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, n_in: int, n: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(n)
        self.conv2 = nn.Conv2d(n, n, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n)
        self.downsample = nn.Sequential()
        if n_in != n:
            self.downsample = nn.Sequential(nn.Conv2d(n_in, n, 1, stride, bias=False), nn.BatchNorm2d(n))

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        """(B, n_in, H, W) to (B, n, H / stride, W / stride)."""
        hidden = torch.relu(self.bn1(self.conv1(stream)))
        return torch.relu(self.bn2(self.conv2(hidden)) + self.downsample(stream))
