"""However a pull ends, the folder is sound, and the same call fetches what is missing and nothing else."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ckptzoo
from ckptzoo.hub.pull import pull
from ckptzoo.remote import RemoteError
from tests.hub.pull.conftest import REPO, Publish, verified
from tests.support.hosted import Hosted
from tests.support.hub_zoos import files_of
from tests.support.server_layers import FaultPlan

ROOT = Path(__file__).parents[3]
SLOW = FaultPlan(at=(0, 1), kinds=("trickle",), operations=("blob",), wait=2.5)
OPENING = 60_000
"""Bytes of everything but shards that a pull of the wide zoo reads."""

PULLER = """
import sys
sys.path.insert(0, {root!r})
from ckptzoo.hub.pull import pull
pull({repo!r}, {target!r}, endpoint={url!r}, layers={layers!r}, progress=lambda *now: print(*now, flush=True))
"""


def sent(server: Hosted, since: int) -> int:
    """Bytes of all answers from a number on."""
    return sum(entry.sent for entry in server.request_log.entries[since:])


@contextmanager
def pulling(server: Hosted, target: Path, layers: list[str] | None) -> Iterator["subprocess.Popen[str]"]:
    """A process that pulls, and prints how far it is."""
    program = PULLER.format(root=str(ROOT), repo=REPO, target=str(target), url=server.url, layers=layers)
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def stored_blocks(target: Path) -> int:
    """Bytes of the blocks in a pull's own folder."""
    blobs = (target / ".ckptzoo-pull" / "blocks").glob("*/blobs/*/sha256-*")
    return sum(path.stat().st_size for path in blobs)


def test_killed_in_the_middle_of_a_whole_pull(wide: Path, publish: Publish, tmp_path: Path) -> None:
    server = publish(wide, plan=SLOW)
    total, done = 0, 0
    with pulling(server, tmp_path / "got", None) as process:
        assert process.stdout is not None
        for line in process.stdout:
            done, total = map(int, line.split())
            if done >= total / 4:
                break
        process.send_signal(signal.SIGKILL)
    assert total / 4 <= done < total
    if (tmp_path / "got" / "parts").exists():
        verified(tmp_path / "got")
    wait_until_quiet(server)
    since = len(server.request_log.entries)
    pulled = pull(REPO, tmp_path / "got", endpoint=server.url)
    assert sent(server, since) <= total - done + OPENING
    assert pulled.fetched <= total - done + OPENING
    assert files_of(tmp_path / "got") == files_of(wide)


@pytest.mark.exhaustive
def test_killed_in_the_middle_of_a_part(wide: Path, publish: Publish, tmp_path: Path) -> None:
    server = publish(wide, plan=SLOW)
    total = 24 * 2**20
    with pulling(server, tmp_path / "got", ["big"]) as process:
        deadline = time.monotonic() + 60
        while stored_blocks(tmp_path / "got") < 2 * 2**20 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    had = stored_blocks(tmp_path / "got")
    assert 2 * 2**20 <= had < total
    wait_until_quiet(server)
    since = len(server.request_log.entries)
    pull(REPO, tmp_path / "got", endpoint=server.url, layers=["big"])
    assert sent(server, since) <= total - had + OPENING
    pull(wide, tmp_path / "straight", layers=["big"])
    got, straight = (files_of(tmp_path / name) for name in ("got", "straight"))
    assert {name for name in got if got[name] != straight[name]} == {"README.md"} and got.keys() == straight.keys()
    assert sorted(path.name for path in (tmp_path / "got" / ".ckptzoo-pull").iterdir()) == ["asked.json"]


def wait_until_quiet(server: Hosted) -> None:
    """Until the answers to a process that was killed have ended, and are in the request log."""
    count = -1
    while count != (count := len(server.request_log.entries)):
        time.sleep(0.5)


@pytest.mark.exhaustive
def test_a_network_that_is_gone_in_the_middle(wide: Path, publish: Publish, tmp_path: Path) -> None:
    """The first requests go well, then all are refused for longer than the retry policy allows."""
    server = publish(wide, plan=FaultPlan(at=tuple(range(1, 400)), kinds=("expired",), operations=("blob",)))
    with pytest.raises(RemoteError):
        pull(REPO, tmp_path / "got", endpoint=server.url)
    assert not list((tmp_path / "got").glob("parts/*"))
    assert ckptzoo.verify(tmp_path / "got") == []


def test_a_private_zoo_is_pulled_with_a_token_that_is_not_kept(
    wide: Path, publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "another")
    server = publish(wide, private=True)
    with pytest.raises(RemoteError):
        pull(REPO, tmp_path / "got", endpoint=server.url, layers=["other"])
    how: dict[str, Any] = {"endpoint": server.url, "layers": ["other"], "token": server.tokens["read"]}
    pull(REPO, tmp_path / "got", **how)
    verified(tmp_path / "got")
    assert os.environ["HF_TOKEN"] == "another"
    assert not [
        path for path in tmp_path.glob("got/**/*") if path.is_file() and how["token"].encode() in path.read_bytes()
    ]
