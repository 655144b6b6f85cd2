"""The last, linear layer of a network, and what it reads: the last features. Needs torch."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ckptzoo.derive.forward import INPUT_BYTES, Forward, Weights, one_thread
from ckptzoo.errors import Problem, ZooError
from ckptzoo.schema.architecture import Architecture

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


def last_features(
    arch: Architecture, weights: Weights, inputs: NDArray[np.float32], module: torch.nn.Module | None = None
) -> NDArray[np.float32]:
    """Return what the last linear layer of K networks reads, (K, N, F).

    ``weights`` maps tensor names to (K, *shape). Raises ``ZooError`` if no linear layer gives the network's outputs.
    """
    forward = Forward(arch, module, vmap=True)
    batches = forward.batches(inputs, max(1, INPUT_BYTES // inputs[:1].nbytes))
    state, constants = forward.tensors(weights, torch.float32)
    members = [
        {**{name: value[at] for name, value in state.items()}, **constants}
        for at in range(len(next(iter(weights.values()))))
    ]
    layer = last_linear(forward.module(), members[0], batches[0][:2], location=arch.name)
    network = NetworkWithInputs(forward.module(), layer)
    with one_thread():
        read = [torch.cat([network(member, batch)[1][0] for batch in batches])[: len(inputs)] for member in members]
    return torch.stack(read).numpy()
