"""The benchmark of graphs runs, and compares what is the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_it_runs_and_writes_its_figures(tmp_path):
    pytest.importorskip("torch_geometric")
    command = [sys.executable, "-m", "benchmarks.learning_graphs", "--batches", "1", "--repeats", "1"]
    done = subprocess.run([*command, "--json", str(tmp_path / "graphs.json")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "graphs.json").read_text())
    assert len(found["rows"]) == 4 and all(row["graphs_a_second"] > 0 for row in found["rows"])
    assert found["aims"][0]["got"] > 0
