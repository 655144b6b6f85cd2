"""Rules for linear layers, products with a parameter and convolutions: they read channels and write others."""

import math
import string
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ckptzoo.symmetry.tracing.constraints import NONZERO, POSITIVE, ChannelBlocks, Labels, constant_labels
from ckptzoo.symmetry.tracing.rules import products
from ckptzoo.symmetry.tracing.rules.buffers import place_buffers
from ckptzoo.symmetry.tracing.rules.call import CONSTANT, DATA, Call, Value, values_in
from ckptzoo.symmetry.tracing.rules.elementwise import with_new_paths, without_modulus, without_signs
from ckptzoo.symmetry.tracing.rules.reduction import sum_or_mean
from ckptzoo.symmetry.tracing.rules.shape import rearrange


def linear(call: Call) -> Labels:
    """``x W^T + b``."""
    weight, bias = call.weight("weight"), call.argument("bias")
    assert weight is not None
    # torch stores (outputs, inputs)
    return _product(call, call.input, weight, (1, 0), bias)


def matmul(call: Call) -> Labels:
    """``a @ b``, ``bmm``, ``mv``, ``dot``: of values, or of a value and a parameter on either side."""
    left, right = values_in(call.arguments)
    return contraction(call, left, right, *products.axes_of_matmul(left.tensor, right.tensor, call.result.ndim))


def einsum(call: Call) -> Any:
    """``einsum``, two tensors after the other."""
    values = list(values_in(call.argument("tensors")))
    letters, output = _letters(call, values)
    for number, value in enumerate(values):
        others = set(output).union(*(item for at, item in enumerate(letters) if at != number))
        values[number], letters[number] = _summed_alone(call, value, letters[number], others)
    value, axes = values[0], letters[0]
    for number in range(1, len(values)):
        later = set(output).union(*letters[number + 1 :])
        both = "".join(item for item in dict.fromkeys(axes + letters[number]) if item in later)
        made = output if number == len(values) - 1 else both
        tensor = torch.einsum(f"{axes},{letters[number]}->{made}", value.tensor, values[number].tensor)
        order = [*made, *(item for item in dict.fromkeys(axes + letters[number]) if item not in made)]
        first, second = ([order.index(item) for item in several] for several in (axes, letters[number]))
        labels = contraction(replace(call, result=tensor), value, values[number], first, second)
        value, axes = Value(tensor, labels, DATA), made
    if axes == output:
        return value if len(values) == 1 else value.labels
    order = [axes.index(item) for item in output]
    arguments = {"self": value, "dims": order}
    return rearrange(replace(call, name="permute", arguments=arguments, operator=torch.ops.aten.permute.default))


def _letters(call: Call, values: Sequence[Value]) -> tuple[list[str], str]:
    """Return a letter for each axis of the tensors of an einsum, and those of its result; an ellipsis gets capitals."""
    inputs, arrow, output = str(call.argument("equation")).replace(" ", "").partition("->")
    letters = inputs.split(",")
    # without an arrow: the letters that occur once, in their order, behind the ellipsis (torch.einsum)
    if not arrow:
        output = "..." * ("." in inputs) + "".join(
            sorted(item for item in inputs if inputs.count(item) == 1 and item.isalpha())
        )
    if any(len(set(item) - {"."}) < len(item.replace(".", "")) for item in letters):
        raise call.unsupported("an einsum with each letter once a tensor", repr(call.argument("equation")))
    free = [item for item in string.ascii_letters if item not in inputs]
    spans = [value.tensor.ndim - len(item.replace(".", "")) for value, item in zip(values, letters, strict=True)]
    widest = max(span for span, item in zip(spans, letters, strict=True) if "." in item) if "." in inputs else 0
    filled = "".join(free[:widest])
    letters = [item.replace("...", filled[widest - span :]) for span, item in zip(spans, letters, strict=True)]
    return letters, output.replace("...", filled)


def _summed_alone(call: Call, value: Value, letters: str, others: set[str]) -> tuple[Value, str]:
    """Sum a tensor of an einsum over the axes that it alone has and that the result does not."""
    axes = [axis for axis, item in enumerate(letters) if item not in others]
    if not axes:
        return value, letters
    arguments, tensor = {"self": value, "dim": axes, "keepdim": False}, value.tensor.sum(axes)
    over = replace(call, name="sum", arguments=arguments, result=tensor, operator=torch.ops.aten.sum.dim_IntList)
    return Value(tensor, sum_or_mean(over), value.origin), "".join(item for item in letters if item in others)


