"""Rules for normalisations: the scales before them end there, and their gains bring scales of their own."""

from dataclasses import replace

import numpy as np

from ckptzoo.symmetry.tracing.constraints import NONZERO, POSITIVE, SIGN, ChannelBlocks, Labels
from ckptzoo.symmetry.tracing.rules.call import CONSTANT, DATA, Call, Value
from ckptzoo.symmetry.tracing.rules.elementwise import ADD, MUL, combined, with_new_paths
from ckptzoo.symmetry.tracing.rules.linear import read_labels


def batch_norm(call: Call) -> Labels:
    """BatchNorm: in evaluation mode the running statistics are scaled with what they normalise."""
    constraints, axis = call.constraints, 1
    mean, variance, weight, bias = map(call.stored_tensor, ("running_mean", "running_var", "weight", "bias"))
    read = read_labels(call, call.input, axis)
    if call.argument("training"):
        if mean is not None:
            raise call.unsupported("training=self.training, which is off in evaluation mode", "training=True")
        # the variance is scaled by s^2 and eps is not, so that s = -1 alone changes nothing but the sign
        constraints.restrict_scale(read.scale, SIGN, "normalises by the batch's own variance, beside eps")
    else:
        assert mean is not None and variance is not None
        constraints.place(mean.name, 0, read, 1, "mean")
        # It is variance + eps that is scaled by the square, so that the action on the variance needs eps.
        constraints.place(variance.name, 0, read, 2, "variance", eps=float(call.argument("eps")))
    if read.power != 1:
        constraints.forbid_scale(read.scale, "normalises powers of values")
    return _affine(call, read, (weight, 0), (bias, 0), axis, alone=True)


def layer_norm(call: Call) -> Labels:
    """LayerNorm and RMSNorm over the last axes."""
    if any(isinstance(item := call.argument(key), Value) and item.source is None for key in ("weight", "bias")):
        return _norm_and_values(call)
    shape = call.argument("normalized_shape")
    weight, bias = call.stored_tensor("weight"), call.stored_tensor("bias")
    ndim = call.result.ndim
    first = ndim - len(shape)
    labels = call.labels_along(call.input, ndim - 1)
    if len(labels.varying_axes) > 1:
        return _norm_in_heads(call, labels, first, (weight, bias))
    # a mean of squares does not depend on the sign of one channel; the mean that LayerNorm subtracts does
    signs = call.name == "rms_norm" and bool(labels.varying_axes) and labels.varying_axes[0] >= first
    # In tables that zoos hold, what the gain of another norm writes alone has no signs.
    if signs and not call.constraints.written_by_gain(labels.scale):
        call.constraints.restrict_scale(labels.scale, SIGN, "normalises beside eps")
    else:
        signs = False
        call.constraints.forbid_scale(labels.scale, "normalises beside eps")
    axis = labels.varying_axes[0] if labels.varying_axes else ndim - 1
    read = read_labels(call, call.input, axis)
    if axis >= first and labels.varying_axes:
        call.constraints.record_sum(labels)
        call.constraints.mark_normed(labels.channel, "normalises")
    for value in (weight, bias):
        for number, size in enumerate(shape):
            if value is not None and (first + number != axis or (len(shape) > 1 and not labels.varying_axes)):
                call.constraints.fix_axis(value.name, number, size)
    if axis < first or (len(shape) > 1 and not labels.varying_axes):
        return with_new_paths(call, replace(labels, scale=np.full_like(labels.scale, -1)))
    if signs and weight is None:
        return with_new_paths(call, labels)
    written = _affine(call, read, (weight, axis - first), (bias, axis - first), axis, alone=signs)
    # of queries or keys with one head these gains are as those in heads
    vectors = ((weight, "gain"), (bias, "shift"))
    call.constraints.head_vectors += [(value.name, role) for value, role in vectors if value is not None]
    if signs:
        call.constraints.restrict_scale(written.scale, NONZERO, "multiplies normalised values")
    if call.name == "layer_norm" and weight is not None and bias is None:
        call.constraints.without_shift.update(np.unique(written.path).tolist())
    return written


def _norm_and_values(call: Call) -> Labels:
    """A norm whose gain or shift was computed, such as 1 + w: they are a factor and a term of what it normalises."""
    plain = {key: item for key, item in call.arguments.items() if key not in ("weight", "bias")}
    value = Value(call.result, layer_norm(replace(call, arguments=plain)), DATA)
    for key, operation in (("weight", MUL), ("bias", ADD)):
        if (other := call.argument(key)) is not None:
            value = Value(call.result, combined(call, value, other, operation), DATA)
    return value.labels


