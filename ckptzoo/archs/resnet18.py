"""ResNet-18 for small images."""

import torch
from torch import nn


class ResNet18(nn.Module):
    """ResNet-18 for colour images of 32x32 or 64x64 pixels.

    A 3x3 convolution without max-pooling, four stages of two basic blocks with 1, 2, 4 and 8 times ``width`` channels,
    mean over space, linear. Shortcuts that change the shape are a 1x1 convolution and a BatchNorm. The published width
    is 64: 11.2 million parameters. torchvision's names, PyTorch's default initialisation. Source: arXiv 1512.03385,
    table 1 and section 4.2.

    ``width`` is the number of channels of the first stage, ``classes`` the number of logits.
    """

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        # published with 7 x 7, a stride of 2 and a max-pool, for images of 224 pixels
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = nn.Sequential(_Block(width, width, 1), _Block(width, width, 1))
        self.layer2 = nn.Sequential(_Block(width, 2 * width, 2), _Block(2 * width, 2 * width, 1))
        self.layer3 = nn.Sequential(_Block(2 * width, 4 * width, 2), _Block(4 * width, 4 * width, 1))
        self.layer4 = nn.Sequential(_Block(4 * width, 8 * width, 2), _Block(8 * width, 8 * width, 1))
        self.fc = nn.Linear(8 * width, classes)

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
        # empty, it returns its input, and has no tensors
        self.downsample = nn.Sequential()
        if n_in != n:
            self.downsample = nn.Sequential(nn.Conv2d(n_in, n, 1, stride, bias=False), nn.BatchNorm2d(n))

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        """(B, n_in, H, W) to (B, n, H / stride, W / stride)."""
        hidden = torch.relu(self.bn1(self.conv1(stream)))
        return torch.relu(self.bn2(self.conv2(hidden)) + self.downsample(stream))
