"""Least mass: the solver beside cvxpy, many checkpoints at once, and iterations over depth.

cvxpy (Clarabel) solves the same problem one network after the other; perceptrons grow until it fails, is off by more
than 1e-6, or takes longer than the limit. Weights are random. Takes a few minutes and twice the bytes of the ResNets in
memory.
"""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.checkouts import Task, compare
from benchmarks.checkouts import show as show_checkouts
from benchmarks.figures import Figure, figure, machine, write
from ckptzoo import archs
from ckptzoo.schema.groups import AxisAction, Group, Segment, Sym
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import MinMass, canonicalize, min_mass
from ckptzoo.symmetry.tables import Arch

ROOT = Path(__file__).resolve().parent.parent
WIDTHS = (8, 16, 32, 64, 100, 128, 192, 256, 400, 640)
DEPTHS = (2, 3, 5, 10, 20, 50)
BLOCKS = (1, 3, 10, 25)
NORMALISED = ("resnet18-10", "resnet20-pad-10", "resnet20-conv-10")
FORMULATIONS = ("pinned", "volume", "eval_chain")
OFF = 1e-6
Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Race:
    """One network solved by both engines.

    Parameters
    ----------
    name
        the network.
    networks
        how many the solver took at once, and how many cvxpy took one after the other.
    newton, cvxpy
        seconds a network, one a repeat of the solver; None where cvxpy was stopped at the limit.
    excess
        the mass that cvxpy found beside the solver's, less 1.
    """

    name: str
    networks: tuple[int, int]
    newton: list[float]
    cvxpy: float | None
    excess: float | None

    @property
    def verdict(self) -> str:
        """How cvxpy ended."""
        if self.cvxpy is None or self.excess is None:
            return "stopped at the limit"
        return "fails" if self.excess > 1e-2 else f"{self.excess:.0e} above" if self.excess > OFF else "agrees"


@dataclass(frozen=True)
class Depth:
    """How the solver fares on one kind of network.

    Parameters
    ----------
    name, formulation
        of the network.
    iterations
        the most of any checkpoint.
    gap
        the largest.
    milliseconds
        a checkpoint.
    """

    name: str
    formulation: str
    iterations: int
    gap: float
    milliseconds: float


def drawn(arch: str, count: int, seed: int = 0) -> Weights:
    """Random weights of a registered network, with statistics as trained ones have."""
    rng = np.random.default_rng(seed)
    made: Weights = {}
    for tensor in archs.architecture(arch).tensors:
        shape = (count, *tensor.shape)
        if tensor.dtype == "int64":
            made[tensor.name] = np.zeros(shape, np.int64)
            continue
        values = rng.standard_normal(shape, dtype=np.float32)
        if tensor.name.endswith("running_var"):
            values = np.square(values) + np.float32(0.01)
        elif len(tensor.shape) > 1:
            values *= np.float32((2 / np.prod(tensor.shape[1:], dtype=np.int64)) ** 0.5)
        made[tensor.name] = values
    return made


def residual(blocks: int, n: int = 32, inner: int = 32) -> tuple[Symmetry, dict[str, tuple[int, ...]]]:
    """A residual network without normalisation: its table and shapes."""

    def side(group: str, size: int, axis: int) -> tuple[int, tuple[Segment, ...], int, bool, str]:
        return axis, (Segment(group, 0, 1, size),), -1 if axis else 1, True, "in" if axis else "out"

    groups, actions = [Group("s", n, Sym(), "positive")], [AxisAction("first", *side("s", n, 0))]
    shapes: dict[str, tuple[int, ...]] = {"first": (n, 8)}
    for number in range(blocks):
        hidden = f"h{number}"
        groups.append(Group(hidden, inner, Sym(), "positive"))
        actions += [AxisAction(f"a{number}", *side(hidden, inner, 0)), AxisAction(f"a{number}", *side("s", n, 1))]
        actions += [AxisAction(f"b{number}", *side("s", n, 0)), AxisAction(f"b{number}", *side(hidden, inner, 1))]
        shapes |= {f"a{number}": (inner, n), f"b{number}": (n, inner)}
    actions.append(AxisAction("last", *side("s", n, 1)))
    return Symmetry(tuple(groups), tuple(actions)), shapes | {"last": (4, n)}


