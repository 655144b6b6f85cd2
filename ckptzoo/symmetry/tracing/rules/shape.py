"""Rules for what moves entries and changes none: views, slices, permutations, concatenations, padding.

The operation is done once more on the numbers of the entries, which tells for every entry of the result where it
comes from, whatever the operation and its arguments are.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ckptzoo.symmetry.tracing.constraints import Constraints, Labels, constant_labels
from ckptzoo.symmetry.tracing.rules.call import CONSTANT, Call, Value, mapped, tensors
from ckptzoo.symmetry.tracing.rules.elementwise import linear, stepped
from ckptzoo.symmetry.tracing.union_find import NodeIds

_ORDERS = frozenset({"t", "T", "mT", "transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis"})
"""What puts axes in another order."""


def moved(call: Call) -> Any:
    """Views, reshapes, permutations, slices, indices, chunks, repetitions of one tensor."""
    value = call.input
    if value.bare and isinstance(call.result, torch.Tensor) and (turned := _turned(call, value)) is not None:
        return turned
    return _gathered(call, [value])


def kept(call: Call) -> Any:
    """Copies and casts."""
    return replace(call.input, tensor=call.result) if call.input.bare else linear(call)


def indexed(call: Call) -> Any:
    """``x[...]`` of a tensor."""
    if any(item.origin != CONSTANT for item in tensors(call.args[1])):
        raise call.refused("an index of numbers and slices", "an index that depends on the input")
    return moved(call)


def joined(call: Call) -> Any:
    """Concatenations and stacks."""
    values = list(tensors(call.args[:1])) or list(tensors(call.kwargs.get("tensors", ())))
    axis = int(call.get(1, "dim", call.kwargs.get("axis", 0))) % call.result.ndim
    for value in values:
        if value.origin == CONSTANT and value.tensor.ndim == call.result.ndim and value.labels.free:
            zero = (value.tensor == 0).movedim(axis, 0).flatten(1).all(1).cpu().numpy()
            value.labels = _replaced(call.ledger, value, zero, axis)
    _alike(call, values, axis)
    return _gathered(call, values)


def padded(call: Call) -> Labels:
    """``F.pad``: zeros may be taken for anything, so zeros between channels are channels that nothing is known of."""
    value, pad = call.input, list(call.get(1, "pad"))
    mode, number = call.get(2, "mode", "constant"), call.get(3, "value", 0) or 0
    if mode != "constant":
        return _gathered(call, [value])
    labels = call.labels(value)
    if number and any(pad):
        call.ledger.forbid_scale(labels.scale, "pads with a constant")
    befores, ndim = labels, value.tensor.ndim
    for at in range(len(pad) // 2):
        axis = ndim - 1 - at
        if axis in befores.varying:
            befores = _extended(call.ledger, befores, axis, (pad[2 * at], pad[2 * at + 1]), zeros=not number)
    return stepped(call, befores)


def _alike(call: Call, values: Sequence[Value], axis: int) -> None:
    """Where channels lie along another axis than the one that is joined, those that come to lie in line are tied."""
    if call.name == "stack":
        return
    labels = [call.labels(value) for value in values]
    others = {along for item in labels for along in item.varying}
    if not others or axis in others:
        return
    why = "joins channels with values that stay in place"
    first = labels[0]
    for item in labels[1:]:
        first = replace(
            first,
            channel=call.ledger.tie_channels(first.channel, item.channel, why),
            scale=call.ledger.tie_scales(first.scale, item.scale, why),
        )


def _gathered(call: Call, values: Sequence[Value]) -> Any:
    """Labels of results whose entries are entries of the values."""
    sources = [call.labels(value) for value in values]
    results = call.result if isinstance(call.result, (tuple, list)) else [call.result]
    if all(labels.free and labels.path.size == 1 for labels in sources):
        befores = [int(labels.path.ravel()[0]) for labels in sources]
        made = [
            constant_labels(item.ndim, call.ledger.paths.of(call.history, at, *befores))
            for at, item in enumerate(results)
        ]
    else:
        numbers: dict[int, torch.Tensor] = {}
        start = 0
        for value in values:
            size = value.tensor.numel()
            numbers[id(value)] = torch.arange(start, start + size, dtype=torch.float64).reshape(value.tensor.shape)
            start += size
        args = mapped((call.args, call.kwargs), lambda value: numbers.get(id(value), value.tensor))
        found = call.apply(*args[0], **args[1])
        found = found if isinstance(found, (tuple, list)) else [found]
        power = _power(call.ledger, sources)
        flat = [_flattened(labels, tuple(value.tensor.shape)) for labels, value in zip(sources, values, strict=True)]
        columns = [np.concatenate(column) for column in zip(*flat, strict=True)]
        made = [_compressed(call.ledger, columns, item.long().numpy(), power) for item in found]
    return made if isinstance(call.result, (tuple, list)) else made[0]


def _power(ledger: Constraints, sources: Sequence[Labels]) -> float:
    """The power of all that is scaled; scales of other powers do not pass."""
    scaled = [labels for labels in sources if ledger.alive(labels.scale).any()]
    for labels in scaled[1:]:
        if labels.power != scaled[0].power:
            ledger.forbid_scale(labels.scale, "joins values with powers of values")
    return scaled[0].power if scaled else 1.0


def _flattened(labels: Labels, shape: tuple[int, ...]) -> list[NDArray[Any]]:
    """Channel, scale, and a number for the path and the place beside other channels' entries, of every entry."""
    beside = [1 if axis in labels.varying else size for axis, size in enumerate(shape)]
    everywhere, place = (np.arange(math.prod(sizes)).reshape(sizes) for sizes in (shape, beside))
    place = np.where(labels.channel < 0, everywhere, place)
    origin = _mixed(np.broadcast_to(labels.path, shape)) + _mixed(np.broadcast_to(place, shape) + 2**40)
    return [np.broadcast_to(item, shape).ravel() for item in (labels.channel, labels.scale, origin)]


