"""Mutual information of all pairs of members: ckptzoo beside a plain loop in torch and one in numpy's float64.

Logits of members that differ are drawn into a file of float16 and read from there, as stored predictions are. Each
contender runs in a process of its own, repeats are interleaved, medians are printed. ckptzoo computes all pairs; the
others those of the first members alone, from which their seconds are extrapolated by the number of pairs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, figure, machine, turns, write
from benchmarks.mmd_contenders import Watch
from ckptzoo.measure import pairwise
from ckptzoo.measure.pairwise import PairwiseInformation

ROOT = Path(__file__).resolve().parent.parent
_INPUTS = 1000
"""Inputs that ckptzoo is given at a time, as the study gives them."""


def by_blocks(logits: np.ndarray) -> np.ndarray:
    """``PairwiseInformation``, some inputs at a time."""
    pairs = PairwiseInformation(len(logits))
    for start in range(0, logits.shape[1], _INPUTS):
        pairs.add(logits[:, start : start + _INPUTS])
    return pairs.mutual_information


def without_numba(logits: np.ndarray) -> np.ndarray:
    """``PairwiseInformation`` in numpy alone."""
    held, pairwise.COMPILED_MEMBERS = pairwise.COMPILED_MEMBERS, 2**31
    try:
        return by_blocks(logits)
    finally:
        pairwise.COMPILED_MEMBERS = held


def torch_loop(logits: np.ndarray) -> np.ndarray:
    """A loop over members in float32; each with all later ones at once."""
    import torch

    p = torch.from_numpy(logits.astype(np.float32)).softmax(-1).clamp(min=1e-38)
    entropies = -(p * p.log()).sum(-1).mean(-1)
    found = torch.zeros(len(p), len(p))
    for i in range(len(p) - 1):
        mean = (p[i] + p[i + 1 :]) / 2
        entropy = -(mean * mean.log()).sum(-1).mean(-1)
        found[i, i + 1 :] = found[i + 1 :, i] = entropy - (entropies[i] + entropies[i + 1 :]) / 2
    return found.numpy()


def numpy_loop(logits: np.ndarray) -> np.ndarray:
    """A loop over pairs in float64: the reference."""
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(-1, keepdims=True)
    entropies = [-(each * np.log(each)).sum() / len(each) for each in p]
    found = np.zeros((len(p), len(p)))
    for i, j in combinations(range(len(p)), 2):
        mean = (p[i] + p[j]) / 2
        entropy = -(mean * np.log(mean)).sum() / len(mean)
        found[i, j] = found[j, i] = entropy - (entropies[i] + entropies[j]) / 2
    return found


CONTENDERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ckptzoo": by_blocks,
    "ckptzoo without Numba": without_numba,
    "torch": torch_loop,
    "numpy float64": numpy_loop,
}


def draw(file: Path, members: int, inputs: int, classes: int) -> None:
    """Write (members, inputs, classes) float16: logits that are shared by all members, and noise of each."""
    rng = np.random.default_rng(0)
    shared = 4 * rng.standard_normal((inputs, classes), dtype=np.float32)
    held = np.lib.format.open_memmap(file, "w+", np.float16, (members, inputs, classes))
    for row in held:
        row[:] = shared + rng.standard_normal((inputs, classes), dtype=np.float32)
    held.flush()


def measure(contender: str, file: Path, members: int, out: Path) -> dict[str, Any]:
    """Seconds, processor seconds over all threads, and the peak of anonymous memory, after a small warm-up."""
    logits = np.load(file, mmap_mode="r")[:members]
    compute = CONTENDERS[contender]
    compute(logits[:3, :10])
    with Watch() as watch:
        began, busy = time.perf_counter(), time.process_time()
        found = compute(logits)
        spent = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - busy}
    np.save(out, found)
    return {**spent, "peak_bytes": watch.peak - watch.before}


def run(contender: str, file: Path, members: int) -> tuple[dict[str, Any], np.ndarray]:
    """What one contender took in a process of its own, and what it found."""
    out = file.with_name("found.npy")
    command = [
        sys.executable,
        "-m",
        "benchmarks.pairwise_mi",
        "--measure",
        contender,
        str(file),
        str(members),
        str(out),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout), np.load(out)


def compare(file: Path, members: int, part: int, repeats: int) -> list[dict[str, Any]]:
    """One row a contender; the loops' seconds for as many members are extrapolated."""
    sizes = {name: members if name == "ckptzoo" else min(part, members) for name in CONTENDERS}
    runs = {name: [] for name in CONTENDERS}
    found: dict[str, np.ndarray] = {}
    for name in turns(sizes, repeats):
        spent, found[name] = run(name, file, sizes[name])
        runs[name].append(spent)
    exact = found["numpy float64"]
    rows = []
    for name, size in sizes.items():
        factor = members * (members - 1) / size / (size - 1)
        seconds = [factor * item["seconds"] for item in runs[name]]
        rows.append(
            {
                "contender": name,
                "members": size,
                "extrapolated": size < members,
                "seconds": statistics.median(seconds),
                "lowest": min(seconds),
                "highest": max(seconds),
                "cpu": factor * statistics.median(item["cpu"] for item in runs[name]),
                "all": {key: [factor * item[key] for item in runs[name]] for key in ("seconds", "cpu")},
                "peak_bytes": max(item["peak_bytes"] for item in runs[name]),
                "largest_error": float(np.abs(found[name][: len(exact), : len(exact)] - exact).max()),
            }
        )
    return rows


