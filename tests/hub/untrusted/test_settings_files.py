"""Settings in YAML are read as the values that were saved, whatever objects they were; what is hostile is refused."""

import math
import pathlib
import re
from collections import OrderedDict
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import ZooError
from ckptzoo.hub.untrusted.settings_files import PARSERS, parse_yaml
from tests.support.effort import examples


class Settings:
    """An object that is saved with its attributes."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__ = values


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12).filter(
    lambda text: re.fullmatch(r"[-+]?\d+[eE][-+]\d+", text, re.ASCII) is None  # which PyYAML writes as it is
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
NAMES = st.from_regex("[a-z][a-z0-9_]{0,8}", fullmatch=True)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Pairs of an object, and of what is read."""
    mappings = st.dictionaries(NAMES, inner, max_size=4)
    lists = st.lists(inner, max_size=4)
    return st.one_of(
        mappings.map(lambda made: tuple({name: pair[side] for name, pair in made.items()} for side in (0, 1))),
        mappings.map(
            lambda made: (OrderedDict((n, pair[0]) for n, pair in made.items()), {n: p[1] for n, p in made.items()})
        ),
        mappings.filter(bool).map(
            lambda made: (Settings({n: p[0] for n, p in made.items()}), {n: p[1] for n, p in made.items()})
        ),
        lists.map(lambda made: tuple([pair[side] for pair in made] for side in (0, 1))),
        lists.map(lambda made: (tuple(pair[0] for pair in made), [pair[1] for pair in made])),
        st.lists(NAMES, min_size=1, max_size=3).map(lambda parts: (pathlib.PurePosixPath("/", *parts), "/" + "/".join(parts))),
        # the same object twice is a reference
        inner.map(lambda pair: ([pair[0], pair[0]], [pair[1], pair[1]])),
    )  # fmt: skip


@settings(max_examples=examples(300, 60), deadline=None)
@given(st.recursive(PLAIN.map(lambda value: (value, value)), containers, max_leaves=12))
def test_what_python_wrote_is_read_as_plain_values(pair: tuple[Any, Any]) -> None:
    saved, expected = pair
    text = yaml.dump({"value": saved}, allow_unicode=True)
    assert parse_yaml(text.encode(), "hparams.yaml") == {"value": expected}


def test_numbers_are_those_that_programs_mean_and_dates_are_texts() -> None:
    text = "a: 1e-4\nb: -3E+2\nc: 1e5\nd: .5\ne: 1.5e-3\nf: 2024-01-01\ng: 1e-4x\nh: 0x1f\ni: .inf\nj: 'e5'\nk: e5\n"
    found = parse_yaml(text.encode(), "x.yaml")
    numbers = {"a": 1e-4, "b": -300.0, "d": 0.5, "e": 1.5e-3, "h": 31, "i": math.inf}
    assert found == {**numbers, "c": "1e5", "f": "2024-01-01", "g": "1e-4x", "j": "e5", "k": "e5"}


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
HOSTILE = {
    "a reference within itself": "a: &a [*a]",
    "a mapping within itself": "&a {x: {y: *a}}",
    "references to references": LAUGHS,
    "many values": "[" + "1, " * 30_000 + "1]",
    "deep": "[" * 40 + "]" * 40,
    "very deep": "[" * 100_000,
    "two documents": "a: 1\n---\nb: 2",
    "no text": b"\xff\xfe\x00",
    "a key that is a list": "? [1]\n: 2",
    "base 60": "a: " + ":".join(["1"] * 400) + ".0",
    "unknown reference": "a: *b",
    "unfinished": "a: [",
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused_by_name(kind: str) -> None:
    data = HOSTILE[kind]
    with pytest.raises(ZooError) as caught:
        parse_yaml(data if isinstance(data, bytes) else data.encode(), "run/config.yaml")
    (problem,) = caught.value.problems
    assert problem.location == "run/config.yaml" and problem.expected == "YAML" and len(problem.got) <= 200


def test_tags_run_nothing() -> None:
    calls = {
        "apply": "!!python/object/apply:os.system ['false']",
        "new": "!!python/object/new:subprocess.Popen [['false']]",
        "name": "!!python/name:os.system",
        "module": "!!python/module:os",
        "own": "!Settings {lr: 0.1}",
        "ordered": "!!python/object/apply:collections.OrderedDict []",
    }
    text = "".join(f"{name}: {value}\n" for name, value in calls.items())
    found = parse_yaml(text.encode(), "x.yml")
    assert found == {
        "apply": ["false"], "new": [["false"]], "name": None, "module": None, "own": {"lr": 0.1}, "ordered": {}
    }  # fmt: skip
    assert {*PARSERS} == {".json", ".yaml", ".yml"}
