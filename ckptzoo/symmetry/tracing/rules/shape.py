"""Rules for operations that move entries and change none: views, slices, permutations, concatenations, padding.

The operation is applied once more to the numbers of the entries, which gives for every entry of the result the entry
that it comes from, whatever the operation and its arguments are.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ckptzoo.symmetry.tracing.constraints import NONZERO, Constraints, Labels, constant_labels
from ckptzoo.symmetry.tracing.rules.call import CONSTANT, DATA, Call, Value, map_values, values_in
from ckptzoo.symmetry.tracing.rules.elementwise import MUL, combined, homogeneous, not_homogeneous, with_new_paths
from ckptzoo.symmetry.tracing.union_find import NodeIds

_ORDERS = frozenset({"t", "numpy_T", "mT", "transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis"})
"""Operations that put axes in another order."""


def rearrange(call: Call) -> Any:
    """Views, reshapes, permutations, slices, indices, chunks, repetitions of one tensor."""
    value = call.input
    if (held := _held_by_indices(call)) is not None:
        return held
    parameter = value.unlabelled or value.function
    if (
        parameter
        and value.entries is None
        and isinstance(call.result, torch.Tensor)
        and (reordered := _reordered_parameter(call, value)) is not None
    ):
        return reordered
    if parameter and (value.function or len(value.long_axes) > 1 or value.entries is not None):
        return _moved_parameter(call, value)
    return _labels_from_entries(call, [value])


def _held_by_indices(call: Call) -> Labels | None:
    """Keep in place what an operation takes by indices of each checkpoint's own, along the axes that they index.
    Returns the labels of the result where these are channels.
    """
    _, *others = call.arguments.values()
    if not any(item.stored is not None for item in values_in(others)):
        return None
    value = call.input
    axes = list(range(value.tensor.ndim))
    if call.name == "index":
        axes = [axis for axis, item in enumerate(call.argument("indices")) if item is not None]
    elif call.name in ("index_select", "repeat_interleave", "gather") and call.argument("dim") is not None:
        axes = [int(call.argument("dim")) % value.tensor.ndim]
    if value.unlabelled and (value.entries is not None or len(value.long_axes) > 1):
        assert value.source is not None
        for axis in range(len(value.source[1])) if value.entries is not None else axes:
            source = value.source[1][axis]
            if source is not None:
                call.constraints.fix_axis(value.name, source, call.constraints.shapes[value.name][source])
        return None
    labels = call.labels_of(value)
    if not set(axes) & set(labels.varying_axes):
        return None
    call.constraints.fix(labels.channel, "takes channels by indices in a buffer of each checkpoint")
    call.constraints.forbid_scale(labels.scale, "takes channels by indices in a buffer of each checkpoint")
    return constant_labels(call.result.ndim, call.constraints.paths.id_of(call.description, "indexed"))


def copy_or_cast(call: Call) -> Any:
    """Copies, and casts from or to integers."""
    if call.input.tensor.is_floating_point() and not call.result.is_floating_point():
        return not_homogeneous(call)
    if call.input.unlabelled or call.input.index_of:
        return replace(call.input, tensor=call.result)
    return homogeneous(call)


def concatenate(call: Call) -> Any:
    """Concatenations and stacks."""
    values = list(values_in(call.argument("tensors")))
    axis = int(call.argument("dim")) % call.result.ndim
    for value in values:
        known = value.origin == CONSTANT and value.stored is None
        if known and value.tensor.ndim == call.result.ndim and value.labels.invariant:
            zero = (value.tensor == 0).movedim(axis, 0)[:, None].flatten(1).all(1).cpu().numpy()
            value.labels = _with_free_zeros(call.constraints, value, zero, axis)
    _label_parameters(call, values, axis)
    _tie_in_line(call, values, axis)
    return _labels_from_entries(call, values)


def glu(call: Call) -> Any:
    """``a * sigmoid(b)`` for the two halves a and b along an axis."""
    value, axis = call.input, int(call.argument("dim")) % call.result.ndim
    half = call.result.shape[axis]
    first, second = (
        Value(item, labels, value.origin)
        for item, labels in zip(value.tensor.split(half, axis), _halves(call, value, half, axis), strict=True)
    )
    call.constraints.forbid_scale(second.labels.scale, "is a gate")
    call.constraints.restrict_scale(first.labels.scale, NONZERO, "multiplies values by a gate")
    return combined(call, first, second, MUL)


def _halves(call: Call, value: Value, half: int, axis: int) -> list[Labels]:
    """Return the labels of the two halves of a value along an axis."""
    split = torch.ops.aten.split.Tensor
    arguments = {"self": value, "split_size": half, "dim": axis}
    halves = replace(call, name="split", arguments=arguments, result=value.tensor.split(half, axis), operator=split)
    return _labels_from_entries(halves, [value])


def unfold(call: Call) -> Labels:
    """``F.unfold``: every channel once for each place in the window."""
    labels, (height, width) = _channels_of_windows(call), call.argument("kernel_size")
    size, places = call.input.tensor.shape[1], np.arange(height * width)
    line = labels.along_axis(1, size)
    path = call.constraints.paths.extend("unfold", np.repeat(line.path, len(places)), np.tile(places, size))
    wide = Labels(np.repeat(line.channel, len(places)), np.repeat(line.scale, len(places)), path, labels.power)
    return wide.on_axis(1, 3)


def fold(call: Call) -> Labels:
    """``F.fold``: sums of windows, whose places are together in each channel."""
    labels, (height, width) = _channels_of_windows(call), call.argument("kernel_size")
    line = labels.along_axis(1, call.input.tensor.shape[1]).map(lambda item: item.reshape(-1, height * width))
    line = call.constraints.tie_along(line, (1,))
    return with_new_paths(call, line.map(lambda item: item.reshape(1, -1, 1, 1)))


def _channels_of_windows(call: Call) -> Labels:
    """Return labels that vary along the second of all axes alone, behind that of examples."""
    labels = call.labels_of(call.input)
    if not set(labels.varying_axes) <= {1} or call.result.ndim + call.input.tensor.ndim != 7:
        raise call.unsupported("channels on the second axis", "others")
    return labels


def scatter(call: Call) -> Any:
    """Values with some entries replaced by those of other values."""
    return _labels_from_entries(call, list(values_in(call.arguments)))


def copy(call: Call) -> Any:
    """Copies of a tensor into another one, which then has the first one's entries."""
    other = call.argument("src")
    return _labels_from_entries(call, [other]) if isinstance(other, Value) else not_homogeneous(call)


