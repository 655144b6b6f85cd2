"""Training many OptuNets: every engine beside a plain PyTorch loop and torch.func.vmap.

Every contender takes the same steps on the same images in the same order with the same crops, gathered from memory;
what differs is how the arithmetic is put to the machine. Repeats are interleaved, medians are printed, and a check at
the start compares the weights they arrive at. Takes about two minutes.
"""

import argparse
import dataclasses
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn

from benchmarks.figures import Figure, figure, ratios, turns, write
from benchmarks.train_limits import Limits, limits, product_steps
from builders import data
from builders.data_source import DataSource, steps
from builders.engines import GENERAL, is_one_at_a_time, usable
from builders.recipe import Recipe
from builders.state import TrainingState
from builders.train import available_cores, choose_engine, device_kind, open_trainer
from ckptzoo import archs
from ckptzoo.errors import ZooError

ROOT = Path(__file__).resolve().parent.parent
PLAIN = "plain loop"
LIMIT = "arithmetic alone, by a matrix product"
STACKED, STACKED_GENERAL = (1, 8, 16, 64, 128), (16, 64)
Take = Callable[[int], float]
"""Takes a number of optimiser steps of every member and returns the seconds."""


@dataclass
class Contender:
    """One way of training.

    Parameters
    ----------
    name
        for the table.
    members
        how many it trains at once.
    take
        see ``Take``.
    rates
        member-steps a second, one a repeat.
    """

    name: str
    members: int
    take: Take
    rates: list[float] = field(default_factory=list)


def plain(data_source: DataSource, seed: int, count: int) -> tuple[float, dict[str, torch.Tensor]]:
    """One member the ordinary way: a module, autograd and torch.optim.SGD; the seconds and the weights."""
    recipe = data_source.recipe
    state = TrainingState.initial(recipe, [seed], str(data_source.device))
    model = archs.get(recipe.architecture)().to(data_source.device)
    model.load_state_dict({name: tensor[0] for name, tensor in state.weights.items()})
    optimiser = torch.optim.SGD(
        model.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    pad = recipe.crop_pad
    rows = torch.arange(data_source.height - 2 * pad, device=data_source.device) * data_source.width
    window = rows[:, None] + torch.arange(data_source.width - 2 * pad, device=data_source.device)
    began = time.perf_counter()
    for step in steps(data_source, state.keys, 0, count):
        optimiser.param_groups[0]["lr"] = step.rate
        images = data_source.network_inputs(data_source.pixels[step.corners[0, :, None, None, None] + window])
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), step.labels[0]).backward()
        optimiser.step()
    _wait(data_source.device)
    return time.perf_counter() - began, {name: tensor.detach() for name, tensor in model.state_dict().items()}


_held: list[DataSource] = []


def _hold(recipe: Recipe, source: data.Data) -> None:
    """Prepare a process of a pool."""
    torch.set_num_threads(1)
    _held.append(DataSource.of(recipe, source, "cpu"))


def _plain_held(seed: int, count: int) -> float:
    return plain(_held[0], seed, count)[0]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def contenders(
    recipe: Recipe,
    source: data.Data,
    device: str,
    stack: ExitStack,
    chosen: Sequence[str],
    members: Sequence[int] | None,
) -> Iterator[Contender]:
    """Everything that is compared: the plain loop, and the chosen engines with these numbers of members."""
    data_source = DataSource.of(recipe, source, device)
    for threads in sorted({1, available_cores()}) if device_kind(device) == "cpu" else (1,):

        def alone(count: int, threads: int = threads) -> float:
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            seconds = plain(data_source, 0, count)[0]
            torch.set_num_threads(before)
            return seconds

        yield Contender(f"{PLAIN}, {threads} thread{'s' * (threads > 1)}", 1, alone)
    if device_kind(device) == "cpu":
        number = available_cores()
        pool = stack.enter_context(
            ProcessPoolExecutor(number, get_context("spawn"), initializer=_hold, initargs=(recipe, source))
        )
        list(pool.map(_plain_held, range(number), [1] * number))

        def side_by_side(count: int) -> float:
            return max(pool.map(_plain_held, range(number), [count] * number))

        yield Contender(f"plain loops, {number} processes", number, side_by_side)
    for engine in chosen:
        counts = members or (STACKED_GENERAL if engine == GENERAL else STACKED)
        if is_one_at_a_time(engine):
            counts = (1,)
        trainer = stack.enter_context(open_trainer(recipe, source, device=device, engine=engine))
        for together in counts:

            def take(count: int, members: int = together, trainer: Any = trainer) -> float:
                state = trainer.start(range(members))
                began = time.perf_counter()
                trainer.advance(state, count)
                _wait(trainer.data_source.device)
                return time.perf_counter() - began

            name = "torch.func.vmap" if engine == GENERAL else f"engine {engine}"
            yield Contender(name, together, take)