def _compressed(ledger: Constraints, columns: list[NDArray[Any]], index: NDArray[np.int64], power: float) -> Labels:
    """Labels of entries with these numbers, of size 1 along axes where no channel or scale varies."""
    channel, scale, origin = (column[index] for column in columns)
    different = ledger.channels.find(channel), np.where(ledger.alive(scale), ledger.scales.find(scale), -1)
    varying: list[int] = []
    for axis in range(index.ndim):
        if index.shape[axis] > 1 and any((item != item.take([0], axis=axis)).any() for item in different):
            varying.append(axis)
    others = tuple(axis for axis in range(index.ndim) if axis not in varying)
    weights = _mixed(np.arange(math.prod(index.shape[axis] for axis in others))) | np.uint64(1)
    weights = weights.reshape([index.shape[axis] if axis in others else 1 for axis in range(index.ndim)])
    rows = (origin * weights).sum(axis=others, keepdims=True, dtype=np.uint64).view(np.int64)
    first = tuple(slice(None) if axis in varying else slice(1) for axis in range(index.ndim))
    return Labels(channel[first], scale[first], ledger.paths.step("moved", rows), power)


def _mixed(numbers: NDArray[Any]) -> NDArray[np.uint64]:
    """Numbers scattered over 64 bits (splitmix64)."""
    made = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        made = (made ^ (made >> np.uint64(shift))) * np.uint64(factor)
    return made ^ (made >> np.uint64(31))


def _extended(ledger: Constraints, labels: Labels, axis: int, pad: tuple[int, int], *, zeros: bool) -> Labels:
    """Labels along an axis that gets more positions, or fewer where the numbers are negative."""
    shape = labels.shape
    channel, scale, path = (np.broadcast_to(item, shape) for item in (labels.channel, labels.scale, labels.path))
    before, after = ([size if at != axis else max(0, count) for at, size in enumerate(shape)] for count in pad)
    ends = [ledger.fresh(np.full(size, zeros)) for size in (before, after)]
    kept = [slice(None)] * len(shape)
    kept[axis] = slice(max(0, -pad[0]), shape[axis] - max(0, -pad[1]))

    def around(middle: NodeIds, sides: tuple[NodeIds, NodeIds]) -> NodeIds:
        return np.concatenate([sides[0], middle[tuple(kept)], sides[1]], axis=axis)

    first, last = ends
    return Labels(
        around(channel, (first.channel, last.channel)),
        around(scale, (first.scale, last.scale)),
        around(path, (first.path, last.path)),
        labels.power,
    )


def _replaced(ledger: Constraints, value: Value, zero: NDArray[np.bool_], axis: int) -> Labels:
    """Labels of constants, zeros along an axis being taken for anything."""
    made = ledger.fresh(zero)
    shape = [-1 if at == axis else 1 for at in range(value.tensor.ndim)]
    path = np.where(zero, 0, value.labels.path.ravel()[0])
    return Labels(made.channel.reshape(shape), made.scale.reshape(shape), path.reshape(shape))


def _turned(call: Call, value: Value) -> Value | None:
    """A parameter with its axes in another order, or with axes of size 1 more or less; None where it is more."""
    assert value.source is not None
    name, axes = value.source
    before, after = tuple(value.tensor.shape), tuple(call.result.shape)
    numbers = torch.arange(value.tensor.numel()).reshape(before)
    if [size for size in before if size > 1] == [size for size in after if size > 1] and torch.equal(
        _again(call, value, numbers).ravel(), numbers.ravel()
    ):
        long = iter([axis for axis, size in zip(axes, before, strict=True) if size > 1])
        return replace(
            value, tensor=call.result, source=(name, tuple(next(long) if size > 1 else None for size in after))
        )
    if call.name in _ORDERS:
        order = [
            size - 2 for size in _again(call, value, torch.empty(tuple(range(2, len(before) + 2)), device="meta")).shape
        ]
        return replace(value, tensor=call.result, source=(name, tuple(axes[at] for at in order)))
    return None


def _again(call: Call, value: Value, tensor: torch.Tensor) -> Any:
    """The operation with another tensor in a value's place."""
    args, kwargs = mapped((call.args, call.kwargs), lambda item: tensor if item is value else item.tensor)
    return call.apply(*args, **kwargs)
