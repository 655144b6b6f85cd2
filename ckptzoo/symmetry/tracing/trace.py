"""From a module to its verified symmetry table: one pass over its operations, with the example's numbers."""

import operator
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.nn.parameter import is_lazy

from ckptzoo.errors import Problem, SpecError, SymmetryError, ZooError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.symmetry.traced import Traced
from ckptzoo.symmetry.tracing.constraints import OUTPUT, SINGLE, Constraints, Labels, constant_labels
from ckptzoo.symmetry.tracing.decompositions import PART_OF, decompose
from ckptzoo.symmetry.tracing.example import Example
from ckptzoo.symmetry.tracing.folds import candidate_folds
from ckptzoo.symmetry.tracing.graph import (
    DECLARE_BY_HAND,
    Operations,
    check_that_it_runs,
    code_of,
    is_cast,
    location_of,
    module_of,
    name_of,
    operations,
    schema_of,
    widened,
)
from ckptzoo.symmetry.tracing.module_copy import copied_in_float64
from ckptzoo.symmetry.tracing.rules.buffers import computed_from_buffers, placed_or_fixed, stored_buffer
from ckptzoo.symmetry.tracing.rules.call import (
    CONSTANT,
    DATA,
    PARAMETER,
    Call,
    Stored,
    Value,
    map_values,
    values_in,
)
from ckptzoo.symmetry.tracing.rules.registry import FILLS, RULES, is_check, is_known, is_linear
from ckptzoo.symmetry.tracing.rules.weights import computed_weight
from ckptzoo.symmetry.tracing.shared_memory import check_memory
from ckptzoo.symmetry.tracing.table import build_table
from ckptzoo.symmetry.tracing.verify import verify_table

_ROWS = 2
"""Rows of the example that the pass takes; a module that insists on another number gets all of them."""
_OF_SIZES = frozenset({"_operator", "math", "builtins", "torch"})
"""Modules with functions on sizes, such as ``torch.sym_max``. Others may change the state of the process: those of
``torch.func.vmap`` would leave it in the midst of a transform where the trace ends in between."""
_COPIES = frozenset({"clone", "detach", "alias", "contiguous"})
"""Operators whose result has the numbers of a tensor in the same places."""


def trace_module(module: nn.Module, example_input: Any) -> Traced:
    """Return a module's symmetries, as ``ckptzoo.symmetry.trace``; the module is not changed."""
    if isinstance(module, type):
        step = f"Make a network of it: {module.__name__}(...)."
        raise SpecError(Problem("trace", "module", "a torch module", f"the class {module.__name__}", step))
    example = Example.of(example_input)
    _check_numbers(module)
    arch = Architecture.of(module.state_dict(), name=type(module).__name__, input_shape=example.shape)
    names = {name: tensor.name for tensor in arch.tensors for name in (tensor.name, *tensor.aliases)}
    double = copied_in_float64(module)
    constraints, found = _constraints_of(double, names, example)
    derived, notes, mixable, normed = build_table(constraints, arch)
    derived = replace(derived, folds=candidate_folds(found, names))
    derived.check(arch)
    bounds, vectors = constraints.index_bounds, constraints.head_vectors
    symmetry, worst, failed = verify_table(double, arch, derived, example, bounds, mixable, vectors, normed)
    check_memory(module, double, found, symmetry)
    tied = tuple((other, tensor.name) for tensor in arch.tensors for other in tensor.aliases)
    return Traced(replace(symmetry, tied=tied), arch, notes + failed, worst)


def _check_numbers(module: nn.Module) -> None:
    """Check that parameters and buffers have numbers, none is NaN, and none infinite but in buffers, such as masks."""
    stored = module.state_dict().keys()
    for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name, value in tensors:
            if (lacking := _lacking(value, name in stored)) is not None:
                raise SymmetryError(Problem("symmetry.trace", f"{kind} {name!r}", "a tensor of numbers", *lacking))
            wrong = value.isnan() if kind == "buffer" or not value.is_floating_point() else ~value.isfinite()
            if bool(wrong.any()):
                got = f"{int(wrong.sum())} of {value.numel()} that are NaN or infinite"
                step = "Trace the module with other weights: the table depends on its operations alone."
                raise SymmetryError(Problem("symmetry.trace", f"{kind} {name!r}", "finite numbers", got, step))