def pad(call: Call) -> Labels:
    """``F.pad``: every symmetry leaves zeros alone, so that zeros between channels are new channels."""
    value, pad, number = call.input, list(call.argument("pad")), call.argument("value") or 0
    if call.argument("mode") != "constant":
        return _labels_from_entries(call, [value])
    labels = call.labels_of(value)
    if number and any(pad):
        call.constraints.forbid_scale(labels.scale, "pads with a constant")
    # F.pad counts axes from the last one, with the positions before and after for each.
    for number_from_last in range(len(pad) // 2):
        axis = value.tensor.ndim - 1 - number_from_last
        if axis in labels.varying_axes:
            before, after = pad[2 * number_from_last : 2 * number_from_last + 2]
            labels = _padded_labels(call.constraints, labels, axis, (before, after), zeros=not number)
    return with_new_paths(call, labels)


def _label_parameters(call: Call, values: Sequence[Value], axis: int) -> None:
    """Label parameters of several axes along the axis of the channels that they are joined with."""
    several = [value for value in values if value.unlabelled and len(value.long_axes) > 1]
    along = {other for value in values if not value.unlabelled for other in value.labels.varying_axes}
    if call.name == "stack" or len(along) != 1 or axis in along:
        return
    for value in several:
        value.labels = call.labels_along(value, *along)
        value.source = None


def _tie_in_line(call: Call, values: Sequence[Value], axis: int) -> None:
    """Tie channels that come to be in line, where they are along another axis than the one that is joined."""
    if call.name == "stack":
        return
    labels = [call.labels_of(value) for value in values]
    others = {along for item in labels for along in item.varying_axes}
    if not others or axis in others:
        return
    why = "joins channels with values that stay in place"
    tied = labels[0]
    for item in labels[1:]:
        tied = replace(
            tied,
            channel=call.constraints.tie_channels(tied.channel, item.channel, why),
            scale=call.constraints.tie_scales(tied.scale, item.scale, why),
        )


def _labels_from_entries(call: Call, values: Sequence[Value]) -> Any:
    """Return labels of results whose entries are entries of the values."""
    sources = [call.labels_of(value) for value in values]
    for labels in sources:
        if labels.experts is not None:
            call.constraints.fix(labels.experts, "moves values of experts to other places")
    index_of = frozenset[int]().union(*(value.index_of for value in values))
    if index_of and isinstance(call.result, torch.Tensor) and all(value.labels.invariant for value in values):
        path = call.constraints.paths.id_of(call.description, *(int(labels.path.ravel()[0]) for labels in sources))
        return Value(call.result, constant_labels(call.result.ndim, path), DATA, index_of=index_of)
    results = call.result if isinstance(call.result, (tuple, list)) else [call.result]
    if all(labels.invariant and labels.path.size == 1 for labels in sources):
        paths = [int(labels.path.ravel()[0]) for labels in sources]
        labels = [
            constant_labels(item.ndim, call.constraints.paths.id_of(call.description, number, *paths))
            for number, item in enumerate(results)
        ]
    else:
        numbers: dict[int, torch.Tensor] = {}
        start = 0
        for value in values:
            size = value.tensor.numel()
            # floats, which every operator here moves; whole numbers are exact up to 2^53
            numbers[id(value)] = torch.arange(start, start + size, dtype=torch.float64).reshape(value.tensor.shape)
            start += size
        moved = call.operator(**map_values(call.arguments, lambda value: numbers.get(id(value), value.tensor)))
        moved = moved if isinstance(moved, (tuple, list)) else [moved]
        power = _power(call.constraints, sources)
        flat = [
            _entry_columns(labels, tuple(value.tensor.shape)) for labels, value in zip(sources, values, strict=True)
        ]
        columns = [np.concatenate(column) for column in zip(*flat, strict=True)]
        labels = [_labels_from_columns(call.constraints, columns, item.long().numpy(), power) for item in moved]
    return labels if isinstance(call.result, (tuple, list)) else labels[0]


def _power(constraints: Constraints, sources: Sequence[Labels]) -> float:
    """Return the power of the first value that is scaled; scales of values with other powers are forbidden."""
    scaled = [labels for labels in sources if constraints.can_scale(labels.scale).any()]
    for labels in scaled[1:]:
        if labels.power != scaled[0].power:
            constraints.forbid_scale(labels.scale, "joins values with powers of values")
    return scaled[0].power if scaled else 1.0


def _entry_columns(labels: Labels, shape: tuple[int, ...]) -> list[NDArray[Any]]:
    """Return for every entry its channel, its scale, and a hash of its path and its place among its channel's."""
    beside = [1 if axis in labels.varying_axes else size for axis, size in enumerate(shape)]
    everywhere, place = (np.arange(math.prod(sizes)).reshape(sizes) for sizes in (shape, beside))
    place = np.where(labels.channel < 0, everywhere, place)
    # 2^40 keeps the numbers of places apart from those of paths
    origin = _hashed(np.broadcast_to(labels.path, shape)) + _hashed(np.broadcast_to(place, shape) + 2**40)
    return [np.broadcast_to(item, shape).ravel() for item in (labels.channel, labels.scale, origin)]


def _labels_from_columns(
    constraints: Constraints, columns: list[NDArray[Any]], index: NDArray[np.int64], power: float
) -> Labels:
    """Return labels of the entries with these numbers, of size 1 along axes where no channel or scale varies."""
    channel, scale, origin = (column[index] for column in columns)
    different = (
        constraints.channels.find(channel),
        np.where(constraints.can_scale(scale), constraints.scales.find(scale), -1),
    )
    varying: list[int] = []
    for axis in range(index.ndim):
        if index.shape[axis] > 1 and any((item != item.take([0], axis=axis)).any() for item in different):
            varying.append(axis)
    others = tuple(axis for axis in range(index.ndim) if axis not in varying)
    # odd factors have inverses modulo 2^64, so that no two origins have one product
    weights = _hashed(np.arange(math.prod(index.shape[axis] for axis in others))) | np.uint64(1)
    weights = weights.reshape([index.shape[axis] if axis in others else 1 for axis in range(index.ndim)])
    rows = (origin * weights).sum(axis=others, keepdims=True, dtype=np.uint64).view(np.int64)
    first = tuple(slice(None) if axis in varying else slice(1) for axis in range(index.ndim))
    return Labels(channel[first], scale[first], constraints.paths.extend("moved", rows), power)


def _hashed(numbers: NDArray[Any]) -> NDArray[np.uint64]:
    """Return numbers scattered over 64 bits: the output function of SplitMix64, with its constants."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _padded_labels(constraints: Constraints, labels: Labels, axis: int, pad: tuple[int, int], *, zeros: bool) -> Labels:
    """Return labels with more positions along an axis, or fewer where the numbers are negative."""
    shape = labels.shape
    channel, scale, path = (np.broadcast_to(item, shape) for item in (labels.channel, labels.scale, labels.path))
    before, after = ([size if other != axis else max(0, count) for other, size in enumerate(shape)] for count in pad)
    ends = [constraints.unconstrained(np.full(size, zeros)) for size in (before, after)]
    middle = [slice(None)] * len(shape)
    middle[axis] = slice(max(0, -pad[0]), shape[axis] - max(0, -pad[1]))

    def between(sides: tuple[NodeIds, NodeIds], values: NodeIds) -> NodeIds:
        return np.concatenate([sides[0], values[tuple(middle)], sides[1]], axis=axis)

    first, last = ends
    return Labels(
        between((first.channel, last.channel), channel),
        between((first.scale, last.scale), scale),
        between((first.path, last.path), path),
        labels.power,
    )


def _with_free_zeros(constraints: Constraints, value: Value, zero: NDArray[np.bool_], axis: int) -> Labels:
    """Return labels of constants, in which zeros along an axis are new channels."""
    labels = constraints.unconstrained(zero)
    shape = [-1 if other == axis else 1 for other in range(value.tensor.ndim)]
    path = np.where(zero, 0, value.labels.path.ravel()[0])
    return Labels(labels.channel.reshape(shape), labels.scale.reshape(shape), path.reshape(shape))


def _reordered_parameter(call: Call, value: Value) -> Value | None:
    """Return a parameter with its axes in another order, or axes of size 1 added or removed; None for other changes."""
    assert value.source is not None
    name, axes = value.source
    before, after = tuple(value.tensor.shape), tuple(call.result.shape)
    numbers = torch.arange(value.tensor.numel()).reshape(before)
    if [size for size in before if size > 1] == [size for size in after if size > 1] and torch.equal(
        _repeat(call, value, numbers).ravel(), numbers.ravel()
    ):
        long = iter([axis for axis, size in zip(axes, before, strict=True) if size > 1])
        return replace(
            value, tensor=call.result, source=(name, tuple(next(long) if size > 1 else None for size in after))
        )
    if call.name in _ORDERS:
        # A tensor without data whose axis i has size i + 2: the sizes of the result are the order of the axes.
        order = [
            size - 2
            for size in _repeat(call, value, torch.empty(tuple(range(2, len(before) + 2)), device="meta")).shape
        ]
        return replace(value, tensor=call.result, source=(name, tuple(axes[axis] for axis in order)))
    return None


def _moved_parameter(call: Call, value: Value) -> Any:
    """Return a parameter of several axes with its entries moved, or parts of one; what uses them labels them."""
    entries = value.entries
    if entries is None:
        shape = call.constraints.shapes[value.name]
        entries = np.ravel_multi_index(tuple(np.broadcast_arrays(*_all_coordinates(value, shape))), shape).reshape(
            tuple(value.tensor.shape)
        )
    moved = _repeat(call, value, torch.from_numpy(entries))
    source = (value.name, tuple(range(len(call.constraints.shapes[value.name]))))
    if isinstance(call.result, torch.Tensor):
        return replace(value, tensor=call.result, source=source, entries=moved.numpy())
    parts = zip(call.result, moved, strict=True)
    return [replace(value, tensor=item, source=source, entries=entries.numpy()) for item, entries in parts]


def _all_coordinates(value: Value, shape: tuple[int, ...]) -> list[NDArray[np.int64]]:
    found = value.coordinates(shape, value.tensor.ndim)
    return [found.get(axis, np.zeros((1,) * value.tensor.ndim, np.int64)) for axis in range(len(shape))]


def _repeat(call: Call, value: Value, tensor: torch.Tensor) -> Any:
    """Apply the operation with another tensor in a value's place."""
    return call.operator(**map_values(call.arguments, lambda item: tensor if item is value else item.tensor))
