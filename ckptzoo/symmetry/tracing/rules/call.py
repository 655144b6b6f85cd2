"""The values that flow through a module while it is traced, and the operations that make them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry.tracing.constraints import Constraints, Labels
from ckptzoo.symmetry.tracing.graph import HAND

DATA, PARAMETER, CONSTANT = "data", "parameter", "constant"
"""Where a value comes from: the input and anything else, parameters and constants alone, constants alone."""


@dataclass
class Value:
    """A tensor and what is known of it.

    Parameters
    ----------
    tensor : the numbers, for the example.
    labels : of its entries.
    origin : ``DATA``, ``PARAMETER`` or ``CONSTANT``.
    source : for a tensor of the state dict, as it is or turned: its name, and for each axis the axis of the tensor in
        the state dict, None where there is none.
    """

    tensor: torch.Tensor
    labels: Labels
    origin: str
    source: tuple[str, tuple[int | None, ...]] | None = None

    @property
    def bare(self) -> bool:
        """Whether it is a parameter whose axes are still to be labelled, by the operation that uses it."""
        return self.origin == PARAMETER and self.source is not None

    @property
    def name(self) -> str:
        """In the state dict."""
        assert self.source is not None
        return self.source[0]

    @property
    def long(self) -> list[int]:
        """Axes of more than one entry."""
        return [axis for axis, size in enumerate(self.tensor.shape) if size > 1]


@dataclass
class Call:
    """An operation, its arguments and its result.

    Parameters
    ----------
    ledger : what is known so far, and what the operation adds to it.
    name : of the function, the tensor's method or its attribute.
    args, kwargs : its arguments, ``Value`` where they are tensors.
    result : what it gave.
    apply : the operation, on other tensors of the same shapes.
    module : the name of the module that it stands in.
    """

    ledger: Constraints
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    apply: Callable[..., Any]
    module: str

    def get(self, at: int, key: str, default: Any = None) -> Any:
        """An argument by its position or its name."""
        return self.args[at] if at < len(self.args) else self.kwargs.get(key, default)

    @property
    def input(self) -> Value:
        """The first argument."""
        value = self.get(0, "input", self.kwargs.get("self"))
        if not isinstance(value, Value):
            raise self.refused("a tensor as its first argument", type(value).__name__)
        return value

    def tensor(self, at: int, key: str) -> Value | None:
        """An argument that is a tensor of the state dict.

        Raises
        ------
        SymmetryError
            It was computed from others.
        """
        value = self.get(at, key)
        if value is None or (isinstance(value, Value) and value.source is not None):
            return value
        raise self.refused(f"a tensor of the state dict as {key}", "one that was computed from others")

    @property
    def history(self) -> str:
        """The operation and those of its arguments that are not tensors."""
        return f"{self.name}{mapped((self.args, self.kwargs), lambda _: '')!r}"

    def labels(self, value: Value) -> Labels:
        """A value's labels; a bare parameter of one axis gets those that this axis writes."""
        if not value.bare or not (long := value.long):
            return value.labels
        if len(long) > 1:
            raise self.refused("parameters of several axes in layers, or beside values with channels", repr(value.name))
        assert value.source is not None
        name, axes = value.source
        source = axes[long[0]]
        assert source is not None
        made = self.ledger.write(name, source, value.tensor.shape[long[0]], "bias")
        return made.across(long[0], value.tensor.ndim)

    def refused(self, expected: str, got: str) -> SymmetryError:
        """The error for what the rules do not cover."""
        return SymmetryError(f"symmetry.trace: {self.ledger.here}: expected {expected}, got {got}. {HAND}")


def tensors(item: Any) -> Iterator[Value]:
    """The values in nested arguments."""
    if isinstance(item, Value):
        yield item
    elif isinstance(item, (tuple, list)):
        for inner in item:
            yield from tensors(inner)
    elif isinstance(item, dict):
        yield from tensors(tuple(item.values()))


def mapped(item: Any, change: Callable[[Value], Any]) -> Any:
    """Nested arguments with every value changed."""
    if isinstance(item, Value):
        return change(item)
    if isinstance(item, (tuple, list)):
        made = [mapped(inner, change) for inner in item]
        return tuple(made) if isinstance(item, tuple) else made
    if isinstance(item, dict):
        return {key: mapped(inner, change) for key, inner in item.items()}
    if isinstance(item, slice):
        return slice(*(mapped(inner, change) for inner in (item.start, item.stop, item.step)))
    return item
