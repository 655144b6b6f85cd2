"""Reads a whole untrusted safetensors file into memory."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from io import BytesIO
from math import prod
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError
from ckptzoo.format.header import Entry, header_length, numpy_dtype, read_header
from ckptzoo.hub.untrusted.errors import name_error, reject, reject_without_network, with_next_step
from ckptzoo.hub.untrusted.formats import FileForm
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.other_contents import MASK, MOMENTS, has_statistics, is_mask, other_content
from ckptzoo.hub.untrusted.results import Fact, StateDict
from ckptzoo.schema.architecture import name_problem
from ckptzoo.schema.documents import parse
from ckptzoo.text import excerpt

Loaded = Callable[[NDArray[Any]], NDArray[Any]]
_STEP = "Save it again with safetensors."
_MAX_FACTS = 256
"""Texts of a file's metadata that are taken as facts."""
_MAX_FACT = 1000
"""Characters of one of them, and of its key."""


def read_state_dict(
    file: IO[bytes] | memoryview,
    location: str,
    name: str,
    limits: Limits,
    *,
    with_moments: bool = False,
    loaded: Loaded = np.asarray,
) -> StateDict:
    """Return the state dict in a whole safetensors file, with the texts of its metadata as facts.

    Arrays are views of ``file`` where that is in memory; what is looked at of them comes from ``loaded``. With
    ``with_moments`` the moments of a posterior are taken as a state dict. Raises ``IntegrityError`` as
    ``read_safetensors`` does, and where there are no tensors.
    """
    arrays, metadata = read_safetensors(
        file,
        location=location,
        header_bytes=limits.header_bytes,
        tensor_bytes=limits.tensor_bytes,
        tensors=limits.tensors,
        loaded=loaded,
    )
    if not arrays:
        reject(location, "content", "a state dict: names and tensors", "no tensors", "Save model.state_dict().")
    what = other_content({key: _name_of(array.dtype) for key, array in arrays.items()})
    if with_moments and what == MOMENTS:
        what = None
    if what is not None or (not has_statistics(arrays) and is_mask(list(arrays.values()), name, loaded)):
        reject_without_network(location, what or MASK, "Leave it out.")
    facts: dict[str, Fact] = {}
    left_out: list[str] = []
    for key, text in list(metadata.items())[:_MAX_FACTS]:
        if key.isprintable() and text.isprintable() and len(text) <= _MAX_FACT and len(key) <= _MAX_FACT:
            facts[key] = text
        else:
            left_out.append(excerpt(f"{key}: a text of {len(text)} characters"))
    if len(metadata) > _MAX_FACTS:
        left_out.append(f"metadata: {len(metadata) - _MAX_FACTS} more texts")
    return StateDict(name, {key: np.asarray(array) for key, array in arrays.items()}, {}, facts, tuple(left_out))


