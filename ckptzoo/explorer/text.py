"""Text of others within a page: nothing that a browser or a reader's eye would obey."""

import html

from ckptzoo.text import printable, shortened

MAX_TEXT = 300
"""Characters of a text of others that are shown."""


def shown(text: object, *, limit: int = MAX_TEXT) -> str:
    """Return untrusted text as HTML: marks of direction and control characters are written out, markup is text.

    >>> shown("<b>\\u202e")
    '<bdi>&lt;b&gt;\\\\u202e</bdi>'
    """
    # bdi: text from right to left changes no order around it (HTML Standard, 4.5.24)
    return f"<bdi>{html.escape(printable(shortened(str(text), limit)))}</bdi>"


def figure(value: float) -> str:
    """Format a number with four digits."""
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Format seconds for people."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:,.3g} h"
