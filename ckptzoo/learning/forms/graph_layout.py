"""The graph of a network with a table of symmetries: which node each channel is, and which weight sits where.

A node is a channel: of a group (groups that are ``like`` another share its nodes), or a position of an axis that
nothing moves: an input, an output. A tensor that is listed by channel (bias, gain, statistics) gives features of its
nodes, any other one edges between the channels of two of its axes.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.groups import AxisAction
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import positions

Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NodeTensor:
    """A tensor among the features of nodes. ``nodes`` and ``columns`` are (size,) positions of its elements."""

    tensor: Tensor
    nodes: Index
    columns: Index


@dataclass(frozen=True, eq=False)
class EdgeTensor:
    """A tensor whose elements are attributes of edges, those of an edge side by side.

    ``axes`` are the two axes of channels, the one that writes first; ``edge_index`` is (2, edges), source and target
    node; ``width`` is the number of attributes of an edge; ``places`` are the (pairs,) positions of each pair of
    positions on ``axes`` among edges times slots, None where that is its own number, so that the tensor need only be
    reshaped.
    """

    tensor: Tensor
    axes: tuple[int, int]
    edge_index: Index
    width: int
    places: Index | None

    @property
    def edges(self) -> int:
        return self.edge_index.shape[1]


@dataclass(frozen=True, eq=False)
class GraphLayout:
    """Where every element of a checkpoint is in its graph.

    ``groups`` are the names of the sets of nodes, in order: inputs, groups of channels, outputs and what else does not
    move; ``node_group`` has the (N,) numbers of the nodes' groups; ``features`` are the names of the F columns of node
    features, such as ``bias``.
    """

    groups: tuple[str, ...]
    node_group: Index
    features: tuple[str, ...]
    node_tensors: tuple[NodeTensor, ...]
    edge_tensors: tuple[EdgeTensor, ...]

    @classmethod
    def of(cls, architecture: Architecture, symmetry: Symmetry) -> "GraphLayout":
        """The graph of an architecture.

        Raises ``SpecError`` if the table does not fit with the architecture, and ``SymmetryError`` if more than two
        axes of a tensor move, or a group permutes positions inside the channels of another one.
        """
        symmetry.check(architecture)
        nodes = _Nodes(symmetry)
        edged = [tensor for tensor in architecture.tensors if _has_edges(tensor, symmetry)]
        beside = [tensor for tensor in architecture.tensors if not _has_edges(tensor, symmetry)]
        ends = {tensor.name: _ends(tensor, nodes) for tensor in edged}
        places = {tensor.name: _listed(tensor, nodes) for tensor in beside}
        numbers = nodes.numbers()
        columns = _Columns(nodes.count)
        return cls(
            tuple(nodes.names()),
            nodes.node_group(),
            *columns.placed(beside, {name: (numbers[held], slots) for name, (held, slots) in places.items()}),
            tuple(_edges(tensor, numbers, *ends[tensor.name]) for tensor in edged),
        )


def _has_edges(tensor: Tensor, symmetry: Symmetry) -> bool:
    if len(tensor.shape) < 2:
        return False
    actions = symmetry.actions_on(tensor.name)
    if len(actions) > 2:
        axes = ", ".join(str(action.axis) for action in actions)
        raise SymmetryError(
            f"graph: tensor {tensor.name!r}: expected at most two axes that move, got {axes}. "
            'Use the form "tokens" or "flat".'
        )
    # one axis that moves, and neither writes nor reads: a table such as positions is a feature of the channels
    return len(actions) != 1 or (actions[0].axis < 2 and actions[0].role in ("out", "in"))


class _Nodes:
    """The nodes of a graph: known by their places among all named positions, and numbered by their sets later."""

    def __init__(self, symmetry: Symmetry) -> None:
        for group, inside in symmetry.nested:
            raise SymmetryError(
                f"graph: group {inside!r}: expected each position of an axis in one group, got one inside the channels "
                f"of {group!r}. Keep the order of these: ckptzoo.symmetry.unnested(table)."
            )
        self.symmetry = symmetry
        self._sets: dict[tuple[int, str], set[int]] = {}
        self._starts: dict[tuple[int, str], int] = {}
        self._end = 0
        for group in symmetry.groups:
            leader = symmetry.leader(group.id)
            self._start((1, leader.id), leader.n)
            self._sets[1, leader.id] = set(range(leader.n))

    def _start(self, key: tuple[int, str], size: int) -> int:
        if key not in self._starts:
            self._starts[key], self._sets[key] = self._end, set()
            self._end += size
        return self._starts[key]

    def on(self, tensor: Tensor, axis: int, action: AxisAction | None, side: str) -> tuple[Index, Index]:
        """Return the node and the slot of every position of an axis, through all blocks."""
        size = tensor.shape[axis] if tensor.shape else 1
        size *= 1 if action is None else action.blocks
        found, slots = np.full(size, -1), np.zeros(size, np.int64)
        listings: dict[str, int] = {}
        for name, places in positions(action, self.symmetry) if action is not None else ():
            leader = self.symmetry.leader(name)
            channels = self._start((1, leader.id), leader.n) + np.arange(leader.n)
            first = listings.get(leader.id, 0)
            listings[leader.id] = first + places.shape[1]
            found[places] = channels[:, None]
            slots[places] = first + np.arange(places.shape[1])
        if len(rest := np.flatnonzero(found < 0)):
            # inputs come before the groups (1), outputs behind them
            key = (0 if side == "in" else 2, f"{tensor.layer}.{side}{size}")
            found[rest] = self._start(key, size) + rest
            self._sets[key] |= set(rest.tolist())
        return found, slots

    def _ordered(self) -> list[tuple[int, str]]:
        return sorted(self._sets, key=lambda key: key[0])

    def names(self) -> list[str]:
        """The sets of nodes in order."""
        return [name for _, name in self._ordered()]

    def node_group(self) -> Index:
        """(N,) the set of each node."""
        return np.repeat(np.arange(len(self._sets)), [len(self._sets[key]) for key in self._ordered()])

    @property
    def count(self) -> int:
        return sum(map(len, self._sets.values()))

    def numbers(self) -> Index:
        """The number of each node, by its place."""
        made, end = np.full(self._end, -1), 0
        for key in self._ordered():
            held = np.array(sorted(self._sets[key]), np.int64)
            made[self._starts[key] + held] = end + np.arange(len(held))
            end += len(held)
        return made


def _listed(tensor: Tensor, nodes: _Nodes) -> tuple[Index, Index]:
    """The node and the slot of every element of a tensor that is listed by channel."""
    action = next(iter(nodes.symmetry.actions_on(tensor.name)), None)
    axis = 0 if action is None else action.axis
    found, slots = nodes.on(tensor, axis, action, "out" if tensor.shape else "scalar")
    if not tensor.shape:
        return found, slots
    blocks = 1 if action is None else action.blocks
    others = [1 if at == axis else size for at, size in enumerate(tensor.shape)]
    along = np.arange(tensor.shape[axis]).reshape([-1 if at == axis else 1 for at in range(len(tensor.shape))])
    if blocks > 1:
        rows = np.arange(tensor.shape[0]).reshape(-1, *[1] * (len(tensor.shape) - 1))
        along = along + rows * blocks // tensor.shape[0] * tensor.shape[axis]
    other = np.arange(math.prod(others)).reshape(others)
    along, other = np.broadcast_arrays(along, other)
    return found[along.ravel()], (slots[along] * other.max(initial=0) + slots[along] + other).ravel()


def _ends(tensor: Tensor, nodes: _Nodes) -> tuple[tuple[int, int], Index, Index]:
    """The two axes of channels, the one that writes first; nodes and slots (2, pairs) of all pairs of positions."""
    actions = {action.axis: action for action in nodes.symmetry.actions_on(tensor.name)}
    axes = tuple(actions) if len(actions) == 2 else (0, 1)
    roles = [actions[axis].role if axis in actions else None for axis in axes]
    # where both axes are alike, the first one writes, as in torch's linear layers and convolutions
    reads_first = roles[0] == "in" or (roles[1] == "out" and roles[0] is None)
    first, second = (axes[1], axes[0]) if reads_first and roles[1] != "in" else (axes[0], axes[1])
    sides: list[tuple[Index, Index]] = []
    lengths = tensor.shape[first], tensor.shape[second]
    grid = np.indices(lengths).reshape(2, -1)
    for axis, other, place, beside, side in ((first, second, *grid, "out"), (second, first, *grid[::-1], "in")):
        action = actions.get(axis)
        found, slots = nodes.on(tensor, axis, action, side)
        if action is not None and action.blocks > 1:
            if other != 0:
                raise SymmetryError(
                    f"graph: tensor {tensor.name!r}: expected blocks of axis 0 beside axis {axis}, got axis {other}. "
                    'Use the form "tokens" or "flat".'
                )
            place = place + beside * action.blocks // tensor.shape[0] * tensor.shape[axis]
        sides.append((found[place], slots[place]))
    return (first, second), np.stack([sides[0][0], sides[1][0]]), np.stack([sides[0][1], sides[1][1]])


def _edges(tensor: Tensor, numbers: Index, axes: tuple[int, int], ends: Index, slots: Index) -> EdgeTensor:
    targets, sources = numbers[ends]
    pairs = targets * len(numbers) + sources
    _, firsts, inverse = np.unique(pairs, return_index=True, return_inverse=True)
    order = np.argsort(firsts)  # edges in the order in which the tensor lists them
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    firsts = firsts[order]
    most = slots.max(axis=1) + 1
    count = int(most.prod())
    places = rank[inverse.ravel()] * count + slots[0] * most[1] + slots[1]
    identity = len(places) == len(firsts) * count and np.array_equal(places, np.arange(len(places)))
    rest = tensor.size // (tensor.shape[axes[0]] * tensor.shape[axes[1]])
    index = np.stack([sources[firsts], targets[firsts]])
    return EdgeTensor(tensor, axes, index, count * rest, None if identity else places)


class _Columns:
    """Columns of node features: tensors of one kind share them where they are features of different nodes."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._taken: dict[str, list[NDArray[np.bool_]]] = {}

    def placed(
        self, tensors: list[Tensor], places: dict[str, tuple[Index, Index]]
    ) -> tuple[tuple[str, ...], tuple[NodeTensor, ...]]:
        """The names of all columns, and where the elements of the tensors are."""
        firsts = {}
        for tensor in tensors:
            firsts[tensor.name] = self._first(tensor.name.rpartition(".")[2], *places[tensor.name])
        starts, names = {}, []
        for kind, columns in self._taken.items():
            starts[kind] = len(names)
            names += [kind if at == 0 else f"{kind}.{at}" for at in range(len(columns))]
        made = [
            NodeTensor(one, nodes, starts[one.name.rpartition(".")[2]] + firsts[one.name] + slots)
            for one in tensors
            for nodes, slots in [places[one.name]]
        ]
        return tuple(names), tuple(made)

    def _first(self, kind: str, nodes: Index, slots: Index) -> int:
        taken = self._taken.setdefault(kind, [])
        width, start = int(slots.max()) + 1, 0
        # the first columns that no other tensor of the kind has taken at these nodes
        while any(taken[at][nodes].any() for at in range(start, min(start + width, len(taken)))):
            start += 1
        for at in range(start, start + width):
            if at == len(taken):
                taken.append(np.zeros(self._nodes, bool))
            taken[at][nodes[slots == at - start]] = True
        return start
