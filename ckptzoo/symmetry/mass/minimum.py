"""``min_mass`` returns the representative of least mass of every checkpoint's orbit under scalings."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ckptzoo.arguments import Count, checked
from ckptzoo.errors import Problem, SymmetryError, UnknownNameError
from ckptzoo.symmetry.action import apply
from ckptzoo.symmetry.arrays import Stacked, as_array, beside, stack_of, stored_dtype
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.mass.blocks import Engine, LeastMass, taking_turns
from ckptzoo.symmetry.mass.convex import balance_by_cvxpy
from ckptzoo.symmetry.mass.formulations import PINNED, Formulation, least_mass
from ckptzoo.symmetry.mass.solver import balance
from ckptzoo.symmetry.tables import Arch, finite, fits, pieces, table_of, take_rows
from ckptzoo.text import brief_repr

ENGINES: dict[str, Engine] = {"newton": balance, "cvxpy": balance_by_cvxpy}
"""Solvers by name."""


@dataclass(frozen=True, eq=False)
class MinMass:
    """K checkpoints at their least mass, with a bound on the excess.

    Parameters
    ----------
    weights
        tensor name to (K, *shape), at least float32, in the framework of the raw weights.
    scales
        group id to (K, n) float64, for the groups of the table that scale. With ``pinned`` and ``volume`` they make a
        group element, with ``eval_chain`` not.
    mass_before, mass_after
        (K,) float64, the sum of squared weights, biases left out, of what is on a way from input to output; and of
        tensors with two or more axes that the table does not name.
    gap
        (K,) float64, ``(P - D) / P`` with P the mass after and D a lower bound of the least mass; at least 2^-52.
    imbalance
        (K,) float64, by how much the flows that prove D miss a circulation: the largest ``|in - out| / (in + out)`` of
        a channel. The gap includes what that costs.
    degenerate
        (K,) int64, channels on no way from input to output: they have no least mass, and unit norm instead.
    iterations
        (K,) int64, of the engine; 0 where the solution is in closed form or the weights had it already.
    formulation
        which scales are free in front of BatchNorms.
    matrices
        group id to (K, blocks, k, k) or (K, n, 2) float64, for the groups of the table with invertible matrices or
        complex numbers: part of the group element. NaN in blocks of lower rank, where the weights are a limit.

    Notes
    -----
    A checkpoint that is not finite, or would not be after scaling, keeps its weights, with scales of 1; its figures are
    NaN.
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
    matrices: dict[str, np.ndarray] = field(default_factory=dict)

    __repr__ = brief_repr


@checked
def min_mass(
    weights: Stacked,
    arch: Arch,
    *,
    formulation: str = PINNED,
    engine: str = "newton",
    threads: Count | None = None,
) -> MinMass:
    """Scale K stacked networks to the least sum of squared weights, without a change of their functions.

    ``min over u of sum of m_e exp(2 (u_head - u_tail))``, arXiv 2310.08287, section 3.3, with m the squared weights
    between two channels and u the log-scales of hidden channels; biases are left out. Blocks of invertible matrices, of
    least mass ``2 |A^T B|_*`` each, complex numbers, scales whose inverse is another weight's, and those of gates take
    turns with the others (ckptzoo/symmetry/mass/blocks.py). How it is solved is in
    ckptzoo/symmetry/mass/solver.py, the bound in certificate.py, the scales in front of BatchNorms in formulations.py.

    Parameters
    ----------
    weights
        tensor name to (K, *shape), numpy or torch; half precisions give float32. All elements that share both channels
        add up: means and standard deviations of a variational network, stacked along a last axis of every tensor, are
        scaled for the least ``sum of mean^2 + deviation^2`` (with a table as ``arch``; leave out the output's bias,
        which the table does not name and which has two axes then).
    arch
        as in ``canonicalize``.
    formulation
        ``"pinned"``, ``"volume"`` or ``"eval_chain"``; without running variances all are the same.
    engine
        ``"newton"``, or ``"cvxpy"`` for one checkpoint after the other by Clarabel, as a comparison.
    threads
        the largest number; None for one a core.

    Raises
    ------
    UnknownNameError
        No such formulation or engine.
    SymmetryError
        The weights do not fit the table, it has no group, or no table is known; a tensor has two axes that write
        channels, or two that read them; the formulation does not cover what is around a BatchNorm, or blocks.
    MissingExtraError
        ``engine="cvxpy"`` without cvxpy.

    Notes
    -----
    A checkpoint whose channels balance within the rounding of its weights is left as it is. Groups with signs have
    them chosen as by ``canonicalize``. Time and iterations: benchmarks/mass.py. Tested in
    tests/laws/test_mass.py.
    """
    if engine not in ENGINES:
        raise UnknownNameError("ckptzoo.symmetry", "engine", engine, tuple(ENGINES))
    symmetry = table_of(arch)
    arrays, K = stack_of(weights, symmetry)
    fits(arrays, symmetry, arch)
    problem = Formulation.of(formulation, symmetry, {name: array.shape[1:] for name, array in arrays.items()})
    arrays_in_table, made = problem.to_table(arrays), dict[str, np.ndarray]()
    if taking_turns(problem.table):
        if problem.layers:
            step = "Use the formulation 'pinned'."
            raise SymmetryError(Problem(formulation, "scales", "those of one network of flows", "others", step))
        made = {name: array.astype(stored_dtype(array.dtype)) for name, array in arrays_in_table.items()}
    result = LeastMass.unchanged(symmetry, K, made)

    def solve_rows(rows: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            found = least_mass(take_rows(arrays_in_table, rows), problem, ENGINES[engine])
        result.put(rows, found, found.usable)

    count = threads or os.cpu_count() or 1
    rows = np.flatnonzero(finite(arrays, K))
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(solve_rows, pieces(rows, arrays, count)))
    if made:
        scaled = {name: beside(array, as_array(weights[name])) for name, array in problem.from_table(made).items()}
    else:
        # Scaled weights can overflow where scales do not: such checkpoints get scales of 1, and all are scaled again.
        with np.errstate(all="ignore"):
            scaled = _applied(result.element.scales, weights, problem, threads)
            bad = ~finite(scaled, K) & ~np.isnan(result.gap)
            if bad.any():
                result.put(np.arange(K), LeastMass.unchanged(symmetry, K, {}), bad)
                scaled = _applied(result.element.scales, weights, problem, threads)
    figures = result.mass_before, result.mass_after, result.gap, result.imbalance, result.dropped, result.iterations
    scales = {group.id: result.element.scales[group.id] for group in symmetry.groups if group.scaled}
    return MinMass(scaled, scales, *figures, formulation, dict(result.element.matrices))


def _applied(
    scales: Mapping[str, np.ndarray], weights: Stacked, problem: Formulation, threads: int | None
) -> dict[str, Any]:
    """Return the scaled weights."""
    arrays = {name: as_array(array) for name, array in weights.items()}
    K = len(next(iter(arrays.values())))
    table = problem.table
    identity = GroupElement.identity(table, K)
    element = GroupElement(identity.perms, {name: scales[name] for name in identity.scales}, identity.matrices)
    return problem.from_table(apply(element, problem.to_table(arrays), table, threads=threads))
