"""Memory, limits, the cache and file systems, as the kernel has them."""

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptzoo.doctor import NOTE, OK, PROBLEM, Check, machine

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json
from ckptzoo.doctor import machine
print(json.dumps([vars(check) for check in (*machine.checks(), *machine.cache_checks())]))
"""


def found(limit: Callable[[], None] = lambda: None, **environment: str) -> dict[str, Check]:
    """What a process finds that begins with a limit."""
    command = [sys.executable, "-c", PROGRAM]
    own = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=own, preexec_fn=limit)
    checks: list[dict[str, Any]] = json.loads(done.stdout)
    return {item["name"]: Check(**item) for item in checks}


def lowered(kind: int, value: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))


def test_a_cache_that_was_not_made_yet(tmp_path: Path) -> None:
    root = tmp_path / "above" / "cache"
    checks = found(lowered(resource.RLIMIT_NOFILE, 2048), CKPTZOO_CACHE=str(root), CKPTZOO_CACHE_SIZE="1MB")
    assert re.fullmatch(rf"{root}: 0 B of at most 1 MB, [\d.]+ [kMGT]B free on the disk", checks["cache"].detail)
    assert checks["cache"].outcome == checks["memory"].outcome == checks["open files"].outcome == OK
    assert checks["file system of the cache"].detail.endswith("; files can be mapped and locked")
    assert "address space" not in checks and re.search(r"[\d.]+ GB, \d+ cores?", checks["memory"].detail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("limit", "cache", "message"),
    [
        (lowered(resource.RLIMIT_FSIZE, 1000), "{}", "File too large"),  # as a full disk, after some bytes
        (lambda: None, "{}/file", "Not a directory"),
        (lambda: None, "/proc/cache", "No such file or directory"),
    ],
)
@pytest.mark.sampled(3)
def test_a_cache_that_cannot_be_written(tmp_path: Path, limit: Callable[[], None], cache: str, message: str) -> None:
    (tmp_path / "file").touch()
    folder = cache.format(tmp_path)
    check = found(limit, CKPTZOO_CACHE=folder)["cache"]
    assert check.outcome == PROBLEM and check.detail == f"{folder}: cannot be written: {message}"
    assert "CKPTZOO_CACHE" in check.step


def test_a_size_of_the_cache_that_is_none() -> None:
    check = found(CKPTZOO_CACHE_SIZE="much")["cache"]
    assert check.outcome == PROBLEM and "'much'" in check.detail and "CKPTZOO_CACHE_SIZE" in check.step


def test_low_limits_are_noted() -> None:
    def limit() -> None:
        lowered(resource.RLIMIT_NOFILE, 200)()
        lowered(resource.RLIMIT_AS, 8 * 10**9)()

    checks = found(limit)
    assert checks["open files"] == Check("open files", NOTE, "at most 200", "Raise the limit: ulimit -n 4096.")
    assert (checks["address space"].outcome, checks["address space"].detail) == (NOTE, "at most 8 GB")


def test_file_systems(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    for path in (tmp_path, tmp_path / "file"):
        check = machine.file_system("place", path)
        assert check.outcome == OK and not check.detail.startswith("unknown")
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_bytes() == b"content"
    # the kernel's files have no pages that could be mapped
    check = machine.file_system("place", Path("/proc/self/mounts"))
    assert check.outcome == PROBLEM and check.detail.startswith("proc: files cannot be mapped")