def figures(rows: list[dict[str, Any]]) -> Iterator[Figure]:
    """Seconds, processor seconds and memory of all pairs."""
    for row in rows:
        more = f", extrapolated from {row['members']} members" if row["extrapolated"] else ""
        name = f"{row['contender']}{more}"
        yield figure("pairs", name, "time", row["all"]["seconds"], "s")
        yield figure("pairs", name, "processor time", row["all"]["cpu"], "s")
        if not row["extrapolated"]:
            yield figure("pairs", name, "anonymous memory", [float(row["peak_bytes"])], "bytes")


def show(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    """One table."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for column in ("members", "seconds", "lowest to highest", "cpu s", "peak MB", "largest error", "times"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        seconds, low, high, cpu = (f"{row[key]:,.3g}" for key in ("seconds", "lowest", "highest", "cpu"))
        table.add_row(
            f"{row['contender']}{' (extrapolated)' if row['extrapolated'] else ''}",
            f"{row['members']:,}",
            seconds,
            f"{low} to {high}",
            cpu,
            f"{row['peak_bytes'] / 1e6:,.0f}",
            f"{row['largest_error']:.1g}",
            f"{row['seconds'] / rows[0]['seconds']:.1f}",
        )
    console.print(table)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=1000, help="M (1000)")
    parser.add_argument("--inputs", type=int, default=10_000, help="N (10,000)")
    parser.add_argument("--classes", type=int, default=10, help="C (10)")
    parser.add_argument("--part", type=int, default=60, help="members that the loops compute (60)")
    parser.add_argument("--repeats", type=int, default=3, help="of each contender (3)")
    default = ROOT / "bench-results" / "pairwise_mi.json"
    parser.add_argument("--json", type=Path, default=default, help="where figures go")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if min(chosen.inputs, chosen.classes, chosen.repeats) < 1 or min(chosen.members, chosen.part) < 2:
        parser.error("expected numbers above 0, and two members or more.")
    return chosen


def main() -> None:
    """Draw, measure, print the table, write the figures."""
    chosen = arguments()
    if chosen.measure:
        contender, file, members, out = chosen.measure
        print(json.dumps(measure(contender, Path(file), int(members), Path(out))))
        return
    console, load = Console(width=120), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "logits.npy"
        draw(file, chosen.members, chosen.inputs, chosen.classes)
        rows = compare(file, chosen.members, chosen.part, chosen.repeats)
    pairs = chosen.members * (chosen.members - 1) // 2
    title = f"{pairs:,} pairs of {chosen.members:,} members, {chosen.inputs:,} inputs, {chosen.classes:,} classes"
    show(console, title, rows)
    facts = machine(ROOT)
    console.print(f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}, Python {facts['python']}")
    console.print(f"load of the machine before: {load:.1f}")
    content = {"machine": facts, "load": load, "title": title, "results": rows}
    write(chosen.json, list(figures(rows)), content)
    console.print(f"Figures: {chosen.json}")


if __name__ == "__main__":
    main()