def timed(work: Callable[[], Any], repeats: int) -> tuple[list[float], Any]:
    """Seconds of each repeat and the last result."""
    seconds: list[float] = []
    made: Any = None
    for _ in range(repeats):
        began = time.perf_counter()
        made = work()
        seconds.append(time.perf_counter() - began)
    return seconds, made


def by_cvxpy(arch: str, weights: Weights, sender: Any) -> None:
    """What the other process does: load cvxpy, say so, solve, send seconds and masses."""
    min_mass({name: array[:1] for name, array in drawn("optunet", 1).items()}, "optunet", engine="cvxpy")
    sender.send(None)
    began = time.perf_counter()
    made = min_mass(weights, arch, engine="cvxpy")
    sender.send((time.perf_counter() - began, made.mass_after))


def race(arch: str, many: int, few: int, limit: float, repeats: int) -> Race:
    """Both engines on one network."""
    weights = drawn(arch, many)
    seconds, made = timed(lambda: min_mass(weights, arch), repeats)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    chosen = {name: array[:few] for name, array in weights.items()}
    other = context.Process(target=by_cvxpy, args=(arch, chosen, sender), daemon=True)
    other.start()
    receiver.recv()
    found = receiver.recv() if receiver.poll(limit) else None
    if found is None:
        other.terminate()
    other.join()
    each = [taken / many for taken in seconds]
    if found is None:
        return Race(arch, (many, few), each, None, None)
    excess = float((found[1] / made.mass_after[:few]).max() - 1)
    return Race(arch, (many, few), each, found[0] / few, excess)


def depth(name: str, arch: Arch, weights: Weights, formulation: str, repeats: int) -> Depth:
    """Iterations, gap and time on one kind of network."""
    count = len(next(iter(weights.values())))

    def work() -> MinMass:
        return min_mass(weights, arch, formulation=formulation)

    seconds, made = timed(work, repeats)
    return Depth(
        name, formulation, int(made.iterations.max()), float(made.gap.max()), 1000 * statistics.median(seconds) / count
    )


def depths(count: int, repeats: int, advance: Callable[[], None]) -> list[Depth]:
    """Perceptrons and residual networks of growing depth, and ResNets in every formulation."""
    found: list[Depth] = []
    rng = np.random.default_rng(0)
    for layers in DEPTHS:
        arch = "mlp-32" + "-64" * (layers - 1) + "-10"
        found.append(depth(f"{layers} layers of 64", arch, drawn(arch, count), "pinned", repeats))
        advance()
    for blocks in BLOCKS:
        table, shapes = residual(blocks)
        weights = {name: rng.standard_normal((count, *shape)) for name, shape in shapes.items()}
        found.append(depth(f"{blocks} residual blocks of 32", table, weights, "pinned", repeats))
        advance()
    for arch in NORMALISED:
        weights = drawn(arch, min(count, 4))
        for formulation in FORMULATIONS:
            found.append(depth(arch, arch, weights, formulation, repeats))
            advance()
    return found


def figures(races: list[Race], resnets: tuple[int, list[float], list[float]]) -> Iterator[Figure]:
    """Seconds of both solvers, and of all ResNets."""
    for item in races:
        yield figure("networks", f"each of {item.networks[0]:,} {item.name}", "ckptzoo", item.newton, "s")
        if item.cvxpy is not None:
            row = f"each of {item.networks[0]:,} {item.name}"
            yield figure("networks", row, "cvxpy with Clarabel", [item.cvxpy], "s")
    count, seconds, _ = resnets
    yield figure("networks", f"{count} resnet18-100, all together", "ckptzoo", seconds, "s")


