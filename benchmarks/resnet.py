"""Training ResNet-18 on images of 32x32 pixels: the engine ``single`` and its runners beside loops of plain PyTorch.

``plain`` is an eager loop on batches that are ready on the device, without augmentation; ``stock`` is a float32 loop
with a ``DataLoader`` whose workers crop, flip and normalise image by image, with PyTorch's own settings. The engines
draw crops and flips themselves. Pixels are random, because no time depends on them. On a CPU everything has one thread
and repeats are interleaved; on a GPU each way has the device to itself, one after another, because the precision of
products is a setting of the whole process. What is in the file of figures already is not measured again.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.figures import Figure, figure, ratios, turns
from benchmarks.gpu_files import write_json
from benchmarks.train import machine
from benchmarks.train_limits import product_rate
from builders import sources
from builders.data import Data
from builders.engines.single import memory_format_of
from builders.recipe import BFLOAT16, FLOAT32, TF32, ImageRecipe, Recipe
from builders.train import available_cores, device_kind, open_trainer
from ckptzoo import archs
from ckptzoo.console import columns
from ckptzoo.loader.permutation import derive_key

ROOT = Path(__file__).resolve().parent.parent
PLAIN, STOCK, GRAPH, COMPILE = "plain", "stock", "single-graph", "single-compile"
READY = 8
"""Batches that are ready."""
Take = Callable[[int], float]
"""Takes a number of optimiser steps of every member and returns the seconds."""


@dataclass(frozen=True)
class Way:
    """One way of training.

    Parameters
    ----------
    runner
        ``plain``, ``stock``, or an engine.
    precision
        of products and convolutions.
    streams
        members that are trained side by side.
    deterministic
        whether the engine takes the same kernels each time.
    """

    runner: str
    precision: str
    streams: int = 1
    deterministic: bool = True


def ways(device: str, runners: Sequence[str]) -> list[Way]:
    """What is measured, the most telling first."""
    if device_kind(device) == "cpu":
        every = [Way(PLAIN, FLOAT32), Way("single", FLOAT32), Way(STOCK, FLOAT32)]
    else:
        every = [Way(PLAIN, BFLOAT16), Way(GRAPH, BFLOAT16), Way("single", BFLOAT16)]
        every += [Way(GRAPH, BFLOAT16, streams) for streams in (2, 4)] + [Way(STOCK, FLOAT32)]
        every += [Way(GRAPH, precision) for precision in (TF32, FLOAT32)]
        every += [Way("single", BFLOAT16, streams) for streams in (2, 4)]
        every += [Way("single", precision) for precision in (TF32, FLOAT32)]
        every += [Way(PLAIN, FLOAT32), *(Way(GRAPH, precision, 2) for precision in (TF32, FLOAT32))]
        every += [Way(COMPILE, BFLOAT16, streams) for streams in (1, 2)]
    return [way for way in every if way.runner in runners]


def random_images(count: int) -> Data:
    """As many training images as CIFAR-100's have, of the same shape."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 3, 32, 32), np.uint8)
    labels = rng.integers(0, 100, count)
    labels[0] = 99
    return Data("cifar100", images, labels, images[:100], labels[:100])


