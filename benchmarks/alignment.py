"""Alignment with a reference: ckptzoo beside a plain loop with scipy.

The plain loop is git re-basin's algorithm (arXiv 2209.04836, algorithm 1): groups in random order, from the order that
the network has, each assigned on the whole network permuted so far, until none improves; for OptuNets both orders of
the blocks, member by member. OptuNets are those of the card where its weights are there, other networks random.
Repeats are interleaved, medians are printed, with the value that was reached as a share of the best: weights that fit
better have a greater one.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scipy.optimize import linear_sum_assignment

import ckptzoo
from benchmarks.layers_report import machine
from ckptzoo import archs
from ckptzoo.schema.symmetry import Like, Symmetry
from ckptzoo.symmetry import GroupElement, align, apply, barycentre
from ckptzoo.symmetry.arrays import by_channel, positions

ROOT = Path(__file__).resolve().parent.parent
Weights = dict[str, np.ndarray]
Contender = Callable[[Weights, Weights], Weights]


def random_weights(name: str, count: int, seed: int) -> Weights:
    """(count, *shape) normal weights over the root of the fan-in."""
    rng, made = np.random.default_rng(seed), Weights()
    for tensor in archs.architecture(name).tensors:
        shape = (count, *tensor.shape)
        if not tensor.dtype.startswith("float"):
            made[tensor.name] = np.zeros(shape, np.int64)
            continue
        array = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(max(1, np.prod(tensor.shape[1:]))))
        made[tensor.name] = np.abs(array) + np.float32(0.5) if tensor.name.endswith("running_var") else array
    return made


def optunet_loop(weights: Weights, reference: Weights) -> Weights:
    """Member by member: each block with each, by scipy, then the better order of the blocks."""
    table, K = archs.symmetry("optunet"), len(weights["fc.bias"])
    element = GroupElement.identity(table, K)
    for k in range(K):
        values, inside = np.zeros((2, 2)), np.zeros((2, 2, 5), np.int64)
        for a in range(2):
            for b in range(2):
                ours, theirs = slice(5 * b, 5 * b + 5), slice(5 * a, 5 * a + 5)
                gain = (
                    reference["conv2.weight"][theirs].reshape(5, -1) @ weights["conv2.weight"][k, ours].reshape(5, -1).T
                )
                gain += reference["fc.weight"][:, theirs].T @ weights["fc.weight"][k][:, ours]
                inside[a, b] = linear_sum_assignment(gain, maximize=True)[1]
                values[a, b] = gain[np.arange(5), inside[a, b]].sum()
                values[a, b] += float(np.vdot(reference["conv1.weight"][a], weights["conv1.weight"][k, b]))
        order = (0, 1) if values[0, 0] + values[1, 1] >= values[0, 1] + values[1, 0] else (1, 0)
        element.perms["conv1"][k] = order
        element.perms["conv2"][k] = np.concatenate([5 * b + inside[a, b] for a, b in enumerate(order)])
    return apply(element, weights, table)


def plain_loop(name: str) -> Contender:
    """Git re-basin's algorithm for a network of symmetric groups, member by member."""
    table = archs.symmetry(name)
    counted = [item for item in table.actions if item.role not in ("mean", "variance")]

    def aligned(weights: Weights, reference: Weights) -> Weights:
        element, rng = GroupElement.identity(table, 1), np.random.default_rng(0)
        leaders = [group.id for group in table.groups if not isinstance(group.perm, Like)]
        improved = True
        while improved:
            improved = False
            for leader in rng.permutation(leaders):
                own = [group.id for group in table.groups if table.leader(group.id).id == leader]
                still = {**element.perms, **{name: np.arange(table[name].n)[None] for name in own}}
                moved = apply(GroupElement(still, element.scales), weights, table)
                gain = sum(_gain(item, own, reference, moved, table) for item in counted)
                before, found = element.perms[leader][0], linear_sum_assignment(gain, maximize=True)[1]
                rows = np.arange(len(found))
                if gain[rows, found].sum() > gain[rows, before].sum() * (1 + 1e-6):
                    improved = True
                    for group in own:
                        element.perms[group][0] = found
        return apply(element, weights, table)

    return aligned


