"""Requests to the reading process and its answers, in frames over two pipes; answers are checked as untrusted data.

A frame is the length of a JSON text in 8 bytes (little-endian), the text, and the bytes that it announces. A request
announces files; an answer announces arrays, each padded to a multiple of 8 bytes, and says for every file which state
dicts are made of them, or why it is refused.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import IO, Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format.header import numpy_dtype
from ckptzoo.hub.untrusted.errors import NoNetworkError, name_error, reject
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.results import Fact, Scalar, StateDict
from ckptzoo.schema.architecture import ITEMSIZE
from ckptzoo.schema.documents import parse
from ckptzoo.text import excerpt

DESCRIPTORS = "CKPTZOO_DESCRIPTORS"
"""The variable with the number of the socket over which descriptors of mapped files come."""
LENGTH_BYTES = 8
ALIGNMENT = 8
MAX_REPORT = 64 * 2**20
"""Bytes of a frame's JSON."""
# NPY_MAXDIMS of numpy 2
_MAX_DIMENSIONS = 64
# A float is sent as a hexadecimal text: JSON has neither infinities nor NaN.
_FACT_TYPES: dict[Any, type] = {"bool": bool, "int": int, "str": str}
_STATE_FIELDS = {"key", "names", "at", "facts", "left_out", "buffers"}
_READ_AGAIN = "Read the file again; if it stays so, do not use it."


@dataclass(frozen=True)
class Job:
    """A file to read, its name in messages, a form that is read (``forms.READ``), and its bytes.

    With ``strict`` objects other than dense tensors and plain containers are refused. With ``mapped`` the file's
    descriptor is sent in place of its bytes, and of arrays that lie in it the answer has the places; ``base`` is the
    first byte of what is read of it.
    """

    location: str
    file_format: str
    length: int
    strict: bool
    mapped: bool = False
    base: int = 0


@dataclass(frozen=True)
class WorkerResult:
    """One state dict as the reading process describes it.

    ``key`` is its place in the file; empty where the file holds no other. ``tensor_indices`` are the places of
    its tensors among the answer's arrays, ``buffers`` the places of buffers among ``names``; ``facts`` and
    ``left_out`` are as in ``StateDict``.
    """

    key: str
    names: tuple[str, ...]
    tensor_indices: tuple[int, ...]
    facts: dict[str, Fact]
    left_out: tuple[str, ...]
    buffers: tuple[int, ...] = ()

    def state_dict(self, file: str, arrays: Sequence[NDArray[Any]]) -> StateDict:
        """Return names and arrays put together; a name whose array an earlier one has is an alias of that one."""
        first_names: dict[int, str] = {}
        tensors: dict[str, NDArray[Any]] = {}
        aliases: dict[str, str] = {}
        for name, index in zip(self.names, self.tensor_indices, strict=True):
            tensors[name] = arrays[index]
            if (first := first_names.setdefault(index, name)) != name:
                aliases[name] = first
        source, buffers = f"{file}#{self.key}" if self.key else file, frozenset(self.names[at] for at in self.buffers)
        return StateDict(source, tensors, aliases, self.facts, self.left_out, buffers)

    def shifted(self, by: int) -> "WorkerResult":
        """Return the same result with indices shifted by this many arrays."""
        return replace(self, tensor_indices=tuple(index + by for index in self.tensor_indices))


FileAnswer = list[WorkerResult] | IntegrityError


def encode_request(jobs: Sequence[Job], limits: Limits) -> bytes:
    """Return the head of a request: the files' bytes follow it, in order."""
    return _frame({"files": [vars(job) for job in jobs], "limits": vars(limits)})


Place = tuple[int, int]
"""Where an array is in a mapped file: the file's number in the request, and the array's first byte."""


def encode_answer(
    files: Sequence[FileAnswer], arrays: Sequence[NDArray[Any]], places: Mapping[int, Place] | None = None
) -> bytes:
    """Return the head of an answer: ``padded`` bytes of the arrays follow it, in order, without those of ``places``."""
    described = [
        {
            "refused": [[item.what, item.expected, item.got, item.next_step] for item in file.problems][:20],
            "without_network": isinstance(file, NoNetworkError),
        }
        if isinstance(file, IntegrityError)
        else {"states": [_encode_state(state) for state in file]}
        for file in files
    ]
    names = {dtype: dtype.name for dtype in {array.dtype for array in arrays}}
    # thousands of files have arrays of a few kinds
    kinds: dict[tuple[np.dtype[Any], tuple[int, ...]], int] = {}
    indices = [kinds.setdefault((array.dtype, array.shape), len(kinds)) for array in arrays]
    listed = {} if not places else {"places": [[at, *place] for at, place in places.items()]}
    kind_list = [[names[dtype], shape] for dtype, shape in kinds]
    return _frame({"files": described, "kinds": kind_list, "arrays": indices, **listed})


