"""Shared by all programs here: turns of contenders, figures with their spread, facts of the machine, one form of JSON.

A figure belongs into one cell of a table of the documentation: a program names table, row and column, and
``docs/benchmarks.py`` writes the tables from the figures that ``python -m benchmarks`` has put into docs/benchmarks/.
"""

import json
import os
import platform
import random
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

PACKAGES = ("ckptzoo", "numpy", "pyarrow", "safetensors", "torch", "zarr", "h5py")
DIGITS = 4
"""The number of significant digits of a figure that is kept."""
Name = TypeVar("Name")
Figure = dict[str, Any]


def turns(contenders: Iterable[Name], repeats: int) -> Iterator[Name]:
    """Yield every contender once a repeat, in an order that is drawn again for each repeat.

    So drift of the machine, and what a contender leaves in caches for the next one, hits all alike.
    """
    held, order = list(contenders), random.Random(0)
    for _ in range(repeats):
        yield from order.sample(held, len(held))


def ratios(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """One contender's values over the other's, repeat by repeat."""
    return [mine / theirs for mine, theirs in zip(one, other, strict=True)]


def figure(table: str, row: str, column: str, values: Sequence[float], unit: str) -> Figure:
    """The median of some values with the least and the greatest.

    Parameters
    ----------
    table, row, column
        Where it stands. Rows and columns stand in the order of their first figures.
    unit
        ``s``, ``bytes``, ``times`` (a ratio), ``share`` (a fraction, shown in per cent), or what is counted.
    """
    low, median, high = (
        float(f"{value:.{DIGITS}g}") for value in (min(values), statistics.median(values), max(values))
    )
    spread = {"low": low, "high": high} if len(values) > 1 else {}
    return {"table": table, "row": row, "column": column, "unit": unit, "median": median, **spread, "runs": len(values)}


def write(path: Path, figures: Sequence[Figure], content: Mapping[str, Any]) -> None:
    """Write everything that a program measured, with its figures for the documentation.

    Raises
    ------
    ValueError
        Two figures stand in the same cell, or a value is not finite.
    """
    cells = [(each["table"], each["row"], each["column"]) for each in figures]
    twice = {cell for cell in cells if cells.count(cell) > 1}
    if twice:
        raise ValueError(f"figures: expected one a cell, got several in {sorted(twice)}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**content, "figures": list(figures)}, indent=1, allow_nan=False)
    path.write_text(text + "\n")


def machine(folder: Path) -> dict[str, Any]:
    """Return the facts that figures depend on: processor, memory, the disk's read-ahead, versions."""
    cpu = "unknown"
    if (info := Path("/proc/cpuinfo")).exists():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = models[0] if models else cpu
    device = folder.stat().st_dev
    ahead = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "read_ahead_kb": int(ahead.read_text()) if ahead.exists() else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
    }