class Augmented(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Images, cropped, flipped and normalised one by one."""

    def __init__(self, recipe: ImageRecipe, source: Data) -> None:
        self.images, self.labels, self.pad = source.train_images, source.train_labels, recipe.crop_pad
        mean, std = recipe.statistics(3)
        self.mean, self.std = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        image = nn.functional.pad(torch.from_numpy(self.images[number]), (self.pad,) * 4)
        down, right, mirrored = torch.randint(0, 2 * self.pad + 1, (3,)).tolist()
        image = image[:, down : down + 32, right : right + 32]
        image = image.flip(-1) if mirrored % 2 else image
        return (image.float() / 255 - self.mean) / self.std, int(self.labels[number])


@contextmanager
def opened(way: Way, recipe: Recipe, source: Data, device: str) -> Iterator[Take]:
    """What takes the steps of a way."""
    recipe = replace(recipe, precision=way.precision)
    if way.runner == STOCK:
        with _stock(recipe, source, device) as take:
            yield take
    elif way.runner == PLAIN:
        yield _plain(recipe, source, device)
    else:
        # one thread on a CPU; on a GPU a stream for each member
        streams = {"threads": way.streams, "deterministic": way.deterministic}
        with open_trainer(recipe, source, device=device, engine=way.runner, **streams) as trainer:
            state = trainer.start(range(way.streams))

            def take(count: int) -> float:
                began = time.perf_counter()
                trainer.advance(state, state.step + count)
                return time.perf_counter() - began

            yield take


def _network(recipe: Recipe, device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    network = archs.get(recipe.architecture)().to(device).train()
    settings: dict[str, Any] = {"momentum": recipe.momentum, "weight_decay": recipe.weight_decay}
    return network, torch.optim.SGD(network.parameters(), recipe.learning_rate, nesterov=recipe.nesterov, **settings)


def _step(network: nn.Module, optimizer: torch.optim.Optimizer, images: Any, labels: Any, half: bool = False) -> None:
    optimizer.zero_grad()
    with torch.autocast(images.device.type, torch.bfloat16, enabled=half):
        loss = nn.functional.cross_entropy(network(images), labels)
    loss.backward()
    optimizer.step()


def _wait(device: str) -> None:
    if device_kind(device) == "cuda":
        torch.cuda.synchronize(device)


def _plain(recipe: Recipe, source: Data, device: str) -> Take:
    """Batches in the network's memory format, made before the clock starts."""
    feed = sources.data_source(replace(recipe, precision=FLOAT32), source, device)
    network, optimizer = _network(recipe, device)
    memory_format: Any = memory_format_of(network, torch.device(device))
    network.to(memory_format=memory_format)
    keys = np.array([derive_key(0)], np.uint64)
    made = [(b.inputs[0].contiguous(memory_format=memory_format), b.targets[0]) for b in feed.batches(keys, 0, READY)]

    def take(count: int) -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        began = time.perf_counter()
        for number in range(count):
            _step(network, optimizer, *made[number % len(made)], recipe.precision == BFLOAT16)
        _wait(device)
        seconds = time.perf_counter() - began
        torch.set_num_threads(before)
        return seconds

    return take


@contextmanager
def _stock(recipe: Recipe, source: Data, device: str) -> Iterator[Take]:
    """Workers load and augment; the first batches of a take were loaded before, as in the middle of an epoch."""
    on_gpu = device_kind(device) == "cuda"
    network, optimizer = _network(recipe, device)
    assert isinstance(recipe, ImageRecipe)
    workers = min(16, available_cores()) if on_gpu else 1
    loader: Any = torch.utils.data.DataLoader(
        Augmented(recipe, source),
        recipe.batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=on_gpu,
        persistent_workers=True,
    )
    batches = _endless(loader)

    def take(count: int) -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        began = time.perf_counter()
        for _ in range(count):
            images, labels = next(batches)
            _step(network, optimizer, images.to(device, non_blocking=True), labels.to(device, non_blocking=True))
        _wait(device)
        seconds = time.perf_counter() - began
        torch.set_num_threads(before)
        return seconds

    yield take
    batches.close()


def _endless(loader: Any) -> Any:
    while True:
        yield from loader


def flop_an_image(architecture: str) -> int:
    """Operations of a forward and a backward pass, counted; a multiplication and an addition are two."""
    with torch.device("meta"):
        network = archs.get(architecture)()
        images = torch.empty(1, 3, 32, 32)
    # BatchNorm refuses to normalise one value a channel while it trains: the last stage has 4x4 of them
    with FlopCounterMode(display=False) as counter:
        network(images).sum().backward()
    return counter.get_total_flops()


def rates(takes: Sequence[Take], batch: int, streams: Sequence[int], repeats: int, seconds: float) -> list[list[float]]:
    """Images a second of each, repeats interleaved, each of about ``seconds``."""
    counts: list[int] = []
    for take in takes:
        take(3)
        counts.append(max(1, round(3 * seconds / take(3))))
    found: list[list[float]] = [[] for _ in takes]
    for number in turns(range(len(takes)), repeats):
        found[number].append(streams[number] * batch * counts[number] / takes[number](counts[number]))
    return found


class Figures:
    """The file of figures, written again after every way."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path = path
        before = json.loads(path.read_text()) if path.exists() else {}
        same = all(before.get(key) == facts[key] for key in ("architecture", "batch", "machine"))
        self.content: dict[str, Any] = {**facts, "finished": False, "rows": before["rows"] if same else []}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One a way."""
        return self.content["rows"]

    def has(self, way: Way) -> bool:
        """Whether it was measured, or tried and failed."""
        return any(row["way"] == asdict(way) for row in self.rows)

    def put(self, way: Way, **values: Any) -> None:
        """Set what is known of a way."""
        self.content["rows"] = [row for row in self.rows if row["way"] != asdict(way)]
        self.rows.append({"way": asdict(way), **values})
        self.write()

    def write(self, finished: bool = False) -> None:
        """Write the file."""
        self.content |= {"finished": finished, "figures": list(self._figures())}
        write_json(self.path, self.content)

    def _figures(self) -> Iterator[Figure]:
        known = {row["way"]["runner"]: row for row in self.rows if "median" in row}
        for row in self.rows:
            if "median" not in row:
                continue
            way = Way(**row["way"])
            name = f"{way.runner}, {way.precision}, {way.streams} at once"
            name += "" if way.deterministic else ", not deterministic"
            yield figure("images", name, "images a second", row["images_a_second"], "images")
            base = known.get(PLAIN)
            if base is not None and row is not base and way.streams == 1 and len(known) == len(self.rows):
                compared = ratios(base["images_a_second"], row["images_a_second"])
                yield figure("images", name, "time over a plain loop's", compared, "times")

    def best(self) -> Way | None:
        """The fastest engine."""
        measured = [row for row in self.rows if "median" in row and row["way"]["runner"] not in (PLAIN, STOCK)]
        best = max(measured, key=lambda row: row["median"], default=None)
        return None if best is None else Way(**best["way"])


def measure(group: Sequence[Way], recipe: Recipe, source: Data, chosen: argparse.Namespace, figures: Figures) -> None:
    """Ways whose repeats are interleaved; one that fails, or never ends, leaves a row that says so."""
    for way in group:
        figures.put(way, error="did not end")
    peak, flop = figures.content["peak_flop_a_second"], figures.content["flop_an_image"]
    try:
        with ExitStack() as stack:
            takes = [stack.enter_context(opened(way, recipe, source, chosen.device)) for way in group]
            streams = [way.streams for way in group]
            found = rates(takes, recipe.batch, streams, chosen.repeats, chosen.seconds)
    # what a GPU's libraries raise is of many kinds, and the other ways are still worth measuring
    except Exception as error:
        for way in group:
            figures.put(way, error=f"{type(error).__name__}: {error}"[:2000])
        return
    for way, values in zip(group, found, strict=True):
        middle = statistics.median(values)
        figures.put(
            way,
            images_a_second=values,
            median=middle,
            flop_a_second=middle * flop,
            percent_of_peak=100 * middle * flop / peak,
        )
    runners = [way.runner for way in group]
    if PLAIN in runners and len(group) > 1:
        base = found[runners.index(PLAIN)]
        figures.content["median_of_time_ratios_to_plain"] = {
            runner: statistics.median(one / other for one, other in zip(base, values, strict=True))
            for runner, values in zip(runners, found, strict=True)
            if runner != PLAIN
        }


def show(console: Console, figures: Figures) -> None:
    """The table."""
    facts = figures.content
    table = columns("way", "images/s", "lowest", "highest", "TFLOP/s", "% of peak")
    for row in sorted(figures.rows, key=lambda row: -row.get("median", 0)):
        way = Way(**row["way"])
        kernels = "" if way.deterministic else ", not deterministic"
        name = f"{way.runner}, {way.precision}, {way.streams} at once{kernels}"
        if "error" in row:
            table.add_row(f"{name}: {row['error'][:80]}")
            continue
        speeds = (row["median"], min(row["images_a_second"]), max(row["images_a_second"]))
        tera, percent = row["flop_a_second"] / 1e12, row["percent_of_peak"]
        table.add_row(name, *(f"{speed:,.1f}" for speed in speeds), f"{tera:.3g}", f"{percent:.3g}")
    console.print(table)
    peak = facts["peak_flop_a_second"] / 1e12
    console.print(
        f"{facts['architecture']}, batch {facts['batch']}, {facts['flop_an_image'] / 1e9:.3g} GFLOP an image; "
        f"a matrix product in {facts['peak_precision']}: {peak:.3g} TFLOP/s"
    )
    for name, ratio in facts.get("median_of_time_ratios_to_plain", {}).items():
        console.print(
            f"{name} takes {ratio:.3f} times the time of {PLAIN}, the median of ratios of neighbouring repeats"
        )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=8, help="channels of the first stage (8); published: 64")
    parser.add_argument("--batch", type=int, default=128, help="images a step (128)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    known, usual = (PLAIN, STOCK, "single", GRAPH, COMPILE), (PLAIN, STOCK, "single", GRAPH)
    parser.add_argument("--runners", nargs="+", choices=known, default=usual, help="those that are compared")
    parser.add_argument("--repeats", type=int, default=5, help="of each way (5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="a repeat takes about so long (1)")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds after which no other way begins (3600)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "resnet.json", help="where figures go")
    return parser.parse_args()


def main() -> None:
    """Measure, print the table, write the figures."""
    chosen, began = arguments(), time.monotonic()
    kind = device_kind(chosen.device)
    architecture = "resnet18-100" if chosen.width == 64 else f"resnet18-{chosen.width}-100"
    # a multiple of the batch, so that every batch is whole
    images = chosen.batch * (390 if kind == "cuda" else 16)
    base = Recipe.load("cifar100-resnet18")
    recipe = replace(base, architecture=architecture, batch=chosen.batch, train=images, test=100, epochs=10**6)
    source = random_images(images)
    if kind == "cpu":
        torch.set_num_threads(1)
    half = kind == "cuda"
    facts = {
        "machine": machine(chosen.device),
        "architecture": architecture,
        "batch": chosen.batch,
        "pixels": "random",
        "flop_an_image": flop_an_image(architecture),
        "peak_precision": BFLOAT16 if half else FLOAT32,
        "peak_flop_a_second": product_rate(chosen.device, torch.bfloat16 if half else torch.float32),
    }
    figures = Figures(chosen.json, facts)
    remaining = [way for way in ways(chosen.device, chosen.runners) if not figures.has(way)]
    groups = [[way] for way in remaining] if half else [remaining] if remaining else []
    longest, finished = 0.0, True
    while groups:
        if time.monotonic() - began + longest > chosen.budget:
            finished = False
            break
        started = time.monotonic()
        measure(groups.pop(0), recipe, source, chosen, figures)
        longest = max(longest, time.monotonic() - started)
        best = figures.best()
        if not groups and half and best is not None and best.deterministic:
            free = replace(best, deterministic=False)
            groups = [] if figures.has(free) else [[free]]
    figures.write(finished)
    show(Console(), figures)


if __name__ == "__main__":
    main()
