"""Running command lines, and a small zoo of OptuNets to run them on."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.cli.app import run

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Ended:
    """How a command line ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The standard output as one JSON object."""
        return json.loads(self.out)

    @property
    def line(self) -> str:
        """The standard error, which must be a single line."""
        assert self.err.endswith("\n") and self.err.count("\n") == 1, self.err
        return self.err.rstrip("\n")


Cli = Callable[..., Ended]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command line in this process, through everything but the interpreter's start."""

    def called(*arguments: object) -> Ended:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return called


@pytest.fixture
def optunets(tmp_path: Path) -> tuple[Path, Weights]:
    """Twelve OptuNets in two parts with accuracies 0.80 to 0.91; numbers 3 and 9 diverged."""
    arch = archs.architecture("optunet")
    rng = np.random.default_rng(0)
    weights = {tensor.name: rng.normal(size=(12, *tensor.shape)).astype(np.float32) for tensor in arch.tensors}
    weights["fc.weight"][9] = np.nan
    rows = [
        {
            "id": f"net-{at:03d}",
            "seed": at,
            "step": 100,
            "test_accuracy": 0.8 + at / 100,
            "diverged": at in (3, 9),
            "dataset": "digits",
        }
        for at in range(12)
    ]
    writer = ckptzoo.create(tmp_path / "nets", arch=arch, symmetry=archs.symmetry("optunet"))
    for part in (slice(0, 8), slice(8, 12)):
        writer.add({name: array[part] for name, array in weights.items()}, rows[part])
        writer.commit()
    return tmp_path / "nets", weights
