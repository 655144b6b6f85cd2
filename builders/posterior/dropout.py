r"""Dropout: a network that was trained with dropout is a distribution over weights (Gal and Ghahramani 2016).

A unit :math:`x_j` in front of the last layer is dropped with probability p, and divided by 1 - p where it is kept, so
that the layer computes :math:`\sum_j W_{kj} \frac{m_j}{1 - p} x_j + b_k` with :math:`m_j \in \{0, 1\}`. The factor may
as well be the weights':

.. math:: W'_{kj} = \frac{m_j}{1 - p} W_{kj}

A draw is one mask for all inputs, folded into the weights in this way, so that it is a checkpoint like any other; at
most :math:`2^U` differ, with U units. (Masks drawn for each input separately are no draws of weights.)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from builders import rng
from builders.posterior.method import Method, Surroundings, derived, number
from builders.recipe import Recipe
from builders.state import Tensors, TrainingState
from ckptzoo.errors import Problem


# the settings have their values in builders/recipes/posterior/dropout.toml
@dataclass(frozen=True, kw_only=True)
class Dropout(Method):
    """Chains are trained by the recipe with dropout in front of the last layer.

    Parameters
    ----------
    p
        the probability with which a unit is dropped.
    """

    name: ClassVar[str] = "dropout"

    p: float = number(0, 0.99, above=True)

    @property
    def chain(self) -> Recipe:
        """The recipe with dropout."""
        return derived(self.recipe, dropout=self.p)

    def advance(self, surroundings: Surroundings, state: TrainingState, stop: int) -> None:
        surroundings.train(state, stop)

    def draw(self, surroundings: Surroundings, state: TrainingState, number: int) -> Tensors:
        head = state.weights[self.chain.head]
        # a draw counts as an epoch of one example, under a purpose of its own
        kept = rng.kept_units(state.keys, number, np.zeros(1, np.int64), head.shape[2], self.p, rng.DRAWN_MASKS)
        scales = torch.from_numpy(kept[:, 0].astype(np.float32)).to(head.device) / (1 - self.p)
        return {**state.weights, self.chain.head: head * scales[:, None]}

    def unservable(self) -> Iterator[Problem]:
        if not any(len(tensor.shape) == 2 for tensor in self.recipe.arch.tensors):
            yield self.refusal("a linear layer", "none", "Choose another method.")
