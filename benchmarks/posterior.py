"""Posterior methods on OptuNet: stacked modes beside one mode at a time, and beside a plain PyTorch loop.

Every contender takes real steps of the method on MNIST's recipe (or on the bundled digits without ``CKPTZOO_DATA``);
the plain loop is what a researcher would write: a torch module, autograd and torch.optim, one mode, one batch at a
time, its crops gathered from memory. Repeats are interleaved and medians printed. About two minutes on two cores.
"""

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

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


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", type=int, default=30, help="modes that advance together (default 30)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement, about (default 2)")
    parser.add_argument("--repeats", type=int, default=3, help="of which the median is printed (default 3)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "posterior.json", help="where figures go")
    chosen = parser.parse_args()
    recipe = Recipe.load("mnist-optunet" if "CKPTZOO_DATA" in os.environ else "digits-optunet")
    source, console = sources.load(recipe), Console(width=110)
    table = columns(
        "method", "stacked, compiled", "stacked, torch", "one mode, torch", "plain PyTorch", "times 1", "times plain"
    )
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
        # as many steps as fit the time, by a first measurement of few
        steps = {
            key: max(8, round(chosen.seconds * take(8) / (1 if key in ("one", "plain") else chosen.modes)))
            for key, take in contenders.items()
        }
        rates: dict[str, list[float]] = {key: [] for key in contenders}
        for _ in range(chosen.repeats):
            for key, take in contenders.items():
                rates[key].append(take(steps[key]))
        medians = {key: statistics.median(values) for key, values in rates.items()}
        rows.append({"method": name, "member_steps_per_second": medians, "all": rates})
        plain = medians.get("plain", math.nan)
        table.add_row(
            name,
            *(f"{medians[key]:,.0f}" for key in ("compiled", "torch", "one")),
            "" if math.isnan(plain) else f"{plain:,.0f}",
            f"{medians['torch'] / medians['one']:.1f}",
            "" if math.isnan(plain) else f"{medians['compiled'] / plain:.0f}",
        )
    console.print(f"{recipe.name}, {chosen.modes} modes, {available_cores()} cores: member-steps a second")
    console.print(table)
    console.print("times 1: stacked over one mode at a time, both in torch; times plain: compiled over the plain loop")
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps({"recipe": recipe.name, "modes": chosen.modes, "results": rows}, indent=2))


if __name__ == "__main__":
    main()
