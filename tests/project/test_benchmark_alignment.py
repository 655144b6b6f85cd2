"""The benchmark of alignment runs through and its JSON has every row; no time is judged."""

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
        "benchmarks/alignment.py",
        "--optunets",
        "3",
        "--networks",
        "mlp-6-9-9-3",
        "resnet8-pad-10",
    ]
    command += ["--members", "4", "--repeats", "1", "--json", str(tmp_path / "out" / "alignment.json")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    rows = json.loads((tmp_path / "out" / "alignment.json").read_text())["rows"]
    raced = [(row["task"], row["contender"]) for row in rows if "value" in row]
    tasks = ("optunet", "mlp-6-9-9-3", "resnet8-pad-10")
    found = [pair for pair in raced if pair[1] != "rebasin"]
    assert found[:-2] == [(task, name) for task in tasks for name in ("ckptzoo", "plain loop")]
    assert found[-2:] == [("barycentre of mlp-784-64-10", name) for name in ("ckptzoo", "Frank-Wolfe")]
    assert all(0.9 < row["value"] <= 1 for row in rows if "value" in row)
