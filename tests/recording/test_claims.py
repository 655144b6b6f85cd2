"""Who works on what, where processes share a folder and nothing else."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ckptzoo.recording.claims import Claims, Holder
from tests.support.effort import examples

WORKER = """
import sys, time
from pathlib import Path
from ckptzoo.recording.claims import Claims
folder, mine = Path(sys.argv[1]), sys.argv[2]
claims = Claims(folder, heartbeat=0.02, stale=float(sys.argv[3]))
for unit in range(20):
    done = folder / f"done-{unit}"
    while not done.exists():
        with claims.held(f"unit-{unit}") as claim:
            if claim is None:
                time.sleep(0.001)
                continue
            if done.exists():
                break
            (folder / f"{mine}-{unit}").write_text("")
            time.sleep(0.002)
            if not claim.lost:
                done.write_text("")
"""


def worker(folder: Path, name: str, stale: float) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", WORKER, str(folder), name, str(stale)])


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    claims, others = Claims(tmp_path), Claims(tmp_path)
    with claims.held("u") as claim:
        assert claim is not None and not claim.lost and not claim.taken_over
        with others.held("u") as second:
            assert second is None
        with others.held("v") as other:
            assert other is not None
        holder = others.holder("u")
        assert holder is not None and holder.alive and holder.process == os.getpid() and holder.age < 5
        claim.progress = 70
        claim.beat()
        told = others.holder("u")
        assert told is not None and told.progress == 70
    assert others.holder("u") is None and list(tmp_path.iterdir()) == []


def test_a_holder_that_ended_here_is_taken_over_at_once(tmp_path: Path) -> None:
    code = "import os, sys; from pathlib import Path; from ckptzoo.recording.claims import Claims; Claims(Path(sys.argv[1]))._take('u')"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    claims = Claims(tmp_path)
    holder = claims.holder("u")
    assert holder is not None and not holder.alive
    with claims.held("u") as claim:
        assert claim is not None and claim.taken_over
        assert [path.name for path in tmp_path.iterdir()] == ["u.claim-000002"]
        assert set(claims.holders()) == {"u"}
    assert list(tmp_path.iterdir()) == [] and claims.holders() == {}


def test_a_holder_elsewhere_is_taken_over_when_it_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And notices it: by its file's number, not by any clock."""
    monkeypatch.setattr("ckptzoo.recording.claims._has_ended", lambda content: False)
    first, second = Claims(tmp_path, heartbeat=60, stale=0.2), Claims(tmp_path, stale=0.2)
    with first.held("u") as claim:
        assert claim is not None
        with second.held("u") as other:
            assert other is None
        time.sleep(0.3)
        with second.held("u") as other:
            assert other is not None
            claim.beat()
            assert claim.lost and not other.lost
            other.beat()
            assert not other.lost
            # what the first tells later does not give it life
            with first.held("u") as again:
                assert again is None


def test_a_holder_whose_parent_has_not_asked_how_it_ended_is_taken_over_too(tmp_path: Path) -> None:
    """It keeps its process number, as a zombie, for as long as the parent lives."""
    code = "import os, sys; from pathlib import Path; from ckptzoo.recording.claims import Claims; Claims(Path(sys.argv[1]))._take('u')"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        holder = Claims(tmp_path).holder("u")
        assert holder is not None and holder.process == process.pid and not holder.alive


def test_a_process_that_was_given_the_number_of_a_holder_is_not_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("ckptzoo.recording.claims._started", lambda process: 1)
        Claims(tmp_path)._take("u")
    holder = Claims(tmp_path).holder("u")
    assert holder is not None and holder.process == os.getpid() and not holder.alive


@pytest.mark.parametrize("hours", [-30, 30])
def test_clocks_of_machines_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: float) -> None:
    with Claims(tmp_path).held("u"):
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 3600 * hours)
        holder = Claims(tmp_path).holder("u")
        assert holder is not None and holder.alive and abs(holder.age) < 5


def test_a_sign_of_life_from_the_future_does_not_count_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "u.claim-000001"
    path.write_bytes(b"")
    later = time.time() + 86400
    os.utime(path, (later, later))
    with Claims(tmp_path).held("u") as claim:
        assert claim is not None and claim.taken_over


def test_a_claim_that_is_being_written_counts(tmp_path: Path) -> None:
    (tmp_path / "u.claim-000004").write_bytes(b"")
    assert Claims(tmp_path).holder("u") == Holder("unknown", 0, 0, pytest.approx(0, abs=5), True)
    with Claims(tmp_path).held("u") as claim:
        assert claim is None
    (tmp_path / "u.claim-000004").write_bytes(b'["not", "ours"]' * 1000)
    assert Claims(tmp_path).holder("u") == Holder("unknown", 0, 0, pytest.approx(0, abs=5), True)


def test_a_claim_appears_with_its_holder_in_it(tmp_path: Path) -> None:
    """Killed at any moment, a holder leaves no claim that others cannot tell to be one of a process that ended."""
    ended, empty = threading.Event(), list[Path]()
    claim = tmp_path / "u.claim-000001"

    def read() -> None:
        while not ended.is_set():
            with contextlib.suppress(FileNotFoundError):
                if not claim.read_bytes():
                    empty.append(claim)

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(examples(300, 60)):
        with Claims(tmp_path).held("u") as held:
            assert held is not None
    ended.set()
    thread.join()
    assert empty == []


def test_several_processes_share_the_work(tmp_path: Path) -> None:
    """Nobody is taken for dead, so every unit is done once."""
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(worker(tmp_path, name, 60)) for name in "abc"]
        assert [process.wait(60) for process in workers] == [0, 0, 0]
    for unit in range(20):
        assert len([name for name in "abc" if (tmp_path / f"{name}-{unit}").exists()]) == 1
    assert not list(tmp_path.glob("*.claim-*"))


def test_processes_that_are_killed_leave_nothing_undone(tmp_path: Path) -> None:
    """A claim that was made and not yet written when its holder was killed counts for three seconds here."""
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(worker(tmp_path, name, 3)) for name in "abc"]
        stack.callback(lambda: [process.kill() for process in workers])
        for process, done in [(workers[0], "done-5"), (workers[1], "done-12")]:
            while not (tmp_path / done).exists():
                assert any(each.poll() is None for each in workers)
                time.sleep(0.005)
            process.kill()
        assert workers[2].wait(60) == 0
        assert all((tmp_path / f"done-{unit}").exists() for unit in range(20))
