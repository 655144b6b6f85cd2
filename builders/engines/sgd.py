"""The optimiser that every engine shares, and the steps at which engines evaluate gradients."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from builders.recipe import Recipe
from builders.state import Tensors, TrainingState


class GradientStep(NamedTuple):
    """One optimiser step: the gradient of its batch's mean loss, at any weights.

    Parameters
    ----------
    rate : the learning rate.
    gradient : of weights ``{name: (M, *shape)}`` to gradients of the same names and shapes, which the caller may change
        and which the next call may overwrite.
    """

    rate: float
    gradient: Callable[[Tensors], Tensors]


def advance(recipe: Recipe, state: TrainingState, steps: Iterable[GradientStep]) -> None:
    """Take these steps of stochastic gradient descent, in place."""
    for step in steps:
        update(recipe, state, step.gradient(state.weights), step.rate)
        state.step += 1


def update(recipe: Recipe, state: TrainingState, gradients: Tensors, rate: float) -> None:
    r"""One step of stochastic gradient descent, in place; the gradients are used up.

    :math:`g \leftarrow g + \lambda w`, :math:`v \leftarrow \mu v + g`, :math:`w \leftarrow w - \eta v`, as
    ``torch.optim.SGD`` without dampening and without Nesterov's correction.
    """
    for name, gradient in gradients.items():
        weight = state.weights[name]
        if recipe.weight_decay:
            gradient.add_(weight, alpha=recipe.weight_decay)
        if recipe.momentum:
            gradient = state.momentum[name].mul_(recipe.momentum).add_(gradient)
        weight.sub_(gradient, alpha=rate)
