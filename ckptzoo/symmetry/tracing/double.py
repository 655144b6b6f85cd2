"""Modules in float64, whatever they cast to."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CASTS = frozenset({"float", "half", "bfloat16", "to", "type", "type_as"})
_NARROW = (torch.float32, torch.float16, torch.bfloat16)


class InDouble(TorchFunctionMode):
    """While it is entered, no operation leaves float64: casts of floats do nothing, and new floats are float64."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The operation, in float64."""
        made = func(*args, **(kwargs or {}))
        if not isinstance(made, torch.Tensor) or made.dtype not in _NARROW:
            return made
        cast = getattr(func, "__name__", "") in _CASTS and args[0].dtype == torch.float64
        return args[0] if cast else made.double()
