"""Rules for operations entry by entry, on one tensor or on two: which scales pass through them.

First operations on one tensor, by what they do to a factor: all factors pass (homogeneous), positive ones, signs, or
none. Then sums, products, quotients and maxima of two: of two values, of a value and a constant, and of a value and a
parameter, which is a bias, a gain or a threshold of the value's channels.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ckptzoo.symmetry.tracing.constraints import NONZERO, POSITIVE, SIGN, Constraints, Labels, constant_labels
from ckptzoo.symmetry.tracing.rules import experts
from ckptzoo.symmetry.tracing.rules.buffers import place_buffers
from ckptzoo.symmetry.tracing.rules.call import CONSTANT, DATA, PARAMETER, Call, Value, values_in
from ckptzoo.symmetry.tracing.scale_products import multiply_scales
from ckptzoo.symmetry.tracing.union_find import NodeIds

Rule = Callable[[Call], Any]
"""From a call to the labels of its result; one for each where there are several results."""
ADD, MUL, DIV, MAX = "add", "mul", "div", "max"
"""The operations on two operands: sums and differences, products, quotients, the larger or the smaller one."""


def homogeneous(call: Call) -> Labels:
    """Every scale passes: ``f(s x) = s f(x)``."""
    return with_new_paths(call, _with_modulus(call, call.input))


def positively_homogeneous(call: Call) -> Labels:
    """Positive scales pass: ReLU, absolute values, maxima."""
    labels = call.labels_of(call.input)
    call.constraints.restrict_scale(labels.scale, POSITIVE, "keeps positive factors alone")
    return with_new_paths(call, labels)


def absolute(call: Call) -> Labels:
    """Absolute values: the moduli of scales pass, so that signs end there."""
    labels = call.labels_of(call.input)
    if call.input.origin != DATA or labels.power % 2 == 0:
        return positively_homogeneous(call)
    return replace(with_new_paths(call, labels), modulus=True)


def odd(call: Call) -> Labels:
    """Signs pass: ``f(-x) = -f(x)``, such as tanh."""
    # an odd function of what has no sign is any function
    if is_even(call.input.labels):
        return not_homogeneous(call)
    labels = call.labels_of(call.input)
    call.constraints.restrict_scale(labels.scale, SIGN, "keeps signs alone")
    return with_new_paths(call, replace(labels, power=1.0))


def even(call: Call) -> Labels:
    """Signs end here: ``f(-x) = f(x)``, such as cos."""
    labels = _with_modulus(call, call.input)
    call.constraints.restrict_scale(labels.scale, SIGN, "keeps signs alone")
    return with_new_paths(call, replace(_without_scale(labels), power=1.0))


def sign(call: Call) -> Labels:
    """Positive scales end here: ``f(s x) = f(x)``, such as the sign."""
    labels = positively_homogeneous(call)
    return replace(_without_scale(labels), power=1.0)


def finite(call: Call) -> Labels:
    """Whether numbers are finite, which no scale changes."""
    labels = with_new_paths(call, call.labels_of(call.input))
    return replace(_without_scale(labels), power=1.0)


def nan_to_num(call: Call) -> Labels:
    """``nan_to_num``: signs pass where NaN becomes 0 and both infinities become opposite numbers."""
    high, low = call.argument("posinf"), call.argument("neginf")
    # torch's defaults are the largest and the least finite number, which are opposite
    alike = not call.argument("nan") and (high is low is None or (None not in (high, low) and high == -low))
    return odd(call) if alike else not_homogeneous(call)


def not_homogeneous(call: Call) -> Labels:
    """No scale passes: GELU, SiLU, sigmoid, softplus. Signs end in an even power or an absolute value before."""
    value, why = call.input, "is neither homogeneous nor odd"
    if is_even(value.labels):
        return with_new_paths(call, without_signs(call.constraints, value.labels, why))
    labels = call.labels_of(value)
    call.constraints.forbid_scale(labels.scale, why)
    return with_new_paths(call, labels)


def quantized(call: Call) -> Labels:
    """Numbers that are rounded to some of a table or a grid, which no symmetry changes: no scale passes."""
    _, *others = values_in(call.arguments)
    if not all(value.stays for value in others):
        raise call.unsupported("a grid of numbers that no symmetry changes", "one that depends on channels")
    return not_homogeneous(call)


def pow_(call: Call) -> Labels:
    """``x ** n`` for a number n: scales to the power n; no scale passes where n is a tensor."""
    exponent = call.argument("exponent")
    return _without_any_scale(call, "exponent") if isinstance(exponent, Value) else _labels_of_power(call, exponent)


def _labels_of_power(call: Call, exponent: float) -> Labels:
    """Return the labels of the input raised to a power."""
    labels = call.labels_of(call.input)
    if exponent == 0:
        call.constraints.forbid_scale(labels.scale, "makes ones of everything")
    elif exponent % 1 and labels.power % 2 == 0:  # roots of squares are absolute values
        labels = replace(labels, modulus=True)
    elif exponent % 1:
        call.constraints.restrict_scale(labels.scale, POSITIVE, "takes roots")
    # not 0, which would count as an even power
    return with_new_paths(call, replace(labels, power=labels.power * exponent or 1.0))


def square(call: Call) -> Labels:
    """``x ** 2``."""
    return _labels_of_power(call, 2)


def sqrt(call: Call) -> Labels:
    """``x ** 0.5``."""
    return _labels_of_power(call, 0.5)


def rsqrt(call: Call) -> Labels:
    """``x ** -0.5``."""
    return _labels_of_power(call, -0.5)


def reciprocal(call: Call) -> Labels:
    """``1 / x``."""
    return _labels_of_power(call, -1)


def clamp(call: Call) -> Labels:
    """``clamp``, ``hardtanh``: positive scales where it cuts at zero alone, signs where it cuts alike on both sides."""
    if call.name == "hardtanh":
        low, high = call.argument("min_val"), call.argument("max_val")
    else:
        low, high = call.argument("min"), call.argument("max")
    if any(isinstance(item, Value) for item in (low, high)):
        value = call.input
        for bound in (low, high):
            if bound is not None:
                value = Value(call.result, combined(call, value, _as_value(call, bound), MAX), DATA)
        return value.labels
    # max(x, 0) and min(x, 0) keep positive factors
    if {low, high} <= {None, 0}:
        return positively_homogeneous(call)
    alike = isinstance(low, (int, float)) and isinstance(high, (int, float)) and low == -high
    return odd(call) if alike else not_homogeneous(call)


def threshold(call: Call) -> Labels:
    """``threshold``: a ReLU where both numbers are 0."""
    # x where it is above the threshold, else the other number
    zeros = (call.argument("threshold"), call.argument("value")) == (0, 0)
    return positively_homogeneous(call) if zeros else not_homogeneous(call)


def dropout(call: Call) -> Labels:
    """Dropout in evaluation mode, which changes nothing."""
    # torch.nn.functional.dropout drops by default, in evaluation mode too
    if call.argument("train") and call.argument("p"):
        expected, step = "dropout that is off in evaluation mode", "Pass training=self.training."
        raise call.unsupported(expected, "training=True", step)
    return homogeneous(call)


def softmax(call: Call) -> Labels:
    """Softmax and log-softmax: no scale passes; over channels, all are treated alike."""
    axis = int(call.argument("dim"))
    labels = not_homogeneous(call)
    if axis % call.result.ndim in labels.varying_axes:
        call.constraints.record_sum(labels)
    return labels


def prelu(call: Call) -> Labels:
    """PReLU: positive scales pass; slopes are permuted with the channels that they belong to."""
    labels, weight = positively_homogeneous(call), call.stored_tensor("weight")
    if weight is not None and weight.long_axes:
        axis = min(1, call.result.ndim - 1)  # torch takes the second axis for the channels, or the only one
        if labels.varying_axes not in ((), (axis,)):
            raise call.unsupported(f"channels on axis {axis}", f"channels on axis {labels.varying_axes[0]}")
        call.constraints.place(weight.name, 0, labels.along_axis(axis, weight.tensor.shape[0]), 0, "gain")
    return labels


def masked_fill(call: Call) -> Labels:
    """``masked_fill``: values of the mask's shape, with a number where it holds."""
    number = call.argument("value")
    if isinstance(number, Value) and number.origin == CONSTANT:
        number = number.tensor.item() if number.stored is None else 1.0
    if not isinstance(number, (bool, int, float)):
        raise call.unsupported("a number to fill in", "a tensor that depends on the input")
    labels = combined(call, call.argument("self"), call.argument("mask"), MUL)
    # zeros stay zeros under every factor
    if number:
        call.constraints.forbid_scale(labels.scale, "fills in a number")
    return labels


