"""Outputs of many OptuNets on the same images: ckptzoo's function beside ``torch.func.vmap`` and a loop over members.

Each contender spreads groups of members over the cores, with torch on one thread in each. Repeats are interleaved,
medians are printed, by the clock and by the processor's time, which other work on the machine slows down less, with the
largest difference from the loop, which is stock PyTorch. Then ``derive.predict`` on a zoo
of as many members: reading, rounding to float16 and storing included.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import ckptzoo
from benchmarks.figures import figure, machine, turns, write
from ckptzoo import archs, derive

ROOT = Path(__file__).resolve().parent.parent
NAME, SHAPE = "optunet", (1, 28, 28)
Weights = dict[str, torch.Tensor]
Outputs = Callable[[Weights, torch.Tensor], torch.Tensor]


def loop(weights: Weights, images: torch.Tensor) -> torch.Tensor:
    """The module, member by member, 512 images at a time."""
    model = archs.get(NAME)().eval()
    rows: list[torch.Tensor] = []
    for member in range(len(weights["fc.bias"])):
        model.load_state_dict({name: value[member] for name, value in weights.items()})
        rows.append(torch.cat([model(batch) for batch in images.split(512)]))
    return torch.stack(rows)


def vmap(weights: Weights, images: torch.Tensor) -> torch.Tensor:
    """The module under ``vmap``, 8 members and 64 images at a time."""
    model = archs.get(NAME)().eval()

    def outputs(member: Weights, batch: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, member, (batch,))

    stacks = zip(*(value.split(8) for value in weights.values()), strict=True)
    mapped = torch.func.vmap(outputs, in_dims=(0, None))
    found = [[mapped(dict(zip(weights, stack, strict=True)), batch) for batch in images.split(64)] for stack in stacks]
    return torch.cat([torch.cat(batches, 1) for batches in found])


def spread(outputs: Outputs, weights: Weights, images: torch.Tensor, workers: ThreadPoolExecutor) -> torch.Tensor:
    """Outputs of groups of 64 members, in the threads."""

    def evaluate(group: Weights) -> torch.Tensor:
        with torch.inference_mode():
            return outputs(group, images)

    count = len(weights["fc.bias"])
    groups = [{name: value[start : start + 64] for name, value in weights.items()} for start in range(0, count, 64)]
    return torch.cat(list(workers.map(evaluate, groups)))


@contextmanager
def single_threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads in which torch uses one thread each."""
    with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as workers:
        yield workers


def predicted(weights: Weights, images: torch.Tensor) -> float:
    """Seconds of ``derive.predict`` on a zoo of these checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "zoo"
        with ckptzoo.create(path, arch=archs.architecture(NAME)) as writer:
            rows = [{"id": f"net-{number}"} for number in range(len(weights["fc.bias"]))]
            writer.add({name: value.numpy() for name, value in weights.items()}, rows)
        return derive.predict(path, images.numpy(), set="random/test").seconds


def measure(members: int, count: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each contender."""
    torch.manual_seed(0)
    weights = {item.name: torch.randn(members, *item.shape) / 4 for item in archs.architecture(NAME).tensors}
    images = torch.randn(count, *SHAPE)
    ours = archs.stacked(NAME, SHAPE)
    assert ours is not None
    contenders: dict[str, Outputs] = {"loop": loop, "vmap": vmap, "archs.stacked": ours}
    names = (*contenders, "derive.predict")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in names}
    found: dict[str, torch.Tensor] = {}
    with single_threads(len(os.sched_getaffinity(0))) as workers:
        for name in turns(names, repeats):
            began, cpu_began = time.perf_counter(), time.process_time()
            if name in contenders:
                found[name] = spread(contenders[name], weights, images, workers)
                seconds[name].append(time.perf_counter() - began)
            else:
                seconds[name].append(predicted(weights, images))
            cpu_seconds[name].append(time.process_time() - cpu_began)
    size = found["loop"].abs().amax((1, 2))
    return [
        {
            "contender": name,
            "seconds": taken,
            "cpu_seconds": cpu_seconds[name],
            "network_images_a_second": members * count / statistics.median(taken),
            "network_images_a_cpu_second": members * count / statistics.median(cpu_seconds[name]),
            "difference": float(((found[name] - found["loop"]).abs().amax((1, 2)) / size).max())
            if name in found
            else None,
        }
        for name, taken in seconds.items()
    ]


def main() -> None:
    """Measure, print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=128, help="OptuNets (128)")
    parser.add_argument("--images", type=int, default=4096, help="images (4096)")
    parser.add_argument("--repeats", type=int, default=3, help="of each contender (3)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "predict.json", help="where figures go")
    chosen = parser.parse_args()
    if min(chosen.members, chosen.images, chosen.repeats) < 1:
        parser.error("--members, --images and --repeats: expected more than 0.")
    rows, facts, console = measure(chosen.members, chosen.images, chosen.repeats), machine(ROOT), Console()
    table = Table(title=f"{chosen.members:,} OptuNets, {chosen.images:,} images", box=SIMPLE_HEAD)
    for column in ("contender", "network-images a second", "a CPU second", "largest relative difference"):
        table.add_column(column, justify="left" if column == "contender" else "right")
    for row in rows:
        shown = "" if row["difference"] is None else f"{row['difference']:.1e}"
        rates = (f"{row[f'network_images_a_{unit}']:,.0f}" for unit in ("second", "cpu_second"))
        table.add_row(row["contender"], *rates, shown)
    console.print(table)
    console.print(f"{facts['cpu']}, {facts['cores']} cores, torch {torch.__version__}")
    pairs = chosen.members * chosen.images
    figures = [
        figure("outputs", row["contender"], f"pairs a second{of}", [pairs / taken for taken in row[key]], "pairs")
        for row in rows
        for key, of in (("seconds", ""), ("cpu_seconds", " of processor time"))
    ]
    write(chosen.json, figures, {"machine": facts, "rows": rows})


if __name__ == "__main__":
    main()
