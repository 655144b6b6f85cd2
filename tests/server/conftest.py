"""A server for each test, without and with an empty dataset."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosted import ZOO, Hosted, hosted


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Clients keep their caches in the test's folder, draw no bars and use no other storage."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Hosted]:
    with hosted(tmp_path / "served") as running:
        yield running


@pytest.fixture
def zoo(server: Hosted) -> Hosted:
    """A server with an empty dataset ``lab/zoo``."""
    server.api().create_repo(ZOO, repo_type="dataset")
    return server
