"""The benchmark of pairwise mutual information runs through, and its contenders find the same; no time is judged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.pairwise_mi import CONTENDERS, draw

ROOT = Path(__file__).parents[2]


def test_contenders_find_the_same(tmp_path: Path) -> None:
    draw(tmp_path / "logits.npy", 12, 300, 5)
    logits = np.load(tmp_path / "logits.npy")
    first, *others = (compute(logits) for compute in CONTENDERS.values())
    assert first.max() > 0.01
    for found in others:
        np.testing.assert_allclose(found, first, atol=1e-6)


@pytest.mark.exhaustive
def test_a_tiny_run_has_every_row(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/pairwise_mi.py", "--members", "9", "--inputs", "50", "--part", "5"]
    command += ["--repeats", "1", "--json", str(tmp_path / "pairs.json")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    rows = json.loads((tmp_path / "pairs.json").read_text())["results"]
    assert [(row["contender"], row["extrapolated"]) for row in rows] == [
        (name, name != "ckptzoo") for name in CONTENDERS
    ]
    for row in rows:
        assert 0 < row["lowest"] <= row["seconds"] <= row["highest"] and row["largest_error"] < 1e-6
