"""From stacked weights and a table to flow networks: squares, summed over what shares both ends.

Elements are squared after division by a power of two, one for each sum where the elements of a float64 tensor differ
by more than 1e144.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.groups import AxisAction
from ckptzoo.symmetry.arrays import is_float, positions
from ckptzoo.symmetry.mass.network import Edges, Layer, Network
from ckptzoo.symmetry.moments import Moments

SPAN = 2.0**-480
"""The least element of float64 tensors, over the largest, that shares its power of two: squares stay normal."""
Sums = tuple[np.ndarray, Callable[..., np.ndarray]]
"""Masses, or their logarithms, and the function that sums them over an axis."""


def build_network(moments: Moments, layers: Sequence[Mapping[str, np.ndarray]] = ()) -> Network:
    """Return the networks of K finite checkpoints.

    ``layers`` has for each layer group id to least log-scales (K, n). It takes one pass over the weights, and memory of
    one float64 per pair of channels. Raises ``SymmetryError`` where a tensor that counts in the mass is scaled along
    two axes that write or two that read, or not by scales.
    """
    assembly = _Assembly(moments)
    for name, array in moments.arrays.items():
        actions = moments.symmetry.actions_on(name)
        counted = any(action.in_mass for action in actions) if actions else array.ndim > 2
        if counted and is_float(array) and array.size:
            assembly.add(name)
    return assembly.network(layers)


class _Assembly:
    """A network that is being put together, tensor by tensor."""

    def __init__(self, moments: Moments) -> None:
        self._moments, self._symmetry, K = moments, moments.symmetry, moments.K
        self._groups = tuple(group for group in self._symmetry.groups if group.resizes)
        ends = np.cumsum([0, *(group.n for group in self._groups)]).tolist()
        self._places = tuple(itertools.starmap(slice, itertools.pairwise(ends)))
        self._numbers = {group.id: number for number, group in enumerate(self._groups)}
        self._source, self._sink, self._loops = (np.full((K, ends[-1]), -np.inf) for _ in range(3))
        self._fixed = np.full(K, -np.inf)
        self._edges: list[Edges] = []

    def add(self, name: str) -> None:
        """Add a tensor's masses."""
        head, tail = self._ends(name)
        (values, total), shift = self._sums(name)
        axes = self._moments.moving_axes(name)
        blocks = max((action.blocks for action in (head, tail) if action), default=1)
        if blocks > 1:
            K, rows, *others = values.shape
            values = values.reshape(K, blocks, rows // blocks, *others)
        dims = [self._dims(action, axes, blocks) for action in (head, tail)]
        both = blocks > 1 and all(1 in side for side in dims)
        used = sorted({dim for side in dims for dim in side})
        spare = tuple(dim for dim in range(1, values.ndim) if dim not in used)
        for dim in reversed(spare):
            values = total(values, axis=dim)
        order = [used.index(dim) + 1 for side in dims for dim in side if not (both and dim == 1)]
        lead = (0, used.index(1) + 1) if both else (0,)
        values = values.transpose(*lead, *order)
        sizes = [
            int(np.prod([values.shape[len(lead) + at] for at in range(first, last)], dtype=np.int64))
            for first, last in self._spans(dims, both)
        ]
        values = values.reshape(len(values), blocks if both else 1, *sizes)
        listings = [self._listings(action) for action in (head, tail)]
        for side in (0, 1):
            if both and not listings[side]:
                values, both = self._one_side(values, total, side), False
        if both and (folded := self._folded(values, total, listings)) is not None:
            values = folded
            pairs = [((listings[0][0][0], listings[1][0][0]), values)]
        else:
            if both:
                values = _spread(values, 0.0 if total is _sum else -np.inf)
            pairs = [
                ((head_group, tail_group), part)
                for head_group, rows in _parts(values, total, listings[0], 2)
                for tail_group, part in _parts(rows, total, listings[1], 3)
            ]
        for (head_group, tail_group), part in pairs:
            with np.errstate(divide="ignore"):
                logs = np.log(part) if total is _sum else part
            self._put(head_group, tail_group, logs + shift[:, None, None, None])

    def network(self, layers: Sequence[Mapping[str, np.ndarray]]) -> Network:
        """Return the network of all tensors that were added."""
        edges = tuple(sorted(self._edges, key=lambda item: (item.head, item.tail)))
        network_layers: list[Layer] = []
        for layer in layers:
            places = [self._places[self._numbers[name]] for name in layer]
            nodes = np.concatenate([np.arange(place.start, place.stop) for place in places])
            network_layers.append(Layer(nodes, np.concatenate(list(layer.values()), axis=1)))
        reached = _closure(self._source > -np.inf, edges, forward=True)
        ends = self._sink > -np.inf
        for layer in network_layers:
            ends[:, layer.nodes] = reached[:, layer.nodes]
        useful = _closure(ends, edges, forward=False)
        parts = self._source, self._sink, self._loops, self._fixed
        return Network(self._groups, self._places, *parts, edges, reached & useful, tuple(network_layers))

    def _ends(self, name: str) -> tuple[AxisAction | None, AxisAction | None]:
        """Return the action that writes scaled channels and the one that reads them."""
        by_exponent: dict[int, list[AxisAction]] = {1: [], -1: [], 2: [], 0: []}
        for action in self._symmetry.actions_on(name):
            if action.listed_groups & self._numbers.keys():
                for part in action.parts:  # two where one axis both writes and reads channels
                    by_exponent[part.exponent].append(part)
        both = any(len(action.parts) > 1 for action in self._symmetry.actions_on(name))
        if both or len(by_exponent[1]) > 1 or len(by_exponent[-1]) > 1 or by_exponent[2]:
            what = "axes whose scales change its mass"
            expected = "at most one that writes channels and one that reads them"
            got = f"{len(by_exponent[1])} and {len(by_exponent[-1])}{', and a variance' if by_exponent[2] else ''}"
            raise SymmetryError(Problem(f"tensor {name!r}", what, expected, got, "Use another gauge."))
        return next(iter(by_exponent[1]), None), next(iter(by_exponent[-1]), None)

    def _sums(self, name: str) -> tuple[Sums, np.ndarray]:
        """Return masses summed over the axes that stay, and the logarithm (K,) of the factor that they lack."""
        array, K = self._moments.arrays[name], self._moments.K
        if array.dtype == np.float64:
            size = np.abs(array).reshape(K, -1)
            least = np.where(size > 0, size, np.inf).min(axis=1)
            if (least < SPAN * size.max(axis=1)).any():
                return (self._log_squares(name), _log_sum), np.zeros(K)
        if not self._symmetry.actions_on(name):
            _, exponent = np.frexp(np.abs(array.astype(np.float64)).reshape(K, -1).max(axis=1))
            scaled = np.ldexp(array.astype(np.float64).reshape(K, -1), -exponent[:, None])
            return (np.square(scaled).sum(axis=1), _sum), exponent * np.log(4.0)
        values, exponent = self._moments.squares(name)
        return (values, _sum), exponent * np.log(4.0)

    def _log_squares(self, name: str) -> np.ndarray:
        """Return logarithms of the sums of squares over the axes that stay, with an exponent for each sum."""
        array, axes = self._moments.arrays[name], self._moments.moving_axes(name)
        if not self._symmetry.actions_on(name):
            axes = []
        summed = [axis for axis in range(array.ndim - 1) if axis not in axes]
        moved = array.transpose(0, *(axis + 1 for axis in (*axes, *summed)))
        flat = moved.reshape(*moved.shape[: len(axes) + 1], -1)
        _, exponent = np.frexp(np.abs(flat).max(axis=-1))
        sums = np.square(np.ldexp(flat, -exponent[..., None])).sum(axis=-1)
        with np.errstate(divide="ignore"):
            return np.log(sums) + exponent * np.log(4.0)

    @staticmethod
    def _dims(action: AxisAction | None, axes: list[int], blocks: int) -> list[int]:
        """Return the dimensions of the sums that an action's positions count through, with axis 0 in blocks."""
        if action is None:
            return []
        if blocks == 1:
            return [axes.index(action.axis) + 1]
        if action.axis == 0:
            return [1, 2]
        return [1, axes.index(action.axis) + 2] if action.blocks > 1 else [axes.index(action.axis) + 2]

    @staticmethod
    def _spans(dims: list[list[int]], both: bool) -> list[tuple[int, int]]:
        """Return which of the ordered dimensions belong to the heads and which to the tails."""
        counts = [len(side) - both for side in dims]
        return [(0, counts[0]), (counts[0], sum(counts))]

    def _listings(self, action: AxisAction | None) -> list[tuple[int, np.ndarray]]:
        """Return the listings of groups that are nodes: the group's number and positions (n, inner)."""
        if action is None:
            return []
        listed = positions(action, self._symmetry)
        return [(self._numbers[name], places) for name, places in listed if name in self._numbers]

    @staticmethod
    def _one_side(values: np.ndarray, total: Callable[..., np.ndarray], ground: int) -> np.ndarray:
        """Return blocks of which one side (0: heads, 1: tails) is ground, as one block."""
        summed = total(values, axis=2 + ground, keepdims=True)
        order = summed if ground == 0 else summed.transpose(0, 1, 3, 2)
        flat = order.reshape(len(values), 1, 1, -1)
        return flat if ground == 0 else flat.transpose(0, 1, 3, 2)

    @staticmethod
    def _folded(
        values: np.ndarray, total: Callable[..., np.ndarray], listings: list[list[tuple[int, np.ndarray]]]
    ) -> np.ndarray | None:
        """Return blocks by channels, where on both sides the channels are those of one group in order; else None."""
        for side, listed in enumerate(listings):
            if len(listed) != 1:
                return None
            places, size = listed[0][1], values.shape[1] * values.shape[2 + side]
            inner = places.shape[1]
            if not np.array_equal(places.ravel(), np.arange(size)) or values.shape[2 + side] % inner:
                return None
            split = (*values.shape[: 2 + side], values.shape[2 + side] // inner, inner, *values.shape[3 + side :])
            values = total(values.reshape(split), axis=3 + side)
        return values

    def _put(self, head: int | None, tail: int | None, logs: np.ndarray) -> None:
        """Add log masses between two groups or ground (None)."""
        K = len(logs)
        if head is None and tail is None:
            self._fixed = np.logaddexp(self._fixed, logs.reshape(K))
        elif head is None or tail is None:
            number, masses = (head, self._source) if tail is None else (tail, self._sink)
            assert number is not None
            place = self._places[number]
            masses[:, place] = np.logaddexp(masses[:, place], logs.reshape(K, -1))
        else:
            into, out_of = self._places[head], self._places[tail]
            if head == tail:
                # An edge from a channel to itself is a loop, whose mass no scale changes.
                own = np.arange(logs.shape[2])
                loops = logs[:, :, own, own].reshape(K, -1)
                self._loops[:, into] = np.logaddexp(self._loops[:, into], loops)
                logs[:, :, own, own] = -np.inf
            self._edges.append(Edges(head, tail, into, out_of, logs))


def _spread(values: np.ndarray, nothing: float) -> np.ndarray:
    """Return blocks (K, B, H, T) as one matrix (K, 1, B H, B T) with nothing elsewhere."""
    K, blocks, heads, tails = values.shape
    matrix = np.full((K, blocks, heads, blocks, tails), nothing)
    own = np.arange(blocks)
    matrix[:, own, :, own, :] = values.transpose(1, 0, 2, 3)
    return matrix.reshape(K, 1, blocks * heads, blocks * tails)


def _parts(
    values: np.ndarray, total: Callable[..., np.ndarray], listings: list[tuple[int, np.ndarray]], axis: int
) -> list[tuple[int | None, np.ndarray]]:
    """Return an axis of positions, by group and channel; ground, where there is any, is one entry."""
    parts: list[tuple[int | None, np.ndarray]] = []
    rest = np.ones(values.shape[axis], bool)
    for number, places in listings:
        whole = places.shape[1] == 1 and np.array_equal(places[:, 0], np.arange(len(rest)))
        taken = values if whole else np.take(values, places.ravel(), axis=axis)
        if places.shape[1] > 1:
            taken = total(taken.reshape(*values.shape[:axis], *places.shape, *values.shape[axis + 1 :]), axis=axis + 1)
        parts.append((number, taken))
        rest[places.ravel()] = False
    if rest.any():
        ground = values if rest.all() else np.compress(rest, values, axis=axis)
        parts.append((None, total(ground, axis=axis, keepdims=True)))
    return parts


def _sum(values: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
    return values.sum(axis=axis, keepdims=keepdims)


def _log_sum(logs: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
    return np.logaddexp.reduce(logs, axis=axis, keepdims=keepdims)


def _closure(seeds: np.ndarray, edges: tuple[Edges, ...], *, forward: bool) -> np.ndarray:
    """Return the nodes (K, N) that positive edges join to the seeds, along their direction or against it."""
    reached, before = seeds.copy(), -1
    has_edge = () if reached.all() else [edge.log_masses > -np.inf for edge in edges]
    ordered = list(zip(edges, has_edge, strict=False))
    while (count := int(reached.sum())) > before and not reached.all():
        before = count
        for edge, positive in ordered if forward else reversed(ordered):
            near, far = (edge.tail_nodes, edge.head_nodes) if forward else (edge.head_nodes, edge.tail_nodes)
            K, blocks, heads, tails = positive.shape
            if forward:
                joined = (positive & reached[:, near].reshape(K, blocks, 1, tails)).any(axis=3)
            else:
                joined = (positive & reached[:, near].reshape(K, blocks, heads, 1)).any(axis=2)
            reached[:, far] |= joined.reshape(K, -1)
    return reached
