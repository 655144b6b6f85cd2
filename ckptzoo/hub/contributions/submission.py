"""``Submission``: a contribution.toml, what a contributor says about their checkpoints, validated."""

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ckptzoo.errors import Problem, SpecError
from ckptzoo.hub.contributions.file_names import FilePattern
from ckptzoo.hub.contributions.row_checks import is_licence
from ckptzoo.image_sets.evaluation import Evaluation, finite_numbers
from ckptzoo.schema.documents import read_toml
from ckptzoo.schema.metadata import COLUMNS

MEASURED = ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "test_nll", "test_brier", "test_ece")
"""Columns that no contributor may claim: the program that writes the zoo measures them."""
_FOLLOWING = ("id", "unit", "finite", "recipe_digest", "dataset_digest")
"""Columns that are not given as defaults of all checkpoints, or that follow from others."""
_OF_ONE = ("member", "draw")
"""Columns that differ between checkpoints."""
DEFAULTS = tuple(spec.name for spec in COLUMNS if spec.name not in (*MEASURED, *_FOLLOWING, *_OF_ONE))
"""Columns that may be given for all checkpoints at the top of the file."""
OF_CHECKPOINT = ("file", "id", *_OF_ONE, *DEFAULTS)
"""Keys of a ``[[checkpoint]]``."""
_MAX_NAMESPACE = 40
"""Characters of a contributor's name that ids begin with."""
_MAX_SCALING = 10
"""Largest mean and std of pixels from 0 to 1; larger values are of pixels from 0 to 255."""
_TABLES = ("names", "evaluation", "zoo", "checkpoint")
TOP = (*DEFAULTS, "training", "cast", "pattern", *_TABLES)
"""Keys of the file."""
OF_ZOO = ("name", "architecture", "forward", "input_shape", "summary", "authors", "citation", "tags")
_TYPES = {column.name: column.type for column in COLUMNS}
_EXPECTED = {
    "string": "a text",
    "int64": "an integer",
    "float64": "a finite number",
    "bool": "true or false",
    "timestamp": "a date and time, such as 2024-05-01T12:00:00Z",
}
_STEP = "Correct the contribution's file; cards/template/contribution.toml explains every key."

Row = dict[str, Any]


@dataclass(frozen=True)
class NewZoo:
    """The description of a new zoo, where the contribution is the first of its architecture.

    ``architecture`` is by default the name of the forward function, or of the zoo; ``forward`` is a name in
    ``ckptzoo.archs``; ``input_shape`` is that of one input without its batch axis; the rest is for the card.
    """

    name: str
    architecture: str | None = None
    forward: str | None = None
    input_shape: tuple[int, ...] | None = None
    summary: str = ""
    authors: tuple[str, ...] = ()
    citation: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckpointDescription:
    """A ``[[checkpoint]]``: columns of one state dict of a file, named ``file#key`` where it holds several."""

    file: str
    values: Row = field(default_factory=dict)


@dataclass(frozen=True)
class Submission:
    """The content of contribution.toml.

    ``defaults`` are columns of every row: ``contributor``, ``license``, ``source``, ``dataset``, ``recipe`` and others;
    ``checkpoints`` have those of single ones. ``training`` is free text. With ``cast`` values may be rounded to the
    zoo's precision. ``pattern`` is how the files are named; None where their names say nothing. ``names`` maps old to
    new; each ``*`` is the same text in both. ``evaluation`` is the test set and the scaling of its pixels; ``zoo``
    describes a new zoo.
    """

    defaults: Row
    training: str = ""
    cast: bool = False
    pattern: FilePattern | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    zoo: NewZoo | None = None
    checkpoints: tuple[CheckpointDescription, ...] = ()

    @property
    def license(self) -> str:
        """The licence of checkpoints that name no other."""
        return self.defaults["license"]

    @property
    def namespace(self) -> str:
        """The start of ids of the contributor's checkpoints, before a slash: the name in small letters."""
        letters = re.sub(r"[^a-z0-9]+", "-", self.defaults["contributor"].lower()).strip("-")
        return letters[:_MAX_NAMESPACE].rstrip("-") or "contributor"

    @classmethod
    def from_toml(cls, path: str | Path) -> "Submission":
        """Read a file; raise ``SpecError`` with every problem: unknown keys (and the nearest), types, ranges."""
        content = read_toml(path, expected="a contribution in TOML", step=_STEP)
        return cls.from_mapping(content, location=str(path))

    @classmethod
    def from_mapping(cls, content: Mapping[str, Any], *, location: str = "contribution") -> "Submission":
        """Read parsed TOML, as ``from_toml``."""
        if problems := list(_problems(content, location)):
            raise SpecError(problems)
        evaluation, zoo = content.get("evaluation"), content.get("zoo")
        dataset = content.get("dataset", "")
        return cls(
            defaults={key: _typed(key, content[key]) for key in DEFAULTS if key in content},
            training=content.get("training", ""),
            cast=content.get("cast", False),
            pattern=FilePattern.parse(content["pattern"]) if "pattern" in content else None,
            names=dict(content.get("names", {})),
            evaluation=None if evaluation is None else _evaluation(evaluation, dataset),
            zoo=None if zoo is None else _new_zoo(zoo),
            checkpoints=tuple(
                CheckpointDescription(
                    item["file"], {key: _typed(key, value) for key, value in item.items() if key != "file"}
                )
                for item in content.get("checkpoint", [])
            ),
        )


