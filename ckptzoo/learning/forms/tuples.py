"""Weights as the tuples that equivariant networks for multilayer perceptrons and CNNs take."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

from ckptzoo.errors import Problem, ZooError
from ckptzoo.learning.forms.stacked_tensors import check_encoded, number_of
from ckptzoo.schema.architecture import Architecture
from ckptzoo.text import brief_repr

Layout = Literal["nfn", "dwsnets"]


class WeightsAndBiases(NamedTuple):
    """A weight and a bias for each layer, in order: ``WeightSpaceFeatures(*encoded)`` for nfn."""

    weights: tuple[Any, ...]
    biases: tuple[Any, ...]

    __repr__ = brief_repr


class TuplesForm:
    """Weights and biases of layers that follow one another, each weight with its bias right behind it.

    Parameters
    ----------
    architecture
        of the checkpoints: linear layers, with ``"nfn"`` also two-dimensional convolutions.
    layout
        ``"nfn"``: weights (B, 1, out, in) or (B, 1, out, in, height, width), biases (B, 1, out), as
        ``state_dict_to_tensors`` makes them and a DataLoader stacks them (Zhou et al. 2023, arXiv 2302.14040;
        AllanYangZhou/nfn@39debe6 ``nfn/common/data.py``). ``"dwsnets"``: weights (B, in, out, 1), biases (B, out, 1)
        (Navon et al. 2023, arXiv 2301.12780; AvivNavon/DWSNets@24e15fd ``experiments/data.py``).

    Raises
    ------
    ZooError
        Another layout, or tensors that are no such layers.

    Examples
    --------
    >>> import numpy as np
    >>> from ckptzoo import archs
    >>> arch = archs.architecture("mlp-4-3-2")
    >>> weights = {tensor.name: np.ones((5, *tensor.shape), np.float32) for tensor in arch.tensors}
    >>> [weight.shape for weight in TuplesForm(arch).encode(weights).weights]
    [(5, 1, 3, 4), (5, 1, 2, 3)]
    >>> [weight.shape for weight in TuplesForm(arch, "dwsnets").encode(weights).weights]
    [(5, 4, 3, 1), (5, 3, 2, 1)]
    """

    def __init__(self, architecture: Architecture, layout: Layout = "nfn") -> None:
        if layout not in get_args(Layout):
            expected = " or ".join(map(repr, get_args(Layout)))
            raise ZooError(Problem("tuples", "layout", expected, repr(layout), "Choose one of these."))
        if problems := list(_problems(architecture, (2, 4) if layout == "nfn" else (2,))):
            raise ZooError(problems)
        self._architecture, self._layout = architecture, layout
        self._weights, self._biases = architecture.tensors[0::2], architecture.tensors[1::2]

    def encode(self, tensors: Mapping[str, Any]) -> WeightsAndBiases:
        """Stacked tensors ``{name: (B, *shape)}`` as tuples of views.

        Parameters
        ----------
        tensors
            every tensor of the architecture by name, (B, *shape), numpy or torch.

        Raises
        ------
        ZooError
            A tensor is missing, unknown or of another shape.
        """
        number_of(tensors, self._architecture)
        weights = tuple(tensors[tensor.name] for tensor in self._weights)
        biases = tuple(tensors[tensor.name] for tensor in self._biases)
        # nfn has an axis of feature channels behind that of the batch
        if self._layout == "nfn":
            return WeightsAndBiases(tuple(one[:, None] for one in weights), tuple(one[:, None] for one in biases))
        # dwsnets has matrices (inputs, outputs), and feature channels last
        transposed = tuple(weight.swapaxes(1, 2)[..., None] for weight in weights)
        return WeightsAndBiases(transposed, tuple(bias[..., None] for bias in biases))

    def decode(self, encoded: Any) -> dict[str, Any]:
        """Tuples as tensors ``{name: (B, *shape)}``, views of them.

        Parameters
        ----------
        encoded
            weights and biases, each a sequence with an array a layer.

        Raises
        ------
        ZooError
            An array is missing or has another shape.
        """
        found: dict[str, Any] = {}
        for declared, arrays in zip((self._weights, self._biases), encoded, strict=True):
            if len(arrays) != len(declared):
                location = f"encoded weights of {self._architecture.name}"
                step = "Decode what the form encoded."
                raise ZooError(Problem(location, "layers", str(len(declared)), str(len(arrays)), step))
            for tensor, array in zip(declared, arrays, strict=True):
                if self._layout == "nfn":
                    check_encoded(array, (1, *tensor.shape), repr(tensor.name), self._architecture)
                    found[tensor.name] = array[:, 0]
                else:
                    check_encoded(array, (*tensor.shape[::-1], 1), repr(tensor.name), self._architecture)
                    matrix = array[..., 0]
                    found[tensor.name] = matrix.swapaxes(1, 2) if len(tensor.shape) == 2 else matrix
        return {name: found[name] for name in self._architecture.names}


def _problems(architecture: Architecture, axes: tuple[int, ...]) -> Iterator[Problem]:
    step = 'Use the form "graph", which takes any network with a table of symmetries, or "tokens".'
    tensors = architecture.tensors
    for at in range(0, len(tensors), 2):
        weight, bias = tensors[at], tensors[at + 1] if at + 1 < len(tensors) else None
        if len(weight.shape) not in axes:
            expected = "a weight of " + " or ".join(map(str, axes)) + " axes"
            yield Problem(architecture.name, f"tensor {weight.name!r}", expected, f"shape {weight.shape}", step)
            return
        if bias is None or bias.shape != weight.shape[:1]:
            got = "none" if bias is None else f"{bias.name!r} of shape {bias.shape}"
            yield Problem(architecture.name, f"tensor behind {weight.name!r}", "the bias of its layer", got, step)
            return
