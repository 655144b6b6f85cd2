"""The two things that rules work on: a value in a traced module, and the call of an operation on values."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.symmetry.tracing.constraints import Constraints, Labels
from ckptzoo.symmetry.tracing.graph import DECLARE_BY_HAND

DATA, PARAMETER, CONSTANT = "data", "parameter", "constant"
"""What a value depends on: the input (and anything else), parameters (and constants), or constants only."""


@dataclass
class Value:
    """A tensor and what is known of it.

    Parameters
    ----------
    tensor
        the numbers, for the example.
    labels
        of its entries.
    origin
        ``DATA``, ``PARAMETER`` or ``CONSTANT``.
    source
        for a tensor of the state dict, as it is or with its axes in another order: its name, and for each axis the axis
        of the tensor in the state dict, None for an axis that was added.
    """

    tensor: torch.Tensor
    labels: Labels
    origin: str
    source: tuple[str, tuple[int | None, ...]] | None = None

    @property
    def unlabelled(self) -> bool:
        """Whether it is a parameter whose axes the operation that uses it has still to label."""
        return self.origin == PARAMETER and self.source is not None

    @property
    def name(self) -> str:
        """Its name in the state dict."""
        assert self.source is not None
        return self.source[0]

    @property
    def long_axes(self) -> list[int]:
        """Axes of more than one entry."""
        return [axis for axis, size in enumerate(self.tensor.shape) if size > 1]


@dataclass
class Call:
    """An operation, its arguments and its result.

    Parameters
    ----------
    constraints
        those so far; the operation's rule adds its own.
    name
        of the function, the tensor's method or its attribute.
    args, kwargs
        its arguments, ``Value`` where they are tensors.
    result
        its result for the example.
    apply
        the operation, on other tensors of the same shapes.
    module_name
        of the module that calls it.
    """

    constraints: Constraints
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    apply: Callable[..., Any]
    module_name: str

    def argument(self, position: int, key: str, default: Any = None) -> Any:
        """An argument by its position or its name."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(key, default)

    @property
    def input(self) -> Value:
        """The first argument."""
        value = self.argument(0, "input", self.kwargs.get("self"))
        if not isinstance(value, Value):
            raise self.unsupported("a tensor as its first argument", type(value).__name__)
        return value

    def stored_tensor(self, position: int, key: str) -> Value | None:
        """An argument that is a tensor of the state dict.

        Raises
        ------
        SymmetryError
            It is a tensor that was computed from others.
        """
        value = self.argument(position, key)
        if value is None or (isinstance(value, Value) and value.source is not None):
            return value
        raise self.unsupported(f"a tensor of the state dict as {key}", "one that was computed from others")

    @property
    def description(self) -> str:
        """The operation and those of its arguments that are not tensors, as text: equal for equal operations."""
        return f"{self.name}{map_values((self.args, self.kwargs), lambda _: '')!r}"

    def labels_of(self, value: Value) -> Labels:
        """A value's labels; an unlabelled parameter of one axis gets the channels that this axis writes."""
        if not value.unlabelled or not (long := value.long_axes):
            return value.labels
        if len(long) > 1:
            raise self.unsupported(
                "parameters of several axes in layers, or beside values with channels", repr(value.name)
            )
        assert value.source is not None
        name, axes = value.source
        source = axes[long[0]]
        assert source is not None
        labels = self.constraints.write(name, source, value.tensor.shape[long[0]], "bias")
        return labels.on_axis(long[0], value.tensor.ndim)

    def unsupported(self, expected: str, got: str) -> SymmetryError:
        """The error for a use that the rules do not cover."""
        return SymmetryError(Problem("symmetry.trace", self.constraints.operation, expected, got, DECLARE_BY_HAND))


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
    """Nested arguments with every value changed."""
    if isinstance(item, Value):
        return change(item)
    if isinstance(item, (tuple, list)):
        changed = [map_values(inner, change) for inner in item]
        return tuple(changed) if isinstance(item, tuple) else changed
    if isinstance(item, dict):
        return {key: map_values(inner, change) for key, inner in item.items()}
    if isinstance(item, slice):
        return slice(*(map_values(inner, change) for inner in (item.start, item.stop, item.step)))
    return item
