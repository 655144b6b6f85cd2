"""What the reading process sends back: a safetensors file and a JSON report, both checked as untrusted data."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import IO, Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format.header import CODES
from ckptzoo.hub.untrusted.errors import name_error, reject
from ckptzoo.hub.untrusted.formats import FileFormat
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.results import Fact
from ckptzoo.hub.untrusted.safetensors import read_safetensors
from ckptzoo.schema.architecture import ITEMSIZE
from ckptzoo.schema.documents import parse
from ckptzoo.text import excerpt

MESSAGE_BYTES = 65536
"""Bytes of a message between the supervisor and the worker."""
MAX_REPORT = 64 * 2**20
"""Bytes of a report."""
_MAX_HEADER = 64 * 2**20
"""Bytes of the header of the safetensors file."""
# A float is sent as a hexadecimal text: JSON has neither infinities nor NaN.
_FACT_TYPES = {"bool": bool, "int": int, "float": str, "str": str}
_READ_AGAIN = "Read the file again; if it stays so, do not use it."


def encode_job(file_format: FileFormat, location: str, limits: Limits) -> bytes:
    """The message that asks for one file."""
    return json.dumps({"kind": file_format, "location": location[:1000], "limits": asdict(limits)}).encode()


@dataclass(frozen=True)
class WorkerResult:
    """One state dict as the reading process describes it.

    Parameters
    ----------
    key : where it is in the file; empty where the file holds no other.
    names, tensor_indices : of its tensors; the tensor of index 3 is ``t3`` of the safetensors file.
    facts, left_out : as in ``StateDict``.
    """

    key: str
    names: tuple[str, ...]
    tensor_indices: tuple[int, ...]
    facts: dict[str, Fact]
    left_out: tuple[str, ...]


def write_result(blobs: Sequence[tuple[str, tuple[int, ...]]], data: Iterable[memoryview], out: IO[bytes]) -> None:
    """Write numbers as a safetensors file with the names ``t0``, ``t1``, ...

    Parameters
    ----------
    blobs : dtype and shape of each tensor.
    data : the bytes of each, made one at a time.
    """
    header: dict[str, Any] = {}
    start = 0
    for index, (dtype, shape) in enumerate(blobs):
        stop = start + ITEMSIZE[dtype] * int(np.prod(shape, dtype=object))
        header[f"t{index}"] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    header_bytes = json.dumps(header, separators=(",", ":")).encode()
    out.write(len(header_bytes).to_bytes(8, "little") + header_bytes)
    for piece in data:
        out.write(piece)
    out.flush()


def encode_report(states: Sequence[WorkerResult]) -> bytes:
    """The JSON report of a file that was read."""
    states_json = [
        {
            "key": state.key,
            "names": state.names,
            "at": state.tensor_indices,
            "facts": [[name, type(value).__name__, _fact_value(value)] for name, value in state.facts.items()],
            "left_out": state.left_out,
        }
        for state in states
    ]
    return json.dumps({"states": states_json}).encode()


def encode_refusal(problems: Iterable[Problem]) -> bytes:
    """The JSON report of a file that was refused."""
    return json.dumps(
        {"refused": [[item.what, item.expected, item.got, item.next_step] for item in problems][:20]}
    ).encode()


def _fact_value(value: Fact) -> str | int:
    return value.hex() if isinstance(value, float) else value


def read_result(
    report: bytes, tensors: IO[bytes], *, location: str, limits: Limits
) -> tuple[list[WorkerResult], list[NDArray[Any]]]:
    """Check what came back: the states by name, and the arrays they point to.

    Raises
    ------
    IntegrityError
        The file was refused; or what came back is not what a reading process writes.
    """
    content = parse(report, location=location, max_bytes=MAX_REPORT)
    refused = content.get("refused")
    if isinstance(refused, list) and refused:
        problems = [_checked_problem(location, item) for item in cast(list[Any], refused)[:20]]
        raise IntegrityError(problems)
    states = [
        _checked_state(item, location, limits) for item in _checked_list(content.get("states"), location, limits.states)
    ]
    try:
        arrays, _ = read_safetensors(
            tensors,
            location=location,
            header_bytes=_MAX_HEADER,
            tensor_bytes=limits.tensor_bytes,
            tensors=limits.tensors,
        )
    except IntegrityError as error:
        problems = [
            replace(item, what=f"what came back, {item.what}", next_step=_READ_AGAIN) for item in error.problems
        ]
        raise IntegrityError(problems) from None
    numbered = [arrays[name] for at in range(len(arrays)) if (name := f"t{at}") in arrays]
    if len(numbered) != len(arrays) or not states:
        _reject_result(
            location, "numbered tensors and a state dict", f"{len(arrays)} tensors, {len(states)} state dicts"
        )
    if any(not 0 <= at < len(numbered) for state in states for at in state.tensor_indices):
        _reject_result(location, f"names of {len(numbered)} tensors", "a name without a tensor")
    if sum(len(state.names) for state in states) > limits.tensors:
        _reject_result(location, f"at most {limits.tensors} names", "more")
    return states, numbered


def _reject_result(location: str, expected: str, got: object) -> NoReturn:
    reject(location, "what came back from the reading process", expected, got, _READ_AGAIN)


def _checked_list(value: Any, location: str, limit: int) -> list[Any]:
    if not isinstance(value, list) or len(cast(list[Any], value)) > limit:
        _reject_result(location, f"a list of at most {limit}", type(value).__name__)
    return cast(list[Any], value)


def _checked_problem(location: str, item: Any) -> Problem:
    words = [excerpt(word, 500) for word in _checked_list(item, location, 4)]
    if len(words) != 4:
        _reject_result(location, "a problem in four parts", len(words))
    return Problem(excerpt(location, 1000), *words)


def _checked_state(item: Any, location: str, limits: Limits) -> WorkerResult:
    if not isinstance(item, dict) or set(cast(dict[str, Any], item)) != {"key", "names", "at", "facts", "left_out"}:
        _reject_result(location, "a state dict", type(item).__name__)
    key, names, tensor_indices = (
        item["key"],
        _checked_list(item["names"], location, limits.tensors),
        _checked_list(item["at"], location, limits.tensors),
    )
    if (
        not isinstance(key, str)
        or (key and name_error(key))
        or any(name_error(name) for name in names)
        or len(set(names)) != len(names)
    ):
        _reject_result(location, "printable names, each once", "others")
    if len(names) != len(tensor_indices) or not names or any(type(one) is not int for one in tensor_indices):
        _reject_result(location, "one tensor a name", f"{len(names)} names, {len(tensor_indices)} tensors")
    facts = dict(_checked_fact(fact, location) for fact in _checked_list(item["facts"], location, 1000))
    left_out = tuple(excerpt(text) for text in _checked_list(item["left_out"], location, 1000))
    return WorkerResult(key, tuple(names), tuple(tensor_indices), facts, left_out)


def _checked_fact(item: Any, location: str) -> tuple[str, Fact]:
    name, kind, value = item if isinstance(item, list) and len(cast(list[Any], item)) == 3 else (None, None, None)
    if name_error(name) is not None or kind not in _FACT_TYPES:
        _reject_result(location, "a fact: name, kind and value", excerpt(name))
    if kind == "float":
        try:
            return cast(str, name), float.fromhex(cast(str, value)[:64])
        except (ValueError, OverflowError, TypeError):
            _reject_result(location, f"a number for {excerpt(name)}", type(value).__name__)
    if type(value) is not _FACT_TYPES[cast(str, kind)] or (isinstance(value, str) and not value.isprintable()):
        _reject_result(location, f"{kind} for {excerpt(name)}", type(value).__name__)
    return cast(str, name), cast(Fact, value)
