"""Weights as graphs whose nodes are channels and whose edges are weights."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from ckptzoo.errors import SymmetryError, require
from ckptzoo.learning.forms.graph_layout import GraphLayout
from ckptzoo.learning.forms.stacked_tensors import (
    Constants,
    check_encoded,
    converted,
    number_of,
    one_dtype,
    restored,
)
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import monomial
from ckptzoo.text import brief_repr


class Graph(NamedTuple):
    """B graphs with the same nodes and edges; what has no axis B is shared by all batches, and not to be written to.

    Attributes
    ----------
    x
        (B, N, F) features of the nodes: biases, gains, statistics; 0 where a node has none.
    edge_attr
        (B, E, D) weights of the edges: kernels flattened, and 0 behind them.
    edge_index
        (2, E) int64, from which node to which node.
    edge_layer
        (E,) int64, the tensor of an edge: a position in ``GraphForm.edge_tensors``.
    node_group
        (N,) int64, the set of a node: a position in ``GraphForm.groups``.
    """

    x: Any
    edge_attr: Any
    edge_index: Any
    edge_layer: Any
    node_group: Any

    __repr__ = brief_repr

    def to_pyg(self) -> Any:
        """The batch that ``torch_geometric.data.Batch.from_data_list`` makes of a ``Data`` for each graph.

        Memory: x and edge_attr are views, edge_index is repeated for each graph.

        Raises
        ------
        MissingExtraError
            torch_geometric is not installed.

        Examples
        --------
        >>> import numpy as np
        >>> from ckptzoo import archs
        >>> arch, table = archs.architecture("mlp-4-3-2"), archs.symmetry("mlp-4-3-2")
        >>> weights = {tensor.name: np.ones((5, *tensor.shape), np.float32) for tensor in arch.tensors}
        >>> batch = GraphForm(arch, table).encode(weights).to_pyg()
        >>> batch.num_graphs, batch.x.shape, batch.edge_index.shape
        (5, torch.Size([45, 1]), torch.Size([2, 90]))
        """
        data, torch = require("torch_geometric.data", "graphs"), require("torch", "torch")
        tensor_of = require("ckptzoo.loader.torch", "torch").tensor_of
        x, edge_attr, edge_index, edge_layer, node_group = (
            tensor_of(array) if isinstance(array, np.ndarray) else array for array in self
        )
        (B, N), E = x.shape[:2], edge_attr.shape[1]
        graphs = torch.arange(B, device=x.device)
        batch = data.Batch(
            _base_cls=data.Data,
            x=x.reshape(B * N, x.shape[2]),
            # torch_geometric numbers the nodes of all graphs of a batch through
            edge_index=(edge_index[:, None] + N * graphs[:, None]).reshape(2, B * E),
            edge_attr=edge_attr.reshape(B * E, edge_attr.shape[2]),
            edge_layer=edge_layer.repeat(B),
            node_group=node_group.repeat(B),
            batch=graphs.repeat_interleave(N),
            ptr=N * torch.arange(B + 1, device=x.device),
        )
        # what from_data_list notes, from which to_data_list and batch[i] take the graphs apart
        batch._num_graphs = B
        sizes = {"x": N, "edge_index": E, "edge_attr": E, "edge_layer": E, "node_group": N}
        batch._slice_dict = {name: size * torch.arange(B + 1) for name, size in sizes.items()}
        batch._inc_dict = {name: (N if name == "edge_index" else 0) * torch.arange(B) for name in sizes}
        return batch


class GraphForm:
    """Graphs of any network that has a table of symmetries: stacked, with one ``edge_index`` for all.

    Nodes are the inputs, the channels of every group, and the outputs; layers whose outputs are added share their
    nodes, and so do both sides of a normalisation. A permutation of channels is a relabelling of nodes: the graph of
    g.theta has the features of node ``perm[i]`` at node i, and the edges likewise.

    Source: Kofinas et al. 2024, arXiv 2403.12143; mkofinas/neural-graphs@87e12f2
    ``experiments/data_generalization.py``. Different from there, weights of a flattened feature map are attributes
    of one edge for each channel, and kernels are padded behind the last element.

    Parameters
    ----------
    architecture
        of the checkpoints.
    symmetry
        its table, as ``zoo.symmetry`` or ``ckptzoo.symmetry.trace(module, inputs).symmetry`` gives it.

    Attributes
    ----------
    groups
        names of the sets of nodes.
    features
        names of the F features.
    edge_tensors
        names of the tensors on edges.
    x_mask
        (N, F) bool, where features are weights.
    edge_mask
        (E, D) bool, where attributes are weights.

    Raises
    ------
    SymmetryError
        No table; or one with more than two moving axes of a tensor.
    SpecError
        The table is of another architecture.

    Notes
    -----
    ``encode`` is linear in the size of the graph; where each tensor is a plain matrix of channels, it copies. Laws:
    tests/learning/forms/test_graph.py.

    Examples
    --------
    >>> import numpy as np
    >>> from ckptzoo import archs
    >>> form = GraphForm(archs.architecture("mlp-4-3-2"), archs.symmetry("mlp-4-3-2"))
    >>> weights = {"fc1.weight": np.ones((5, 3, 4)), "fc1.bias": np.ones((5, 3))}
    >>> graph = form.encode({**weights, "fc2.weight": np.ones((5, 2, 3)), "fc2.bias": np.ones((5, 2))})
    >>> graph.x.shape, graph.edge_attr.shape, form.features
    ((5, 9, 1), (5, 18, 1), ('bias',))
    """

    def __init__(self, architecture: Architecture, symmetry: Symmetry | None) -> None:
        if symmetry is None:
            raise SymmetryError(
                f"graph of {architecture.name}: table of symmetries: expected one, from which nodes and edges follow, "
                "got none. Trace the module with ckptzoo.symmetry.trace and declare its table, or use another form."
            )
        self._architecture = architecture
        layout = GraphLayout.of(architecture, monomial(symmetry))  # nodes are exchanged, and not mixed
        self.groups, self.features = layout.groups, layout.features
        self.edge_tensors = tuple(one.tensor.name for one in layout.edge_tensors)
        self._node_tensors, self._edge_tensors = layout.node_tensors, layout.edge_tensors
        self._nodes, self._width = len(layout.node_group), max((one.width for one in layout.edge_tensors), default=1)
        counts = [one.edges for one in layout.edge_tensors]
        self._edges = sum(counts)
        index = [one.edge_index for one in layout.edge_tensors]
        self._shared = Constants(
            edge_index=np.concatenate(index, axis=1) if index else np.zeros((2, 0), np.int64),
            edge_layer=np.repeat(np.arange(len(counts)), counts),
            node_group=layout.node_group,
        )
        columns = len(self.features)
        self._places = Constants(
            **{one.tensor.name: one.nodes * columns + one.columns for one in layout.node_tensors},
            **{one.tensor.name: one.places for one in layout.edge_tensors if one.places is not None},
        )

    @property
    def x_mask(self) -> NDArray[np.bool_]:
        """(N, F) where features are weights."""
        made = np.zeros((self._nodes, len(self.features)), bool)
        for one in self._node_tensors:
            made[one.nodes, one.columns] = True
        return made

    @property
    def edge_mask(self) -> NDArray[np.bool_]:
        """(E, D) where attributes are weights."""
        made, start = np.zeros((self._edges, self._width), bool), 0
        for one in self._edge_tensors:
            part = made[start : start + one.edges, : one.width]
            start += one.edges
            if one.places is None:
                part[...] = True
            else:
                slots = np.zeros(one.edges * _slots(one.edges, one.width, one.tensor.size, len(one.places)), bool)
                slots[one.places] = True
                rest = one.tensor.size // len(one.places)
                part[...] = np.repeat(slots, rest).reshape(part.shape)
        return made

    def encode(self, tensors: Mapping[str, Any]) -> Graph:
        """Stacked tensors ``{name: (B, *shape)}`` as a graph, in the dtype of the floating ones.

        Parameters
        ----------
        tensors
            every tensor of the architecture by name, (B, *shape), numpy or torch.

        Raises
        ------
        ZooError
            A tensor is missing, unknown or of another shape; several floating dtypes; or an integer that is not exact
            in the floating one.
        """
        B, dtype = number_of(tensors, self._architecture), one_dtype(tensors, self._architecture)
        xp, like = array_namespace(*tensors.values()), next(iter(tensors.values()))
        shared, places = self._shared.beside(like), self._places.beside(like)
        x = xp.zeros((B, self._nodes * len(self.features)), dtype=dtype, device=device(like))
        for one in self._node_tensors:
            name = one.tensor.name
            x[:, places[name]] = converted(tensors[name], dtype).reshape(B, one.tensor.size)
        edge_attr = xp.empty((B, self._edges, self._width), dtype=dtype, device=device(like))
        start = 0
        for one in self._edge_tensors:
            value = xp.moveaxis(converted(tensors[one.tensor.name], dtype), [axis + 1 for axis in one.axes], [1, 2])
            if one.places is not None:
                rest = one.tensor.size // len(one.places)
                count = _slots(one.edges, one.width, one.tensor.size, len(one.places))
                spread = xp.zeros((B, one.edges * count, rest), dtype=dtype, device=device(like))
                spread[:, places[one.tensor.name]] = value.reshape(B, len(one.places), rest)
                value = spread
            part = slice(start, start + one.edges)
            edge_attr[:, part, : one.width] = value.reshape(B, one.edges, one.width)
            # the memory is new and holds anything
            edge_attr[:, part, one.width :] = 0
            start += one.edges
        return Graph(x.reshape(B, self._nodes, len(self.features)), edge_attr, **shared)

    def decode(self, encoded: Any) -> dict[str, Any]:
        """A graph as tensors ``{name: (B, *shape)}``; floats in the dtype of the graph.

        Parameters
        ----------
        encoded
            a ``Graph``, or its x and edge_attr.

        Raises
        ------
        ZooError
            A shape is another one.
        """
        x, edge_attr = encoded[:2]
        check_encoded(x, (self._nodes, len(self.features)), "x", self._architecture)
        check_encoded(edge_attr, (self._edges, self._width), "edge_attr", self._architecture)
        xp, B, start = array_namespace(x, edge_attr), len(x), 0
        places, flat = self._places.beside(x), x.reshape(len(x), self._nodes * len(self.features))
        found: dict[str, Any] = {}
        for one in self._node_tensors:
            value = flat[:, places[one.tensor.name]].reshape(B, *one.tensor.shape)
            found[one.tensor.name] = restored(value, one.tensor.dtype)
        for one in self._edge_tensors:
            value = edge_attr[:, start : start + one.edges, : one.width]
            start += one.edges
            if one.places is not None:
                rest = one.tensor.size // len(one.places)
                count = _slots(one.edges, one.width, one.tensor.size, len(one.places))
                value = value.reshape(B, one.edges * count, rest)[:, places[one.tensor.name]]
            lengths = [one.tensor.shape[axis] for axis in one.axes]
            others = [size for axis, size in enumerate(one.tensor.shape) if axis not in one.axes]
            value = value.reshape(B, *lengths, *others)
            value = xp.moveaxis(value, [1, 2], [axis + 1 for axis in one.axes])
            found[one.tensor.name] = restored(value, one.tensor.dtype)
        return {name: found[name] for name in self._architecture.names}


def _slots(edges: int, width: int, size: int, pairs: int) -> int:
    """Pairs of positions that an edge has room for."""
    return width * pairs // size
