"""An exported module by its operations: which of them use a parameter, multiply by a matrix, or move entries alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from ckptzoo.schema.folds import TensorPart
from ckptzoo.symmetry.tracing.graph import Operations, is_cast, name_of, schema_of
from ckptzoo.symmetry.tracing.rules import shape
from ckptzoo.symmetry.tracing.rules.registry import RULES

SAME = frozenset({"dropout", "feature_dropout", "alpha_dropout", "clone", "contiguous", "alias", "detach"})
"""Operations that do not change values in evaluation mode."""
_MOVES = (shape.rearrange, shape.copy_or_cast, shape.concatenate)


@dataclass(frozen=True)
class MatrixProduct:
    """A product with a matrix of the state dict, whose ``axis`` reads the value's last axis; bias may be missing."""

    value: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    axis: int


class Module:
    """A module's operations, and their uses of parameters; ``names`` maps the state dict's to the architecture's."""

    def __init__(self, found: Operations, names: Mapping[str, str]) -> None:
        self.nodes = list(found.graph.nodes)
        self.number = {node: number for number, node in enumerate(self.nodes)}
        self.parameters: dict[fx.Node, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.stored: dict[fx.Node, torch.Tensor] = {}
        uses: dict[str, int] = {}
        for node in found.graph.find_nodes(op="placeholder"):
            if node.name not in found.tensors:
                continue
            target, tensor = found.tensors[node.name]
            if not isinstance(tensor, nn.Parameter):
                self.stored[node] = tensor
            elif target in names:
                self.parameters[node] = names[target]
                self.shapes[names[target]] = tuple(tensor.shape)
                uses[names[target]] = uses.get(names[target], 0) + len(node.users)
        self._uses = uses

    def used_once(self, node: fx.Node) -> bool:
        """Whether a node is a parameter that one operation uses once."""
        # a tied parameter comes as several nodes, of which some may be unused
        if node not in self.parameters or self._uses[self.parameters[node]] != 1 or len(node.users) != 1:
            return False
        (user,) = node.users
        return sum(item is node for item in _nodes_in((user.args, user.kwargs))) == 1

    def whole(self, node: fx.Node, axis: int) -> TensorPart:
        """Return the target that is all of a parameter."""
        name = self.parameters[node]
        sizes = self.shapes[name]
        return TensorPart(name, axis % len(sizes), (0,) * len(sizes), sizes)

    def layer(self, node: fx.Node) -> MatrixProduct | None:
        """Return the operation as a product with a matrix; None for others."""
        name = operation(node)
        if name == "linear":
            value, weight, bias = (argument(node, key) for key in ("input", "weight", "bias"))
            axis = 1
        elif name == "addmm" and (argument(node, "alpha"), argument(node, "beta")) == (1, 1):
            bias, value, weight = (argument(node, key) for key in ("self", "mat1", "mat2"))
            axis = 0
        # written as ``x @ W``: the first axis of W is read
        elif name in ("mm", "matmul"):
            value, weight, bias = positional(node)[0], positional(node)[1], None
            axis = 0
        else:
            return None
        if weight not in self.parameters or len(self.shapes[self.parameters[weight]]) != 2:
            return None
        return MatrixProduct(value, weight, bias, axis)

    def constant(self, node: Any) -> Any:
        """Return the numbers of a node that depends on no parameter and no input; None for others."""
        if not isinstance(node, fx.Node):
            return node
        if node in self.stored:
            return self.stored[node]
        if node.op != "call_function" or schema_of(node.target) is None:
            return None
        values = {item: self.constant(item) for item in node.all_input_nodes}
        if any(value is None for value in values.values()):
            return None
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        target: Any = node.target
        return target(*args, **kwargs)


def operation(node: fx.Node) -> str:
    """Return the name of a node's operator, without the underscore of operators in place."""
    return name_of(node.target).removesuffix("_") if node.op == "call_function" else node.op


def size_of(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of a node's value."""
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def positional(node: fx.Node) -> tuple[Any, ...]:
    """Return the arguments of an operation that are given by position."""
    return node.args


def moves(name: str) -> bool:
    """Whether an operation moves entries alone, by its name."""
    return name in SAME or is_cast(name) or RULES.get(name) in _MOVES


def moved(node: fx.Node, given: fx.Node, ids: torch.Tensor) -> Any:
    """Apply an operation that moves entries to these numbers of one argument, with -1 in the others."""
    args, kwargs = fx.map_arg(
        (node.args, node.kwargs),
        lambda item: ids.contiguous() if item is given else torch.full(size_of(item), -1),
    )
    # the numbers lie in memory otherwise than the value did, and a view may not be possible
    target: Any = torch.ops.aten.reshape.default if operation(node) == "view" else node.target
    return target(*args, **kwargs)


def argument(node: fx.Node, name: str) -> Any:
    """Return an argument by its name in the operator's schema, or its default; None where there is no such one."""
    for number, item in enumerate(schema_of(node.target).arguments):
        if item.name == name:
            default = item.default_value if item.has_default_value() else None
            return node.args[number] if number < len(node.args) else node.kwargs.get(name, default)
    return None


def _nodes_in(arguments: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(arguments, found.append)
    return found
