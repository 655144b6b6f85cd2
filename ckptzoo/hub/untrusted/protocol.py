"""What the reading process hands back: a safetensors file and a JSON report; both are checked as a stranger's."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format.header import CODES
from ckptzoo.hub.untrusted.limits import Fact, Limits, odd_name, reject, shown
from ckptzoo.hub.untrusted.safetensors import read_flat
from ckptzoo.schema.architecture import ITEMSIZE
from ckptzoo.schema.documents import parse

REPORT = 64 * 2**20
"""Bytes of a report."""
_HEADER = 64 * 2**20
_KINDS = {"bool": bool, "int": int, "float": str, "str": str}


@dataclass(frozen=True)
class WorkerResult:
    """One state dict as it comes back; ``at`` says which blob each name has."""

    key: str
    names: tuple[str, ...]
    at: tuple[int, ...]
    facts: dict[str, Fact]
    left_out: tuple[str, ...]


def write_result(blobs: Sequence[tuple[str, tuple[int, ...]]], data: Iterable[memoryview], out: IO[bytes]) -> None:
    """Write numbers as a safetensors file with the names ``t0``, ``t1``, ...

    Parameters
    ----------
    blobs : dtype and shape of each.
    data : the bytes of each, made one at a time.
    """
    described: dict[str, Any] = {}
    start = 0
    for at, (dtype, shape) in enumerate(blobs):
        stop = start + ITEMSIZE[dtype] * int(np.prod(shape, dtype=object))
        described[f"t{at}"] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(described, separators=(",", ":")).encode()
    out.write(len(text).to_bytes(8, "little") + text)
    for piece in data:
        out.write(piece)
    out.flush()


def report_of(states: Sequence[WorkerResult]) -> bytes:
    """The JSON report of a file that was read."""
    made = [
        {
            "key": state.key,
            "names": state.names,
            "at": state.at,
            "facts": [[name, type(value).__name__, _written(value)] for name, value in state.facts.items()],
            "left_out": state.left_out,
        }
        for state in states
    ]
    return json.dumps({"states": made}).encode()


def refusal_of(problems: Iterable[Problem]) -> bytes:
    """The JSON report of a file that was refused."""
    return json.dumps(
        {"refused": [[item.what, item.expected, item.got, item.next_step] for item in problems][:20]}
    ).encode()


def _written(value: Fact) -> str | int:
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
    told = parse(report, location=location, max_bytes=REPORT)
    refused = told.get("refused")
    if isinstance(refused, list) and refused:
        problems = [_problem(location, item) for item in cast(list[Any], refused)[:20]]
        raise IntegrityError(problems)
    states = [_state(item, location, limits) for item in _list(told.get("states"), location, limits.states)]
    try:
        arrays, _ = read_flat(
            tensors, location=location, header_bytes=_HEADER, tensor_bytes=limits.tensor_bytes, tensors=limits.tensors
        )
    except IntegrityError as error:
        said = [replace(item, what=f"what came back, {item.what}", next_step=_TWICE) for item in error.problems]
        raise IntegrityError(said) from None
    found = [arrays[name] for at in range(len(arrays)) if (name := f"t{at}") in arrays]
    if len(found) != len(arrays) or not states:
        _odd(location, "numbered tensors and a state dict", f"{len(arrays)} tensors, {len(states)} state dicts")
    if any(not 0 <= at < len(found) for state in states for at in state.at):
        _odd(location, f"names of {len(found)} tensors", "a name without a tensor")
    if sum(len(state.names) for state in states) > limits.tensors:
        _odd(location, f"at most {limits.tensors} names", "more")
    return states, found


_TWICE = "Read the file again; if it stays so, do not use it."


def _odd(location: str, expected: str, got: object) -> NoReturn:
    reject(location, "what came back from the reading process", expected, got, _TWICE)


def _list(value: Any, location: str, most: int) -> list[Any]:
    if not isinstance(value, list) or len(cast(list[Any], value)) > most:
        _odd(location, f"a list of at most {most}", type(value).__name__)
    return cast(list[Any], value)


def _problem(location: str, item: Any) -> Problem:
    words = [shown(word, 500) for word in _list(item, location, 4)]
    if len(words) != 4:
        _odd(location, "a problem in four parts", len(words))
    return Problem(shown(location, 1000), *words)


def _state(item: Any, location: str, limits: Limits) -> WorkerResult:
    if not isinstance(item, dict) or set(cast(dict[str, Any], item)) != {"key", "names", "at", "facts", "left_out"}:
        _odd(location, "a state dict", type(item).__name__)
    key, names, at = (
        item["key"],
        _list(item["names"], location, limits.tensors),
        _list(item["at"], location, limits.tensors),
    )
    if (
        not isinstance(key, str)
        or (key and odd_name(key))
        or any(odd_name(name) for name in names)
        or len(set(names)) != len(names)
    ):
        _odd(location, "printable names, each once", "others")
    if len(names) != len(at) or not names or any(type(one) is not int for one in at):
        _odd(location, "one tensor a name", f"{len(names)} names, {len(at)} tensors")
    facts = dict(_fact(fact, location) for fact in _list(item["facts"], location, 1000))
    left = tuple(shown(text) for text in _list(item["left_out"], location, 1000))
    return WorkerResult(key, tuple(names), tuple(at), facts, left)


def _fact(item: Any, location: str) -> tuple[str, Fact]:
    name, kind, value = item if isinstance(item, list) and len(cast(list[Any], item)) == 3 else (None, None, None)
    if odd_name(name) is not None or kind not in _KINDS:
        _odd(location, "a fact: name, kind and value", shown(name))
    if kind == "float":
        try:
            return cast(str, name), float.fromhex(cast(str, value)[:64])
        except (ValueError, OverflowError, TypeError):
            _odd(location, f"a number for {shown(name)}", type(value).__name__)
    if type(value) is not _KINDS[cast(str, kind)] or (isinstance(value, str) and not value.isprintable()):
        _odd(location, f"{kind} for {shown(name)}", type(value).__name__)
    return cast(str, name), cast(Fact, value)