def where(call: Call) -> Any:
    """``where``: both values are scaled alike, and the condition is of their channels; or the places where it holds."""
    condition = call.argument("condition")
    if call.argument("self") is None:
        if not condition.stays:
            raise call.unsupported("a condition that no symmetry changes", "one computed from channels")
        path = call.constraints.paths.id_of("where", *condition.labels.path.ravel().tolist())
        return [constant_labels(1, path) for _ in call.result]
    first, second = (_as_value(call, call.argument(name)) for name in ("self", "other"))
    joined = Value(call.result, combined(call, first, second, ADD), DATA)
    return combined(call, joined, condition, MUL)


def addcmul(call: Call) -> Labels:
    """``a + c b1 b2`` for a number c."""
    first, second = call.argument("tensor1"), call.argument("tensor2")
    product = Value(call.result, combined(call, first, second, MUL), DATA)
    return combined(call, call.argument("self"), product, ADD)


def compare(call: Call) -> Labels:
    """Comparisons: positive factors of both sides, or of one beside zero, change nothing."""
    labels = _combine(call, MAX)
    return replace(_without_scale(labels), power=1.0)


def logical(call: Call) -> Labels:
    """And, or and not, of truth values and of bits."""
    if call.argument("other") is None:
        return not_homogeneous(call)
    labels = _combine(call, MUL)
    call.constraints.forbid_scale(labels.scale, "takes numbers for truth values")
    return labels


