"""Rules for a value and a parameter, entry by entry: biases, gains, thresholds."""

from dataclasses import replace

from ckptzoo.symmetry.tracing.labels import Labels
from ckptzoo.symmetry.tracing.ledger import POSITIVE
from ckptzoo.symmetry.tracing.values import Call, Value

ADD, MUL, DIV, MAX = "add", "mul", "div", "max"
"""What is done with two operands; ``MAX`` is the larger or the smaller one."""


def with_parameter(call: Call, value: Value, parameter: Value, how: str, *, turned: bool) -> Labels:
    """Labels of the result; the parameter's axis that runs along the value's channels gets theirs.

    Parameters
    ----------
    turned : whether the parameter is the first operand.
    """
    ndim = call.result.ndim
    labels = value.labels.aligned(ndim)
    if len(labels.varying) > 1:
        raise call.refused("channels on one axis at most", "channels on two axes")
    name, along = _axis(call, labels, parameter)
    if along is None:
        made = _alike(call, labels, how)
    else:
        axis, source, size = along
        wide = value.tensor.shape[axis - ndim] > 1 if axis >= ndim - value.tensor.ndim else False
        made = (_beside if wide else _spread)(call, labels, axis, name, source, size, how)
    return replace(made, power=-made.power) if how == DIV and turned else made


def _axis(call: Call, labels: Labels, parameter: Value) -> tuple[str, tuple[int, int, int] | None]:
    """The parameter's name, and its axis along the channels: in the result, in the state dict, and its size."""
    assert parameter.source is not None
    name, axes = parameter.source
    offset, shape = labels.channel.ndim - parameter.tensor.ndim, parameter.tensor.shape
    long = [at for at, size in enumerate(shape) if size > 1]
    chosen = [at for at in long if offset + at in labels.varying]
    if not labels.varying and len(long) == 1:
        chosen = long
    for at in long:
        source = axes[at]
        assert source is not None
        if at not in chosen:
            call.ledger.ground(name, source, shape[at])
    if not chosen:
        return name, None
    source = axes[chosen[0]]
    assert source is not None
    return name, (offset + chosen[0], source, shape[chosen[0]])


def _alike(call: Call, labels: Labels, how: str) -> Labels:
    """The parameter does the same to all channels."""
    if how in (ADD, MAX):
        call.ledger.kill(labels.scale, "puts a parameter beside channels that it does not tell apart")
    return labels


def _beside(call: Call, labels: Labels, axis: int, name: str, source: int, size: int, how: str) -> Labels:
    """The parameter has an entry for each channel."""
    ledger, held = call.ledger, labels.line(axis, size)
    if how in (ADD, MAX):
        if held.power not in (1, -1):
            ledger.kill(held.scale, "adds a parameter to powers of values")
        ledger.place(name, source, held, -1 if held.power == -1 else 1, "bias")
        if how == MAX:
            ledger.only(held.scale, POSITIVE, "takes the larger of two")
        return labels
    if how == MUL and not ledger.alive(held.scale).any():
        made = ledger.write(name, source, size, "gain", in_mass=True)
        channel = ledger.tie(held.channel, made.channel, f"multiplies values that stay in place by {name!r}")
        return Labels(channel, made.scale, held.path).across(axis, labels.channel.ndim)
    if ledger.alive(held.scale).any():
        ledger.notes.append(f"{name!r} is permuted and not scaled: {ledger.here} multiplies values that are scaled.")
    ledger.place(name, source, held, 0, "gain", in_mass=True)
    return labels


def _spread(call: Call, labels: Labels, axis: int, name: str, source: int, size: int, how: str) -> Labels:
    """The parameter makes several channels of one entry."""
    ledger, made = (
        call.ledger,
        call.ledger.write(name, source, size, "gain" if how == MUL else "bias", in_mass=how == MUL),
    )
    if not labels.free:
        ledger.sum_over(labels)
        ledger.kill(labels.scale, "makes several channels of one")
    if how != MUL:
        ledger.kill(made.scale, "puts a parameter beside values that cannot be scaled")
    return Labels(made.channel, made.scale, made.path).across(axis, labels.channel.ndim)
