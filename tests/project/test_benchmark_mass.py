"""The benchmark of the least mass runs through and its JSON has every row; no time is judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
def test_a_tiny_run_has_every_row(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/mass.py", "--optunets", "8", "--resnets", "1", "--count", "1"]
    command += ["--width", "8", "--repeats", "1", "--json", str(tmp_path / "out" / "mass.json")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = json.loads((tmp_path / "out" / "mass.json").read_text())
    assert [(item["name"], item["verdict"]) for item in found["races"]] == [
        ("optunet", "agrees"),
        ("mlp-8-8-8-10", "agrees"),
    ]
    assert found["resnets"]["checkpoints"] == 1 and found["machine"]["packages"]["numpy"]
    assert len(found["depths"]) == 6 + 4 + 9
    assert all(item["gap"] <= 1e-10 and item["iterations"] <= 20 for item in found["depths"])
