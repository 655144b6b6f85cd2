"""The benchmark of Hamiltonian Monte Carlo runs through and its JSON has every row; no time is judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
def test_a_tiny_run_has_every_row(tmp_path: Path) -> None:
    pytest.importorskip("blackjax", reason="the extra hmc is not installed")
    command = [sys.executable, "benchmarks/hmc.py", "--chains", "1", "3", "--examples", "20", "--leapfrogs", "3"]
    command += ["--transitions", "2", "--repeats", "1", "--json", str(tmp_path / "out" / "hmc.json")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    rows = json.loads((tmp_path / "out" / "hmc.json").read_text())["rows"]
    contenders = ("builder", "blackjax, vmap", "blackjax, one by one")
    assert [(row["chains"], row["contender"]) for row in rows] == [(n, name) for n in (1, 3) for name in contenders]
    assert all(row["gradient_seconds"] > 0 for row in rows)
