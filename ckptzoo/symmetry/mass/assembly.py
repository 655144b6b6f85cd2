"""From stacked weights and a table to flow networks: squares, summed over what shares both ends.

Elements are squared after division by a power of two, by one of each sum's own where a float64 tensor's elements differ
by more than 1e144.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.symmetry import AxisAction
from ckptzoo.symmetry.arrays import is_float, positions
from ckptzoo.symmetry.mass.network import Edges, Layer, Network
from ckptzoo.symmetry.moments import Moments

SPAN = 2.0**-480
"""Elements of float64 tensors down to this part of the largest are squared beside it."""


def network_of(moments: Moments, layers: Sequence[Mapping[str, np.ndarray]] = ()) -> Network:
    """The networks of K checkpoints.

    Parameters
    ----------
    moments : of finite checkpoints.
    layers : for each layer, group id to least log-scales (K, n).

    Raises
    ------
    SymmetryError
        A tensor that counts in the mass is scaled along two axes that write or two that read, or not by scales.

    Notes
    -----
    One pass over the weights; memory of one float64 per pair of channels.
    """
    made = _Assembly(moments)
    for name, array in moments.arrays.items():
        actions = moments.symmetry.actions_on(name)
        counted = any(action.in_mass for action in actions) if actions else array.ndim > 2
        if counted and is_float(array) and array.size:
            made.add(name)
    return made.network(layers)


Sums = tuple[np.ndarray, Callable[..., np.ndarray]]
"""Masses, or their logarithms, and how they are summed over an axis."""


class _Assembly:
    """A network that is being put together, tensor by tensor."""

    def __init__(self, moments: Moments) -> None:
        self._moments, self._symmetry, K = moments, moments.symmetry, moments.K
        self._groups = tuple(group for group in self._symmetry.groups if group.scale == "positive")
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
        both = blocks > 1 and all(1 in found for found in dims)
        used = sorted({dim for found in dims for dim in found})
        spare = tuple(dim for dim in range(1, values.ndim) if dim not in used)
        for dim in reversed(spare):
            values = total(values, axis=dim)
        order = [used.index(dim) + 1 for found in dims for dim in found if not (both and dim == 1)]
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
                ((one, two), part)
                for one, some in _parts(values, total, listings[0], 2)
                for two, part in _parts(some, total, listings[1], 3)
            ]
        for (one, two), part in pairs:
            with np.errstate(divide="ignore"):
                logs = np.log(part) if total is _sum else part
            self._put(one, two, logs + shift[:, None, None, None])

    def network(self, layers: Sequence[Mapping[str, np.ndarray]]) -> Network:
        """What was put together."""
        edges = tuple(sorted(self._edges, key=lambda item: (item.head, item.tail)))
        made: list[Layer] = []
        for layer in layers:
            places = [self._places[self._numbers[name]] for name in layer]
            nodes = np.concatenate([np.arange(place.start, place.stop) for place in places])
            made.append(Layer(nodes, np.concatenate(list(layer.values()), axis=1)))
        reached = _closure(self._source > -np.inf, edges, forward=True)
        ends = self._sink > -np.inf
        for layer in made:
            ends[:, layer.nodes] = reached[:, layer.nodes]
        useful = _closure(ends, edges, forward=False)
        parts = self._source, self._sink, self._loops, self._fixed
        return Network(self._groups, self._places, *parts, edges, reached & useful, tuple(made))

    def _ends(self, name: str) -> tuple[AxisAction | None, AxisAction | None]:
        """The action that writes scaled channels and the one that reads them."""
        found: dict[int, list[AxisAction]] = {1: [], -1: [], 2: [], 0: []}
        for action in self._symmetry.actions_on(name):
            if any(segment.group in self._numbers for segment in action.segments):
                found[action.exponent].append(action)
        if len(found[1]) > 1 or len(found[-1]) > 1 or found[2]:
            raise SymmetryError(
                f"tensor {name!r}: axes whose scales change its mass: expected at most one that writes channels and "
                f"one that reads them, got {len(found[1])} and {len(found[-1])}"
                f"{', and a variance' if found[2] else ''}. Use another gauge."
            )
        return next(iter(found[1]), None), next(iter(found[-1]), None)

    def _sums(self, name: str) -> tuple[Sums, np.ndarray]:
        """Masses summed over the axes that stay, and the logarithm (K,) of what they are to be multiplied with."""
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
        """Logarithms of the sums of squares over the axes that stay, each sum with an exponent of its own."""
        array, axes = self._moments.arrays[name], self._moments.moving_axes(name)
        if not self._symmetry.actions_on(name):
            axes = []
        still = [axis for axis in range(array.ndim - 1) if axis not in axes]
        moved = array.transpose(0, *(axis + 1 for axis in (*axes, *still)))
        flat = moved.reshape(*moved.shape[: len(axes) + 1], -1)
        _, exponent = np.frexp(np.abs(flat).max(axis=-1))
        sums = np.square(np.ldexp(flat, -exponent[..., None])).sum(axis=-1)
        with np.errstate(divide="ignore"):
            return np.log(sums) + exponent * np.log(4.0)

    @staticmethod
    def _dims(action: AxisAction | None, axes: list[int], blocks: int) -> list[int]:
        """The dimensions of the sums that an action's positions count through, with axis 0 in blocks."""
        if action is None:
            return []
        if blocks == 1:
            return [axes.index(action.axis) + 1]
        if action.axis == 0:
            return [1, 2]
        return [1, axes.index(action.axis) + 2] if action.blocks > 1 else [axes.index(action.axis) + 2]

    @staticmethod
    def _spans(dims: list[list[int]], both: bool) -> list[tuple[int, int]]:
        """Which of the ordered dimensions belong to the heads and which to the tails."""
        counts = [len(found) - both for found in dims]
        return [(0, counts[0]), (counts[0], sum(counts))]

    def _listings(self, action: AxisAction | None) -> list[tuple[int, np.ndarray]]:
        """The listings of groups that are nodes: the group's number and positions (n, inner)."""
        if action is None:
            return []
        found = positions(action, self._symmetry)
        return [(self._numbers[name], places) for name, places in found if name in self._numbers]

    @staticmethod
    def _one_side(values: np.ndarray, total: Callable[..., np.ndarray], ground: int) -> np.ndarray:
        """Blocks of which one side (0: heads, 1: tails) is ground, as one block."""
        summed = total(values, axis=2 + ground, keepdims=True)
        order = summed if ground == 0 else summed.transpose(0, 1, 3, 2)
        flat = order.reshape(len(values), 1, 1, -1)
        return flat if ground == 0 else flat.transpose(0, 1, 3, 2)

    @staticmethod
    def _folded(
        values: np.ndarray, total: Callable[..., np.ndarray], listings: list[list[tuple[int, np.ndarray]]]
    ) -> np.ndarray | None:
        """Blocks by channels, where one group's channels stand in order on both sides; else None."""
        for side, found in enumerate(listings):
            if len(found) != 1:
                return None
            places, size = found[0][1], values.shape[1] * values.shape[2 + side]
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
            number, held = (head, self._source) if tail is None else (tail, self._sink)
            assert number is not None
            place = self._places[number]
            held[:, place] = np.logaddexp(held[:, place], logs.reshape(K, -1))
        else:
            into, out_of = self._places[head], self._places[tail]
            if head == tail:
                own = np.arange(logs.shape[2])
                loops = logs[:, :, own, own].reshape(K, -1)
                self._loops[:, into] = np.logaddexp(self._loops[:, into], loops)
                logs[:, :, own, own] = -np.inf
            self._edges.append(Edges(head, tail, into, out_of, logs))