def _problems(content: Mapping[str, Any], location: str) -> Iterator[Problem]:
    yield from _unknown_keys(content, TOP, location)
    for key in ("contributor", "license"):
        if key not in content:
            yield Problem(location, key, "one for all checkpoints", "none", _STEP)
    for key in DEFAULTS:
        if key in content:
            yield from _column_problems(location, key, content[key])
    for key, kind, expected in (("training", str, "a text"), ("cast", bool, "true or false")):
        if not isinstance(content.get(key, kind()), kind):
            yield Problem(location, key, expected, repr(content[key]), _STEP)
    if "pattern" in content:
        yield from _pattern_problems(location, content["pattern"])
    yield from _names_problems(location, content.get("names", {}))
    yield from _evaluation_problems(location, content.get("evaluation"), content.get("dataset", ""))
    yield from _zoo_problems(location, content.get("zoo"))
    listed = content.get("checkpoint", [])
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        yield Problem(location, "checkpoint", "tables [[checkpoint]]", repr(listed)[:80], _STEP)
        return
    seen: dict[tuple[str, str], int] = {}
    for number, item in enumerate(listed, 1):
        inner = f"{location}: checkpoint {number}"
        yield from _unknown_keys(item, OF_CHECKPOINT, inner)
        if not isinstance(item.get("file"), str) or not item["file"]:
            yield Problem(inner, "file", "the name of one of the files", repr(item.get("file")), _STEP)
        for key, value in item.items():
            if key in OF_CHECKPOINT and key != "file":
                yield from _column_problems(inner, key, value)
        for key in ("file", "id"):
            value_of_key = item.get(key)
            if isinstance(value_of_key, str) and seen.setdefault((key, value_of_key), number) != number:
                yield Problem(inner, key, "each once", f"{value_of_key!r} again", _STEP)


def _unknown_keys(content: Mapping[str, Any], known: tuple[str, ...], location: str) -> Iterator[Problem]:
    for key in content:
        if key in known:
            continue
        if key in MEASURED:
            step = f"What you measured yourself is claimed_{key}." if f"claimed_{key}" in known else "Leave it out."
            yield Problem(location, f"key {key!r}", "figures that are claimed", "one that is measured here", step)
            continue
        near = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
        step = f"Did you mean {' or '.join(near)}?" if near else _STEP
        yield Problem(location, f"key {key!r}", "a known key", "another", step)


def _column_problems(location: str, key: str, value: Any) -> Iterator[Problem]:
    """Yield what is wrong with a column's value: its type or its range."""
    if key == "extra":
        if not isinstance(value, dict) or any(item is not None for item in _not_json(value)):
            yield Problem(location, key, "a table of texts, numbers and lists", repr(value)[:80], _STEP)
        return
    kind = _TYPES[key]
    number: Any = value
    fits = {
        "string": isinstance(value, str) and bool(value.strip()) and value.isprintable(),
        # tomllib reads integers of up to 4,300 digits; True is an instance of int
        "int64": type(value) is int and abs(value) < 2**63,
        "float64": type(value) in (int, float) and math.isfinite(number),
        "bool": isinstance(value, bool),
        # a TOML date without a time is a datetime.date
        "timestamp": isinstance(value, datetime),
    }[kind]
    if not fits:
        yield Problem(location, key, _EXPECTED[kind], repr(value)[:80], _STEP)
    elif key == "license" and not is_licence(value):
        yield Problem(location, key, "an SPDX identifier such as mit, apache-2.0, cc-by-4.0", repr(value)[:80], _STEP)
    elif key.endswith("_accuracy") and not 0 <= number <= 1:
        yield Problem(location, key, "a fraction from 0 to 1", f"{number} (percent are not fractions)", _STEP)
    elif key != "seed" and kind in ("int64", "float64") and number < 0:
        yield Problem(location, key, "0 or more", str(number), _STEP)