def combined(call: Call, left: Value, right: Value, operation: str) -> Labels:
    """Return labels of an operation entry by entry on two values, with its history."""
    labels = _combined_labels(call, left, right, operation)
    paths = [value.labels.with_ndim(call.result.ndim).path for value in (left, right)]
    if len(labels.varying_axes) > 1:  # what tells channels in heads apart is in the labels' own paths
        paths.append(labels.path)
    return replace(labels, path=call.constraints.paths.extend(call.description, *paths))


def with_new_paths(call: Call, labels: Labels) -> Labels:
    """Return the labels with this operation added to the history of every entry."""
    paths = [value.labels.path for value in values_in(call.arguments)]
    # Arguments with one history for all entries, such as numbers and whole parameters, count as part of the operation.
    others = (int(path.ravel()[0]) for path in paths if path.size == 1)
    return replace(labels, path=call.constraints.paths.extend((call.description, *others), labels.path))


def add(call: Call) -> Any:
    """``a + b``, ``a - b``: both sides are scaled alike. A parameter beside zeros stays one."""
    left, right = (_as_value(call, call.argument(name)) for name in ("self", "other"))
    for value, zeros in ((left, right), (right, left)):
        if (
            value.unlabelled
            and len(value.long_axes) > 1
            and (call.name, call.argument("alpha")) == ("add", 1)
            and zeros.origin == CONSTANT
            and zeros.stored is None
            and value.tensor.shape == call.result.shape
            and not bool(zeros.tensor.any())
        ):
            return replace(value, tensor=call.result)
    return _combine(call, ADD)


def mul(call: Call) -> Labels:
    """``a * b``: one side is scaled, or both are alike."""
    return _combine(call, MUL)


def div(call: Call) -> Labels:
    """``a / b``: one side is scaled, or both are alike."""
    return _combine(call, DIV) if call.argument("rounding_mode") is None else floor_divide(call)


def floor_divide(call: Call) -> Labels:
    """Quotients that are rounded: factors of both sides cancel, and no other scale passes."""
    labels = _combine(call, DIV)
    call.constraints.forbid_scale(labels.scale, "rounds a quotient")
    return labels


def remainder(call: Call) -> Labels:
    """Remainders of divisions: both sides are scaled alike, by positive numbers."""
    return _combine(call, MAX)


def sum_without_scale(call: Call) -> Labels:
    """``log(exp(a) + exp(b))`` and the like: no scale passes."""
    return _without_any_scale(call, "other")


def _without_any_scale(call: Call, second: str) -> Labels:
    """Return labels of an operation on two tensors, or a tensor and a number, through which no scale passes."""
    first, other = (_as_value(call, call.argument(name)) for name in ("self", second))
    labels = combined(call, first, other, ADD)
    call.constraints.forbid_scale(labels.scale, "is neither homogeneous nor odd")
    return labels


def lerp(call: Call) -> Labels:
    """``a + w (b - a)``: a and b are scaled alike, and w is a factor of their channels."""
    start, weight = call.argument("self"), _as_value(call, call.argument("weight"))
    difference = Value(call.result, combined(call, start, call.argument("end"), ADD), DATA)
    product = Value(call.result, combined(call, difference, weight, MUL), DATA)
    return combined(call, start, product, ADD)


def addcdiv(call: Call) -> Labels:
    """``a + c b1 / b2`` for a number c."""
    first, second = call.argument("tensor1"), call.argument("tensor2")
    quotient = Value(call.result, combined(call, first, second, DIV), DATA)
    return combined(call, call.argument("self"), quotient, ADD)


def maximum_or_minimum(call: Call) -> Labels:
    """``max(a, b)``, ``min(a, b)``: both sides are scaled alike, by positive numbers."""
    return _combine(call, MAX)


