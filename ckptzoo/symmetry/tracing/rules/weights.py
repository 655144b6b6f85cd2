"""Weights that are computed from parameters: multiples, sums and products of them, and weights that are normalised.

Such a tensor has channels on two axes, which no labels of entries can name. It is a formula until a layer uses it as
its weight; then the formula passes what the layer reads on to the parameters in it, and says what they write.

- ``W + c B A``: all parts read and write the same channels; those between B and A have scales of their own.
- ``g v / |v|`` (weight_norm), with one norm for every channel that is written: g is scaled with it, each row of v has
  a scale of its own, whose sign g takes. Channels that are read keep their signs alone: other factors change the norms.
- ``W / (u^T W v)`` (spectral_norm, whose u and v are buffers): u moves with the rows, v with the columns. Signs alone
  are left, since in training mode u and v are estimated again, and the spectral norm changes under other scales.
- ``g (W - mean) / std`` (weight standardisation): as weight_norm, but eps leaves the rows of W their signs alone, and
  the mean nothing to channels that are read.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from ckptzoo.symmetry.tracing.constraints import NONZERO, POSITIVE, SIGN, Constraints, Labels, constant_labels
from ckptzoo.symmetry.tracing.rules.call import DATA, PARAMETER, Call, Formula, Value, values_in
from ckptzoo.symmetry.tracing.rules.linear import stored_weight
from ckptzoo.symmetry.tracing.union_find import NodeIds


def computed_weight(call: Call) -> Value | None:
    """Return the result of an operation on parameters alone as a formula; None where none applies."""
    values = list(values_in(call.arguments))
    if call.name not in _MAKERS or any(value.origin == DATA for value in values):
        return None
    if not any(value.formula is not None or (value.unlabelled and value.tensor.ndim > 1) for value in values):
        return None
    made = _MAKERS[call.name](call)
    return None if made is None else Value(call.result, constant_labels(call.result.ndim), PARAMETER, formula=made)


def of_weights_alone(call: Call) -> Labels:
    """Operations that have a rule for weights and none for values."""
    raise call.unsupported("parameters of the state dict, which make a weight", "others")


@dataclass(frozen=True)
class _Stored:
    """A parameter of the state dict."""

    value: Value

    def write(self, call: Call, sides: tuple[int, int], read: Labels, groups: int) -> Labels:
        return stored_weight(call, self.value, sides, read, groups)


@dataclass(frozen=True)
class _Sum:
    """A sum of weights, each of which may have a factor."""

    terms: tuple[Formula, ...]

    def write(self, call: Call, sides: tuple[int, int], read: Labels, groups: int) -> Labels:
        """The labels that all terms write, tied."""
        written, *others = (term.write(call, sides, read, groups) for term in self.terms)
        for other in others:
            written = _tied(call.constraints, written, other)
        return written


@dataclass(frozen=True)
class _Product:
    """A product of two matrices."""

    left: Formula
    right: Formula

    def write(self, call: Call, sides: tuple[int, int], read: Labels, groups: int) -> Labels:
        """The labels that the last factor writes, which reads what the others do."""
        first, second = (self.right, self.left) if sides == (1, 0) else (self.left, self.right)
        between = first.write(call, sides, read, 1)
        call.constraints.restrict_scale(between.scale, NONZERO, "multiplies matrices")
        return second.write(call, sides, between, 1)


@dataclass(frozen=True)
class _Reordered:
    """A weight with its axes in another order."""

    weight: Formula
    order: tuple[int, ...]

    def write(self, call: Call, sides: tuple[int, int], read: Labels, groups: int) -> Labels:
        """The labels of the weight with its axes as they were."""
        reads, writes = (self.order[side] for side in sides)
        return self.weight.write(call, (reads, writes), read, groups)


@dataclass(frozen=True)
class _Normed:
    """``g v / |v|``, with a norm for each position along one axis, or one for all where ``axis`` is None."""

    weight: Formula
    gain: Value
    axis: int | None

    def write(self, call: Call, sides: tuple[int, int], read: Labels, groups: int) -> Labels:
        """The labels of the normed rows, and of the numbers that multiply them."""
        constraints, (reads, writes) = call.constraints, sides
        why = "divides by a norm of the weight"
        if self.axis is None:
            constraints.restrict_scale(read.scale, SIGN, why)
            written = self.weight.write(call, sides, read, groups)
            constraints.restrict_scale(written.scale, SIGN, why)
            return written
        # torch.nn.utils.weight_norm by default: a norm for each output
        if self.axis == writes:
            constraints.restrict_scale(read.scale, SIGN, why)
            rows = self.weight.write(call, sides, read, groups)
            return _gained(constraints, rows, self.gain)
        if self.axis != reads or groups > 1:
            raise call.unsupported("norms for each channel that is read or written", f"norms along axis {self.axis}")
        columns = replace(read, scale=constraints.scales.new(len(read.channel)), power=1.0)
        constraints.restrict_scale(columns.scale, POSITIVE, why)
        written = self.weight.write(call, sides, columns, groups)
        constraints.restrict_scale(written.scale, SIGN, why)
        exponent = 1 if read.power == -1 else -1
        constraints.place(self.gain.name, _long_axis(self.gain), read, exponent, "in", in_mass=True)
        return written


@dataclass(frozen=True)
class _Standardized:
    """``g (W - mean) / std`` over all axes but the first."""

    weight: Formula
    gain: Value | None

    def write(self, call: Call, sides: tuple[int, int], read: Labels, groups: int) -> Labels:
        """The labels of the standardised rows, which have signs alone."""
        constraints = call.constraints
        if sides[1] != 0:
            raise call.unsupported("a standardised weight that writes along its first axis", "another one")
        # the mean over a filter would change by factors or signs of what it reads
        constraints.forbid_scale(read.scale, "standardises the weight")
        rows = self.weight.write(call, sides, read, groups)
        constraints.restrict_scale(rows.scale, SIGN, "standardises the weight beside eps")
        return rows if self.gain is None else _gained(constraints, rows, self.gain)


@dataclass(frozen=True)
class _MatrixVector:
    """``W v``, with W as a matrix, or ``u^T W v``: numbers that a spectral norm is estimated by."""

    matrix: Value
    right: Value
    left: Value | None = None

    def write(self, call: Call, sides: tuple[int, int], read: Labels, groups: int) -> Labels:
        """The labels that the matrix writes."""
        raise call.unsupported("a matrix as weight", "a product of one with a vector")


@dataclass(frozen=True)
class _Spectral:
    """``W / (u^T W v)``."""

    weight: _Stored
    norm: _MatrixVector

    def write(self, call: Call, sides: tuple[int, int], read: Labels, groups: int) -> Labels:
        """The labels of the weight, which the vectors that estimate its norm share."""
        constraints, why = call.constraints, "divides by the spectral norm, which keeps signs alone in training mode"
        constraints.restrict_scale(read.scale, SIGN, why)
        if groups > 1:
            # One vector would be of the channels of several groups at once.
            constraints.fix(read.channel, "divides by the spectral norm of a weight in groups")
            constraints.forbid_scale(read.scale, "divides by the spectral norm of a weight in groups")
        written = self.weight.write(call, sides, read, groups)
        constraints.restrict_scale(written.scale, SIGN, why)
        if groups > 1:
            constraints.fix(written.channel, "divides by the spectral norm of a weight in groups")
            constraints.forbid_scale(written.scale, "divides by the spectral norm of a weight in groups")
            return written
        matrix, (right, left) = self.norm.matrix, (self.norm.right, self.norm.left)
        assert matrix.source is not None and self.weight.value.source is not None and left is not None
        shape = constraints.shapes[matrix.name]
        at = matrix.coordinates(shape, 2)
        for side, labels in zip(sides, (read, written), strict=True):
            axis = self.weight.value.source[1][side]
            assert axis is not None
            if axis not in at:  # of one entry
                continue
            along = 0 if at[axis].shape[0] > 1 and (at[axis] != at[axis][:1]).any() else 1
            vector = left if along == 0 else right
            beside = [item for other, item in at.items() if other != axis]
            positions = np.moveaxis(np.broadcast_to(at[axis], tuple(matrix.tensor.shape)), along, 0)[:, 0]
            places = np.zeros(len(positions), np.int64)
            for item in beside:
                line = np.moveaxis(np.broadcast_to(item, tuple(matrix.tensor.shape)), along, 0)
                if (line == line[:, :1]).all():
                    places = places * (int(item.max()) + 1) + line[:, 0]
            channel, scale, path = (
                np.broadcast_to(item, len(labels.channel))[positions]
                for item in (labels.channel, labels.scale, labels.path)
            )
            path = constraints.paths.extend("spectral norm", path, places)
            constraints.place(vector.name, 0, Labels(channel, scale, path), 1, "bias")
        return written


def _gained(constraints: Constraints, rows: Labels, gain: Value) -> Labels:
    """Return the labels of normalised rows with a gain, which has its own scale and takes the signs of the rows."""
    labels = constraints.write(gain.name, _long_axis(gain), len(rows.channel), "gain", in_mass=True)
    channel = constraints.tie_channels(rows.channel, labels.channel, "normalises what stays in place")
    constraints.absorb_signs(gain.name, _long_axis(gain), rows.scale)
    return Labels(channel, labels.scale, constraints.paths.extend("gain", rows.path, labels.path))


def _long_axis(gain: Value) -> int:
    """Return the axis of a stored vector, which may have axes of size 1, in the state dict."""
    assert gain.source is not None
    sizes = list(gain.tensor.shape)
    axis = gain.source[1][sizes.index(max(sizes))]
    return 0 if axis is None else axis


def _tied(constraints: Constraints, first: Labels, second: Labels) -> Labels:
    """Labels that two weights write, which are added."""
    why = "adds a weight whose channels stay in place"
    channel = constraints.tie_channels(first.channel, second.channel, why)
    scale = constraints.tie_scales(first.scale, second.scale, why)
    return Labels(channel, scale, constraints.paths.extend("sum", first.path, second.path))


def _formula(value: object) -> Formula | None:
    """Return a weight as a formula; None for anything else."""
    if not isinstance(value, Value):
        return None
    if value.formula is not None:
        return value.formula
    return _Stored(value) if value.unlabelled and value.tensor.ndim > 1 and value.entries is None else None


def _product(call: Call) -> Formula | None:
    """``B @ A``."""
    names = ("self", "mat2" if call.name == "mm" else "other")
    left, right = (_formula(call.argument(name)) for name in names)
    if left is None or right is None or any(call.argument(name).tensor.ndim != 2 for name in names):
        return None
    return _Product(left, right)


def _sum(call: Call) -> Formula | None:
    """``W + X``, of one shape."""
    sides = [call.argument(name) for name in ("self", "other")]
    terms = [_formula(side) for side in sides]
    if None in terms or sides[0].tensor.shape != sides[1].tensor.shape or len(sides[0].long_axes) < 2:
        return None
    return _Sum(tuple(term for term in terms if term is not None))


def _multiple(call: Call) -> Formula | None:
    """``c W`` and ``W / c`` for one number c, which may be a parameter; ``W / (u^T W v)``."""
    weight, other = (call.argument(name) for name in ("self", "other"))
    formula = _formula(weight)
    if formula is None and call.name.startswith("mul"):
        weight, other, formula = other, weight, _formula(other)
    if formula is None or (isinstance(weight, Value) and len(weight.long_axes) < 2):
        return None
    if isinstance(other, Value):
        if isinstance(other.formula, _MatrixVector):
            return _spectral(call, formula, other.formula)
        if other.tensor.numel() > 1 or other.formula is not None or not other.labels.invariant:
            return None
    elif not isinstance(other, (int, float)):
        return None
    return formula


def _spectral(call: Call, weight: Formula, norm: _MatrixVector) -> Formula | None:
    """A weight divided by its own spectral norm."""
    if not isinstance(weight, _Stored) or weight.value.name != norm.matrix.name or norm.left is None:
        return None
    return _Spectral(weight, norm) if call.name in ("div", "divide", "true_divide") else None


def _reordered(call: Call) -> Formula | None:
    """Axes in another order."""
    value = call.input
    if value.formula is None:
        return None
    # A tensor without data whose axis i has size i + 2: the sizes of the result are the order of the axes.
    probe = torch.empty(tuple(range(2, value.tensor.ndim + 2)), device="meta")
    first = next(iter(call.arguments))
    shape = call.operator(**(call.arguments | {first: probe})).shape
    return _Reordered(value.formula, tuple(size - 2 for size in shape))


def _reshaped(call: Call) -> Formula | None:
    """Copies; and standardised weights, which are matrices for that, in their own shape again."""
    formula, shape = call.input.formula, tuple(call.result.shape)
    if isinstance(formula, _Standardized) and isinstance(formula.weight, _Stored):
        return formula if shape == tuple(formula.weight.value.tensor.shape) else None
    return formula if shape == tuple(call.input.tensor.shape) else None


def _weight_norm(call: Call) -> Formula | None:
    """``torch._weight_norm``, whose axis -1 stands for all at once."""
    weight, gain, axis = _formula(call.argument("v")), call.argument("g"), int(call.argument("dim"))
    if weight is None or not gain.unlabelled or gain.entries is not None:
        return None
    return _Normed(weight, gain, None if axis == -1 else axis)


def _matrix_vector(call: Call) -> Formula | None:
    """``W v`` for a stored vector v."""
    matrix, vector = call.argument("self"), call.argument("vec")
    return _MatrixVector(matrix, vector) if matrix.source is not None and vector.source is not None else None


def _dot(call: Call) -> Formula | None:
    """``u^T (W v)`` for a stored vector u."""
    vector, formula = call.argument("self"), _formula(call.argument("other" if call.name == "vdot" else "tensor"))
    if not isinstance(formula, _MatrixVector) or vector.source is None:
        return None
    return replace(formula, left=vector)


def _standardized(call: Call) -> Formula | None:
    """A batch norm of weights as one example, with a channel for each filter and without running statistics."""
    value, gain = call.input, call.argument("weight")
    # as timm's StdConv2d calls it: weights as (1, filters, rest), in training mode
    plain = call.argument("bias") is None and call.argument("running_mean") is None and call.argument("training")
    if not plain or value.source is None or value.tensor.shape[0] != 1 or value.tensor.ndim != 3:
        return None
    shape = call.constraints.shapes[value.name]
    in_order = value.entries is None or np.array_equal(value.entries.ravel(), np.arange(value.tensor.numel()))
    if not in_order or value.tensor.shape[1] != shape[0]:
        return None
    if gain is not None and gain.source is None:
        gain = _stored_gain(call.constraints, gain)
    whole = torch.empty(shape, device="meta")
    stored = replace(value, tensor=whole, source=(value.name, tuple(range(len(shape)))), entries=None)
    return _Standardized(_Stored(stored), gain)


def _stored_gain(constraints: Constraints, gain: Value) -> Value:
    """Return the parameter that a multiple of it, which has labels, was made of."""
    nodes: NodeIds = gain.labels.channel.ravel()
    for (name, axis), place in constraints.placements.items():
        if np.array_equal(place.channel, nodes):
            # It was labelled as a bias by the multiplication, which is no use of its own.
            place.role, place.in_mass, place.uses = "gain", True, place.uses - 1
            return replace(gain, source=(name, (axis,)))
    return gain


_COPIES, _ORDERS = "clone detach alias contiguous to neg", "t numpy_T mT transpose permute swapaxes movedim"
_NAMES: dict[Callable[[Call], Formula | None], str] = {
    _product: "matmul mm",
    _sum: "add sub subtract",
    _multiple: "mul multiply div divide true_divide",
    _reshaped: f"{_COPIES} view reshape reshape_as view_as",
    _reordered: _ORDERS,
    _weight_norm: "_weight_norm",
    _matrix_vector: "mv",
    _dot: "dot vdot",
    _standardized: "batch_norm",
}
_MAKERS = {name: maker for maker, names in _NAMES.items() for name in names.split()}
