"""Numbers and untrusted text as people read them, and how long work reports its progress."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with how much is done and how much there is, in the units that the function names."""


def size(nbytes: int) -> str:
    """Bytes in powers of 1000: ``1.5 MB``."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def counted(number: int, noun: str) -> str:
    """``1 network``, ``1,024 networks``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def shortened(text: str, limit: int) -> str:
    """At most ``limit`` characters, with dots where some are left out."""
    return text if len(text) <= limit else text[: max(0, limit - 3)] + "..."


def excerpt(value: object, limit: int = 200) -> str:
    """Untrusted text within a message: one line, at most ``limit`` characters, nothing that a terminal obeys.

    >>> excerpt("a\\nb")
    'a\\\\nb'
    """
    return shortened(printable(str(value)[: limit + 1]), limit)


def printable(text: str) -> str:
    """Text on one line, with whatever a terminal would obey written out as an escape."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