def convolution(call: Call) -> Labels:
    """``conv1d``, ``conv2d``, ``conv3d``, in groups or not."""
    # torch stores (outputs, inputs of a group, ...)
    return _convolution(call, (1, 0))


def transposed_convolution(call: Call) -> Labels:
    """``conv_transpose1d``, ``conv_transpose2d``, ``conv_transpose3d``, in groups or not."""
    # torch stores (inputs, outputs of a group, ...)
    return _convolution(call, (0, 1))


def read_labels(call: Call, value: Value, axis: int, *, modulus: bool = False) -> Labels:
    """Return the labels along the axis that is read, one-dimensional; those that vary along others too are tied.
    ``modulus`` says whether the caller takes labels of absolute values, whose scales may have signs.
    """
    constraints, size = call.constraints, value.tensor.shape[axis]
    axis %= value.tensor.ndim
    if value.origin == CONSTANT:
        labels = _constant_channels(call, value, axis)
    else:
        labels = value.labels if modulus and value.labels.modulus else call.labels_along(value, axis)
    labels = constraints.tie_along(labels, tuple(other for other in labels.varying_axes if other != axis))
    return labels.along_axis(axis, size)


def addmm(call: Call) -> Labels:
    """``b + x @ W`` for parameters W and b."""
    weight, bias = call.weight("mat2"), call.stored_tensor("self")
    if (call.argument("alpha"), call.argument("beta")) != (1, 1) or weight is None:
        raise call.unsupported("a product and a bias as they are", "multiples of them")
    value = call.argument("mat1")
    return _product(call, value, weight, (0, 1), bias)


def bilinear(call: Call) -> Labels:
    """``x1^T W x2 + b``: a weight that reads two values."""
    constraints, weight = call.constraints, call.stored_tensor("weight")
    assert weight is not None
    if weight.origin == CONSTANT:
        raise call.unsupported("a parameter as the weight", "constants")
    name, axes = _source(call, weight)
    # torch stores (outputs, first inputs, second inputs)
    for axis, key in ((1, "input1"), (2, "input2")):
        read = read_labels(call, call.argument(key), -1)
        if read.power not in (1, -1):
            constraints.forbid_scale(read.scale, "reads powers of values")
        constraints.place(name, axes[axis], read, 1 if read.power == -1 else -1, "in", in_mass=True)
    written = constraints.write(name, axes[0], weight.tensor.shape[0], "out", in_mass=True)
    _bias(call, call.argument("bias"), written)
    return written.on_axis(call.result.ndim - 1, call.result.ndim)


def embedding_bag(call: Call) -> list[Labels]:
    """Sums, means and maxima of rows of a table; further results are numbers of rows."""
    others = [constant_labels(item.ndim) for item in call.result[1:]]
    weights = call.argument("per_sample_weights")
    if weights is not None and not weights.stays:
        raise call.unsupported("weights of rows that no symmetry changes", "some computed from channels")
    written = embedding(replace(call, result=call.result[0]))
    if call.argument("mode") == 2:  # the maximum, as torch numbers them
        call.constraints.restrict_scale(written.scale, POSITIVE, "takes the larger of two")
    return [written, *others]


def embedding(call: Call) -> Labels:
    """Rows of a table, each of which writes all channels."""
    weight, indices = call.stored_tensor("weight"), call.argument("indices")
    assert weight is not None
    if not indices.labels.invariant:
        raise call.unsupported("indices that no symmetry changes", "indices computed from channels")
    constraints, (rows, size) = call.constraints, weight.tensor.shape
    for number in indices.index_of:
        constraints.index_bounds[number] = min(rows, constraints.index_bounds.get(number, rows))
    if weight.origin == CONSTANT:
        return constant_labels(call.result.ndim, constraints.paths.id_of(call.description, "constant"))
    name, axes = _source(call, weight)
    if rows > 1:
        constraints.fix_axis(name, axes[0], rows, "out")
    written = constraints.write(name, axes[1], size, "out", in_mass=True)
    return written.on_axis(call.result.ndim - 1, call.result.ndim)


