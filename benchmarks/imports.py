"""``ckptzoo import`` beside what users do today: small files of torch.save, archives of ResNet-18s, a flat matrix.

Every run is a process of its own, whose time (by the clock, and of all processors that it and its children used) begins
before the source is opened, and whose largest anonymous memory is sampled, children included. Repeats are interleaved,
medians are printed. Sources are made once for all runs, and are in the page cache. ``--beside CHECKOUT`` runs the
import of another checkout too, on the same files, which have the suffix ``.pt`` for it.
"""

import argparse
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, figure, machine, turns, write
from benchmarks.layers_measure import human

ROOT = Path(__file__).resolve().parent.parent
SMALL = ((8, 1, 5, 5), (8,), (6, 8, 5, 5), (6,), (4, 6, 2, 2), (4,), (20, 36), (20,), (10, 20), (10,))
"""Tensors of the Model Zoos' networks on MNIST: 2,464 numbers."""
LSTM = (8, 16)
"""Inputs and hidden units of the LSTMs: 1,664 numbers."""
SAMPLE_SECONDS = 0.01


def small_files(folder: Path, count: int) -> Path:
    """A tar archive of files of torch.save."""
    import torch

    path, draw = folder / "small.tar", np.random.default_rng(0)
    with tarfile.open(path, "w") as archive:
        for number in range(count):
            state = {f"{at}": torch.from_numpy(draw.standard_normal(shape, "f4")) for at, shape in enumerate(SMALL)}
            _add(archive, f"net{number:06d}.pt", state)
    return path


def lstms(folder: Path, count: int) -> Path:
    """A folder of LSTMs in files of torch.save that are called ``.pth.tar``, as the ImageNet example has them."""
    import torch

    draw = np.random.default_rng(0)
    root, renamed = folder / "lstms", folder / f"lstms{_RENAMED}"
    root.mkdir()
    renamed.mkdir()
    named = torch.nn.LSTM(*LSTM).state_dict()
    for number in range(count):
        state = {name: torch.from_numpy(draw.standard_normal(item.shape, "f4")) for name, item in named.items()}
        path = root / f"net{number:06d}.pth.tar"
        torch.save({"epoch": 3, "arch": "lstm", "state_dict": state, "best_acc1": 0.5}, path)
        (renamed / f"net{number:06d}.pt").hardlink_to(path)
    return root


_RENAMED = "-as-pt"
"""The end of the name of a folder that has the same files with the suffix ``.pt``."""


def resnets(folder: Path, count: int) -> Path:
    """A packed archive of ResNet-18s, 45 MB each, as torch.save writes them."""
    import torch

    from ckptzoo import archs

    path, draw = folder / "resnets.tgz", np.random.default_rng(0)
    with tarfile.open(path, "w:gz", compresslevel=6) as archive:
        for number in range(count):
            state = {
                item.name: torch.from_numpy(np.zeros(item.shape, item.dtype))
                if item.dtype != "float32"
                else torch.from_numpy(draw.standard_normal(item.shape, "f4"))
                for item in archs.architecture("resnet18-100").tensors
            }
            _add(archive, f"net{number:03d}.pt", state)
    return path


def _add(archive: tarfile.TarFile, name: str, state: dict[str, Any]) -> None:
    import torch

    data, info = io.BytesIO(), tarfile.TarInfo(name)
    torch.save(state, data)
    info.size = data.tell()
    data.seek(0)
    archive.addfile(info, data)


def matrix(folder: Path, count: int) -> Path:
    """A Small CNN Zoo: rows of 4,970 numbers, their layout and their metrics."""
    root = folder / "matrix"
    root.mkdir()
    np.save(root / "weights.npy", np.random.default_rng(0).standard_normal((count, 4970), "f4"))
    shapes, start, lines = {"conv/kernel:0": (3, 3, 1, 16), "dense/kernel:0": (4826, 1)}, 0, []
    for name, shape in shapes.items():
        stop = start + int(np.prod(shape))
        lines.append(f'{name},{start},{stop},"{shape}"')
        start = stop
    (root / "layout.csv").write_text("\n".join(["varname,start_idx,end_idx,shape", *lines]))
    rows = [f"m{number},86,{number % 100 / 100},1.5" for number in range(count)]
    (root / "metrics.csv").write_text("\n".join(["modeldir,step,test_accuracy,test_loss", *rows]))
    return root


def import_source(source: Path, folder: Path) -> None:
    """``ckptzoo import``."""
    from ckptzoo.hub.imports import import_zoo

    import_zoo(source, folder / "zoo", license="CC0-1.0")


def load_small(source: Path, folder: Path) -> None:
    """``torch.load`` of every member, which is then forgotten."""
    import torch

    with tarfile.open(source, "r|") as archive:
        for info in archive:
            stream = archive.extractfile(info)
            assert stream is not None
            torch.load(io.BytesIO(stream.read()), weights_only=True)


def load_lstms(source: Path, folder: Path) -> None:
    """``torch.load`` of every file, which is then forgotten."""
    import torch

    for path in sorted(source.iterdir()):
        torch.load(path, weights_only=True)


def unpack(source: Path, folder: Path) -> None:
    """``tar xzf``."""
    subprocess.run(["tar", "xzf", source, "-C", folder], check=True)


def load_matrix(source: Path, folder: Path) -> None:
    """``np.load`` of the whole matrix into memory."""
    np.load(source / "weights.npy").sum()


