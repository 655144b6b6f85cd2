"""Graphs follow the table: permuted networks have relabelled graphs; nodes and edges are those one would draw."""

import numpy as np
import pytest
import torch
from torch import nn

from ckptzoo import archs
from ckptzoo.errors import SymmetryError
from ckptzoo.learning.forms import GraphForm
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.groups import AxisAction, Group, Segment, Sym
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, monomial, trace


class Mixed(nn.Module):
    """Depthwise and transposed convolutions, a concatenation of a tensor with itself, a flattened feature map."""

    def __init__(self):
        super().__init__()
        self.first, self.depthwise = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, groups=4)
        self.norm, self.up = nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 3, 2)
        self.fc1, self.fc2 = nn.Linear(2 * 3 * 25, 5), nn.Linear(5, 2)

    def forward(self, x):
        x = torch.relu(self.up(torch.relu(self.norm(self.depthwise(torch.relu(self.first(x)))))))
        return self.fc2(torch.relu(self.fc1(torch.cat([x, x], 1).flatten(1))))


class Placed(nn.Module):
    """Positions added to features, a residual sum of linear layers."""

    def __init__(self):
        super().__init__()
        self.first, self.positions = nn.Linear(3, 8), nn.Parameter(torch.zeros(1, 4, 8))
        self.down, self.up, self.last = nn.Linear(8, 6), nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        x = self.first(x) + self.positions
        return self.last((x + self.up(torch.relu(self.down(x)))).mean(1))


