"""Clients of hubs and servers that keep to the folder of each test."""

from pathlib import Path

import pytest

_UNSET = ("CKPTZOO_OFFLINE", "HF_HUB_OFFLINE", "CKPTZOO_CACHE_SIZE", "HF_ENDPOINT", "HF_TOKEN")


@pytest.fixture
def isolated_clients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Caches are in the test's folder, no progress bars are drawn, and nothing of the environment matters."""
    for name in _UNSET:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CKPTZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)
