"""The benchmark of augmented streams runs through and its JSON has every row; no time is judged."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
def test_a_tiny_run_has_every_row(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.learning", "--mlps", "3", "--optunets", "5"]
    ran = subprocess.run(
        [*command, "--graph-batches", "1", "--repeats", "1", "--json", str(tmp_path / "learning.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads((tmp_path / "learning.json").read_text())
    graphs = find_spec("torch_geometric") is not None
    assert len(found["rows"]) == 10 + 4 * graphs and len(found["aims"]) == 6 + graphs
    assert all(row["networks_a_second"] > 0 for row in found["rows"])
