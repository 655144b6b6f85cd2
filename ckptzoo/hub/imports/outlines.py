"""Which bytes of a file that is linked say what is where in it, and what its tensors are called there."""

import bisect
import json
import struct
import zipfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.hub.imports.mapped import MappedFile
from ckptzoo.hub.untrusted.formats import LEGACY_MAGIC

Pieces = tuple[tuple[int, int], ...]
"""Parts of a file that are no numbers: their first bytes, from its beginning, and their sizes."""
Outline = tuple[int, Pieces | None, Callable[[int], str]]
"""The first byte from which tensors are counted, the pieces (None for all before it), and the name of the tensor at a
byte."""
_LOCAL = 30
"""Bytes of the header of a zip member, without its name and the field behind that."""
_NEAR = 512
"""Pieces that are this near are one piece: one call reads them, with the few numbers between them."""
_MOST = 64 * 2**20
"""Bytes of a header."""


def outline(file: MappedFile, base: int, offsets: Sequence[int]) -> Outline:
    """Return the outline of a file, or of a member of an archive that begins at ``base``.

    ``offsets`` are the first bytes of its tensors. Raises ``IntegrityError`` where too much is no numbers.
    """
    form, size = file.forms[base]
    if form == "safetensors":
        start = base + 8 + int.from_bytes(file[base : base + 8], "little")
        starts, names = _entries(file[base + 8 : start])
        return start, None, lambda offset: names[bisect.bisect_right(starts, offset - start) - 1]
    first = min(offsets)
    is_zip = file[base : base + 2] == b"PK"
    if not is_zip:
        # of several arrays behind one another each has a header, of which the first one is compared
        pieces: Pieces | None = None if first - base <= _MOST else _refuse(file, first - base)
        if file[base : base + len(LEGACY_MAGIC)] == LEGACY_MAGIC:
            pieces = ((0, first - base),)
            return base, pieces, lambda offset: ""
        return first, pieces, lambda offset: ""
    return _of_zip(file, base, size, offsets)


@lru_cache(maxsize=16)
def _entries(text: bytes) -> tuple[list[int], list[str]]:
    """Return the tensors of a header of safetensors that was read, by their first bytes; many files have the same."""
    described: dict[str, Any] = json.loads(text)
    described.pop("__metadata__", None)
    spans = [(*item["data_offsets"], name) for name, item in described.items()]
    entries = sorted((first, name) for first, last, name in spans if first < last)
    return [first for first, _ in entries], [name for _, name in entries]


def _of_zip(file: MappedFile, base: int, size: int, offsets: Sequence[int]) -> Outline:
    """Return the outline of a zip archive that was read: its directory, and what its members have beside numbers."""
    archive = zipfile.ZipFile(file.stream(base, size))
    wanted, pieces = sorted(offset - base for offset in offsets), list[tuple[int, int]]()
    starts, names = list[int](), list[str]()
    for info in sorted(archive.infolist(), key=lambda item: item.header_offset):
        lengths = struct.unpack("<HH", file[base + info.header_offset + 26 : base + info.header_offset + _LOCAL])
        start = info.header_offset + _LOCAL + sum(lengths)
        stop = start + info.compress_size
        at = bisect.bisect_left(wanted, start)
        starts.append(start)
        names.append(info.filename.partition("/")[2] if "/data/" in info.filename else info.filename)
        if at < len(wanted) and wanted[at] < stop:
            # of an array of numpy.save its own header too
            if info.filename.endswith(".npy"):
                pieces.append((info.header_offset, wanted[at] - info.header_offset))
        elif "/data/" not in info.filename and not info.filename.endswith(".npy"):
            pieces.append((info.header_offset, stop - info.header_offset))
    pieces.append((archive.start_dir, size - archive.start_dir))
    merged = list[tuple[int, int]]()
    for first, count in pieces:
        if merged and first - sum(merged[-1]) <= _NEAR:
            merged[-1] = merged[-1][0], first + count - merged[-1][0]
        elif count:
            merged.append((first, count))
    if (nbytes := sum(count for _, count in merged)) > _MOST:
        _refuse(file, nbytes)
    return base, tuple(merged), lambda offset: names[bisect.bisect_right(starts, offset - base) - 1]


def _refuse(file: MappedFile, nbytes: int) -> Any:
    step = "Copy the file with ckptzoo import, or save the network alone."
    expected = f"at most {_MOST} bytes"
    raise IntegrityError(Problem(file.place, "header", expected, f"{nbytes} bytes that are no weights", step))
