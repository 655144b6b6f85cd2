"""The optimiser that every engine shares, and the steps at which engines evaluate gradients."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from builders.recipe import Recipe
from builders.state import Tensors, TrainingState


class GradientStep(NamedTuple):
    """One optimiser step: the gradient of its batch's mean loss, at any weights. ``gradient`` maps weights ``{name: (M,
    *shape)}`` to gradients of the same names and shapes, which the caller may change and the next call may overwrite.
    """

    rate: float
    gradient: Callable[[Tensors], Tensors]


def advance(recipe: Recipe, state: TrainingState, steps: Iterable[GradientStep]) -> None:
    """Take these steps of stochastic gradient descent, in place."""
    for step in steps:
        update(recipe, state, step.gradient(state.weights), step.rate)
        state.step += 1


def update(recipe: Recipe, state: TrainingState, gradients: Tensors, rate: float) -> None:
    r"""Take one step of stochastic gradient descent, in place; the gradients are used up.

    :math:`g \leftarrow g + \lambda w`, then ``direction``'s d, and :math:`w \leftarrow w - \eta d`, as
    ``torch.optim.SGD`` without dampening.
    """
    for name, gradient in gradients.items():
        weight = state.weights[name]
        if recipe.weight_decay:
            gradient.add_(weight, alpha=recipe.weight_decay)
        if recipe.momentum:
            gradient = direction(recipe, state.momentum[name], gradient)
        weight.sub_(gradient, alpha=rate)


def direction(recipe: Recipe, velocity: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    r"""Return the direction d of a step of SGD: v after :math:`v \leftarrow \mu v + g`; with Nesterov's momentum
    :math:`g + \mu v`.

    ``velocity`` changes in place, and the gradient may. As ``torch.optim.SGD`` (Sutskever et al., "On the importance of
    initialization and momentum in deep learning", ICML 2013, equations 3 and 4, at the point that is looked ahead to).
    """
    velocity.mul_(recipe.momentum).add_(gradient)
    return gradient.add_(velocity, alpha=recipe.momentum) if recipe.nesterov else velocity
