"""Alignment with a reference: ckptzoo beside a plain loop with scipy, and beside rebasin where it is installed.

The plain loop is git re-basin's algorithm (arXiv 2209.04836, algorithm 1): groups in random order, from the order that
the network has, each assigned on the whole network permuted so far, until none improves; for OptuNets both orders of
the blocks, member by member. rebasin (``pip install rebasin``) is the package of that name, without OptuNet, whose
grouped convolutions it permutes to another function. The barycentre of many stands beside Frank-Wolfe on doubly
stochastic matrices, the algorithm of C2M3 (arXiv 2405.17897), for perceptrons with one hidden layer. OptuNets are
those of the card where its weights are there, other networks random. Repeats are interleaved, medians are printed,
with the value that was reached as a share of the best: weights that fit better have a greater one.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scipy.optimize import linear_sum_assignment

import ckptzoo
from benchmarks.checkouts import Task, compare, show
from benchmarks.figures import Figure, figure, machine, turns, write
from ckptzoo import archs
from ckptzoo.schema.groups import Like
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, align, apply, barycentre
from ckptzoo.symmetry.arrays import by_channel, positions

ROOT = Path(__file__).resolve().parent.parent
_BARYCENTRE = "barycentre of "
Weights = dict[str, np.ndarray]
Contender = Callable[[Weights, Weights], Weights]


def random_weights(name: str, count: int, seed: int) -> Weights:
    """(count, *shape) normal weights over the root of the fan-in; small biases, and gains around 1."""
    rng, made = np.random.default_rng(seed), Weights()
    for tensor in archs.architecture(name).tensors:
        shape = (count, *tensor.shape)
        if not tensor.dtype.startswith("float"):
            made[tensor.name] = np.zeros(shape, np.int64)
            continue
        array = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(max(1, np.prod(tensor.shape[1:]))))
        if tensor.name.endswith("running_var"):
            array = np.abs(array) + np.float32(0.5)
        elif len(tensor.shape) == 1:
            array = array * np.float32(0.05) + np.float32(tensor.name.endswith(".weight"))
        made[tensor.name] = array
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


def rebasin(name: str) -> Contender | None:
    """The package rebasin, for one network; None where it is not installed."""
    if find_spec("rebasin") is None:
        return None
    import torch
    from rebasin import PermutationCoordinateDescent  # pyright: ignore[reportMissingImports]

    shape = archs.architecture(name).input_shape
    assert shape is not None

    def aligned(weights: Weights, reference: Weights) -> Weights:
        networks: list[Any] = []
        for given in (reference, {key: array[0] for key, array in weights.items()}):
            networks.append(archs.get(name)().eval())
            networks[-1].load_state_dict({key: torch.tensor(array) for key, array in given.items()})
        PermutationCoordinateDescent(*networks, torch.zeros(2, *shape)).rebasin()
        return {key: tensor.numpy()[None] for key, tensor in networks[1].state_dict().items()}

    return aligned


def frank_wolfe(weights: Weights, steps: int = 100) -> Weights:
    """Perceptrons with one hidden layer permuted by the algorithm of C2M3, with sums in place of its loops over pairs.

    The sum of all products of pairs is maximised over doubly stochastic matrices: each step goes towards the
    permutations that the gradient names, as far as the objective, quadratic on that line, is best. Assignments of
    where it ends are the result.
    """
    units = np.concatenate(
        [weights["fc1.weight"], weights["fc1.bias"][..., None], weights["fc2.weight"].swapaxes(1, 2)], 2
    )
    K, n = units.shape[:2]
    rows, matrices = np.arange(n), np.broadcast_to(np.eye(n), (K, n, n)).copy()

    def permutations_of(gains: np.ndarray) -> np.ndarray:
        found = np.zeros_like(matrices)
        for k, gain in enumerate(gains):
            found[k, rows, linear_sum_assignment(gain, maximize=True)[1]] = 1
        return found

    before = -np.inf
    for _ in range(steps):
        moved = matrices @ units
        total = moved.sum(0)
        value = (np.square(total).sum() - np.square(moved).sum()) / 2
        if value - before <= 1e-6 * abs(value):
            break
        before = value
        gains = (total - moved) @ units.swapaxes(1, 2)
        direction = permutations_of(gains) - matrices
        change = direction @ units
        slope = float((gains * direction).sum())
        curvature = float(np.square(change.sum(0)).sum() - np.square(change).sum())
        length = 1.0 if curvature >= 0 else min(1.0, -slope / curvature)
        matrices = matrices + length * direction
    orders = permutations_of(matrices).argmax(2)
    made = {key: weights[key][np.arange(K)[:, None], orders] for key in ("fc1.weight", "fc1.bias")}
    made["fc2.weight"] = np.take_along_axis(weights["fc2.weight"], orders[:, None], 2)
    return {**weights, **made}


def pair_sum(weights: Weights) -> float:
    """The sum of the inner products of all pairs, in float64: what a barycentre maximises."""
    total = 0.0
    for array in weights.values():
        flat = array.reshape(len(array), -1).astype(np.float64)
        total += float(np.square(flat.sum(0)).sum() - np.square(flat).sum()) / 2
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
    if name != "optunet" and (peer := rebasin(name)) is not None:
        contenders["rebasin"] = peer
    seconds: dict[str, list[float]] = {key: [] for key in contenders}
    values: dict[str, float] = {}
    for contender in contenders.values():
        contender(weights, reference)  # compiles, and fills caches
    for key in turns(contenders, repeats):
        started = time.perf_counter()
        made = contenders[key](weights, reference)
        seconds[key].append(time.perf_counter() - started)
        values[key] = value(made, reference)
    best = max(values.values())
    return [
        {
            "task": name,
            "networks": count,
            "contender": key,
            "seconds": statistics.median(taken),
            "all": taken,
            "value": values[key] / best,
        }
        for key, taken in seconds.items()
    ]


def mean_of_many(count: int, repeats: int) -> list[dict[str, Any]]:
    """The barycentre of perceptrons."""
    name = "mlp-784-64-10"
    weights = random_weights(name, count, 0)
    contenders: dict[str, Callable[[], Weights]] = {
        "ckptzoo": lambda: apply(barycentre(lambda: [weights], name).element, weights, archs.symmetry(name)),
        "Frank-Wolfe": lambda: frank_wolfe(weights),
    }
    seconds: dict[str, list[float]] = {key: [] for key in contenders}
    values: dict[str, float] = {}
    for key in turns(contenders, repeats):
        started = time.perf_counter()
        made = contenders[key]()
        seconds[key].append(time.perf_counter() - started)
        values[key] = pair_sum(made)
    best = max(values.values())
    return [
        {
            "task": f"{_BARYCENTRE}{name}",
            "networks": count,
            "contender": key,
            "seconds": statistics.median(taken),
            "all": taken,
            "value": values[key] / best,
        }
        for key, taken in seconds.items()
    ]


def _aligned(name: str, count: int) -> Callable[[], object]:
    weights, reference = random_weights(name, count, 0), {k: v[0] for k, v in random_weights(name, 1, 1).items()}
    return lambda: align(weights, reference, name)


def _averaged(name: str, count: int) -> Callable[[], object]:
    weights = random_weights(name, count, 0)
    return lambda: barycentre(lambda: [weights], name)


TASKS: dict[str, Task] = {
    "align 2,048 optunet": lambda: _aligned("optunet", 2048),
    "align mlp-784-512-10": lambda: _aligned("mlp-784-512-10", 1),
    "align resnet20-pad-10": lambda: _aligned("resnet20-pad-10", 1),
    "align resnet18-100": lambda: _aligned("resnet18-100", 1),
    "barycentre of 16 mlp-784-64-10": lambda: _averaged("mlp-784-64-10", 16),
}
"""Timed with ``--beside``."""


def figures(rows: list[dict[str, Any]]) -> Iterator[Figure]:
    """Seconds, and the values that were reached."""
    for row in rows:
        yield figure("alignment", _title(row), row["contender"], row["all"], "s")
    for row in rows:
        yield figure("values", _title(row), row["contender"], [row["value"]], "of the best")


def _title(row: dict[str, Any]) -> str:
    many, task = f"{row['networks']:,} ", row["task"]
    if task.startswith(_BARYCENTRE):
        return f"{_BARYCENTRE}{many}{task.removeprefix(_BARYCENTRE)}"
    return f"{many}{task}" if row["networks"] > 1 else task


def main() -> None:
    """Measure, print the table, and write JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optunets", type=int, default=2048)
    parser.add_argument("--networks", nargs="*", default=["mlp-784-512-10", "resnet20-pad-10", "resnet18-100"])
    parser.add_argument("--members", type=int, default=16, help="of the barycentre")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "alignment.json")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="time the tasks here and in another checkout")
    chosen = parser.parse_args()
    if chosen.beside is not None:
        show(compare(Path(__file__), list(TASKS), chosen.beside, chosen.repeats), chosen.beside, chosen.repeats)
        return
    console, rows = Console(), race("optunet", chosen.optunets, chosen.repeats)
    for name in chosen.networks:
        rows += race(name, 1, chosen.repeats)
    rows += mean_of_many(chosen.members, chosen.repeats)
    table = Table(box=SIMPLE_HEAD, title="alignment with one reference")
    for column in ("task", "networks", "contender", "ms", "value, best 1"):
        table.add_column(column, justify="left" if column in ("task", "contender") else "right")
    for row in rows:
        reached = f"{row['value']:.4f}" if "value" in row else ""
        table.add_row(row["task"], f"{row['networks']:,}", row["contender"], f"{1e3 * row['seconds']:,.1f}", reached)
    console.print(table)
    write(chosen.json, list(figures(rows)), {"machine": machine(ROOT), "rows": rows})


if __name__ == "__main__":
    main()
