"""Builds, derived variants and comparisons by one and by two processes, each kept to one core; plan, status and merge.

Programs are timed as a whole, their start and imports included. The weights that are merged, derived and compared are
random: neither takes longer for that. A merge is held against a plain copy of the same files, flushed to the disk.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import ckptzoo
from benchmarks.figures import Figure, figure, machine, ratios, turns, write
from builders import metadata, sources
from builders.checkpointing import WORK_FOLDER, BuildFolder, BuildPlan
from builders.energy import Spent
from builders.recipe import Recipe
from builders.shared import merge, plan
from builders.status import status
from ckptzoo import archs
from ckptzoo.text import counted

ROOT = Path(__file__).resolve().parent.parent
Row = dict[str, Any]


def run_pinned(commands: Sequence[Sequence[str]]) -> float:
    """Seconds until all commands have ended, each on a core of its own with one thread."""
    cores = sorted(os.sched_getaffinity(0))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started = time.perf_counter()
    processes = [
        subprocess.Popen(
            ["taskset", "-c", str(cores[number]), sys.executable, *command],
            env=environment,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
        )
        for number, command in enumerate(commands)
    ]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit("a command failed; its message is above")
    return time.perf_counter() - started


def speed_up(name: str, prepare: Callable[[], Callable[[str], list[str]]], repeats: int) -> Row:
    """One process against two. ``prepare`` makes things ready and returns the command of a share."""
    one: list[float] = []
    two: list[float] = []
    for count in turns((1, 2), repeats):
        command = prepare()
        seconds = run_pinned([command(f"{number}/{count}") for number in range(count)])
        (one if count == 1 else two).append(seconds)
    found = ratios(one, two)
    row = {"what": name, "one_seconds": statistics.median(one), "two_seconds": statistics.median(two)}
    all_of_them = {"one": one, "two": two, "ratios": found}
    return {**row, "ratio": statistics.median(found), "least": min(found), "most": max(found), "all": all_of_them}


def working(folder: Path, members: int, epochs: int, *more: str) -> Callable[[], Callable[[str], list[str]]]:
    """``work`` on a plan of OptuNets on the digits."""

    def prepare() -> Callable[[str], list[str]]:
        path = folder / "worked"
        shutil.rmtree(path, ignore_errors=True)
        plan("digits-optunet", path, members=members, epochs=epochs, unit_size=8)
        command = ["-m", "builders", "work", "digits-optunet", "--epochs", str(epochs), "--to", str(path)]
        return lambda share: [*command, "--threads", "1", *more]

    return prepare


def random_zoo(path: Path, architecture: str, members: int, parts: int) -> None:
    """A zoo of random weights."""
    arch, rng = archs.architecture(architecture), np.random.default_rng(0)
    ckptzoo.create(path, arch=arch, card=ckptzoo.Card(path.name), symmetry=archs.symmetry(architecture))
    size = members // parts
    for part in range(parts):
        with ckptzoo.append(path) as writer:
            for member in range(size):
                weights = {
                    tensor.name: np.abs(rng.standard_normal((1, *tensor.shape))).astype(tensor.dtype)
                    for tensor in arch.tensors
                }
                writer.add(weights, [{"id": f"m{part * size + member:04d}", "seed": part * size + member}])


def deriving(zoo: Path) -> Callable[[], Callable[[str], list[str]]]:
    """``derive`` of a zoo in the page cache."""

    def prepare() -> Callable[[str], list[str]]:
        shutil.rmtree(zoo / "derived", ignore_errors=True)
        for file in zoo.rglob("*.safetensors"):
            file.read_bytes()
        command = ["-m", "ckptzoo", "derive", str(zoo), "--certify", "none"]
        return lambda share: [*command, "--share", share]

    return prepare


def comparing(folder: Path, zoo: Path, members: int) -> Callable[[], Callable[[str], list[str]]]:
    """``mmd`` of the halves of a zoo."""

    def prepare() -> Callable[[str], list[str]]:
        shutil.rmtree(folder / "kept", ignore_errors=True)
        halves = ["--where", f"seed < {members // 2}", "--where-y", f"seed >= {members // 2}"]
        command = ["-m", "ckptzoo", "mmd", str(zoo), str(zoo), *halves, "--saved", str(folder / "kept")]
        return lambda share: [*command, "--share", share]

    return prepare


def planning(folder: Path, units: int) -> list[Row]:
    """``plan`` and ``status``, in a process that has imported them."""
    path, seconds = folder / "planned", []
    for act in (lambda: plan("toy", path, members=2 * units, unit_size=2), lambda: status(path)):
        started = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - started)
    shutil.rmtree(path)
    return [
        {"what": f"{name} of {units:,} units", "seconds": taken}
        for name, taken in zip(("plan", "status"), seconds, strict=True)
    ]


def merging(folder: Path, members: int) -> list[Row]:
    """``merge`` of units with random weights of 4 MB a member, a copy of their files, and the most disk in between."""
    recipe = replace(Recipe.load("toy"), architecture="mlp-2-1000-1000-1")
    path, copied, unit_size = folder / "merged", folder / "copied", 16
    plan(recipe, path, members=members, unit_size=unit_size)
    build_folder = BuildFolder(path / WORK_FOLDER / recipe.prefix)
    settled = build_folder.settle_plan(None, BuildPlan)
    assert settled is not None
    source, rng = sources.load(recipe), np.random.default_rng(0)
    for unit in settled.units:
        count = len(unit.seeds)
        weights = {
            tensor.name: torch.from_numpy(rng.standard_normal((count, *tensor.shape), np.float32))
            for tensor in recipe.arch.tensors
        }
        rows = metadata.rows(
            recipe,
            source,
            {"diverged": np.zeros(count, np.bool_)},
            unit=unit.name,
            seeds=unit.seeds,
            step=recipe.steps,
            spent=Spent(),
            device="cpu",
            engine=settled.engine,
        )
        build_folder.keep(unit, recipe.steps, weights, rows)
    files = sorted(build_folder.folder.glob("*.kept.safetensors"))
    before, copied_seconds = size_of(path), timed(lambda: copy(files, copied))
    shutil.rmtree(copied)
    most, ended = [before], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            most.append(size_of(path))

    watching = threading.Thread(target=watch)
    watching.start()
    seconds = timed(lambda: merge(path, recipe))
    ended.set()
    watching.join()
    shutil.rmtree(path)
    title = f"{before / 2**20:,.0f} MiB in {counted(len(files), 'unit')}"
    return [
        {"what": f"a copy of {title}", "seconds": copied_seconds},
        {"what": f"merge of {title}", "seconds": seconds},
        {"what": "disk of the merge besides, in MiB", "mebibytes": (max(most) - before) / 2**20},
    ]


def timed(act: Callable[[], object]) -> float:
    """Seconds of a call."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def copy(files: Sequence[Path], to: Path) -> None:
    """A plain copy, flushed to the disk."""
    to.mkdir()
    for file in files:
        with file.open("rb") as source, (to / file.name).open("wb") as target:
            shutil.copyfileobj(source, target, 2**22)
            target.flush()
            os.fsync(target.fileno())