def _lacking(value: torch.Tensor, stored: bool) -> tuple[str, str] | None:
    """Return what a tensor is in place of one with all its numbers, and what to do; None where it has them."""
    if is_lazy(value):
        return "one whose shape is open", "Call the module on an example first."
    if value.is_meta:
        return "one on the device 'meta'", "Load weights first, by assign=True."
    if value.layout != torch.strided and stored:
        return f"one of layout {value.layout}", "Keep it as to_dense(), or register it with persistent=False."
    return None


def _constraints_of(module: nn.Module, names: Mapping[str, str], example: Example) -> tuple[Constraints, Operations]:
    """Return the module's operations and constraints, from two rows of the example if they take two, else from all."""
    if example.count > _ROWS:
        with suppress(SymmetryError):
            return _constraints_of(module, names, example.rows(_ROWS))
    try:
        return _interpreted(operations(module, example), names, example)
    except (SharedMemoryChanged, StateChanged):
        return _interpreted(operations(module, example, functional=True), names, example)
    except OperationFailed:
        check_that_it_runs(module, example)
        raise


def _interpreted(found: Operations, names: Mapping[str, str], example: Example) -> tuple[Constraints, Operations]:
    decompose(found, is_known)
    with torch.no_grad():
        return Interpreter(found, names).run(example), found


class SharedMemoryChanged(SymmetryError):
    """A tensor is changed in place that others share, so that the labels of these would be wrong."""


class StateChanged(SymmetryError):
    """A function is called that may change the state of the process, as those with which ``torch.func.vmap`` begins."""


class OperationFailed(SymmetryError):
    """An operation or its rule raised an error of another kind."""


