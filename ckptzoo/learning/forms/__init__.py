"""Weights as networks take them that learn from weights: vectors, tokens, tuples and graphs, each with its inverse.

>>> import numpy as np
>>> from ckptzoo import archs
>>> arch = archs.architecture("mlp-4-3-2")
>>> weights = {tensor.name: np.ones((5, *tensor.shape), np.float32) for tensor in arch.tensors}
>>> form = form_of("flat", arch, None)
>>> form.encode(weights).shape
(5, 23)
>>> form.decode(form.encode(weights))["fc1.weight"].shape
(5, 3, 4)
"""

from collections.abc import Mapping
from typing import Any, Protocol

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, ZooError
from ckptzoo.learning.forms.flat import FlatForm
from ckptzoo.learning.forms.graph import Graph, GraphForm
from ckptzoo.learning.forms.tokens import Tokens, TokensForm
from ckptzoo.learning.forms.tuples import TuplesForm, WeightsAndBiases
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.symmetry import Symmetry

__all__ = [
    "NAMES",
    "FlatForm",
    "Form",
    "Graph",
    "GraphForm",
    "Tokens",
    "TokensForm",
    "TuplesForm",
    "WeightsAndBiases",
    "form_of",
]
NAMES = ("flat", "tokens", "tuples", "graph")


class Form(Protocol):
    """How a network takes weights, and back: of ``{name: (B, *shape)}``, numpy or torch, without loss."""

    def encode(self, tensors: Mapping[str, Any]) -> Any:
        """The input of the network.

        Parameters
        ----------
        tensors
            every tensor of the architecture by name, (B, *shape), numpy or torch.
        """
        ...

    def decode(self, encoded: Any) -> dict[str, Any]:
        """The tensors again.

        Parameters
        ----------
        encoded
            what ``encode`` returned, or a network's output of that form.
        """
        ...


@checked
def form_of(name: str, architecture: Architecture, symmetry: Symmetry | None) -> Form:
    """The form of this name with its defaults, for the checkpoints of an architecture.

    Parameters
    ----------
    name
        ``"flat"``, ``"tokens"`` (as long as the longest row), ``"tuples"`` (nfn's) or ``"graph"``. For other settings,
        make ``TokensForm``, ``TuplesForm`` or ``GraphForm`` and pass it in place of the name.
    architecture
        of the checkpoints.
    symmetry
        the architecture's table of symmetries; only graphs need it.

    Raises
    ------
    ZooError
        No such form, or the architecture has none.
    SymmetryError
        A graph without a table, or of one with more than two moving axes of a tensor.
    """
    if name == "flat":
        return FlatForm(architecture)
    if name == "tokens":
        return TokensForm(architecture)
    if name == "tuples":
        return TuplesForm(architecture)
    if name == "graph":
        return GraphForm(architecture, symmetry)
    raise ZooError(Problem("form", "name", "one of " + ", ".join(NAMES), repr(name), "Choose one of these."))
