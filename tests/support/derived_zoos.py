"""Zoos of OptuNets to derive from, and what is in their folders."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import ckptzoo
from ckptzoo import archs
from ckptzoo.format.writer import create_referring
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.card import Card
from ckptzoo.schema.groups import AxisAction, Group, Segment, Sym
from ckptzoo.schema.symmetry import Symmetry

ARCH = archs.architecture("optunet")
TABLE = archs.symmetry("optunet")
WRONG = Symmetry(
    (Group("h", 10, Sym(), "positive"),),
    (
        AxisAction("conv2.weight", 0, (Segment("h", 0, 1, 10),), 1, True, "out"),
        AxisAction("fc.weight", 1, (Segment("h", 0, 1, 10),), -1, True, "in"),
    ),
)
"""Moves channels of a grouped convolution across its groups, which changes the function."""
Weights = dict[str, np.ndarray]


def weights_of(count: int, seed: int, *, arch: Architecture = ARCH, dtype: Any = np.float32) -> Weights:
    """Random weights of K checkpoints; normalisations have variances around 1 and gains of both signs."""
    rng = np.random.default_rng(seed)
    made: Weights = {}
    for tensor in arch.tensors:
        if tensor.dtype == "int64":
            made[tensor.name] = np.full((count, *tensor.shape), 100)
            continue
        values = rng.standard_normal((count, *tensor.shape)) / np.sqrt(max(9, np.prod(tensor.shape[1:])))
        made[tensor.name] = (np.exp(values) if tensor.name.endswith("running_var") else values).astype(dtype)
    return made


def inputs_of(arch: Architecture, count: int) -> np.ndarray:
    """Standard normal inputs of a network."""
    assert arch.input_shape is not None
    return np.random.default_rng(1).standard_normal((count, *arch.input_shape))


def fill(path: Path, parts: tuple[int, ...], *, start: int = 0, spoil: tuple[int, ...] = ()) -> None:
    """Add parts of so many OptuNets each; ``spoil`` makes rows of every part not finite."""
    writer = ckptzoo.append(path)
    for number, count in enumerate(parts, start):
        weights = weights_of(count, number)
        for row in spoil:
            weights["conv1.weight"][row, 0, 0, 1, 2] = np.nan
        writer.add(weights, [{"id": f"{number}-{row}", "unit": f"u{number}"} for row in range(count)])
        writer.commit()


def zoo_of(path: Path, parts: tuple[int, ...] = (5, 3), *, spoil: tuple[int, ...] = ()) -> Path:
    """A zoo of OptuNets in parts of so many."""
    ckptzoo.create(path, arch=ARCH, symmetry=TABLE)
    fill(path, parts, spoil=spoil)
    return path


def written(path: Path, arch: Architecture, weights: Weights, **options: Any) -> Path:
    """A zoo of one part with these weights and ids 0, 1, ..."""
    with ckptzoo.create(path, arch=arch, **options) as writer:
        writer.add(weights, [{"id": str(at)} for at in range(len(next(iter(weights.values()))))])
    return path


def linked(path: Path, arch: Architecture, weights: Weights) -> Path:
    """A zoo of weights in files beside it, with ids that end in 0, 1, ...; whether they are finite is not known."""
    nets = path.with_name(f"{path.name}-nets")
    nets.mkdir()
    for at in range(len(next(iter(weights.values())))):
        save_file({name: np.array(array[at]) for name, array in weights.items()}, nets / f"{at:03}.safetensors")
    create_referring(path, arch=arch, card=Card(path.name), symmetry=None)
    ckptzoo.link_zoo(nets, path, license="MIT")
    return path


def files_of(path: Path) -> dict[str, bytes]:
    """Every file and its bytes."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def run(code: str, *args: str) -> subprocess.Popen[str]:
    """A Python program in another process."""
    environment = {**os.environ, "PYTHONPATH": str(Path(ckptzoo.__file__).parents[1])}
    return subprocess.Popen([sys.executable, "-c", code, *args], env=environment, stderr=subprocess.PIPE, text=True)
