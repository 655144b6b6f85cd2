"""The benchmark of the Gauss-Newton matrix runs through, and both of ours agree; no time is judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
def test_a_tiny_run_has_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CKPTZOO_DATA", raising=False)
    command = [
        sys.executable,
        "benchmarks/curvature.py",
        "--images",
        "300",
        "--members",
        "2",
        "--repeats",
        "1",
        "--backends",
    ]
    ran = subprocess.run(
        [*command, "--json", str(tmp_path / "out" / "curvature.json")], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads((tmp_path / "out" / "curvature.json").read_text())
    assert found["recipe"] == "digits-optunet" and found["machine"]["packages"]["numpy"]
    assert [(row["name"], row["images"]) for row in found["results"]] == [
        ("ours, OptuNet", 300),
        ("ours, any architecture", 300),
    ]
    assert found["results"][1]["difference"] < 1e-5
    assert [row["name"] for row in found["hessians"]] == [
        "ours, whole Hessians",
        "a loop, whole Hessians",
        "a loop, Lanczos alone",
    ]
    assert found["hessians"][1]["difference"] < 1e-9 and found["hessians"][2]["difference"] < 1e-3
