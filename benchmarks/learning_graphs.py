"""Graphs of networks 784-64-64-10 (54,912 edges) in batches of 64, beside torch_geometric's batches, on one thread.

neural-graphs' way (Kofinas et al., arXiv 2403.12143; https://github.com/mkofinas/neural-graphs at 87e12f2,
experiments/cnn_generalization/utils.py) makes a ``Data`` of each network by way of dense matrices of nodes times nodes,
and collates with ``Batch.from_data_list``. A second row spares the matrices: one ``edge_index`` for every ``Data``,
weights and biases concatenated; what remains is mostly ``from_data_list``. All state dicts are in memory; ours are
stacked tensors, as a stream gives them. Repeats are interleaved; medians are printed.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch_geometric.data import Batch, Data

from benchmarks.layers_report import machine
from ckptzoo import archs
from ckptzoo.learning.forms import GraphForm

ROOT = Path(__file__).resolve().parent.parent
MLP, BATCH = "mlp-784-64-64-10", 64
AIM = 10.0
"""Times ``from_data_list`` of ready ``edge_index``."""
State = dict[str, torch.Tensor]
OURS, OURS_PYG = "stacked graphs", "stacked graphs, to_pyg"
DENSE, READY = "from_data_list, neural-graphs' way", "from_data_list, edge_index ready"


def dense_graph(state: State) -> Data:
    """A network's graph, read off dense matrices."""
    weights = [value.T for name, value in state.items() if "weight" in name]
    biases = [value for name, value in state.items() if "bias" in name]
    inputs = len(weights[0])
    nodes = inputs + sum(map(len, biases))
    features, adjacent = torch.zeros(nodes, nodes, 1), torch.zeros(nodes, nodes, dtype=torch.bool)
    row, column = 0, inputs
    for weight in weights:
        block = slice(row, row + weight.shape[0]), slice(column, column + weight.shape[1])
        features[block] = weight.unsqueeze(-1)
        adjacent[block] = True
        row, column = block[0].stop, block[1].stop
    edge_index = adjacent.nonzero().t()
    x = torch.cat([torch.zeros(inputs), *biases]).unsqueeze(-1)
    return Data(x=x, edge_attr=features[edge_index[0], edge_index[1]], edge_index=edge_index)


def ready_graph(state: State, edge_index: torch.Tensor, inputs: int) -> Data:
    """A network's graph whose edges are known."""
    weights = [value.flatten() for name, value in state.items() if "weight" in name]
    biases = [value for name, value in state.items() if "bias" in name]
    x = torch.cat([torch.zeros(inputs), *biases]).unsqueeze(-1)
    return Data(x=x, edge_attr=torch.cat(weights).unsqueeze(-1), edge_index=edge_index)


def measure(batches: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each contender, with graphs a second."""
    arch = archs.architecture(MLP)
    rng, count = np.random.default_rng(0), batches * BATCH
    stacks = {
        tensor.name: torch.from_numpy(rng.normal(size=(count, *tensor.shape)).astype(np.float32))
        for tensor in arch.tensors
    }
    states = [{name: value[at] for name, value in stacks.items()} for at in range(count)]
    form = GraphForm(arch, archs.symmetry(MLP))
    stacked = [{name: value[at : at + BATCH] for name, value in stacks.items()} for at in range(0, count, BATCH)]
    first = form.encode(stacked[0])
    edge_index, inputs = first.edge_index, 784
    ready = Batch.from_data_list([ready_graph(state, edge_index, inputs) for state in states[:BATCH]])
    ours = first.to_pyg()
    assert edge_index.shape[1] == 54_912
    assert all(torch.equal(ours[name], ready[name]) for name in ("x", "edge_index", "edge_attr", "batch", "ptr"))
    dense = dense_graph(states[0])
    order = torch.argsort(edge_index[0] * len(dense.x) + edge_index[1])  # by source, as matrices list edges
    assert torch.equal(dense.edge_index, edge_index[:, order])
    assert torch.equal(dense.edge_attr, first.edge_attr[0][order])

    def collated(graph: Callable[[State], Data]) -> Callable[[int], Any]:
        return lambda at: Batch.from_data_list([graph(state) for state in states[BATCH * at : BATCH * (at + 1)]])

    contenders: dict[str, Callable[[int], Any]] = {
        DENSE: collated(dense_graph),
        READY: collated(lambda state: ready_graph(state, edge_index, inputs)),
        OURS: lambda at: form.encode(stacked[at]),
        OURS_PYG: lambda at: form.encode(stacked[at]).to_pyg(),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, make in contenders.items():
            began = time.perf_counter()
            for at in range(batches):
                make(at)
            seconds[name].append(time.perf_counter() - began)
    return [
        {"contender": name, "seconds": taken, "graphs_a_second": count / statistics.median(taken)}
        for name, taken in seconds.items()
    ]


def main() -> None:
    """Measure, print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=4, help=f"of {BATCH} networks (4)")
    parser.add_argument("--repeats", type=int, default=5, help="of each contender (5)")
    path = ROOT / "bench-results" / "learning_graphs.json"
    parser.add_argument("--json", type=Path, default=path, help="where figures go")
    chosen = parser.parse_args()
    if min(chosen.batches, chosen.repeats) < 1:
        parser.error("--batches and --repeats: expected more than 0.")
    torch.set_num_threads(1)
    rows = measure(chosen.batches, chosen.repeats)
    rates = {row["contender"]: row["graphs_a_second"] for row in rows}
    facts, console = machine(ROOT), Console()
    table = Table(title=f"Graphs of {MLP}", box=SIMPLE_HEAD)
    for column in ("contender", "graphs a second", f"times {READY}"):
        table.add_column(column, justify="left" if column == "contender" else "right")
    for name, rate in rates.items():
        table.add_row(name, f"{rate:,.0f}", f"{rate / rates[READY]:.2f}")
    console.print(table)
    reached = {"aim": f"{OURS}, times {READY}", "wanted": AIM, "got": rates[OURS] / rates[READY]}
    console.print(f"{reached['aim']}: {reached['got']:.3g} (aim {AIM:g})")
    console.print(f"{facts['cpu']}, {facts['cores']} cores, torch {torch.__version__}")
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps({"machine": facts, "rows": rows, "aims": [reached]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