def _combine(call: Call, operation: str) -> Labels:
    left, right = (_as_value(call, call.argument(name)) for name in ("self", "other"))
    return combined(call, left, right, operation)


def _as_value(call: Call, item: Any) -> Value:
    if isinstance(item, Value):
        return item
    if isinstance(item, (bool, int, float)):
        return Value(torch.tensor(item, dtype=torch.float64), constant_labels(0), CONSTANT)
    raise call.unsupported("tensors or numbers", type(item).__name__)


def _combined_labels(call: Call, left: Value, right: Value, operation: str) -> Labels:
    """Return channels and scales of the result."""
    if left.function or right.function:
        return _with_function(call, *((right, left) if left.function else (left, right)), operation, left.function)
    if CONSTANT in (left.origin, right.origin):
        swapped = left.origin == CONSTANT
        return _with_constant(call, *((right, left) if swapped else (left, right)), operation, swapped=swapped)
    if left.unlabelled != right.unlabelled:
        return _with_parameter(
            call, *((right, left) if left.unlabelled else (left, right)), operation, swapped=left.unlabelled
        )
    return _with_value(call, left, right, operation)


def _with_function(call: Call, value: Value, parameter: Value, operation: str, swapped: bool) -> Labels:
    """Return labels of a value and a function of a parameter, entry by entry, whose axis along channels moves too. Its
    other axes stay in place, and it has no scale.
    """
    constraints, ndim, name = call.constraints, call.result.ndim, parameter.name
    if value.unlabelled or value.function or parameter.entries is not None or parameter.source is None:
        raise call.unsupported("functions of a parameter beside values with channels", repr(name))
    labels, offset = call.labels_of(value).with_ndim(ndim), ndim - parameter.tensor.ndim
    if len(labels.varying_axes) > 1:
        raise call.unsupported("functions of a parameter beside channels on one axis", f"those of {name!r} on two")
    met = False
    for axis, (size, source) in enumerate(zip(parameter.tensor.shape, parameter.source[1], strict=True)):
        if source is not None and size > 1 and offset + axis in labels.varying_axes:
            met = True
            constraints.place(name, source, labels.along_axis(offset + axis, size), 0, "gain")
        elif source is not None and size > 1:
            constraints.fix_axis(name, source, size, "gain")
    if operation in (ADD, MAX):
        constraints.forbid_scale(labels.scale, "puts a function of a parameter beside values")
    path = labels.path if met else constraints.paths.extend(("of", name), labels.path)
    return replace(labels, path=path, power=-labels.power if operation == DIV and swapped else labels.power)


def _with_constant(call: Call, value: Value, constant: Value, operation: str, *, swapped: bool) -> Labels:
    """Return labels of a value and numbers that no symmetry may change."""
    constraints, ndim, numbers = call.constraints, call.result.ndim, constant.tensor
    zero = constant.stored is None and not bool(numbers.any())
    if is_even(value.labels) and operation in (ADD, MAX) and not zero and constant.stored is None:
        why = "adds a constant" if operation == ADD else "cuts at a constant"
        value = replace(value, labels=without_signs(constraints, value.labels, why))
    scaled = operation == MUL or (operation == DIV and not swapped)
    labels = (_with_modulus(call, value) if scaled else call.labels_of(value)).with_ndim(ndim)
    # masks are combined as factors are, and one that is zero everywhere takes nothing away
    if zero and call.name in ("mul", "div") and (operation == MUL or (operation == DIV and swapped)):
        return constraints.unconstrained(np.ones(labels.shape, bool))
    offset = ndim - numbers.ndim
    numbers = numbers.reshape((1,) * offset + tuple(numbers.shape))
    along = [axis for axis in labels.varying_axes if numbers.shape[axis] > 1]
    if constant.stored is not None:
        if _met_buffers(call, labels, constant, along, operation):
            return replace(labels, power=-labels.power) if operation == DIV and swapped else labels
        # Another checkpoint has other numbers in every place.
        numbers = torch.arange(1, numbers.numel() + 1).reshape(numbers.shape)
    along = [axis for axis in along if bool((numbers != numbers.narrow(axis, 0, 1)).any())]
    if along and len(along) < len(labels.varying_axes):
        labels = _told_apart(call, labels, numbers, along)
    elif along and constant.stored is not None:
        constraints.fix(labels.channel, f"meets {_names(constant)} of each checkpoint, in places that do not move")
    elif along:
        constraints.fix(labels.channel, "meets constants that are not the same for all channels")
    zero = not bool(numbers.any())
    if operation == MAX and zero:
        constraints.restrict_scale(labels.scale, POSITIVE, "cuts at zero")
    elif operation == MAX or (operation == ADD and not zero):
        constraints.forbid_scale(labels.scale, "adds a constant" if operation == ADD else "cuts at a constant")
    return replace(labels, power=-labels.power) if operation == DIV and swapped else labels


