"""The operations of a module in order, each with its line in the source; and a mode in which they stay in float64.

``operations`` exports a module with ``torch.export`` in evaluation mode: a graph of torch's own operators on tensors,
in which layers such as a convolution, an attention or an LSTM are one operator each.
"""

import linecache
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram, export
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import traceback as fx_traceback
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.symmetry.tracing.example import Example

DECLARE_BY_HAND = "Declare the table by hand, as a ckptzoo.schema.symmetry.Symmetry."
"""The next step in every message of a trace that has failed."""
# Folders whose lines are not where an operation is, each with a separator at its end.
_TORCH, _THIS_PACKAGE = (str(Path(file).parent / "_")[:-1] for file in (torch.__file__, __file__))
_LOCATION = "ckptzoo_location"
"""Key of an operation's file and line among the annotations of its node."""
# Operators and methods of tensors that change the dtype.
_CASTS = frozenset({"float", "half", "bfloat16", "to", "type", "type_as", "_to_copy"})
_NARROW = (torch.float32, torch.float16, torch.bfloat16)
# Experimental in torch, and not there before 2.9: without it, messages name the module and not the line.
_annotate: Callable[[dict[str, Any]], AbstractContextManager[Any]] = getattr(
    fx_traceback, "annotate", lambda _: nullcontext()
)


@dataclass(frozen=True)
class Operations:
    """An exported module: the operators of its graph in order.

    ``tensors`` maps the name of a placeholder to the name of the parameter, buffer or constant that it stands for, and
    the tensor. ``inputs`` are the placeholders of the leaves of the example, in their order. ``outputs`` says which of
    the graph's results are the module's; others are new values of tensors that it changes.
    """

    graph: fx.Graph
    tensors: Mapping[str, tuple[str, torch.Tensor]]
    inputs: tuple[str, ...]
    outputs: tuple[bool, ...]


def operations(module: nn.Module, example: Example, *, functional: bool = False) -> Operations:
    """Return the operations that a module in float64 and evaluation mode does with an example.

    With ``functional`` changes in place become new values, also where they are made through a view. Raises
    ``SymmetryError`` where the module does not take the example, its operations depend on the input's numbers, or
    torch.export cannot follow them otherwise.
    """
    try:
        # torch.export warns of attributes that a module sets on itself, and of its own deprecated classes.
        with warnings.catch_warnings(), torch.no_grad(), _quiet():
            warnings.simplefilter("ignore")
            with fx_traceback.preserve_node_meta(), _ExportMode():
                # not strict: the module's Python code runs, where TorchDynamo would refuse parts of it
                program = export(module, example.args, dict(example.kwargs), strict=False)
            if functional:
                # with an empty table only changes in place are replaced
                program = program.run_decompositions({})
    except Exception as error:  # the module's own code runs here, without numbers: it may raise anything
        outputs = check_that_it_runs(module, example)
        _check_outputs(module, outputs)
        expected = "operations that do not depend on the input's numbers, so that torch.export can trace them"
        raise _refused(module, error, expected, DECLARE_BY_HAND) from error
    signature = program.graph_signature
    inputs = tuple(item.arg.name for item in signature.input_specs if item.kind == InputKind.USER_INPUT)
    outputs = tuple(item.kind == OutputKind.USER_OUTPUT for item in signature.output_specs)
    return Operations(program.graph, dict(_tensors(program, module)), inputs, outputs)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from logging tracebacks of errors that are raised as well."""
    # it logs what it raises, and the error is reported here in its own words
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _tensors(program: ExportedProgram, module: nn.Module) -> Iterator[tuple[str, tuple[str, torch.Tensor]]]:
    signature = program.graph_signature
    for node, name in signature.inputs_to_parameters.items():
        yield node, (name, module.get_parameter(name))
    for node, name in signature.inputs_to_buffers.items():
        yield node, (name, module.get_buffer(name))
    for node, name in signature.inputs_to_lifted_tensor_constants.items():
        constant = program.constants[name]
        assert isinstance(constant, torch.Tensor)
        yield node, (name, constant)


def _check_outputs(module: nn.Module, outputs: Any) -> None:
    """Check that a module's outputs are tensors and what torch.export knows beside them."""
    for item in pytree.tree_leaves(outputs):
        if not isinstance(item, torch.Tensor | int | float | bool | str | None):
            step = "Return tensors alone; a language model of transformers does with config.use_cache = False."
            got = f"a {type(item).__name__} among them"
            raise SymmetryError(Problem("symmetry.trace", type(module).__name__, "outputs of tensors", got, step))


def check_that_it_runs(module: nn.Module, example: Example) -> Any:
    """Return a module's outputs for an example; raises ``SymmetryError`` where it raises an error."""
    try:
        with torch.no_grad(), Float64Mode():
            return example.copy().call(module)
    except Exception as error:  # whatever the module's own code raises
        expected = "an example input that the module takes"
        step = "Pass one such as the module takes: examples along the first axis, floats, or integers for an embedding."
        raise _refused(module, error, expected, step) from error


def _refused(module: nn.Module, error: Exception, expected: str, step: str) -> SymmetryError:
    reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
    return SymmetryError(
        Problem("symmetry.trace", _last_line(error) or type(module).__name__, expected, repr(reason), step)
    )


def schema_of(target: Any) -> Any:
    """Return the schema of one of torch's operators: its name and its arguments; None for any other function."""
    return getattr(target, "_schema", None)


def name_of(target: Any) -> str:
    """Return the name of an operator without its namespace and overload, or of another function."""
    schema = schema_of(target)
    return str(getattr(target, "__name__", target)) if schema is None else schema.name.partition("::")[2]