def padded(arrays: Iterable[NDArray[Any]]) -> Iterable[bytes | memoryview]:
    """Yield the bytes of C-contiguous arrays as they follow an answer."""
    for array in arrays:
        # arrays of bfloat16 have no buffer of their own
        yield array.reshape(-1).view(np.uint8).data if array.size else b""
        yield bytes(-array.nbytes % ALIGNMENT)


def _frame(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, separators=(",", ":")).encode()
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _encode_state(state: WorkerResult) -> dict[str, Any]:
    return {
        "key": state.key,
        "names": state.names,
        "at": state.tensor_indices,
        "facts": [
            [name, [_encode_scalar(item) for item in value] if isinstance(value, tuple) else _encode_scalar(value)]
            for name, value in state.facts.items()
        ],
        "left_out": state.left_out,
        "buffers": state.buffers,
    }


def read_answer(
    stream: IO[bytes], locations: Sequence[str], limits: Limits, mapped: Mapping[int, memoryview] | None = None
) -> tuple[list[FileAnswer], list[Any]]:
    """Check an answer: for every file, in the order of ``locations``, its states or the error, and the arrays that
    states point to; those that lie in one of the ``mapped`` files are views of it.

    Raises ``IntegrityError`` where it is not what a reading process writes; ``EOFError`` where it ends too early.
    """
    location = locations[0]
    length = int.from_bytes(_exactly(stream, LENGTH_BYTES), "little")
    # the process that read an untrusted file may be under its control: everything in its answer is checked
    if length > MAX_REPORT:
        _reject_answer(location, f"a report of at most {MAX_REPORT} bytes", f"{length} bytes")
    content = parse(bytes(_exactly(stream, length)), location=location, max_bytes=MAX_REPORT)
    most = limits.tensors * len(locations)
    kinds = [_checked_array(item, location) for item in _checked_list(content.get("kinds"), location, most)]
    indices = _checked_list(content.get("arrays"), location, most)
    # a bool of JSON is an int of Python too
    if any(type(index) is not int or not 0 <= index < len(kinds) for index in indices):
        _reject_answer(location, f"arrays of {len(kinds)} kinds", "others")
    places = _checked_places(content.get("places", []), location, len(indices), mapped or {})
    arrays = _read_arrays(stream, [kinds[index] for index in indices], location, limits, places)
    described = _checked_list(content.get("files"), location, len(locations))
    if len(described) != len(locations):
        _reject_answer(location, f"{len(locations)} files", len(described))
    files = [_checked_file(item, at, len(arrays), limits) for item, at in zip(described, locations, strict=True)]
    return files, arrays


def _checked_places(
    value: Any, location: str, arrays: int, mapped: Mapping[int, memoryview]
) -> dict[int, tuple[memoryview, int]]:
    """Return the mapped file, and the first byte there, of each array that lies in one."""
    places: dict[int, tuple[memoryview, int]] = {}
    for item in _checked_list(value, location, arrays):
        match item:
            case [int(at), int(file), int(start)] if 0 <= at < arrays and file in mapped and start >= 0:
                places[at] = mapped[file], start
            case _:
                _reject_answer(location, "places in mapped files", excerpt(item))
    return places


def _read_arrays(
    stream: IO[bytes],
    kinds: Sequence[tuple[str, tuple[int, ...]]],
    location: str,
    limits: Limits,
    places: Mapping[int, tuple[memoryview, int]],
) -> list[Any]:
    sizes = [prod(shape) * ITEMSIZE[dtype] for dtype, shape in kinds]
    if sum(sizes) > limits.tensor_bytes:
        _reject_answer(location, f"at most {limits.tensor_bytes} bytes of tensors", f"{sum(sizes)} bytes")
    sent = [0 if at in places else size for at, size in enumerate(sizes)]
    content = _exactly(stream, sum(size + -size % ALIGNMENT for size in sent))
    dtypes = {dtype: numpy_dtype(dtype) for dtype, _ in kinds}
    arrays: list[Any] = []
    start = 0
    for at, ((dtype, shape), size) in enumerate(zip(kinds, sizes, strict=True)):
        if at in places:
            view, first = places[at]
            if first + size > len(view):
                _reject_answer(location, f"an array within {len(view)} bytes", f"an end at {first + size}")
            arrays.append(np.ndarray(shape, dtypes[dtype], view, first))
            continue
        arrays.append(np.ndarray(shape, dtypes[dtype], content, start) if size else np.empty(shape, dtypes[dtype]))
        start += size + -size % ALIGNMENT
    return arrays


def _exactly(stream: IO[bytes], count: int) -> bytearray:
    content = bytearray(count)
    view, done = memoryview(content), 0
    while done < count:
        read = stream.readinto(view[done:])  # pyright: ignore[reportAttributeAccessIssue]
        if not read:
            raise EOFError
        done += read
    return content


def _reject_answer(location: str, expected: str, got: object) -> NoReturn:
    reject(location, "what came back from the reading process", expected, got, _READ_AGAIN)


