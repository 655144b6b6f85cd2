"""How every function of the engine is compiled."""

from typing import Any

OPTIONS: dict[str, Any] = {"error_model": "numpy"}
"""Division as numpy does it, without checks that may raise."""
INLINE: dict[str, Any] = {**OPTIONS, "forceinline": True}
"""For a piece of a step: it becomes part of the function that calls it, so that vectors stay in registers."""
