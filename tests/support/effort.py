"""How thorough a run of the tests is.

By default properties are tried on up to 50 examples, and tests marked ``exhaustive`` are skipped. With
``CKPTZOO_TESTS=all`` every count is taken in full (``make test-all``).
"""

import os

import pytest

ALL = os.environ.get("CKPTZOO_TESTS") == "all"
MAX_EXAMPLES = 50


def examples(count: int) -> int:
    """How many examples a property is tried on, which in full takes ``count``."""
    return count if ALL else min(count, MAX_EXAMPLES)


def skip_exhaustive(items: list[pytest.Item]) -> None:
    """Skip what only a full run does."""
    for item in items:
        if not ALL and item.get_closest_marker("exhaustive"):
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
