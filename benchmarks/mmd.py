"""Maximum mean discrepancy: ckptzoo beside scipy and torch, on all layers of OptuNet and on one of ResNet-18.

ckptzoo is measured as it comes, compiled where Numba is installed, and in numpy and torch alone. Each contender runs
in a process of its own, repeats are interleaved, medians are printed. Weights are drawn block by block, and the time
for that is told apart. A first block, for which code may be compiled or loaded, is not counted. Of the ResNet-18 layer
ckptzoo computes every column; the others a slice, from which their seconds are extrapolated. The whole takes some
minutes; --columns makes it shorter.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.figures import Figure, figure, machine, ratios, turns, write
from benchmarks.mmd_contenders import CONTENDERS
from ckptzoo import archs

ROOT = Path(__file__).resolve().parent.parent
LARGE = 512 * 512 * 3 * 3
Taken = list[dict[str, Any]]


def run(contender: str, m: int, n: int, width: int, columns: list[int]) -> Taken:
    """What each layer took, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.mmd_contenders", contender, *map(str, (m, n, width, *columns))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def measured(
    names: Sequence[str], columns: list[int], m: int, n: int, width: int, repeats: int
) -> dict[str, list[Taken]]:
    """Interleaved repeats of every contender."""
    found: dict[str, list[Taken]] = {name: [] for name in names}
    with Progress(transient=True) as progress:
        task = progress.add_task(f"{sum(columns):,} columns", total=repeats * len(names))
        for name in turns(names, repeats):
            found[name].append(run(name, m, n, width, columns))
            progress.advance(task)
    return found


def row_of(name: str, taken: list[Taken], first: Taken, pairs: int) -> dict[str, Any]:
    """Medians over repeats of sums over layers.

    Parameters
    ----------
    first
        what ckptzoo found in its first repeat.
    """
    keys = ("distances", "kernels", "drawing", "cpu")
    sums = [{key: sum(item[key] for item in layers) for key in keys} for layers in taken]
    distances, kernels, drawing, cpu = (statistics.median(item[key] for item in sums) for key in keys)
    columns = sum(item["columns"] for item in taken[0])
    seconds = [item["distances"] + item["kernels"] for item in sums]
    both = zip(taken[0], first, strict=True)
    return {
        "contender": name,
        "columns": columns,
        "extrapolated": False,
        "seconds": statistics.median(seconds),
        "lowest": min(seconds),
        "highest": max(seconds),
        "kernels": kernels,
        "drawing": drawing,
        "cpu": cpu,
        "all": {"seconds": seconds, "cpu": [item["cpu"] for item in sums]},
        "differences_a_second": pairs * columns / distances,
        "peak_bytes": max(item["peak"] for layers in taken for item in layers),
        "largest_gap_to_ckptzoo": max(
            abs(a - b) for one, two in both for a, b in zip(one["mmd2"], two["mmd2"], strict=True)
        ),
    }


def extrapolated(row: dict[str, Any], columns: int) -> dict[str, Any]:
    """What more columns would take: distances grow with them, kernels do not."""
    factor = columns / row["columns"]
    scaled = {
        key: (row[key] - row["kernels"]) * factor + row["kernels"] for key in ("seconds", "lowest", "highest", "cpu")
    }
    every = {
        key: [(value - row["kernels"]) * factor + row["kernels"] for value in values]
        for key, values in row["all"].items()
    }
    return {**row, **scaled, "all": every, "extrapolated": True}


def figures(results: dict[str, Taken]) -> Iterator[Figure]:
    """Seconds, processor seconds and memory of each, and seconds over ckptzoo's."""
    (small, small_rows), _, (large, large_rows) = results.items()
    for table, title, rows in (("optunet", small, small_rows), ("layer", large, large_rows)):
        for row in rows:
            name = f"{row['contender']}{', extrapolated' if row['extrapolated'] else ''}"
            yield figure(table, name, "time", row["all"]["seconds"], "s")
            yield figure(table, name, "processor time", row["all"]["cpu"], "s")
            yield figure(table, name, "anonymous memory", [float(row["peak_bytes"])], "bytes")
            if title == small and row is not rows[0]:
                compared = ratios(row["all"]["seconds"], rows[0]["all"]["seconds"])
                yield figure(table, name, "time over ckptzoo's", compared, "times")


