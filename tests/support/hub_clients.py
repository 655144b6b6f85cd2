"""Where hub clients keep caches and tokens, and how long they wait, in tests/hub, tests/server and tests/faults."""

import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.hosted import Hosted

ROOT = Path(__file__).parents[2]
END = """
import os, sys
sys.stdout.flush()
os._exit(0)
"""
"""The end of programs that use ``datasets``: Arrow's threads may abort a process while its interpreter ends
(https://github.com/huggingface/datasets/issues/7357)."""
_UNSET = (
    "CKPTZOO_OFFLINE",
    "CKPTZOO_CACHE_SIZE",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "HF_TOKEN",
    "HTTP_PROXY",
    "http_proxy",
)


def allow_large_upload_warnings(items: list[pytest.Item], folder: Path) -> None:
    """Allow the warning that the client library causes itself when it uploads large files, in the tests of a folder."""
    for item in items:
        if item.path.is_relative_to(folder):
            item.add_marker(pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"))


def isolate_clients(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients keep caches and tokens in a folder, draw no bars, and see nothing of the environment."""
    for name in _UNSET:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CKPTZOO_CACHE", str(folder / "cache"))
    monkeypatch.setenv("HF_TOKEN_PATH", str(folder / "no-token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "no-token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_STORED_TOKENS_PATH", str(folder / "no-tokens"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)


def fast_clock() -> SimpleNamespace:
    """A ``time`` module for the client library whose ``sleep`` takes a hundredth of the time."""
    return SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 100))


def run_client(
    server: Hosted, home: Path, *command: str, role: str | None = "write", xet: bool = False, fails: bool = False
) -> str:
    """Run a program as a client of a server and return what it prints.

    Nothing else of the environment reaches it; what it keeps, it keeps in ``home``.

    Parameters
    ----------
    role
        whose token it has; None for none.
    xet
        whether it may look for Xet storage, as clients do where nothing is set.
    fails
        whether it has to fail; what it prints of that is returned.
    """
    home.mkdir(exist_ok=True)
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "SYSTEMROOT") if name in os.environ}
    environment |= {
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "CKPTZOO_CACHE": str(home / "cache"),
        "HF_ENDPOINT": server.url,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "NO_COLOR": "1",
        "PYTHONPATH": str(ROOT),
    }
    if xet:
        del environment["HF_HUB_DISABLE_XET"]
    if role is not None:
        environment["HF_TOKEN"] = server.tokens[role]
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout
