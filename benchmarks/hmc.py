"""Steps of the builder's Hamiltonian Monte Carlo beside bare blackjax, on the same density of an MLP 196-16-10.

Everyone takes transitions of a fixed number of leapfrog steps on the same 1,000 examples, from the same weights, with
the same step size and mass matrix, after compiling. Bare blackjax is its documented loop, ``jax.lax.scan`` over
``blackjax.hmc(...).step``, with all chains in one ``vmap``, and chain by chain. Repeats are interleaved; medians
are printed, and the least times, to which other work on the machine adds least and by which the aim is judged. The time
of a gradient is that of all chains together, divided by chains and leapfrog steps. Half a minute on two cores.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, figure, machine, ratios, turns, write
from builders import posterior, rng, sources
from builders.posterior.log_density import examples_last, log_density
from builders.posterior.method import Method, Surroundings
from builders.posterior.training import with_steps
from builders.recipe import GaussianRecipe
from builders.sources import Source
from builders.train import available_cores, choose_engine, open_trainer

ROOT = Path(__file__).resolve().parent.parent
AIM = 1.05
"""Of the time of bare blackjax."""
Take = Callable[[int], float]
"""Takes a number of transitions of every chain; returns the seconds."""


def method_of(examples: int, leapfrogs: int) -> Method:
    """Transitions without adaptation, on ten classes of points: what the inputs are does not change the time."""
    centres = tuple(map(tuple, np.random.default_rng(0).normal(size=(10, 196)).round(3).tolist()))
    recipe = GaussianRecipe(
        name="classes",
        architecture="mlp-196-16-10",
        dataset="ten-gaussians",
        centres=centres,
        data_seed=0,
        train=examples,
        test=10,
        epochs=1,
        batch=examples,
        learning_rate=0.1,
        momentum=0.0,
        weight_decay=0.0,
        milestones=(),
        factor=1.0,
    )
    changes = {"burn_in": 0, "least_leapfrogs": leapfrogs, "most_leapfrogs": leapfrogs}
    return posterior.get("hmc").load(recipe, None, changes)


def of_builder(method: Method, source: Source, chains: int) -> Take:
    """The steps that a build takes."""

    def take(transitions: int) -> float:
        engine = choose_engine(method.chain, "cpu")
        with open_trainer(method.chain, source, engine=engine) as plain:
            surroundings = Surroundings(plain.data_source, source, engine)
            trainer = with_steps(plain, method, surroundings)
            state = method.start(surroundings, rng.member_keys(method.digest, range(chains)), None)
            trainer.advance(state, 1)
            began = time.perf_counter()
            trainer.advance(state, 1 + transitions)
            return time.perf_counter() - began

    return take


def of_blackjax(method: Method, source: Source, chains: int, together: bool) -> Take:
    """The loop of blackjax's documentation."""
    recipe, settings = method.recipe, method.settings
    inputs = sources.train_inputs(recipe, source, 0, recipe.train)
    examples = examples_last(recipe, inputs, source.half("train")[1])
    surroundings = Surroundings(sources.data_source(method.chain, source, "cpu"), source, "")
    state = method.start(surroundings, rng.member_keys(method.digest, range(chains)), None)
    starts = state.extra["hmc.position"].numpy()

    def run(key: Any, position: Any, count: int, inputs: Any, targets: Any) -> Any:
        density = log_density(recipe, settings["prior"], settings["temperature"], inputs, targets)
        sampler = blackjax.hmc(density, settings["step_size"], jnp.ones(len(position)), settings["most_leapfrogs"])

        def transition(state: Any, key: Any) -> tuple[Any, None]:
            return sampler.step(key, state)[0], None

        return jax.lax.scan(transition, sampler.init(position), jax.random.split(key, count))[0]

    one = jax.jit(run, static_argnums=2)
    every = jax.jit(jax.vmap(run, in_axes=(0, 0, None, None, None)), static_argnums=2)

    def take(transitions: int) -> float:
        with jax.enable_x64(True):
            given, keys = list(map(jnp.asarray, examples)), jax.random.split(jax.random.key(0), chains)

            def go() -> Any:
                if together:
                    return every(keys, starts, transitions, *given)
                return [one(key, start, transitions, *given) for key, start in zip(keys, starts, strict=True)]

            jax.block_until_ready(go())
            began = time.perf_counter()
            jax.block_until_ready(go())
            return time.perf_counter() - began

    return take


def main() -> None:
    """Measure, print the table, and write JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, nargs="*", default=[1, 4], help="how many (default 1 and 4)")
    parser.add_argument("--examples", type=int, default=1000, help="of the training set (default 1,000)")
    parser.add_argument("--leapfrogs", type=int, default=100, help="of a transition (default 100)")
    parser.add_argument("--transitions", type=int, default=20, help="that are timed (default 20)")
    parser.add_argument("--repeats", type=int, default=5, help="of which the median is printed (default 5)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "hmc.json", help="where figures go")
    chosen = parser.parse_args()
    method = method_of(chosen.examples, chosen.leapfrogs)
    rows, figures = list[dict[str, Any]](), list[Figure]()
    source = sources.load(method.recipe)
    title = f"{method.recipe.architecture}, {chosen.examples:,} examples, {available_cores()} cores"
    table = Table(box=SIMPLE_HEAD, title=title)
    for column in ("chains", "contender", "ms a gradient and chain", "the least", "builder's least over this"):
        table.add_column(column, justify="left" if column == "contender" else "right")
    for chains in chosen.chains:
        contenders = {
            "builder": of_builder(method, source, chains),
            "blackjax, vmap": of_blackjax(method, source, chains, together=True),
            "blackjax, one by one": of_blackjax(method, source, chains, together=False),
        }
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for name in turns(contenders, chosen.repeats):
            seconds[name].append(contenders[name](chosen.transitions))
        gradients = chains * chosen.transitions * chosen.leapfrogs
        least = {name: min(taken) for name, taken in seconds.items()}
        for name, taken in seconds.items():
            median, ratio = statistics.median(taken), least["builder"] / least[name]
            cells = (f"{1e3 * median / gradients:.3f}", f"{1e3 * least[name] / gradients:.3f}", f"{ratio:.2f}")
            table.add_row(f"{chains}", name, *cells)
            rows.append({"chains": chains, "contender": name, "gradient_seconds": median / gradients, "all": taken})
            title = f"{chains} chain{'s' * (chains > 1)}"
            figures.append(figure("gradient", title, name, [one / gradients for one in taken], "s"))
            if name != "builder":
                compared = ratios(seconds["builder"], taken)
                figures.append(figure("gradient", title, f"builder over {name}", compared, "times"))
        best = min(taken for name, taken in least.items() if name != "builder")
        reached = "reached" if least["builder"] <= AIM * best else "missed"
        table.add_row("", f"aim, at most {AIM:.2f}: {reached}", "", "", f"{least['builder'] / best:.2f}")
    Console(width=110).print(table)
    write(chosen.json, figures, {"machine": machine(ROOT), "rows": rows})


if __name__ == "__main__":
    main()
