"""Rules for operations on one tensor, entry by entry: which scales pass through them.

Rules for two operands, entry by entry: sums, products, quotients, and the larger or smaller of two.

Rules for a value and a parameter, entry by entry: biases, gains, thresholds.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ckptzoo.symmetry.tracing.constraints import POSITIVE, SIGN, Labels, constant_labels
from ckptzoo.symmetry.tracing.rules.call import CONSTANT, PARAMETER, Call, Value, tensors
from ckptzoo.symmetry.tracing.union_find import NodeIds

Rule = Callable[[Call], Any]


def linear(call: Call) -> Labels:
    """Every scale passes: ``f(s x) = s f(x)``."""
    return stepped(call, call.labels(call.input))


def positive(call: Call) -> Labels:
    """Positive scales pass: ReLU, absolute values, maxima."""
    labels = call.labels(call.input)
    call.ledger.only(labels.scale, POSITIVE, "keeps positive factors alone")
    return stepped(call, labels)


def odd(call: Call) -> Labels:
    """Signs pass: ``f(-x) = -f(x)``, such as tanh."""
    labels = call.labels(call.input)
    if labels.power % 2 == 0:
        return none(call)
    call.ledger.only(labels.scale, SIGN, "keeps signs alone")
    return stepped(call, replace(labels, power=1.0))


def none(call: Call) -> Labels:
    """No scale passes: GELU, SiLU, sigmoid, softplus."""
    labels = call.labels(call.input)
    call.ledger.forbid_scale(labels.scale, "is neither homogeneous nor odd")
    return stepped(call, labels)


def power(call: Call) -> Labels:
    """``x ** n`` for a number n: scales to the power n."""
    exponent = call.get(1, "exponent")
    if not isinstance(exponent, (int, float)):
        raise call.refused("a number as the exponent", type(exponent).__name__)
    return raised(call, exponent)


def raised(call: Call, exponent: float) -> Labels:
    """The labels of the input to a power."""
    labels = call.labels(call.input)
    if exponent == 0:
        call.ledger.forbid_scale(labels.scale, "makes ones of everything")
    elif exponent % 1:
        call.ledger.only(labels.scale, POSITIVE, "takes roots")
    return stepped(call, replace(labels, power=labels.power * exponent or 1.0))


def square(call: Call) -> Labels:
    """``x ** 2``."""
    return raised(call, 2)


def root(call: Call) -> Labels:
    """``x ** 0.5``."""
    return raised(call, 0.5)


def inverse_root(call: Call) -> Labels:
    """``x ** -0.5``."""
    return raised(call, -0.5)


def inverse(call: Call) -> Labels:
    """``1 / x``."""
    return raised(call, -1)


def clipped(call: Call) -> Labels:
    """``clamp``, ``hardtanh``: positive scales where it cuts at zero alone, signs where it cuts alike on both sides."""
    if call.name == "hardtanh":
        low, high = call.get(1, "min_val", -1.0), call.get(2, "max_val", 1.0)
    elif call.name == "clamp_max":
        low, high = None, call.get(1, "max")
    else:
        low, high = call.get(1, "min"), call.get(2, "max")
    if {low, high} <= {None, 0}:
        return positive(call)
    alike = isinstance(low, (int, float)) and isinstance(high, (int, float)) and low == -high
    return odd(call) if alike else none(call)


def thresholded(call: Call) -> Labels:
    """``threshold``: ReLU where both numbers are 0."""
    zeros = (call.get(1, "threshold"), call.get(2, "value")) == (0, 0)
    return positive(call) if zeros else none(call)


def dropout(call: Call) -> Labels:
    """Dropout in evaluation mode, which changes nothing."""
    if call.get(2, "training", True) and call.get(1, "p", 0.5):
        raise call.refused("dropout with training=self.training, which is off in evaluation mode", "training=True")
    return linear(call)


def softmax(call: Call) -> Labels:
    """Softmax and log-softmax: no scale passes; over channels, all are treated alike."""
    axis = call.get(1, "dim")
    if not isinstance(axis, int):
        raise call.refused("softmax along an axis that is named", f"dim={axis}")
    labels = none(call)
    if axis % call.result.ndim in labels.varying:
        call.ledger.sum_over(labels)
    return labels


def prelu(call: Call) -> Labels:
    """PReLU: positive scales pass; slopes are permuted with the channels that they belong to."""
    labels, weight = positive(call), call.tensor(1, "weight")
    if weight is not None and weight.long:
        axis = min(1, call.result.ndim - 1)
        if labels.varying not in ((), (axis,)):
            raise call.refused(f"channels on axis {axis}", f"channels on axis {labels.varying[0]}")
        call.ledger.place(weight.name, 0, labels.line(axis, weight.tensor.shape[0]), 0, "gain")
    return labels


def stepped(call: Call, labels: Labels) -> Labels:
    """One step further along the paths of all arguments."""
    paths = [value.labels.path for value in tensors((call.args, call.kwargs))]
    others = (int(path.ravel()[0]) for path in paths if path.size == 1)
    return replace(labels, path=call.ledger.paths.step((call.history, *others), labels.path))


ADD, MUL, DIV, MAX = "add", "mul", "div", "max"
"""What is done with two operands; ``MAX`` is the larger or the smaller one."""


def with_parameter(call: Call, value: Value, parameter: Value, how: str, *, turned: bool) -> Labels:
    """Labels of the result; the parameter's axis that runs along the value's channels gets theirs.

    Parameters
    ----------
    turned : whether the parameter is the first operand.
    """
    ndim = call.result.ndim
    labels = value.labels.aligned(ndim)
    if len(labels.varying) > 1:
        raise call.refused("channels on one axis at most", "channels on two axes")
    name, along = _axis(call, labels, parameter)
    if along is None:
        made = _alike(call, labels, how)
    else:
        axis, source, size = along
        wide = value.tensor.shape[axis - ndim] > 1 if axis >= ndim - value.tensor.ndim else False
        made = (_beside if wide else _spread)(call, labels, axis, name, source, size, how)
    return replace(made, power=-made.power) if how == DIV and turned else made


def _axis(call: Call, labels: Labels, parameter: Value) -> tuple[str, tuple[int, int, int] | None]:
    """The parameter's name, and its axis along the channels: in the result, in the state dict, and its size."""
    assert parameter.source is not None
    name, axes = parameter.source
    offset, shape = labels.channel.ndim - parameter.tensor.ndim, parameter.tensor.shape
    long = [at for at, size in enumerate(shape) if size > 1]
    chosen = [at for at in long if offset + at in labels.varying]
    if not labels.varying and len(long) == 1:
        chosen = long
    for at in long:
        source = axes[at]
        assert source is not None
        if at not in chosen:
            call.ledger.ground(name, source, shape[at])
    if not chosen:
        return name, None
    source = axes[chosen[0]]
    assert source is not None
    return name, (offset + chosen[0], source, shape[chosen[0]])