def _not_json(value: Any) -> Iterator[Any]:
    """Yield the values in a table that cannot be written as JSON."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _not_json(item)
    elif isinstance(value, list):
        for item in value:
            yield from _not_json(item)
    # TOML has dates, inf and nan, which JSON has not; None is what a mapping in Python may hold
    elif not isinstance(value, str | bool | int) and not (isinstance(value, float) and math.isfinite(value)):
        yield value if value is not None else "null"


def _pattern_problems(location: str, text: Any) -> Iterator[Problem]:
    expected = "a text such as {member}-checkpoint-{epoch}.pt"
    if not isinstance(text, str):
        yield Problem(location, "pattern", expected, repr(text)[:80], _STEP)
        return
    try:
        FilePattern.parse(text)
    except ValueError as error:
        yield Problem(location, "pattern", expected, f"{text[:80]!r}: {error}", _STEP)


def _names_problems(location: str, names: Any) -> Iterator[Problem]:
    if not isinstance(names, dict):
        yield Problem(location, "names", "a table of old and new names", repr(names)[:80], _STEP)
        return
    for old, new in names.items():
        if not isinstance(new, str) or not new or not old or old.count("*") != new.count("*"):
            got = f"{old!r} = {new!r}"[:160]
            yield Problem(location, "names", "old and new names with as many * in both", got, _STEP)


def _evaluation_problems(location: str, value: Any, dataset: Any) -> Iterator[Problem]:
    if value is None:
        return
    if not isinstance(value, dict):
        yield Problem(location, "evaluation", "a table", repr(value)[:80], _STEP)
        return
    location = f"{location}: evaluation"
    yield from _unknown_keys(value, ("dataset", "mean", "std"), location)
    name = value.get("dataset", dataset)
    if not isinstance(name, str) or not name:
        yield Problem(location, "dataset", "the name of a data set", repr(name), _STEP)
    mean, std = (finite_numbers(value.get(key, default)) for key, default in (("mean", 0.0), ("std", 1.0)))
    if mean is None or std is None or min(std) <= 0:
        got = f"{value.get('mean')!r} and {value.get('std')!r}"[:160]
        yield Problem(location, "mean and std", "finite numbers, std above 0", got, _STEP)
    elif max(map(abs, (*mean, *std))) > _MAX_SCALING:
        got = f"{value.get('mean')!r} and {value.get('std')!r}"[:160]
        yield Problem(location, "mean and std", "those of pixels from 0 to 1", got, "Divide them by 255.")
    elif len({1, len(mean), len(std)}) > 2:
        yield Problem(location, "mean and std", "as many of both", f"{len(mean)} and {len(std)}", _STEP)


def _zoo_problems(location: str, value: Any) -> Iterator[Problem]:
    if value is None:
        return
    if not isinstance(value, dict):
        yield Problem(location, "zoo", "a table", repr(value)[:80], _STEP)
        return
    location = f"{location}: zoo"
    yield from _unknown_keys(value, OF_ZOO, location)
    if "name" not in value:
        yield Problem(location, "name", "the new zoo's name", "none", _STEP)
    for key, item in value.items():
        if key in ("name", "architecture", "forward", "summary", "citation"):
            if not isinstance(item, str) or not item.strip():
                yield Problem(location, key, "a text", repr(item)[:80], _STEP)
        elif key in ("authors", "tags"):
            if not isinstance(item, list) or not all(isinstance(text, str) for text in item):
                yield Problem(location, key, "a list of texts", repr(item)[:80], _STEP)
        elif key == "input_shape" and not (
            isinstance(item, list) and item and all(type(size) is int and size > 0 for size in item)
        ):
            yield Problem(location, key, "positive integers", repr(item)[:80], _STEP)


def _typed(key: str, value: Any) -> Any:
    if isinstance(value, datetime):
        # TOML has times without a zone; columns are in UTC
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    return float(value) if _TYPES.get(key) == "float64" else value


def _evaluation(value: Mapping[str, Any], dataset: str) -> Evaluation:
    mean, std = finite_numbers(value.get("mean", 0.0)), finite_numbers(value.get("std", 1.0))
    assert mean is not None and std is not None
    return Evaluation(value.get("dataset", dataset), mean, std)


def _new_zoo(value: Mapping[str, Any]) -> NewZoo:
    values: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
    return NewZoo(**values)
