r"""The least mass where no flow network holds all scales: matrices of heads, scales of queries and keys, and gates.

The mass ``|g w|^2`` is convex along the one-parameter subgroups of scales and invertible matrices, so that a point
which no group can improve is the least one (Kempf and Ness, 1979). Groups take turns: with all others fixed

- a block of matrices, A what its channels write and B what reads them, has the least mass ``2 |A^T B|_*`` where
  ``A A^T = B B^T`` (ckptzoo/symmetry/kinds/linear.py), a complex number, a scale whose inverse another tensor is
  written with, or one of a gate, where both sides have equal norms;
- all other scales form a flow network (network.py), in which the channels of these count as ground.

Of a gated unit with the masses p of what writes the gate, q of what writes the value and r of what reads the product,
the mass at scales a and b is ``p a^2 + q b^2 + r / (a b)^2``, so that what is left of an error falls to a quarter in
each turn. A gate that nothing writes, or whose product nothing reads, has no least mass and is dropped.

**How far the mass is above the least one.** With ``g = exp(xi)`` a better point, xi the logarithms d of scales and
symmetric matrices X, convexity gives ``|g w|^2 >= |w|^2 + 2 sum d_i (in_i - out_i) + 2 sum tr(X (A A^T - B B^T))``, so
that the excess is at most ``2 sum |d_i| |in_i - out_i| + 2 sum |X| |A A^T - B B^T|_*``. As ``|g w|^2 <= P``, the mass
at w, every part of g w is at most that: for a channel that a tensor writes with the squared norm m, and whose other
axes, and gates, have factors of at least ``exp(-b)``, ``d <= b + log(P / m) / 2``, and ``X <= b + log(P / lambda) / 2``
for the least eigenvalue of ``A A^T``; likewise from below. The bounds b of factors follow from each other, group by
group, as those in certificate.py do.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ckptzoo.schema.groups import AxisAction, Group, with_scaled_gates
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.action import transform
from ckptzoo.symmetry.arrays import by_channel, is_float, positions, stored_dtype
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.kinds.kind import Side
from ckptzoo.symmetry.kinds.registry import FACTORS, is_balanced
from ckptzoo.symmetry.mass.assembly import build_network
from ckptzoo.symmetry.mass.certificate import FLOOR, total_masses
from ckptzoo.symmetry.mass.network import Network
from ckptzoo.symmetry.mass.packing import unpacked
from ckptzoo.symmetry.mass.solver import Balanced
from ckptzoo.symmetry.matrices.gauge import balance_blocks
from ckptzoo.symmetry.matrices.tables import among
from ckptzoo.symmetry.matrix_action import joined_rows
from ckptzoo.symmetry.moments import Moments
from ckptzoo.symmetry.scales import solve
from ckptzoo.symmetry.tables import finite

MAX_ROUNDS = 300
"""The largest number of turns of blocks and the other scales."""
CLOSE = 1e-12
"""The gap at which turns end."""
PATIENCE = 20
"""Turns in which the gap has to halve; where a bias keeps a block from its limit it never does."""
EXACT = 2.0**-40
"""The largest imbalance at which weights of full precision are left as they are."""
CERTIFIED = 1e-10
"""Largest relative gap of scales that count as those of least mass."""
FIGURES = ("mass_before", "mass_after", "gap", "imbalance", "dropped", "iterations", "unsigned", "degenerate")
Arrays = Mapping[str, np.ndarray]
Engine = Callable[[Network, float], Balanced]
"""Maps networks, and the imbalance up to which they are left as they are, to log-scales."""


@dataclass(frozen=True, eq=False)
class LeastMass:
    """K checkpoints at their least mass; ``mass_before``, ``mass_after``, ``gap`` and ``imbalance`` as in ``MinMass``.

    ``element`` leads there; NaN in the matrices of blocks of lower rank, whose channels, counted by ``degenerate``
    (K,), are 0. ``weights`` are (K, *shape), at least float32; empty where they are those under ``element``.
    ``dropped`` (K,) counts channels on no way from input to output, ``iterations`` (K,) turns or steps. ``unsigned``
    (K,) is True where a sign or the scale of a dropped channel could not be determined.
    """

    element: GroupElement
    mass_before: np.ndarray
    mass_after: np.ndarray
    gap: np.ndarray
    imbalance: np.ndarray
    dropped: np.ndarray
    iterations: np.ndarray
    unsigned: np.ndarray
    degenerate: np.ndarray
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def unchanged(cls, table: Symmetry, K: int, weights: dict[str, np.ndarray]) -> "LeastMass":
        """Return the result for K checkpoints that stay unchanged."""
        before, after, gap, imbalance = np.full((4, K), np.nan)
        dropped, iterations, degenerate = np.zeros((3, K), np.int64)
        figures = before, after, gap, imbalance, dropped, iterations, np.zeros(K, bool), degenerate
        return cls(GroupElement.identity(among(table, keep=is_balanced), K), *figures, weights)

    @property
    def unsolved(self) -> np.ndarray:
        """(K,) bool, where the mass is not certainly the least one, or a sign is open."""
        return ~(self.gap <= CERTIFIED) | self.unsigned

    @property
    def usable(self) -> np.ndarray:
        """(K,) bool, where weights, or figures and scales, are finite."""
        if self.weights:
            return finite(self.weights, len(self.gap))
        found = np.isfinite(self.mass_after + self.gap)
        for scale in self.element.scales.values():
            found &= (np.isfinite(scale) & (scale != 0)).all(axis=1)
        return found

    def put(self, rows: np.ndarray, found: "LeastMass", usable: np.ndarray) -> None:
        """Put the usable ones of other checkpoints on these rows, in place."""
        rows = rows[usable]
        for part, values in self.element.parts.items():
            for name in values.keys() & found.element.parts[part].keys() if part != "perms" else ():
                values[name][rows] = found.element.parts[part][name][usable]
        for name in FIGURES:
            getattr(self, name)[rows] = getattr(found, name)[usable]
        for name, array in found.weights.items():
            self.weights[name][rows] = array[usable]


def taking_turns(table: Symmetry) -> list[str]:
    """Return the groups that no flow network holds, in the table's order.

    They are those with matrices; gates, whose scales act where others do; and scales whose inverse writes a weight with
    other scales on another axis, so that its mass has the inverses of two scales, as that of keys behind the gains of a
    normalisation.
    """
    inverse = _gates(table)
    for tensor in dict.fromkeys(action.tensor for action in table.actions):
        parts = [
            part
            for action in table.actions_on(tensor)
            for part in action.parts
            if any(table[name].resizes for name in part.listed_groups)
        ]
        axes = [part.axis for part in parts if part.exponent == -1]
        if len(set(axes)) > 1 and any(part.in_mass for part in parts):
            inverse |= {
                name
                for part in parts
                if part.exponent == -1 and part.role == "out"
                for name in part.listed_groups
                if table[name].resizes
            }
    return [group.id for group in table.groups if is_balanced(group) or group.id in inverse]


def _gates(table: Symmetry) -> set[str]:
    """Return the gates whose sizes are free."""
    gates = {item.group for action in table.actions for gate in action.acting[1:] for item in gate.segments}
    return {name for name in gates if table[name].resizes}


def imbalance_of_rounding(arrays: Arrays, table: Symmetry) -> float:
    """Return the largest imbalance that the rounding of weights (K, *shape) explains: 2 units of the coarsest dtype.

    ``table`` says which of them count in the mass.
    """
    counted = {action.tensor for action in table.actions if action.in_mass and is_float(arrays[action.tensor])}
    coarsest = [float(np.finfo(stored_dtype(arrays[name].dtype)).eps) for name in counted]
    return max(2 * max(coarsest, default=0.0), EXACT)


def find_blocks(arrays: Arrays, table: Symmetry, engine: Engine) -> LeastMass:
    """Take turns until the mass is the least one; a checkpoint's turns do not depend on the others.

    ``arrays`` (K, *shape) are finite; ``table`` has no signs of normalisations and no scales in front of them
    (``Formulation.table``); ``engine`` solves for the other scales. Without matrices a checkpoint that balances within
    the rounding of its weights is left as it is. It computes in float64, in memory for a copy of the weights. Raises
    ``SymmetryError`` where scales or matrices of a group act on two axes of one tensor, or the flow network cannot hold
    the other scales.
    """
    work = {name: array.astype(np.float64) if is_float(array) else array.copy() for name, array in arrays.items()}
    K, turns = len(next(iter(work.values()))), taking_turns(table)
    outside = _without_scales(table, turns)
    blocks_table, element = among(table, keep=is_balanced), GroupElement.identity(table, K)
    lost_gates = _lost_gates(work, table, outside)
    network = _network(work, lost_gates, outside, table)
    before = total_masses(network, np.zeros_like(network.source))
    after, (gap, imbalance) = before.copy(), _certified(work, network, lost_gates, table, turns, before)
    dropped, iterations, waiting = _count(network, lost_gates), np.zeros(K, np.int64), np.arange(K)
    still, stays = np.inf, np.zeros(K, bool)
    if not blocks_table.has_matrices:
        still, stays = EXACT / 2, imbalance <= imbalance_of_rounding(arrays, table)
    first, earlier, uneven = imbalance[stays], np.full(K, np.inf), np.full(K, np.inf)
    for turn in range(MAX_ROUNDS):
        some = {name: array[waiting] for name, array in work.items()}
        lost_here = {name: lost[waiting] for name, lost in lost_gates.items()}
        network = _network(some, lost_here, outside, table)
        step = _scale(some, network, engine, table)
        step = _balance(some, blocks_table, turns, table, {**_dropped(network), **lost_here}).compose(step)
        network = _network(some, lost_here, outside, table)
        after[waiting] = total_masses(network, np.zeros_like(network.source))
        dropped[waiting] = _count(network, lost_here)
        iterations[waiting] += 1
        gap[waiting], imbalance[waiting] = _certified(some, network, lost_here, table, turns, after[waiting])
        element.put(waiting, step.compose(element[waiting]))
        for name, array in some.items():
            work[name][waiting] = array
        waiting = waiting[(gap[waiting] > CLOSE) | (imbalance[waiting] > still)]
        if turn % PATIENCE == 0:
            closer = gap[waiting] <= earlier[waiting] / 2
            if lost_gates:  # with many units in a row the gap stays at 1 for many turns
                closer |= imbalance[waiting] <= uneven[waiting] / 2
            waiting, earlier, uneven = waiting[closer], np.minimum(gap, earlier), np.minimum(imbalance, uneven)
        if not len(waiting):
            break
    if stays.any():
        # their own bound is of the order of their rounding; that at the least mass is far better
        least = (after * (1 - gap))[stays]
        gap[stays] = np.clip(1 - np.divide(least, before[stays], out=np.ones_like(least), where=least > 0), FLOOR, 1)
        after[stays], imbalance[stays], iterations[stays] = before[stays], first, 0
        for name, array in work.items():
            array[stays] = arrays[name][stays]
        for scale in element.scales.values():
            scale[stays] = 1
    unsigned = _settle_rest(work, element, table, outside, lost_gates)
    weights = {name: array.astype(stored_dtype(arrays[name].dtype), copy=False) for name, array in work.items()}
    lost = np.zeros(K, np.int64)
    for group in (table[name] for name in turns):
        lost += FACTORS[group.scale].lost(*_sides(work, table, group))
    return LeastMass(element, before, after, gap, imbalance, dropped, iterations, unsigned, lost, weights)


def _without_scales(table: Symmetry, names: list[str]) -> Symmetry:
    """Return the table of permutations and scales in which some groups are not scaled."""
    plain = among(table)
    groups = tuple(replace(group, scale="none") if group.id in names else group for group in plain.groups)
    return Symmetry(groups, with_scaled_gates(plain.actions, groups))


def _network(work: Arrays, lost_gates: Mapping[str, np.ndarray], outside: Symmetry, table: Symmetry) -> Network:
    """Return the flow network of the other scales, without gates that have no least mass."""
    return build_network(Moments(*unpacked(_without(work, lost_gates, table), outside)))


def _lost_gates(work: Arrays, table: Symmetry, outside: Symmetry) -> dict[str, np.ndarray]:
    """Return (K, n) bool by group, the gates that nothing writes or whose products nothing reads."""
    K = len(next(iter(work.values())))
    lost = {name: np.zeros((K, table[name].n), bool) for name in sorted(_gates(table))}
    while lost:
        cut = _without(work, {**_dropped(_network(work, lost, outside, table)), **lost}, table)
        before, lost = (
            lost,
            {name: np.logical_or(*(side.total == 0 for side in _sides(cut, table, table[name]))) for name in lost},
        )
        if all(np.array_equal(lost[name], before[name]) for name in lost):
            break
    return lost


def _balance(
    work: dict[str, np.ndarray],
    blocks_table: Symmetry,
    turns: list[str],
    table: Symmetry,
    dropped: Mapping[str, np.ndarray],
) -> GroupElement:
    """Balance the groups that take turns, in place, one after the other."""
    K = len(next(iter(work.values())))
    one = GroupElement.identity(table, K)
    found = balance_blocks(work, blocks_table, rounds=1)
    element = GroupElement(one.perms, one.scales, {**one.matrices, **found.matrices})
    for name in turns:
        if is_balanced(table[name]):
            continue
        into, out_of = (side.total for side in _sides(_without(work, dropped, table), table, table[name]))
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = (out_of / into) ** (1 / 8 if _meets_itself(name, table) else 1 / 4)
        scale = np.where((into > 0) & (out_of > 0), scale, 1.0)
        element.scales[name][:] = scale
        _act(work, table, {name: scale})
    return element


def _meets_itself(group: str, table: Symmetry) -> bool:
    """Whether a tensor has scales of a group and their inverses, where only half a step raises no mass (solver.py)."""
    exponents = [
        (action.tensor, part.exponent)
        for action in table.actions
        for part in action.parts
        if part.exponent in (1, -1) and group in part.groups
    ]
    return any((tensor, -exponent) in exponents for tensor, exponent in exponents)


def _scale(work: dict[str, np.ndarray], network: Network, engine: Engine, table: Symmetry) -> GroupElement:
    """Give the other scales their least mass, in place."""
    element = GroupElement.identity(table, len(network.source))
    if not network.groups:
        return element
    logs = engine(network, FLOOR).log_scales
    scales = {
        group.id: np.where(network.kept[:, place], np.exp(logs[:, place]), 1.0)
        for group, place in zip(network.groups, network.slices, strict=True)
    }
    for name, scale in scales.items():
        element.scales[name][:] = scale
    _act(work, table, scales)
    return element


def _act(work: dict[str, np.ndarray], table: Symmetry, scales: Mapping[str, np.ndarray]) -> None:
    """Scale channels, in place."""
    K = len(next(iter(work.values())))
    plain = among(table)
    perms = {group.id: np.tile(np.arange(group.n), (K, 1)) for group in plain.groups}
    element = GroupElement(perms, scales)
    for name in dict.fromkeys(action.tensor for action in plain.actions):
        actions = plain.actions_on(name)
        if is_float(work[name]) and any(action.groups & scales.keys() for action in actions):
            work[name] = transform(work[name], actions, element, plain)


def _settle_rest(
    work: dict[str, np.ndarray],
    element: GroupElement,
    table: Symmetry,
    outside: Symmetry,
    lost_gates: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Scale dropped channels to unit norm and choose signs, in place; return (K,) where some are undetermined."""
    plain = among(table)
    network = _network(work, lost_gates, outside, table)
    K = len(network.source)
    settled = {group.id: np.ones((K, group.n)) for group in plain.groups if group.scaled}
    for group, place in zip(network.groups, network.slices, strict=True):
        settled[group.id] = np.where(network.kept[:, place], 1.0, np.nan)
    settled |= {name: np.where(lost, np.nan, 1.0) for name, lost in lost_gates.items()}
    for group in plain.groups:
        if group.scale == "sign":
            settled[group.id] = np.full((K, group.n), np.nan)
    if not settled:
        return np.zeros(K, bool)
    others = solve(Moments(work, plain), settled=settled)
    _act(work, table, others.scales)
    for name, value in element.scales.items():
        value *= others.scales[name]
    for name, matrix in element.matrices.items():
        if name in others.scales:
            matrix *= others.scales[name].reshape(*matrix.shape[:-1], 1)
    return others.unsigned | others.unsolved