def _norm_in_heads(call: Call, labels: Labels, first: int, affine: tuple[Value | None, Value | None]) -> Labels:
    """A norm over the channels of each head, whose gains and shifts, one for all heads, stay in place."""
    constraints = call.constraints
    if call.name == "rms_norm" and affine[1] is None:
        constraints.restrict_scale(labels.scale, SIGN, "normalises beside eps")
    else:
        constraints.forbid_scale(labels.scale, "normalises beside eps")
    inner = tuple(axis for axis in labels.varying_axes if axis >= first)
    if inner and len(inner) < len(labels.varying_axes):
        constraints.record_sum(labels)
        constraints.heads_of(labels, inner, call.module_name or call.name)
    elif inner:
        constraints.record_sum(labels)
    labels = with_new_paths(call, labels)
    for value, role in zip(affine, ("gain", "shift"), strict=True):
        if value is not None:
            for axis, size in enumerate(value.tensor.shape):
                constraints.fix_axis(value.name, axis, size)
                if first + axis in labels.varying_axes:
                    constraints.head_vectors.append((value.name, role))
                    places = np.arange(size).reshape(
                        [-1 if at == first + axis else 1 for at in range(call.result.ndim)]
                    )
                    shape = np.broadcast_shapes(labels.path.shape, places.shape)
                    paths = (np.broadcast_to(item, shape) for item in (labels.path, places))
                    labels = replace(labels, path=constraints.paths.extend(("at", value.name, axis), *paths))
    return labels


def group_norm(call: Call) -> Labels:
    """GroupNorm: blocks of channels are normalised together."""
    return _normalize_blocks(call, int(call.argument("num_groups")))


def instance_norm(call: Call) -> Labels:
    """InstanceNorm without running statistics: every channel is normalised on its own."""
    if not call.argument("use_input_stats"):
        raise call.unsupported("instance normalisation without running statistics", "running statistics")
    return _normalize_blocks(call, call.input.tensor.shape[1])


def _normalize_blocks(call: Call, groups: int) -> Labels:
    constraints, read = call.constraints, read_labels(call, call.input, 1)
    # Alone, a channel keeps its variance when it changes its sign; beside others the mean of all would change.
    alone = groups == len(read.channel) and read.power == 1
    if alone:
        constraints.restrict_scale(read.scale, SIGN, "normalises beside eps")
    else:
        constraints.forbid_scale(read.scale, "normalises beside eps")
    if groups < len(read.channel):
        name = call.module_name or call.name
        if groups > 1:
            constraints.blocks.append(ChannelBlocks(name, (read.channel.reshape(groups, -1),)))
        constraints.record_sum(read)
    return _affine(call, read, (call.stored_tensor("weight"), 0), (call.stored_tensor("bias"), 0), 1, alone=alone)


def _affine(
    call: Call,
    read: Labels,
    weight: tuple[Value | None, int],
    bias: tuple[Value | None, int],
    axis: int,
    *,
    alone: bool = False,
) -> Labels:
    """Return labels of gain and shift of normalised values, whose channels are ``read``. Where every channel is
    normalised ``alone``, it changes its sign with what it is made of, and the gain can take it.
    """
    constraints, ndim, size = call.constraints, call.result.ndim, len(read.channel)
    if alone and weight[0] is None:
        constraints.restrict_scale(read.scale, POSITIVE, "normalises, and has no gain that could take a sign")
    channel, scale = read.channel, np.full(size, -1)
    for (value, position), role in ((weight, "gain"), (bias, "shift")):
        if value is None:
            continue
        if value.origin == CONSTANT:
            raise call.unsupported(f"a parameter as the {role}", "a constant")
        labels = Labels(channel, scale, read.path)
        if role == "gain":
            labels = constraints.write(value.name, position, size, role, in_mass=True)
            channel = constraints.tie_channels(channel, labels.channel, "normalises values that stay in place")
            scale = labels.scale
            if alone:
                constraints.absorb_signs(value.name, position, read.scale)
        else:
            constraints.place(value.name, position, labels, 1, role)
    return with_new_paths(call, Labels(channel, scale, read.path).on_axis(axis, ndim))
