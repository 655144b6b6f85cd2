"""What comes back from the reading process is checked as untrusted data."""

import io
import json
from typing import Any

import numpy as np
import pytest

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.protocol import WorkerResult, encode_refusal, encode_report, read_result, write_result

STATE: dict[str, Any] = {
    "key": "",
    "names": ["a", "b"],
    "at": [0, 1],
    "facts": [["epoch", "int", 3]],
    "left_out": ["x"],
}


def tensors(*arrays: np.ndarray) -> io.BytesIO:
    out = io.BytesIO()
    described = [(array.dtype.name, array.shape) for array in arrays]
    write_result(described, (memoryview(array.reshape(-1).view(np.uint8)) for array in arrays), out)
    return out


def taken(report: object, out: io.BytesIO | None = None, limits: Limits | None = None):
    data = report if isinstance(report, bytes) else json.dumps(report).encode()
    return read_result(data, out or tensors(np.ones(2), np.ones(3)), location="f.pt", limits=limits or Limits())


def test_states_and_facts_come_back_as_they_were_handed() -> None:
    facts = {"a": True, "b": -(2**62), "c": 0.1, "d": float("inf"), "e": "text", "f": float("nan"), "g": 5e-324}
    state = WorkerResult("model", ("w", "v"), (0, 0), facts, ("optimizer: 2 entries",))
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    ((back,), (got,)) = taken(encode_report([state]), tensors(array))
    assert repr(back) == repr(state) and got.tobytes() == array.tobytes()
    assert [type(value) for value in back.facts.values()] == [type(value) for value in facts.values()]


def test_refusals_come_back_harmless_and_short() -> None:
    problem = Problem("elsewhere", "what\x1b[31m", "a\nb", "x" * 10_000, "step")
    with pytest.raises(IntegrityError) as caught:
        taken(encode_refusal([problem] * 100))
    assert len(caught.value.problems) == 20
    back = caught.value.problems[0]
    assert (
        back.location == "f.pt" and back.what == r"what\x1b[31m" and back.expected == r"a\nb" and len(back.got) == 500
    )


@pytest.mark.parametrize(
    "change",
    [
        {"names": ["a"]}, {"names": ["a", "a"]}, {"names": ["a", "b\n"]}, {"names": ["a", 3]}, {"names": "ab"},
        {"names": [], "at": []}, {"at": [0, 2]}, {"at": [0, -1]}, {"at": [0, True]}, {"at": [0, 1.0]}, {"key": "a\nb"},
        {"key": {}}, {"facts": [["a"]]}, {"facts": [["a", "code", "x"]]}, {"facts": [["a", "int", "x"]]},
        {"facts": [["a", "int", True]]}, {"facts": [["a", "float", "x"]]}, {"facts": [["a", "float", 1.0]]},
        {"facts": [["a", "str", "b\n"]]}, {"facts": [["a\n", "str", "b"]]}, {"facts": {}}, {"left_out": "x"}, {"more": 1},
    ],
)  # fmt: skip
def test_reports_that_a_reader_would_not_write_are_refused(change: dict[str, Any]) -> None:
    assert taken({"states": [STATE]})
    with pytest.raises(IntegrityError, match="came back"):
        taken({"states": [{**STATE, **change}]})


@pytest.mark.parametrize(
    "report",
    [b"", b"[]", b"{}", b"null", b'{"states": 3}', b'{"states": []}', b'{"refused": []}', b'{"refused": [["a"]]}',
     b'{"refused": [3]}', b"\xff", b'{"a":' * 100_000, b'{"states": [[]]}'],
)  # fmt: skip
def test_reports_that_are_none_are_refused(report: bytes) -> None:
    with pytest.raises(IntegrityError):
        taken(report)


def test_tensors_that_do_not_fit_are_refused() -> None:
    good = {"states": [STATE]}
    for out in (
        io.BytesIO(),
        io.BytesIO(b"x" * 100),
        tensors(np.ones(2)),
        io.BytesIO(tensors(np.ones(2), np.ones(3)).getvalue()[:-1]),
    ):
        with pytest.raises(IntegrityError, match="came back"):
            taken(good, out)
    with pytest.raises(IntegrityError, match="at most 39 bytes"):
        taken(good, limits=Limits(tensor_bytes=39))
    for limits in (Limits(states=0), Limits(tensors=1)):
        with pytest.raises(IntegrityError, match="came back"):
            taken(good, limits=limits)