def show(
    console: Console, races: list[Race], resnets: tuple[int, list[float], list[float]], found: list[Depth]
) -> None:
    """The tables."""
    table = Table(title="beside cvxpy, milliseconds a network", title_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("solver", "cvxpy", "times", "cvxpy's mass"):
        table.add_column(column, justify="right")
    for item in races:
        other = "" if item.cvxpy is None else f"{1000 * item.cvxpy:,.1f}"
        ours = statistics.median(item.newton)
        times = "" if item.cvxpy is None else f"{item.cvxpy / ours:,.0f}"
        table.add_row(item.name, f"{1000 * ours:.4f}", other, times, item.verdict)
    console.print(table)
    count, seconds, plain = resnets
    pinned, scaled = statistics.median(seconds), statistics.median(plain)
    console.print(f"{count} x resnet18-100, pinned: {pinned:.2f} s (unit-norm {scaled:.2f} s)")
    table = Table(title="iterations over depth", title_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("formulation", "iterations", "gap", "ms a checkpoint"):
        table.add_column(column, justify="right")
    for entry in found:
        table.add_row(
            entry.name, entry.formulation, str(entry.iterations), f"{entry.gap:.0e}", f"{entry.milliseconds:.2f}"
        )
    console.print(table)


def _least(name: str, count: int, formulation: str = "pinned") -> Callable[[], object]:
    weights = drawn(name, count)
    return lambda: min_mass(weights, name, formulation=formulation)


TASKS: dict[str, Task] = {
    "min_mass of 1,024 optunet": lambda: _least("optunet", 1024),
    "min_mass of 4 resnet18-100": lambda: _least("resnet18-100", 4),
    "min_mass of 8 mlp-256-256-256-10": lambda: _least("mlp-256-256-256-10", 8),
    "min_mass of 4 resnet20-pad-10, volume": lambda: _least("resnet20-pad-10", 4, "volume"),
}
"""Timed with ``--beside``."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optunets", type=int, default=8192, help="checkpoints of optunet (8192)")
    parser.add_argument("--resnets", type=int, default=64, help="checkpoints of resnet18-100 (64)")
    parser.add_argument("--count", type=int, default=8, help="checkpoints of every other network (8)")
    parser.add_argument("--width", type=int, default=WIDTHS[-1], help=f"widest perceptron for cvxpy ({WIDTHS[-1]})")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that cvxpy has for a network (60)")
    parser.add_argument("--repeats", type=int, default=3, help="of the solver (3)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "mass.json", help="where figures go")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="time the tasks here and in another checkout")
    chosen = parser.parse_args()
    if min(chosen.optunets, chosen.resnets, chosen.count, chosen.width, chosen.repeats) < 1:
        parser.error("--optunets, --resnets, --count, --width and --repeats: expected more than 0.")
    return chosen


def main() -> None:
    """Measure, print the tables, write the figures."""
    chosen = arguments()
    if chosen.beside is not None:
        show_checkouts(
            compare(Path(__file__), list(TASKS), chosen.beside, chosen.repeats), chosen.beside, chosen.repeats
        )
        return
    console = Console()
    widths = [width for width in WIDTHS if width <= chosen.width]
    steps = 2 + len(widths) + len(DEPTHS) + len(BLOCKS) + len(NORMALISED) * len(FORMULATIONS)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("measuring", total=steps)

        def advance() -> None:
            progress.advance(task)

        found = depths(chosen.count, chosen.repeats, advance)
        races = [race("optunet", chosen.optunets, min(32, chosen.optunets), chosen.limit, chosen.repeats)]
        advance()
        for width in widths:
            arch = f"mlp-{width}-{width}-{width}-10"
            races.append(race(arch, chosen.count, 1, chosen.limit, chosen.repeats))
            advance()
            if races[-1].verdict != "agrees":
                break
        weights = drawn("resnet18-100", chosen.resnets)
        plain, _ = timed(lambda: canonicalize(weights, "resnet18-100", gauge="unit-norm"), chosen.repeats)
        seconds, _ = timed(lambda: min_mass(weights, "resnet18-100"), chosen.repeats)
        advance()
    resnets = chosen.resnets, seconds, plain
    show(console, races, resnets, found)
    facts = machine(ROOT)
    console.print(f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}, Python {facts['python']}")
    content = {
        "machine": facts,
        "races": [asdict(item) | {"verdict": item.verdict} for item in races],
        "resnets": {"checkpoints": chosen.resnets, "pinned_seconds": seconds, "unit_norm_seconds": plain},
        "depths": [asdict(item) for item in found],
    }
    write(chosen.json, list(figures(races, resnets)), content)
    console.print(f"Figures: {chosen.json}")


if __name__ == "__main__":
    main()