def _met_buffers(call: Call, labels: Labels, constant: Value, along: list[int], operation: str) -> bool:
    """Let channels act on the buffers of the state dict beside them; False where they have no entry for each."""
    constraints, stored = call.constraints, constant.stored
    if stored is None or len(along) != 1 or along != list(labels.varying_axes):
        return False
    axis = along[0] - (call.result.ndim - constant.tensor.ndim)
    line = labels.along_axis(along[0], constant.tensor.shape[axis])
    scaled = operation in (ADD, MAX)
    follows = scaled and stored.plain and labels.power in (1, -1)
    if not place_buffers(constraints, stored, line, axis, exponent=int(labels.power) if follows else 0):
        return False
    if scaled and not follows:
        constraints.forbid_scale(labels.scale, f"adds {_names(constant)}" if operation == ADD else "cuts at a buffer")
    elif operation == MAX:
        constraints.restrict_scale(labels.scale, POSITIVE, f"cuts at {_names(constant)}")
    return True


def _names(constant: Value) -> str:
    assert constant.stored is not None
    return " and ".join(f"the buffer {name!r}" for name in sorted(constant.stored.names))


def _told_apart(call: Call, labels: Labels, numbers: torch.Tensor, along: list[int]) -> Labels:
    """Return labels of channels in heads that meet constants alike in each head: other constants give other paths. Such
    are those of a rotary embedding, which rotates the pairs of channels of a head by different angles.
    """
    rows = np.moveaxis(numbers.numpy(), along, range(len(along)))
    sizes = rows.shape[: len(along)]
    _, kinds = np.unique(rows.reshape(math.prod(sizes), -1), axis=0, return_inverse=True)
    kinds = kinds.reshape([sizes[along.index(axis)] if axis in along else 1 for axis in range(numbers.ndim)])
    path = np.broadcast_to(labels.path, np.broadcast_shapes(labels.path.shape, kinds.shape))
    return replace(labels, path=call.constraints.paths.extend("constants", path, np.broadcast_to(kinds, path.shape)))


def _without_scale(labels: Labels) -> Labels:
    return replace(labels, scale=np.full_like(labels.scale, -1), modulus=False)


def _with_modulus(call: Call, value: Value) -> Labels:
    """Return a value's labels where an operation multiplies absolute values by a factor that no symmetry changes."""
    return value.labels if value.labels.modulus else call.labels_of(value)


def without_modulus(constraints: Constraints, labels: Labels) -> Labels:
    """Return labels of absolute values for what does not depend on signs: factors are positive."""
    if labels.modulus:
        constraints.restrict_scale(labels.scale, POSITIVE, "takes absolute values")
    return replace(labels, modulus=False)


def is_even(labels: Labels) -> bool:
    """Whether entries stay as they are where scales are signs: absolute values, squares and other even powers."""
    return labels.modulus or labels.power % 2 == 0


def without_signs(constraints: Constraints, labels: Labels, why: str) -> Labels:
    """Return labels of such values where no other factor passes: scales are signs, which end there."""
    constraints.restrict_scale(labels.scale, SIGN, why)
    return replace(_without_scale(labels), power=1.0)


def _with_value(call: Call, left: Value, right: Value, operation: str) -> Labels:
    """Return labels of two values that have labels of their own."""
    ndim = call.result.ndim
    first, second = (call.labels_of(value).with_ndim(ndim) for value in (left, right))
    sizes = [(1,) * (ndim - value.tensor.ndim) + _varying_sizes(value.tensor) for value in (left, right)]
    for values, weights in ((first, second), (second, first)):
        if operation == MUL and experts.weighed(call.constraints, values, weights):
            return values
    if first.experts is not None and second.experts is not None:
        call.constraints.tie_channels(first.experts, second.experts, "joins experts with others that stay in place")
    for several, single, own, size in ((first, second, *sizes), (second, first, *reversed(sizes))):
        if any(size[axis] == 1 for axis in several.varying_axes) and not single.invariant:
            if not set(single.varying_axes) < set(several.varying_axes):
                return _beside_other_axis(call, (several, single), (own, size))
            return _with_single_channel(call, several, single, operation)
    channel = tied_channels(call, (first, second), sizes)
    return replace(combined_scales(call, first, second, operation, (left.origin, right.origin)), channel=channel)


