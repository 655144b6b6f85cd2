"""Posterior methods on OptuNet: stacked modes beside one mode at a time, and beside a plain PyTorch loop.

Every contender takes real steps of the method on MNIST's recipe (or on the bundled digits without ``CKPTZOO_DATA``);
the plain loop is what a researcher would write: a torch module, autograd and torch.optim, one mode, one batch at a
time, its crops gathered from memory; one on all cores, and one a core in processes of one thread each. About three
minutes on two cores.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from benchmarks.figures import Figure, figure, ratios, turns, write
from builders import posterior, rng, sources
from builders.data_source import Feed
from builders.posterior.method import Method, Surroundings
from builders.posterior.sghmc import Sghmc
from builders.posterior.training import with_steps
from builders.recipe import Recipe
from builders.sources import Source
from builders.train import available_cores, open_trainer
from ckptzoo import archs
from ckptzoo.console import columns

ROOT = Path(__file__).resolve().parent.parent
METHODS = ("dropout", "swag", "bnn", "sghmc", "csghmc")
TORCH_ENGINE = "optunet"
TITLES = {
    "compiled": "stacked, compiled",
    "torch": "stacked, torch",
    "one": "one mode, torch",
    "plain": "a plain loop",
    "processes": "a plain loop a core",
}
Take = Callable[[int], float]
"""Takes a number of steps of every mode; returns member-steps a second."""


def stacked(method: Method, source: Source, engine: str, modes: int) -> Take:
    """Modes that advance together, as in a build."""

    def take(steps: int) -> float:
        with open_trainer(method.chain, source, engine=engine) as plain:
            surroundings = Surroundings(plain.data_source, source, engine)
            trainer = with_steps(plain, method, surroundings)
            state = method.start(surroundings, rng.member_keys(method.digest, range(modes)), None)
            trainer.advance(state, 2)
            began = time.perf_counter()
            trainer.advance(state, 2 + steps)
            return steps * modes / (time.perf_counter() - began)

    return take


def plain_loop(method: Method, source: Source) -> Take:
    """One mode in plain PyTorch, on all cores."""

    def take(steps: int) -> float:
        feed = sources.data_source(method.chain, source, "cpu")
        step = _plain_steps(method, feed)
        keys = rng.member_keys(method.digest, [0])
        began = time.perf_counter()
        for batch in feed.batches(keys, 0, steps):
            step(batch.inputs[0], batch.targets[0])
        return steps / (time.perf_counter() - began)

    return take


_held: dict[str, Any] = {}


def _hold(recipe: str) -> None:
    """Prepare a process of a pool."""
    torch.set_num_threads(1)
    _held["recipe"] = Recipe.load(recipe)
    _held["source"] = sources.load(_held["recipe"])


def _rate_of_held(name: str, steps: int) -> float:
    return plain_loop(posterior.get(name).load(_held["recipe"]), _held["source"])(steps)


def side_by_side(name: str, pool: ProcessPoolExecutor, number: int) -> Take:
    """A mode in each of the processes; the slowest counts."""
    return lambda steps: number * min(pool.map(_rate_of_held, [name] * number, [steps] * number))


def _plain_steps(method: Method, feed: Feed) -> Callable[[torch.Tensor, torch.Tensor], None]:
    recipe = method.recipe
    model = archs.get(recipe.architecture)()
    if isinstance(method, Sghmc):
        return _plain_sghmc(method, model)
    drop = nn.Dropout(method.chain.dropout)
    if method.chain.dropout:
        model.get_submodule("fc").register_forward_pre_hook(lambda module, inputs: (drop(inputs[0]),))
    optimiser = torch.optim.SGD(
        model.parameters(), recipe.learning_rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimiser.step()

    return step


def _plain_sghmc(method: Sghmc, model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Tensor by tensor, after burn-in, as public implementations have it."""
    count, step_size, friction = method.recipe.train, method.step_size, method.friction
    velocities = [torch.zeros_like(tensor) for tensor in model.parameters()]
    scales = [torch.ones_like(tensor) for tensor in model.parameters()]

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        model.zero_grad()
        (count * nn.functional.cross_entropy(model(inputs), targets)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e20)
        with torch.no_grad():
            for tensor, velocity, scale in zip(model.parameters(), velocities, scales, strict=True):
                assert tensor.grad is not None
                inverse = 1 / (scale.sqrt() + 1e-6)
                gradient = tensor.grad + 100 * tensor
                variance = (2 * step_size**2 * inverse * friction - step_size**4).clamp_min(1e-16)
                noise = torch.randn_like(tensor) * variance.sqrt()
                velocity.add_(-(step_size**2) * inverse * gradient - friction * velocity + noise)
                tensor.add_(velocity)

    return step


