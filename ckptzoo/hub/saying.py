"""Lines of text on a console."""

from rich.console import Console

from ckptzoo.text import printable


def say(out: Console, *lines: str) -> None:
    """Print lines as they are, however long; what a terminal would obey is written out."""
    for line in lines:
        out.print(printable(line), markup=False, highlight=False, soft_wrap=True)