def size_of(folder: Path) -> int:
    """Bytes that all files below a folder take on the disk, while others write and remove some."""
    total = 0
    for name, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                total += 512 * (Path(name) / file).stat().st_blocks
    return total


def measure(folder: Path, chosen: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """Figures of two processes, and of single calls."""
    zoo, wide = folder / "zoo", folder / "wide"
    random_zoo(zoo, "resnet18-100", chosen.networks, chosen.networks // 4)
    random_zoo(wide, "resnet18-16-100", 4 * chosen.networks, 2)
    shared = [
        speed_up("work on OptuNets", working(folder, chosen.members, chosen.epochs), chosen.repeats),
        speed_up("derive of ResNet-18s", deriving(zoo), chosen.repeats),
        speed_up("mmd of narrow ResNet-18s", comparing(folder, wide, 4 * chosen.networks), chosen.repeats),
    ]
    shutil.rmtree(zoo)
    return shared, [*planning(folder, chosen.units), *merging(folder, chosen.merged)]


def figures(shared: list[Row], single: list[Row]) -> Iterator[Figure]:
    """Seconds of one process and of two, and of single calls."""
    for row in shared:
        for key, column in (("one", "one process"), ("two", "two processes")):
            yield figure("shared", row["what"], column, row["all"][key], "s")
        yield figure("shared", row["what"], "times as fast", row["all"]["ratios"], "times")
    for row in single:
        if "seconds" in row:
            yield figure("single", row["what"], "time", [row["seconds"]], "s")
        else:
            yield figure("single", "disk that the merge takes besides", "bytes", [row["mebibytes"] * 2**20], "bytes")


def main() -> None:
    """Measure, print the tables, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=64, help="OptuNets to train (64)")
    parser.add_argument("--epochs", type=int, default=1000, help="of their training (1000)")
    parser.add_argument(
        "--networks", type=int, default=32, help="ResNet-18s to derive; four times as many narrow ones (32)"
    )
    parser.add_argument("--merged", type=int, default=256, help="members of 4 MB to merge (256)")
    parser.add_argument("--units", type=int, default=10_000, help="to plan (10,000)")
    parser.add_argument("--repeats", type=int, default=3, help="of one and two processes, in turn (3)")
    parser.add_argument("--folder", type=Path, help="where files are written (a temporary folder)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "shared.json", help="where figures go")
    chosen = parser.parse_args()
    if min(chosen.members, chosen.epochs, chosen.merged, chosen.units, chosen.repeats) < 1 or chosen.networks < 4:
        parser.error("expected 4 --networks or more, and more than 0 of all else.")
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("expected two cores or more.")
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        shared, single = measure(Path(folder), chosen)
    facts, console = machine(ROOT), Console()
    table = Table(title="one process and two, each on a core", box=SIMPLE_HEAD)
    for column in ("what", "one, s", "two, s", "ratio", "least", "most"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for row in shared:
        keys = ("one_seconds", "two_seconds", "ratio", "least", "most")
        table.add_row(str(row["what"]), *(f"{row[key]:.2f}" for key in keys))
    console.print(table)
    for row in single:
        console.print(
            f"{row['what']}: " + (f"{row['seconds']:.2f} s" if "seconds" in row else f"{row['mebibytes']:,.0f}")
        )
    console.print(f"{facts['cpu']}, {facts['cores']} cores, torch {torch.__version__}")
    write(chosen.json, list(figures(shared, single)), {"machine": facts, "shared": shared, "single": single})


if __name__ == "__main__":
    main()
