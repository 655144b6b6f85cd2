"""The operations of a module in order, each with its line in the source; and a mode in which they stay in float64.

``operations`` follows modules down to functions of tensors, torch's own layers too. A module that is more than a
function, such as an LSTM, stays a module in the graph.
"""

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ckptzoo.errors import Problem, SymmetryError

DECLARE_BY_HAND = "Declare the table by hand, as a ckptzoo.schema.symmetry.Symmetry."
"""The next step in every message of a trace that cannot go on."""
# The files of torch.nn.modules whose classes call one function of torch.nn.functional each.
_FILES = (
    "activation channelshuffle container conv dropout flatten linear normalization padding pixelshuffle pooling"
    " upsampling"
)
_FUNCTIONS = frozenset(f"torch.nn.modules.{name}" for name in _FILES.split())
# Classes in those files that torch.fx keeps whole all the same: there is no rule for what they do.
_KEPT_WHOLE = (nn.MultiheadAttention, nn.Bilinear, nn.CrossMapLRN2d, nn.Softmax2d)
_BATCH = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_INSTANCE = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
# Folders whose lines are not where an operation is, each with a separator at its end.
_TORCH, _THIS_PACKAGE = (str(Path(file).parent / "_")[:-1] for file in (torch.__file__, __file__))
_LOCATION = "ckptzoo_location"
"""Key of a node's module, file and line in its ``meta``."""
# Methods of tensors that change the dtype.
_CASTS = frozenset({"float", "half", "bfloat16", "to", "type", "type_as"})
_NARROW = (torch.float32, torch.float16, torch.bfloat16)


class _Tracer(fx.Tracer):
    """Follows modules into their functions, and notes the location of each operation."""

    # torch.fx reads buffers as constants unless this is set; then they are nodes, like parameters.
    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module stays whole: torch's modules that are more than a function of their tensors."""
        kind = type(m).__module__
        functions = kind in _FUNCTIONS and not isinstance(m, _KEPT_WHOLE)
        return kind.startswith(("torch.nn.", "torch.ao.")) and not functions and _function(m) is None

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Normalisations are called without the checks that they make on their input's shape."""
        return super().call_module(m, _function(m) or forward, args, kwargs)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """The first argument is the input; the others keep their defaults."""
        return root_fn, [self.root, self.create_proxy("placeholder", "input", (), {})]

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """A node that knows its module, file and line."""
        node = super().create_node(*args, **kwargs)
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        while frame is not None and frame.f_code.co_filename.startswith((_TORCH, _THIS_PACKAGE)):
            frame = frame.f_back
        file, line = ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
        node.meta[_LOCATION] = (self.scope.module_path, file, line)
        return node


def operations(module: nn.Module) -> fx.Graph:
    """The operations that a module in evaluation mode does with one input.

    Raises
    ------
    SymmetryError
        They depend on the input's numbers, or torch.fx cannot follow them otherwise.
    """
    try:
        return _Tracer().trace(module)
    except Exception as error:  # the module's own code runs here, with proxies for tensors: it may raise anything
        reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
        expected = "operations that do not depend on the input's numbers, so that torch.fx can trace them"
        location = _last_line(error) or type(module).__name__
        raise SymmetryError(Problem("symmetry.trace", location, expected, repr(reason), DECLARE_BY_HAND)) from error


def module_of(node: fx.Node) -> str:
    """The module that an operation is in, by its name in the module that was traced."""
    return node.meta[_LOCATION][0]


def location_of(node: fx.Node) -> str:
    """Where an operation is, for messages: ``layer1.0, net.py line 12``."""
    module, file, line = node.meta[_LOCATION]
    return ", ".join([*([module] if module else []), *([f"{Path(file).name} line {line}"] if file else [])])


def code_of(node: fx.Node) -> str:
    """The source line of an operation, empty where the source is not known."""
    _, file, line = node.meta[_LOCATION]
    return linecache.getline(file, line).strip()


def _function(m: nn.Module) -> Callable[..., Any] | None:
    """The function of BatchNorm and InstanceNorm in evaluation mode; None for other modules."""
    if isinstance(m, _BATCH) and type(m).forward is nn.BatchNorm2d.forward:
        batch_statistics = m.running_mean is None
        return lambda x: F.batch_norm(x, m.running_mean, m.running_var, m.weight, m.bias, batch_statistics, 0.0, m.eps)
    if isinstance(m, _INSTANCE) and type(m).forward is nn.InstanceNorm2d.forward:
        batch_statistics = m.running_mean is None
        return lambda x: F.instance_norm(
            x, m.running_mean, m.running_var, m.weight, m.bias, batch_statistics, 0.0, m.eps
        )
    return None


def _last_line(error: BaseException) -> str:
    """The last line of an error's traceback that is neither torch's nor of this package."""
    location, step = "", error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if not file.startswith((_TORCH, _THIS_PACKAGE)):
            location = f"{Path(file).name} line {step.tb_lineno}"
        step = step.tb_next
    return location


class Float64Mode(TorchFunctionMode):
    """While it is entered, no operation leaves float64: casts of floats do nothing, and new floats are float64."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The operation, in float64."""
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, torch.Tensor) or result.dtype not in _NARROW:
            return result
        cast = getattr(func, "__name__", "") in _CASTS and args[0].dtype == torch.float64
        return args[0] if cast else result.double()
