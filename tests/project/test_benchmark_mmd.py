"""The benchmark of the maximum mean discrepancy runs through, and its contenders find the same; no time is judged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.mmd_contenders import CONTENDERS, blocks
from ckptzoo.measure import mmd2

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", list(CONTENDERS))
def test_contenders_find_the_same(name: str) -> None:
    held = CONTENDERS[name](20, 9)
    for x, y in blocks(20, 9, 700, 300, seed=1):
        held.add(x, y)
    whole = [np.concatenate(parts, axis=1) for parts in zip(*blocks(20, 9, 700, 300, seed=1), strict=True)]
    np.testing.assert_allclose(held.mmd2(), mmd2(*whole), atol=1e-5)


@pytest.mark.exhaustive
def test_a_tiny_run_has_every_row(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/mmd.py", "--m", "30", "--n", "8", "--columns", "700", "--slice", "300"]
    command += ["--repeats", "1", "--json", str(tmp_path / "mmd.json")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    found = json.loads((tmp_path / "mmd.json").read_text())
    small, part, large = found["results"].values()
    assert [row["contender"] for row in small] == [row["contender"] for row in part] == list(CONTENDERS)
    assert [(row["contender"], row["extrapolated"]) for row in large] == [
        (name, name != "ckptzoo") for name in CONTENDERS
    ]
    assert [row["columns"] for row in large] == [700, 300, 300, 300, 300]
    for row in (*small, *part, *large):
        assert row["lowest"] <= row["seconds"] <= row["highest"] and row["peak_bytes"] >= 0
        assert row["largest_gap_to_ckptzoo"] < 1e-5
