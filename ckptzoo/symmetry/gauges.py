"""Gauges by name: rules that pick one representative from each symmetry orbit."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from ckptzoo.arguments import Count, checked
from ckptzoo.errors import Problem, SymmetryError, UnknownNameError
from ckptzoo.schema.layout import GaugeName
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.action import fill, transform
from ckptzoo.symmetry.arrays import Facts, Stacked, as_array, beside, in_memory, stack_of, stored_copies, to_numpy
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.folds import commuting
from ckptzoo.symmetry.mass.blocks import find_blocks
from ckptzoo.symmetry.mass.formulations import PINNED, Formulation, least_mass_scales
from ckptzoo.symmetry.mass.solver import balance
from ckptzoo.symmetry.matrices.gauge import depend_on_others, open_signs, settled_matrices
from ckptzoo.symmetry.matrices.tables import among, lifted, monomial, residual
from ckptzoo.symmetry.moments import Moments
from ckptzoo.symmetry.moves import Move
from ckptzoo.symmetry.ordering import first_weight_order, sum_keys
from ckptzoo.symmetry.report import Report
from ckptzoo.symmetry.scales import Scales, solve
from ckptzoo.symmetry.tables import Arch, finite, fits, pieces, place_of, table_of
from ckptzoo.symmetry.tie_breaking import complete_order
from ckptzoo.text import brief_repr

Scaling = Callable[[Moments], Scales]
Order = Callable[[Moments, Moments, Scales, Report], dict[str, np.ndarray]]
Matrices = Callable[
    [Mapping[str, np.ndarray], Symmetry, np.ndarray, Report], tuple[dict[str, np.ndarray], GroupElement]
]


@dataclass(frozen=True)
class Gauge:
    """A rule for choosing the representative of an orbit.

    Parameters
    ----------
    name
        also the name of the variant that holds the result.
    version
        raised whenever the rule gives another result for some weights; versions are never mixed.
    collapses
        the subgroup whose orbits it collapses: ``"scales"``, or ``"pinned scales"``, those of channels that no
        normalisation reads; ``"permutations"``.
    rule
        the rule in a sentence.
    complete
        every checkpoint of an orbit has the same weights, so that they have a fingerprint.
    scaling
        from sums of weights to scales; None where matrices come with all of them.
    order
        from weights, those that are scaled, and scales to permutations; None where channels stay in their order.
    matrices
        from weights to those with settled matrices, which come first; None where matrices stay.
    """

    name: GaugeName
    version: int
    collapses: tuple[str, ...]
    rule: str
    complete: bool
    scaling: Scaling | None
    order: Order | None
    matrices: Matrices | None = None


def _least_mass(
    arrays: Mapping[str, np.ndarray], symmetry: Symmetry, usable: np.ndarray, report: Report
) -> tuple[dict[str, np.ndarray], GroupElement]:
    """Return copies of all weights at their least mass, with what led there."""
    rows, work, element = np.flatnonzero(usable), stored_copies(arrays), GroupElement.identity(symmetry, len(usable))
    if len(rows):
        table = Formulation.of(PINNED, symmetry, {name: array.shape[1:] for name, array in arrays.items()}).table
        found = find_blocks({name: array[rows] for name, array in arrays.items()}, table, balance)
        report.dead[rows], report.degenerate[rows] = found.dropped, found.degenerate
        report.unresolved[rows] = found.unsolved
        element.put(rows, GroupElement({}, found.element.scales, found.element.matrices))
        for name, array in found.weights.items():
            work[name][rows] = array
    return work, element


_RULES = (
    Gauge(
        "canonical",
        4,
        ("scales", "permutations"),
        "unit-norm, then channels in ascending order of the sum of their incoming weights, ties broken by a search",
        True,
        solve,
        complete_order,
    ),
    Gauge(
        "first-weight",
        5,
        ("scales", "permutations"),
        "unit-norm, then channels in ascending order of their first weight; not tie-safe",
        False,
        solve,
        first_weight_order,
    ),
    Gauge(
        "unit-norm",
        5,
        ("scales",),
        "incoming weights of every channel have unit L2 norm, all layers but the last",
        False,
        solve,
        None,
    ),
    Gauge(
        "unit-std",
        4,
        ("scales",),
        "incoming weights of every channel have unit standard deviation, all layers but the last",
        False,
        partial(solve, spread=True),
        None,
    ),
    Gauge(
        "min-mass",
        2,
        ("pinned scales",),
        "the sum of squared weights is least, filters in front of a normalisation as they are",
        False,
        least_mass_scales,
        None,
    ),
)

_WITH_MATRICES = replace(
    _RULES[0],
    version=5,
    collapses=("scales", "matrices", "permutations"),
    rule="unit-norm, heads balanced, streams in the basis of their variance, then as without matrices",
    scaling=open_signs,
    matrices=settled_matrices,
)
"""``canonical`` for tables with matrices; other tables keep their version, and hence their bits."""

_WITH_MATRICES_IN_TURN = replace(
    _WITH_MATRICES,
    version=6,
    rule="unit-norm, heads and blocks balanced together, streams in the basis of their variance, then as without them",
)
"""``canonical`` for tables with matrices where version 5 was not the same for all disguises: blocks meet in a
tensor, as with linear layers in a row; scales are those of units behind a block; or a mean that would be folded
depends on the group element, as that of a key bias which several layers share."""

_LEAST_MASS_WITH_MATRICES = replace(
    _RULES[-1],
    version=3,
    collapses=("pinned scales", "invertible matrices"),
    rule="the sum of squared weights is least, heads balanced, filters in front of a normalisation as they are",
    scaling=None,
    matrices=_least_mass,
)
"""``min-mass`` for tables with matrices."""

GAUGES: Mapping[str, Gauge] = MappingProxyType({gauge.name: gauge for gauge in _RULES})
"""Every gauge by name."""


def gauge_of(name: GaugeName, symmetry: Symmetry) -> Gauge:
    """Return the rule that the gauge of this name, one of ``GAUGES``, has for a table."""
    if not symmetry.has_matrices or name not in ("canonical", "min-mass"):
        return GAUGES[name]
    if name == "min-mass":
        return _LEAST_MASS_WITH_MATRICES
    return (
        _WITH_MATRICES_IN_TURN if depend_on_others(symmetry) or commuting(symmetry) is not symmetry else _WITH_MATRICES
    )


@checked
def gauge_named(name: str, location: str = "ckptzoo.symmetry") -> GaugeName:
    """A name that there is a gauge of.

    Parameters
    ----------
    name
        Any text.
    location
        Where it was found, for the message.

    Raises
    ------
    UnknownNameError
        No such gauge.
    """
    if name not in GAUGES:
        raise UnknownNameError(location, "gauge", name, tuple(GAUGES))
    return GAUGES[name].name


@dataclass(frozen=True, eq=False)
class Canonical:
    """K checkpoints in a gauge.

    Parameters
    ----------
    weights
        tensor name to (K, *shape), at least float32, in the framework of the raw weights: ``apply(element, raw)``, bit
        for bit, but to rounding where the table has matrices.
    element
        the K group elements that lead from the raw weights to these. Where the table has matrices those of
        ``canonical`` act on the weights that ``fold`` gives, and a block of matrices is NaN where no element does,
        because it is degenerate: the weights are a limit of the orbit, with the same function.
    report
        what was found, per checkpoint.
    gauge
        the gauge.
    """

    weights: dict[str, Any]
    element: GroupElement
    report: Report
    gauge: Gauge

    __repr__ = brief_repr


@checked
def canonicalize(
    weights: Stacked,
    arch: Arch,
    *,
    gauge: GaugeName = "canonical",
    threads: Count | None = None,
) -> Canonical:
    """Bring K stacked checkpoints into a gauge: the same functions with comparable weights.

    ``canonical = g . raw`` with the g that the gauge's rule picks: ckptzoo/symmetry/scales.py for the scales, those of
    ``min-mass`` in ckptzoo/symmetry/mass; ckptzoo/symmetry/tie_breaking.py and ordering.py (arXiv 2310.08287,
    appendix C.2) for the orders.

    Parameters
    ----------
    weights
        tensor name to (K, *shape), numpy or torch; half precisions give float32.
    arch
        the network's table, what ``trace`` found, an architecture whose forward function is in ``ckptzoo.archs``, or a
        name there.
    gauge
        a name in ``GAUGES``.
    threads
        at most this number; None for one a core.

    Raises
    ------
    UnknownNameError
        No such gauge.
    SymmetryError
        The weights do not fit the table, it has no group, or no table is known.

    Notes
    -----
    Linear in the size of the weights; float64 sums of one per pair of channels beside the result, and a copy of the
    checkpoints that each thread has at hand. Ties cost a search per checkpoint: milliseconds where they are few, and at
    most some seconds. The bound is on the work, which depends on the network's size alone; beyond it
    ``report.unresolved`` is True. A checkpoint that is not finite comes back as it is, with the identity and
    ``report.gauged`` False, and does not touch the others. Tested in tests/laws/test_symmetry.py.
    """
    symmetry = table_of(arch)
    rule = gauge_of(gauge_named(gauge), symmetry)
    arrays, K = stack_of(weights, symmetry)
    fits(arrays, symmetry, arch)
    usable, report = finite(arrays, K), Report.blank(K)
    threads = threads or os.cpu_count() or 1
    if rule.matrices is not None:
        work, element = rule.matrices(arrays, symmetry, usable, report)
        table = residual(symmetry)
        if rule.scaling is not None and usable.any():
            rest = _settle_rest(work, table, rule, usable, report, threads)
            element = lifted(rest, symmetry).compose(element)
            moving = GroupElement(rest.perms, {})
            for name in arrays:  # each tensor's copy is given up in turn
                work[name] = transform(work[name], table.actions_on(name), moving, table)
        made = {name: beside(work[name], as_array(weights[name])) for name in arrays}
    else:
        table = among(symmetry)
        given = {name: as_array(value) for name, value in weights.items()}
        near = {name: value if in_memory(value) else arrays[name] for name, value in given.items()}
        made = {name: Facts.of(array).stored().empty() for name, array in near.items()}
        out = {name: to_numpy(array) for name, array in made.items()}
        rest = _settle_rest(arrays, table, rule, usable, report, threads, out)
        for name, array in arrays.items() if not usable.all() else ():
            out[name][~usable] = array[~usable]
        made = {name: beside(array, given[name]) for name, array in made.items()}
        element = lifted(rest, symmetry)
    report.refuse(~usable)
    return Canonical(made, element, report, rule)


def _settle_rest(
    arrays: Mapping[str, np.ndarray],
    table: Symmetry,
    rule: Gauge,
    usable: np.ndarray,
    report: Report,
    threads: int,
    out: Mapping[str, np.ndarray] | None = None,
) -> GroupElement:
    """Return scales and orders of a table without matrices; rows that get none are not ``usable``, in place.

    ``out`` is where the results for the usable rows go. Without it the rule scales the weights in place.
    """
    rest, out = GroupElement.identity(table, len(usable)), out or {}
    rows = pieces(np.flatnonzero(usable), arrays, threads)
    if not out:  # side by side, as weights of their own are scaled in place
        rows = [run for some in rows for run in np.split(some, np.flatnonzero(np.diff(some) > 1) + 1)]
    moves = {name: Move.of(array.shape[1:], table.actions_on(name), table) for name, array in out.items()}
    threads_each = max(1, threads // max(1, len(rows)))

    def solved(some: np.ndarray) -> None:
        assert rule.scaling is not None
        found, place = report[some], place_of(some)
        weights, target = ({name: array[place] for name, array in given.items()} for given in (arrays, out))
        with np.errstate(all="ignore"):
            moments = Moments(weights, table, cubes=rule.matrices is not None)
            scaling = rule.scaling(moments)
            found.dead[:] += scaling.dead
            found.clamped[:] += scaling.clamped
            found.unresolved[:] |= scaling.unsolved
            kept = np.ones(len(some), bool)
            for scale in scaling.scales.values():
                kept &= (np.isfinite(scale) & (scale != 0)).all(axis=1)
            scales = {name: np.where(kept[:, None], scale, 1) for name, scale in scaling.scales.items()}
            if target and any((scale != 1).any() for scale in scales.values()):
                ordered = rule.order is not None
                weights = {name: np.empty_like(array) for name, array in target.items()} if ordered else target
                fill(weights, moments.arrays, moves, GroupElement({}, scales), threads_each)
            scaled = moments.of(weights)
            perms = rest[some].perms if rule.order is None else rule.order(moments, scaled, scaling, found)
            for name in target if weights is not target else ():  # each tensor's copy is given up in turn
                fill({name: target[name]}, {name: weights.pop(name)}, moves, GroupElement(perms, {}), threads_each)
            kept &= finite(target, len(some))
        report.set(some, found)
        usable[some] &= kept
        for name, array in target.items() if isinstance(place, np.ndarray) else ():
            out[name][place] = array
        scales = {name: np.take_along_axis(scale, perms[name], 1) for name, scale in scales.items()}
        rest.put(some[kept], GroupElement(perms, scales)[kept])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(solved, rows))
    return rest


@checked
def ordering_keys(weights: Stacked, arch: Arch) -> dict[str, np.ndarray]:
    """The keys by which the ``canonical`` gauge sorts channels: the sums of their incoming weights, at unit norm.

    Parameters
    ----------
    weights
        tensor name to (K, *shape), numpy or torch, finite.
    arch
        as in ``canonicalize``.

    Returns
    -------
    dict[str, np.ndarray]
        Group id to (K, n) float64, for every group that has a permutation of its own; channels in the order of the
        weights.
    """
    symmetry = monomial(table_of(arch))
    made = canonicalize(weights, symmetry, gauge="unit-norm")
    if not len(next(iter(made.weights.values()), ())):
        raise SymmetryError(Problem("ordering keys", "weights", "a checkpoint or more", "none", "Pass some."))
    return sum_keys(Moments({name: to_numpy(array) for name, array in made.weights.items()}, symmetry))