def contraction(call: Call, left: Value, right: Value, first: list[int], second: list[int]) -> Labels:
    """Return labels of sums of products of two tensors, values or parameters; axes are as ``contract`` takes them."""
    ndim = call.result.ndim
    for weight, axes, value, places in ((right, second, left, first), (left, first, right, second)):
        matrix = weight.tensor.ndim == 2 and (weight.unlabelled or weight.formula is not None)
        vector = weight.tensor.ndim == len(weight.long_axes) == 1 and weight.unlabelled and weight.entries is None
        if not (matrix or vector) or value.formula is not None or (value.unlabelled and len(value.long_axes) > 1):
            continue
        reads = [axis for axis, number in enumerate(axes) if number >= ndim]
        writes = [axis for axis, number in enumerate(axes) if number < ndim]
        if len(reads) != 1 or len(writes) > 1 or axes[reads[0]] not in places:
            continue
        along = places.index(axes[reads[0]])
        if not writes:
            return _weighed(call, value, along, weight, places)
        if axes[writes[0]] not in places:
            sides = reads[0], writes[0]
            return _product(call, value, weight, sides, None, along, axes[writes[0]], places)
    return products.contract(call, left, right, first, second)


def _weighed(call: Call, value: Value, along: int, vector: Value, places: list[int]) -> Labels:
    """Return labels of a sum over an axis, weighed by the entries of a parameter."""
    labels, ndim = call.labels_along(value, along), call.result.ndim
    name, (axis,) = _source(call, vector)
    if labels.varying_axes and along not in labels.varying_axes:
        call.constraints.fix_axis(name, axis, vector.tensor.shape[0])
        return with_new_paths(call, _moved(call, value, places, ndim))
    read = read_labels(call, value, along)
    if read.power not in (1, -1):
        call.constraints.forbid_scale(read.scale, "reads powers of values")
    call.constraints.place(name, axis, read, 1 if read.power == -1 else -1, "in", in_mass=True)
    return constant_labels(ndim, call.constraints.paths.id_of("weighed", name, *np.unique(read.path).tolist()))


def _moved(call: Call, value: Value, places: list[int], ndim: int) -> Labels:
    """Return labels, on the result's axes, of a value whose channels are not along the axis that is summed over."""
    labels = products.aligned(call, value, places, max(*places, ndim) + 1)
    return labels.map(lambda item: item[(*[slice(None)] * ndim, *[0] * (item.ndim - ndim))])


def _product(
    call: Call,
    value: Value,
    weight: Value,
    sides: tuple[int, int],
    bias: Value | None,
    axis: int = -1,
    place: int = -1,
    places: list[int] | None = None,
) -> Labels:
    """Return labels of a product with a matrix.

    ``sides`` are the axis of the weight that is summed over, and that of the result; ``axis`` is the value's that is
    summed over, ``place`` the result's that the weight makes. ``places`` has for each axis of the value the number of
    an axis of the result; None for the value's own.
    """
    ndim = call.result.ndim
    axis, place = axis % value.tensor.ndim, place % ndim
    axes = value.labels.varying_axes
    # labels_along takes the sign off absolute values, which a layer can read as they are
    if not value.labels.modulus or (axes and axis not in axes):
        labels = call.labels_along(value, axis)
        if labels.varying_axes and axis not in labels.varying_axes:
            moved = labels if places is None else _moved(call, value, places, ndim)
            return _mixed_axis(call, moved, weight, bias)
    read = read_labels(call, value, axis, modulus=True)
    constraints, (path, *others) = call.constraints, np.unique(read.path).tolist()
    if path in constraints.products and not others:
        constraints.restrict_scale(read.scale, NONZERO, "multiplies matrices")
    written = _weight(call, weight, sides, read, 1)
    _bias(call, bias, written)
    # With a bias they are a layer, whose scales are positive in tables that zoos hold.
    if bias is None:
        constraints.products.update(written.path.tolist())
    return written.on_axis(place, ndim)


def _mixed_axis(call: Call, labels: Labels, weight: Value, bias: Value | None) -> Labels:
    """Return labels of a layer that mixes another axis than the channels', which stay, for every channel alike."""
    constraints = call.constraints
    for value in (weight, bias):
        if value is not None:
            name, axes = _source(call, value)
            for axis, size in zip(axes, value.tensor.shape, strict=True):
                constraints.fix_axis(name, axis, size)
    if bias is not None:
        constraints.forbid_scale(labels.scale, "adds a bias that does not tell the channels apart")
    constraints.notes.append(
        f"{_source(call, weight)[0]!r} stays in place: {constraints.operation} mixes another axis than the channels'."
    )
    return with_new_paths(call, labels)


