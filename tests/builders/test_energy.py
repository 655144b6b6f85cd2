"""Time and energy: added up exactly, kept across lives of a build, absent where nobody counts."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ckptzoo
from builders.build import build
from builders.checkpointing import Interrupted
from builders.energy import Counter, Spent, counter_of, spent
from builders.recipe import Recipe
from tests.support.builds import QUIET, stopped_soon

TOY = Recipe.load("toy").shortened(2)
JOULES = st.none() | st.integers(0, 2**40)
AMOUNTS = st.builds(Spent, st.integers(0, 2**40), JOULES)


@given(AMOUNTS, AMOUNTS, AMOUNTS)
def test_amounts_add_up_and_what_is_unknown_stays_unknown(a: Spent, b: Spent, c: Spent) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert a + Spent() == a
    assert ((a + b).joules is None) == (a.joules is None or b.joules is None)


def test_a_span_is_the_difference_of_two_readings() -> None:
    readings = iter([100.5, 103.0])
    took = spent(lambda: time.sleep(0.02), lambda: next(readings))
    assert took.joules == 2.5
    assert 0.02 <= took.seconds < 5
    for pair in ([None, 3.0], [3.0, None], [None, None]):
        some = iter(pair)
        assert spent(lambda: None, lambda some=some: next(some)).joules is None


def test_a_cpu_has_no_counter() -> None:
    with counter_of("cpu") as read:
        assert read() is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_driver_nothing_is_counted() -> None:
    pytest.importorskip("pynvml")
    with counter_of("cuda") as read:
        assert read() is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_device_uses_energy() -> None:
    pytest.importorskip("pynvml")
    square = torch.ones(4096, 4096, device="cuda")

    def work() -> None:
        began = time.monotonic()
        while time.monotonic() - began < 1:
            square @ square
            torch.cuda.synchronize()

    with counter_of("cuda") as read:
        took = spent(work, read)
    assert took.joules is not None
    assert 10 < took.joules / took.seconds < 2000, "watts"


def steady() -> tuple[Counter, list[float]]:
    """A counter on which every span takes 10 joules, and its readings."""
    readings: list[float] = []

    def read() -> float:
        readings.append(1000.0 + 10 * len(readings))
        return readings[-1]

    return read, readings


def extras(path: Path) -> list[dict[str, Any]]:
    return [json.loads(row["extra"]) for row in ckptzoo.open(path).metadata.to_pylist()]


def lives(path: Path, monkeypatch: pytest.MonkeyPatch, *counters: Counter | None) -> None:
    """Build four members; the process is stopped between these counters."""
    with stopped_soon(monkeypatch):
        for counter in counters[:-1]:
            with pytest.raises(Interrupted):
                build(TOY, path, members=4, counter=counter, console=QUIET)
    build(TOY, path, members=4, counter=counters[-1], console=QUIET)


def test_each_member_bears_an_equal_share_of_every_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter, readings = steady()
    lives(tmp_path / "zoo", monkeypatch, counter, counter, counter)
    spans = len(readings) // 2
    assert spans >= 5, "the work must be done in several spans and lives"
    assert [found["energy_joules"] for found in extras(tmp_path / "zoo")] == [10 * spans / 4] * 4


def test_a_life_without_a_counter_leaves_the_energy_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter, _ = steady()
    for name, pair in {"a": (counter, None), "b": (None, counter), "c": (None, None)}.items():
        lives(tmp_path / name, monkeypatch, *pair)
        assert all("energy_joules" not in found for found in extras(tmp_path / name))
