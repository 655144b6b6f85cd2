"""From a module to its verified symmetry table: one pass over its operations, with the example's numbers."""

import copy
import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from ckptzoo.errors import Problem, SymmetryError, ZooError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.symmetry.tracing.constraints import OUTPUT, Constraints, Labels, constant_labels
from ckptzoo.symmetry.tracing.graph import DECLARE_BY_HAND, Float64Mode, code_of, location_of, module_of, operations
from ckptzoo.symmetry.tracing.result import Traced
from ckptzoo.symmetry.tracing.rules.call import CONSTANT, DATA, PARAMETER, Call, Value, map_values, values_in
from ckptzoo.symmetry.tracing.rules.registry import FILLS, RULES, SHAPE_FACTS, is_method, name_of
from ckptzoo.symmetry.tracing.table import build_table
from ckptzoo.symmetry.tracing.verify import verify_table

_ROWS = 2
"""Rows of the example that the pass takes; a module that insists on another number gets all of them."""


def trace_module(module: nn.Module, example_input: torch.Tensor) -> Traced:
    """A module's symmetries, as ``ckptzoo.symmetry.trace`` says; the module is not changed."""
    example = _example(example_input)
    shape = tuple(example.shape[1:])
    arch = Architecture.of(module.state_dict(), name=type(module).__name__, input_shape=shape or None)
    names = {name: tensor.name for tensor in arch.tensors for name in (tensor.name, *tensor.aliases)}
    double = copy.deepcopy(module).cpu().double().eval()
    derived, notes = build_table(_constraints_of(double, names, example), arch)
    derived.check(arch)
    symmetry, worst, failed = verify_table(double, arch, derived, example)
    return Traced(symmetry, arch, notes + failed, worst)


def _constraints_of(module: nn.Module, names: Mapping[str, str], example: torch.Tensor) -> Constraints:
    """The constraints of the module's operations, from two rows of the example if they take two, else from all."""
    graph = operations(module)
    with torch.no_grad(), Float64Mode():
        if len(example) > _ROWS:
            with suppress(SymmetryError):
                return Interpreter(module, names).run(graph, example[:_ROWS])
        return Interpreter(module, names).run(graph, example)


def _example(given: object) -> torch.Tensor:
    """The example in float64, on the CPU."""
    if isinstance(given, torch.Tensor) and given.is_floating_point() and given.numel():
        return given.detach().cpu().double()
    got = f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, torch.Tensor) else type(given).__name__
    expected = "a tensor of floats with at least one entry"
    step = "Pass one such as the module takes, with an axis of examples first."
    raise SymmetryError(Problem("symmetry.trace", "example input", expected, got, step))


