"""Canonical forms where the table has matrices: many tiny transformers at once, and large ones, in seconds and memory.

``python -m benchmarks.matrices`` brings 1,000 tiny vision transformers into the gauge ``canonical``, batched and one by
one, and then ViT-B/16 and GPT-2 small, float32 with random weights, beside reading the same bytes from a warm file.
Memory is the peak of a process of its own less what it held before, which includes the input, and less the output.
Tables of large networks are traced once and kept in ``--tables FOLDER``: about a minute each. Needs the extra
``architectures``.
"""

import argparse
import json
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.architectures import SMALL, library, torchvision_models
from benchmarks.checkouts import Task, compare, show
from benchmarks.figures import Figure, figure, machine, ratios, turns, write
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import canonicalize, trace

ROOT = Path(__file__).resolve().parent.parent
TINY, MEMBERS, SINGLE = "timm ViT", 1000, 50
"""One by one ``SINGLE`` networks are timed, of which the time for all is computed."""
REPEATS = 3
"""The number of runs of each; medians are printed."""
SECONDS, READS, MEMORY, SPEEDUP = 8.0, 8.0, 500.0, 10.0
"""The aims: seconds, times a warm read, MB beside input and output, times as fast as one by one."""
Stacked = dict[str, NDArray[Any]]


def _gpt2() -> tuple[torch.nn.Module, Any]:
    transformers = library("transformers")
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
    return module, {"input_ids": torch.zeros(2, 5, dtype=torch.int64)}


LARGE: dict[str, Callable[[], tuple[torch.nn.Module, Any]]] = {
    "ViT-B/16": lambda: (torchvision_models().vit_b_16(), torch.randn(2, 3, 224, 224)),
    "GPT-2 small": _gpt2,
}
"""Networks of their own sizes."""


def traced(name: str) -> tuple[Any, Any]:
    """A network's table and architecture as JSON."""
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    found = trace(*{**LARGE, **SMALL}[name]())
    return found.symmetry.to_json(), found.architecture.to_json()


def table_of(name: str, folder: Path) -> tuple[Symmetry, Architecture]:
    """The table of a network, from the folder or traced by another process, whose memory does not count here."""
    path = folder / f"{name.replace('/', '-')}.json"
    if not path.exists():
        started = time.perf_counter()
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            content = pool.submit(traced, name).result()
        print(f"{name}: traced in {time.perf_counter() - started:.0f} s", flush=True)
        path.write_text(json.dumps(content))
    symmetry, arch = json.loads(path.read_text())
    return Symmetry.from_json(symmetry), Architecture.from_json(arch)


def random_weights(arch: Architecture, K: int, seed: int = 0) -> Stacked:
    """Float32 numbers of about the sizes that layers begin with; vectors are around 1."""
    rng, made = np.random.default_rng(seed), {}
    for tensor in arch.tensors:
        values = rng.standard_normal((K, *tensor.shape), dtype=np.float32)
        made[tensor.name] = values * np.float32(0.05) + np.float32(len(tensor.shape) == 1)
    return made


