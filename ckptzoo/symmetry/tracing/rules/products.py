"""Rules for products of two values: sums over an axis of both, batches of matrices, attention.

In an attention the channels of queries and keys meet within each head, and leave one number a head and a pair of
tokens. So channels vary along two axes, heads and channels within a head, and ``Constraints.heads_of`` has one more
channel for each head, which moves with all that are in it.
"""

import math
from dataclasses import replace

import numpy as np
import torch

from ckptzoo.symmetry.tracing.constraints import NONZERO, Labels, constant_labels
from ckptzoo.symmetry.tracing.rules import experts
from ckptzoo.symmetry.tracing.rules.call import DATA, Call, Value
from ckptzoo.symmetry.tracing.rules.elementwise import ADD, MUL, combined, combined_scales, tied_channels


def axes_of_matmul(left: torch.Tensor, right: torch.Tensor, ndim: int) -> tuple[list[int], list[int]]:
    """Return the axes of both factors of ``a @ b``, a result of ``ndim`` axes, as ``contract`` takes them."""
    # Numbers stand for axes: those of the result, and one more for the axis that is summed over.
    rows, columns = int(left.ndim > 1), int(right.ndim > 1)
    batches = ndim - rows - columns
    first = [*range(batches - (left.ndim - 2), batches), batches, ndim] if rows else [ndim]
    second = [*range(batches - (right.ndim - 2), batches), ndim, ndim - 1] if columns else [ndim]
    return first, second


def scaled_dot_product_attention(call: Call) -> Labels:
    """``softmax(q k^T + mask) v``."""
    # torch drops by this argument in evaluation mode, too
    if call.argument("dropout_p"):
        raise call.unsupported("no dropout in evaluation mode", f"dropout_p={call.argument('dropout_p')}")
    query, key, value = (call.argument(name) for name in ("query", "key", "value"))
    if call.argument("enable_gqa"):
        key, value = (_repeated(item, query.tensor.shape[-3]) for item in (key, value))
    ndim = call.result.ndim
    if any(item.tensor.ndim != ndim for item in (query, key, value)):
        raise call.unsupported("queries, keys and values of as many axes", "others")
    axes = list(range(ndim - 2))
    shape = (*call.result.shape[:-1], key.tensor.shape[-2])
    weights = Value(torch.empty(shape, device="meta"), constant_labels(ndim), DATA)
    inner = replace(call, result=weights.tensor)
    weights.labels = contract(inner, query, key, [*axes, ndim - 2, ndim], [*axes, ndim - 1, ndim])
    if isinstance(mask := call.argument("attn_mask"), Value):
        # a mask of truth values chooses scores, one of numbers is added to them
        boolean = mask.tensor.dtype == torch.bool
        weights.labels = combined(inner, weights, mask, MUL if boolean else ADD)
    call.constraints.forbid_scale(weights.labels.scale, "takes a softmax")
    return contract(call, weights, value, [*axes, ndim - 2, ndim], [*axes, ndim, ndim - 1])


def _repeated(value: Value, heads: int) -> Value:
    """Return keys or values with every head as often as queries have heads for it."""
    # as torch with enable_gqa: the heads of queries that share one of keys are side by side
    times = heads // value.tensor.shape[-3]

    def change(item: np.ndarray) -> np.ndarray:
        return np.repeat(item, times, axis=-3) if item.shape[-3] > 1 else item

    return Value(value.tensor.repeat_interleave(times, -3), value.labels.map(change), value.origin)


def contract(call: Call, left: Value, right: Value, first: list[int], second: list[int]) -> Labels:
    """Return labels of sums of products over the axes that the result does not have. ``first`` and ``second`` have for
    each axis of the two values the number of an axis of the result, or a larger one for an axis that is summed over.
    """
    constraints, ndim = call.constraints, call.result.ndim
    total = max(*first, *second, ndim - 1) + 1
    for weight, axes, value, places in ((left, first, right, second), (right, second, left, first)):
        if weight.unlabelled and weight.tensor.ndim == 3 and len(weight.long_axes) > 1 and value.origin == DATA:
            made = experts.product(call, aligned(call, value, places, total), weight, axes, ndim)
            return made.map(lambda item: item[(..., *[0] * (total - ndim))])
    if any(value.unlabelled and len(value.long_axes) > 1 for value in (left, right)):
        raise call.unsupported("a product of two values", "one with a parameter of several axes")
    sides = [aligned(call, value, axes, total) for value, axes in ((left, first), (right, second))]
    sizes = [_sizes(value, axes, total) for value, axes in ((left, first), (right, second))]
    summed = set(range(ndim, total))
    for number, other in ((0, 1), (1, 0)):
        if experts.weighed(constraints, sides[other], sides[number]):
            sides[number] = constant_labels(total, constraints.paths.id_of("sum", len(constraints.sums)))
            if set(sides[other].expert_axes) <= summed:
                sides[other] = replace(sides[other], experts=None)
    for number, (labels, size) in enumerate(zip(sides, reversed(sizes), strict=True)):
        other = sides[1 - number]
        lone = {axis for axis in labels.varying_axes if size[axis] > 1 and axis not in other.varying_axes}
        if lone & summed or (lone and not summed & set(labels.varying_axes) & set(other.varying_axes)):
            constraints.fix(labels.channel, "multiplies channels by values that stay in place")
        if gone := tuple(axis for axis in labels.varying_axes if axis in summed and axis not in other.varying_axes):
            constraints.forbid_scale(labels.scale, "sums over channels")
            sides[number] = constraints.tie_along(labels, gone)
    one, two = sides
    if over := tuple(axis for axis in one.varying_axes if axis in summed):
        labels = _met(call, one, two, over)
    else:
        labels = _beside(call, one, two, sizes, (left.origin, right.origin))
        shape = np.broadcast_shapes(one.path.shape, two.path.shape)
        paths = (np.broadcast_to(item.path, shape) for item in (one, two))
        if labels.path.size > 1 or not (labels.invariant and math.prod(shape) > 1):
            labels = replace(labels, path=constraints.paths.extend(call.description, *paths))
    # Nothing varies along the axes that are summed over.
    return labels.map(lambda item: item[(..., *[0] * (total - ndim))])


