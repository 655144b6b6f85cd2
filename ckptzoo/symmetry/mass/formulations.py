"""Which scales are free in front of BatchNorms: three formulations, each with its own table; and their solution.

The filters in front of a BatchNorm can be scaled down to nothing: its running variance follows, and the minimum over
the whole group of a table is 0 and not attained. A formulation says which scales are free instead. Where a table has
no running variance all of them are the same, the paper's.

- ``pinned``: filters in front of a BatchNorm stay as they are, and what it writes is scaled. No edge joins two of
  those channels in an ordinary network: ``u = log(out / in) / 4``, with in the sum of the squared gains that write the
  channel and out the mass that reads it, and the least mass is ``fixed + sum 2 sqrt(in out)``.
- ``volume``: filters move within ``sum log a = 0`` over the channels of a running variance, with the table's action on
  it and hence ``a >= sqrt(eps / (variance + eps))``.
- ``eval_chain``: ``w' = a w, mean' = a mean, gain' = gain / a``, the running variance as it is. In evaluation mode,
  ``gain' (a x - a mean) / sqrt(variance + eps) = gain (x - mean) / sqrt(variance + eps)``: exactly the same function.
  It is not the table's action (there the variance moves and the gain does not), and no symmetry in training mode. The
  gains become edges from what a filter writes to what the BatchNorm writes.

A gain belongs to the running variance in the same module: ``bn1.weight`` to ``bn1.running_var``. Filters
whose BatchNorm has no gain stay as they are in ``eval_chain``.

``least_mass`` solves a formulation for stacked checkpoints, all channels included; ``least_mass_scales`` is the rule of
the gauge ``min-mass``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ckptzoo.errors import Problem, SymmetryError, UnknownNameError
from ckptzoo.schema.groups import AxisAction, Fixed, Group, Segment, with_scaled_gates
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import positions
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.mass.assembly import build_network
from ckptzoo.symmetry.mass.blocks import Engine, LeastMass, find_blocks, imbalance_of_rounding, taking_turns
from ckptzoo.symmetry.mass.certificate import certify, total_masses
from ckptzoo.symmetry.mass.packing import unpacked
from ckptzoo.symmetry.mass.solver import balance
from ckptzoo.symmetry.moments import Moments
from ckptzoo.symmetry.scales import Scales, solve

PINNED, VOLUME, CHAIN = "pinned", "volume", "eval_chain"
FORMULATIONS = (PINNED, CHAIN, VOLUME)


@dataclass(frozen=True)
class Formulation:
    """A formulation for one table, by its ``name`` in ``FORMULATIONS``.

    ``symmetry`` is the network's table, ``table`` the one whose scales are free. ``gains`` are tensors that have one
    more axis in ``table``, of length 1: ``eval_chain``'s. ``layers`` has the groups of every layer of ``volume``, and
    its running variances.
    """

    name: str
    symmetry: Symmetry
    table: Symmetry
    gains: tuple[str, ...] = ()
    layers: tuple[tuple[tuple[str, ...], tuple[AxisAction, ...]], ...] = ()

    @classmethod
    def of(cls, name: str, symmetry: Symmetry, shapes: Mapping[str, tuple[int, ...]]) -> "Formulation":
        """Return a formulation by name, for tensors of these shapes in one checkpoint.

        Raises ``UnknownNameError`` where there is no such formulation, and ``SymmetryError`` for ``volume`` where other
        tensors than BatchNorms read what a filter writes, for ``eval_chain`` where a running variance has several gains
        in its module, and for all but ``pinned`` where the table has matrices.
        """
        if name not in FORMULATIONS:
            raise UnknownNameError("ckptzoo.symmetry", "formulation", name, FORMULATIONS)
        unsigned = _without_signs(symmetry)
        variances = tuple(action for action in unsigned.actions if action.exponent == 2)
        positive = {group.id for group in unsigned.groups if group.resizes}
        normalised = {segment.group for action in variances for segment in action.segments} & positive
        if not normalised:
            return cls(name, symmetry, unsigned)
        if name == PINNED:
            return cls(name, symmetry, _without_scales(unsigned, normalised))
        if symmetry.has_matrices:
            step = "Use the formulation 'pinned'."
            raise SymmetryError(Problem(name, "symmetry table", "one without matrices", "one with matrices", step))
        if name == VOLUME:
            return cls(name, symmetry, unsigned, layers=_volume_layers(unsigned, variances, normalised))
        table, gains = _eval_chain(unsigned, variances, normalised, shapes)
        return cls(name, symmetry, table, gains)

    def to_table(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stacked weights with the axes that ``table`` has; nothing is copied."""
        return {name: array[..., None] if name in self.gains else array for name, array in weights.items()}

    def from_table(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stacked weights with the axes that the network has."""
        return {name: array[..., 0] if name in self.gains else array for name, array in weights.items()}

    def least_log_scales(self, arrays: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """Return for every layer group id to least log-scales (K, n)."""
        bounds: list[dict[str, np.ndarray]] = []
        for groups, variances in self.layers:
            K = len(next(iter(arrays.values())))
            layer = {name: np.full((K, self.symmetry[name].n), -np.inf) for name in groups}
            for action in variances:
                variance = arrays[action.tensor].astype(np.float64) + action.eps
                with np.errstate(divide="ignore", invalid="ignore"):
                    least = np.nan_to_num(np.minimum(np.log(action.eps / variance) / 2, 0), nan=0.0, neginf=-np.inf)
                for name, places in positions(action, self.symmetry):
                    if name in layer:
                        layer[name] = np.maximum(layer[name], least[:, places].max(axis=2))
            bounds.append(layer)
        return bounds


def _without_scales(symmetry: Symmetry, groups: set[str]) -> Symmetry:
    """Return the table without the scales of some groups."""
    fixed = tuple(replace(group, scale="none") if group.id in groups else group for group in symmetry.groups)
    return Symmetry(fixed, with_scaled_gates(symmetry.actions, fixed))


def _without_signs(symmetry: Symmetry) -> Symmetry:
    """Return the table without the signs in front of normalisations: they change no mass, and stay unchanged."""
    absorbed = {segment.group for action in symmetry.actions for segment in action.signs}
    groups = tuple(
        replace(group, scale="positive" if group.resizes else "none") if group.id in absorbed else group
        for group in symmetry.groups
    )
    return Symmetry(groups, with_scaled_gates((replace(action, signs=()) for action in symmetry.actions), groups))


def _volume_layers(
    symmetry: Symmetry, variances: tuple[AxisAction, ...], normalised: set[str]
) -> tuple[tuple[tuple[str, ...], tuple[AxisAction, ...]], ...]:
    """Return groups that share running variances, with those."""
    for action in symmetry.actions:
        read = {segment.group for segment in action.segments} & normalised
        if action.exponent == -1 and action.in_mass and read:
            what, step = f"group {min(read)!r}", "Use the formulation 'pinned'."
            raise SymmetryError(Problem("volume", what, "BatchNorms alone to read it", repr(action.tensor), step))
    layers: list[tuple[set[str], list[AxisAction]]] = []
    for action in variances:
        groups = {segment.group for segment in action.segments} & normalised
        same = [item for item in layers if item[0] & groups]
        joined = groups.union(*(item[0] for item in same)), [action, *(act for item in same for act in item[1])]
        layers = [*(item for item in layers if item not in same), *([joined] if groups else [])]
    order = [group.id for group in symmetry.groups]
    return tuple((tuple(sorted(groups, key=order.index)), tuple(actions)) for groups, actions in layers)


def _eval_chain(
    symmetry: Symmetry,
    variances: tuple[AxisAction, ...],
    normalised: set[str],
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[Symmetry, tuple[str, ...]]:
    """Return the table of ``eval_chain``, without variances, and its gains, which read what a filter writes."""
    gains: dict[str, tuple[AxisAction, AxisAction]] = {}
    without_gain: set[str] = set()
    for variance in variances:
        module = variance.tensor.rpartition(".")[0]
        beside = [
            action
            for action in symmetry.actions
            if action.role == "gain" and action.tensor.rpartition(".")[0] == module and len(shapes[action.tensor]) == 1
        ]
        if len(beside) > 1:
            got, step = " and ".join(repr(action.tensor) for action in beside), "Name tensors <module>.<tensor>."
            raise SymmetryError(Problem("eval_chain", repr(variance.tensor), "one gain in its module", got, step))
        if beside:
            gains[beside[0].tensor] = beside[0], variance
        else:
            without_gain |= {segment.group for segment in variance.segments} & normalised
    # groups inside whose channels others act, and those, keep their blocks, which say where
    nested = {name for pair in symmetry.nested for name in pair}
    groups = tuple(
        replace(
            group,
            perm=group.perm if group.id in nested else Fixed(),
            scale="none" if group.id in without_gain else group.scale,
        )
        for group in symmetry.groups
    )
    kept = [action for action in symmetry.actions if action not in variances]
    chains: list[AxisAction] = []
    rest: list[Group] = []
    for name, (_, variance) in gains.items():
        segments, spare = _full_axis(variance.segments, f"{name}:rest", shapes[name][0])
        chains.append(AxisAction(name, 1, segments, -1, True, "in", blocks=shapes[name][0]))
        rest += [Group(f"{name}:rest", spare, Fixed(), "none")] if spare else []
    used = {name for action in (*kept, *chains) for name in action.groups}
    groups = (*(group for group in groups if group.id in used), *rest)
    return Symmetry(groups, with_scaled_gates((*kept, *chains), groups)), tuple(gains)


def _full_axis(segments: tuple[Segment, ...], rest: str, size: int) -> tuple[tuple[Segment, ...], int]:
    """Return segments that fill an axis, and their number; positions in no segment are channels of another group."""
    taken = np.zeros(size, bool)
    for segment in segments:
        taken[segment.offset : segment.offset + segment.inner * segment.count] = True
    holes = [Segment(rest, int(at), 1, 1) for at in np.flatnonzero(~taken)]
    return (*segments, *holes), len(holes)


def least_mass(arrays: Mapping[str, np.ndarray], formulation: Formulation, engine: Engine = balance) -> LeastMass:
    """Find the least mass of a formulation, by turns where one network of flows does not hold all of it.

    ``arrays`` maps tensor names to (K, *shape), with the axes of the formulation's table, numpy and finite.
    """
    if taking_turns(formulation.table):
        return find_blocks(arrays, formulation.table, engine)
    return find_scales(arrays, formulation, engine)


def find_scales(arrays: Mapping[str, np.ndarray], formulation: Formulation, engine: Engine) -> LeastMass:
    """Find the scales of least mass, as ``least_mass`` where they are one network of flows.

    Dropped channels are scaled as in scales.py, to unit norm around those of least mass, and signs are chosen as there.
    """
    table = formulation.table
    network = build_network(Moments(*unpacked(arrays, table)), formulation.least_log_scales(arrays))
    K = len(network.source)
    balanced = engine(network, imbalance_of_rounding(arrays, formulation.table))
    before = total_masses(network, np.zeros_like(balanced.log_scales))
    after = certify(network, balanced.log_scales)
    known = network.kept | network.layered_nodes
    settled: dict[str, np.ndarray] = {}
    for group, place in zip(network.groups, network.slices, strict=True):
        settled[group.id] = np.where(known[:, place], np.exp(balanced.log_scales[:, place]), np.nan)
    signed = {group.id: group.n for group in table.groups if group.flips}
    settled |= {name: np.full((K, n), np.nan) for name, n in signed.items() if name not in settled}
    open_scales = [np.isnan(scale).any(axis=1) | (name in signed) for name, scale in settled.items()]
    rows = np.flatnonzero(np.any(open_scales, axis=0))
    unsigned = np.zeros(K, bool)
    if len(rows):
        some = Moments({name: array[rows] for name, array in arrays.items()}, table)
        others = solve(some, settled={name: scale[rows] for name, scale in settled.items()})
        unsigned[rows] = others.unsigned | others.unsolved
        for name, scale in settled.items():
            scale[rows] = others.scales[name]
    scales = {
        group.id: settled.get(group.id, np.ones((K, group.n))) for group in formulation.symmetry.groups if group.scaled
    }
    dropped = (~network.kept).sum(axis=1)
    figures = before, after.mass, after.gap, after.imbalance, dropped, balanced.iterations, unsigned
    return LeastMass(GroupElement({}, scales), *figures, np.zeros(K, np.int64))


def least_mass_scales(moments: Moments) -> Scales:
    """Return the scales of least mass, filters before normalisations pinned (``min_mass``), dropped channels dead."""
    shapes = {name: array.shape[1:] for name, array in moments.arrays.items()}
    problem = Formulation.of(PINNED, moments.symmetry, shapes)
    found = least_mass(moments.arrays, problem)
    unit = {group.id: np.ones((moments.K, group.n)) for group in moments.symmetry.groups if group.scaled}
    clamped = np.zeros(moments.K, np.int64)
    return Scales({**unit, **found.element.scales}, found.dropped, clamped, found.unsigned, found.unsolved)
