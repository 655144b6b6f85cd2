"""What every test gets: small zoos, how thorough the run is, and where its time went."""

import gc
import os

# Workers share the cores: threads of their own would only wait for one another. Before numpy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import ckptzoo
from ckptzoo.format.header import numpy_dtype
from tests.support.effort import examples, mark, scratch_folder, seconds_by_folder

if (folder := scratch_folder()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(folder))  # where pytest makes its temporary folders

# until tests are collected: their objects all stay, and would be looked through again and again
gc.disable()

settings.register_profile(
    "ckptzoo", max_examples=examples(100), deadline=None
)  # examples differ in size: no limit each
settings.load_profile("ckptzoo")

Weights = dict[str, np.ndarray]

_UNSET = ("CKPTZOO_OFFLINE", "HF_HUB_OFFLINE", "CKPTZOO_CACHE_SIZE", "HF_ENDPOINT", "HF_TOKEN")
"""What would lead clients of hubs out of a test."""
MIXED = ckptzoo.Architecture(
    "mixed",
    (
        ckptzoo.Tensor("conv.weight", (3, 2, 2)),
        ckptzoo.Tensor("norm.running_var", (3,), "float64", "buffer"),
        ckptzoo.Tensor("norm.num_batches_tracked", (), "int64", "buffer"),
        ckptzoo.Tensor("half.weight", (5,), "float16"),
        ckptzoo.Tensor("brain.weight", (2, 3), "bfloat16", aliases=("tied.weight",)),
        ckptzoo.Tensor("flag", (1,), "bool"),
    ),
)
"""Every element size, a scalar, a tied tensor, odd shapes."""


def weights_of(arch: ckptzoo.Architecture, count: int, seed: int = 0) -> Weights:
    """Random stacked tensors of an architecture."""
    rng = np.random.default_rng(seed)
    made: Weights = {}
    for tensor in arch.tensors:
        values = rng.normal(size=(count, *tensor.shape)) * 10
        made[tensor.name] = values.astype(numpy_dtype(tensor.dtype))
    return made


def rows_of(count: int, start: int = 0, **columns: Any) -> list[dict[str, Any]]:
    """Rows of metadata with ids m00000, m00001, ..."""
    return [
        {"id": f"m{at:05d}", "seed": at, "step": 10, "test_accuracy": at % 100 / 100, **columns}
        for at in range(start, start + count)
    ]


@pytest.fixture
def any_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers take rows whose values make no sense, as another program may write them."""
    monkeypatch.setattr("ckptzoo.format.writer.value_problems", lambda rows, *, location: ())


@pytest.fixture
def mixed() -> ckptzoo.Architecture:
    return MIXED


@pytest.fixture
def make_zoo(tmp_path: Path) -> Callable[..., tuple[Path, Weights]]:
    """Make a zoo of parts of these sizes; returns its folder and everything in it, stacked."""

    def make(
        parts: tuple[int, ...] = (4, 3), arch: ckptzoo.Architecture = MIXED, name: str = "zoo"
    ) -> tuple[Path, Weights]:
        weights, at = weights_of(arch, sum(parts)), 0
        writer = ckptzoo.create(tmp_path / name, arch=arch)
        for number, count in enumerate(parts):
            writer.add(
                {key: value[at : at + count] for key, value in weights.items()},
                rows_of(count, at, unit=f"unit-{number}"),
            )
            writer.commit()
            at += count
        return tmp_path / name, weights

    return make


@pytest.fixture(scope="session", autouse=True)
def own_data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where zoos may follow references is recorded in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data-home")))
        yield


@pytest.fixture
def isolated_clients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Caches are in the test's folder, no progress bars are drawn, and nothing of the environment matters."""
    for name in _UNSET:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CKPTZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for the tests of a file."""
    from tests.support.chromium import chromium

    with chromium() as running:
        yield running


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow by its folder, and skip what only a full run does; the longest, which have a timeout, come first.

    At the end they would keep one core busy while the others have nothing to do.
    """
    mark(items)
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


def pytest_collection_finish() -> None:
    """Collect garbage among the objects of tests alone."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Seconds by folder, of all workers together."""
    reports = [report for group in terminalreporter.stats.values() for report in group if hasattr(report, "duration")]
    folders = seconds_by_folder(reports)
    if len(folders) > 1:
        terminalreporter.section("seconds by folder", "-")
        for folder, count, seconds in folders:
            terminalreporter.line(f"{seconds:7.1f} s {count:5d} tests  {folder}")