def _checked_list(value: Any, location: str, limit: int) -> list[Any]:
    if not isinstance(value, list) or len(cast(list[Any], value)) > limit:
        _reject_answer(location, f"a list of at most {limit}", type(value).__name__)
    return cast(list[Any], value)


def _checked_array(item: Any, location: str) -> tuple[str, tuple[int, ...]]:
    dtype, shape = item if isinstance(item, list) and len(cast(list[Any], item)) == 2 else (None, None)
    lengths = _checked_list(shape, location, _MAX_DIMENSIONS)
    if dtype not in ITEMSIZE or any(type(length) is not int or not 0 <= length < 2**62 for length in lengths):
        _reject_answer(location, "a dtype and a shape of each array", excerpt(item))
    return cast(str, dtype), tuple(lengths)


def _checked_file(item: Any, location: str, arrays: int, limits: Limits) -> FileAnswer:
    content = cast(dict[str, Any], item) if isinstance(item, dict) else {}
    refused = content.get("refused")
    if isinstance(refused, list) and refused:
        kind = NoNetworkError if content.get("without_network") is True else IntegrityError
        return kind([_checked_problem(location, one) for one in cast(list[Any], refused)[:20]])
    states = [
        _checked_state(one, location, limits) for one in _checked_list(content.get("states"), location, limits.states)
    ]
    if not states or any(not 0 <= index < arrays for state in states for index in state.tensor_indices):
        _reject_answer(location, f"state dicts of {arrays} arrays", "others")
    if sum(len(state.names) for state in states) > limits.tensors:
        _reject_answer(location, f"at most {limits.tensors} names", "more")
    return states


def _checked_problem(location: str, item: Any) -> Problem:
    words = [excerpt(word, 500) for word in _checked_list(item, location, 4)]
    if len(words) != 4:
        _reject_answer(location, "a problem in four parts", len(words))
    return Problem(excerpt(location, 1000), *words)


def _checked_state(item: Any, location: str, limits: Limits) -> WorkerResult:
    if not isinstance(item, dict) or set(cast(dict[str, Any], item)) != _STATE_FIELDS:
        _reject_answer(location, "a state dict", type(item).__name__)
    key, names, tensor_indices = (
        item["key"],
        _checked_list(item["names"], location, limits.tensors),
        _checked_list(item["at"], location, limits.tensors),
    )
    if not isinstance(key, str) or (key and name_error(key)) or not _are_names(names):
        _reject_answer(location, "printable names, each once", "others")
    if len(names) != len(tensor_indices) or not names or any(type(one) is not int for one in tensor_indices):
        _reject_answer(location, "one tensor a name", f"{len(names)} names, {len(tensor_indices)} tensors")
    facts = dict(_checked_fact(fact, location) for fact in _checked_list(item["facts"], location, 1000))
    left_out = tuple(excerpt(text) for text in _checked_list(item["left_out"], location, 1000))
    buffers = _checked_list(item["buffers"], location, len(names))
    if any(type(one) is not int or not 0 <= one < len(names) for one in buffers):
        _reject_answer(location, f"places among {len(names)} names", "others")
    return WorkerResult(key, tuple(names), tuple(tensor_indices), facts, left_out, tuple(buffers))


def _are_names(names: list[Any]) -> bool:
    """Whether each is a name that tensors may have, and comes once."""
    try:
        return _are_usable(tuple(names))
    except TypeError:  # a list among them
        return False


@lru_cache(maxsize=64)
def _are_usable(names: tuple[Any, ...]) -> bool:
    """Whether names are usable; thousands of files have the same."""
    return not any(map(name_error, names)) and len(set(names)) == len(names)


def _encode_scalar(value: Scalar) -> dict[str, str | int | bool]:
    return {type(value).__name__: value.hex() if isinstance(value, float) else value}


def _checked_fact(item: Any, location: str) -> tuple[str, Fact]:
    name, value = item if isinstance(item, list) and len(cast(list[Any], item)) == 2 else (None, None)
    if name_error(name) is not None:
        _reject_answer(location, "a fact: a name and a value", excerpt(name))
    if isinstance(value, list):
        return cast(str, name), tuple(_checked_scalar(one, location) for one in _checked_list(value, location, 1000))
    return cast(str, name), _checked_scalar(value, location)


def _checked_scalar(item: Any, location: str) -> Scalar:
    kind, value = (
        next(iter(cast(dict[Any, Any], item).items()), (None, None)) if isinstance(item, dict) else (None, None)
    )
    if kind == "float" and isinstance(value, str):
        try:
            return float.fromhex(value[:64])
        except (ValueError, OverflowError):
            _reject_answer(location, "a number", excerpt(value))
    if type(value) is not _FACT_TYPES.get(kind) or (isinstance(value, str) and not value.isprintable()):
        _reject_answer(location, "a scalar", excerpt(kind))
    return cast(Scalar, value)
