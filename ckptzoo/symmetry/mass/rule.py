"""The scales of least mass of stacked checkpoints, all channels included: the rule of the gauge ``min-mass``."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ckptzoo.symmetry.layout import is_float, stored_dtype
from ckptzoo.symmetry.mass.assembly import network_of
from ckptzoo.symmetry.mass.certificate import certify, masses
from ckptzoo.symmetry.mass.formulations import PINNED, Formulation
from ckptzoo.symmetry.mass.network import Network
from ckptzoo.symmetry.mass.solver import Balanced, balance
from ckptzoo.symmetry.moments import Moments
from ckptzoo.symmetry.scales import Scales, solve

CERTIFIED = 1e-10
"""Largest relative gap of scales that count as those of least mass."""
EXACT = 2.0**-40
"""Imbalance at which weights of full precision are left as they are."""

Engine = Callable[[Network, float], Balanced]
"""From networks and the imbalance that is left alone to log-scales."""


@dataclass(frozen=True, eq=False)
class Found:
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


def scales_of(arrays: dict[str, np.ndarray], formulation: Formulation, engine: Engine = balance) -> Found:
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
    return Found(scales, before, after.mass, after.gap, after.imbalance, dropped, balanced.iterations, unsigned)


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
