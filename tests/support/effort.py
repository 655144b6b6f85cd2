"""How thorough a run of the tests is.

By default properties are tried on up to 8 examples, costly ones on 6 or fewer, long series (kinds of faults, kills,
flipped bytes, real networks) are sampled, tests marked ``exhaustive`` are skipped, and of the cases of tests marked
``sampled(n)`` every n-th runs. With ``CKPTZOO_TESTS=all`` every count is taken in full (``make test-all``).
"""

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ALL = os.environ.get("CKPTZOO_TESTS") == "all"
MAX_EXAMPLES = 8
FEW_EXAMPLES = 6
"""For properties of which an example takes more than about 20 ms."""
SLOW_FOLDERS = ("builders", "cards", "cli", "faults", "hub", "laws", "project", "server")
"""Tests here start servers or processes, train networks, or try many examples: each is ``slow``."""


_MEMORY, _SCRATCH_BYTES = Path("/dev/shm"), 8 * 2**30


def scratch_folder() -> Path | None:
    """A file system in memory, if this machine has one with room: on a disk, tests wait for it half of their time."""
    has_room = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _SCRATCH_BYTES
    return _MEMORY if has_room else None


def examples(count: int, limit: int = MAX_EXAMPLES) -> int:
    """How many examples a property is tried on, which in full takes ``count``: by default at most ``limit``."""
    return count if ALL else min(count, limit)


def mark(items: list[pytest.Item]) -> None:
    """Mark what is slow by its folder, and skip what only a full run does."""
    cases = Counter[str]()
    for item in items:
        if item.path.relative_to(TESTS).parts[0] in SLOW_FOLDERS:
            item.add_marker(pytest.mark.slow)
        sampled = item.get_closest_marker("sampled")
        test, _, _ = item.nodeid.partition("[")
        cases[test] += 1
        is_left_out = sampled is not None and (cases[test] - 1) % sampled.args[0] != 0
        if not ALL and (is_left_out or item.get_closest_marker("exhaustive")):
            item.add_marker(pytest.mark.skip(reason="CKPTZOO_TESTS=all runs it"))


def seconds_by_folder(reports: list[pytest.TestReport]) -> list[tuple[str, int, float]]:
    """Folder, number of tests and seconds, the slowest first; set-up and tear-down count."""
    seconds: dict[str, float] = {}
    tests: dict[str, set[str]] = {}
    for report in reports:
        folder = report.nodeid.partition("::")[0].rpartition("/")[0]
        seconds[folder] = seconds.get(folder, 0.0) + report.duration
        tests.setdefault(folder, set()).add(report.nodeid)
    slowest_first = sorted(seconds, key=lambda folder: -seconds[folder])
    return [(folder, len(tests[folder]), seconds[folder]) for folder in slowest_first]