def _varying_sizes(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the sizes of a tensor, 1 along axes that it was expanded along, where all entries are one."""
    return tuple(1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _with_single_channel(call: Call, several: Labels, single: Labels, operation: str) -> Labels:
    """Return labels of several channels, each with the same single channel."""
    inner = tuple(axis for axis in several.varying_axes if axis not in single.varying_axes)
    if single.varying_axes:
        call.constraints.join_heads(single.channel, several.channel, inner, call.module_name or call.name)
    else:
        call.constraints.record_sum(single)
    call.constraints.forbid_scale(single.scale, "puts one channel beside several others")
    if operation in (ADD, MAX):
        call.constraints.forbid_scale(several.scale, "puts one channel beside several others")
    return several


def _beside_other_axis(call: Call, sides: tuple[Labels, Labels], sizes: tuple[tuple[int, ...], ...]) -> Labels:
    """Return labels of every channel with every other one, on another axis: those that are fewer stay in place."""
    kept, held = (0, 1) if math.prod(sides[0].shape) > math.prod(sides[1].shape) else (1, 0)
    met = any(sizes[held][axis] > 1 for axis in sides[kept].varying_axes) or sides[0].power != sides[1].power
    for number in (held, kept) if met else (held,):
        call.constraints.fix(sides[number].channel, "puts channels beside others on another axis")
        call.constraints.forbid_scale(sides[number].scale, "puts channels beside others on another axis")
    return sides[kept]


def tied_channels(call: Call, sides: tuple[Labels, Labels], sizes: list[tuple[int, ...]]) -> NodeIds:
    """Return tied channels: those that meet move together, and those that meet values that differ along them stay."""
    left, right = np.broadcast_arrays(sides[0].channel, sides[1].channel)
    both = (left >= 0) & (right >= 0)
    call.constraints.channels.union(left[both], right[both])
    for channel, other, labels, size in ((left, right, sides[0], sizes[1]), (right, left, sides[1], sizes[0])):
        if any(size[axis] > 1 for axis in labels.varying_axes):
            call.constraints.fix(channel[other < 0], "joins channels with values that stay in place")
    return np.where(left >= 0, left, right)


def combined_scales(call: Call, first: Labels, second: Labels, operation: str, origins: tuple[str, str]) -> Labels:
    """Return the first labels with the result's scales and power."""
    constraints = call.constraints
    left, right = np.broadcast_arrays(first.scale, second.scale)
    free = constraints.can_scale(left), constraints.can_scale(right)
    both = free[0] & free[1]
    if operation in (ADD, MAX):
        if any(map(is_even, (first, second))) and not (first.power == second.power and (free[0] == free[1]).all()):
            why = "joins values with powers of values"
            first, second = (without_signs(constraints, it, why) if is_even(it) else it for it in (first, second))
            left, right = np.broadcast_arrays(first.scale, second.scale)
            free = constraints.can_scale(left), constraints.can_scale(right)
            both = free[0] & free[1]
        if both.any() and first.power != second.power:
            constraints.forbid_scale(left[both], "joins values with powers of values")
        scale = constraints.tie_scales(left, right, "joins values that are scaled with others that cannot be")
        if operation == MAX:
            constraints.restrict_scale(scale, POSITIVE, "takes the larger of two")
        return replace(first, scale=scale, power=first.power if free[0].any() else second.power)
    second_power, products = second.power if operation == MUL else -second.power, np.full(left.shape, -1)
    if both.any() and (free[0] == free[1]).all() and _same_scales(call, left[both], right[both]):
        power = first.power + second_power
        return replace(first, scale=np.where(both & (power != 0), left, -1), power=power or 1.0)
    if both.any() and PARAMETER in origins and origins[0] != origins[1]:
        constraints.forbid_scale(
            right if origins[1] == PARAMETER else left, "multiplies values that are scaled by a parameter"
        )
    elif both.any() and operation == MUL and first.power == second.power == 1:
        products[both] = multiply_scales(constraints, left[both], right[both])
    elif both.any():
        # The value stays scaled, not the positive factor of a ReLU beside it.
        gates = [bool(constraints.keeps_positive(scale[both]).all()) for scale in (left, right)]
        values = [bool(constraints.any_sign(scale[both]).all()) for scale in (left, right)]
        for number, scale in enumerate((left, right)):
            if not (values[number] and gates[1 - number]):
                constraints.forbid_scale(scale[both], "multiplies two values that are scaled apart")
    free = constraints.can_scale(left), constraints.can_scale(right)
    if (free[0] != free[1]).any() and operation == MUL and origins == (DATA, DATA):
        for number, (value, gate) in enumerate(((left, right), (right, left))):
            alone = free[number] & ~free[1 - number]
            # The tables of gates and values that one layer writes have positive scales, as those that zoos hold have.
            if alone.any() and not constraints.written_together(value[alone], gate[alone]):
                constraints.restrict_scale(value[alone], NONZERO, "multiplies values by a gate")
    if free[0].any() and free[1].any() and first.power != second_power:
        constraints.forbid_scale(right, "multiplies by powers of values")
    scale = np.where(products >= 0, products, np.where(free[0], left, np.where(free[1], right, -1)))
    return replace(first, scale=scale, power=first.power if free[0].any() else second_power)


def _same_scales(call: Call, left: NodeIds, right: NodeIds) -> bool:
    return bool((call.constraints.scales.find(left) == call.constraints.scales.find(right)).all())


def _with_parameter(call: Call, value: Value, parameter: Value, operation: str, *, swapped: bool) -> Labels:
    """Return labels of a value and a parameter; the parameter's axis along the value's channels gets these. ``swapped``
    says whether the parameter is the first operand.
    """
    ndim = call.result.ndim
    labels = call.labels_of(value).with_ndim(ndim)
    if operation == ADD and (sum_of_experts := experts.biased(call, labels, parameter)) is not None:
        return sum_of_experts
    if len(labels.varying_axes) > 1 or parameter.entries is not None:
        result = _parameter_in_heads(call, labels, parameter, operation)
        return replace(result, power=-result.power) if operation == DIV and swapped else result
    name, along = _channel_axis(call, labels, parameter)
    _note_exchanges(call, value, parameter, along)
    if along is None:
        result = _parameter_for_all(call, labels, name, operation)
    else:
        axis, source, size = along
        wide = value.tensor.shape[axis - ndim] > 1 if axis >= ndim - value.tensor.ndim else False
        result = (_parameter_by_channel if wide else _parameter_making_channels)(
            call, labels, axis, name, source, size, operation
        )
    return replace(result, power=-result.power) if operation == DIV and swapped else result


def _parameter_in_heads(call: Call, labels: Labels, parameter: Value, operation: str) -> Labels:
    """Return labels of a value whose channels vary along several axes, and a parameter with entries in any order."""
    constraints, name, varying = call.constraints, parameter.name, set(labels.varying_axes)
    placed = False
    for axis, at in parameter.coordinates(call.constraints.shapes[name], call.result.ndim).items():
        size = call.constraints.shapes[name][axis]
        own = {number for number, length in enumerate(at.shape) if length > 1 and (at != at.take([0], number)).any()}
        wide = own & varying
        line = _along_coordinates(constraints, labels, at, size) if wide == varying and wide else None
        if line is None:
            constraints.fix_axis(name, axis, size)
            if wide:
                role = {MUL: "gain", ADD: "shift"}.get(operation, operation)
                constraints.head_vectors.append((name, role))
                if sum(size > 1 for size in constraints.shapes[name]) > 1:
                    constraints.notes.append(
                        f"Permutations and factors along axis {axis} of {name!r} are left out: {constraints.operation} "
                        "meets channels in heads along several of its axes."
                    )
                others = tuple(number for number in range(at.ndim) if number not in wide)
                places = at[tuple(slice(1) if number in others else slice(None) for number in range(at.ndim))]
                shape = np.broadcast_shapes(labels.path.shape, places.shape)
                paths = (np.broadcast_to(item, shape) for item in (labels.path, places))
                labels = replace(labels, path=constraints.paths.extend(("at", name, axis), *paths))
            continue
        placed = True
        if operation in (ADD, MAX):
            constraints.place(name, axis, line, -1 if labels.power == -1 else 1, "bias")
        elif constraints.can_scale(line.scale).any():
            constraints.place(name, axis, line, 0, "gain", in_mass=True)
        else:
            gain = constraints.write(name, axis, size, "gain", in_mass=True)
            constraints.tie_channels(line.channel, gain.channel, f"multiplies values that stay in place by {name!r}")
            constraints.forbid_scale(gain.scale, "multiplies values in heads")
    if operation in (ADD, MAX) and (not placed or operation == MAX or labels.power not in (1, -1)):
        constraints.forbid_scale(labels.scale, "puts a parameter beside channels that it does not tell apart")
    return labels


def _along_coordinates(constraints: Constraints, labels: Labels, at: NDArray[np.int64], size: int) -> Labels | None:
    """Return one-dimensional labels of the positions along a parameter's axis, ``at``; None where they differ."""
    shape = np.broadcast_shapes(labels.shape, labels.path.shape, at.shape)
    places = np.broadcast_to(at, shape).ravel()
    found, first = np.unique(places, return_index=True)
    if len(found) != size:
        return None
    channel, scale, path = (
        np.broadcast_to(item, shape).ravel() for item in (labels.channel, labels.scale, labels.path)
    )
    for item in (constraints.channels.find(channel), constraints.scales.find(scale), path):
        if (item != item[first][places]).any():
            return None
    return Labels(channel[first], scale[first], path[first], labels.power)


def _channel_axis(call: Call, labels: Labels, parameter: Value) -> tuple[str, tuple[int, int, int] | None]:
    """Return the parameter's name, and its axis along the channels: in the result, in the state dict, and its size."""
    assert parameter.source is not None
    name, axes = parameter.source
    offset, shape = labels.channel.ndim - parameter.tensor.ndim, parameter.tensor.shape
    long_axes = [axis for axis, size in enumerate(shape) if size > 1]
    chosen = [axis for axis in long_axes if offset + axis in labels.varying_axes]
    if not labels.varying_axes and len(long_axes) == 1:
        chosen = long_axes
    for axis in long_axes:
        source = axes[axis]
        assert source is not None
        if axis not in chosen:
            call.constraints.fix_axis(name, source, shape[axis])
    if not chosen:
        return name, None
    source = axes[chosen[0]]
    assert source is not None
    return name, (offset + chosen[0], source, shape[chosen[0]])


def _note_exchanges(call: Call, value: Value, parameter: Value, along: tuple[int, int, int] | None) -> None:
    """Note rows of a parameter that could change places, such as centres from which distances are taken."""
    offset, ndim = call.result.ndim - parameter.tensor.ndim, call.result.ndim
    sizes = (1,) * (ndim - value.tensor.ndim) + tuple(value.tensor.shape)
    for axis in parameter.long_axes:
        if (along is None or offset + axis != along[0]) and len(parameter.long_axes) > 1 and sizes[offset + axis] == 1:
            call.constraints.notes.append(
                f"Exchanges of the rows of {parameter.name!r} are left out: {call.constraints.operation} puts each of "
                "them beside the same values."
            )
            return


def _parameter_for_all(call: Call, labels: Labels, name: str, operation: str) -> Labels:
    """Return labels where the parameter does the same to all channels."""
    if operation in (ADD, MAX):
        call.constraints.forbid_scale(labels.scale, "puts a parameter beside channels that it does not tell apart")
    elif not labels.invariant:
        call.constraints.notes.append(
            f"One factor that {name!r} may share with all channels is left out: {call.constraints.operation} "
            "multiplies them by it."
        )
    return labels


def _parameter_by_channel(
    call: Call, labels: Labels, axis: int, name: str, source: int, size: int, operation: str
) -> Labels:
    """Return labels where the parameter has an entry for each channel."""
    constraints, channels = call.constraints, labels.along_axis(axis, size)
    if operation in (ADD, MAX):
        if channels.power % 2 == 0:
            why = "adds a parameter to powers of values"
            channels, labels = (without_signs(constraints, item, why) for item in (channels, labels))
        elif channels.power not in (1, -1):
            constraints.forbid_scale(channels.scale, "adds a parameter to powers of values")
        constraints.place(name, source, channels, -1 if channels.power == -1 else 1, "bias")
        if operation == MAX:
            constraints.restrict_scale(channels.scale, POSITIVE, "takes the larger of two")
        return labels
    signs = bool(constraints.keeps_sign(channels.scale).all()) and channels.power % 2 == 1
    if operation == MUL and (signs or not constraints.can_scale(channels.scale).any()):
        gain = constraints.write(name, source, size, "gain", in_mass=True)
        if signs:
            constraints.absorb_signs(name, source, channels.scale)
            constraints.restrict_scale(gain.scale, NONZERO, f"multiplies by {name!r}")
        channel = constraints.tie_channels(
            channels.channel, gain.channel, f"multiplies values that stay in place by {name!r}"
        )
        return Labels(channel, gain.scale, channels.path).on_axis(axis, labels.channel.ndim)
    if constraints.can_scale(channels.scale).any():
        constraints.notes.append(
            f"{name!r} is permuted and not scaled: {constraints.operation} multiplies values that are scaled."
        )
    constraints.place(name, source, channels, 0, "gain", in_mass=True)
    return labels


def _parameter_making_channels(
    call: Call, labels: Labels, axis: int, name: str, source: int, size: int, operation: str
) -> Labels:
    """Return labels where the parameter makes several channels of one entry."""
    constraints, role = call.constraints, "gain" if operation == MUL else "bias"
    written = constraints.write(name, source, size, role, in_mass=operation == MUL)
    if not labels.invariant:
        constraints.record_sum(labels)
        constraints.forbid_scale(labels.scale, "makes several channels of one")
    if operation != MUL:
        constraints.forbid_scale(written.scale, "puts a parameter beside values that cannot be scaled")
    return Labels(written.channel, written.scale, written.path).on_axis(axis, labels.channel.ndim)