def _alike(call: Call, labels: Labels, how: str) -> Labels:
    """The parameter does the same to all channels."""
    if how in (ADD, MAX):
        call.ledger.forbid_scale(labels.scale, "puts a parameter beside channels that it does not tell apart")
    return labels


def _beside(call: Call, labels: Labels, axis: int, name: str, source: int, size: int, how: str) -> Labels:
    """The parameter has an entry for each channel."""
    ledger, held = call.ledger, labels.line(axis, size)
    if how in (ADD, MAX):
        if held.power not in (1, -1):
            ledger.forbid_scale(held.scale, "adds a parameter to powers of values")
        ledger.place(name, source, held, -1 if held.power == -1 else 1, "bias")
        if how == MAX:
            ledger.only(held.scale, POSITIVE, "takes the larger of two")
        return labels
    if how == MUL and not ledger.alive(held.scale).any():
        made = ledger.write(name, source, size, "gain", in_mass=True)
        channel = ledger.tie_channels(held.channel, made.channel, f"multiplies values that stay in place by {name!r}")
        return Labels(channel, made.scale, held.path).across(axis, labels.channel.ndim)
    if ledger.alive(held.scale).any():
        ledger.notes.append(f"{name!r} is permuted and not scaled: {ledger.here} multiplies values that are scaled.")
    ledger.place(name, source, held, 0, "gain", in_mass=True)
    return labels


def _spread(call: Call, labels: Labels, axis: int, name: str, source: int, size: int, how: str) -> Labels:
    """The parameter makes several channels of one entry."""
    ledger, made = (
        call.ledger,
        call.ledger.write(name, source, size, "gain" if how == MUL else "bias", in_mass=how == MUL),
    )
    if not labels.free:
        ledger.sum_over(labels)
        ledger.forbid_scale(labels.scale, "makes several channels of one")
    if how != MUL:
        ledger.forbid_scale(made.scale, "puts a parameter beside values that cannot be scaled")
    return Labels(made.channel, made.scale, made.path).across(axis, labels.channel.ndim)


def add(call: Call) -> Labels:
    """``a + b``, ``a - b``: both sides are scaled alike."""
    return _combine(call, ADD)


def mul(call: Call) -> Labels:
    """``a * b``: one side is scaled, or both are alike."""
    return _combine(call, MUL)


def div(call: Call) -> Labels:
    """``a / b``: one side is scaled, or both are alike."""
    return _combine(call, DIV)


def extremum(call: Call) -> Labels:
    """``max(a, b)``, ``min(a, b)``: both sides are scaled alike, by positive numbers."""
    return _combine(call, MAX)


def _combine(call: Call, how: str) -> Labels:
    one, two = (_operand(call, call.get(at, name)) for at, name in enumerate(("input", "other")))
    made = _labels(call, one, two, how)
    befores = (value.labels.aligned(call.result.ndim).path for value in (one, two))
    return replace(made, path=call.ledger.paths.step(call.history, *befores))


def _operand(call: Call, item: Any) -> Value:
    if isinstance(item, Value):
        return item
    if isinstance(item, (bool, int, float)):
        return Value(torch.tensor(item, dtype=torch.float64), constant_labels(0), CONSTANT)
    raise call.refused("tensors or numbers", type(item).__name__)


