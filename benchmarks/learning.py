"""Streams of augmented weights beside the way in which DWSNets load them, on one thread.

Networks 784-64-64-10 are permuted, with and without scales, in batches of 64; OptuNets, permuted and scaled, in
batches of 512. DWSNets' way (Navon et al., arXiv 2301.12780; https://github.com/AvivNavon/DWSNets,
experiments/data.py, ``INRDataset``) takes one network at a time: it loads the state dict's file with ``torch.load``,
permutes lists of weights with ``torch.randperm`` and collates; of its augmentations the positive scales alone. A second
row has it with all state dicts in memory. Where torch_geometric is installed (extra ``graphs``), graphs are measured
beside its batches (``benchmarks/learning_graphs.py``). Repeats are interleaved; medians are printed.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, Dataset

import ckptzoo
from benchmarks.figures import figure, machine, turns, write
from ckptzoo import archs, learning
from ckptzoo.derive import declare
from ckptzoo.learning.augment import ElementDraw, element_keys, id_hashes

ROOT = Path(__file__).resolve().parent.parent
MLP, OPTUNET = "mlp-784-64-64-10", "optunet"
SCALES = 0.3
AIMS = {"permuted": 6.0, "permuted and scaled": 4.0}
"""Times DWSNets' way."""
OPTUNETS_A_SECOND = 60_000.0
DRAWING = 0.1
"""The largest share of the time that group elements take to be drawn."""
State = dict[str, torch.Tensor]


class OneByOne(Dataset[Any]):
    """A network an item, as DWSNets take them: lists of transposed weights with an axis of features."""

    def __init__(self, states: Sequence[State | Path], scales: float) -> None:
        self.states, self.scales = states, scales

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, item: int) -> tuple[list[torch.Tensor], list[torch.Tensor], int]:
        held = self.states[item]
        state: State = torch.load(held, weights_only=True) if isinstance(held, Path) else held
        weights = [value.permute(1, 0) for name, value in state.items() if "weight" in name]
        biases = [value for name, value in state.items() if "bias" in name]
        if self.scales:
            weights, biases = scaled(weights, biases, self.scales)
        weights = [value.unsqueeze(-1) for value in weights]
        biases = [value.unsqueeze(-1) for value in biases]
        return *permuted(weights, biases), 0