def read_safetensors(
    file: IO[bytes] | memoryview,
    *,
    location: str,
    header_bytes: int,
    tensor_bytes: int,
    tensors: int,
    loaded: Loaded = np.asarray,
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the arrays of a safetensors file, by name in the order of its header, and its metadata.

    Raises ``IntegrityError`` where ``ckptzoo.format.header`` does, save that any printable name will do; and for
    more than the limits.
    """
    if isinstance(file, memoryview):
        size, first = len(file), loaded(np.frombuffer(file[:8], np.uint8)).tobytes()
    else:
        size = file.seek(0, 2)
        file.seek(0)
        first = file.read(8)
    try:
        length = header_length(first, file_size=size, location=location)
        if length > header_bytes:
            reject(location, "header length", f"at most {header_bytes} bytes", f"{length} bytes", _STEP)
        text = (
            loaded(np.frombuffer(file[8 : 8 + length], np.uint8)).tobytes()
            if isinstance(file, memoryview)
            else file.read(length)
        )
        names, entries, metadata = _outline(text, size, tensors)
    except IntegrityError as error:
        raise with_next_step([replace(item, location=location) for item in error.problems], _STEP) from None
    if sum(entry.nbytes for entry in entries) > tensor_bytes:
        reject(location, "tensors", f"at most {tensor_bytes} bytes", f"{size} bytes", _STEP)
    if isinstance(file, memoryview):
        arrays = {
            entry.name: np.frombuffer(file, numpy_dtype(entry.dtype), prod(entry.shape), entry.offset).reshape(
                entry.shape
            )
            for entry in entries
        }
    else:
        arrays = {entry.name: _read_array(file, entry, location) for entry in entries}
    return {name: arrays[name] for name in names}, dict(metadata)


@lru_cache(maxsize=64)
def _name_of(dtype: np.dtype[Any]) -> str:
    """Return a dtype's name from a cache: numpy builds it at every call."""
    return dtype.name


@lru_cache(maxsize=16)
def _outline(text: bytes, size: int, tensors: int) -> tuple[tuple[str, ...], tuple[Entry, ...], dict[str, str]]:
    """Return the names in the order of a header, its entries by offset, and its metadata; many files have the same."""
    location = ""
    described = parse(text, location=location, max_bytes=len(text))
    metadata = described.pop("__metadata__", {})
    if len(described) > tensors:
        reject(location, "tensors", f"at most {tensors} names", len(described), _STEP)
    return tuple(described), _entries(text, described, size=size, location=location), metadata


def read_entries(text: bytes, *, size: int, location: str) -> tuple[tuple[Entry, ...], dict[str, str]]:
    """Return the entries of the header of a safetensors file of ``size`` bytes, and its metadata.

    Raises ``IntegrityError`` as ``read_safetensors`` does.
    """
    limits = Limits()
    try:
        described = parse(text, location=location, max_bytes=limits.header_bytes)
        metadata = described.pop("__metadata__", {})
        if len(described) > limits.tensors:
            reject(location, "tensors", f"at most {limits.tensors} names", len(described), _STEP)
        return _entries(text, described, size=size, location=location), dict(metadata)
    except IntegrityError as error:
        raise with_next_step(error.problems, _STEP) from None


def _entries(text: bytes, described: Mapping[str, Any], *, size: int, location: str) -> tuple[Entry, ...]:
    """Return the header's entries, with any printable names.

    ``format.header`` takes only the names that a zoo allows: others are replaced for it, and put back afterwards.
    """
    if unusable := [name for name in described if name_error(name) is not None]:
        reject(location, "tensor name", "a printable text of at most 512 characters", name_error(unusable[0]), _STEP)
    stand_ins = {name: f"name.{at}" for at, name in enumerate(described) if name_problem(name) is not None}
    if not stand_ins:
        return read_header(text, file_size=size, location=location)
    if collisions := set(stand_ins.values()) & set(described):
        reject(
            location,
            "tensor name",
            "names in dotted words",
            sorted(stand_ins)[0] + f" beside {sorted(collisions)[0]}",
            _STEP,
        )
    original_names = {stand: name for name, stand in stand_ins.items()}
    renamed_header = json.dumps({stand_ins.get(name, name): item for name, item in described.items()}).encode()
    shift = len(renamed_header) - len(text)
    try:
        entries = read_header(renamed_header, file_size=size + shift, location=location)
    except IntegrityError as error:
        for stand, name in original_names.items():
            error.problems = tuple(
                replace(item, what=item.what.replace(repr(stand), repr(name))) for item in error.problems
            )
        raise
    return tuple(
        replace(item, name=original_names.get(item.name, item.name), offset=item.offset - shift) for item in entries
    )


def _read_array(file: IO[bytes], entry: Entry, location: str) -> NDArray[Any]:
    raw = np.empty(entry.nbytes, np.uint8)
    view, done = raw.data, 0
    file.seek(entry.offset)
    while done < entry.nbytes:
        count = file.readinto(view[done : done + 2**26])  # pyright: ignore[reportAttributeAccessIssue]
        if not count:
            reject(location, f"tensor {entry.name!r}", f"{entry.nbytes} bytes", f"{done} bytes", _STEP)
        done += count
    array = raw.view(numpy_dtype(entry.dtype)).reshape(entry.shape)
    if array.size != prod(entry.shape):
        reject(location, f"tensor {entry.name!r}", "as many numbers as its shape says", array.size, _STEP)
    return array


def _read(data: bytes, location: str, limits: Limits, strict: bool) -> StateDict:
    return read_state_dict(BytesIO(data), location, location.rpartition("/")[2], limits)


SAFETENSORS = FileForm(
    "safetensors",
    "a safetensors file",
    "8 bytes of a length, and `{`",
    # a header begins with { (README of safetensors, Format)
    lambda head, path: head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32,
    read=_read,
    becomes="one network; shards `NAME-00001-of-00003.safetensors` together; adapters of PEFT, parts of pipelines",
    facts="texts of its header",
)
