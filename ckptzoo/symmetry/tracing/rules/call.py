"""The two things that rules work on: a value in a traced module, and the call of an operation on values."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.symmetry.tracing.constraints import POSITIVE, Constraints, Labels
from ckptzoo.symmetry.tracing.graph import DECLARE_BY_HAND, schema_of

DATA, PARAMETER, CONSTANT = "data", "parameter", "constant"
"""The dependence of a value: on the input (and anything else), on parameters (and constants), or on constants only."""


class Formula(Protocol):
    """A weight that was computed from parameters."""

    def write(self, call: "Call", sides: tuple[int, int], read: Labels, groups: int) -> Labels:
        """Return the labels that the weight of a layer writes, one-dimensional.

        ``sides`` are the axis of the weight that reads and the one that writes, ``read`` the one-dimensional labels
        that it reads; ``groups`` is that of a grouped convolution, 1 for others.
        """
        ...


@dataclass(frozen=True)
class Stored:
    """The buffers of the state dict in a constant; every checkpoint has its own.

    ``axes`` has for each axis of the tensor the axes of buffers (name, axis) whose positions are those along it, one by
    one; None where an operation has brought them to other places. A ``plain`` one has the entries of one buffer of
    floats.
    """

    names: frozenset[str]
    axes: tuple[frozenset[tuple[str, int]], ...] | None = None
    plain: bool = False


@dataclass
class Value:
    """A tensor with its labels and origin.

    ``tensor`` has the numbers for the example; ``origin`` is ``DATA``, ``PARAMETER`` or ``CONSTANT``. ``source`` is for
    a tensor of the state dict, as it is or with its axes in another order: its name, and for each axis the axis of the
    tensor in the state dict, None for an axis that was added; with ``function`` the value is no such tensor but a
    function of it, entry by entry. ``index_of`` are numbers of the inputs, integers, whose entries it has. ``entries``
    is for a parameter of the state dict whose entries were moved in another way, the number of each entry there; the
    axes in ``source`` are those of the state dict then. ``formula`` is how a weight was computed from parameters, and
    ``stored`` how a constant depends on buffers in the state dict, whose numbers are those of the module at hand alone.
    """

    tensor: torch.Tensor
    labels: Labels
    origin: str
    source: tuple[str, tuple[int | None, ...]] | None = None
    index_of: frozenset[int] = frozenset()
    entries: NDArray[np.int64] | None = None
    formula: Formula | None = None
    stored: Stored | None = None
    function: bool = False

    @property
    def unlabelled(self) -> bool:
        """Whether it is a parameter whose axes the operation that uses it has still to label."""
        return self.origin == PARAMETER and self.source is not None and not self.function

    @property
    def stays(self) -> bool:
        """Whether no symmetry changes it, and it is no parameter whose axes are still to be labelled."""
        known = self.formula is None and not self.function and not (self.unlabelled and self.long_axes)
        return known and self.labels.invariant

    @property
    def name(self) -> str:
        """Its name in the state dict."""
        assert self.source is not None
        return self.source[0]

    def coordinates(self, shape: tuple[int, ...], ndim: int) -> dict[int, NDArray[np.int64]]:
        """Return for each axis of the state dict's tensor, of this shape, the position along it of every entry here.
        The entries have axes of size 1 in front, as in broadcasting to ``ndim`` axes.
        """
        if self.entries is not None:
            numbers = self.entries
        else:
            assert self.source is not None
            order = [axis for axis in self.source[1] if axis is not None]
            numbers = np.arange(math.prod(shape)).reshape(shape)
            missing = [axis for axis in range(len(shape)) if axis not in order]  # of size 1
            numbers = numbers.transpose([*order, *missing]).reshape(tuple(self.tensor.shape))
        numbers = numbers.reshape((1,) * (ndim - numbers.ndim) + numbers.shape)
        return {axis: item for axis, item in enumerate(np.unravel_index(numbers, shape)) if shape[axis] > 1}

    @property
    def long_axes(self) -> list[int]:
        """Axes of more than one entry."""
        return [axis for axis, size in enumerate(self.tensor.shape) if size > 1]


@dataclass
class Call:
    """An operation, its arguments and its result for the example.

    The operation's rule adds to ``constraints``. ``name`` is the operator's without the underscore of operators in
    place. ``arguments`` has the given ones by the names of the operator's schema in their order, ``Value`` where they
    are tensors. ``used`` are the numbers of its results that are used, where it has several.
    """

    constraints: Constraints
    name: str
    arguments: dict[str, Any]
    result: Any
    operator: Any
    module_name: str
    used: frozenset[int] = frozenset()

    def argument(self, name: str) -> Any:
        """Return an argument, or its default; None where the operator has no such argument."""
        if name in self.arguments:
            return self.arguments[name]
        return next((item.default_value for item in schema_of(self.operator).arguments if item.name == name), None)

    @property
    def input(self) -> Value:
        """The first argument."""
        value = next(iter(self.arguments.values()), None)
        if not isinstance(value, Value):
            raise self.unsupported("a tensor as its first argument", type(value).__name__)
        return value

    def with_input(self, value: Value) -> "Call":
        """Return the call with another first argument."""
        first = next(iter(self.arguments))
        return replace(self, arguments=self.arguments | {first: value})

    def stored_tensor(self, key: str) -> Value | None:
        """Return an argument that is a tensor of the state dict; raise ``SymmetryError`` where it was computed."""
        value = self.argument(key)
        if value is None or (isinstance(value, Value) and value.source is not None and not value.function):
            return value
        raise self.unsupported(f"a tensor of the state dict as {key}", "one that was computed from others")

    def weight(self, key: str) -> Value | None:
        """Return an argument that is a tensor of the state dict, or a weight computed from some by a known formula.
        Raises ``SymmetryError`` for a tensor that was computed in another way.
        """
        value = self.argument(key)
        return value if isinstance(value, Value) and value.formula is not None else self.stored_tensor(key)

    @property
    def description(self) -> str:
        """The operation and those of its arguments that are not tensors, as text: equal for equal operations."""
        return f"{self.name}{map_values(self.arguments, lambda _: '')!r}"

    def labels_of(self, value: Value) -> Labels:
        """Return a value's labels; an unlabelled parameter of one axis gets the channels that this axis writes."""
        if value.formula is not None:
            raise self.unsupported("weights computed from parameters in layers alone", "one beside other values")
        if value.labels.modulus:
            # Only a sum with a number makes use of it that a modulus has no sign; see elementwise.add.
            self.constraints.restrict_scale(value.labels.scale, POSITIVE, "takes absolute values")
            value.labels = replace(value.labels, modulus=False)
        if value.function:
            raise self.unsupported("parameters of several axes in layers, or beside values with channels", value.name)
        if not value.unlabelled or not (long := value.long_axes):
            return value.labels
        if len(long) > 1:
            raise self.unsupported(
                "parameters of several axes in layers, or beside values with channels", repr(value.name)
            )
        assert value.source is not None
        if value.entries is not None:
            raise self.unsupported("parameters of one axis beside values without channels", repr(value.name))
        name, axes = value.source
        source = axes[long[0]]
        assert source is not None
        labels = self.constraints.write(name, source, value.tensor.shape[long[0]], "bias")
        return labels.on_axis(long[0], value.tensor.ndim)

    def labels_along(self, value: Value, axis: int) -> Labels:
        """Return ``labels_of`` where a parameter may have several axes: this one gets the channels that it writes."""
        if not value.unlabelled or len(value.long_axes) < 2 or axis not in value.long_axes:
            return self.labels_of(value)
        found = value.coordinates(self.constraints.shapes[value.name], value.tensor.ndim)
        sources = [source for source, at in found.items() if _varies(at, axis)]
        # what was moved so that several of its axes are along this one, or one along several
        if len(sources) != 1 or any(_varies(found[sources[0]], other) for other in value.long_axes if other != axis):
            return self.labels_of(value)
        shape = self.constraints.shapes[value.name]
        for source in found.keys() - sources:
            self.constraints.fix_axis(value.name, source, shape[source])
        (source,) = sources
        labels = self.constraints.write(value.name, source, shape[source], "bias")
        places = np.moveaxis(found[source], axis, -1).reshape(-1, found[source].shape[axis])[0]
        return labels.map(lambda item: item if item.size == 1 else item[places]).on_axis(axis, value.tensor.ndim)

    def unsupported(self, expected: str, got: str, step: str = DECLARE_BY_HAND) -> SymmetryError:
        """Return the error for a use that the rules do not cover."""
        return SymmetryError(Problem("symmetry.trace", self.constraints.operation, expected, got, step))


def _varies(positions: NDArray[np.int64], axis: int) -> bool:
    """Whether positions differ along an axis."""
    return positions.shape[axis] > 1 and bool((positions != positions.take([0], axis=axis)).any())


def values_in(item: Any) -> Iterator[Value]:
    """The values in nested arguments."""
    if isinstance(item, Value):
        yield item
    elif isinstance(item, (tuple, list)):
        for inner in item:
            yield from values_in(inner)
    elif isinstance(item, dict):
        yield from values_in(tuple(item.values()))


def map_values(item: Any, change: Callable[[Value], Any]) -> Any:
    """Return nested arguments with every value changed."""
    if isinstance(item, Value):
        return change(item)
    if isinstance(item, (tuple, list)):
        changed = [map_values(inner, change) for inner in item]
        return tuple(changed) if isinstance(item, tuple) else changed
    if isinstance(item, dict):
        return {key: map_values(inner, change) for key, inner in item.items()}
    return item
