r"""The engine for multilayer perceptrons: members along the last axis, so that every operation runs along them.

Layer l of a member is :math:`a_l = f(W_l a_{l-1} + b_l)`, and :math:`d_l` the gradient of its loss with respect to
:math:`W_l a_{l-1} + b_l`; then :math:`\partial W_l = d_l a_{l-1}^T`, :math:`\partial b_l = d_l 1`, and
:math:`d_{l-1} = W_l^T d_l \odot f'(a_{l-1})`, where f' is written in terms of f: :math:`[a > 0]` for ReLU,
:math:`1 - a^2` for tanh. Every product is a sum of outer products, added one by one in the same order for every member;
no matrix library decides, and what is no sum or product is rounded from double precision, so that a member's bits do
not depend on those beside it.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from builders import losses
from builders.data_source import Feed, TrainingBatch
from builders.engines import sgd
from builders.engines.sgd import GradientStep
from builders.losses import Loss
from builders.state import Tensors, TrainingState

Activation = tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]
"""A function in place, and its derivative in terms of its value."""
# the last bit of a tanh in single precision depends on where in memory a number is
_TANH: Activation = (lambda value: value.copy_(torch.tanh(value.double())), lambda value: 1 - value.square())
_RELU: Activation = (torch.relu_, lambda value: (value > 0).to(value.dtype))


def advance(data_source: Feed, state: TrainingState, stop: int) -> None:
    """Take the steps up to ``stop``, in place."""
    members_last = TrainingState(state.keys, _members_last(state.weights), _members_last(state.momentum), state.step)
    sgd.advance(data_source.recipe, members_last, gradient_steps(data_source, state.keys, state.step, stop))
    for target, source in ((state.weights, members_last.weights), (state.momentum, members_last.momentum)):
        for name, tensor in target.items():
            tensor.copy_(source[name])
    state.step = stop


def gradient_steps(data_source: Feed, keys: NDArray[np.uint64], start: int, stop: int) -> Iterator[GradientStep]:
    """Yield the steps with their gradients, fastest for weights whose members are neighbours in memory."""
    recipe = data_source.recipe
    loss, activation = losses.get(recipe.loss), _TANH if recipe.architecture.startswith("mlp-tanh-") else _RELU
    for batch in data_source.batches(keys, start, stop):
        yield GradientStep(batch.rate, partial(_gradients, batch=batch, loss=loss, activation=activation))


def _members_last(tensors: Tensors) -> Tensors:
    """Return copies (M, *shape) in which the members are neighbours in memory."""
    return {name: tensor.movedim(0, -1).contiguous().movedim(-1, 0) for name, tensor in tensors.items()}


def _gradients(weights: Tensors, batch: TrainingBatch, loss: Loss, activation: Activation) -> Tensors:
    """Return gradients of each member's mean loss over its batch, ``{name: (M, *shape)}``."""
    apply, derivative = activation
    layers = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    matrices = [weights[f"{layer}.weight"].movedim(0, -1) for layer in layers]
    # features first, members last: (D, B, M)
    values = [batch.inputs.flatten(2).permute(2, 1, 0).contiguous()]
    scales = None if batch.scales is None else batch.scales.permute(2, 1, 0)
    for number, (layer, matrix) in enumerate(zip(layers, matrices, strict=True), 1):
        if scales is not None and number == len(layers):
            values[-1] = values[-1] * scales
        bias, size = weights[f"{layer}.bias"].movedim(0, -1)[:, None], values[-1].shape[1]
        totals = bias.repeat(1, size, 1)
        # one input at a time over all members: addcmul along the last axis does the same for each of them
        for index, value in enumerate(values[-1]):
            totals.addcmul_(matrix[:, index, None], value)
        values.append(apply(totals) if number < len(layers) else totals)
    error = loss.output_gradient(values.pop().permute(2, 1, 0), batch.targets).permute(2, 1, 0).contiguous()
    gradients: Tensors = {}
    for number, (layer, matrix) in reversed(list(enumerate(zip(layers, matrices, strict=True)))):
        value = values.pop()
        product, total = torch.zeros_like(matrix), error.new_zeros(error.shape[0], error.shape[2])
        for index in range(error.shape[1]):
            product.addcmul_(error[:, index, None], value[:, index])
            # not sum(1): torch chooses its order of addition by the shape, which has the number of members
            total.add_(error[:, index])
        gradients[f"{layer}.weight"], gradients[f"{layer}.bias"] = product.movedim(-1, 0), total.movedim(-1, 0)
        if number:
            back = torch.zeros_like(value)
            for index, row_error in enumerate(error):
                back.addcmul_(matrix[index, :, None], row_error)
            if scales is not None and number == len(layers) - 1:
                # what was dropped has no gradient, and the derivative is written in terms of what the unit was
                back, value = back.mul_(scales), value / scales.clamp_min(1)
            error = back.mul_(derivative(value))
    return gradients
