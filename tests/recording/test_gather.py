"""Gathering takes files as somebody else's, names what it leaves, and survives kills and company."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.recording import unit_files
from ckptzoo.recording.claims import Claims
from ckptzoo.recording.merging import MERGE
from ckptzoo.recording.units import member_folder, recorded_folder, unit_path, waiting_units
from tests.support.effort import ALL

ARCH = ckptzoo.Architecture("net", (ckptzoo.Tensor("w", (3,)), ckptzoo.Tensor("n", (), "int64")))


def weights(value: float) -> dict[str, Any]:
    return {"w": np.full(3, value, np.float32), "n": np.asarray(int(value), np.int64)}


def recorded(path: Path, members: str = "abc", steps: int = 3) -> Path:
    """A zoo with checkpoints that wait; ``n`` is 10 times the member's number plus the step."""
    for number, member in enumerate(members):
        with ckptzoo.record(path, arch=ARCH, member=member) as run:
            for step in range(steps):
                run.save(weights(10 * number + step), step=step)
    return path


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Change tensors or facts of a file, and seal it again, as somebody could who writes to the folder."""
    data = path.read_bytes()
    facts = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    arrays = load(data)
    change(arrays, facts)
    del facts["seal"]
    path.write_bytes(b"".join(unit_files.sealed(arrays, facts)))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def other_row(key: str, value: Any) -> Callable[[Path], None]:
    def change(arrays: dict[str, Any], facts: dict[str, Any]) -> None:
        facts["rows"] = json.dumps([{**json.loads(facts["rows"])[0], key: value}])

    return lambda path: rewrite(path, change)


def fact(key: str, value: str) -> Callable[[Path], None]:
    return lambda path: rewrite(path, lambda arrays, facts: facts.update({key: value}))


def tensor(name: str, array: Any) -> Callable[[Path], None]:
    return lambda path: rewrite(path, lambda arrays, facts: arrays.update({name: array}))


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def symlink(path: Path) -> None:
    aside = path.with_name("aside")
    path.rename(aside)
    path.symlink_to(aside)


def unsealed(path: Path) -> None:
    path.write_bytes(save(load(path.read_bytes())))


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "a flipped bit": (flip, "saved work: expected bytes with the digest"),
    "cut short": (
        lambda path: path.write_bytes(path.read_bytes()[:-5]),
        "saved work: expected a whole safetensors file",
    ),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"more"), "saved work: expected"),
    "empty": (lambda path: path.write_bytes(b""), "saved work: expected a whole safetensors file"),
    "a pipe": (fifo, "expected a file, got a folder, a pipe or a device"),
    "a link": (symlink, "expected a file, got a link"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "expected a file, got a folder"),
    "without a seal": (unsealed, "expected a file with a seal, got none"),
    "another zoo's": (fact("plan", "sha256:0"), "expected plan sha256:"),
    "another member's": (fact("unit", "z"), "file of member 'z': expected its folder"),
    "another step's": (fact("number", "7"), "expected number 1, got '7'"),
    "a row of another id": (other_row("id", "b-000002"), "row: expected one of 'b-000001'"),
    "a row with a column that is none": (other_row("colour", 1), "column"),
    "a row of another type": (other_row("test_loss", "low"), "test_loss"),
    "a time that is none": (other_row("created", "yesterday"), "rows of the unit: expected a list of rows in JSON"),
    "deep rows": (fact("rows", "[" * 100_000), "rows of the unit: expected a list of rows in JSON"),
    "no rows": (fact("rows", "[]"), "row: expected one of 'b-000001', got 0 rows"),
    "another dtype": (tensor("w", np.zeros((1, 3))), "tensor 'w': expected"),
    "two checkpoints": (tensor("w", np.zeros((2, 3), np.float32)), "tensors: expected those of one checkpoint"),
    "another tensor": (tensor("v", np.zeros((1, 3), np.float32)), "tensor 'v'"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.sampled(2)
def test_files_that_are_left_and_named(tmp_path: Path, kind: str) -> None:
    zoo = recorded(tmp_path / "zoo")
    damage, message = BAD[kind]
    path = unit_path(member_folder(zoo, "b"), 1)
    damage(path)
    result = ckptzoo.gather(zoo)
    assert [problem.location for problem in result.problems] == [str(path)] and message in str(result.problems[0])
    assert result.checkpoints == 8 and os.path.lexists(path)
    assert ckptzoo.open(zoo)["n"][:].tolist() == [0, 1, 2, 10, 12, 20, 21, 22]
    assert not ckptzoo.verify(zoo)
    again = ckptzoo.gather(zoo)
    assert (again.checkpoints, again.parts, again.problems) == (0, (), result.problems)


def test_an_id_that_the_zoo_has_of_another_recording(tmp_path: Path) -> None:
    zoo = recorded(tmp_path / "zoo", "a")
    copy = tmp_path / "copy"
    shutil.copytree(recorded_folder(zoo), copy)
    ckptzoo.gather(zoo)
    shutil.copytree(copy, recorded_folder(zoo))
    other_row("created", "2020-01-01T00:00:00+00:00")(unit_path(member_folder(zoo, "a"), 1))
    result = ckptzoo.gather(zoo)
    assert (result.there, result.checkpoints) == (2, 0)
    assert "checkpoint 'a-000001': expected one that the zoo lacks, got another, made at" in str(result.problems[0])
    assert waiting_units(zoo) == 1


def test_one_gathers_at_a_time(tmp_path: Path) -> None:
    zoo = recorded(tmp_path / "zoo")
    with (
        Claims(recorded_folder(zoo)).held(MERGE),
        pytest.raises(
            ZooError, match=rf"merge: expected no other one at work, got process {os.getpid()} on .* Wait for it"
        ),
    ):
        ckptzoo.gather(zoo)
    assert ckptzoo.gather(zoo).checkpoints == 9


def test_a_folder_that_is_no_zoo_and_a_zoo_where_nothing_waits(tmp_path: Path) -> None:
    with pytest.raises(ZooError, match=r"zoo\.json"):
        ckptzoo.gather(tmp_path)
    ckptzoo.create(tmp_path / "zoo", arch=ARCH)
    assert ckptzoo.gather(tmp_path / "zoo").parts == ()


def test_a_member_folder_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    zoo = recorded(tmp_path / "zoo", "ab")
    folder = member_folder(zoo, "b")
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert ckptzoo.gather(zoo).checkpoints == 3
    assert len(list((tmp_path / "elsewhere").glob("*.safetensors"))) == 3


KILLED = """
import os, sys, time
import numpy as np
import ckptzoo
from pathlib import Path
from tests.recording.test_gather import ARCH, weights

