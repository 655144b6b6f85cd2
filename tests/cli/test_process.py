"""What only a process of its own can show: start-up, signals, pipes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from tests.support.effort import ALL

HEAVY = ("numpy", "pyarrow", "torch", "matplotlib", "pandas", "datasets", "safetensors")


def listening() -> None:
    """Before a child starts: interrupts reach it, though background jobs of a shell inherit that they are ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def process(*arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *map(str, arguments)]
    options = {"preexec_fn": listening, **options}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from ckptzoo.cli.app import run\n"
        "assert run(['--help']) == 0 and run(['--version']) == 0 and run(['frob']) == 2\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert process("-c", code).stdout.splitlines()[-1] == "[]"


def test_reading_commands_import_neither_torch_nor_pyplot(optunets: Any, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from ckptzoo.cli.app import run\n"
        f"zoo, target = {str(optunets[0])!r}, {str(tmp_path / 'one')!r}\n"
        "assert run(['info', zoo]) == 0 and run(['verify', zoo]) == 0\n"
        "assert run(['export', zoo, 'net-000', '-o', target + '.safetensors']) == 0\n"
        "assert 'matplotlib' not in sys.modules\n"
        "assert run(['show', zoo, '-o', target]) == 0\n"
        "print('torch' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    ended = process("-c", code)
    assert ended.stdout.splitlines()[-1] == "False False", ended.stderr


def test_the_module_runs_as_the_command(optunets: Any) -> None:
    ended = process("-m", "ckptzoo", "info", optunets[0], "--json")
    assert ended.returncode == 0 and '"checkpoints":12' in ended.stdout
    missing = process("-m", "ckptzoo", "info", optunets[0].with_name("missing"))
    assert (missing.returncode, missing.stdout) == (2, "") and missing.stderr.count("\n") == 1


INTERRUPTED = """
import os, signal, sys
from ckptzoo.cli import main
from ckptzoo.format import durable
real, calls, when = os.fsync, [], int(sys.argv.pop(1))
def fsync(descriptor):
    calls.append(1)
    if len(calls) == when:
        assert [name for name in os.listdir(os.path.dirname(sys.argv[-1])) if name.startswith(".ckptzoo-tmp-")]
        os.kill(os.getpid(), signal.SIGINT)
    real(descriptor)
os.fsync = fsync
main()
"""


@pytest.mark.exhaustive
def test_ctrl_c_between_write_and_rename_leaves_the_old_file(optunets: Any, tmp_path: Path) -> None:
    target = tmp_path / "out" / "one.safetensors"
    target.parent.mkdir()
    target.write_bytes(b"old")
    ended = process("-c", INTERRUPTED, 1, "export", optunets[0], "net-000", "-o", target)
    assert ended.returncode == 130, ended.stderr
    assert ended.stdout == "" and ended.stderr == "ckptzoo: interrupted: nothing is left half-written.\n"
    assert [file.name for file in target.parent.iterdir()] == [target.name] and target.read_bytes() == b"old"


@pytest.mark.exhaustive
def test_the_end_of_a_batch_job_is_ctrl_c(optunets: Any, tmp_path: Path) -> None:
    target = tmp_path / "out" / "one.safetensors"
    target.parent.mkdir()
    ended = process("-c", INTERRUPTED.replace("SIGINT", "SIGTERM"), 1, "export", optunets[0], "net-000", "-o", target)
    assert ended.returncode == 130 and ended.stderr == "ckptzoo: interrupted: nothing is left half-written.\n"
    assert list(target.parent.iterdir()) == []


def test_ctrl_c_at_any_moment_leaves_no_half(tmp_path: Path) -> None:
    arch = ckptzoo.Architecture("wide", (ckptzoo.Tensor("w", (16, 1024, 1024)),))
    with ckptzoo.create(tmp_path / "wide", arch=arch) as writer:
        writer.add({"w": np.ones((1, 16, 1024, 1024), np.float32)}, [{"id": "a"}])
    target = tmp_path / "out" / "a.safetensors"
    target.parent.mkdir()
    command = [sys.executable, "-m", "ckptzoo", "export", str(tmp_path / "wide"), "a", "-o", str(target)]
    whole, codes = 0, []
    for delay in (None, 0.4, 0.6) if ALL else (None, 0.5):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=listening) as running:
            if delay is not None:
                time.sleep(delay)
                running.send_signal(signal.SIGINT)
            running.communicate(timeout=60)
            codes.append(running.returncode)
        assert not list(target.parent.glob(".ckptzoo-tmp-*"))
        if delay is None:
            whole = target.stat().st_size
        elif target.exists():
            assert target.stat().st_size == whole
        target.unlink(missing_ok=True)
    assert codes[0] == 0 and set(codes[1:]) <= {0, 130, -signal.SIGINT}


def test_a_closed_pipe_is_no_traceback(optunets: Any) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "ckptzoo", "info", str(optunets[0])]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(write)
    assert "Traceback" not in ended.stderr, ended.stderr
