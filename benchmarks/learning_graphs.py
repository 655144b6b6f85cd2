"""For benchmarks/learning.py: graphs of networks 784-64-64-10 (54,912 edges) beside torch_geometric's batches of 64.

neural-graphs' way (Kofinas et al., arXiv 2403.12143; https://github.com/mkofinas/neural-graphs at 87e12f2,
experiments/cnn_generalization/utils.py) makes a ``Data`` of each network by way of dense matrices of nodes times nodes,
and collates with ``Batch.from_data_list``. A second row spares the matrices: one ``edge_index`` for every ``Data``,
weights and biases concatenated; what remains is mostly ``from_data_list``. All state dicts are in memory; ours are
stacked tensors, as a stream gives them. Repeats are interleaved; medians are printed.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Batch, Data

from benchmarks.figures import turns
from ckptzoo import archs
from ckptzoo.learning.forms import GraphForm

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
    """A row for each contender, with networks a second."""
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
    for name in turns(contenders, repeats):
        began = time.perf_counter()
        for at in range(batches):
            contenders[name](at)
        seconds[name].append(time.perf_counter() - began)
    return [
        {
            "contender": f"{MLP}, {name}",
            "seconds": taken,
            "networks": count,
            "networks_a_second": count / statistics.median(taken),
            "drawing": None,
        }
        for name, taken in seconds.items()
    ]


def aim(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What was aimed at and what was reached."""
    rates = {row["contender"]: row["networks_a_second"] for row in rows}
    got = rates[f"{MLP}, {OURS}"] / rates[f"{MLP}, {READY}"]
    return {"aim": f"{OURS}, times {READY}", "wanted": AIM, "got": got}