def _gain(action: Any, own: list[str], reference: Weights, moved: Weights, table: Symmetry) -> np.ndarray | float:
    total: np.ndarray | float = 0.0
    for group, places in positions(action, table):
        if group in own:
            sides = [by_channel(array, action) for array in (reference[action.tensor][None], moved[action.tensor])]
            one, other = (side[0].reshape(side.shape[2], -1)[places].reshape(len(places), -1) for side in sides)
            total = total + one @ other.T
    return total


def value(weights: Weights, reference: Weights) -> float:
    """The mean inner product with the reference, over floats but running statistics."""
    names = [name for name in reference if reference[name].dtype.kind == "f" and "running" not in name]
    total = sum(float(np.vdot(np.broadcast_to(reference[name], weights[name].shape), weights[name])) for name in names)
    return total / len(weights[names[0]])


def race(name: str, count: int, repeats: int) -> list[dict[str, Any]]:
    """Every contender on one task; the first repeat warms up."""
    if name == "optunet":
        zoo = ckptzoo.open(ROOT / "cards" / "mnist-optunet") if count <= 2048 else None
        trained = zoo is not None and "raw" in zoo.variants
        weights = (
            {key: np.asarray(zoo[key])[:count] for key in zoo.arch.names}
            if trained and zoo
            else random_weights(name, count, 0)
        )
        reference = {key: array[0] for key, array in weights.items()}
    else:
        weights, reference = random_weights(name, count, 0), {k: v[0] for k, v in random_weights(name, 1, 1).items()}
    contenders: dict[str, Contender] = {"ckptzoo": lambda ours, theirs: align(ours, theirs, name).weights}
    contenders["plain loop"] = optunet_loop if name == "optunet" else plain_loop(name)
    seconds: dict[str, list[float]] = {key: [] for key in contenders}
    values: dict[str, float] = {}
    for repeat in range(repeats + 1):
        for key, contender in contenders.items():
            started = time.perf_counter()
            made = contender(weights, reference)
            if repeat or repeats == 1:
                seconds[key].append(time.perf_counter() - started)
            values[key] = value(made, reference)
    best = max(values.values())
    return [
        {
            "task": name,
            "networks": count,
            "contender": key,
            "seconds": statistics.median(taken),
            "value": values[key] / best,
        }
        for key, taken in seconds.items()
    ]


def mean_of_many(count: int) -> list[dict[str, Any]]:
    """The barycentre of perceptrons."""
    name = "mlp-784-64-10"
    weights = random_weights(name, count, 0)
    started = time.perf_counter()
    found = barycentre(lambda: [weights], name)
    taken = time.perf_counter() - started
    return [
        {
            "task": f"barycentre of {name}",
            "networks": count,
            "contender": "ckptzoo",
            "seconds": taken,
            "passes": len(found.objective),
        }
    ]


def main() -> None:
    """Measure, print the table, and write JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optunets", type=int, default=2048)
    parser.add_argument("--networks", nargs="*", default=["mlp-784-512-10", "resnet20-pad-10", "resnet18-100"])
    parser.add_argument("--members", type=int, default=16, help="of the barycentre")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "alignment.json")
    chosen = parser.parse_args()
    console, rows = Console(), race("optunet", chosen.optunets, chosen.repeats)
    for name in chosen.networks:
        rows += race(name, 1, chosen.repeats)
    rows += mean_of_many(chosen.members)
    table = Table(box=SIMPLE_HEAD, title="alignment with one reference")
    for column in ("task", "networks", "contender", "ms", "value, best 1"):
        table.add_column(column, justify="left" if column in ("task", "contender") else "right")
    for row in rows:
        reached = f"{row['value']:.4f}" if "value" in row else ""
        table.add_row(row["task"], f"{row['networks']:,}", row["contender"], f"{1e3 * row['seconds']:,.1f}", reached)
    console.print(table)
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps({"machine": machine(ROOT), "rows": rows}, indent=2, allow_nan=False))


if __name__ == "__main__":
    main()
