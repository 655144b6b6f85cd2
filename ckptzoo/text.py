"""Figures and strangers' text as people read them."""


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


def shortened(text: str, most: int) -> str:
    """At most so many characters, with dots where some are left out."""
    return text if len(text) <= most else text[: max(0, most - 3)] + "..."


def printable(text: str) -> str:
    """Text on one line, with whatever a terminal would obey written out as an escape."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
