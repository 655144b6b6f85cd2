"""Reads files of ggml in the format GGUF as data, whose tensors are floats or integers; quantised ones are refused."""

import struct
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError
from ckptzoo.format.header import numpy_dtype
from ckptzoo.hub.untrusted.errors import name_error, reject
from ckptzoo.hub.untrusted.formats import FileForm
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.schema.architecture import ITEMSIZE
from ckptzoo.text import excerpt

_DTYPES = {
    0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64", 30: "bfloat16",
}  # fmt: skip
"""The numbers of types of ggml (``ggml_type`` of ggml.h) that are no quantised ones."""
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
"""The types of values (``gguf_metadata_value_type``): numbers as struct has them, texts, and arrays of either."""
_VERSIONS = (2, 3)
_MAX_FACT, _MAX_DIMENSIONS, _MAX_ITEMS = 1000, 4, 2**24
"""Characters of a text that is a fact, axes of a tensor (``GGML_MAX_DIMS``), and items of an array of texts."""
_STEP = "Import the safetensors files from which it was made."


class _Header:
    """The bytes before the numbers, which are read value by value."""

    def __init__(self, data: memoryview, location: str) -> None:
        self._data, self._location, self.at = data, location, 0
        self.is_short = False
        """Whether the bytes ended before what they declare."""

    def take(self, count: int) -> memoryview:
        """Return the next bytes."""
        if count > len(self._data) - self.at:
            self.is_short = True
            reject(self._location, "header", f"{count} bytes at {self.at}", f"a file of {len(self._data)}", _STEP)
        piece = self._data[self.at : self.at + count]
        self.at += count
        return piece

    def number(self, code: str) -> Any:
        """Return the next number, by its code in struct."""
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def text(self) -> str:
        """Return the next text."""
        return bytes(self.take(self.number("Q"))).decode("utf-8", "replace")

    def value(self) -> Any:
        """Return a number or a text; None for an array, which is passed over."""
        kind = self.number("I")
        if kind == _ARRAY:
            kind, count = self.number("I"), self.number("Q")
            if kind in _SCALARS:
                self.take(count * struct.calcsize(f"<{_SCALARS[kind]}"))
            elif kind != _TEXT or count > _MAX_ITEMS:
                reject(self._location, "header", "arrays of numbers or texts", f"{count} of type {kind}", _STEP)
            else:
                for _ in range(count):
                    self.take(self.number("Q"))
            return None
        if kind != _TEXT and kind not in _SCALARS:
            reject(self._location, "header", "numbers, texts and arrays", f"a value of type {kind}", _STEP)
        return self.text() if kind == _TEXT else self.number(_SCALARS[kind])


def read_gguf(data: bytes | memoryview, *, location: str, limits: Limits) -> dict[str, Any]:
    """Read a file: its tensors as a state dict, and the numbers and texts before them as settings.

    Arrays are views of ``data``. Raises ``IntegrityError`` where it is not whole, declares more than the limits, or has
    a tensor that is quantised, or is one of several files of a network.
    """
    view = memoryview(data)
    start, described, facts = _described(_Header(view, location), location, limits)
    tensors: dict[str, NDArray[Any]] = {}
    nbytes = 0
    for name, shape, dtype, offset in described:
        size = prod(shape) * ITEMSIZE[dtype]
        nbytes += size
        if name in tensors or nbytes > limits.tensor_bytes or start + offset + size > len(view):
            expected = f"each once, within the file and {limits.tensor_bytes} bytes together"
            reject(location, f"tensor {excerpt(name)!r}", expected, f"{size} bytes at {offset}", _STEP)
        array = np.frombuffer(view, numpy_dtype(dtype), prod(shape), start + offset) if size else np.empty(0)
        tensors[name] = array.astype(numpy_dtype(dtype), copy=False).reshape(shape)
    return {"state_dict": tensors, "hyperparameters": facts}


def tensor_places(head: bytes) -> list[tuple[int, int]] | None:
    """Return the first byte of each tensor of a file that begins so, and its number of bytes; empty where it is refused
    when it is read; None where its header is longer.
    """
    header = _Header(memoryview(head), "header")
    try:
        start, described, _ = _described(header, "header", Limits())
    except IntegrityError:
        return None if header.is_short else []
    return [(start + offset, prod(shape) * ITEMSIZE[dtype]) for _, shape, dtype, offset in described]


def _described(
    header: _Header, location: str, limits: Limits
) -> tuple[int, list[tuple[str, tuple[int, ...], str, int]], dict[str, Any]]:
    """Return the first byte of the numbers, the tensors, and the facts of a header."""
    header.take(4)
    version, count, pairs = header.number("I"), header.number("Q"), header.number("Q")
    if version not in _VERSIONS:
        reject(location, "version of GGUF", "2 or 3, little-endian", version, _STEP)
    if max(count, pairs) > limits.tensors:
        reject(location, "header", f"at most {limits.tensors} names", max(count, pairs), _STEP)
    facts: dict[str, Any] = {}
    for _ in range(pairs):
        key, value = header.text(), header.value()
        if value is not None and name_error(key) is None and not (isinstance(value, str) and len(value) > _MAX_FACT):
            facts[key] = value
    # as gguf-split of llama.cpp marks its files, whatever they are called
    if (shards := facts.get("split.count", 1)) != 1 and shards != 0:
        merge = "Put the files together by gguf-split --merge, and import the one that it writes."
        reject(location, "network", "a whole one", f"one of {excerpt(shards)} files that it is cut into", merge)
    described = [_tensor(header, location) for _ in range(count)]
    alignment = facts.pop("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 2**20:
        reject(location, "general.alignment", "a number of bytes", excerpt(alignment), _STEP)
    return -(-header.at // alignment) * alignment, described, facts


def _tensor(header: _Header, location: str) -> tuple[str, tuple[int, ...], str, int]:
    """Return name, shape, dtype and offset of a tensor."""
    name, dimensions = header.text(), header.number("I")
    if name_error(name) is not None or dimensions > _MAX_DIMENSIONS:
        got = f"{excerpt(name)!r} of {dimensions} axes"
        reject(location, "tensor", f"a printable name and at most {_MAX_DIMENSIONS} axes", got, _STEP)
    # ggml counts axes from the one whose numbers are neighbours
    shape = tuple(header.number("Q") for _ in range(dimensions))[::-1]
    kind, offset = header.number("I"), header.number("Q")
    if kind not in _DTYPES:
        reject(location, f"tensor {excerpt(name)!r}", "floats or integers", f"quantised numbers (type {kind})", _STEP)
    if max((*shape, offset, prod(shape))) >= 2**62:
        reject(location, f"tensor {excerpt(name)!r}", "a size that a file may have", excerpt(shape), _STEP)
    return name, shape, _DTYPES[kind], offset


GGUF = FileForm(
    "gguf",
    "a file of ggml (GGUF)",
    "`GGUF`",
    lambda head, path: head.startswith(b"GGUF"),
    read=lambda data, location, limits, strict: read_gguf(data, location=location, limits=limits),
    becomes="one network, where its tensors are floats (F32, F16, BF16, F64) or integers; quantised ones are refused",
    facts="the numbers and texts of its header",
)
