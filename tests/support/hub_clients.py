"""Where clients keep what they keep, and how long they wait, in the tests of this folder and of tests/faults."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

_UNSET = (
    "CKPTZOO_OFFLINE",
    "CKPTZOO_CACHE_SIZE",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "HF_TOKEN",
    "HTTP_PROXY",
    "http_proxy",
)


def large_uploads_may_warn(items: list[pytest.Item], folder: Path) -> None:
    """The client library warns of itself when it uploads large files; tests of a folder let it."""
    for item in items:
        if item.path.is_relative_to(folder):
            item.add_marker(pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"))


def keep_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients keep caches and tokens in a folder and draw no bars; nothing of the environment matters."""
    for name in _UNSET:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CKPTZOO_CACHE", str(folder / "cache"))
    monkeypatch.setenv("HF_TOKEN_PATH", str(folder / "no-token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "no-token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_STORED_TOKENS_PATH", str(folder / "no-tokens"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)


def hurry() -> SimpleNamespace:
    """A clock for the client library by which its pauses are a hundredth of what they are."""
    return SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 100))
