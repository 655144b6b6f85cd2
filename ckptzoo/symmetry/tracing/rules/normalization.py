"""Rules for normalisations: they take scales away before them, and their gains bring scales of their own."""

from dataclasses import replace

import numpy as np

from ckptzoo.symmetry.tracing.constraints import POSITIVE, ChannelBlocks, Labels
from ckptzoo.symmetry.tracing.rules.call import CONSTANT, Call, Value
from ckptzoo.symmetry.tracing.rules.elementwise import stepped
from ckptzoo.symmetry.tracing.rules.linear import gathered


def batch_norm(call: Call) -> Labels:
    """BatchNorm: in evaluation mode the running statistics are scaled with what they normalise."""
    ledger, axis = call.ledger, 1
    mean, variance, weight, bias = (
        call.tensor(at, name) for at, name in ((1, "running_mean"), (2, "running_var"), (3, "weight"), (4, "bias"))
    )
    read = gathered(call, call.input, axis)
    if call.get(5, "training", False):
        if mean is not None:
            raise call.refused("training=self.training, which is off in evaluation mode", "training=True")
        ledger.forbid_scale(read.scale, "normalises by the batch's own variance, beside eps")
    else:
        assert mean is not None and variance is not None
        ledger.only(read.scale, POSITIVE, "divides by a standard deviation")
        if read.power != 1:
            ledger.forbid_scale(read.scale, "normalises powers of values")
        ledger.place(mean.name, 0, read, 1, "mean")
        ledger.place(variance.name, 0, read, 2, "variance", eps=float(call.get(7, "eps", 1e-5)))
    return _affine(call, read, (weight, 0), (bias, 0), axis)


def layer_norm(call: Call) -> Labels:
    """LayerNorm and RMSNorm over the last axes."""
    shape = call.get(1, "normalized_shape")
    weight, bias = call.tensor(2, "weight"), call.tensor(3, "bias") if call.name == "layer_norm" else None
    ndim = call.result.ndim
    first = ndim - len(shape)
    labels = call.labels(call.input)
    call.ledger.forbid_scale(labels.scale, "normalises beside eps")
    axis = labels.varying[0] if labels.varying else ndim - 1
    read = gathered(call, call.input, axis)
    if axis >= first and labels.varying:
        call.ledger.sum_over(labels)
    for value in (weight, bias):
        for at, size in enumerate(shape):
            if value is not None and (first + at != axis or (len(shape) > 1 and not labels.varying)):
                call.ledger.ground(value.name, at, size)
    if axis < first or (len(shape) > 1 and not labels.varying):
        return stepped(call, replace(labels, scale=np.full_like(labels.scale, -1)))
    return _affine(call, read, (weight, axis - first), (bias, axis - first), axis)


def group_norm(call: Call) -> Labels:
    """GroupNorm: blocks of channels are normalised together."""
    return _over_blocks(call, int(call.get(1, "num_groups")), (call.tensor(2, "weight"), call.tensor(3, "bias")))


def instance_norm(call: Call) -> Labels:
    """InstanceNorm without running statistics: every channel is normalised on its own."""
    if not call.get(5, "use_input_stats", True):
        raise call.refused("instance normalisation without running statistics", "running statistics")
    return _over_blocks(call, call.input.tensor.shape[1], (call.tensor(3, "weight"), call.tensor(4, "bias")))


def _over_blocks(call: Call, groups: int, affine: tuple[Value | None, Value | None]) -> Labels:
    ledger, read = call.ledger, gathered(call, call.input, 1)
    ledger.forbid_scale(read.scale, "normalises beside eps")
    if groups < len(read.channel):
        name = call.module or call.name
        if groups > 1:
            ledger.blocks.append(ChannelBlocks(name, (read.channel.reshape(groups, -1),)))
        ledger.sum_over(read)
    return _affine(call, read, (affine[0], 0), (affine[1], 0), 1)


def _affine(
    call: Call, read: Labels, weight: tuple[Value | None, int], bias: tuple[Value | None, int], axis: int
) -> Labels:
    """Gain and shift of normalised values, whose channels are ``read``."""
    ledger, ndim, size = call.ledger, call.result.ndim, len(read.channel)
    channel, scale = read.channel, np.full(size, -1)
    for (value, at), role in ((weight, "gain"), (bias, "shift")):
        if value is None:
            continue
        if value.origin == CONSTANT:
            raise call.refused(f"a parameter as the {role}", "a constant")
        made = Labels(channel, scale, read.path)
        if role == "gain":
            made = ledger.write(value.name, at, size, role, in_mass=True)
            channel = ledger.tie_channels(channel, made.channel, "normalises values that stay in place")
            scale = made.scale
        else:
            ledger.place(value.name, at, made, 1, role)
    made = Labels(channel, scale, read.path)
    return stepped(call, made.across(axis, ndim))