def _met(call: Call, one: Labels, two: Labels, over: tuple[int, ...]) -> Labels:
    """Channels that meet and are summed over: they move together, and their scales are inverses."""
    constraints = call.constraints
    for weights, values in ((one, two), (two, one)):
        inside = set(weights.varying_axes) == set(over) < set(values.varying_axes)
        if inside and not constraints.can_scale(weights.scale).any():
            # As in a mixture of experts: values of several makers are added, each channel to those in line with it.
            # What can be scaled are keys that several heads of queries share.
            constraints.fix(weights.channel, "weighs values that are added")
            constraints.forbid_scale(weights.scale, "weighs values that are added")
            return constraints.tie_along(values, over)
    shared = set(one.varying_axes) & set(two.varying_axes)
    one, two = (
        constraints.tie_along(item, tuple(axis for axis in item.varying_axes if axis not in shared))
        for item in (one, two)
    )
    why = "multiplies values and sums over their channels"
    same = np.broadcast_arrays(*(constraints.channels.find(item.channel) for item in (one, two)))
    if (same[0] == same[1]).all():
        constraints.mark_normed(one.channel, "multiplies values by themselves")
    channel = constraints.tie_channels(one.channel, two.channel, why)
    if abs(one.power) == abs(two.power) == 1:
        if one.power == two.power:
            constraints.tie_inverse_scales(one.scale, two.scale, why)
        else:
            constraints.tie_scales(one.scale, two.scale, why)
    else:
        for item in (one, two):
            constraints.forbid_scale(item.scale, "multiplies powers of values")
    shape = np.broadcast_shapes(one.path.shape, two.path.shape)
    path = constraints.paths.extend(why, np.broadcast_to(one.path, shape), np.broadcast_to(two.path, shape))
    none = np.full((1,) * channel.ndim, -1)
    met = Labels(channel, none, path)
    constraints.record_sum(met)
    if set(met.varying_axes) == set(over):
        return constant_labels(channel.ndim, constraints.paths.id_of("sum", len(constraints.sums)))
    return constraints.heads_of(met, over, call.module_name or call.name)


def _beside(call: Call, one: Labels, two: Labels, sizes: list[tuple[int, ...]], origins: tuple[str, str]) -> Labels:
    """Products of values whose channels are not summed over."""
    constraints = call.constraints
    for single, several in ((one, two), (two, one)):
        if single.invariant:
            constraints.restrict_scale(several.scale, NONZERO, "sums values over tokens")
            return several
        inner = tuple(axis for axis in several.varying_axes if axis not in single.varying_axes)
        if inner and set(single.varying_axes) < set(several.varying_axes):
            constraints.join_heads(single.channel, several.channel, inner, call.module_name or call.name)
            constraints.forbid_scale(single.scale, "multiplies channels in heads")
            constraints.restrict_scale(several.scale, NONZERO, "sums values over tokens")
            return several
    if set(one.varying_axes) != set(two.varying_axes):
        return _pinned(call, one, two)
    channel = tied_channels(call, (one, two), sizes)
    return replace(combined_scales(call, one, two, MUL, origins), channel=channel)


def _pinned(call: Call, one: Labels, two: Labels) -> Labels:
    """Products of every channel with every other one, as in an attention over channels: all stay as they are."""
    for labels in (one, two):
        call.constraints.fix(labels.channel, "multiplies channels by other channels")
        call.constraints.forbid_scale(labels.scale, "multiplies channels by other channels")
    return constant_labels(one.channel.ndim)


def aligned(call: Call, value: Value, axes: list[int], total: int) -> Labels:
    """Return a value's labels with its axes at these places among ``total`` ones."""
    order = np.argsort(axes)

    def change(item: np.ndarray) -> np.ndarray:
        shape = [1] * total
        for axis, size in zip(axes, item.shape, strict=True):
            shape[axis] = size
        return item.transpose(order).reshape(shape)

    return call.labels_of(value).map(change)


def _sizes(value: Value, axes: list[int], total: int) -> tuple[int, ...]:
    sizes = [1] * total
    for axis, size in zip(axes, value.tensor.shape, strict=True):
        sizes[axis] = size
    return tuple(sizes)