def record(zoo, number):
    with ckptzoo.record(zoo, arch=ARCH, member=f"run-{number}") as run:
        first = -1 if run.last_step is None else run.last_step
        for step in range(first + 1, 40):
            run.save(weights(100 * number + step), step=step)
            if step % 4 == 3:
                run.wait()
                # what this file names was durable before the process was killed
                with open(Path(zoo).parent / f"durable-{number}", "a") as said:
                    said.write(f"{step}\\n")
            time.sleep(0.002)

def gather(zoo):
    while True:
        try:
            ckptzoo.gather(zoo)
        except ckptzoo.ZooError as error:
            assert "no other one at work" in str(error), error
        time.sleep(0.01)

def child(work, *arguments):
    pid = os.fork()
    if pid:
        return pid
    try:
        work(*arguments)
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(1)
    os._exit(0)

zoo, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
import random, signal
draw = random.Random(seed)
recorders = {number: child(record, zoo, number) for number in range(8)}
gatherers = {number: child(gather, zoo) for number in range(2)}
for _ in range(kills):
    time.sleep(draw.uniform(0, 0.12))
    if draw.random() < 0.25:
        number = draw.randrange(2)
        os.kill(gatherers[number], signal.SIGKILL)
        os.waitpid(gatherers[number], 0)
        gatherers[number] = child(gather, zoo)
        continue
    number = draw.randrange(8)
    os.kill(recorders[number], signal.SIGKILL)
    os.waitpid(recorders[number], 0)
    recorders[number] = child(record, zoo, number)
failed = [number for number, pid in recorders.items() if os.waitpid(pid, 0)[1]]
for pid in gatherers.values():
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
assert not failed, failed
"""


@pytest.mark.parametrize("seed", range(8 if ALL else 1))
def test_kills_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    """Eight recorders and two gatherers, killed at random moments and started again."""
    zoo = tmp_path / "zoo"
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(zoo), str(25 if ALL else 8), str(seed)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=Path(__file__).parents[2])
    assert ended.returncode == 0, ended.stderr[-3000:]
    result = ckptzoo.gather(zoo)
    assert not result.problems and not ckptzoo.verify(zoo) and waiting_units(zoo) == 0
    opened = ckptzoo.open(zoo)
    assert sorted(opened["n"][:].tolist()) == [100 * number + step for number in range(8) for step in range(40)]
    rows = opened.metadata.select(["id", "member", "step"]).to_pylist()
    assert all(row["id"] == f"{row['member']}-{row['step']:06d}" for row in rows)
    numbers = dict(zip(opened.ids, opened["n"][:].tolist(), strict=True))
    assert all(numbers[f"run-{number}-{step:06d}"] == 100 * number + step for number in range(8) for step in range(40))


def test_a_recorder_that_was_killed_is_followed_at_once(tmp_path: Path) -> None:
    code = (
        "import os, sys, ckptzoo\nfrom tests.recording.test_gather import ARCH, weights\n"
        "run = ckptzoo.record(sys.argv[1], arch=ARCH, member='a')\nrun.save(weights(1), step=1)\nrun.wait()\n"
        "print('ready', flush=True)\nos.read(0, 1)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "zoo")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"ready\n"
        with pytest.raises(ZooError, match=f"got process {other.pid} on"):
            ckptzoo.record(tmp_path / "zoo", member="a")
        other.send_signal(signal.SIGKILL)
        other.wait()
    began = time.monotonic()
    with ckptzoo.record(tmp_path / "zoo", member="a") as run:
        assert run.last_step == 1
    assert time.monotonic() - began < 5


def test_random_files_in_the_folder_are_nothing(tmp_path: Path) -> None:
    """Names of other programs, and garbage under a name of ours: the first are ignored, the second named."""
    zoo, draw = recorded(tmp_path / "zoo", "a"), random.Random(3)
    folder = member_folder(zoo, "a")
    (folder / "notes.txt").write_text("mine")
    (recorded_folder(zoo) / "stray").write_text("")
    for step in range(10, 20):
        unit_path(folder, step).write_bytes(draw.randbytes(draw.randrange(200)))
    result = ckptzoo.gather(zoo)
    assert (result.checkpoints, len(result.problems)) == (3, 10)
    assert (folder / "notes.txt").exists()
