"""The text that a result prints."""

import io
from typing import Any

from rich.console import Console


def printed(found: Any, width: int = 100) -> str:
    """Return the text in a window of a given number of columns."""
    console = Console(width=width, file=io.StringIO(), record=True)
    found.print(console)
    return console.export_text()


def line_of(found: Any, width: int = 100) -> str:
    """The same on one line, whatever is broken where; nothing in it is cut."""
    text = printed(found, width)
    assert "…" not in text
    return " ".join(text.split())
