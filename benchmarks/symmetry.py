"""Removing symmetries: derive beside a loop over checkpoints and beside the disk, equivalence checks and tracing apart.

The limit is what any program must do: read the raw shards and write and fsync as many bytes. Repeats are interleaved,
medians are printed; the raw weights are dropped from the page cache before each. Takes a few minutes and twice the
bytes of the zoo on disk.
"""

import argparse
import atexit
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from safetensors.numpy import save_file

import ckptzoo
from benchmarks.checkouts import Task, compare
from benchmarks.checkouts import show as show_checkouts
from benchmarks.figures import Figure, figure, machine, ratios, turns, write
from benchmarks.layers_pages import evict
from ckptzoo import archs
from ckptzoo.derive import EquivalenceReport, derive
from ckptzoo.schema import layout
from ckptzoo.symmetry import canonicalize, trace

ROOT = Path(__file__).resolve().parent.parent
CHUNK = 32 * 2**20
GAUGE = "canonical"


@dataclass
class Contender:
    """One way to canonicalize a zoo.

    Parameters
    ----------
    name
        for the table.
    run
        does it once, given the zoo's folder and an empty folder for output.
    seconds, processor
        one a repeat, by the clock and of all cores.
    """

    name: str
    run: Callable[[Path, Path], object]
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Median seconds."""
        return statistics.median(self.seconds)


def made(folder: Path, name: str, members: int, seed: int = 0) -> Path:
    """A zoo of untrained networks of a registered architecture, with statistics as trained ones have."""
    path = folder / name
    arch = archs.architecture(name)
    rng = np.random.default_rng(seed)
    card = ckptzoo.Card(name, "Random weights for a benchmark.", license="cc0-1.0")
    step = max(1, 2**27 // arch.nbytes)
    with ckptzoo.create(path, arch=arch, card=card) as writer:
        for start in range(0, members, step):
            count = min(step, members - start)
            rows = [{"id": f"member-{start + number:05d}"} for number in range(count)]
            writer.add({tensor.name: _drawn(rng, tensor, count) for tensor in arch.tensors}, rows)
    return path


def _drawn(rng: np.random.Generator, tensor: Any, count: int) -> np.ndarray:
    shape = (count, *tensor.shape)
    if tensor.dtype == "int64":
        return np.zeros(shape, np.int64)
    values = rng.standard_normal(shape, dtype=np.float32)
    if tensor.name.endswith("running_var"):
        return np.square(values) + np.float32(0.01)
    fan_in = int(np.prod(tensor.shape[1:], dtype=np.int64)) if len(tensor.shape) > 1 else 1
    return values * np.float32((2 / fan_in) ** 0.5)


def shards(path: Path) -> list[Path]:
    """The raw shards."""
    return sorted((path / layout.PARTS).rglob("*.safetensors"))


def limit(path: Path, out: Path) -> None:
    """Read the raw shards and write and fsync the same bytes."""
    for shard in shards(path):
        with shard.open("rb", buffering=0) as source, (out / shard.name).open("wb", buffering=0) as target:
            while chunk := source.read(CHUNK):
                target.write(chunk)
            os.fsync(target.fileno())


def loop(path: Path, out: Path) -> None:
    """One checkpoint at a time: read it, canonicalize it, save and fsync a file of its own."""
    zoo = ckptzoo.open(path)
    for number, id in enumerate(zoo.ids):
        state = zoo.checkpoint(id)
        weights = canonicalize({name: array[None] for name, array in state.items()}, zoo.arch, gauge=GAUGE).weights
        target = out / f"{number}.safetensors"
        save_file({name: np.ascontiguousarray(array[0]) for name, array in weights.items()}, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())


def in_memory(path: Path, out: Path) -> None:
    """Solve and apply for all checkpoints, batch by batch, and keep nothing."""
    zoo = ckptzoo.open(path)
    step = max(1, min(1024, CHUNK // zoo.arch.nbytes))
    for start in range(0, len(zoo), step):
        canonicalize({name: zoo[name][start : start + step] for name in zoo.arch.names}, zoo.arch, gauge=GAUGE)


def contenders(per_checkpoint: bool) -> list[Contender]:
    """Everything that is compared."""
    found = [
        Contender("read, write, fsync: the limit", limit),
        Contender("derive", lambda path, out: derive(path, gauge=GAUGE, certify="none")),
        Contender("derive, g alone", lambda path, out: derive(path, gauge=GAUGE, certify="none", store="element")),
        Contender("canonicalize, nothing written", in_memory),
    ]
    return [*found, Contender("loop over checkpoints", loop)] if per_checkpoint else found


def measure(path: Path, found: list[Contender], repeats: int, progress: Progress) -> None:
    """Interleaved repeats."""
    task = progress.add_task(path.name, total=repeats * len(found))
    for number in turns(range(len(found)), repeats):
        contender = found[number]
        shutil.rmtree(path / layout.DERIVED, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as out:
            evict(shards(path))
            os.sync()
            began, worked = time.perf_counter(), time.process_time()
            contender.run(path, Path(out))
            contender.seconds.append(time.perf_counter() - began)
            contender.processor.append(time.process_time() - worked)
        progress.advance(task)


def equivalence_checks(path: Path, certify: str) -> tuple[float, list[EquivalenceReport]]:
    """Seconds of a derive that go into equivalence checks, and their reports."""
    shutil.rmtree(path / layout.DERIVED, ignore_errors=True)
    done = derive(path, gauge=GAUGE, certify=certify)
    shutil.rmtree(path / layout.DERIVED, ignore_errors=True)
    return done.certifying, list(done.certified)


def traced(name: str, repeats: int) -> list[float]:
    """Seconds to trace and verify a registered network."""
    arch = archs.architecture(name)
    assert arch.input_shape is not None
    found: list[float] = []
    for _ in range(repeats):
        module = archs.get(name)()
        began = time.perf_counter()
        trace(module, torch.randn(2, *arch.input_shape))
        found.append(time.perf_counter() - began)
    return found


def show(console: Console, path: Path, members: int, found: list[Contender], nbytes: int) -> None:
    """One table."""
    table = Table(title=f"{members:,} x {path.name}, {nbytes / 1e9:.2f} GB raw", title_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("seconds", "lowest", "highest", "GB/s of raw", "of the limit"):
        table.add_column(column, justify="right")
    least = found[0].median
    for contender in found:
        seconds = [f"{value:.2f}" for value in (contender.median, min(contender.seconds), max(contender.seconds))]
        table.add_row(
            contender.name, *seconds, f"{nbytes / contender.median / 1e9:.2f}", f"{least / contender.median:.0%}"
        )
    console.print(table)


def _canonicalized(name: str, count: int) -> Callable[[], object]:
    arch, rng = archs.architecture(name), np.random.default_rng(0)
    weights = {tensor.name: _drawn(rng, tensor, count) for tensor in arch.tensors}
    return lambda: canonicalize(weights, arch, gauge=GAUGE)


def _derived(name: str, count: int) -> Callable[[], object]:
    folder = Path(tempfile.mkdtemp(prefix="bench-symmetry-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = made(folder, name, count)

    def run() -> None:
        shutil.rmtree(path / layout.DERIVED, ignore_errors=True)
        derive(path, gauge=GAUGE, certify="none")

    return run


TASKS: dict[str, Task] = {
    "canonicalize 1,024 optunet": lambda: _canonicalized("optunet", 1024),
    "canonicalize 4 resnet18-100": lambda: _canonicalized("resnet18-100", 4),
    "derive 1,024 optunet": lambda: _derived("optunet", 1024),
    "trace optunet": lambda: lambda: traced("optunet", 1),
    "trace resnet18-100": lambda: lambda: traced("resnet18-100", 1),
}
"""Timed with ``--beside``."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resnets", type=int, default=64, help="checkpoints of resnet18-100 (64)")
    parser.add_argument("--optunets", type=int, default=8192, help="checkpoints of optunet (8192)")
    parser.add_argument("--repeats", type=int, default=3, help="of each contender (3)")
    parser.add_argument("--folder", type=Path, help="where zoos are made (default: a temporary folder)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "symmetry.json", help="where figures go")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="time the tasks here and in another checkout")
    chosen = parser.parse_args()
    if min(chosen.resnets, chosen.optunets, chosen.repeats) < 1:
        parser.error("--resnets, --optunets and --repeats: expected more than 0.")
    return chosen


def main() -> None:
    """Measure, print the tables, write the figures."""
    chosen = arguments()
    if chosen.beside is not None:
        timed = compare(Path(__file__), list(TASKS), chosen.beside, chosen.repeats)
        show_checkouts(timed, chosen.beside, chosen.repeats)
        return
    console = Console()
    results: dict[str, Any] = {}
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=chosen.folder) as held, Progress(console=console, transient=True) as progress:
        folder = Path(held)
        for name, members, certify in (("optunet", chosen.optunets, "all"), ("resnet18-100", chosen.resnets, "sample")):
            path = made(folder, name, members)
            nbytes = sum(shard.stat().st_size for shard in shards(path))
            found = contenders(members * archs.architecture(name).nbytes > 2**28)
            measure(path, found, chosen.repeats, progress)
            show(console, path, members, found, nbytes)
            seconds, certified = equivalence_checks(path, certify)
            for kind in certified:
                worst = f"largest difference {kind.random:.1e}"
                console.print(f"checks ({certify}): {kind.checkpoints:,} in {kind.precision}, {worst}; {seconds:.1f} s")
            for contender in found:
                row = f"{members:,} {name}, {contender.name}"
                figures += [figure("deriving", row, "time", contender.seconds, "s")]
                figures += [figure("deriving", row, "processor time", contender.processor, "s")]
                compared = ratios(contender.seconds, found[0].seconds)
                figures += [figure("deriving", row, "time over that of reading and writing", compared, "times")]
            results[name] = {
                "members": members,
                "bytes": nbytes,
                "seconds": {contender.name: contender.seconds for contender in found},
                "certificates": {"of": certify, "seconds": seconds, "found": [asdict(kind) for kind in certified]},
            }
            shutil.rmtree(path)
    tracing = traced("resnet18-100", chosen.repeats)
    console.print(f"tracing and verifying resnet18-100: {statistics.median(tracing):.2f} s")
    facts = machine(ROOT)
    console.print(f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}, Python {facts['python']}")
    content = {"machine": facts, "results": results, "tracing_seconds": tracing}
    figures.append(figure("tracing", "trace resnet18-100 and verify", "time", tracing, "s"))
    write(chosen.json, figures, content)
    console.print(f"Figures: {chosen.json}")


if __name__ == "__main__":
    main()
