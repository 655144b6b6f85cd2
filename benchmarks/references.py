"""Zoos that refer to files beside what users do today: one tensor of many files, the index, and opening.

Files of safetensors and of torch.save, warm. Processor time, the least of alternated repeats; ``layer-major`` is a copy
out of a zoo that holds the weights. ``python -m benchmarks.references --files 1000 --opened 100000``.
"""

import argparse
import gc
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, figure, machine, write

ROOT = Path(__file__).resolve().parent.parent
TENSOR = "layer0.weight"
SHAPE, LAYERS = (128, 128), 12
"""Tensors of 64 kB, 0.8 MB a file."""
OPEN = """
import sys, time
sys.path[:0] = [{root!r}]
import ckptzoo
import ckptzoo.loader.zoo
start = time.process_time()
zoo = ckptzoo.open({zoo!r})
opened = time.process_time() - start
zoo.contents.references
ready = time.process_time() - start
zoo[{tensor!r}][-1]
status = open("/proc/self/status").read()
print(len(zoo), opened, ready, time.process_time() - start, status.partition("VmHWM:")[2].split()[0])
"""


def make_files(folder: Path, count: int, *, torch_too: bool) -> None:
    """Write files of safetensors, and of torch.save, a hundred in a folder."""
    import torch
    from safetensors.numpy import save_file

    draw = np.random.default_rng(0)
    for number in range(count):
        state = {f"layer{at}.weight": draw.standard_normal(SHAPE, "f4") for at in range(LAYERS)}
        for suffix in ("safetensors", "pt") if torch_too else ("safetensors",):
            path = folder / suffix / f"run{number // 100:04d}/step{number:06d}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if suffix == "pt":
                torch.save({name: torch.from_numpy(array) for name, array in state.items()}, path)
            else:
                save_file(state, path)


def least(functions: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The least processor time in ms of each, called in turn."""
    found = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            gc.collect()
            start = time.process_time()
            function()
            found[name] = min(found[name], (time.process_time() - start) * 1e3)
    return found


def reading(folder: Path, repeats: int) -> dict[str, float]:
    """One tensor of all files, by each contender."""
    import torch
    from safetensors import safe_open

    import ckptzoo

    zoos = {suffix: ckptzoo.open(folder / f"refers-{suffix}") for suffix in ("safetensors", "pt")}
    held = ckptzoo.open(folder / "held")
    paths = {suffix: sorted((folder / suffix).rglob(f"*.{suffix}")) for suffix in zoos}

    def of_safetensors() -> Any:
        arrays: list[Any] = []
        for path in paths["safetensors"]:
            with safe_open(path, "np") as file:
                arrays.append(file.get_tensor(TENSOR))
        return np.stack(arrays)

    def of_torch(**options: Any) -> Any:
        loaded = (torch.load(path, weights_only=True, **options)[TENSOR] for path in paths["pt"])
        return torch.stack(list(loaded))

    assert (zoos["safetensors"][TENSOR][:] == of_safetensors()).all()
    return least(
        {
            "references to safetensors": lambda: zoos["safetensors"][TENSOR][:],
            "safe_open": of_safetensors,
            "references to torch.save": lambda: zoos["pt"][TENSOR][:],
            "torch.load": of_torch,
            "torch.load(mmap=True)": lambda: of_torch(mmap=True),
            "layer-major": lambda: np.array(held[TENSOR][:]),
        },
        repeats,
    )


def main(words: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--opened", type=int, default=100_000, help="references of the zoo that is opened; 0 for none")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "references.json")
    parser.add_argument("--folder", type=Path, default=None, help="where files are written, such as a folder on a disk")
    options = parser.parse_args(words)
    import ckptzoo

    folder = Path(tempfile.mkdtemp(dir=options.folder, prefix="references-"))
    os.environ["XDG_DATA_HOME"] = str(folder / "data-home")
    table = Table(box=SIMPLE_HEAD)
    for name in ("what", "ms", "us a file"):
        table.add_column(name, justify="left" if name == "what" else "right")

    figures = list[Figure]()

    def row(what: str, milliseconds: float, count: int) -> None:
        table.add_row(what, f"{milliseconds:,.1f}", f"{milliseconds / count * 1e3:,.1f}")
        figures.append(figure("references", what, "processor time", [milliseconds / 1e3], "s"))

    try:
        make_files(folder, options.files, torch_too=True)
        # what has to be imported is no part of the first figure
        ckptzoo.link_zoo(next((folder / "safetensors").rglob("*.safetensors")), folder / "one", license="MIT")
        for suffix in ("safetensors", "pt"):
            # processes of their own read files of torch.save
            before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.process_time()
            ckptzoo.link_zoo(folder / suffix, folder / f"refers-{suffix}", license="MIT")
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            own = time.process_time() - start + after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            row(f"link, {suffix}", own * 1e3, options.files)
        ckptzoo.materialize(folder / "refers-safetensors", folder / "held")
        for what, milliseconds in reading(folder, options.repeats).items():
            row(f"one tensor: {what}", milliseconds, options.files)
        if options.opened:
            # ext4 allows 65,000 names of a file
            paths = sorted((folder / "safetensors").rglob("*.safetensors"))
            for number in range(options.opened):
                path = folder / f"many/run{number // 1000:04d}/step{number:06d}.safetensors"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.hardlink_to(paths[number % len(paths)])
            start = time.process_time()
            ckptzoo.link_zoo(folder / "many", folder / "refers-many", license="MIT")
            row(f"link, {options.opened:,} files", (time.process_time() - start) * 1e3, options.opened)
            code = OPEN.format(root=str(Path(__file__).parents[1]), zoo=str(folder / "refers-many"), tensor=TENSOR)
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            count, opened, ready, first, memory = map(float, done.stdout.split())
            for what, seconds in (("opened", opened), ("references read", ready), ("a tensor read", first)):
                row(f"{count:,.0f} references: {what}", seconds * 1e3, int(count))
            table.add_row("memory of that process, MB", f"{memory / 1e3:,.0f}", "")
            figures.append(figure("references", "memory of that process", "memory", [memory * 1024], "bytes"))
        console = Console(width=120)
        console.print(machine(folder))
        console.print(table)
        settings = {name: getattr(options, name) for name in ("files", "opened", "repeats")}
        write(options.json, figures, {"settings": settings})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