def check(recipe: Recipe, source: data.Data, device: str, chosen: Sequence[str]) -> float:
    """The largest difference of a weight between the plain loop and any of these engines after 20 steps."""
    _, expected = plain(DataSource.of(recipe, source, device), 3, 20)
    gaps: list[float] = []
    for engine in chosen:
        with open_trainer(recipe, source, device=device, engine=engine) as trainer:
            state = trainer.start(range(8))
            trainer.advance(state, 20)
        gaps += [(state.weights[name][3] - tensor).abs().max().item() for name, tensor in expected.items()]
    return max(gaps)


def measure(found: list[Contender], repeats: int, seconds: float, console: Console) -> None:
    """Interleaved repeats, each of about so many seconds."""
    counts: list[int] = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("measuring", total=len(found) * (repeats + 1))
        for contender in found:
            contender.take(2)
            counts.append(max(2, round(seconds * 5 / contender.take(5))))
            progress.advance(task)
        for number in turns(range(len(found)), repeats):
            contender = found[number]
            contender.rates.append(contender.members * counts[number] / contender.take(counts[number]))
            progress.advance(task)


def machine(device: str) -> dict[str, Any]:
    """What the figures depend on."""
    cpu = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = models[0] if models else cpu
    gpu = torch.cuda.get_device_name(device) if device_kind(device) == "cuda" else None
    return {
        "cpu": cpu,
        "cores": available_cores(),
        "gpu": gpu,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def fastest_plain(found: Sequence[Contender]) -> Contender:
    """The plain loop in one process, on as many threads as are best for it."""
    loops = [contender for contender in found if contender.name.startswith(f"{PLAIN},")]
    return max(loops, key=lambda contender: statistics.median(contender.rates))


def figures(found: Sequence[Contender]) -> Iterator[Figure]:
    """Every way with the number of members that is best for it, beside plain loops and the limit of a product."""
    best: dict[str, Contender] = {}
    for contender in found:
        known = best.setdefault(contender.name, contender)
        if statistics.median(contender.rates) > statistics.median(known.rates):
            best[contender.name] = contender
    base, limit = fastest_plain(found), best[LIMIT]
    side_by_side = next((each for name, each in best.items() if name.startswith(f"{PLAIN}s,")), None)
    for contender in best.values():
        row = contender.name
        yield figure("engines", row, "steps a second", contender.rates, "steps")
        if contender is limit or contender.name.startswith(PLAIN):
            continue
        yield figure("engines", row, "over a plain loop", ratios(contender.rates, base.rates), "times")
        if side_by_side is not None:
            compared = ratios(contender.rates, side_by_side.rates)
            yield figure("engines", row, f"over {side_by_side.name}", compared, "times")
        yield figure("engines", row, "of the limit", ratios(contender.rates, limit.rates), "share")
        yield figure("engines", row, "members at once", [contender.members], "members")


def show(
    console: Console, found: list[Contender], facts: dict[str, Any], recipe: Recipe, gap: float, bounds: Limits
) -> None:
    """The table, and how far the fastest is from what the machine could do."""
    place = facts["gpu"] or f"{facts['cpu']}, {facts['cores']} cores"
    console.print(f"{place}, {facts['system']}, Python {facts['python']}, torch {facts['torch']}")
    console.print(f"{recipe.name}, batch {recipe.batch}; the weights agree with the plain loop's to {gap:.0e}")
    table = Table(title="member-steps per second", title_justify="left")
    table.add_column("contender", no_wrap=True)
    for column in ("members", "median", "lowest", "highest", "vs plain"):
        table.add_column(column, justify="right")
    base = statistics.median(fastest_plain(found).rates)
    for contender in found:
        middle = statistics.median(contender.rates)
        numbers = [f"{value:,.0f}" for value in (middle, min(contender.rates), max(contender.rates))]
        table.add_row(contender.name, str(contender.members), *numbers, f"{middle / base:.2f}x")
    console.print(table)
    ways, limit = found[:-1], statistics.median(found[-1].rates)
    best = max(ways, key=lambda contender: statistics.median(contender.rates))
    speed = statistics.median(best.rates)
    for name, need, unit, rate, bound in (
        ("arithmetic", bounds.flop / 1e6, "MFLOP", f"{limit * bounds.flop / 1e9:,.0f} GFLOP/s in a product", limit),
        ("memory", bounds.nbytes / 1e3, "kB", f"{bounds.byte_rate / 1e9:,.1f} GB/s in a copy", bounds.memory),
    ):
        console.print(
            f"{name}: {need:.1f} {unit} a member-step, {rate}: at most {bound:,.0f} member-steps a second; "
            f"{best.name} of {best.members} reaches {100 * speed / bound:.1f} %"
        )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", help="default: mnist-optunet where a data folder is named, else digits-optunet")
    parser.add_argument("--data", type=Path, help=f"folder of the data set (default: ${data.FOLDER_VARIABLE})")
    parser.add_argument("--batch", type=int, default=64, help="images a step (64)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--engines", nargs="+", metavar="NAME", help="default: all that can train the recipe there")
    parser.add_argument("--members", nargs="+", type=int, metavar="N", help="trained at once by an engine")
    parser.add_argument("--repeats", type=int, default=5, help="of each contender (5)")
    parser.add_argument("--seconds", type=float, default=0.7, help="a repeat takes about so long (0.7)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "train.json", help="where figures go")
    chosen = parser.parse_args()
    if chosen.repeats < 1 or chosen.seconds <= 0:
        parser.error("--repeats and --seconds: expected more than 0.")
    return chosen


def main() -> None:
    """Measure, print the table, write the figures."""
    chosen = arguments()
    console = Console()
    named = chosen.data or os.environ.get(data.FOLDER_VARIABLE)
    recipe = Recipe.load(chosen.recipe or ("mnist-optunet" if named else "digits-optunet"))
    recipe = dataclasses.replace(recipe, batch=chosen.batch)
    source = data.load(recipe, chosen.data)
    able = usable(recipe, chosen.device)
    engines = tuple(choose_engine(recipe, chosen.device, name) for name in chosen.engines or able)
    gap = check(recipe, source, chosen.device, engines)
    if gap > 1e-3:
        raise ZooError(f"benchmark: weights after 20 steps: expected equal to 1e-3, got {gap:.0e} apart. Stop.")
    bounds = limits(recipe.batch, chosen.device)
    with ExitStack() as stack:
        found = list(contenders(recipe, source, chosen.device, stack, engines, chosen.members))
        # in turns with the others, so that other work on the machine slows it down as it slows them
        found.append(Contender(LIMIT, 1, product_steps(chosen.device, bounds.flop)))
        measure(found, chosen.repeats, chosen.seconds, console)
    facts = machine(chosen.device)
    show(console, found, facts, recipe, gap, bounds)
    results = [{"name": item.name, "members": item.members, "member_steps_per_second": item.rates} for item in found]
    content = {
        "machine": facts,
        "recipe": recipe.facts(),
        "largest_difference": gap,
        "limits": bounds.to_json(),
        "results": results[:-1],
        "product_steps_per_second": found[-1].rates,
    }
    write(chosen.json, list(figures(found)), content)
    console.print(f"Figures: {chosen.json}")


if __name__ == "__main__":
    main()
