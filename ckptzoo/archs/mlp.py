"""Multilayer perceptrons."""

import torch
from torch import nn

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


class MLP(nn.Module):
    """Linear layers ``fc1``, ``fc2``, ... with biases, and an activation after each but the last.

    ``activation`` is ``"relu"`` or ``"tanh"``; ``widths`` are inputs, hidden units of each layer, outputs; two widths
    make a linear model.
    """

    def __init__(self, activation: str, *widths: int) -> None:
        super().__init__()
        self._activation = _ACTIVATIONS[activation]
        for number, width in enumerate(widths[1:], 1):
            self.add_module(f"fc{number}", nn.Linear(widths[number - 1], width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Inputs (B, in), or images of as many pixels, to outputs (B, out)."""
        first, *others = self.children()
        hidden = first(inputs.flatten(1))
        for layer in others:
            hidden = layer(self._activation(hidden))
        return hidden
