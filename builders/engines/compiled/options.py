"""The options with which every function of the engine is compiled."""

from typing import Any

OPTIONS: dict[str, Any] = {"error_model": "numpy"}
"""Division as numpy does it, without checks that may raise."""
INLINE: dict[str, Any] = {**OPTIONS, "forceinline": True}
"""The options of a piece of a step: it becomes part of its caller, so that vectors stay in registers."""