def module_of(node: fx.Node) -> str:
    """Return the name of the module that an operation is in, within the module that was traced."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    # A module that is called again has the number of the call behind its name.
    return str(stack[-1][0]).partition("@")[0] if stack else ""


def location_of(node: fx.Node) -> str:
    """Return the location of an operation, for messages: ``layer1.0, net.py line 12``."""
    module, (file, line) = module_of(node), _line(node)
    return ", ".join([*([module] if module else []), *([f"{Path(file).name} line {line}"] if file else [])])


def code_of(node: fx.Node) -> str:
    """Return the source line of an operation, empty where the source is not known."""
    return linecache.getline(*_line(node)).strip()


def _line(node: fx.Node) -> tuple[str, int]:
    """Return file and line of an operation: the innermost that are neither torch's nor of this package."""
    return node.meta.get("custom", {}).get(_LOCATION, ("", 0))


def _last_line(error: BaseException) -> str:
    """Return the last line of an error's traceback that is neither torch's nor of this package."""
    location, step = "", error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if not file.startswith((_TORCH, _THIS_PACKAGE)):
            location = f"{Path(file).name} line {step.tb_lineno}"
        step = step.tb_next
    return location


def is_cast(name: str) -> bool:
    """Whether an operator changes the dtype alone."""
    return name in _CASTS


def widened(result: Any) -> Any:
    """Return a result with its floats in float64."""
    if isinstance(result, torch.Tensor):
        return result.double() if result.dtype in _NARROW else result
    if isinstance(result, (tuple, list)):
        return type(result)(map(widened, result)) if type(result) in (tuple, list) else tuple(map(widened, result))
    return result


class Float64Mode(TorchFunctionMode):
    """While it is entered, no operation leaves float64: casts of floats do nothing, and new floats are float64."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # A softmax in float32, as in transformers, would have rows that sum to 1 only up to rounding.
        if kwargs.get("dtype") in _NARROW and args and getattr(args[0], "dtype", None) == torch.float64:
            kwargs = kwargs | {"dtype": torch.float64}
        result = func(*args, **kwargs)
        if not isinstance(result, torch.Tensor) or result.dtype not in _NARROW:
            return result
        cast = getattr(func, "__name__", "") in _CASTS and args[0].dtype == torch.float64
        return args[0] if cast else result.double()


class _ExportMode(Float64Mode):
    """``Float64Mode`` while a graph is made: nodes know the file and line of their code, no sequences are packed."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        # Generated code, whose file is in angle brackets, is no place either.
        while frame is not None and frame.f_code.co_filename.startswith((_TORCH, "<")):
            frame = frame.f_back
        # The first frame of this package is that of the export: torch's own modules alone are within.
        if frame is None or frame.f_code.co_filename.startswith(_THIS_PACKAGE):
            place = ("", 0)
        else:
            place = (frame.f_code.co_filename, frame.f_lineno)
        with _annotate({_LOCATION: place}):
            if (unpacked := _PACKING.get(getattr(func, "__name__", ""))) is not None:
                return unpacked(*args, **(kwargs or {}))
            if len(args) > 1 and isinstance(args[1], _Sizes):
                return _recurrent(func, *args)
            return super().__torch_function__(func, types, args, kwargs)


# Which steps of which sequences are packed depends on the lengths, which are numbers. What happens to channels does
# not, so that sequences are traced as if all of them had all steps. The verification runs the module as it is.


class _Sizes(torch.Tensor):
    """The numbers of sequences in the steps of packed ones: all of them. It has no entries, as graphs have none."""

    sequences: int

    @staticmethod
    def of(steps: int, sequences: int) -> "_Sizes":
        """Return as many steps, each of all sequences."""
        made: Any = torch.Tensor._make_wrapper_subclass(_Sizes, (steps,), dtype=torch.int64)
        made.sequences = sequences
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse every operation."""
        raise NotImplementedError("the sizes of packed sequences in a recurrent layer of torch alone")

    def __getitem__(self, key: Any) -> Any:
        """Return the number of sequences of a step, and of each of several."""
        return self.sequences if isinstance(key, int) else _Sizes.of(len(range(len(self))[key]), self.sequences)


def _packed(data: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand in for ``torch._pack_padded_sequence``."""
    steps = data.transpose(0, 1) if batch_first else data
    return steps.flatten(0, 1), _Sizes.of(*steps.shape[:2])


def _padded(
    data: torch.Tensor, sizes: torch.Tensor, batch_first: bool, padding: float, total: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand in for ``torch._pad_packed_sequence``: no step is padding, but the number for it stays an argument."""
    steps = data.unflatten(0, (len(sizes), -1))
    steps = steps.masked_fill(torch.zeros(steps.shape, dtype=torch.bool), padding)
    if total > len(sizes):
        steps = F.pad(steps, (0, 0) * data.ndim + (0, total - len(sizes)), value=padding)
    lengths = torch.tensor([len(sizes)] * steps.shape[1])
    return steps.transpose(0, 1) if batch_first else steps, lengths


def _recurrent(layer: Callable[..., Any], data: torch.Tensor, sizes: _Sizes, *others: Any) -> Any:
    """Run a recurrent layer on packed sequences."""
    # False is ``batch_first``: packed data have the steps first
    result, *states = layer(data.unflatten(0, (len(sizes), -1)), *others, False)
    return result.flatten(0, 1), *states


_PACKING: dict[str, Callable[..., Any]] = {"_pack_padded_sequence": _packed, "_pad_packed_sequence": _padded}