IMPORT = "ckptzoo import"
TASKS: dict[str, tuple[Callable[[Path, int], Path], dict[str, Callable[[Path, Path], None]]]] = {
    "small files": (small_files, {"torch.load alone": load_small, IMPORT: import_source}),
    "lstms": (lstms, {"torch.load alone": load_lstms, IMPORT: import_source}),
    "resnet18 tgz": (resnets, {"tar xzf alone": unpack, IMPORT: import_source}),
    "flat matrix": (matrix, {"np.load alone": load_matrix, IMPORT: import_source}),
}


def run_one(task: str, contender: str, source: Path) -> dict[str, float]:
    """Run a contender in this process: seconds, processor seconds and the largest anonymous memory in bytes."""
    largest, ended = [0], threading.Event()
    watching = threading.Thread(target=_watch, args=(largest, ended))
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        watching.start()
        began = time.perf_counter()
        TASKS[task][1][contender](source, Path(folder))
        seconds = time.perf_counter() - began
        ended.set()
        watching.join()
    times = os.times()
    cpu = times.user + times.system + times.children_user + times.children_system
    return {"seconds": seconds, "cpu_seconds": cpu, "anonymous_bytes": float(largest[0])}


def _watch(largest: list[int], ended: threading.Event) -> None:
    while not ended.wait(SAMPLE_SECONDS):
        largest[0] = max(largest[0], _anonymous(os.getpid()))


def _anonymous(pid: int) -> int:
    """Anonymous memory of a process and its children, in bytes."""
    total = 0
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                total = int(line.split()[1]) * 1024
        for thread in Path(f"/proc/{pid}/task").iterdir():
            total += sum(_anonymous(int(child)) for child in (thread / "children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return total
    return total


def measure(counts: dict[str, int], repeats: int, folder: Path, beside: Path | None) -> list[dict[str, Any]]:
    """A row for each contender of each task."""
    rows: list[dict[str, Any]] = []
    for task, (make, contenders) in TASKS.items():
        if not counts[task]:
            continue
        source = make(folder, counts[task])
        nbytes = sum(item.stat().st_size for item in source.rglob("*")) if source.is_dir() else source.stat().st_size
        commands = {name: (name, source, ROOT) for name in contenders}
        if beside is not None:
            renamed = source.with_name(f"{source.name}{_RENAMED}")
            commands[f"import of {beside.name}"] = IMPORT, renamed if renamed.is_dir() else source, beside.resolve()
        found: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
        for name in turns(commands, repeats):
            contender, path, checkout = commands[name]
            command = [sys.executable, __file__, "--run", task, contender, str(path)]
            environment = {**os.environ, "PYTHONPATH": str(checkout)}
            done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=checkout, env=environment)
            found[name].append(json.loads(done.stdout))
        for name, runs in found.items():
            medians = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            rows.append(
                {"task": task, "contender": name, "count": counts[task], "bytes": nbytes, **medians, "runs": runs}
            )
        for path in folder.glob(f"{source.name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return rows


def figures(rows: list[dict[str, Any]]) -> Iterator[Figure]:
    """Seconds, processor seconds and memory of every contender of every task."""
    for row in rows:
        title = f"{row['count']:,} {row['task']}, {human(row['bytes'])}: {row['contender']}"
        for key, column, unit in (
            ("seconds", "time", "s"), ("cpu_seconds", "processor time", "s"),
            ("anonymous_bytes", "anonymous memory", "bytes"),
        ):  # fmt: skip
            yield figure("imports", title, column, [run[key] for run in row["runs"]], unit)


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """Print the table."""
    table = Table(title="checkpoints of others, read", box=SIMPLE_HEAD)
    for column in ("task", "contender", "seconds", "networks a second", "a CPU second", "MB a second", "anonymous MB"):
        table.add_column(column, justify="left" if column in ("task", "contender") else "right")
    for row in rows:
        rates = [f"{row['count'] / row[key]:,.0f}" for key in ("seconds", "cpu_seconds")]
        speed, memory = row["bytes"] / row["seconds"] / 1e6, row["anonymous_bytes"] / 1e6
        table.add_row(row["task"], row["contender"], f"{row['seconds']:.2f}", *rates, f"{speed:.0f}", f"{memory:,.0f}")
    console.print(table)


def main() -> None:
    """Measure, print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=20_000, help="small files (20000)")
    parser.add_argument("--lstms", type=int, default=0, help="LSTMs in .pth.tar files (0)")
    parser.add_argument("--resnets", type=int, default=45, help="ResNet-18s in a .tgz: 45 are 2 GB (45)")
    parser.add_argument("--rows", type=int, default=50_000, help="rows of the matrix: 50000 are 1 GB (50000)")
    parser.add_argument("--repeats", type=int, default=3, help="of each contender (3)")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another checkout, which imports too")
    parser.add_argument("--folder", type=Path, help="where sources and zoos are made (a temporary folder)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "imports.json", help="where figures go")
    parser.add_argument("--run", nargs=3, metavar=("TASK", "CONTENDER", "SOURCE"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run:
        task, contender, source = chosen.run
        print(json.dumps(run_one(task, contender, Path(source))))
        return
    counts = {
        "small files": chosen.small,
        "lstms": chosen.lstms,
        "resnet18 tgz": chosen.resnets,
        "flat matrix": chosen.rows,
    }
    if min(*counts.values(), chosen.repeats - 1) < 0:
        parser.error("--small, --lstms, --resnets, --rows: expected 0 or more; --repeats: 1 or more.")
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        rows = measure(counts, chosen.repeats, Path(folder), chosen.beside)
    facts, console = machine(ROOT), Console()
    show(rows, console)
    console.print(f"{facts['cpu']}, {facts['cores']} cores")
    write(chosen.json, list(figures(rows)), {"machine": facts, "rows": rows})


if __name__ == "__main__":
    main()
