"""Recording a run: what a save costs a training loop, beside a copy and beside save_file, and gathering many runs.

A save of a ResNet-18 is timed in a loop that computes nothing: how long ``save`` takes to return, beside copying the
same tensors into memory that is in use, and the processor seconds until all are on the disk, beside safetensors'
``save_file``. Contenders take turns in a random order. Then recorders without torch, some at a time, save OptuNets, and
``gather`` makes a zoo of them.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file

import ckptzoo
from benchmarks.figures import Figure, figure, machine, ratios, turns, write
from ckptzoo import archs

ROOT = Path(__file__).resolve().parent.parent
WARMING = 2
"""The first calls of each allocate their memory."""
RECORDER = """
import sys
import numpy as np
import ckptzoo
from ckptzoo import archs
zoo, number, saves = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
arch = archs.architecture("optunet")
rng = np.random.default_rng(number)
with ckptzoo.record(zoo, arch="optunet", member=f"run-{number:04d}", seed=number) as run:
    for step in range(saves):
        weights = {tensor.name: rng.normal(size=tensor.shape).astype(np.float32) for tensor in arch.tensors}
        run.save(weights, step=step, test_accuracy=0.9)
assert "torch" not in sys.modules
"""


def processor_seconds() -> float:
    """The processor seconds of this process and its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def time_saves(folder: Path, repeats: int) -> dict[str, dict[str, Any]]:
    """Milliseconds that a save takes to return, and processor milliseconds of all of it, beside the alternatives."""
    net = archs.get("resnet18-100")()
    weights = dict(net.state_dict())
    held = {name: tensor.clone() for name, tensor in weights.items()}
    run = ckptzoo.record(folder / "zoo", arch="resnet18-100", member="a")
    steps = iter(range(10**6))

    def save() -> None:
        run.save(net, step=next(steps))

    def copy() -> None:
        for name, tensor in weights.items():
            held[name].copy_(tensor)

    # new files, as those of a run: one that is written again finds its pages in memory
    def write() -> None:
        save_file(weights, folder / f"{next(steps)}.safetensors")

    def write_durably() -> None:
        path = folder / f"{next(steps)}.safetensors"
        save_file(weights, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())

    contenders = {
        "save": (save, run.wait),
        "copy": (copy, None),
        "save_file": (write, None),
        "save_file, fsync": (write_durably, None),
    }
    blocked: dict[str, list[float]] = {name: [] for name in contenders}
    used: dict[str, list[float]] = {name: [] for name in contenders}
    for name in turns(contenders, repeats + WARMING):
        call, wait = contenders[name]
        began, processor = time.perf_counter(), processor_seconds()
        call()
        returned = time.perf_counter()
        if wait is not None:
            wait()
        blocked[name].append(1e3 * (returned - began))
        used[name].append(1e3 * (processor_seconds() - processor))
    run.close()
    blocked, used = ({name: taken[WARMING:] for name, taken in each.items()} for each in (blocked, used))
    return {
        name: {
            "returns_ms": statistics.median(blocked[name]),
            "returns_ms_quartiles": statistics.quantiles(blocked[name])[::2],
            "processor_ms": statistics.median(used[name]),
            "processor_ms_quartiles": statistics.quantiles(used[name])[::2],
            "all": {"returns_ms": blocked[name], "processor_ms": used[name]},
        }
        for name in contenders
    }


def time_gathering(folder: Path, recorders: int, saves: int, at_once: int) -> dict[str, float]:
    """Seconds of many recorders, and of gathering what they saved."""
    zoo, began = folder / "optunets", time.perf_counter()
    running: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    for number in range(recorders):
        if len(running) == at_once and running.pop(0).wait():
            raise SystemExit("a recorder failed")
        command = [sys.executable, "-c", RECORDER, str(zoo), str(number), str(saves)]
        running.append(subprocess.Popen(command, env=environment))
    if any(process.wait() for process in running):
        raise SystemExit("a recorder failed")
    recorded, processor = time.perf_counter(), processor_seconds()
    result = ckptzoo.gather(zoo)
    gathered = time.perf_counter()
    assert result.checkpoints == recorders * saves and not result.problems
    return {
        "checkpoints": result.checkpoints,
        "record_s": recorded - began,
        "gather_s": gathered - recorded,
        "gather_processor_s": processor_seconds() - processor,
    }


def figures(saves: dict[str, dict[str, Any]], gathering: dict[str, float]) -> Iterator[Figure]:
    """What a save costs beside the alternatives, and what recording and gathering of many runs take."""
    for name, row in saves.items():
        for key, column, other in (
            ("returns_ms", "returns after", "copy"),
            ("processor_ms", "processor time until all is written", "save_file"),
        ):
            yield figure("saves", name, column, [value / 1e3 for value in row["all"][key]], "s")
            if name == "save":
                compared = ratios(row["all"][key], saves[other]["all"][key])
                yield figure("saves", name, f"over that of {other}", compared, "times")
    title = f"{gathering['checkpoints']:,} OptuNets"
    for key, column in (
        ("record_s", "recording"),
        ("gather_s", "gathering"),
        ("gather_processor_s", "its processor time"),
    ):
        yield figure("gathering", title, column, [gathering[key]], "s")


def main() -> None:
    """Measure, print tables, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30, help="of each contender (30)")
    parser.add_argument("--recorders", type=int, default=100)
    parser.add_argument("--saves", type=int, default=100, help="of each recorder (100)")
    parser.add_argument("--at-once", type=int, default=8, help="recorders that run at the same time (8)")
    parser.add_argument("--folder", type=Path, help="where files go; by default the folder of temporary files")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "record.json", help="where figures go")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(dir=chosen.folder))
    try:
        saves = time_saves(folder, chosen.repeats)
        gathering = time_gathering(folder, chosen.recorders, chosen.saves, chosen.at_once)
    finally:
        shutil.rmtree(folder)
    console = Console()
    table = Table(title=f"a ResNet-18 of {archs.architecture('resnet18-100').nbytes / 1e6:.0f} MB, medians")
    for heading in ("contender", "returns after, ms", "of a copy", "processor, ms", "of save_file"):
        table.add_column(heading, justify="left" if heading == "contender" else "right")
    for name, row in saves.items():
        compared = [
            row["returns_ms"] / saves["copy"]["returns_ms"],
            row["processor_ms"] / saves["save_file"]["processor_ms"],
        ]
        table.add_row(
            name, f"{row['returns_ms']:.1f}", f"{compared[0]:.2f}", f"{row['processor_ms']:.1f}", f"{compared[1]:.2f}"
        )
    console.print(table)
    console.print(
        f"{gathering['checkpoints']:,} OptuNets: recorded in {gathering['record_s']:.1f} s, gathered in "
        f"{gathering['gather_s']:.1f} s ({gathering['gather_processor_s']:.1f} s of the processor)"
    )
    content = {"machine": machine(ROOT), "save": saves, "gathering": gathering}
    write(chosen.json, list(figures(saves, gathering)), content)


if __name__ == "__main__":
    main()