class Interpreter:
    """One pass over a module's operations: the value of each, its labels, and the constraints that they make. ``names``
    maps each name of a tensor in the state dict to its name in the architecture; aliases share one.
    """

    def __init__(self, found: Operations, names: Mapping[str, str]) -> None:
        self.constraints = Constraints()
        self._found, self._names = found, names
        self._live: list[dict[fx.Node, Any]] = []

    def run(self, example: Example) -> Constraints:
        """Return everything that the operations tie, scale and fix.

        Raises ``SymmetryError`` where there is no rule for an operation, or its rule does not cover this use, and
        ``SharedMemoryChanged`` where an operation in place changes memory that several values share.
        """
        leaves = dict(zip(self._found.inputs, enumerate(example.copy().leaves), strict=True))
        arguments: list[Any] = []
        for node in self._found.graph.find_nodes(op="placeholder"):
            if node.name in self._found.tensors:
                target, tensor = self._found.tensors[node.name]
                self._check_reference(target, tensor)
                arguments.append(self._stored(target, tensor))
            else:
                arguments.append(self._input(*leaves[node.name]))
        outputs = self._run(self._found.graph, arguments)
        self.constraints.operation = "the module"
        why = self.constraints.reason("gives them as outputs")
        for value in values_in([item for item, own in zip(outputs, self._found.outputs, strict=True) if own]):
            self.constraints.channels.mark(value.labels.channel, OUTPUT, why)
            with placed_or_fixed(self.constraints, [value]):
                pass
            self.constraints.forbid_scale(value.labels.scale, "gives them as outputs")
        return self.constraints

    def _run(self, graph: fx.Graph, arguments: list[Any]) -> Any:
        """Return the outputs of a graph; parts of a module, such as code under autocast, have graphs of their own."""
        # Values are dropped after their last use, so that memory is that of the widest cut through the graph.
        uses_left = {node: len(node.users) for node in graph.nodes}
        values: dict[fx.Node, Any] = {}
        self._live.append(values)
        given = iter(arguments)
        outputs: Any = None
        for node in graph.nodes:
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "output":
                outputs = args[0]
            elif node.op == "get_attr":
                values[node] = operator.attrgetter(str(node.target))(graph.owning_module)
            else:
                location = location_of(node)
                self.constraints.operation = repr(name_of(node.target)) + (f" ({location})" if location else "")
                values[node] = self._checked_call(node, args, kwargs)
            for used in node.all_input_nodes:
                uses_left[used] -= 1
                if not uses_left[used]:
                    del values[used]
        self._live.pop()
        return outputs

    def _check_reference(self, target: str, tensor: torch.Tensor) -> None:
        """Check that a constant is no tensor of the state dict, used where no weights of another network would come."""
        if target in self._names or tensor.layout != torch.strided or not tensor.numel():
            return
        for other, stored in self._found.tensors.values():
            if other in self._names and stored.data_ptr() == tensor.data_ptr():
                expected, got = "uses of the parameter or buffer itself", "one through a list or another object"
                step = f"Use self.{other} in the forward function, or an nn.ParameterList in place of a list."
                raise SymmetryError(Problem("symmetry.trace", f"tensor {other!r}", expected, got, step))

    def _initial_labels(self, name: str, tensor: torch.Tensor) -> Labels:
        return constant_labels(tensor.ndim, self.constraints.paths.id_of("start", name))

    def _input(self, number: int, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        name = "input" if not number else f"input {number}"
        index_of = frozenset() if leaf.is_floating_point() else frozenset({number})
        return Value(leaf, self._initial_labels(name, leaf), DATA, index_of=index_of)

    def _stored(self, target: str, tensor: torch.Tensor) -> Value:
        origin = PARAMETER if isinstance(tensor, nn.Parameter) else CONSTANT
        name = self._names.get(target)
        source = None if name is None else (name, tuple(range(tensor.ndim)))
        tensor = widened(tensor.detach())
        if name is not None:
            self.constraints.shapes[name] = tuple(tensor.shape)
        stored = stored_buffer(name, tensor) if name is not None and origin == CONSTANT else None
        return Value(tensor, self._initial_labels(name or target, tensor), origin, source, stored=stored)

    def _checked_call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self._call(node, args, kwargs)
        except ZooError:
            raise
        except Exception as error:  # torch raises TypeError, ValueError, IndexError, RuntimeError and others
            expected, got = "arguments that the operation and its rule take", f"{type(error).__name__} {str(error)!r}"
            step = f"Pass an example input that the module takes. {DECLARE_BY_HAND}"
            raise OperationFailed(Problem("symmetry.trace", self.constraints.operation, expected, got, step)) from error

    def _call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target: Any = node.target
        if target is operator.getitem:
            return target(*args)
        if isinstance(target, type) and issubclass(target, tuple):  # such as torch.return_types.max
            return tuple(args[0] if isinstance(args[0], (tuple, list)) else args)
        # torch.export's wrap_with_autocast and wrap_with_set_grad_enabled
        if name_of(target).startswith("wrap_with"):
            return self._part(node, args)
        if (schema := schema_of(target)) is None:
            if getattr(target, "__module__", None) not in _OF_SIZES:
                raise StateChanged(self._unknown_operation(node).problems)
            if any(values_in((args, kwargs))):
                raise self._unknown_operation(node)
            return target(*args, **kwargs)  # on sizes alone
        if is_check(name_of(target)):
            return None
        return self._operation(node, dict(zip((item.name for item in schema.arguments), args, strict=False)) | kwargs)

    def _operation(self, node: fx.Node, arguments: dict[str, Any]) -> Any:
        """Carry out an operation of torch, and label its result."""
        target: Any = node.target
        name, values = name_of(target), list(values_in(arguments))
        if is_cast(name) and (kept := _kept_in_float64(arguments)) is not None:
            return kept
        plain = map_values(arguments, lambda value: value.tensor)
        if name in ("sym_size", "sym_numel"):
            return target(**plain)
        call = Call(
            self.constraints, name.removesuffix("_"), arguments, None, target, module_of(node), _results_used(node)
        )
        if not is_known(name):
            self._check_without_rule(node, values)
        before = {id(value.tensor): (value, _version(value)) for value in values}
        result = call.result = _repaired(target(**plain), before)
        changed = [value for value, version in before.values() if _version(value) != version]
        others = values[1:] if call.name in FILLS else values
        if all(value.origin == CONSTANT for value in others):
            if call.name in _COPIES and values[0].source is not None:
                return replace(values[0], tensor=result)
            made = self._constant(result, call, *values)
            for value in changed:
                self._mark_changed(value, made)
            return made
        for value in changed:
            if value.unlabelled:
                expected = "parameters that stay as they are"
                raise call.unsupported(expected, f"{name!r} in place of one")
            if value.origin == CONSTANT or self._sharing(value):
                raise self._changed_in_place(name)
        if (weight := computed_weight(call)) is not None:
            if id(result) in before:
                before[id(result)][0].formula = weight.formula
            return weight
        if isinstance(result, torch.Tensor) and torch.Tag.pointwise in target.tags and len(values) == 1:
            (value,) = values
            if value.function or (value.unlabelled and len(value.long_axes) > 1):
                return replace(value, tensor=result, function=True)
        origin = DATA if any(value.origin == DATA for value in values) else PARAMETER
        with placed_or_fixed(call.constraints, values):
            labels = RULES[call.name](call) if call.name in RULES else self._of_what_stays(call, node, values)
        self._mark_single(call, values, labels)
        if not isinstance(result, torch.Tensor):
            made = [
                item if isinstance(item, Value) else _value(tensor, item, origin)
                for tensor, item in zip(result, labels, strict=True)
            ]
            return type(result)(made)
        if isinstance(labels, Value):
            return labels
        # An operation in place returns its argument: whoever has that tensor sees the new labels too.
        value = before[id(result)][0] if id(result) in before else Value(result, labels, origin)
        value.labels, value.origin = _checked_labels(labels, result), origin
        return value

    def _check_without_rule(self, node: fx.Node, values: list[Value]) -> None:
        """Check that an operation without a rule is no random one, and has arguments that no symmetry changes."""
        target: Any = node.target
        if torch.Tag.nondeterministic_seeded in target.tags:
            expected = "an operation whose result is the same each time, in evaluation mode"
            raise self._refused(node, expected, "Draw the numbers once, as a buffer of the module.")
        if any(value.origin != CONSTANT for value in values):
            if target._schema.is_mutable:
                raise self._changed_in_place(name_of(target))
            if not all(value.stays for value in values):
                raise self._unknown_operation(node)

    def _of_what_stays(self, call: Call, node: fx.Node, values: list[Value]) -> Any:
        """Return labels of results of an operation without a rule, whose arguments no symmetry changes."""
        several = call.result if isinstance(call.result, (tuple, list)) else [call.result]
        if not all(isinstance(item, torch.Tensor) for item in several):
            raise self._unknown_operation(node)
        histories = [tuple(value.labels.path.ravel().tolist()) for value in values]
        labels = [
            constant_labels(item.ndim, self.constraints.paths.id_of(call.description, number, *histories))
            for number, item in enumerate(several)
        ]
        return labels if isinstance(call.result, (tuple, list)) else labels[0]

    def _mark_single(self, call: Call, values: list[Value], labels: Any) -> None:
        """Mark the channels of the arguments and results of an operation that takes them one by one."""
        made = labels if isinstance(labels, (tuple, list)) else [labels]
        given = [value.labels for value in values]
        if is_linear(
            call.name, sum(not item.invariant or value.unlabelled for item, value in zip(given, values, strict=True))
        ):
            return
        for item in (*given, *(one.labels if isinstance(one, Value) else one for one in made)):
            self.constraints.channels.mark(item.channel, SINGLE, self.constraints.reason("takes channels one by one"))

    def _part(self, node: fx.Node, args: tuple[Any, ...]) -> Any:
        """Run a part of the module with a graph of its own, under another autocast or gradient mode."""
        number = next((at for at, item in enumerate(args) if isinstance(item, fx.GraphModule)), None)
        if number is None:
            raise self._unknown_operation(node)
        return self._run(args[number].graph, list(args[number + 1 :]))

    def _constant(self, result: Any, call: Call, *values: Value, number: str = "") -> Any:
        """Return a result that depends on no input and no parameter, as a value where it is a tensor."""
        if isinstance(result, torch.Tensor):
            paths = (int(value.labels.path.ravel()[0]) for value in values)
            path = self.constraints.paths.id_of("constant", call.description + number, *paths)
            stored = computed_from_buffers(call, result, values)
            return Value(result, constant_labels(result.ndim, path), CONSTANT, stored=stored)
        if type(result) in (tuple, list):
            return type(result)(
                self._constant(item, call, *values, number=f"{number} {place}") for place, item in enumerate(result)
            )
        return result

    def _sharing(self, value: Value) -> list[Value]:
        """Return the other values that are alive and share a value's memory."""
        memory = value.tensor.untyped_storage().data_ptr()
        alive = values_in(tuple(tuple(values.values()) for values in self._live))
        return [item for item in alive if item is not value and item.tensor.untyped_storage().data_ptr() == memory]

    def _mark_changed(self, value: Value, made: Value) -> None:
        """Give a new history to a constant that was changed in place, and to all that share its memory."""
        for item in (value, *self._sharing(value)):
            item.labels, item.source = constant_labels(item.tensor.ndim, int(made.labels.path.ravel()[0])), None
            if made.stored is not None or item.stored is not None:
                names = [one.names for one in (made.stored, item.stored) if one is not None]
                item.stored = Stored(frozenset[str]().union(*names))

    def _changed_in_place(self, name: str) -> SharedMemoryChanged:
        expected = "no change in place of a tensor that is used again"
        return SharedMemoryChanged(
            Problem("symmetry.trace", self.constraints.operation, expected, f"{name!r} in place", DECLARE_BY_HAND)
        )

    def _unknown_operation(self, node: fx.Node) -> SymmetryError:
        return self._refused(node, "an operation that there is a rule for", DECLARE_BY_HAND)

    def _refused(self, node: fx.Node, expected: str, step: str) -> SymmetryError:
        whole = node.meta.get(PART_OF)
        of = "" if whole is None else f" of {whole!r}"
        got = repr(name_of(node.target)) + of + (f" in `{code}`" if (code := code_of(node)) else "")
        return SymmetryError(Problem("symmetry.trace", self.constraints.operation, expected, got, step))


def _results_used(node: fx.Node) -> frozenset[int]:
    """Return the numbers of an operation's results that are used, where it has several."""
    return frozenset(user.args[1] for user in node.users if user.target is operator.getitem and user.users)  # pyright: ignore[reportReturnType]


def _kept_in_float64(arguments: Mapping[str, Any]) -> Value | None:
    """Return the argument of a cast from floats to floats, which stays in float64; None for other casts."""
    value, other = arguments["self"], arguments.get("other")
    dtype = other.tensor.dtype if isinstance(other, Value) else arguments.get("dtype")
    floats = value.tensor.is_floating_point() and (dtype is None or dtype.is_floating_point)
    return value if floats else None


def _repaired(result: Any, before: Mapping[int, Any]) -> Any:
    """Return a result in float64; the result of an operation in place stays the tensor that it changed."""
    return result if id(result) in before else widened(result)


def _value(tensor: torch.Tensor, labels: Labels, origin: str) -> Value:
    return Value(tensor, _checked_labels(labels, tensor), origin)


def _checked_labels(labels: Labels, tensor: torch.Tensor) -> Labels:
    """Return the labels, checked to broadcast to the tensor's shape."""
    shape = tuple(tensor.shape)
    for item in (labels.channel, labels.scale, labels.path):
        if item.ndim != len(shape) or np.broadcast_shapes(item.shape, shape) != shape:
            raise ValueError(f"labels of shape {item.shape} for a result of shape {shape}")
    return labels


def _version(value: Value) -> int:
    """Return how often the tensor was changed in place, as autograd counts it."""
    return value.tensor._version
