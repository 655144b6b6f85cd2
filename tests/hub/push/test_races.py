"""Pushes that race, lose answers, or are killed: nothing is lost, and nothing is there or sent twice."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ckptzoo
from ckptzoo.errors import HubError
from ckptzoo.hub.client import Client
from ckptzoo.hub.client.retry import HubRetryPolicy
from ckptzoo.hub.push import Pushed
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import (
    assert_generated_page,
    assert_same_except_generated,
    downloaded,
    files_of,
    grown,
    inject_faults,
    own_commits,
    pushed,
    repeated_uploads,
)

Make = Callable[..., Path]
QUICK = HubRetryPolicy(first_pause=0.01, read_timeout=5.0)
pytestmark = pytest.mark.usefixtures("hasty")


@pytest.mark.parametrize("new", [pytest.param(True, marks=pytest.mark.exhaustive), False])
def test_pushes_at_once_all_succeed(server: Hosted, make_zoo: Make, tmp_path: Path, new: bool) -> None:
    base = make_zoo("base", (2,))
    if not new:
        pushed(server, base)
    zoos = [Path(shutil.copytree(base, tmp_path / f"zoo{at}")) for at in range(3)]
    for at, zoo in enumerate(zoos):
        grown(zoo, (1, 2), start=1, label=f"p{at}-")
    ready, results = threading.Barrier(3), dict[int, Pushed]()

    def go(at: int) -> None:
        ready.wait()
        results[at] = pushed(server, zoos[at], retry_policy=QUICK)

    threads = [threading.Thread(target=go, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == [0, 1, 2]
    down = downloaded(server, tmp_path)
    assert ckptzoo.verify(down) == [] and len(ckptzoo.open(down)) == 2 + 3 * 3
    assert all(len(found.commits) == 1 for found in results.values())
    assert sum(len(found.parts) for found in results.values()) == 6 + new
    assert_generated_page(down)
    assert len(list((down / "snapshots").iterdir())) == 1


def test_a_race_that_is_lost_is_run_again(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo()
    with inject_faults(server, at=(0, 1, 2), kinds=("conflict",)):
        found = pushed(server, zoo, retry_policy=QUICK)
    assert len(found.commits) == 1 and len(found.parts) == 2 and repeated_uploads(server) == []
    assert_same_except_generated(zoo, downloaded(server, tmp_path))


@pytest.mark.exhaustive
def test_races_without_end_are_given_up(server: Hosted, make_zoo: Make) -> None:
    zoo = make_zoo()
    with (
        inject_faults(server, rate=1.0, kinds=("conflict",)),
        pytest.raises(HubError, match="one of 16 races won, got none"),
    ):
        pushed(server, zoo, retry_policy=QUICK)


@pytest.mark.parametrize("operation", ["commit", "create", "upload"])
@pytest.mark.sampled(3)
def test_a_lost_answer_doubles_nothing(server: Hosted, make_zoo: Make, tmp_path: Path, operation: str) -> None:
    zoo = make_zoo()
    with inject_faults(server, at=(0,), kinds=("lost",), operations=(operation,)):
        found = pushed(server, zoo, retry_policy=QUICK)
    assert len(server.faults.injected) == 1
    client = Client(server.url)
    assert found.commits == (client.head(ZOO),) and len(found.parts) == 2 and found.created
    assert len(own_commits(server)) == 1
    assert_same_except_generated(zoo, downloaded(server, tmp_path))


def test_what_another_pushes_meanwhile_is_not_pushed_again(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    """The same part from two people at once: the one who comes second has nothing to add, and says so."""
    zoo = make_zoo()
    copy = Path(shutil.copytree(zoo, tmp_path / "copy"))
    pushed(server, zoo)
    grown(zoo, (1,), start=2)
    grown(copy, (1,), start=2)
    first = threading.Event()

    def other(done: int, total: int) -> None:
        if done == total and not first.is_set():  # everything is sent, and the commit is not made yet
            first.set()
            assert len(pushed(server, copy, retry_policy=QUICK).parts) == 1

    found = pushed(server, zoo, retry_policy=QUICK, progress=other)
    assert (found.commits, found.parts) == ((), ()) and len(own_commits(server)) == 2


PUSHING = """
import sys
from ckptzoo.hub.push import push
push(sys.argv[1], "lab/zoo", endpoint=sys.argv[2], token=sys.argv[3])
"""


def killed(server: Hosted, zoo: Path, when: Callable[[], bool]) -> None:
    """Push from another process and kill it once something has happened."""
    environment = {**os.environ, "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(Path(ckptzoo.__file__).parents[1])}
    command = [sys.executable, "-c", PUSHING, str(zoo), server.url, server.tokens["write"]]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
    try:
        deadline = time.monotonic() + 30
        while not when():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()


@pytest.mark.exhaustive
def test_killed_amid_uploads_and_repeated_nothing_is_sent_twice(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo("zoo", (3, 2, 4, 1))

    def stored() -> int:
        return sum(entry.operation == "upload" and entry.status == 200 for entry in server.request_log.entries)

    with inject_faults(server, at=(6, 8, 10), kinds=("stall",), operations=("upload",), wait=60.0):
        killed(server, zoo, lambda: stored() >= 8 and len(server.faults.injected) == 3)
    before = stored()
    assert Client(server.url).files(ZOO).keys() == {".gitattributes"}
    found = pushed(server, zoo)
    assert len(found.parts) == 4 and 0 < found.sent < found.nbytes and stored() - before == 13 - before
    assert repeated_uploads(server) == []
    assert_same_except_generated(zoo, downloaded(server, tmp_path))


@pytest.mark.parametrize("kind", [pytest.param("stall", marks=pytest.mark.exhaustive), "lost"])
def test_killed_amid_a_commit_and_repeated_it_is_there_once(
    server: Hosted, make_zoo: Make, tmp_path: Path, kind: str
) -> None:
    zoo = make_zoo("zoo", (3, 2))
    with inject_faults(server, at=(0,), kinds=(kind,), operations=("commit",), wait=60.0):
        killed(server, zoo, lambda: bool(server.faults.injected))
    found = pushed(server, zoo)
    assert len(own_commits(server)) == 1 and repeated_uploads(server) == []
    down = downloaded(server, tmp_path)
    texts = sum(len(data) for name, data in files_of(down).items() if name.endswith((".json", ".md", ".toml")))
    assert found.sent in (0, texts)
    assert_same_except_generated(zoo, down)
