"""A picture on a zoo's page: which file it is, what it shows, and what counts as one."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from ckptzoo.spec.layout import PICTURES

MAX_PICTURES, MAX_CAPTION = 16, 300
MAX_BYTES = 10**6
"""Of one picture."""

_FILE = re.compile(r"(?=.{5,100}\Z)[A-Za-z0-9][A-Za-z0-9._-]*\.png")
_START, _END = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\0\0\0\0IEND\xaeB`\x82"


@dataclass(frozen=True)
class Picture:
    """A PNG in the zoo's folder ``pictures``.

    Parameters
    ----------
    file : its plain name, such as ``accuracy.png``.
    caption : what it shows, on one line; also read out where it cannot be seen.
    """

    file: str
    caption: str

    @property
    def path(self) -> str:
        """Its path from the zoo's folder."""
        return f"{PICTURES}/{self.file}"


def misfits(value: Any) -> Iterator[tuple[str, str, Any]]:
    """What is wrong with the pictures of a card: which of them, what was expected, and what there is."""
    if not isinstance(value, tuple):
        yield "pictures", "a list of tables [[pictures]]", value
        return
    items, names = cast(tuple[Any, ...], value), set[str]()
    if len(items) > MAX_PICTURES:
        yield "pictures", f"at most {MAX_PICTURES}", len(items)
        return
    for number, item in enumerate(items, 1):
        if not isinstance(item, Picture):
            yield f"picture {number}", "a table with file and caption", item
            continue
        file, caption = cast(tuple[Any, Any], (item.file, item.caption))
        if not isinstance(file, str) or not _FILE.fullmatch(file):
            yield f"file of picture {number}", "a plain name of letters, digits, '-', '_' and '.', as a.png", file
        elif file.lower() in names:
            yield f"file of picture {number}", "each file once, in capitals or not", file
        else:
            names.add(file.lower())
        if (
            not isinstance(caption, str)
            or not caption.strip()
            or len(caption) > MAX_CAPTION
            or not caption.isprintable()
        ):
            yield f"caption of picture {number}", f"a line of at most {MAX_CAPTION} printable characters", caption


def is_png(data: bytes) -> bool:
    """Whether these are the bytes of a PNG from its first chunk to its last, with nothing behind it."""
    return data.startswith(_START) and data.endswith(_END)