def show(console: Console, title: str, rows: Taken) -> None:
    """One table."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for column in ("columns", "seconds", "lowest to highest", "cpu s", "10^9 |x-y|/s", "peak MB", "times"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        seconds, low, high, cpu = (f"{row[key]:,.3g}" for key in ("seconds", "lowest", "highest", "cpu"))
        table.add_row(
            f"{row['contender']}{' (extrapolated)' if row['extrapolated'] else ''}",
            f"{row['columns']:,}",
            seconds,
            f"{low} to {high}",
            cpu,
            f"{row['differences_a_second'] / 1e9:.2f}",
            f"{row['peak_bytes'] / 1e6:,.0f}",
            f"{row['seconds'] / rows[0]['seconds']:.1f}",
        )
    console.print(table)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, default=1000, help="rows of X (1000)")
    parser.add_argument("--n", type=int, default=100, help="rows of Y (100)")
    parser.add_argument("--columns", type=int, default=LARGE, help=f"of the large layer ({LARGE:,})")
    parser.add_argument("--slice", type=int, default=16_000, help="columns of it that the others compute (16,000)")
    parser.add_argument("--width", type=int, default=8192, help="columns of a block (8192)")
    parser.add_argument("--repeats", type=int, default=5, help="on OptuNet, and on the slice (5)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "mmd.json", help="where figures go")
    chosen = parser.parse_args()
    if min(chosen.columns, chosen.slice, chosen.width, chosen.repeats) < 1 or min(chosen.m, chosen.n) < 2:
        parser.error("expected numbers above 0, and two rows or more of each.")
    return chosen


def main() -> None:
    """Measure, print the tables, write the figures."""
    chosen = arguments()
    console, arch, load = Console(width=132), archs.architecture("optunet"), os.getloadavg()[0]
    m, n = chosen.m, chosen.n
    optunet = [sum(arch[name].size for name in names) for names in arch.layers.values()]
    cut, large = min(chosen.slice, chosen.columns), f"one layer of ResNet-18, {chosen.columns:,} columns"
    results: dict[str, Taken] = {}
    for title, columns, names, repeats in (
        (f"OptuNet, layers of {', '.join(map(str, optunet))} columns", optunet, tuple(CONTENDERS), chosen.repeats),
        (f"a slice of {cut:,} columns", [cut], tuple(CONTENDERS), chosen.repeats),
        (large, [chosen.columns], ("ckptzoo",), 1),
    ):
        found = measured(names, columns, m, n, chosen.width, repeats)
        pairs = (m + n) * (m + n - 1) // 2
        results[title] = [row_of(name, taken, found["ckptzoo"][0], pairs) for name, taken in found.items()]
        if title == large:
            others = [row for row in results[f"a slice of {cut:,} columns"] if row["contender"] != "ckptzoo"]
            results[title] += [extrapolated(row, chosen.columns) for row in others]
        show(console, f"{title}: m = {m:,}, n = {n:,}", results[title])
    console.print(f"drawing the large layer's weights took {results[large][0]['drawing']:.1f} s, not counted above")
    facts = machine(ROOT)
    facts["packages"]["scipy"] = version("scipy")
    console.print(f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}, Python {facts['python']}")
    console.print(f"load of the machine before: {load:.1f}")
    content = {"machine": facts, "load": load, "m": m, "n": n, "width": chosen.width, "results": results}
    write(chosen.json, list(figures(results)), content)
    console.print(f"Figures: {chosen.json}")


if __name__ == "__main__":
    main()
