"""The safetensors header: our own writer, and a reader that trusts nothing.

A file is ``u64 length | JSON | data``. Ours is deterministic (tensors by offset, sorted metadata) and padded with
spaces so that the data starts on a multiple of 4096 bytes; any safetensors reader reads it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.schema.architecture import ITEMSIZE, Tensor, name_problem
from ckptzoo.schema.documents import parse

PAGE = 4096
"""The data starts at a multiple of this, the size of a memory page on most machines."""
MAX_HEADER = 100_000_000
"""The safetensors library's own limit on a header."""
SMALL = 16 * 1024
"""Tensors up to this many bytes a checkpoint are next to one another, so that one request gets several."""

CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""Our dtype names to those of safetensors."""
_ROUNDED = 2**18
"""Numbers that are rounded at a time."""
_NAMES = {code: name for name, code in CODES.items()}
_STEP = "Fetch the shard again."


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of one of our dtype names; bfloat16 comes from ml_dtypes."""
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes  # only here, because few zoos need it

    return np.dtype(cast(Any, ml_dtypes.bfloat16))


def rounded(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Numbers in one of our dtypes, rounded once.

    ml_dtypes rounds float64 to float32 and that to bfloat16, so that some numbers would go to the second nearest.
    """
    if dtype.kind in "fiub":
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    result = np.empty(values.shape, dtype)
    flat, target = values.reshape(-1), result.reshape(-1)
    for start in range(0, flat.size, _ROUNDED):
        block = slice(start, start + _ROUNDED)
        target[block] = _to_odd(flat[block]).astype(dtype)
    return result


def _to_odd(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Numbers in float32, cut off towards zero, with the last bit set where something was cut off.

    A second rounding to a dtype with at least two bits less is then that of the numbers themselves (Boldo and
    Melquiond, IEEE Transactions on Computers 57, 2008).
    """
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    inexact = (single != values) & np.isfinite(values)
    beyond = inexact & (np.abs(single) > np.abs(values))
    single = np.where(beyond, np.nextafter(single, np.float32(0)), single)
    return (single.view(np.uint32) | inexact.astype(np.uint32)).view(np.float32)


@dataclass(frozen=True)
class Entry:
    """One stacked tensor in a shard: ``(rows, *shape)`` at ``offset`` bytes from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Layout:
    """Where everything is in a shard of ``rows`` checkpoints."""

    rows: int
    header: bytes
    entries: tuple[Entry, ...]

    @property
    def nbytes(self) -> int:
        """Size of the whole file."""
        return len(self.header) + sum(entry.nbytes for entry in self.entries)


def lay_out(tensors: Sequence[Tensor], rows: int, metadata: Mapping[str, str]) -> Layout:
    """Place stacked tensors: larger elements first (nothing is misaligned), small tensors together."""
    # the safetensors library sorts by dtype and then by name, layer10 before layer2, and writes its metadata in a
    # random order; here equal tensors give equal bytes
    order = sorted(tensors, key=lambda tensor: (-ITEMSIZE[tensor.dtype], tensor.nbytes > SMALL))
    start = 0
    described: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    placed: list[tuple[Tensor, int]] = []
    for tensor in order:
        placed.append((tensor, start))
        stop = start + rows * tensor.nbytes
        described[tensor.name] = {
            "dtype": CODES[tensor.dtype],
            "shape": [rows, *tensor.shape],
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(described, separators=(",", ":")).encode()
    # spaces behind the JSON are part of the header's length, as the safetensors format allows
    length = -(-(8 + len(text)) // PAGE) * PAGE - 8
    header = length.to_bytes(8, "little") + text.ljust(length)
    entries = tuple(
        Entry(tensor.name, tensor.dtype, (rows, *tensor.shape), len(header) + start, rows * tensor.nbytes)
        for tensor, start in placed
    )
    return Layout(rows, header, entries)


def header_length(first: bytes, *, file_size: int, location: str) -> int:
    """Length of the JSON from a file's first eight bytes, bounded before anything is read or allocated."""
    length = int.from_bytes(first[:8], "little")
    if len(first) < 8 or length > min(MAX_HEADER, file_size - 8):
        expected = f"at most {max(0, min(MAX_HEADER, file_size - 8))} bytes"
        got = str(length) if len(first) >= 8 else "no header"
        raise IntegrityError(Problem(location, "header length", expected, got, _STEP))
    return length


def read_header(text: bytes, *, file_size: int, location: str) -> tuple[Entry, ...]:
    """Entries of a safetensors header, by offset, from untrusted bytes.

    ``text`` is the JSON, without the eight bytes of its length; ``file_size`` is the size of the whole file in bytes;
    the data must fill the rest of it exactly. Raises an ``IntegrityError`` that lists every problem: duplicate keys,
    unknown fields, bad names, dtypes or shapes, overlaps, holes.
    """
    described = parse(text, location=location, max_bytes=MAX_HEADER)
    problems: list[Problem] = []
    entries: list[Entry] = []
    base = 8 + len(text)

    def wrong(what: str, expected: str, got: object) -> None:
        problems.append(Problem(location, what, expected, str(got)[:200], _STEP))

    metadata = described.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in cast(dict[str, Any], metadata).values()
    ):
        wrong("__metadata__", "an object of strings", metadata)
    for name, item in described.items():
        if (got := name_problem(name)) is not None:
            wrong("tensor name", "letters, digits, _ : + - in dotted words", got)
        elif not isinstance(item, dict) or set(cast(dict[str, Any], item)) != {"dtype", "shape", "data_offsets"}:
            wrong(f"tensor {name!r}", "the fields dtype, shape, data_offsets", item)
        elif not isinstance(item["dtype"], str) or item["dtype"] not in _NAMES:
            wrong(f"dtype of {name!r}", "one of " + ", ".join(_NAMES), item["dtype"])
        elif not _natural(item["shape"]) or len(item["shape"]) > 32:
            wrong(f"shape of {name!r}", "at most 32 integers from 0", item["shape"])
        elif not _natural(item["data_offsets"]) or len(item["data_offsets"]) != 2:
            wrong(f"data_offsets of {name!r}", "two integers from 0", item["data_offsets"])
        else:
            (start, stop), dtype = item["data_offsets"], _NAMES[item["dtype"]]
            size = prod(item["shape"]) * ITEMSIZE[dtype]
            if stop - start != size:
                wrong(f"bytes of {name!r}", f"{size} from its shape", f"{stop - start} from its offsets")
            else:
                entries.append(Entry(name, dtype, tuple(item["shape"]), base + start, size))
    entries.sort(key=lambda entry: (entry.offset, entry.nbytes))
    end = base
    for entry in entries:
        if entry.offset != end:
            kind = "an overlap" if entry.offset < end else "a hole"
            expected = f"{end}, where the tensor before it ends"
            wrong(f"offset of {entry.name!r}", expected, f"{entry.offset}: {kind}")
        end = max(end, entry.offset + entry.nbytes)
    if not problems and end != file_size:
        wrong("end of the data", f"{file_size}, the end of the file", end)
    if problems:
        raise IntegrityError(problems)
    return tuple(entries)


def _natural(value: Any) -> bool:
    # bool is a subclass of int, and JSON's true would pass for 1
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**62 for item in cast(list[Any], value))