def scaled(
    weights: list[torch.Tensor], biases: list[torch.Tensor], spread: float
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Positive scales of hidden channels, drawn for one network."""
    weights, biases = list(weights), list(biases)
    for at in range(len(weights) - 1):
        drawn = np.random.default_rng().uniform(1 - spread, 1 + spread, len(biases[at])).astype(np.float32)
        scale = torch.from_numpy(drawn)
        weights[at], biases[at] = weights[at] * scale, biases[at] * scale
        weights[at + 1] = (weights[at + 1].T * (1 / scale)).T
    return weights, biases


def permuted(weights: list[torch.Tensor], biases: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Random permutations of hidden channels, drawn for one network."""
    orders = [torch.randperm(weight.shape[1]) for weight in weights[:-1]]
    for at, order in enumerate(orders):
        weights[at], biases[at] = weights[at][:, order], biases[at][order]
        weights[at + 1] = weights[at + 1][order]
    return weights, biases


def seconds_of(batches: Iterable[Any]) -> float:
    """Until all batches were there."""
    began = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - began


def made_zoo(folder: Path, arch: str, members: int) -> ckptzoo.Zoo:
    """A zoo of random networks."""
    rng = np.random.default_rng(0)
    with ckptzoo.create(folder, arch=archs.architecture(arch)) as writer:
        for start in range(0, members, 1024):
            count = min(1024, members - start)
            shapes = {tensor.name: tensor.shape for tensor in archs.architecture(arch).tensors}
            weights = {name: rng.standard_normal((count, *shape), np.float32) for name, shape in shapes.items()}
            writer.add(weights, [{"id": f"net-{start + number}", "test_accuracy": 0.5} for number in range(count)])
    declare(folder, archs.symmetry(arch))
    return ckptzoo.open(folder)


def drawing(zoo: ckptzoo.Zoo, augment: learning.Augment, batch_size: int) -> float:
    """Seconds in which the elements of one epoch are drawn."""
    assert zoo.symmetry is not None
    draw, hashes = ElementDraw.of(zoo.symmetry, augment), id_hashes(zoo.ids)
    began = time.perf_counter()
    for start in range(0, len(zoo), batch_size):
        draw(element_keys(hashes[start : start + batch_size], 0, 0, 0))
    return time.perf_counter() - began


def measure(mlps: int, optunets: int, repeats: int, folder: Path) -> list[dict[str, Any]]:
    """A row for each contender, with networks a second."""
    large, small = made_zoo(folder / "mlp", MLP, mlps), made_zoo(folder / "optunet", OPTUNET, optunets)
    stacks = {name: torch.from_numpy(large[name][:].copy()) for name in large.arch.names}
    states = [{name: value[at] for name, value in stacks.items()} for at in range(mlps)]
    files = [folder / f"net{at}.pth" for at in range(mlps)]
    for path, state in zip(files, states, strict=True):
        torch.save({name: value.clone() for name, value in state.items()}, path)
    plain, both = learning.Augment(), learning.Augment(scales=SCALES)
    orbit = learning.statistics(large, per="orbit")

    def streamed(zoo: ckptzoo.Zoo, batch_size: int, **options: Any) -> Callable[[], Iterable[Any]]:
        return lambda: learning.stream(zoo, target="test_accuracy", batch_size=batch_size, device="cpu", **options)

    def one_by_one(networks: Sequence[State | Path], scales: float) -> Callable[[], Iterable[Any]]:
        return lambda: DataLoader(OneByOne(networks, scales), batch_size=64, shuffle=True)

    contenders: dict[str, tuple[int, Callable[[], Iterable[Any]]]] = {
        f"{MLP}, permuted, DWSNets' way": (mlps, one_by_one(files, 0.0)),
        f"{MLP}, permuted, DWSNets' way in memory": (mlps, one_by_one(states, 0.0)),
        f"{MLP}, permuted": (mlps, streamed(large, 64, augment=plain)),
        f"{MLP}, permuted and scaled, DWSNets' way": (mlps, one_by_one(files, SCALES)),
        f"{MLP}, permuted and scaled, DWSNets' way in memory": (mlps, one_by_one(states, SCALES)),
        f"{MLP}, permuted and scaled": (mlps, streamed(large, 64, augment=both)),
        f"{MLP}, permuted, scaled and standardised": (
            mlps,
            streamed(large, 64, augment=both, standardize=orbit),
        ),
        f"{MLP}, as stored": (mlps, streamed(large, 64)),
        f"{OPTUNET}, permuted and scaled": (optunets, streamed(small, 512, augment=both)),
        f"{OPTUNET}, as stored": (optunets, streamed(small, 512)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    drawn: dict[str, list[float]] = {name: [] for name in contenders}
    for name in turns(contenders, repeats):
        seconds[name].append(seconds_of(contenders[name][1]()))
    for _ in range(repeats):
        drawn[f"{MLP}, permuted"].append(drawing(large, plain, 64))
        drawn[f"{MLP}, permuted and scaled"].append(drawing(large, both, 64))
        drawn[f"{OPTUNET}, permuted and scaled"].append(drawing(small, both, 512))
    return [
        {
            "contender": name,
            "seconds": seconds[name],
            "networks": count,
            "networks_a_second": count / statistics.median(seconds[name]),
            "drawing": statistics.median(drawn[name]) / statistics.median(seconds[name]) if drawn[name] else None,
        }
        for name, (count, _) in contenders.items()
    ]


def aims(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was aimed at and what was reached."""
    rates = {row["contender"]: row["networks_a_second"] for row in rows}
    found = [
        {
            "aim": f"{what}, times {other}",
            "wanted": wanted,
            "got": rates[f"{MLP}, {what}"] / rates[f"{MLP}, {what}, {other}"],
        }
        for what, wanted in AIMS.items()
        for other in ("DWSNets' way", "DWSNets' way in memory")
    ]
    name = f"{OPTUNET}, permuted and scaled"
    found.append({"aim": f"{name}, a second", "wanted": OPTUNETS_A_SECOND, "got": rates[name]})
    share = max(row["drawing"] for row in rows if row["drawing"] is not None)
    return [*found, {"aim": "largest share of drawing elements", "wanted": DRAWING, "got": share}]


def main() -> None:
    """Measure, print the tables, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mlps", type=int, default=1024, help=f"networks {MLP} (1024)")
    parser.add_argument("--optunets", type=int, default=32_768, help="OptuNets (32768)")
    parser.add_argument("--graph-batches", type=int, default=4, help="batches of graphs, 64 networks each (4)")
    parser.add_argument("--repeats", type=int, default=5, help="of each contender (5)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "learning.json", help="where figures go")
    chosen = parser.parse_args()
    if min(chosen.mlps, chosen.optunets, chosen.graph_batches, chosen.repeats) < 1:
        parser.error("--mlps, --optunets, --graph-batches and --repeats: expected more than 0.")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(chosen.mlps, chosen.optunets, chosen.repeats, Path(folder))
    reached, facts, console = aims(rows), machine(ROOT), Console()
    if find_spec("torch_geometric") is None:
        console.print("torch_geometric is not installed: no graphs are measured (pip install 'ckptzoo[graphs]').")
    else:
        from benchmarks import learning_graphs

        graphs = learning_graphs.measure(chosen.graph_batches, chosen.repeats)
        rows, reached = rows + graphs, [*reached, learning_graphs.aim(graphs)]
    table = Table(title="Streams of augmented weights", box=SIMPLE_HEAD)
    for column in ("contender", "networks a second", "of it drawing"):
        table.add_column(column, justify="left" if column == "contender" else "right")
    for row in rows:
        share = "" if row["drawing"] is None else f"{row['drawing']:.1%}"
        table.add_row(row["contender"], f"{row['networks_a_second']:,.0f}", share)
    console.print(table)
    for row in reached:
        console.print(f"{row['aim']}: {row['got']:,.3g} (aim {row['wanted']:,.3g})")
    console.print(f"{facts['cpu']}, {facts['cores']} cores, torch {torch.__version__}")
    column = "networks a second"
    figures = [
        figure("streams", row["contender"], column, [row["networks"] / taken for taken in row["seconds"]], "networks")
        for row in rows
    ]
    write(chosen.json, figures, {"machine": facts, "rows": rows, "aims": reached})


if __name__ == "__main__":
    main()
