"""Example inputs of a module: a tensor, or a tuple or dict of tensors and other arguments; random ones like them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from ckptzoo.errors import Problem, SymmetryError

_STEP = "Pass one such as the module takes, with an axis of examples first."


@dataclass(frozen=True)
class Example:
    """Arguments of a module by position and by name; floats are float64, and everything is on the CPU."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, given: object) -> "Example":
        """Return the example that a caller gives: a tensor, a tuple of positional arguments, or a dict of named ones.
        Raises ``SymmetryError`` where it is none of them, has no tensor, or one without entries.
        """
        if isinstance(given, torch.Tensor):
            args, kwargs = (given,), {}
        elif isinstance(given, tuple):
            args, kwargs = given, {}
        elif isinstance(given, Mapping) and all(isinstance(name, str) for name in given):
            args, kwargs = (), dict(given)
        else:
            raise _refused(type(given).__name__)
        tensors = [item for item in pytree.tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        if not tensors:
            raise _refused("no tensor")
        for item in tensors:
            if not item.numel() or item.is_complex():
                raise _refused(f"{item.dtype} of shape {tuple(item.shape)}")
            if item.is_floating_point() and bool(item.isnan().any()):
                raise _refused(f"NaN in one of shape {tuple(item.shape)}")
        return cls(args, kwargs).map(_in_float64)

    @property
    def leaves(self) -> list[Any]:
        """Tensors and other arguments, those in tuples and dicts one by one."""
        return pytree.tree_leaves((self.args, dict(self.kwargs)))

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one example where there is one tensor of floats alone; else None."""
        only = self.leaves[0] if len(self.leaves) == 1 else None
        return tuple(only.shape[1:]) or None if isinstance(only, torch.Tensor) and only.is_floating_point() else None

    @property
    def count(self) -> int:
        """The number of examples: the length of the first axis of the first tensor."""
        first = next(item for item in self.leaves if isinstance(item, torch.Tensor))
        return len(first) if first.ndim else 1

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Example":
        """Return the example with every tensor changed."""
        args, kwargs = pytree.tree_map_only(torch.Tensor, change, (self.args, dict(self.kwargs)))
        return Example(args, kwargs)

    def copy(self) -> "Example":
        """Return a copy in memory of its own, for a module that may change its arguments in place."""
        return self.map(torch.clone)

    def rows(self, count: int) -> "Example":
        """Return this number of examples: the first ones, or all of them again and again."""
        batch = self.count
        # an argument with another first axis, such as a mask of tokens, is not one of examples
        return self.map(lambda item: _rows(item, count) if item.ndim and len(item) == batch else item)

    def call(self, module: nn.Module) -> Any:
        """Return the module's outputs for the example."""
        return module(*self.args, **self.kwargs)


class Draw:
    """Random examples of the shapes and dtypes of one that is given.

    ``bounds`` has, by the number of a leaf that is an index of embeddings, the number of rows of the smallest of them.
    Integers and booleans without a bound, such as masks, are kept.
    """

    def __init__(self, example: Example, bounds: Mapping[int, int], rng: np.random.Generator) -> None:
        self.example, self._bounds, self._rng = example, bounds, rng

    def normal(self) -> Example:
        """Return an example whose floats are normal, and whose integers are below their bounds."""
        return self._drawn(lambda item: torch.from_numpy(self._rng.standard_normal(tuple(item.shape))))

    def near(self) -> Example:
        """Return an example with floats near the example's, by 10 % noise, and integers below their bounds."""
        return self._drawn(lambda item: item * (1 + 0.1 * torch.from_numpy(self._rng.standard_normal(item.shape))))

    def _drawn(self, floats: Callable[[torch.Tensor], torch.Tensor]) -> Example:
        numbers = iter(range(len(self.example.leaves)))

        def draw(leaf: Any) -> Any:
            number = next(numbers)
            if not isinstance(leaf, torch.Tensor):
                return leaf
            if leaf.is_floating_point():
                return floats(leaf)
            return self._below(self._bounds[number], leaf) if number in self._bounds else leaf

        args, kwargs = pytree.tree_map(draw, (self.example.args, dict(self.example.kwargs)))
        return Example(args, kwargs)

    def _below(self, bound: int, leaf: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.asarray(self._rng.integers(0, bound, tuple(leaf.shape)))).to(leaf.dtype)


def _rows(item: torch.Tensor, count: int) -> torch.Tensor:
    return item.repeat(-(-count // len(item)), *[1] * (item.ndim - 1))[:count]


def _in_float64(item: torch.Tensor) -> torch.Tensor:
    item = item.detach().cpu()
    # differences by a wrong symmetry must stand out against rounding
    return item.double() if item.is_floating_point() else item


def _refused(got: str) -> SymmetryError:
    expected = "a tensor of floats or integers with at least one entry, or a tuple or dict of them"
    return SymmetryError(Problem("symmetry.trace", "example input", expected, got, _STEP))