class Interpreter:
    """One pass over a module's operations: the value of each, its labels, and the constraints that they make.

    Parameters
    ----------
    module
        the module that the operations were traced from.
    names
        for each name of a tensor in the state dict, its name in the architecture; aliases share one.
    """

    def __init__(self, module: nn.Module, names: Mapping[str, str]) -> None:
        self.constraints = Constraints()
        self._module, self._names = module, names
        self._values: dict[fx.Node, Any] = {}

    def run(self, graph: fx.Graph, example: torch.Tensor) -> Constraints:
        """Everything that the operations tie, scale and fix.

        Raises
        ------
        SymmetryError
            There is no rule for an operation, or its rule does not cover this use.
        """
        # Values are dropped after their last use, so that memory is that of the widest cut through the graph.
        uses_left = {node: len(node.users) for node in graph.nodes}
        for node in graph.nodes:
            self.constraints.operation = f"{self._title(node)} ({location_of(node)})"
            if node.op == "placeholder":
                self._values[node] = Value(example.clone(), self._initial_labels("input", example), DATA)
            elif node.op == "get_attr":
                self._values[node] = self._attribute(str(node.target))
            elif node.op == "output":
                self._output(self._arguments(node.args))
            else:
                self._values[node] = self._checked_call(node)
            for used in node.all_input_nodes:
                uses_left[used] -= 1
                if not uses_left[used]:
                    del self._values[used]
        return self.constraints

    def _initial_labels(self, name: str, tensor: torch.Tensor) -> Labels:
        return constant_labels(tensor.ndim, self.constraints.paths.id_of("start", name))

    def _attribute(self, target: str) -> Any:
        tensor: Any = operator.attrgetter(target)(self._module)
        if not isinstance(tensor, torch.Tensor):
            return tensor
        origin = PARAMETER if isinstance(tensor, nn.Parameter) else CONSTANT
        name = self._names.get(target)
        source = None if name is None else (name, tuple(range(tensor.ndim)))
        return Value(tensor.detach(), self._initial_labels(name or target, tensor), origin, source)

    def _arguments(self, args: Any) -> Any:
        return fx.map_arg(args, lambda node: self._values[node])

    def _output(self, args: Any) -> None:
        self.constraints.operation = "the module"
        why = self.constraints.reason("gives them as outputs")
        for value in values_in(args):
            self.constraints.channels.mark(value.labels.channel, OUTPUT, why)
            self.constraints.forbid_scale(value.labels.scale, "gives them as outputs")

    def _checked_call(self, node: fx.Node) -> Any:
        try:
            return self._call(node)
        except ZooError:
            raise
        except Exception as error:  # torch raises TypeError, ValueError, IndexError, RuntimeError and others
            expected, got = "arguments that the operation and its rule take", f"{type(error).__name__} {str(error)!r}"
            step = f"Pass an example input that the module takes. {DECLARE_BY_HAND}"
            raise SymmetryError(Problem("symmetry.trace", self.constraints.operation, expected, got, step)) from error

    def _call(self, node: fx.Node) -> Any:
        target: Any = node.target
        args, kwargs = self._arguments(node.args), self._arguments(node.kwargs)
        if target in (operator.getitem, getattr) and not isinstance(args[0], Value):
            return target(*args)
        values = list(values_in((args, kwargs)))
        if not values and node.op == "call_function":
            return self._constant(target(*args, **kwargs), str(node))
        name, apply, args = _operation(node, args)
        if name is None:
            raise self._unknown_operation(node)
        before = {id(value.tensor): (value, _version(value)) for value in values}
        plain = map_values((args, kwargs), lambda value: value.tensor)
        result = apply(*plain[0], **plain[1])
        call = Call(self.constraints, name.removesuffix("_"), args, kwargs, result, apply, module_of(node))
        for value, version in before.values():
            if _version(value) != version:
                self._check_used_once(value, call)
        if call.name in SHAPE_FACTS:
            return result
        if call.name in FILLS or all(value.origin == CONSTANT for value in values):
            return self._constant(result, call.description, *values)
        origin = DATA if any(value.origin == DATA for value in values) else PARAMETER
        labels = RULES[call.name](call)
        if not isinstance(result, torch.Tensor):
            return type(result)([_value(tensor, item, origin) for tensor, item in zip(result, labels, strict=True)])
        if isinstance(labels, Value):
            return labels
        # An operation in place returns its argument: whoever has that tensor sees the new labels too.
        value = before[id(result)][0] if id(result) in before else Value(result, labels, origin)
        value.labels, value.origin = _checked_labels(labels, result), origin
        return value

    def _constant(self, result: Any, history: str, *values: Value) -> Any:
        """A result that depends on no input and no parameter, as a value where it is a tensor."""
        if isinstance(result, torch.Tensor):
            paths = (int(value.labels.path.ravel()[0]) for value in values)
            return Value(
                result,
                constant_labels(result.ndim, self.constraints.paths.id_of("constant", history, *paths)),
                CONSTANT,
            )
        if type(result) in (tuple, list):
            return type(result)(
                self._constant(item, f"{history} {number}", *values) for number, item in enumerate(result)
            )
        return result

    def _check_used_once(self, value: Value, call: Call) -> None:
        """Raise where a tensor is changed in place that other values share: their labels would be wrong."""
        memory = value.tensor.untyped_storage().data_ptr()
        others = (item for item in values_in(tuple(self._values.values())) if item is not value)
        if value.origin != DATA or any(item.tensor.untyped_storage().data_ptr() == memory for item in others):
            raise call.unsupported("no change in place of a tensor that is used again", f"{call.name!r} in place")

    def _title(self, node: fx.Node) -> str:
        """An operation's name, or a module's class."""
        if node.op == "call_module":
            return type(self._module.get_submodule(str(node.target))).__name__
        name = node.args[1] if node.target is getattr else getattr(node.target, "__name__", node.target)
        return repr(str(name))

    def _unknown_operation(self, node: fx.Node) -> SymmetryError:
        got = self._title(node) + (f" in `{code}`" if (code := code_of(node)) else "")
        expected = "an operation that there is a rule for"
        return SymmetryError(Problem("symmetry.trace", self.constraints.operation, expected, got, DECLARE_BY_HAND))


def _operation(node: fx.Node, args: tuple[Any, ...]) -> tuple[str | None, Callable[..., Any], tuple[Any, ...]]:
    """An operation's name, None where there is no rule for it; what does it; and its arguments."""
    target: Any = node.target
    if node.op == "call_function" and target is not getattr:
        return name_of(target), target, args
    name = str(args[1] if target is getattr else target)
    known = name if node.op != "call_module" and is_method(name) else None
    if target is getattr:
        return known, lambda tensor: getattr(tensor, name), args[:1]
    return known, lambda tensor, *others, **named: getattr(tensor, name)(*others, **named), args


def _value(tensor: torch.Tensor, labels: Labels, origin: str) -> Value:
    return Value(tensor, _checked_labels(labels, tensor), origin)


def _checked_labels(labels: Labels, tensor: torch.Tensor) -> Labels:
    """The labels, checked to broadcast to the tensor's shape."""
    shape = tuple(tensor.shape)
    for item in (labels.channel, labels.scale, labels.path):
        if item.ndim != len(shape) or np.broadcast_shapes(item.shape, shape) != shape:
            raise ValueError(f"labels of shape {item.shape} for a result of shape {shape}")
    return labels


def _version(value: Value) -> int:
    """How often the tensor was changed in place, as autograd counts it."""
    return value.tensor._version
