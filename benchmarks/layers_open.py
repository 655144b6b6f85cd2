"""Opening a zoo of many small checkpoints, and importing the package."""

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ckptzoo
from benchmarks.figures import turns
from benchmarks.layers_pages import evict, files_of
from ckptzoo import archs

CHECKPOINTS = 8192
PARTS = 128


def write_small(folder: Path, *, count: int, parts: int) -> Iterator[int]:
    """A zoo of OptuNets in so many parts, with a snapshot where there is more than one; yields rows written."""
    arch = archs.architecture("optunet")
    generator = np.random.default_rng([count, parts])
    writer = ckptzoo.create(folder, arch=arch)
    for start in range(0, count, count // parts):
        rows = min(count // parts, count - start)
        weights = {t.name: generator.random((rows, *t.shape), dtype=np.float32) for t in arch.tensors}
        ids = range(start, start + rows)
        writer.add(weights, [{"id": f"m{at:05d}", "seed": at, "step": 60, "test_accuracy": at / count} for at in ids])
        writer.commit()
        yield rows
    if parts > 1:
        ckptzoo.compact(folder)


def time_open(folder: Path, *, count: int, repeats: int) -> dict[str, Any]:
    """Milliseconds to open a zoo, the modules imported: warm, cold, and warm with a first tensor located.

    Raises
    ------
    ValueError
        The zoo does not hold ``count`` checkpoints.
    """
    ckptzoo.open(folder)
    samples: dict[str, list[float]] = {"cold": [], "warm": [], "warm_located": []}
    for _ in range(repeats):
        evict(files_of(folder))
        for cache in ("cold", "warm"):
            start = time.perf_counter()
            zoo = ckptzoo.open(folder)
            samples[cache].append(1e3 * (time.perf_counter() - start))
            if len(zoo) != count:
                raise ValueError(f"open: expected {count} checkpoints, got {len(zoo)}.")
        start = time.perf_counter()
        _ = ckptzoo.open(folder)["fc.weight"].shape
        samples["warm_located"].append(1e3 * (time.perf_counter() - start))
    return {name: summary(values) for name, values in samples.items()}


def time_import(repeats: int) -> dict[str, Any]:
    """Milliseconds of ``import ckptzoo`` in a fresh interpreter, less those of an interpreter that does nothing."""
    samples: dict[str, list[float]] = {"pass": [], "import ckptzoo": []}
    for code in turns(samples, repeats):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        samples[code].append(1e3 * (time.perf_counter() - start))
    bare, whole = samples.values()
    beyond = [more - less for less, more in zip(bare, whole, strict=True)]
    return {
        "interpreter_ms": statistics.median(bare),
        "with_import_ms": statistics.median(whole),
        "import_ms": statistics.median(beyond),
        "samples_ms": beyond,
    }


def summary(milliseconds: list[float]) -> dict[str, Any]:
    """Median, least and greatest of some samples, and the samples."""
    return {
        "median_ms": statistics.median(milliseconds),
        "min_ms": min(milliseconds),
        "max_ms": max(milliseconds),
        "samples_ms": milliseconds,
    }
