"""The representative of least mass of every checkpoint's orbit under scalings."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptzoo.errors import UnknownNameError
from ckptzoo.symmetry.action import apply
from ckptzoo.symmetry.arrays import Stacked, as_array, stack_of
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.mass.convex import by_cvxpy
from ckptzoo.symmetry.mass.formulations import PINNED, Engine, Formulation, RuleResult, scales_of
from ckptzoo.symmetry.mass.solver import balance
from ckptzoo.symmetry.tables import Arch, finite, fits, pieces, table_of, take_rows

ENGINES: dict[str, Engine] = {"newton": balance, "cvxpy": by_cvxpy}


@dataclass(frozen=True, eq=False)
class MinMass:
    """K checkpoints at their least mass, with a bound on what is left.

    Parameters
    ----------
    weights : tensor name to (K, *shape), at least float32, in the framework of the raw weights.
    scales : group id to (K, n) float64, for the groups of the table that scale. With ``pinned`` and ``volume`` they
        make a group element, with ``eval_chain`` not.
    mass_before, mass_after : (K,) float64, the sum of squared weights, biases left out, of what lies on a way from
        input to output; and of tensors with two or more axes that the table does not name.
    gap : (K,) float64, ``(P - D) / P`` with P the mass after and D a lower bound of the least mass; at least 2^-52.
    imbalance : (K,) float64, by how much the flows that prove D miss a circulation: the largest
        ``|in - out| / (in + out)`` of a channel. The gap has it in it.
    degenerate : (K,) int64, channels on no way from input to output: they have no least mass, and unit norm instead.
    iterations : (K,) int64, of the engine; 0 where the solution is in closed form or was there already.
    formulation : what moves in front of BatchNorms.

    A checkpoint that is not finite, or would not be, has the weights that it had, scales of 1 and NaN for figures.
    """

    weights: dict[str, Any]
    scales: dict[str, np.ndarray]
    mass_before: np.ndarray
    mass_after: np.ndarray
    gap: np.ndarray
    imbalance: np.ndarray
    degenerate: np.ndarray
    iterations: np.ndarray
    formulation: str


def min_mass(
    weights: Stacked,
    arch: Arch,
    *,
    formulation: str = PINNED,
    engine: str = "newton",
    threads: int | None = None,
) -> MinMass:
    """Scale K stacked networks to the least sum of squared weights: the same functions.

    ``min over u of sum of m_e exp(2 (u_head - u_tail))``, arXiv 2310.08287, section 3.3, with m the squared weights
    between two channels and u the log-scales of hidden channels; biases are left out. How it is solved is in
    ckptzoo/symmetry/mass/solver.py, the bound in certificate.py, what moves where BatchNorms stand in formulations.py.

    Parameters
    ----------
    weights : tensor name to (K, *shape), numpy or torch; half precisions give float32. Whatever shares both of its
        channels adds up: means and standard deviations of a variational network, stacked along a last axis of every
        tensor, are scaled for the least ``sum of mean^2 + deviation^2`` (with a table as ``arch``; leave out the
        output's bias, which the table does not name and which has two axes then).
    arch : as in ``canonicalize``.
    formulation : ``"pinned"``, ``"volume"`` or ``"eval_chain"``; without running variances all are the same.
    engine : ``"newton"``, or ``"cvxpy"`` for one checkpoint after the other by Clarabel, to compare with.
    threads : at most so many; None for one a core.

    Raises
    ------
    UnknownNameError
        No such formulation or engine.
    SymmetryError
        The weights do not fit the table, it has no group, or no table is known; a tensor has two axes that write
        channels, or two that read them; the formulation does not know a BatchNorm's surroundings.
    MissingExtraError
        ``engine="cvxpy"`` without cvxpy.

    Notes
    -----
    A checkpoint whose channels balance within the rounding of its weights is left as it is. Groups with signs have
    them chosen as by ``canonicalize``. Time and iterations: benchmarks/mass.py. Laws: tests/laws/test_mass.py.
    """
    if engine not in ENGINES:
        raise UnknownNameError("ckptzoo.symmetry", "engine", engine, tuple(ENGINES))
    symmetry = table_of(arch)
    arrays, K = stack_of(weights, symmetry)
    fits(arrays, symmetry, arch)
    way = Formulation.of(formulation, symmetry, {name: array.shape[1:] for name, array in arrays.items()})
    seen = way.seen(arrays)
    made = _blank(way, K)

    def solved(rows: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            found = scales_of(take_rows(seen, rows), way, ENGINES[engine])
        usable = np.isfinite(found.mass_after + found.gap)
        for scale in found.scales.values():
            usable &= (np.isfinite(scale) & (scale != 0)).all(axis=1)
        _put(made, rows[usable], found, usable)

    count = threads or os.cpu_count() or 1
    rows = np.flatnonzero(finite(arrays, K))
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(solved, pieces(rows, arrays, count)))
    with np.errstate(all="ignore"):
        scaled = _applied(made.scales, weights, way, threads)
        bad = ~finite(scaled, K) & ~np.isnan(made.gap)
        if bad.any():
            _put(made, np.flatnonzero(bad), _blank(way, K), bad)
            scaled = _applied(made.scales, weights, way, threads)
    figures = made.mass_before, made.mass_after, made.gap, made.imbalance, made.dropped, made.iterations
    return MinMass(scaled, made.scales, *figures, formulation)


def _blank(way: Formulation, K: int) -> RuleResult:
    """K checkpoints that stay as they are."""
    scales = {group.id: np.ones((K, group.n)) for group in way.symmetry.groups if group.scale != "none"}
    before, after, gap, imbalance = np.full((4, K), np.nan)
    return RuleResult(
        scales, before, after, gap, imbalance, np.zeros(K, np.int64), np.zeros(K, np.int64), np.zeros(K, bool)
    )


def _put(made: RuleResult, rows: np.ndarray, found: RuleResult, usable: np.ndarray) -> None:
    """Put what was found for some checkpoints in place."""
    for name, scale in made.scales.items():
        scale[rows] = found.scales[name][usable]
    for name in ("mass_before", "mass_after", "gap", "imbalance", "dropped", "iterations"):
        getattr(made, name)[rows] = getattr(found, name)[usable]


def _applied(scales: dict[str, np.ndarray], weights: Stacked, way: Formulation, threads: int | None) -> dict[str, Any]:
    """The scaled weights."""
    held = {name: as_array(array) for name, array in weights.items()}
    K = len(next(iter(scales.values()))) if scales else 0
    table = way.table
    identity = GroupElement.identity(table, K)
    element = GroupElement(identity.perms, {name: scales[name] for name in identity.scales})
    return way.unseen(apply(element, way.seen(held), table, threads=threads))
