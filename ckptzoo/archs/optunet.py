"""OptuNet: 392 parameters, two convolutions and a linear layer, made for MNIST-shaped images."""

import torch
from torch import nn


class OptuNet(nn.Module):
    """A convolutional network of 392 parameters for 28x28 images and 10 classes.

    ``conv 4x4 (1 -> 2), ReLU, max-pool 3x3, conv 5x5 (2 -> 10, two groups), ReLU, mean over space, linear``;
    the convolutions have no bias. Spatial sizes 28, 25, 8, 4, 1. Source: arXiv 2310.08287.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 4, bias=False)
        self.conv2 = nn.Conv2d(2, 10, 5, groups=2, bias=False)
        self.fc = nn.Linear(10, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, 1, 28, 28), normalised, to logits (B, 10)."""
        hidden = nn.functional.max_pool2d(torch.relu(self.conv1(images)), 3, 3)
        hidden = torch.relu(self.conv2(hidden))
        return self.fc(hidden.mean(dim=(-2, -1)))
