"""What comes back from the reading process is checked as untrusted data."""

import io
import json
from typing import Any

import numpy as np
import pytest

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.protocol import FileAnswer, WorkerResult, encode_answer, padded, read_answer

STATE: dict[str, Any] = {
    "key": "",
    "names": ["a", "b"],
    "at": [0, 1],
    "facts": [["epoch", {"int": 3}]],
    "left_out": ["x"],
    "buffers": [1],
}
ARRAYS: list[np.ndarray] = [np.ones(2), np.ones(3)]


def framed(report: object, arrays: list[np.ndarray] | None = None, tail: bytes | None = None) -> io.BytesIO:
    arrays = ARRAYS if arrays is None else arrays
    if isinstance(report, dict):
        kinds = [[array.dtype.name, list(array.shape)] for array in arrays]
        report = {"kinds": kinds, "arrays": list(range(len(arrays))), **report}
    text = report if isinstance(report, bytes) else json.dumps(report).encode()
    content = b"".join(map(bytes, padded(arrays))) if tail is None else tail
    return io.BytesIO(len(text).to_bytes(8, "little") + text + content)


def taken(stream: io.BytesIO, limits: Limits | None = None, files: int = 1) -> tuple[list[FileAnswer], list[Any]]:
    return read_answer(stream, ["f.pt"] * files, limits or Limits())


def test_states_facts_and_arrays_come_back_as_they_were_sent() -> None:
    facts: dict[str, Any] = {"a": True, "b": -(2**62), "c": 0.1, "d": float("inf"), "e": "text", "f": float("nan")}
    facts |= {"g": 5e-324, "h": (1, 2.5, "x", True)}
    state = WorkerResult("model", ("w", "v"), (0, 0), facts, ("optimizer: 2 entries",))
    array, odd, none = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, np.int8), np.zeros((0, 4))
    other = WorkerResult("", ("u", "z"), (1, 2), {}, ())
    arrays = [array, odd, none]
    stream = io.BytesIO(encode_answer([[state], [other]], arrays) + b"".join(map(bytes, padded(arrays))))
    files, back = taken(stream, files=2)
    assert repr(files) == repr([[state], [other]])
    assert [(got.dtype, got.shape, got.tobytes()) for got in back] == [(a.dtype, a.shape, a.tobytes()) for a in arrays]
    assert isinstance(files[0], list)
    assert [type(value) for value in files[0][0].facts.values()] == [type(value) for value in facts.values()]


def test_refusals_come_back_harmless_and_short() -> None:
    problem = Problem("elsewhere", "what\x1b[31m", "a\nb", "x" * 10_000, "step")
    ((refused,), _) = taken(io.BytesIO(encode_answer([IntegrityError([problem] * 100)], [])))
    assert isinstance(refused, IntegrityError) and len(refused.problems) == 20
    back = refused.problems[0]
    assert (
        back.location == "f.pt" and back.what == r"what\x1b[31m" and back.expected == r"a\nb" and len(back.got) == 500
    )


@pytest.mark.parametrize(
    "change",
    [
        {"names": ["a"]}, {"names": ["a", "a"]}, {"names": ["a", "b\n"]}, {"names": ["a", 3]}, {"names": "ab"},
        {"names": [], "at": []}, {"at": [0, 2]}, {"at": [0, -1]}, {"at": [0, True]}, {"at": [0, 1.0]}, {"key": "a\nb"},
        {"key": {}}, {"facts": [["a"]]}, {"facts": [["a", {"code": "x"}]]}, {"facts": [["a", {"int": "x"}]]},
        {"facts": [["a", {"int": True}]]}, {"facts": [["a", {"float": "x"}]]}, {"facts": [["a", {"float": 1.0}]]},
        {"facts": [["a", {"str": "b\n"}]]}, {"facts": [["a\n", {"str": "b"}]]}, {"facts": {}}, {"left_out": "x"},
        {"facts": [["a", [{"int": "x"}]]]}, {"facts": [["a", [[]]]]}, {"facts": [["a", {}]]}, {"more": 1}, {"buffers": [2]}, {"buffers": [-1]},
        {"buffers": [True]}, {"buffers": "0"},
    ],
)  # fmt: skip
def test_states_that_a_reader_would_not_write_are_refused(change: dict[str, Any]) -> None:
    assert taken(framed({"files": [{"states": [STATE]}]}))
    with pytest.raises(IntegrityError, match="came back"):
        taken(framed({"files": [{"states": [{**STATE, **change}]}]}))


@pytest.mark.parametrize(
    "report",
    [b"", b"[]", b"{}", b"null", b'{"files": 3}', b'{"files": []}', b"\xff", b'{"a":' * 100_000,
     *(json.dumps({"kinds": [], "arrays": [], "files": [file]}).encode() for file in (3, {}, {"states": []}, {"refused": []}, {"refused": [["a"]]}, {"refused": [3]}, {"states": [[]]})),
     json.dumps({"kinds": [], "arrays": [], "files": [{"refused": [["a", "b", "c", "d"]]}] * 2}).encode(),
     *(json.dumps({"kinds": [["float32", [0]]], "arrays": at, "files": []}).encode() for at in ([1], [-1], [True], "0", [0.0])),
     *(json.dumps({"kinds": [array], "arrays": [0], "files": []}).encode() for array in (3, ["float32"], ["code", [1]], ["float32", [-1]], ["float32", [True]], ["float32", [1] * 70])),
     ],
)  # fmt: skip
def test_answers_that_are_none_are_refused(report: bytes) -> None:
    with pytest.raises(IntegrityError):
        taken(framed(report, [], b""))


def test_an_answer_that_ends_early_or_is_too_large_is_refused() -> None:
    good = {"files": [{"states": [STATE]}]}
    whole = framed(good).getvalue()
    for length in (0, 7, 20, len(whole) - 1):
        with pytest.raises(EOFError):
            taken(io.BytesIO(whole[:length]))
    with pytest.raises(IntegrityError, match="at most 39 bytes"):
        taken(framed(good), limits=Limits(tensor_bytes=39))
    with pytest.raises(IntegrityError, match="a report of at most"):
        taken(io.BytesIO((2**40).to_bytes(8, "little")))
    for limits in (Limits(states=0), Limits(tensors=1)):
        with pytest.raises(IntegrityError, match="came back"):
            taken(framed(good), limits=limits)


def test_arrays_of_mapped_files_are_views_within_them() -> None:
    view, state = memoryview(np.arange(10.0)), WorkerResult("", ("a", "b"), (0, 1), {}, ())
    view = view.cast("B")
    answer = encode_answer([[state]], ARRAYS, {1: (0, 16)})
    stream = io.BytesIO(answer + b"".join(map(bytes, padded(ARRAYS[:1]))))
    files, (sent, mapped) = read_answer(stream, ["f.pt"], Limits(), {0: view})
    assert files == [[state]] and sent.tolist() == [1, 1]
    assert mapped.tolist() == [2, 3, 4] and np.shares_memory(mapped, np.frombuffer(view, np.uint8))
    lies = (
        [[0, 0, 72]],
        [[0, 1, 0]],
        [[2, 0, 0]],
        [[0, 0, -8]],
        [[0, 0]],
        ["x"],
        [[0, 0, 0.5]],
        {"0": [0, 0]},
        [[0, 0, 2**70]],
    )
    for places in lies:
        report = {"files": [{"states": [STATE]}], "places": places}
        with pytest.raises(IntegrityError):
            read_answer(framed(report, tail=bytes(64)), ["f.pt"], Limits(), {0: view})
