"""Clients wait a hundredth of the usual time between attempts here."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("huggingface_hub")

import ckptzoo
from ckptzoo.hub.client.retry import HubRetryPolicy
from ckptzoo.remote.retry import RetryPolicy
from tests.faults.bench import Bench
from tests.faults.counts import COUNTS
from tests.faults.material import zoo_of
from tests.faults.processes import HURRIED, defaults_of
from tests.support.effort import ALL
from tests.support.hosted import SMALL, hosted
from tests.support.hub_clients import allow_large_upload_warnings, fast_clock, isolate_clients

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    allow_large_upload_warnings(items, HERE)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where tests run in several processes, each sends what it counted."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["faults"] = COUNTS.plain()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """One of these processes has ended."""
    COUNTS.add(getattr(node, "workeroutput", {}).get("faults", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How much was tried: two lines, or with CKPTZOO_TESTS=all everything."""
    if COUNTS:
        terminalreporter.section("faults", "-")
        for line in COUNTS.lines()[: None if ALL else 2]:
            terminalreporter.line(line)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every test's clients keep to its folder."""
    isolate_clients(tmp_path, monkeypatch)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client library sleeps a hundredth of the time, and the default policies are as short."""
    monkeypatch.setattr("huggingface_hub.utils._http.time", fast_clock())
    for like in HURRIED:
        defaults(monkeypatch, like)


def defaults(monkeypatch: pytest.MonkeyPatch, like: RetryPolicy | HubRetryPolicy) -> None:
    """Make this the policy of everybody who passes none."""
    monkeypatch.setattr(type(like).__init__, "__defaults__", defaults_of(like))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zoo of tiny networks in two parts, with a snapshot. Tests do not change it."""
    path = zoo_of(tmp_path_factory.mktemp("tiny") / "zoo")
    ckptzoo.compact(path)
    (path / "listing.json").unlink()  # for web servers; it is neither published nor fetched
    return path


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A server for all tests, where each uses repositories of its own."""
    folder = tmp_path_factory.mktemp("bench")
    # hundreds of runs contribute to one server
    with hosted(folder / "served", limits=replace(SMALL, contributor_discussions=10_000)) as server:
        yield Bench(server, folder)
