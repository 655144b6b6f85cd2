"""Rules for recurrent layers: LSTM, GRU and plain ones, of several layers, directions and projections.

The units of a layer are read and written in the same order, so that they are one group of channels for each layer and
direction. Rows of the weights come in blocks, one for each gate: the gates of torch's LSTM are i, f, g, o, and those of
its GRU r, z, n. Signs pass through tanh, so that a unit may change its sign together with the rows of g, or of n, and
the columns that read it. A projection (proj_size) writes the channels that are read, and is not read by a nonlinearity.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ckptzoo.symmetry.tracing.constraints import POSITIVE, SIGN, Labels
from ckptzoo.symmetry.tracing.rules.call import CONSTANT, Call, Value
from ckptzoo.symmetry.tracing.rules.linear import read_labels
from ckptzoo.symmetry.tracing.union_find import NodeIds

_SIGNED_GATES = {
    "lstm": (False, False, True, False),
    "gru": (False, False, True),
    "rnn_tanh": (True,),
    "rnn_relu": (True,),
}
"""For each block of rows, whether it takes the sign of the unit (or its positive scale, behind a ReLU)."""


def recurrent(call: Call) -> list[Labels]:
    """Return the outputs of all steps, and the last states of all layers."""
    value, states = call.input, call.argument("hx")
    layers, directions = int(call.argument("num_layers")), 2 if call.argument("bidirectional") else 1
    if call.argument("train") and call.argument("dropout"):
        raise call.unsupported("no dropout in evaluation mode", f"dropout={call.argument('dropout')}")
    params = list(call.argument("params"))
    per_layer = len(params) // (layers * directions)
    read = read_labels(call, value, value.tensor.ndim - 1)
    first_states: list[list[Labels]] = []
    for state in states if isinstance(states, (tuple, list)) else [states]:
        first_states.append(_states(call, state, layers * directions))
    outputs: list[Labels] = []
    cells: list[Labels] = []
    for layer in range(layers):
        written: list[Labels] = []
        for direction in range(directions):
            number = layer * directions + direction
            mine = params[number * per_layer : (number + 1) * per_layer]
            unit, out = _layer(call, read, mine, [item[number] for item in first_states])
            written.append(out)
            cells.append(unit)
        outputs += written
        read = _joined(written)
    ndim = call.result[0].ndim
    # The states have the layers and directions along their first axis.
    made = [read.on_axis(ndim - 1, ndim), _stacked(outputs, call.result[1].ndim)]
    return [*made, _stacked(cells, call.result[2].ndim)] if call.name == "lstm" else made


def cell(call: Call) -> Any:
    """Return the new state of one step of a recurrent layer, and for an LSTM that of its cells."""
    given = call.argument("hx")
    params = [item for key in ("w_ih", "w_hh", "b_ih", "b_hh") if (item := call.argument(key)) is not None]
    read = read_labels(call, call.input, -1)
    states = [_states(call, state, 1)[0] for state in (given if isinstance(given, (tuple, list)) else [given])]
    unit, out = _layer(call, read, params, states)
    made = [item.on_axis(call.input.tensor.ndim - 1, call.input.tensor.ndim) for item in (out, unit)]
    return made if isinstance(call.result, tuple) else made[0]


def _layer(call: Call, read: Labels, params: Sequence[Value], states: Sequence[Labels]) -> tuple[Labels, Labels]:
    """Return the labels of a layer's units, and of its outputs, which a projection makes of them."""
    constraints, gates = call.constraints, _SIGNED_GATES[call.name.removesuffix("_cell")]
    input_weight, hidden_weight = _stored(call, params[0]), _stored(call, params[1])
    n = params[0].tensor.shape[0] // len(gates)
    biases = params[2:4] if len(params) > 3 else ()
    # torch's order: input and hidden weight, two biases or none, and the projection
    projection = params[-1] if len(params) in (3, 5) else None
    path = np.array([constraints.paths.id_of(call.name, "unit")])
    unit = Labels(constraints.channels.new(n), constraints.scales.new(n), path)
    constraints.restrict_scale(unit.scale, POSITIVE if call.name.startswith("rnn_relu") else SIGN, _why(call))
    out = unit
    if projection is not None:
        name = _stored(call, projection)
        constraints.place(name, 1, unit, -1, "in", in_mass=True)
        out = constraints.write(name, 0, projection.tensor.shape[0], "out", in_mass=True)
    rows = Labels(
        np.tile(unit.channel, len(gates)),
        np.concatenate([unit.scale if signed else np.full(n, -1) for signed in gates]),
        np.repeat([constraints.paths.id_of(call.name, "gate", number) for number in range(len(gates))], n),
    )
    for name, columns in ((input_weight, read), (hidden_weight, out)):
        if columns.power not in (1, -1):
            constraints.forbid_scale(columns.scale, "reads powers of values")
        constraints.place(name, 1, columns, 1 if columns.power == -1 else -1, "in", in_mass=True)
        constraints.place(name, 0, rows, 1, "out", in_mass=True)
    for bias in biases:
        constraints.place(_stored(call, bias), 0, rows, 1, "bias")
    # The first state is of what is given out, that of an LSTM's cells of the units.
    for state, labels in zip(states, (out, unit), strict=False):
        why = "starts from a state that stays in place"
        constraints.tie_channels(state.channel, labels.channel, why)
        constraints.tie_scales(state.scale, labels.scale, why)
    return unit, out


def _why(call: Call) -> str:
    return "keeps positive factors alone" if call.name.startswith("rnn_relu") else "keeps signs alone"


def _stored(call: Call, value: Value) -> str:
    if value.source is None or value.origin == CONSTANT or value.entries is not None:
        raise call.unsupported("parameters of the state dict as weights", "others")
    return value.name


def _states(call: Call, state: Value, count: int) -> list[Labels]:
    """Return the labels of the first states; zeros are states of any channels."""
    constraints, size = call.constraints, state.tensor.shape[-1]
    if state.origin == CONSTANT and state.stored is None and not bool(state.tensor.any()):
        # torch fills in zeros where no state is given
        return [constraints.unconstrained(np.ones(size, bool)) for _ in range(count)]
    labels = call.labels_along(state, state.tensor.ndim - 1)
    last, layered = state.tensor.ndim - 1, not call.name.endswith("_cell")
    if any(axis not in ((0, last) if layered else (last,)) for axis in labels.varying_axes):
        raise call.unsupported("channels of a state on its last axis", "others")

    def of(item: NodeIds, number: int) -> NodeIds:
        layer = item[min(number, item.shape[0] - 1)] if layered else item
        return np.broadcast_to(layer.reshape(-1), size)

    return [labels.map(lambda item, number=number: of(item, number)) for number in range(count)]


def _joined(labels: Sequence[Labels]) -> Labels:
    """Return labels of both directions, one after the other."""
    channel, scale, path = (
        np.concatenate([np.broadcast_to(getattr(item, name), item.channel.shape) for item in labels])
        for name in ("channel", "scale", "path")
    )
    return Labels(channel, scale, path)


def _stacked(labels: Sequence[Labels], ndim: int) -> Labels:
    """Return labels of the states of all layers and directions, along the first axis."""
    joined = _joined(labels)
    shape = [len(labels), *[1] * (ndim - 2), -1]
    return joined.map(lambda item: item.reshape(shape))