class Grouped(nn.Module):
    """Convolutions in groups that follow one another, and a normalisation in groups."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(2, 6, 3, groups=2), nn.Conv1d(6, 4, 3, groups=2)
        self.norm, self.last = nn.GroupNorm(2, 4), nn.Linear(16, 3)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.second(torch.relu(self.first(x))))).flatten(1))


def traced(module, *shape):
    found = trace(module.eval(), torch.zeros(shape))
    return found.architecture, found.symmetry


def embedding():
    """Seven words of five features, which a layer of two outputs reads."""
    features = (Segment("words", 0, 1, 5),)
    actions = (
        AxisAction("words.weight", 1, features, 1, True, "out"),
        AxisAction("fc.weight", 1, features, -1, True, "in"),
    )
    arch = Architecture(
        "embedding", (Tensor("words.weight", (7, 5)), Tensor("fc.weight", (2, 5)), Tensor("fc.bias", (2,)))
    )
    return arch, Symmetry((Group("words", 5, Sym(), "nonzero"),), actions)


NETWORKS = {
    **{
        name: lambda name=name: (archs.architecture(name), archs.symmetry(name))
        for name in (
            "mlp-4-6-5-3",
            "optunet",
            "optunet-4-3-2-8-3-2-6",
            "resnet18-4-10",
            "resnet8-pad-10",
            "resnet8-conv-10",
        )
    },
    "embedding": embedding,
    "mixed": lambda: traced(Mixed(), 1, 2, 8, 8),
    "grouped": lambda: traced(Grouped(), 2, 2, 8),
    "positions": lambda: traced(Placed(), 2, 4, 3),
}


def random_weights(arch, B):
    rng = np.random.default_rng(0)
    return {
        tensor.name: rng.normal(size=(B, *tensor.shape)).astype(np.float32)
        if "float" in tensor.dtype
        else rng.integers(0, 99, (B, *tensor.shape)).astype(tensor.dtype)
        for tensor in arch.tensors
    }


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.sampled(3)
def test_the_graph_of_a_permuted_network_is_the_relabelled_graph(name):
    arch, table = NETWORKS[name]()
    form, table, B = GraphForm(arch, table), monomial(table), 3
    weights = random_weights(arch, B)
    drawn = GroupElement.random(table, B, np.random.default_rng(1))
    element = GroupElement(drawn.perms, GroupElement.identity(table, B).scales)
    graph, moved = form.encode(weights), form.encode(apply(element, weights, table))
    edges = {
        edge: at for at, edge in enumerate(zip(graph.edge_layer.tolist(), *graph.edge_index.tolist(), strict=True))
    }
    assert len(edges) == len(graph.edge_layer)  # no edge twice
    assert not np.array_equal(graph.edge_attr, moved.edge_attr)
    assert graph.edge_index is moved.edge_index
    for b in range(B):
        source = np.arange(len(graph.node_group))
        for group in table.groups:
            at = np.flatnonzero(graph.node_group == form.groups.index(table.leader(group.id).id))
            source[at] = at[element.perms[group.id][b]]
        assert moved.x[b].tobytes() == graph.x[b][source].tobytes()
        labels = zip(graph.edge_layer.tolist(), *source[graph.edge_index].tolist(), strict=True)
        assert moved.edge_attr[b].tobytes() == graph.edge_attr[b][[edges[label] for label in labels]].tobytes()


@pytest.mark.parametrize("name", NETWORKS)
def test_every_weight_is_in_the_graph_once(name):
    arch, table = NETWORKS[name]()
    form = GraphForm(arch, table)
    start, weights = 1, {}
    for tensor in arch.tensors:
        weights[tensor.name] = np.arange(start, start + tensor.size).reshape(1, *tensor.shape).astype(tensor.dtype)
        start += tensor.size
    graph = form.encode(weights)
    assert ((graph.x[0] != 0) == form.x_mask).all() and ((graph.edge_attr[0] != 0) == form.edge_mask).all()
    held = np.concatenate([graph.x[0][form.x_mask], graph.edge_attr[0][form.edge_mask]])
    assert sorted(held.tolist()) == list(range(1, start))
    found = form.decode(graph)
    assert all(np.array_equal(found[key], weights[key]) for key in weights)


def test_a_perceptron_is_the_graph_that_one_draws():
    form = GraphForm(archs.architecture("mlp-2-3-1"), archs.symmetry("mlp-2-3-1"))
    graph = form.encode(
        {
            "fc1.weight": np.array([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]),
            "fc1.bias": np.array([[7.0, 8.0, 9.0]]),
            "fc2.weight": np.array([[[10.0, 11.0, 12.0]]]),
            "fc2.bias": np.array([[13.0]]),
        }
    )
    assert graph.x[0, :, 0].tolist() == [0, 0, 7, 8, 9, 13]  # inputs, hidden, output
    assert graph.node_group.tolist() == [0, 0, 1, 1, 1, 2] and form.groups[1] == "fc1"
    drawn = zip(*graph.edge_index.tolist(), graph.edge_attr[0, :, 0].tolist(), strict=True)
    first = [(0, 2, 1), (1, 2, 2), (0, 3, 3), (1, 3, 4), (0, 4, 5), (1, 4, 6)]
    assert list(drawn) == [*first, (2, 5, 10), (3, 5, 11), (4, 5, 12)]
    assert graph.edge_layer.tolist() == [0] * 6 + [1] * 3 and form.edge_tensors == ("fc1.weight", "fc2.weight")


def test_channels_of_a_grouped_convolution_have_edges_within_their_group_alone():
    form = GraphForm(archs.architecture("optunet"), archs.symmetry("optunet"))
    graph = form.encode(random_weights(archs.architecture("optunet"), 1))
    edges = graph.edge_index[:, graph.edge_layer == form.edge_tensors.index("conv2.weight")]
    assert edges.tolist() == [[1] * 5 + [2] * 5, list(range(3, 13))]  # one input, then two channels, then ten


def test_edges_of_an_embedding_go_from_words_to_features():
    arch, table = NETWORKS["embedding"]()
    form = GraphForm(arch, table)
    graph = form.encode(random_weights(arch, 1))
    edges = graph.edge_index[:, graph.edge_layer == form.edge_tensors.index("words.weight")]
    assert form.groups[graph.node_group[edges[0]].max()].startswith("words.in")
    assert len(set(edges[0].tolist())) == 7 and len(set(edges[1].tolist())) == 5


def test_three_moving_axes_are_refused():
    groups = tuple(Group(name, 2, Sym(), "none") for name in "abc")
    actions = [AxisAction("w", axis, (Segment(name, 0, 1, 2),), 0, True, "in") for axis, name in enumerate("abc")]
    with pytest.raises(SymmetryError, match=r"'w': expected at most two axes that move, got 0, 1, 2\. Use the form"):
        GraphForm(Architecture("bilinear", (Tensor("w", (2, 2, 2)),)), Symmetry(groups, tuple(actions)))


@pytest.mark.parametrize("B", [1, 3])
@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("name", ["mlp-4-6-5-3", "optunet", "resnet8-pad-10"])
def test_batches_of_torch_geometric_are_those_of_single_graphs(name, convert, B):
    data = pytest.importorskip("torch_geometric.data")
    arch, table = NETWORKS[name]()
    graph = GraphForm(arch, table).encode({key: convert(value) for key, value in random_weights(arch, B).items()})
    x, edge_attr, *shared = (torch.as_tensor(value) for value in graph)
    alike = dict(zip(("edge_index", "edge_layer", "node_group"), shared, strict=True))
    single = [data.Data(x=x[b], edge_attr=edge_attr[b], **alike) for b in range(B)]
    found, expected = graph.to_pyg(), data.Batch.from_data_list(single)
    assert type(found) is type(expected) and found.num_graphs == expected.num_graphs == B
    assert set(found.keys()) == set(expected.keys())
    for key in expected.keys():  # noqa: SIM118 - a batch iterates over pairs
        assert torch.equal(found[key], expected[key]) and found[key].dtype == expected[key].dtype, key
    for ours, theirs in ((found._slice_dict, expected._slice_dict), (found._inc_dict, expected._inc_dict)):
        assert {key: torch.as_tensor(value).tolist() for key, value in ours.items()} == {
            key: torch.as_tensor(value).tolist() for key, value in theirs.items()
        }
    for ours, theirs in zip(found.to_data_list(), single, strict=True):
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs.keys())  # noqa: SIM118
