"""Which engine a build takes: the fastest when it is begun, from then on the one that it was begun with."""

import io
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

import builders.build
import ckptzoo
from builders import engines
from builders.build import build
from builders.checkpointing import WORK_FOLDER, Interrupted
from builders.recipe import Recipe
from ckptzoo.errors import ZooError

QUICK = Recipe.load("digits-optunet").shortened(1)


@contextmanager
def impatient() -> Iterator[Callable[[], bool]]:
    """Stop after the first steps."""
    calls = itertools.count()
    yield lambda: next(calls) == 0


def engine_of(zoo: Path) -> set[str]:
    return {json.loads(row["extra"])["engine"] for row in ckptzoo.open(zoo).metadata.to_pylist()}


def test_a_build_goes_on_with_the_engine_that_it_was_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = Console(file=io.StringIO())
    with monkeypatch.context() as hurried:
        hurried.setattr(builders.build, "catch_stop_signals", impatient)
        with pytest.raises(Interrupted):
            build(QUICK, tmp_path, members=2, engine="optunet", console=quiet)
    assert engines.fastest(QUICK) != "optunet"
    with pytest.raises(ZooError, match=r"expected engine optunet, got engine general\. Carry it on"):
        build(QUICK, tmp_path, members=2, engine="general", console=quiet)
    assert build(QUICK, tmp_path, members=2, console=quiet).checkpoints == 2
    assert engine_of(tmp_path) == {"optunet"}
    assert not (tmp_path / WORK_FOLDER).exists()
    assert build(QUICK, tmp_path, members=3, console=quiet).checkpoints == 1
    assert engine_of(tmp_path) == {"optunet", engines.fastest(QUICK)}
