"""A server for each test, without and with an empty dataset, and clients that keep their files in the test's folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosted import ZOO, Hosted, hosted
from tests.support.hub_clients import isolate_clients


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every test's clients keep their files in its folder."""
    isolate_clients(tmp_path, monkeypatch)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Hosted]:
    """A server with no repositories."""
    with hosted(tmp_path / "served") as running:
        yield running


@pytest.fixture
def zoo(server: Hosted) -> Hosted:
    """A server with an empty dataset ``lab/zoo``."""
    server.api().create_repo(ZOO, repo_type="dataset")
    return server