def measure(
    recipe: Recipe, source: Source, pool: ProcessPoolExecutor, chosen: argparse.Namespace
) -> list[dict[str, Any]]:
    """A row for each method, with member-steps a second of every contender."""
    rows: list[dict[str, Any]] = []
    for name in METHODS:
        method = posterior.get(name).load(recipe)
        contenders: dict[str, Take] = {
            "compiled": stacked(method, source, "compiled", chosen.modes),
            "torch": stacked(method, source, TORCH_ENGINE, chosen.modes),
            "one": stacked(method, source, TORCH_ENGINE, 1),
        }
        if name in ("dropout", "swag", "sghmc"):
            contenders["plain"] = plain_loop(method, source)
            contenders["processes"] = side_by_side(name, pool, available_cores())
        together = {"one": 1, "plain": 1, "processes": available_cores()}
        # as many steps as fit the time, by a first measurement of few
        steps = {
            key: max(8, round(chosen.seconds * take(8) / together.get(key, chosen.modes)))
            for key, take in contenders.items()
        }
        rates: dict[str, list[float]] = {key: [] for key in contenders}
        for key in turns(contenders, chosen.repeats):
            rates[key].append(contenders[key](steps[key]))
        rows.append({"method": name, "all": rates})
    return rows


def figures(rows: list[dict[str, Any]]) -> Iterator[Figure]:
    """Steps a second of every contender, and the ratios that the documentation names."""
    for row in rows:
        rates = row["all"]
        for key, title in TITLES.items():
            if key in rates:
                yield figure("rates", row["method"], title, rates[key], "steps")
    for row in rows:
        rates = row["all"]
        pairs = (("torch", "one"), ("compiled", "plain"), ("compiled", "processes"))
        for one, other in pairs:
            if other in rates:
                column = f"{TITLES[one]} over {TITLES[other]}"
                yield figure("ratios", row["method"], column, ratios(rates[one], rates[other]), "times")


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", type=int, default=30, help="modes that advance together (default 30)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement, about (default 2)")
    parser.add_argument("--repeats", type=int, default=3, help="of which the median is printed (default 3)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "posterior.json", help="where figures go")
    chosen = parser.parse_args()
    recipe = Recipe.load("mnist-optunet" if "CKPTZOO_DATA" in os.environ else "digits-optunet")
    source, console, cores = sources.load(recipe), Console(width=120), available_cores()
    with ProcessPoolExecutor(cores, get_context("spawn"), initializer=_hold, initargs=(recipe.name,)) as pool:
        list(pool.map(_rate_of_held, ["swag"] * cores, [1] * cores))
        rows = measure(recipe, source, pool, chosen)
    table = columns("method", *TITLES.values())
    for row in rows:
        medians = {key: statistics.median(values) for key, values in row["all"].items()}
        table.add_row(row["method"], *(f"{medians[key]:,.0f}" if key in medians else "" for key in TITLES))
    console.print(f"{recipe.name}, {chosen.modes} modes, {cores} cores: member-steps a second")
    console.print(table)
    write(chosen.json, list(figures(rows)), {"recipe": recipe.name, "modes": chosen.modes, "results": rows})


if __name__ == "__main__":
    main()
