"""From a module to its verified symmetry table.

The walk through a module's operations, with the example's numbers and what is known of them.
"""

import copy
import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from ckptzoo.errors import SymmetryError, ZooError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.symmetry.tracing.constraints import OUTPUT, Constraints, Labels, constant_labels
from ckptzoo.symmetry.tracing.graph import HAND, InDouble, code_of, module_of, operations, place_of
from ckptzoo.symmetry.tracing.result import Traced
from ckptzoo.symmetry.tracing.rules import FACTS, FILLED, RULES, is_method, name_of
from ckptzoo.symmetry.tracing.rules.call import CONSTANT, DATA, PARAMETER, Call, Value, mapped, tensors
from ckptzoo.symmetry.tracing.table import table
from ckptzoo.symmetry.tracing.verify import verified


class Interpreter:
    """One pass over a module's operations.

    Parameters
    ----------
    module : what they were traced from.
    names : for each name of a tensor in the state dict, the one it goes by.
    """

    def __init__(self, module: nn.Module, names: Mapping[str, str]) -> None:
        self.ledger = Constraints()
        self._module, self._names = module, names
        self._known: dict[fx.Node, Any] = {}

    def run(self, graph: fx.Graph, example: torch.Tensor) -> Constraints:
        """All that the operations tie, scale and hold.

        Raises
        ------
        SymmetryError
            There is no rule for an operation, or its rule does not cover what it is used for.
        """
        left = {node: len(node.users) for node in graph.nodes}
        for node in graph.nodes:
            self.ledger.here = f"{self._title(node)} ({place_of(node)})"
            if node.op == "placeholder":
                self._known[node] = Value(example.clone(), self._start("input", example), DATA)
            elif node.op == "get_attr":
                self._known[node] = self._attribute(str(node.target))
            elif node.op == "output":
                self._output(self._given(node.args))
            else:
                self._known[node] = self._guarded(node)
            for used in node.all_input_nodes:
                left[used] -= 1
                if not left[used]:
                    del self._known[used]
        return self.ledger

    def _start(self, name: str, tensor: torch.Tensor) -> Labels:
        return constant_labels(tensor.ndim, self.ledger.paths.of("start", name))

    def _attribute(self, target: str) -> Any:
        found: Any = operator.attrgetter(target)(self._module)
        if not isinstance(found, torch.Tensor):
            return found
        origin = PARAMETER if isinstance(found, nn.Parameter) else CONSTANT
        name = self._names.get(target)
        source = None if name is None else (name, tuple(range(found.ndim)))
        return Value(found.detach(), self._start(name or target, found), origin, source)

    def _given(self, args: Any) -> Any:
        return fx.map_arg(args, lambda node: self._known[node])

    def _output(self, args: Any) -> None:
        self.ledger.here = "the module"
        why = self.ledger.reason("gives them as outputs")
        for value in tensors(args):
            self.ledger.channels.mark(value.labels.channel, OUTPUT, why)
            self.ledger.forbid_scale(value.labels.scale, "gives them as outputs")

    def _guarded(self, node: fx.Node) -> Any:
        try:
            return self._call(node)
        except ZooError:
            raise
        except Exception as error:
            raise SymmetryError(
                f"symmetry.trace: {self.ledger.here}: expected arguments that the operation and its rule take, got "
                f"{type(error).__name__} {str(error)!r}. Pass an example input that the module takes. {HAND}"
            ) from error

    def _call(self, node: fx.Node) -> Any:
        target: Any = node.target
        args, kwargs = self._given(node.args), self._given(node.kwargs)
        if target in (operator.getitem, getattr) and not isinstance(args[0], Value):
            return target(*args)
        values = list(tensors((args, kwargs)))
        if not values and node.op == "call_function":
            return self._constant(target(*args, **kwargs), str(node))
        name, apply, args = _operation(node, args)
        if name is None:
            raise self._unknown(node)
        before = {id(value.tensor): (value, _version(value)) for value in values}
        plain = mapped((args, kwargs), lambda value: value.tensor)
        result = apply(*plain[0], **plain[1])
        call = Call(self.ledger, name.removesuffix("_"), args, kwargs, result, apply, module_of(node))
        for value, version in before.values():
            if _version(value) != version:
                self._alone(value, call)
        if call.name in FACTS:
            return result
        if call.name in FILLED or all(value.origin == CONSTANT for value in values):
            return self._constant(result, call.history, *values)
        origin = DATA if any(value.origin == DATA for value in values) else PARAMETER
        made = RULES[call.name](call)
        if not isinstance(result, torch.Tensor):
            return type(result)([_value(tensor, labels, origin) for tensor, labels in zip(result, made, strict=True)])
        if isinstance(made, Value):
            return made
        value = before[id(result)][0] if id(result) in before else Value(result, made, origin)
        value.labels, value.origin = _fitting(made, result), origin
        return value

    def _constant(self, result: Any, history: str, *values: Value) -> Any:
        """What depends on no input and no parameter, as a value where it is a tensor."""
        if isinstance(result, torch.Tensor):
            paths = (int(value.labels.path.ravel()[0]) for value in values)
            return Value(
                result, constant_labels(result.ndim, self.ledger.paths.of("constant", history, *paths)), CONSTANT
            )
        if type(result) in (tuple, list):
            return type(result)(self._constant(item, f"{history} {at}", *values) for at, item in enumerate(result))
        return result

    def _alone(self, value: Value, call: Call) -> None:
        """Refuse a change in place of what is looked at again."""
        memory = value.tensor.untyped_storage().data_ptr()
        others = (item for item in tensors(tuple(self._known.values())) if item is not value)
        if value.origin != DATA or any(item.tensor.untyped_storage().data_ptr() == memory for item in others):
            raise call.refused("no change in place of a tensor that is used again", f"{call.name!r} in place")

    def _title(self, node: fx.Node) -> str:
        """An operation's name, or a module's class."""
        if node.op == "call_module":
            return type(self._module.get_submodule(str(node.target))).__name__
        name = node.args[1] if node.target is getattr else getattr(node.target, "__name__", node.target)
        return repr(str(name))

    def _unknown(self, node: fx.Node) -> SymmetryError:
        got = self._title(node) + (f" in `{code}`" if (code := code_of(node)) else "")
        return SymmetryError(
            f"symmetry.trace: {self.ledger.here}: expected an operation that there is a rule for, got {got}. {HAND}"
        )


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
    return Value(tensor, _fitting(labels, tensor), origin)


