"""Hostile documents: what is said of them is short, and said soon."""

import copy
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ckptzoo.errors import MAX_PROBLEMS, Problem, SpecError, UnknownNameError, ZooError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.symmetry import Symmetry
from tests.support.effort import examples

LONG = "n" * 300_000
SHORT = (-1, None, 3, True, "a\nb", "fc.weight", "n" * 500)


def values(draw: random.Random) -> Any:
    """What is nowhere expected, short or long."""
    return draw.choice(("x", LONG, [LONG], {"k": LONG}, [1] * 100_000, 10**4000, *SHORT))


def symmetry(draw: random.Random) -> dict[str, Any]:
    # a document of some megabytes holds one long thing, or many short ones
    many = draw.choice((1, 3, 1_000))
    value = draw.choice(SHORT) if many > 3 else values(draw)
    perm = draw.choice(
        ({"kind": "sym"}, {"kind": "like", "group": value}, {"kind": "wreath", "outer": value, "g": 2, "k": 2})
    )
    segments = [{"group": value, "offset": number, "inner": 1, "count": 1} for number in range(many)]
    group = {"id": draw.choice(("fc", values(draw))), "n": draw.choice((4, value)), "perm": perm, "scale": value}
    action = {
        "tensor": draw.choice(("fc.weight", values(draw))),
        "axis": draw.choice((0, value)),
        "segments": segments,
        "exponent": draw.choice((1, value)),
        "in_mass": True,
        "role": draw.choice(("weight", value)),
        "blocks": 1,
        "eps": 0.0,
    }
    groups, actions = draw.choice(((1, 1), (many, 1), (1, min(many, 3))))
    return {"groups": [group] * groups, "actions": [action] * actions}


def architecture(draw: random.Random) -> dict[str, Any]:
    many = draw.choice((1, 2_000))
    pick = values if many == 1 else lambda draw: draw.choice(SHORT)
    tensor = {"name": pick(draw), "shape": pick(draw), "dtype": pick(draw), "kind": pick(draw), "aliases": []}
    return {"name": values(draw), "tensors": [tensor] * many, "forward": None, "input_shape": None}


@pytest.mark.parametrize("kind", ["symmetry", "architecture"])
def test_hostile_documents_make_short_errors_soon(kind: str) -> None:
    reader: Any = {"symmetry": Symmetry, "architecture": Architecture}[kind].from_json
    made, refused = {"symmetry": symmetry, "architecture": architecture}[kind], 0
    for number in range(examples(20)):
        content = json.loads(json.dumps(made(random.Random(number))))
        began = time.process_time()
        try:
            reader(content)
        except ZooError as error:
            refused += 1
            assert len(str(error)) < 60_000 and all(len(str(problem)) < 5_200 for problem in error.problems)
            assert len(error.problems) <= MAX_PROBLEMS + 1
        assert time.process_time() - began < 1, number
    assert refused > 5


def test_problems_and_names_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[int] = []

    def problems() -> Iterator[Problem]:
        for number in range(10**9):
            asked.append(number)
            yield Problem(LONG, LONG, LONG, LONG, f"{number}")

    error = SpecError(problems())
    assert len(asked) == MAX_PROBLEMS + 1 == len(error.problems) and len(str(error)) < 60_000
    assert error.problem.got.endswith("...") and error.problems[-1].expected == "at most 200 in a report"
    again = copy.copy(error)  # by __reduce__, as pickles are
    assert again.problems == error.problems and str(again) == str(error)
    few = SpecError(Problem("here", "it", "x", "y", "z") for _ in range(MAX_PROBLEMS))
    assert len(few.problems) == MAX_PROBLEMS
    began = time.process_time()
    for name in (LONG, "fc"):
        unknown = UnknownNameError(LONG, "tensor", name, [LONG, *(f"fc{number}" for number in range(200_000))])
        assert len(str(unknown)) < 10_000
    assert unknown.near and time.process_time() - began < 5


def test_a_table_of_names_is_kept_whole() -> None:
    """What is to be copied."""
    table = "\n".join(f'"layer{number}.weight" = "blocks.{number}.weight"' for number in range(2_000))
    assert Problem("it", "names", "x", "y", table).next_step == table
