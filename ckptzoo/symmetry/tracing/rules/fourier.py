"""Rules for Fourier transforms, and for the complex numbers that they make, as pairs of numbers and back.

A transform is linear, and treats all channels alike where it is along another axis; along channels it mixes them.
"""

from dataclasses import replace
from typing import Any

from ckptzoo.symmetry.tracing.constraints import Labels, constant_labels
from ckptzoo.symmetry.tracing.rules.call import DATA, Call, Value
from ckptzoo.symmetry.tracing.rules.elementwise import ADD, MUL, combined, not_homogeneous, with_new_paths


def transform(call: Call) -> Labels:
    """``fft``, ``rfft``, their inverses, and those over several axes; channels along these stay in place."""
    labels, ndim = call.labels_of(call.input), call.input.tensor.ndim
    dims, sizes = call.argument("dim"), call.argument("s")
    if dims is None:  # all axes, or as many of the last ones as there are sizes
        dims = range(ndim) if sizes is None else range(-len(sizes), 0)
    axes = {int(axis) % ndim for axis in ([dims] if isinstance(dims, int) else dims)}
    # linear, and the same for every channel
    if not axes & set(labels.varying_axes):
        return with_new_paths(call, labels)
    call.constraints.fix(labels.channel, "transforms along channels")
    call.constraints.forbid_scale(labels.scale, "transforms along channels")
    histories = labels.path.ravel().tolist()
    return constant_labels(call.result.ndim, call.constraints.paths.id_of(call.description, *histories))


def as_complex(call: Call) -> Any:
    """``view_as_complex``: pairs along the last axis become one number, whose parts move and are scaled together."""
    value, last = call.input, call.input.tensor.ndim - 1
    if value.unlabelled and value.long_axes != [last]:
        return _complex_parameter(call, value, last)
    labels = call.labels_of(value)
    labels = call.constraints.tie_along(labels, tuple(axis for axis in labels.varying_axes if axis == last))
    return with_new_paths(call, labels.map(lambda item: item[..., 0]))


def as_real(call: Call) -> Labels:
    """``view_as_real``: both parts along a new last axis."""
    return with_new_paths(call, call.labels_of(call.input).map(lambda item: item[..., None]))


def complex_(call: Call) -> Labels:
    """``complex``: both parts are scaled alike."""
    return combined(call, call.argument("real"), call.argument("imag"), ADD)


def polar(call: Call) -> Labels:
    """``polar``: no scale of the angle passes."""
    # r e^(i a) is linear in r, and any function of a
    angle = call.argument("angle")
    labels = not_homogeneous(replace(call, arguments={"self": angle}))
    return combined(call, call.argument("abs"), Value(call.result, labels, DATA), MUL)


def _complex_parameter(call: Call, value: Value, last: int) -> Value:
    """A parameter as complex numbers: both parts, in their order, along its last axis."""
    if value.entries is not None or value.source is None or (source := value.source[1][last]) is None:
        raise call.unsupported("a parameter as it is in the state dict", f"entries of {value.name!r} in other places")
    call.constraints.fix_axis(value.name, source, 2, "gain")
    return replace(value, tensor=call.result, source=(value.name, value.source[1][:-1]))