def _peak() -> float:
    """Of this process until now, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def large(symmetry: Symmetry, arch: Architecture, folder: Path, threads: int) -> dict[str, Any]:
    """One large network, in a process that does nothing else."""
    weights = random_weights(arch, 1)
    nbytes = sum(array.nbytes for array in weights.values())
    path = folder / "weights"
    with path.open("wb") as file:
        for array in weights.values():
            array.tofile(file)
    reads: list[float] = []
    buffer = np.empty(max(array.nbytes for array in weights.values()), np.uint8)
    for _ in range(3):
        started = time.perf_counter()
        with path.open("rb", buffering=0) as file:
            for array in weights.values():
                file.readinto(buffer[: array.nbytes])
                _ = buffer[: array.nbytes].copy()
        reads.append(time.perf_counter() - started)
    before, timed = _peak(), list[tuple[float, float]]()
    for _ in range(REPEATS):
        started, worked = time.perf_counter(), time.process_time()
        made = canonicalize(weights, symmetry, threads=threads)
        timed.append((time.perf_counter() - started, time.process_time() - worked))
        found = made.report
        del made
    return {
        "megabytes": nbytes / 2**20,
        "read": reads,
        "seconds": [seconds for seconds, _ in timed],
        "cpu": [worked for _, worked in timed],
        "memory": _peak() - before - nbytes / 2**20,
        "degenerate": float(found.degenerate[0]),
        "unresolved": float(found.unresolved[0]),
    }


def many(symmetry: Symmetry, arch: Architecture, threads: int) -> dict[str, list[float]]:
    """Seconds for all tiny networks at once, and one by one."""
    weights = random_weights(arch, MEMBERS)

    def at_once() -> float:
        started = time.perf_counter()
        canonicalize(weights, symmetry, threads=threads)
        return time.perf_counter() - started

    def one_by_one() -> float:
        started = time.perf_counter()
        for row in range(SINGLE):
            canonicalize({name: array[row : row + 1] for name, array in weights.items()}, symmetry, threads=threads)
        return (time.perf_counter() - started) * MEMBERS / SINGLE

    contenders = {"at once": at_once, "one by one": one_by_one}
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for name in turns(contenders, REPEATS):
        found[name].append(contenders[name]())
    return found


def _canonicalized(module: torch.nn.Module, example: Any, count: int) -> Callable[[], object]:
    found = trace(module.eval(), example)
    weights = random_weights(found.architecture, count)
    return lambda: canonicalize(weights, found.symmetry, threads=1)


def _encoder(width: int, layers: int) -> torch.nn.Module:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, norm_first=True)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


TASKS: dict[str, Task] = {
    "canonicalize 500 encoders of width 16": lambda: _canonicalized(_encoder(16, 2), torch.randn(2, 5, 16), 500),
    "canonicalize 1 encoder of width 256": lambda: _canonicalized(_encoder(256, 4), torch.randn(2, 5, 256), 1),
    "canonicalize 500 linear 12-8-12": lambda: _canonicalized(
        torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.Linear(8, 12)), torch.randn(2, 12), 500
    ),
}
"""Timed with ``--beside``; they need torch alone."""


def tiny_figures(arch: Architecture, taken: dict[str, list[float]]) -> Iterator[Figure]:
    """Seconds of many tiny networks, and how much faster they come at once."""
    row = f"{MEMBERS:,} {TINY}, {arch.parameters:,} parameters each"
    for way, seconds in taken.items():
        yield figure("many", row, way, seconds, "s")
    yield figure("many", row, "times as fast", ratios(taken["one by one"], taken["at once"]), "times")


def large_figures(name: str, found: dict[str, Any]) -> Iterator[Figure]:
    """Seconds and memory of a large network."""
    row = f"{name}, {found['megabytes']:.0f} MiB"
    yield figure("large", row, "time", found["seconds"], "s")
    yield figure("large", row, "processor time", found["cpu"], "s")
    yield figure("large", row, "a warm read of the weights", found["read"], "s")
    yield figure("large", row, "memory beside input and output", [found["memory"] * 2**20], "bytes")


def main() -> None:
    """Print what was measured beside the aims."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, help="folder that keeps the tables; by default they are traced again")
    parser.add_argument("--only", default="", help="networks whose names have this in them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "matrices.json", help="where figures go")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="time tasks here and in another checkout")
    parser.add_argument("--repeats", type=int, default=9, help="of each task with --beside (9)")
    chosen = parser.parse_args()
    if chosen.beside is not None:
        show(compare(Path(__file__), list(TASKS), chosen.beside, chosen.repeats), chosen.beside, chosen.repeats)
        return
    figures, content = list[Figure](), dict[str, Any]()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder: Path = chosen.tables or scratch
        folder.mkdir(parents=True, exist_ok=True)
        if chosen.only in TINY:
            table, arch = table_of(TINY, folder)
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                taken = pool.submit(many, table, arch, chosen.threads).result()
            content[TINY] = taken
            figures += tiny_figures(arch, taken)
            batched, single = (statistics.median(taken[way]) for way in ("at once", "one by one"))
            print(
                f"{MEMBERS:,} x {TINY} ({arch.parameters:,} parameters): {batched:.2f} s batched, {single:.2f} s one "
                f"by one: {single / batched:.1f} times as fast (aim {SPEEDUP:.0f})"
            )
        for large_name in LARGE:
            if chosen.only not in large_name:
                continue
            table, arch = table_of(large_name, folder)
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                found = pool.submit(large, table, arch, scratch, chosen.threads).result()
            content[large_name] = found
            figures += large_figures(large_name, found)
            kinds = sorted({group.scale for group in table.groups})
            seconds, cpu, read = (statistics.median(found[key]) for key in ("seconds", "cpu", "read"))
            print(
                f"{large_name} ({found['megabytes']:.0f} MiB, {len(table.groups)} groups: {', '.join(kinds)}): "
                f"{seconds:.1f} s, {cpu:.1f} s of all cores (aim {SECONDS:.0f}), "
                f"{seconds / read:.0f} times a warm read of {read:.2f} s "
                f"(aim {READS:.0f}), {found['memory']:.0f} MiB beside input and output "
                f"(aim {MEMORY:.0f}); {found['degenerate']:.0f} degenerate channels"
                f"{', unresolved' if found['unresolved'] else ''}",
                flush=True,
            )
    write(chosen.json, figures, {"machine": machine(ROOT), "threads": chosen.threads, "results": content})


if __name__ == "__main__":
    main()