def _labels(call: Call, one: Value, two: Value, how: str) -> Labels:
    """Channels and scales of the result."""
    if CONSTANT in (one.origin, two.origin):
        turned = one.origin == CONSTANT
        return _with_constant(call, *((two, one) if turned else (one, two)), how, turned=turned)
    if one.bare != two.bare:
        return with_parameter(call, *((two, one) if one.bare else (one, two)), how, turned=one.bare)
    return _with_other(call, one, two, how)


def _with_constant(call: Call, value: Value, constant: Value, how: str, *, turned: bool) -> Labels:
    """Beside numbers that no symmetry may change."""
    ledger, ndim, numbers = call.ledger, call.result.ndim, constant.tensor
    labels = call.labels(value).aligned(ndim)
    numbers = numbers.reshape((1,) * (ndim - numbers.ndim) + tuple(numbers.shape))
    along = [axis for axis in labels.varying if numbers.shape[axis] > 1]
    if any(bool((numbers != numbers.narrow(axis, 0, 1)).any()) for axis in along):
        ledger.fix(labels.channel, "meets constants that are not the same for all channels")
    zero = not bool(numbers.any())
    if how == MAX and zero:
        ledger.only(labels.scale, POSITIVE, "cuts at zero")
    elif how == MAX or (how == ADD and not zero):
        ledger.forbid_scale(labels.scale, "adds a constant" if how == ADD else "cuts at a constant")
    return replace(labels, power=-labels.power) if how == DIV and turned else labels


def _with_other(call: Call, one: Value, two: Value, how: str) -> Labels:
    """Beside values with labels of their own."""
    ndim = call.result.ndim
    first, second = (call.labels(value).aligned(ndim) for value in (one, two))
    sizes = [(1,) * (ndim - value.tensor.ndim) + tuple(value.tensor.shape) for value in (one, two)]
    for many, single, size in ((first, second, sizes[1]), (second, first, sizes[0])):
        if any(size[axis] == 1 for axis in many.varying) and not single.free:
            return _beside_one(call, many, single, how)
    channel = _joined(call, (first, second), sizes)
    return replace(_scaled(call, first, second, how, (one.origin, two.origin)), channel=channel)


def _beside_one(call: Call, many: Labels, single: Labels, how: str) -> Labels:
    """Several channels, each beside the same one."""
    if single.varying:
        raise call.refused("channels on one axis at most", "channels on two axes")
    call.ledger.sum_over(single)
    call.ledger.forbid_scale(single.scale, "puts one channel beside several others")
    if how in (ADD, MAX):
        call.ledger.forbid_scale(many.scale, "puts one channel beside several others")
    return many


def _joined(call: Call, sides: tuple[Labels, Labels], sizes: list[tuple[int, ...]]) -> NodeIds:
    """Channels that meet move together; those that meet values without channels stay, if these differ along them."""
    one, two = np.broadcast_arrays(sides[0].channel, sides[1].channel)
    both = (one >= 0) & (two >= 0)
    call.ledger.channels.union(one[both], two[both])
    for mine, its, labels, size in ((one, two, sides[0], sizes[1]), (two, one, sides[1], sizes[0])):
        if any(size[axis] > 1 for axis in labels.varying):
            call.ledger.fix(mine[its < 0], "joins channels with values that stay in place")
    return np.where(one >= 0, one, two)


def _scaled(call: Call, first: Labels, second: Labels, how: str, origins: tuple[str, str]) -> Labels:
    """The first labels with the result's scales and power."""
    ledger = call.ledger
    one, two = np.broadcast_arrays(first.scale, second.scale)
    alive = ledger.alive(one), ledger.alive(two)
    both = alive[0] & alive[1]
    if how in (ADD, MAX):
        if both.any() and first.power != second.power:
            ledger.forbid_scale(one[both], "joins values with powers of values")
        scale = ledger.tie_scales(one, two, "joins values that are scaled with others that cannot be")
        if how == MAX:
            ledger.only(scale, POSITIVE, "takes the larger of two")
        return replace(first, scale=scale, power=first.power if alive[0].any() else second.power)
    its = second.power if how == MUL else -second.power
    if both.any() and (alive[0] == alive[1]).all() and _same(call, one[both], two[both]):
        power = first.power + its
        return replace(first, scale=np.where(both & (power != 0), one, -1), power=power or 1.0)
    if both.any() and PARAMETER in origins and origins[0] != origins[1]:
        ledger.forbid_scale(two if origins[1] == PARAMETER else one, "multiplies values that are scaled by a parameter")
    elif both.any():
        for scale in (one[both], two[both]):
            ledger.forbid_scale(scale, "multiplies two values that are scaled apart")
    alive = ledger.alive(one), ledger.alive(two)
    if alive[0].any() and alive[1].any() and first.power != its:
        ledger.forbid_scale(two, "multiplies by powers of values")
    scale = np.where(alive[0], one, np.where(alive[1], two, -1))
    return replace(first, scale=scale, power=first.power if alive[0].any() else its)


def _same(call: Call, one: NodeIds, two: NodeIds) -> bool:
    return bool((call.ledger.scales.find(one) == call.ledger.scales.find(two)).all())
