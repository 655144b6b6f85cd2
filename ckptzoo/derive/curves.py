r"""Curves of low loss between pairs of networks. Needs torch.

A quadratic Bezier curve joins two networks by a third point,

.. math:: \phi(t) = (1 - t)^2 w_1 + 2 t (1 - t)\, \theta + t^2 w_2,

which stochastic gradient descent moves so that the mean loss at uniform t falls (Garipov et al., arXiv 1802.10026,
section 3): the gradient with respect to the point is :math:`2 t (1 - t)` times that of the network on the curve.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ckptzoo.derive.batch_norm import statistics_names
from ckptzoo.derive.forward import Forward, Weights, one_thread
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import Problem, ZooError
from ckptzoo.schema.architecture import Architecture

Tensors = dict[str, torch.Tensor]

BATCH = 128
"""Inputs of a step."""
_MOMENTUM = 0.9
_NORM = 1.0
"""Gradients are shortened to this norm: between two networks losses may be a hundred times those of the ends."""


def shares(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (T, 3) what the first network, the middle point and the second network count for at T points."""
    return np.stack([(1 - points) ** 2, 2 * points * (1 - points), points**2], 1)


def middle_points(
    arch: Architecture,
    first: Weights,
    second: Weights,
    labelled: Labelled,
    *,
    steps: int,
    rate: float,
    seed: int,
    module: torch.nn.Module | None = None,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, NDArray[Any]]:
    """Return the trained middle points of the curves between P pairs, all trained at once from the means of both ends.

    ``first`` and ``second`` map tensor names to (P, *shape); the points do so too, buffers being means. ``rate`` is the
    learning rate, which falls to 0 as a cosine. All pairs see the same inputs and t. ``advance`` is called every step.
    Raises ``ZooError`` if the network has BatchNorm, whose statistics would have to follow the curve.
    """
    forward = Forward(arch, module, vmap=True)
    if found := statistics_names(forward.module()):
        step = "Leave curves out: --curve-steps 0."
        raise ZooError(Problem(arch.name, "a network for curves", "one without BatchNorm", f"{found[0]!r}", step))
    names = [t.name for t in arch.tensors if t.kind == "parameter" and t.size and "float" in t.dtype]
    ends = [forward.tensors(side, torch.float32)[0] for side in (first, second)]
    _, constants = forward.tensors(first, torch.float32)
    state = {
        name: _mean(*pair) for name, pair in zip(ends[0], zip(*(e.values() for e in ends), strict=True), strict=True)
    }
    point = {name: state[name].clone() for name in names}
    velocity = {name: torch.zeros_like(value) for name, value in point.items()}
    inputs = torch.from_numpy(np.ascontiguousarray(labelled.inputs, np.float32))
    labels = torch.from_numpy(labelled.targets.astype(np.int64))
    aliases = {tensor.name: tensor.aliases for tensor in arch.tensors}

    def loss(parameters: Tensors, others: Tensors, batch: torch.Tensor, some: torch.Tensor) -> torch.Tensor:
        tied = {alias: value for name, value in parameters.items() for alias in aliases[name]}
        member: dict[str, Any] = {**others, **constants, **parameters, **tied}
        return functional.cross_entropy(forward.call(forward.module(), member, batch), some)

    rng = np.random.default_rng(np.random.SeedSequence([seed, steps]))
    with one_thread():
        for number in range(steps):
            chosen = torch.from_numpy(rng.integers(0, len(inputs), min(BATCH, len(inputs))))
            one, middle, other = shares(rng.random(1))[0].tolist()
            on_curve = {n: one * ends[0][n] + middle * point[n] + other * ends[1][n] for n in names}
            gradient = partial(torch.func.grad(loss), batch=inputs[chosen], some=labels[chosen])
            found = torch.func.vmap(gradient)(on_curve, state)
            _step(point, velocity, found, middle, rate * (1 + np.cos(np.pi * number / steps)) / 2)
            advance()
    trained = {**{name: state[name] for name in arch.names}, **point}
    return {name: trained[name].numpy() for name in arch.names}


def _mean(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one + other) / 2 if one.is_floating_point() else one


def _step(
    point: dict[str, torch.Tensor],
    velocity: dict[str, torch.Tensor],
    gradients: dict[str, torch.Tensor],
    factor: float,
    rate: float,
) -> None:
    """Move the points of P pairs by one step of SGD with momentum, in place."""
    squares = torch.stack([value.flatten(1).square().sum(1) for value in gradients.values()]).sum(0)
    shorter = factor * (_NORM / (squares.sqrt() * factor).clamp_min(_NORM))
    for name, value in gradients.items():
        velocity[name].mul_(_MOMENTUM).add_(value * shorter.view(-1, *[1] * (value.ndim - 1)))
        point[name].sub_(velocity[name], alpha=rate)