def _fitting(labels: Labels, tensor: torch.Tensor) -> Labels:
    """The labels, once they are seen to broadcast to the tensor's shape."""
    shape = tuple(tensor.shape)
    for item in (labels.channel, labels.scale, labels.path):
        if item.ndim != len(shape) or np.broadcast_shapes(item.shape, shape) != shape:
            raise ValueError(f"labels of shape {item.shape} for a result of shape {shape}")
    return labels


def _version(value: Value) -> int:
    """Counts changes in place."""
    return value.tensor._version


_ROWS = 2


def trace(module: nn.Module, example_input: torch.Tensor) -> Traced:
    """A module's symmetries, as ``ckptzoo.symmetry.trace`` says; the module is not changed."""
    example = _example(example_input)
    shape = tuple(example.shape[1:])
    arch = Architecture.of(module.state_dict(), name=type(module).__name__, input_shape=shape or None)
    names = {spelt: tensor.name for tensor in arch.tensors for spelt in (tensor.name, *tensor.aliases)}
    double = copy.deepcopy(module).cpu().double().eval()
    derived, notes = table(_walked(double, names, example), arch)
    derived.check(arch)
    symmetry, worst, failed = verified(double, arch, derived, example)
    return Traced(symmetry, arch, notes + failed, worst)


def _walked(module: nn.Module, names: Mapping[str, str], example: torch.Tensor) -> Constraints:
    """What the module's operations tell, for two rows of the example if they take them, else for all."""
    graph = operations(module)
    with torch.no_grad(), InDouble():
        if len(example) > _ROWS:
            with suppress(SymmetryError):
                return Interpreter(module, names).run(graph, example[:_ROWS])
        return Interpreter(module, names).run(graph, example)


def _example(given: object) -> torch.Tensor:
    """The example in float64, on the CPU."""
    if isinstance(given, torch.Tensor) and given.is_floating_point() and given.numel():
        return given.detach().cpu().double()
    got = f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, torch.Tensor) else type(given).__name__
    raise SymmetryError(
        f"symmetry.trace: example input: expected a tensor of floats with at least one entry, got {got}. "
        "Pass one such as the module takes, with an axis of examples first."
    )
