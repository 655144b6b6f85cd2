"""A server for each test, clients that keep their files in the test's folder, and small zoos."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("huggingface_hub")

from tests.support.hosted import Hosted, hosted
from tests.support.hub_clients import allow_large_upload_warnings, fast_clock, isolate_clients
from tests.support.hub_zoos import zoo_of

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    allow_large_upload_warnings(items, HERE)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every test's clients keep their files in its folder."""
    isolate_clients(tmp_path, monkeypatch)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client library waits for milliseconds where it would for seconds."""
    monkeypatch.setattr("huggingface_hub.utils._http.time", fast_clock())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Hosted]:
    """A server with no repositories; ``server.tokens`` has one for each of the roles read, contribute and write."""
    with hosted(tmp_path / "served") as running:
        yield running


@pytest.fixture
def make_zoo(tmp_path: Path) -> Callable[..., Path]:
    """``make_zoo(name="zoo", parts=(3, 2), label="m")``: the folder of a new zoo of OptuNets with random weights."""

    def make(name: str = "zoo", parts: tuple[int, ...] = (3, 2), *, label: str = "m") -> Path:
        return zoo_of(tmp_path / name, parts, label=label)

    return make
