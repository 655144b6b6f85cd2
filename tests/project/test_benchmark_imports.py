"""The benchmark of imports runs through and its JSON has every row; no time is judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
def test_a_tiny_run_has_every_row(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "benchmarks/imports.py",
        "--small",
        "20",
        "--lstms",
        "5",
        "--resnets",
        "1",
        "--rows",
        "100",
        "--repeats",
        "1",
    ]
    ran = subprocess.run([*command, "--json", str(tmp_path / "imports.json")], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    rows = json.loads((tmp_path / "imports.json").read_text())["rows"]
    assert [row["task"] for row in rows] == [
        name for name in ("small files", "lstms", "resnet18 tgz", "flat matrix") for _ in "ab"
    ]
    assert all(row["seconds"] > 0 and row["anonymous_bytes"] >= 0 for row in rows)
