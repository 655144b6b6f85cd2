"""The benchmark of a server's pages and upkeep runs through; no time is judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
def test_a_tiny_run_measures_everything(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/hosting.py", "--zoos", "30", "--blobs", "4000", "--requests", "3"]
    command += ["--folder", str(tmp_path), "--json", str(tmp_path / "hosting.json")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    figures = json.loads((tmp_path / "hosting.json").read_text())
    assert figures["gc"]["blobs"] == figures["gc"]["files"] == 2000 and figures["backup"]["blobs"] > 4000
    assert all(row["p95"] > 0 for row in figures["pages"].values())
    assert all(row["requests"] > 3 for row in figures["uploads"].values())