def _convolution(call: Call, sides: tuple[int, int]) -> Labels:
    filters = call.argument("weight")
    if filters.origin == CONSTANT and (found := _filtered_apart(call, filters)) is not None:
        return found
    if filters.origin == CONSTANT and filters.source is None:
        return _filtered(call, filters)
    weight, bias = call.weight("weight"), call.stored_tensor("bias")
    assert weight is not None
    value, ndim = call.input, call.input.tensor.ndim
    axis = ndim - (weight.tensor.ndim - 1)
    read = read_labels(call, value, axis, modulus=True)
    written = _weight(call, weight, sides, read, int(call.argument("groups")))
    _bias(call, bias, written)
    return written.on_axis(axis, ndim)


def _filtered(call: Call, filters: Value) -> Labels:
    """Return labels of a convolution with the same numbers for every channel, such as a blur: all scales pass."""
    groups, shape = int(call.argument("groups")), filters.tensor.shape
    alike = bool((filters.tensor == filters.tensor[:1]).all())
    if filters.stored is not None:  # other checkpoints have other numbers
        alike &= filters.stored.axes is not None and not filters.stored.axes[0]
    if call.name.startswith("conv_") or (groups, shape[1]) != (shape[0], 1) or not alike or call.argument("bias"):
        raise call.unsupported("a tensor of the state dict as weight", "one that was computed from others")
    labels, axis = call.labels_of(call.input), call.input.tensor.ndim - (filters.tensor.ndim - 1)
    return with_new_paths(
        call, call.constraints.tie_along(labels, tuple(at for at in labels.varying_axes if at != axis))
    )


def _filtered_apart(call: Call, filters: Value) -> Labels | None:
    """Return labels of a convolution by a filter for each channel in a buffer, which moves with it; None for others."""
    depthwise = (int(call.argument("groups")), filters.tensor.shape[1]) == (filters.tensor.shape[0], 1)
    if filters.stored is None or call.name.startswith("conv_") or not depthwise or call.argument("bias") is not None:
        return None
    ndim = call.input.tensor.ndim
    axis = ndim - (filters.tensor.ndim - 1)
    read = read_labels(call, call.input, axis)
    if read.invariant or not place_buffers(call.constraints, filters.stored, read, 0, exponent=0):
        return None
    return with_new_paths(call, read.on_axis(axis, ndim))


def _weight(call: Call, weight: Value, sides: tuple[int, int], read: Labels, groups: int) -> Labels:
    """Return the labels that a weight writes, one-dimensional; ``sides`` are its axes that read and write."""
    if weight.formula is not None or weight.origin == CONSTANT or groups > 1:
        read = without_modulus(call.constraints, read)
    if weight.formula is not None:
        return weight.formula.write(call, sides, read, groups)
    return stored_weight(call, weight, sides, read, groups)


