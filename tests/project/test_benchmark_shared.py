"""The benchmark of shared work runs through and its JSON has every row; no time is judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
def test_a_tiny_run_has_every_row(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/shared.py", "--members", "8", "--epochs", "1", "--networks", "4"]
    command += ["--merged", "16", "--units", "10", "--repeats", "1", "--json", str(tmp_path / "shared.json")]
    ran = subprocess.run([*command, "--folder", str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = json.loads((tmp_path / "shared.json").read_text())
    assert [row["what"].split()[0] for row in found["shared"]] == ["work", "derive", "mmd"]
    assert [row["what"].split()[0] for row in found["single"]] == ["plan", "status", "a", "merge", "disk"]
