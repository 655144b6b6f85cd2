"""Rules for experts that are stacked in parameters of three axes: one row of matrices for each expert.

The units of an expert are exchanged among each other, and whole experts with their rows of the gate. So the units vary
along two axes, experts and units within one, as channels in the heads of an attention do; ``Constraints.heads_of`` has
one channel for each expert, which ``Labels.experts`` names wherever values differ between experts.
"""

from dataclasses import replace

import numpy as np

from ckptzoo.symmetry.tracing.constraints import Constraints, Labels
from ckptzoo.symmetry.tracing.rules.call import Call, Value


def product(call: Call, value: Labels, weight: Value, axes: list[int], ndim: int) -> Labels:
    """Return the labels of a product with one matrix for each expert.

    ``weight`` has experts along its first axis in the state dict, and ``value`` as many axes as ``axes`` has numbers.
    For each axis of the parameter ``axes`` has the number of an axis of the result, of which there are ``ndim``; it is
    ``ndim`` or more where the axis is summed.
    """
    constraints, source = call.constraints, weight.source
    if source is None or weight.entries is not None or sorted(map(str, source[1])) != ["0", "1", "2"]:
        raise call.unsupported("a parameter of three axes, experts along the first", repr(weight.name))
    name, number = weight.name, dict(zip(source[1], axes, strict=True))
    size = dict(zip(source[1], weight.tensor.shape, strict=True))
    summed = [axis for axis in (1, 2) if number[axis] >= ndim]
    if number[0] >= ndim or len(summed) != 1:
        raise call.unsupported("a sum over one axis of each expert's matrix", "another product")
    reads, writes = summed[0], 3 - summed[0]
    along, wide = number[reads], number[writes]
    total = value.channel.ndim
    if wide in value.varying_axes or (value.experts is not None and value.experts.shape[number[0]] == 1):
        raise call.unsupported("values with channels on other axes", "channels on the axis that is written")
    if value.power not in (1, -1):
        constraints.forbid_scale(value.scale, "reads powers of values")
    exponent = 1 if value.power == -1 else -1
    # the first matrix of each expert makes units of the same values; the next one reads the units of its expert
    if value.experts is None:
        others = tuple(axis for axis in value.varying_axes if axis != along)
        read = constraints.tie_along(value, others).along_axis(along, size[reads])
        constraints.place(name, reads, read, exponent, "in", in_mass=True)
        units = constraints.write(name, writes, size[0] * size[writes], "out", in_mass=True, blocks=size[0])
        shape = [1] * total
        shape[number[0]], shape[wide] = size[0], size[writes]
        path = constraints.paths.extend("experts", units.path[:1])
        if number[0] < wide:
            channel, scale = units.channel.reshape(shape), units.scale.reshape(shape)
        else:
            rows = size[0], size[writes]
            channel, scale = (item.reshape(rows).T.reshape(shape) for item in (units.channel, units.scale))
        grid = Labels(channel, scale, path.reshape([1] * total))
        experts = constraints.heads_of(grid, (wide,), call.module_name or call.name).channel
        labels, role = replace(grid, experts=experts), "out"
    else:
        constraints.place(name, reads, _flat(value, number[0], along), exponent, "in", in_mass=True, blocks=size[0])
        written = constraints.write(name, writes, size[writes], "out", in_mass=True)
        labels, role = replace(written.on_axis(wide, total), experts=value.experts), "in"
    place_experts(constraints, name, labels, role)
    return labels


def place_experts(constraints: Constraints, name: str, labels: Labels, role: str) -> None:
    """Put the experts on the first axis of a parameter."""
    assert labels.experts is not None
    experts = labels.experts.ravel()
    none = np.full(len(experts), -1)
    path = np.array([constraints.paths.id_of("expert")])
    constraints.place(name, 0, Labels(experts, none, path), 0, role, in_mass=role != "bias")


def biased(call: Call, labels: Labels, parameter: Value) -> Labels | None:
    """Return the labels of a sum with a parameter of two axes, experts and channels; None where it is none."""
    if labels.experts is None or parameter.source is None or parameter.entries is not None:
        return None
    offset = labels.channel.ndim - parameter.tensor.ndim
    number = {source: offset + axis for axis, source in enumerate(parameter.source[1]) if source is not None}
    size = (
        [labels.experts.shape[number[0]], parameter.tensor.shape[number[1] - offset]] if set(number) == {0, 1} else []
    )
    if not size or size[0] == 1 or set(labels.varying_axes) - set(number.values()):
        return None
    if labels.power != 1:
        call.constraints.forbid_scale(labels.scale, "adds a parameter to powers of values")
    place_experts(call.constraints, parameter.name, labels, "bias")
    if number[0] in labels.varying_axes:
        units = _flat(labels, number[0], number[1])
        call.constraints.place(parameter.name, 1, units, 1, "bias", blocks=size[0])
    else:
        call.constraints.place(parameter.name, 1, labels.along_axis(number[1], size[1]), 1, "bias")
    return labels


def weighed(constraints: Constraints, values: Labels, weights: Labels) -> bool:
    """Tie weights with one channel for each expert to the experts of values; False where they are others."""
    if values.experts is None or weights.experts is not None:
        return False
    if weights.varying_axes != values.expert_axes:
        return False
    constraints.tie_channels(weights.channel, values.experts, "weighs experts by values that stay in place")
    constraints.forbid_scale(weights.scale, "weighs experts")
    constraints.record_sum(weights)
    return True


def _flat(labels: Labels, experts: int, units: int) -> Labels:
    """Return one-dimensional labels of all units, expert by expert."""

    def flat(item: np.ndarray) -> np.ndarray:
        wide = np.broadcast_to(item, np.broadcast_shapes(labels.shape, labels.path.shape))
        return np.moveaxis(wide, (experts, units), (0, 1)).reshape(-1)

    return Labels(flat(labels.channel), flat(labels.scale), flat(labels.path), labels.power)
