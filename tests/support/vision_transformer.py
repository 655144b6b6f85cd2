"""A small vision transformer, and a short training of it."""

import numpy as np
import torch
from torch import nn

PATCH, WIDTH, HEADS, BLOCKS, HIDDEN = 7, 24, 3, 2, 48


class Block(nn.Module):
    """Attention and a perceptron, each behind a LayerNorm and beside the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens (B, tokens, width) to tokens."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


class VisionTransformer(nn.Module):
    """Logits of ten digits from images (B, 1, 28, 28)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(0.1 * torch.randn(1, 1 + (28 // PATCH) ** 2, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The head reads the class token."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], dim=1) + self.places
        return self.head(self.norm(self.blocks(tokens))[:, 0])


def trained(
    images: np.ndarray, labels: np.ndarray, *, seed: int, epochs: int, batch: int = 64
) -> tuple[VisionTransformer, int]:
    """A network trained with AdamW on scaled images (N, 1, 28, 28), and how many steps it took."""
    torch.manual_seed(seed)
    module, order, steps = VisionTransformer(), torch.Generator().manual_seed(seed), 0
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    optimiser = torch.optim.AdamW(module.parameters(), lr=3e-3)
    for _ in range(epochs):
        for some in torch.randperm(len(x), generator=order).split(batch):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x[some]), y[some]).backward()
            optimiser.step()
            steps += 1
    return module.eval(), steps


def accuracy(module: VisionTransformer, images: np.ndarray, labels: np.ndarray) -> float:
    """The fraction of images that it gets right."""
    with torch.no_grad():
        return float((module(torch.from_numpy(images)).argmax(1).numpy() == labels).mean())