def stored_weight(call: Call, weight: Value, sides: tuple[int, int], read: Labels, groups: int) -> Labels:
    """Return the labels that a tensor of the state dict writes, as ``_weight``."""
    constraints = call.constraints
    if weight.origin == CONSTANT:
        constraints.fix(read.channel, "multiplies by a matrix of constants")
        constraints.forbid_scale(read.scale, "multiplies by a matrix of constants")
        none = np.full(weight.tensor.shape[sides[1]], -1)
        return Labels(none, none, constraints.paths.extend(call.description, weight.labels.path.ravel()))
    name, axes, rows = _rows_of(call, weight, sides[1])
    reads, writes = (axes[side] for side in sides)
    if read.power % 2 == 0:
        read = without_signs(constraints, read, "reads powers of values")
    elif read.power not in (1, -1):
        constraints.forbid_scale(read.scale, "reads powers of values")
    # blocks need a channel at every place
    if groups > 1 and 0 < (read.channel < 0).sum() < len(read.channel):
        fixed = constraints.fixed_channels(len(read.channel), "reads values that stay in place")
        read = replace(read, channel=np.where(read.channel < 0, fixed, read.channel))
    # what reads s x has 1 / s in its columns, and s where it reads 1 / (s x)
    exponent = 1 if read.power == -1 else -1
    # A grouped weight has its first axis through all groups; the other axis is that of one group.
    blocks = (groups, 1) if reads > writes else (1, groups)
    written_before = (name, reads) in constraints.placements and constraints.placements[name, reads].role != "in"
    if written_before and set(np.unique(read.path).tolist()) <= constraints.without_shift:
        constraints.notes.append(
            f"One number along the inverse gains of the norm in front of {name!r} is left out: it may move between its "
            "rows and what is added to them, as it is written and read."
        )
    constraints.place(name, reads, read, exponent, "in", in_mass=True, blocks=blocks[0])
    if read.modulus and constraints.placements[name, reads].absolute:
        constraints.restrict_scale(read.scale, NONZERO, "reads absolute values")
    size = (weight.tensor.shape[sides[1]] if rows is None else constraints.shapes[name][writes]) * blocks[1]
    written = constraints.write(name, writes, size, "out", in_mass=True, blocks=blocks[1])
    if rows is not None:
        return written.map(lambda item: item if item.size == 1 else item[rows])
    for axis, length in enumerate(weight.tensor.shape):
        if axis not in sides and length > 1:
            constraints.fix_axis(name, axes[axis], length)
    if groups > 1:
        members = (read.channel.reshape(groups, -1), written.channel.reshape(groups, -1))
        constraints.blocks.append(
            ChannelBlocks(name.rpartition(".")[0] or name, members, ((name, reads), (name, writes)))
        )
    return written


def _rows_of(call: Call, weight: Value, side: int) -> tuple[str, tuple[int, ...], slice | None]:
    """Return a weight's name in the state dict, its axes there, and its positions along the axis that it writes.

    Queries, keys and values of one packed weight have some positions where they are computed of different values. None
    where the weight has all positions.
    """
    if weight.entries is None:
        return *_source(call, weight), None
    shape = call.constraints.shapes[weight.name]
    numbers = np.arange(math.prod(shape)).reshape(shape)
    count = weight.tensor.shape[side]
    if weight.tensor.ndim == 2 == len(shape) and count:
        for axis in (side, 1 - side):  # the weight itself, or its transpose
            lines = np.moveaxis(numbers, axis, side)
            first = int(np.unravel_index(weight.entries.min(), shape)[axis])
            rows = slice(first, first + count)
            if np.array_equal(lines[(rows, slice(None)) if side == 0 else (slice(None), rows)], weight.entries):
                return weight.name, (0, 1) if axis == side else (1, 0), rows
    return *_source(call, weight), None


def _bias(call: Call, bias: Value | None, written: Labels) -> None:
    if bias is None:
        return
    if bias.source is None:  # one that was computed, such as a concatenation of biases
        labels = call.labels_of(bias).along_axis(0, bias.tensor.shape[0])
        why = "adds a bias that stays in place"
        call.constraints.tie_channels(written.channel, labels.channel, why)
        call.constraints.tie_scales(written.scale, labels.scale, why)
        return
    name, axes = _source(call, bias)
    call.constraints.place(name, axes[0], written, 1, "bias")


def _source(call: Call, value: Value) -> tuple[str, tuple[int, ...]]:
    """Return a parameter's name in the state dict, and its axes there."""
    assert value.source is not None
    if value.entries is not None:
        raise call.unsupported("a parameter as it is in the state dict", f"entries of {value.name!r} in other places")
    name, axes = value.source
    shape = call.constraints.shapes[name]
    single = iter([axis for axis, size in enumerate(shape) if axis not in axes and size == 1])
    known = tuple(axis for item in axes if (axis := next(single, None) if item is None else item) is not None)
    if len(known) < len(axes):
        raise call.unsupported(f"{name!r} with its own axes", "axes that were added")
    return name, known


def _constant_channels(call: Call, value: Value, axis: int) -> Labels:
    """Return labels of constants along an axis: zeros are new channels, as no symmetry changes them."""
    numbers = value.tensor.movedim(axis, 0).flatten(1) if value.tensor.ndim > 1 else value.tensor[:, None]
    zero = (numbers == 0).all(1).cpu().numpy() & (value.stored is None)
    return call.constraints.unconstrained(zero).on_axis(axis % value.tensor.ndim, value.tensor.ndim)
