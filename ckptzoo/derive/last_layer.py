"""The last, linear layer of a network, and what it reads: the last features. Needs torch."""

from collections.abc import Mapping

import torch
from torch.nn import functional

from ckptzoo.errors import Problem, ZooError

Tensors = Mapping[str, torch.Tensor]


class NetworkWithInputs:
    """A network that also returns the inputs of its layer ``layer``; each thread needs its own.

    ``module`` is in evaluation mode, and its values are those of each call.
    """

    def __init__(self, module: torch.nn.Module, layer: str) -> None:
        self._module = module
        self._given: list[torch.Tensor] = []
        self._module.get_submodule(layer).register_forward_pre_hook(self._note)

    def _note(self, module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        self._given.append(arguments[0])

    def __call__(self, weights: Tensors, inputs: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the outputs, and the layer's inputs at each time that it was used."""
        self._given.clear()
        with torch.no_grad():
            # the hook has seen the layer's inputs when this returns
            outputs = torch.func.functional_call(self._module, dict(weights), (inputs,), tie_weights=False)
        return outputs, list(self._given)


def last_linear(module: torch.nn.Module, weights: Tensors, inputs: torch.Tensor, *, location: str) -> str:
    """Return the linear layer that gives the network's outputs, determined on a few inputs.

    Raises ``ZooError`` if there is none, or it is used more than once.
    """
    layers = [name for name, part in module.named_modules() if isinstance(part, torch.nn.Linear)]
    for layer in reversed(layers):
        outputs, given = NetworkWithInputs(module, layer)(weights, inputs)
        tensors = [weights[name] for name in (f"{layer}.weight", f"{layer}.bias") if name in weights]
        # the same call on the same numbers, so that the bits are the same
        if len(given) == 1 and given[0].ndim == 2 and torch.equal(outputs, functional.linear(given[0], *tensors)):
            return layer
    expected = "a linear layer, used once, whose outputs are the network's"
    step = "Choose what takes the whole network, or add such a layer."
    raise ZooError(Problem(location, "last layer", expected, ", ".join(layers) or "no linear layer", step))
