"""Which scales are free where BatchNorms stand: three answers, each a table of its own.

The filters in front of a BatchNorm can be scaled down to nothing: its running variance follows, and the minimum over
the whole group of a table is 0 and not attained. A formulation says what moves instead. Where a table has no running
variance all of them are the same, the paper's.

- ``pinned``: filters in front of a BatchNorm stay as they are, and what it writes is scaled. No edge joins two of
  those channels in an ordinary network: ``u = log(out / in) / 4``, with in the sum of the squared gains that write the
  channel and out the mass that reads it, and the least mass is ``fixed + sum 2 sqrt(in out)``.
- ``volume``: filters move within ``sum log a = 0`` over the channels of a running variance, with the table's action on
  it and hence ``a >= sqrt(eps / (variance + eps))``.
- ``eval_chain``: ``w' = a w, mean' = a mean, gain' = gain / a``, the running variance as it is. In evaluation mode,
  ``gain' (a x - a mean) / sqrt(variance + eps) = gain (x - mean) / sqrt(variance + eps)``: exactly the same function.
  It is not the table's action (there the variance moves and the gain does not), and no symmetry in training mode. The
  gains become edges from what a filter writes to what the BatchNorm writes.

A gain belongs to the running variance that stands in the same module: ``bn1.weight`` to ``bn1.running_var``. Filters
whose BatchNorm has no gain stay as they are in ``eval_chain``.

The scales of least mass of stacked checkpoints, all channels included: the rule of the gauge ``min-mass``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ckptzoo.errors import SymmetryError, UnknownNameError
from ckptzoo.schema.symmetry import AxisAction, Fixed, Group, Segment, Symmetry
from ckptzoo.symmetry.arrays import is_float, positions, stored_dtype
from ckptzoo.symmetry.mass.assembly import network_of
from ckptzoo.symmetry.mass.certificate import certify, masses
from ckptzoo.symmetry.mass.network import Network
from ckptzoo.symmetry.mass.solver import Balanced, balance
from ckptzoo.symmetry.moments import Moments
from ckptzoo.symmetry.scales import Scales, solve

PINNED, VOLUME, CHAIN = "pinned", "volume", "eval_chain"
FORMULATIONS = (PINNED, CHAIN, VOLUME)


@dataclass(frozen=True)
class Formulation:
    """A formulation for one table.

    Parameters
    ----------
    name : one of ``FORMULATIONS``.
    symmetry : the network's table.
    table : the table whose scales are free.
    gains : tensors that ``table`` sees with one more axis, of length 1: ``eval_chain``'s.
    layers : the groups of every layer of ``volume``, and its running variances.
    """

    name: str
    symmetry: Symmetry
    table: Symmetry
    gains: tuple[str, ...] = ()
    layers: tuple[tuple[tuple[str, ...], tuple[AxisAction, ...]], ...] = ()

    @classmethod
    def of(cls, name: str, symmetry: Symmetry, shapes: Mapping[str, tuple[int, ...]]) -> "Formulation":
        """A formulation by name, for tensors of these shapes in one checkpoint.

        Raises
        ------
        UnknownNameError
            No such formulation.
        SymmetryError
            ``volume``: other tensors than BatchNorms read what a filter writes. ``eval_chain``: a running variance has
            several gains in its module.
        """
        if name not in FORMULATIONS:
            raise UnknownNameError("ckptzoo.symmetry", "formulation", name, FORMULATIONS)
        variances = tuple(action for action in symmetry.actions if action.exponent == 2)
        positive = {group.id for group in symmetry.groups if group.scale == "positive"}
        normalised = {segment.group for action in variances for segment in action.segments} & positive
        if not normalised:
            return cls(name, symmetry, symmetry)
        if name == PINNED:
            return cls(name, symmetry, _without(symmetry, normalised))
        if name == VOLUME:
            return cls(name, symmetry, symmetry, layers=_layers(symmetry, variances, normalised))
        return _chained(symmetry, variances, normalised, shapes)

    def seen(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """The stacked weights as ``table`` sees them; nothing is copied."""
        return {name: array[..., None] if name in self.gains else array for name, array in weights.items()}

    def unseen(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """The stacked weights as the network has them."""
        return {name: array[..., 0] if name in self.gains else array for name, array in weights.items()}

    def bounds(self, arrays: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """For every layer, group id to least log-scales (K, n)."""
        made: list[dict[str, np.ndarray]] = []
        for groups, variances in self.layers:
            K = len(next(iter(arrays.values())))
            found = {name: np.full((K, self.symmetry[name].n), -np.inf) for name in groups}
            for action in variances:
                held = arrays[action.tensor].astype(np.float64) + action.eps
                with np.errstate(divide="ignore", invalid="ignore"):
                    least = np.nan_to_num(np.minimum(np.log(action.eps / held) / 2, 0), nan=0.0, neginf=-np.inf)
                for name, places in positions(action, self.symmetry):
                    if name in found:
                        found[name] = np.maximum(found[name], least[:, places].max(axis=2))
            made.append(found)
        return made


def _without(symmetry: Symmetry, groups: set[str]) -> Symmetry:
    """The table without the scales of some groups."""
    held = (replace(group, scale="none") if group.id in groups else group for group in symmetry.groups)
    return Symmetry(tuple(held), symmetry.actions)


def _layers(
    symmetry: Symmetry, variances: tuple[AxisAction, ...], normalised: set[str]
) -> tuple[tuple[tuple[str, ...], tuple[AxisAction, ...]], ...]:
    """Groups that share running variances, with those."""
    for action in symmetry.actions:
        read = {segment.group for segment in action.segments} & normalised
        if action.exponent == -1 and action.in_mass and read:
            raise SymmetryError(
                f"volume: group {min(read)!r}: expected BatchNorms alone to read it, got {action.tensor!r}. "
                "Use the formulation 'pinned'."
            )
    made: list[tuple[set[str], list[AxisAction]]] = []
    for action in variances:
        groups = {segment.group for segment in action.segments} & normalised
        same = [item for item in made if item[0] & groups]
        joined = groups.union(*(item[0] for item in same)), [action, *(act for item in same for act in item[1])]
        made = [*(item for item in made if item not in same), *([joined] if groups else [])]
    order = [group.id for group in symmetry.groups]
    return tuple((tuple(sorted(groups, key=order.index)), tuple(actions)) for groups, actions in made)


def _chained(
    symmetry: Symmetry,
    variances: tuple[AxisAction, ...],
    normalised: set[str],
    shapes: Mapping[str, tuple[int, ...]],
) -> Formulation:
    """The table of ``eval_chain``: no variances, and gains that read what a filter writes."""
    gains: dict[str, tuple[AxisAction, AxisAction]] = {}
    held: set[str] = set()
    for variance in variances:
        module = variance.tensor.rpartition(".")[0]
        beside = [
            action
            for action in symmetry.actions
            if action.role == "gain" and action.tensor.rpartition(".")[0] == module and len(shapes[action.tensor]) == 1
        ]
        if len(beside) > 1:
            raise SymmetryError(
                f"eval_chain: {variance.tensor!r}: expected one gain in its module, got "
                f"{' and '.join(repr(action.tensor) for action in beside)}. Name tensors <module>.<tensor>."
            )
        if beside:
            gains[beside[0].tensor] = beside[0], variance
        else:
            held |= {segment.group for segment in variance.segments} & normalised
    groups = tuple(
        replace(group, perm=Fixed(), scale="none" if group.id in held else group.scale) for group in symmetry.groups
    )
    kept = [action for action in symmetry.actions if action not in variances]
    chains: list[AxisAction] = []
    rest: list[Group] = []
    for name, (_, variance) in gains.items():
        segments, spare = _filled(variance.segments, f"{name}:rest", shapes[name][0])
        chains.append(AxisAction(name, 1, segments, -1, True, "in", blocks=shapes[name][0]))
        rest += [Group(f"{name}:rest", spare, Fixed(), "none")] if spare else []
    used = {segment.group for action in (*kept, *chains) for segment in action.segments}
    groups = (*(group for group in groups if group.id in used), *rest)
    table = Symmetry(groups, (*kept, *chains))
    return Formulation(CHAIN, symmetry, table, tuple(gains))


def _filled(segments: tuple[Segment, ...], rest: str, size: int) -> tuple[tuple[Segment, ...], int]:
    """Segments that fill an axis, with what was in none as channels of another group; and how many those are."""
    taken = np.zeros(size, bool)
    for segment in segments:
        taken[segment.offset : segment.offset + segment.inner * segment.count] = True
    holes = [Segment(rest, int(at), 1, 1) for at in np.flatnonzero(~taken)]
    return (*segments, *holes), len(holes)


CERTIFIED = 1e-10
"""Largest relative gap of scales that count as those of least mass."""
EXACT = 2.0**-40
"""Imbalance at which weights of full precision are left as they are."""

Engine = Callable[[Network, float], Balanced]
"""From networks and the imbalance that is left alone to log-scales."""


@dataclass(frozen=True, eq=False)
class RuleResult:
    """What was found for K checkpoints.

    Parameters
    ----------
    scales : group id to (K, n) float64, for every group of the network's table that scales.
    mass_before, mass_after : (K,) float64.
    gap, imbalance : (K,) float64, as in ``Certificate``.
    dropped : (K,) int64, channels on no way from input to output.
    iterations : (K,) int64.
    unsigned : (K,) bool, a sign or the scale of a dropped channel could not be told, as in ``Scales``.
    """

    scales: dict[str, np.ndarray]
    mass_before: np.ndarray
    mass_after: np.ndarray
    gap: np.ndarray
    imbalance: np.ndarray
    dropped: np.ndarray
    iterations: np.ndarray
    unsigned: np.ndarray


def scales_of(arrays: dict[str, np.ndarray], formulation: Formulation, engine: Engine = balance) -> RuleResult:
    """Scales of least mass, and what is certain of them.

    Parameters
    ----------
    arrays : tensor name to (K, *shape), as the formulation sees them, numpy and finite.
    formulation : of their table.
    engine : what finds the scales.

    Notes
    -----
    Dropped channels are scaled as in scales.py, to unit norm around those of least mass, and signs are chosen as there.
    Laws: tests/laws/test_mass.py.
    """
    table = formulation.table
    network = network_of(Moments(arrays, table), formulation.bounds(arrays))
    K = len(network.source)
    balanced = engine(network, _precision(arrays, formulation))
    before = masses(network, np.zeros_like(balanced.logs))
    after = certify(network, balanced.logs)
    known = network.kept | network.layered
    settled: dict[str, np.ndarray] = {}
    for group, place in zip(network.groups, network.places, strict=True):
        settled[group.id] = np.where(known[:, place], np.exp(balanced.logs[:, place]), np.nan)
    for group in table.groups:
        if group.scale == "sign":
            settled[group.id] = np.full((K, group.n), np.nan)
    rows = np.flatnonzero(np.any([np.isnan(scale).any(axis=1) for scale in settled.values()], axis=0))
    unsigned = np.zeros(K, bool)
    if len(rows):
        some = Moments({name: array[rows] for name, array in arrays.items()}, table)
        others = solve(some, settled={name: scale[rows] for name, scale in settled.items()})
        unsigned[rows] = others.unsigned | others.unsolved
        for name, scale in settled.items():
            scale[rows] = others.scales[name]
    scales = {
        group.id: settled.get(group.id, np.ones((K, group.n)))
        for group in formulation.symmetry.groups
        if group.scale != "none"
    }
    dropped = (~network.kept).sum(axis=1)
    return RuleResult(scales, before, after.mass, after.gap, after.imbalance, dropped, balanced.iterations, unsigned)


def least(moments: Moments) -> Scales:
    """The scales of least mass, filters in front of a normalisation pinned (``min_mass``).

    Notes
    -----
    As many channels as were dropped count as dead.
    """
    shapes = {name: array.shape[1:] for name, array in moments.arrays.items()}
    found = scales_of(dict(moments.arrays), Formulation.of(PINNED, moments.symmetry, shapes))
    unsolved = ~(found.gap <= CERTIFIED) | found.unsigned
    return Scales(found.scales, found.dropped, np.zeros(moments.K, np.int64), found.unsigned, unsolved)


def _precision(arrays: dict[str, np.ndarray], formulation: Formulation) -> float:
    """The largest imbalance that the rounding of weights accounts for: of 2 units of the coarsest dtype."""
    counted = {
        action.tensor for action in formulation.table.actions if action.in_mass and is_float(arrays[action.tensor])
    }
    coarsest = [float(np.finfo(stored_dtype(arrays[name].dtype)).eps) for name in counted]
    return max(2 * max(coarsest, default=0.0), EXACT)
