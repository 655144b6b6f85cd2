"""The benchmark of outputs runs through and its JSON has every row; no time is judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
def test_a_tiny_run_has_every_row(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/predict.py", "--members", "3", "--images", "5", "--repeats", "1"]
    ran = subprocess.run([*command, "--json", str(tmp_path / "predict.json")], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    rows = json.loads((tmp_path / "predict.json").read_text())["rows"]
    assert [row["contender"] for row in rows] == ["loop", "vmap", "archs.stacked", "derive.predict"]
    assert all(row["difference"] <= 2e-6 for row in rows[:3])
