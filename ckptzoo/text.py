"""Numbers and untrusted text as people read them, and how long work reports its progress."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from ckptzoo.errors import Problem, ZooError

Progress = Callable[[int, int], None]
"""Called with how much is done and how much there is, in the units that the function names."""
StageProgress = Callable[[str, int, int], None]
"""The same for work of several stages, such as ``reading`` and ``uploading``; their names come first."""
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([kMGT]?)(i?)B?\s*")


def counter(total: int, progress: Progress | None, *, done: int = 0) -> Callable[..., None]:
    """A function that adds a number, by default 1, to what is done, and reports it.

    >>> advance = counter(3, lambda done, total: print(done, "of", total))
    >>> advance()
    1 of 3
    >>> advance(2)
    3 of 3
    """

    def advance(count: int = 1) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    return advance


def size(nbytes: int) -> str:
    """Bytes in powers of 1000: ``1.5 MB``."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def parse_size(text: str, *, location: str) -> int:
    """A size as a person writes it, in bytes.

    >>> parse_size("1.5 kB", location="here"), parse_size("2MiB", location="here")
    (1500, 2097152)

    Raises ``ZooError`` if it is no size.
    """
    matched = _SIZE.fullmatch(text)
    if matched is None:
        raise ZooError(Problem(location, "size", "one such as 20GB or 512MiB", repr(text), "Correct it."))
    return int(float(matched[1]) * (1024 if matched[3] else 1000) ** " kMGT".index(matched[2] or " "))


def parse_share(text: str) -> tuple[int, int]:
    """The I and N of ``I/N``, a share of some work among N: every N-th piece from the I-th, counted from 0.

    >>> parse_share("0/4")
    (0, 4)

    Raises ``ZooError`` if the text is not valid.
    """
    number, slash, count = text.partition("/")
    # Python turns no text of more than 4,300 digits into a number
    is_share = slash and number.isdecimal() and count.isdecimal() and len(text) <= 40
    if not is_share or int(number) >= int(count):
        step = "The first of four is 0/4, the last 3/4."
        raise ZooError(Problem("share", "text", "I/N with I from 0 to N - 1", repr(text)[:80], step))
    return int(number), int(count)


def counted(number: int, noun: str) -> str:
    """``1 network``, ``1,024 networks``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def shown_arrays(arrays: Mapping[str, Any], limit: int = 6) -> str:
    """The first few arrays by name, shape and dtype, and how many more there are; lists by their length."""
    texts = [
        f"{name} {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        if hasattr(value, "dtype")
        else f"{name} ({len(value)},)"
        for name, value in list(arrays.items())[:limit]
    ]
    more = f" and {len(arrays) - limit} more" if len(arrays) > limit else ""
    return f"{', '.join(texts)}{more}"


def brief_repr(self: Any) -> str:
    """The ``__repr__`` of a class with fields that hold arrays: their shapes and dtypes, not their elements."""
    names = getattr(self, "_fields", None) or getattr(self, "__dataclass_fields__", ())
    fields = (f"{name}={_brief(getattr(self, name))}" for name in names if not name.startswith("_"))
    return f"{type(self).__name__}({', '.join(fields)})"


def _brief(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"<{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}>" if value.shape else repr(value)
    if isinstance(value, Mapping) and any(hasattr(item, "dtype") for item in value.values()):
        return f"{{{shown_arrays(value, 3)}}}"
    if isinstance(value, list | tuple) and not hasattr(value, "_fields") and any(hasattr(i, "dtype") for i in value):
        return f"[{', '.join(map(_brief, value[:3]))}{', ...' if len(value) > 3 else ''}]"
    return shortened(repr(value), 200)


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
