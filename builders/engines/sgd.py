"""The optimiser that every engine shares."""

from builders.recipe import Recipe
from builders.state import Tensors, TrainingState


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
