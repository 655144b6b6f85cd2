"""Rules for operations that take entries by indices, or put some there; indices may depend on the input.

Where they index other axes than the channels', every channel is taken and put alike, whatever the indices are. Channels
that are chosen by indices which are no numbers of the module itself stay in place.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ckptzoo.symmetry.tracing.constraints import POSITIVE, Labels, constant_labels
from ckptzoo.symmetry.tracing.rules.call import CONSTANT, DATA, Call, Value, map_values, values_in
from ckptzoo.symmetry.tracing.rules.elementwise import ADD, MUL, combined
from ckptzoo.symmetry.tracing.rules.shape import rearrange


def index(call: Call) -> Any:
    """``x[...]`` with lists or tensors of indices."""
    indices = call.argument("indices")
    return _taken(call, [axis for axis, _ in _indexed(indices)], list(values_in(indices)))


def index_select(call: Call) -> Any:
    """``index_select``: positions along an axis."""
    return _taken(call, [_axis(call)], [call.argument("index")])


def gather(call: Call) -> Any:
    """``gather``: for each entry the position along an axis."""
    value, places, axis = call.input, call.argument("index"), _axis(call)
    if _known(places):
        return rearrange(call)
    labels = call.labels_of(value)
    if axis in labels.varying_axes:
        return _held(call, [value, places])
    sizes = [size if at != axis else 1 for at, size in enumerate(places.tensor.shape)]
    taken = labels.map(lambda item: item[tuple(slice(size) for size in sizes)])
    return combined(call, Value(call.result, taken, DATA), _alike(call, places, labels), MUL)


def scatter(call: Call) -> Labels:
    """``scatter``, ``scatter_add``, ``scatter_reduce``: entries put at positions along an axis, or added there."""
    value, places, axis = call.input, call.argument("index"), _axis(call)
    how, source = call.argument("reduce"), call.argument("src")
    source = call.argument("value") if source is None else source
    given = [item for item in (value, places, source) if isinstance(item, Value)]
    varying = {at for item in given for at in call.labels_of(item).varying_axes}
    sizes, all_sizes = places.tensor.shape, value.tensor.shape
    if axis in varying or any(sizes[at] != all_sizes[at] for at in varying):
        return _held(call, given)
    labels = call.labels_of(value)
    if isinstance(source, Value):
        labels = combined(call, value, source, ADD)
    elif source:
        call.constraints.forbid_scale(labels.scale, "fills in a number")
    # max(s a, s b) = s max(a, b) for s above 0
    if how in ("amax", "amin"):
        call.constraints.restrict_scale(labels.scale, POSITIVE, "keeps positive factors alone")
    elif how in ("prod", "multiply"):
        call.constraints.forbid_scale(labels.scale, "multiplies values of several places")
    return combined(call, Value(call.result, labels, DATA), _alike(call, places, labels), MUL)


def index_add(call: Call) -> Labels:
    """``index_add``, ``index_copy``, ``index_fill``: slices that are put at positions along an axis, or added there."""
    value, axis = call.input, _axis(call)
    source = call.argument("value") if call.name == "index_fill" else call.argument("source")
    given = [item for item in (value, call.argument("index"), source) if isinstance(item, Value)]
    if any(axis in call.labels_of(item).varying_axes for item in (value, source) if isinstance(item, Value)):
        return _held(call, given)
    if isinstance(source, Value):
        return _after(call, combined(call, value, source, ADD), [call.argument("index")])
    labels = call.labels_of(value)
    if source:
        call.constraints.forbid_scale(labels.scale, "fills in a number")
    return _after(call, labels, [call.argument("index")])


def index_put(call: Call) -> Labels:
    """``x[...] = values``: values for all channels, at places that indices say, or added there."""
    value, values, places = call.input, call.argument("values"), list(values_in(call.argument("indices")))
    axes = {axis for axis, _ in _indexed(call.argument("indices"))}
    first, put = call.labels_of(value), call.labels_of(values)
    # What lies behind the axes that are indexed is in the last axes of the values too.
    behind = value.tensor.ndim - 1 - max(axes)
    lead = values.tensor.ndim - behind
    varying = {at + value.tensor.ndim - values.tensor.ndim for at in put.varying_axes} | set(first.varying_axes)
    if any(at <= max(axes) for at in varying):
        return _held(call, [value, values, *places])
    if lead > 0:
        put = put.map(lambda item: item[(0,) * lead])
    shape = tuple(values.tensor.shape[max(0, lead) :])
    numbers = values.tensor if values.origin == CONSTANT else torch.empty(shape, device="meta")
    if values.origin == CONSTANT and lead > 0:
        numbers = values.tensor.flatten(0, lead - 1)
        numbers = numbers.amax(0) if numbers.numel() and bool((numbers == numbers[:1]).all()) else numbers[0] + 1.0
    return _after(call, combined(call, value, replace(values, tensor=numbers, labels=put), ADD), places)


def _taken(call: Call, axes: Sequence[int], places: Sequence[Value]) -> Any:
    """Return labels of what is taken by indices along these axes."""
    if all(map(_known, places)):
        return rearrange(call)
    value = call.input
    if not all(place.stays for place in places):
        raise call.unsupported("an index that no symmetry changes", "one computed from channels")
    if any(place.tensor.dtype in (torch.bool, torch.uint8) for place in places):
        raise call.unsupported("an index of as many places each time", "a mask that depends on the input")
    if value.unlabelled and (len(value.long_axes) > 1 or value.entries is not None):
        return _rows(call, axes)
    if value.origin == CONSTANT and value.stored is None and not bool(value.tensor.any()):  # zeros, whatever the index
        return Value(call.result, constant_labels(call.result.ndim), CONSTANT)
    if set(axes) & set(call.labels_of(value).varying_axes):
        return _held(call, [value, *places])
    made = rearrange(_at_zero(call))
    if isinstance(made, Value):
        return replace(made, tensor=call.result, labels=_after(call, made.labels, places))
    return _after(call, made, places)


def _at_zero(call: Call) -> Call:
    """The call with indices of 0, of which there are some: labels do not depend on the numbers of indices."""

    def first(value: Value) -> Value:
        if value is call.input:
            return value
        return replace(value, tensor=torch.zeros([max(1, size) for size in value.tensor.shape], dtype=torch.int64))

    arguments = map_values(call.arguments, first)
    result = call.operator(**map_values(arguments, lambda value: value.tensor))
    return replace(call, arguments=arguments, result=result)


def _rows(call: Call, axes: Sequence[int]) -> Labels:
    """Rows of a parameter, each of which writes all channels, as those of an embedding do."""
    value = call.input
    others = [axis for axis in value.long_axes if axis not in axes]
    if value.entries is not None or len(others) != 1 or max(axes) > others[0]:
        raise call.unsupported("rows of a parameter of two axes", repr(value.name))
    assert value.source is not None
    for axis in axes:
        source = value.source[1][axis]
        if source is not None and value.tensor.shape[axis] > 1:
            call.constraints.fix_axis(value.name, source, value.tensor.shape[axis], "out")
    source = value.source[1][others[0]]
    assert source is not None
    written = call.constraints.write(value.name, source, value.tensor.shape[others[0]], "out", in_mass=True)
    last = call.result.ndim - (value.tensor.ndim - others[0])
    return written.on_axis(last, call.result.ndim)


def _held(call: Call, values: Iterable[Value]) -> Any:
    """Labels of a result whose channels are chosen by an index, and stay in place."""
    histories: list[int] = []
    for value in values:
        labels = call.labels_of(value)
        call.constraints.fix(labels.channel, "takes channels by an index that depends on the input")
        call.constraints.forbid_scale(labels.scale, "takes channels by an index that depends on the input")
        if labels.experts is not None:
            call.constraints.fix(labels.experts, "takes experts by an index that depends on the input")
        histories += labels.path.ravel().tolist()
    return constant_labels(call.result.ndim, call.constraints.paths.id_of(call.description, *histories))


def _after(call: Call, labels: Labels, places: Sequence[Value]) -> Labels:
    """The labels with the histories of indices."""
    histories = [tuple(place.labels.path.ravel().tolist()) for place in places]
    return replace(labels, path=call.constraints.paths.extend((call.description, *histories), labels.path))


def _alike(call: Call, places: Value, labels: Labels) -> Value:
    """An index, of size 1 along channels for which it is the same for certain: expanded there, or a constant."""
    same = [
        axis
        for axis in labels.varying_axes
        if places.tensor.stride(axis) == 0
        or (_known(places) and bool((places.tensor == places.tensor.narrow(axis, 0, 1)).all()))
    ]
    tensor = places.tensor
    for axis in same:
        tensor = tensor.narrow(axis, 0, 1)
    return replace(places, tensor=tensor, origin=DATA)


def _known(place: Value) -> bool:
    """Whether an index has the same numbers in every checkpoint and for every input."""
    return place.origin == CONSTANT


def _axis(call: Call) -> int:
    return int(call.argument("dim")) % max(1, call.input.tensor.ndim)


def _indexed(indices: Sequence[Any]) -> list[tuple[int, Value]]:
    """The axes that are indexed, each with its index; a mask has as many as it is of axes."""
    found: list[tuple[int, Value]] = []
    axis = 0
    for item in indices:
        # torch takes uint8 for a mask, too
        count = item.tensor.ndim if isinstance(item, Value) and item.tensor.dtype in (torch.bool, torch.uint8) else 1
        found += [(axis + at, item) for at in range(count) if item is not None]
        axis += count
    return found