def _spread(values: np.ndarray, nothing: float) -> np.ndarray:
    """Blocks (K, B, H, T) as one matrix (K, 1, B H, B T) with nothing elsewhere."""
    K, blocks, heads, tails = values.shape
    made = np.full((K, blocks, heads, blocks, tails), nothing)
    own = np.arange(blocks)
    made[:, own, :, own, :] = values.transpose(1, 0, 2, 3)
    return made.reshape(K, 1, blocks * heads, blocks * tails)


def _parts(
    values: np.ndarray, total: Callable[..., np.ndarray], listings: list[tuple[int, np.ndarray]], axis: int
) -> list[tuple[int | None, np.ndarray]]:
    """An axis of positions, by group and channel; ground, where there is any, as one entry."""
    made: list[tuple[int | None, np.ndarray]] = []
    rest = np.ones(values.shape[axis], bool)
    for number, places in listings:
        whole = places.shape[1] == 1 and np.array_equal(places[:, 0], np.arange(len(rest)))
        taken = values if whole else np.take(values, places.ravel(), axis=axis)
        if places.shape[1] > 1:
            taken = total(taken.reshape(*values.shape[:axis], *places.shape, *values.shape[axis + 1 :]), axis=axis + 1)
        made.append((number, taken))
        rest[places.ravel()] = False
    if rest.any():
        ground = values if rest.all() else np.compress(rest, values, axis=axis)
        made.append((None, total(ground, axis=axis, keepdims=True)))
    return made


def _sum(values: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
    return values.sum(axis=axis, keepdims=keepdims)


def _log_sum(logs: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
    return np.logaddexp.reduce(logs, axis=axis, keepdims=keepdims)


def _closure(seeds: np.ndarray, edges: tuple[Edges, ...], *, forward: bool) -> np.ndarray:
    """The nodes (K, N) that positive edges join to the seeds, along their direction or against it."""
    found, before = seeds.copy(), -1
    there = () if found.all() else [edge.logs > -np.inf for edge in edges]
    ordered = list(zip(edges, there, strict=False))
    while (count := int(found.sum())) > before and not found.all():
        before = count
        for edge, positive in ordered if forward else reversed(ordered):
            near, far = (edge.out_of, edge.into) if forward else (edge.into, edge.out_of)
            K, blocks, heads, tails = positive.shape
            if forward:
                joined = (positive & found[:, near].reshape(K, blocks, 1, tails)).any(axis=3)
            else:
                joined = (positive & found[:, near].reshape(K, blocks, heads, 1)).any(axis=2)
            found[:, far] |= joined.reshape(K, -1)
    return found
