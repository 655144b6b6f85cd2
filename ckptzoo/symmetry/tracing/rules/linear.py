"""Rules for linear layers and convolutions: they read channels along one axis and write others."""

from dataclasses import replace

import numpy as np

from ckptzoo.symmetry.tracing.constraints import ChannelBlocks, Labels
from ckptzoo.symmetry.tracing.rules.call import CONSTANT, Call, Value
from ckptzoo.symmetry.tracing.rules.elementwise import stepped


def linear(call: Call) -> Labels:
    """``x W^T + b``."""
    weight, bias = call.tensor(1, "weight"), call.tensor(2, "bias")
    assert weight is not None
    return _linear(call, call.input, weight, (1, 0), bias)


def matmul(call: Call) -> Labels:
    """``x @ W`` for a parameter W."""
    weight = call.get(1, "other")
    if not isinstance(weight, Value) or not weight.bare or weight.tensor.ndim != 2:
        raise call.refused("a product with a parameter of two axes on the right", "another product")
    return _linear(call, call.input, weight, (0, 1), None)


def convolution(call: Call) -> Labels:
    """``conv1d``, ``conv2d``, ``conv3d``, in groups or not."""
    return _convolution(call, 6, (1, 0))


def transposed_convolution(call: Call) -> Labels:
    """``conv_transpose1d``, ``conv_transpose2d``, ``conv_transpose3d``, in groups or not."""
    return _convolution(call, 6, (0, 1))


def gathered(call: Call, value: Value, axis: int) -> Labels:
    """The labels along the axis that is read, one-dimensional; those that vary along others too are tied there."""
    ledger, size = call.ledger, value.tensor.shape[axis]
    labels = _of_constant(call, value, axis) if value.origin == CONSTANT else call.labels(value)
    axis %= value.tensor.ndim
    labels = ledger.together(labels, tuple(other for other in labels.varying if other != axis))
    return labels.line(axis, size)


def _linear(call: Call, value: Value, weight: Value, sides: tuple[int, int], bias: Value | None) -> Labels:
    labels, ndim = call.labels(value), value.tensor.ndim
    if labels.varying and ndim - 1 not in labels.varying:
        return _across(call, labels, weight, bias)
    read = gathered(call, value, -1)
    made = _weight(call, weight, sides, read, 1)
    _bias(call, bias, made)
    return made.across(ndim - 1, ndim)


def _across(call: Call, labels: Labels, weight: Value, bias: Value | None) -> Labels:
    """A layer that mixes other axes than the channels', for every channel alike; its own channels stay in place."""
    ledger = call.ledger
    for value in (weight, bias):
        if value is not None:
            name, axes = _named(call, value)
            for axis, size in zip(axes, value.tensor.shape, strict=True):
                ledger.ground(name, axis, size)
    if bias is not None:
        ledger.forbid_scale(labels.scale, "adds a bias that does not tell the channels apart")
    ledger.notes.append(
        f"{_named(call, weight)[0]!r} stays in place: {ledger.here} mixes another axis than the channels'."
    )
    return stepped(call, labels)


def _convolution(call: Call, at: int, sides: tuple[int, int]) -> Labels:
    weight, bias = call.tensor(1, "weight"), call.tensor(2, "bias")
    assert weight is not None
    groups = call.get(at, "groups", 1)
    value, ndim = call.input, call.input.tensor.ndim
    axis = ndim - (weight.tensor.ndim - 1)
    made = _weight(call, weight, sides, gathered(call, value, axis), int(groups))
    _bias(call, bias, made)
    return made.across(axis, ndim)


def _weight(call: Call, weight: Value, sides: tuple[int, int], read: Labels, groups: int) -> Labels:
    """What a weight writes, one-dimensional; ``sides`` are its axes that read and write."""
    ledger = call.ledger
    if weight.origin == CONSTANT:
        ledger.fix(read.channel, "multiplies by a matrix of constants")
        ledger.forbid_scale(read.scale, "multiplies by a matrix of constants")
        none = np.full(weight.tensor.shape[sides[1]], -1)
        return Labels(none, none, ledger.paths.step(call.history, weight.labels.path.ravel()))
    name, axes = _named(call, weight)
    reads, writes = (axes[side] for side in sides)
    if read.power not in (1, -1):
        ledger.forbid_scale(read.scale, "reads powers of values")
    if groups > 1 and 0 < (read.channel < 0).sum() < len(read.channel):
        held = ledger.held(len(read.channel), "reads values that stay in place")
        read = replace(read, channel=np.where(read.channel < 0, held, read.channel))
    exponent = 1 if read.power == -1 else -1
    inside = (groups, 1) if reads > writes else (1, groups)
    ledger.place(name, reads, read, exponent, "in", in_mass=True, blocks=inside[0])
    size = weight.tensor.shape[sides[1]] * inside[1]
    made = ledger.write(name, writes, size, "out", in_mass=True, blocks=inside[1])
    for axis, length in enumerate(weight.tensor.shape):
        if axis not in sides and length > 1:
            ledger.ground(name, axes[axis], length)
    if groups > 1:
        members = (read.channel.reshape(groups, -1), made.channel.reshape(groups, -1))
        ledger.blocks.append(ChannelBlocks(name.rpartition(".")[0] or name, members, ((name, reads), (name, writes))))
    return made


def _bias(call: Call, bias: Value | None, made: Labels) -> None:
    if bias is not None:
        name, axes = _named(call, bias)
        call.ledger.place(name, axes[0], made, 1, "bias")


def _named(call: Call, value: Value) -> tuple[str, tuple[int, ...]]:
    """The tensor in the state dict and its axes."""
    assert value.source is not None
    name, axes = value.source
    known = tuple(axis for axis in axes if axis is not None)
    if len(known) < len(axes):
        raise call.refused(f"{name!r} with its own axes", "axes that were added")
    return name, known


def _of_constant(call: Call, value: Value, axis: int) -> Labels:
    """Zeros may be taken for anything: channels of their own."""
    numbers = value.tensor.movedim(axis, 0).flatten(1) if value.tensor.ndim > 1 else value.tensor[:, None]
    zero = (numbers == 0).all(1).cpu().numpy()
    return call.ledger.fresh(zero).across(axis % value.tensor.ndim, value.tensor.ndim)
