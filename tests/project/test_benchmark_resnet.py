"""The benchmark of ResNets runs through, carries on behind what it measured, and counts its arithmetic right."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.resnet import flop_an_image

ROOT = Path(__file__).parents[2]


def test_the_arithmetic_of_a_resnet18_is_counted() -> None:
    """Convolutions and the last layer by hand: forward, the gradient of the weights, and that of all inputs but one."""
    stages = [(64, 32, 4, 64), (128, 16, 4, 64), (256, 8, 4, 128), (512, 4, 4, 256)]
    first, forward = 9 * 3 * 64 * 32**2, 512 * 100
    for width, side, convolutions, before in stages:
        forward += 9 * side**2 * width * (before + (convolutions - 1) * width)
        forward += side**2 * width * before if width > 64 else 0
    assert flop_an_image("resnet18-100") == 2 * (3 * forward + 2 * first)


@pytest.mark.exhaustive
def test_a_tiny_run_has_every_row(tmp_path: Path) -> None:
    path = tmp_path / "resnet.json"
    command = [sys.executable, "-m", "benchmarks.resnet", "--width", "2", "--batch", "16", "--repeats", "1"]
    command += ["--seconds", "0.01", "--json", str(path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    content = json.loads(path.read_text())
    assert content["finished"]
    assert [row["way"]["runner"] for row in content["rows"]] == ["plain", "single", "stock"]
    assert all(row["median"] > 0 for row in content["rows"])
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    assert json.loads(path.read_text())["rows"] == content["rows"], "nothing was measured again"
