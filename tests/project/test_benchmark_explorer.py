"""The benchmark of pages runs through and its JSON has every row; no time is judged."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
@pytest.mark.browser
@pytest.mark.skipif(find_spec("altair") is None, reason="needs altair")
def test_a_tiny_run_has_every_row(tmp_path: Path) -> None:
    if shutil.which("chromium") is None:
        pytest.skip("needs chromium")
    command = [sys.executable, "-m", "benchmarks.explorer", "--members", "40", "--resnets", "2", "--repeats", "1"]
    ran = subprocess.run(
        [*command, "--json", str(tmp_path / "explorer.json")], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads((tmp_path / "explorer.json").read_text())
    contenders = [(row["contender"], row["members"]) for row in found["rows"]]
    assert contenders == [
        ("ckptzoo", 2048), ("altair", 2048), ("ckptzoo", 40), ("altair", 40), ("ckptzoo, one layer of ResNet-18", 2)
    ]  # fmt: skip
    assert all(row["build_s"] > 0 for row in found["rows"])
    assert all(row["ready_ms"] > 0 and row["heap_mb"] > 0 for row in found["rows"][:4])
