"""Gaussians over the weights of a network, with independent weights."""

from collections.abc import Callable

import torch
from torch import nn

from ckptzoo.archs.gaussian_spec import STD

_ELEMENTS = 2**22
"""The approximate number of derivatives that are held at a time."""


class Gaussian(nn.Module):
    """A network whose weights are normal: each parameter T is the mean, ``T_std`` the standard deviation.

    The outputs are those of the mean, followed by their standard deviations to first order in those of the weights,

        f(x; mu)   and   s_o(x) = sqrt(sum_i (df_o(x; mu) / d theta_i)^2 sigma_i^2),

    which are exact for outputs that are linear in the weights (D. MacKay, A practical Bayesian framework for
    backpropagation networks, 1992, equation 2.33, without noise). Permutations, signs and scales of the network's
    symmetries leave both as they are: a derivative is divided by what a weight is multiplied by. ``make`` returns the
    network, which is used in evaluation mode with its buffers as they are.
    """

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        network = make()
        self._names = [name for name, _ in network.named_parameters()]
        for name in self._names:
            module, _, leaf = name.rpartition(".")
            mean = network.get_parameter(name)
            # beside its mean, so that a state dict has both in one module
            network.get_submodule(module).register_parameter(f"{leaf}{STD}", nn.Parameter(torch.full_like(mean, 0.01)))
        for name, child in network.named_children():
            self.add_module(name, child)
        # in a tuple, so that its parameters are not named once more; its modules are those of this one
        self._network = (network,)

    def train(self, mode: bool = True) -> "Gaussian":
        self._network[0].training = mode
        return super().train(mode)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Inputs (B, *shape) to (B, 2 * outputs), means before deviations; a backward pass an input and output."""
        means = {name: self._held(name) for name in self._names}
        deviations = {name: self._held(f"{name}{STD}") for name in self._names}
        size = sum(mean.numel() for mean in means.values())

        def outputs(weights: dict[str, torch.Tensor], example: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(self._network[0], weights, (example[None],)).flatten()

        def moments(example: torch.Tensor) -> torch.Tensor:
            mean, pullback, *_ = torch.func.vjp(lambda weights: outputs(weights, example), means)

            def variance(direction: torch.Tensor) -> torch.Tensor:
                (derivatives,) = pullback(direction)
                # independent weights have no covariances, so that squares add up
                terms = [(derivatives[name] * deviations[name]).square().sum() for name in self._names]
                return torch.stack(terms).sum()

            directions = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
            variances = torch.func.vmap(variance, chunk_size=max(1, _ELEMENTS // size))(directions)
            return torch.cat([mean, variances.sqrt()])

        count = max(1, _ELEMENTS // (size * 16))
        return torch.cat([torch.func.vmap(moments)(piece) for piece in inputs.split(count)])

    def _held(self, name: str) -> torch.Tensor:
        """A parameter, or the tensor that ``functional_call`` put in its place, which ``get_parameter`` refuses."""
        module, _, leaf = name.rpartition(".")
        return getattr(self.get_submodule(module), leaf)