def _count(network: Network, lost_gates: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return (K,) the number of dropped channels."""
    return np.asarray(sum((lost.sum(axis=1) for lost in lost_gates.values()), (~network.kept).sum(axis=1)))


def _certified(
    work: Arrays,
    network: Network,
    lost_gates: Mapping[str, np.ndarray],
    table: Symmetry,
    turns: list[str],
    mass: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gaps (K,), and the largest imbalance of a channel or a block, dropped channels left out."""
    cut, plain = unpacked(_without(work, {**_dropped(network), **lost_gates}, table), table)
    groups = [group for group in plain.groups if group.resizes or group.id in turns]
    sides = {group.id: _sides(cut, plain, group) for group in groups}
    upper, lower = _bounds(plain, groups, sides, mass)
    excess, imbalance = np.zeros(len(mass)), np.zeros(len(mass))
    with np.errstate(invalid="ignore"):
        for group in groups:
            off, share = FACTORS[group.scale].imbalance(*sides[group.id])
            excess += 2 * np.where(off > 0, off * np.maximum(upper[group.id], lower[group.id]), 0)
            imbalance = np.maximum(imbalance, share)
        gap = np.where(mass > 0, excess / mass, 0)
    return np.where(np.isfinite(gap), np.clip(gap, FLOOR, 1), 1.0), imbalance


def _dropped(network: Network) -> dict[str, np.ndarray]:
    """Return (K, n) bool by group, the channels on no way from input to output."""
    return {group.id: ~network.kept[:, place] for group, place in zip(network.groups, network.slices, strict=True)}


def _without(work: Arrays, dropped: Mapping[str, np.ndarray], table: Symmetry) -> dict[str, np.ndarray]:
    """Return the weights without those of dropped channels, which do not count in the mass."""
    made = dict(work)
    for action in table.actions:
        for name, places in (*positions(action, table), *positions(action.of_gates, table)):
            gone = dropped.get(name)
            if gone is not None and gone.any() and action.in_mass and action.blocks == 1:
                factor = np.ones((len(gone), made[action.tensor].shape[action.axis + 1]))
                factor[:, places.ravel()] = np.repeat(~gone, places.shape[1], axis=1)
                ones = [1] * (made[action.tensor].ndim - action.axis - 2)
                made[action.tensor] = made[action.tensor] * factor.reshape(len(gone), *[1] * action.axis, -1, *ones)
    return made


def _bounds(
    table: Symmetry, groups: list[Group], sides: Mapping[str, tuple[Side, Side]], mass: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return how far the logarithms of factors can rise and fall (K,), by group."""
    K = len(mass)
    upper, lower = ({group.id: np.full(K, np.inf) for group in groups} for _ in range(2))

    def others(action: AxisAction, group: str) -> np.ndarray:
        """Return how far the factors along the other axes, and of gates, can be below 1."""
        total = np.zeros(K)
        for other in table.actions_on(action.tensor):
            if other.exponent not in (1, -1):
                continue
            side = lower if other.exponent == 1 else upper
            for one in other.acting:
                names = one.listed_groups & side.keys()
                if other.axis != action.axis or (other.multiplied and group not in names):
                    total += np.maximum.reduce([np.zeros(K), *(side[name] for name in names)])
        return total

    for _ in range(2 * len(groups) + 1):
        before = [value.copy() for side in (upper, lower) for value in side.values()]
        for group in groups:
            for side, bound in zip(sides[group.id], (upper, lower), strict=True):
                if side.actions:
                    beside = [others(action, group.id) for action in side.actions]
                    found = FACTORS[group.scale].reach(side, mass, beside)
                    bound[group.id] = np.minimum(bound[group.id], np.maximum(found, 0))
        after = [value for side in (upper, lower) for value in side.values()]
        if all(np.array_equal(one, two) for one, two in zip(before, after, strict=True)):
            break
    return upper, lower


def _sides(work: Arrays, table: Symmetry, group: Group) -> tuple[Side, Side]:
    """Return what a group's channels write, and what they read."""
    K = len(next(iter(work.values())))

    def side(exponent: int) -> Side:
        found = list(_sizes(work, table, group, exponent))
        rows = partial(joined_rows, work, group, table, inverted=exponent == -1)
        return Side(K, group.n, [action for action, _ in found], [size for _, size in found], rows)

    return side(1), side(-1)


def _sizes(work: Arrays, table: Symmetry, group: Group, exponent: int) -> Iterator[tuple[AxisAction, np.ndarray]]:
    """Yield the squared norms (K, n) of each tensor with such an exponent of a group's channels, biases left out."""
    for whole in table.actions:
        if not any(action.in_mass for action in table.actions_on(whole.tensor)):
            continue
        for action in whole.parts:
            listed = (*positions(action, table), *positions(action.of_gates, table))
            own = [places for name, places in listed if name == group.id]
            if action.exponent != exponent or not own:
                continue
            channels = by_channel(work[action.tensor], action)
            squares = np.square(channels.reshape(len(channels), channels.shape[1] * channels.shape[2], -1)).sum(axis=2)
            yield whole, sum((squares[:, places].sum(axis=2) for places in own), np.zeros((1, group.n)))
