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
from ckptzoo.symmetry.action import apply, transform
from ckptzoo.symmetry.arrays import Stacked, as_array, beside, stack_of, stored_dtype, to_numpy
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.folds import commuting, fold
from ckptzoo.symmetry.mass.blocks import find_blocks
from ckptzoo.symmetry.mass.formulations import PINNED, Formulation, least_mass_scales
from ckptzoo.symmetry.mass.solver import balance
from ckptzoo.symmetry.matrices.gauge import depend_on_others, settle
from ckptzoo.symmetry.matrices.tables import among, lifted, monomial, residual
from ckptzoo.symmetry.matrix_action import have_unit_gains
from ckptzoo.symmetry.moments import Moments
from ckptzoo.symmetry.ordering import first_weight_order, sum_keys
from ckptzoo.symmetry.report import Report
from ckptzoo.symmetry.scales import Scales, solve
from ckptzoo.symmetry.tables import Arch, finite, fits, pieces, table_of, take_rows
from ckptzoo.symmetry.tie_breaking import complete_order
from ckptzoo.text import brief_repr

Scaling = Callable[[Moments], Scales]
Order = Callable[[Moments, Scales, Report], dict[str, np.ndarray]]


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
        from sums of weights to scales.
    order
        from scales to permutations; None where channels stay in their order.
    """

    name: GaugeName
    version: int
    collapses: tuple[str, ...]
    rule: str
    complete: bool
    scaling: Scaling
    order: Order | None


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
    Linear in the size of the weights, but for sorting each channel's incoming weights; float64 sums of one per pair
    of channels beside the result. Ties cost a search per checkpoint: milliseconds where they are few, and at most some
    seconds. The bound is on the work, which depends on the network's size alone; beyond it ``report.unresolved`` is
    True. A checkpoint that is not finite comes back as it is, with the identity and ``report.gauged`` False, and does
    not touch the others. Tested in tests/laws/test_symmetry.py.
    """
    symmetry = table_of(arch)
    rule = gauge_of(gauge_named(gauge), symmetry)
    arrays, K = stack_of(weights, symmetry)
    fits(arrays, symmetry, arch)
    if symmetry.has_matrices:
        return _canonicalize_matrices(weights, arrays, symmetry, rule, threads)
    rows = np.flatnonzero(finite(arrays, K))
    element, report = GroupElement.identity(symmetry, K), Report.blank(K)

    def solved(some: np.ndarray) -> np.ndarray:
        """Solve for some rows and put what was found in place; returns those whose scales are usable."""
        with np.errstate(all="ignore"):
            found, found_report = _solve(take_rows(arrays, some), symmetry, rule)
            usable = np.ones(len(some), bool)
            for scale in found.scales.values():
                usable &= (np.isfinite(scale) & (scale != 0)).all(axis=1)
        report.set(some, found_report)
        element.put(some[usable], found[usable])
        return some[usable]

    threads = threads or os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        kept = np.concatenate([rows[:0], *pool.map(solved, pieces(rows, arrays, threads))])
    with np.errstate(all="ignore"):
        made = apply(element, weights, symmetry, threads=threads)
        good = np.isin(np.arange(K), kept) & finite(made, K)
        if not good[kept].all():
            element.put(np.flatnonzero(~good), GroupElement.identity(symmetry, int((~good).sum())))
            made = apply(element, weights, symmetry, threads=threads)
    report.refuse(~good)
    return Canonical(made, element, report, rule)


def _canonicalize_matrices(
    weights: Stacked, arrays: Mapping[str, np.ndarray], symmetry: Symmetry, rule: Gauge, threads: int | None
) -> Canonical:
    """Bring checkpoints of a table with matrices into a gauge; folded first, where it settles them at all."""
    if rule.name == "min-mass":
        return _least_mass_matrices(weights, arrays, symmetry, rule)
    if not rule.complete:
        plain = canonicalize(weights, among(symmetry), gauge=rule.name, threads=threads)
        return replace(plain, element=lifted(plain.element, symmetry))
    K = len(next(iter(arrays.values())))
    usable = finite(arrays, K)
    report, element = Report.blank(K), GroupElement.identity(symmetry, K)
    made: dict[str, np.ndarray] = {}
    threads = threads or os.cpu_count() or 1
    for rows in pieces(np.flatnonzero(usable), arrays, 1):
        folded = fold(take_rows(arrays, rows), commuting(symmetry))
        if not (unit := have_unit_gains(folded, symmetry)).all():
            usable[rows[~unit]] = False
            rows, folded = rows[unit], {name: array[unit] for name, array in folded.items()}
            if not len(rows):
                continue
        work = {name: _own(array, arrays[name]) for name, array in folded.items()}
        del folded
        settled, found = settle(work, symmetry), Report.blank(len(rows))
        rest = _order_rest(work, residual(symmetry), found, threads)
        found.dead[:], found.clamped[:], found.degenerate[:] = settled.dead, settled.clamped, settled.degenerate
        found.margin[:] = np.minimum(found.margin, settled.margin)
        found.unresolved[:] |= settled.unresolved
        report.set(rows, found)
        element.put(rows, lifted(rest, symmetry).compose(settled.element(symmetry)))
        perms, table = GroupElement(rest.perms, {}), residual(symmetry)
        place = slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] == len(rows) - 1 else rows
        for name, array in arrays.items():  # each tensor's copy is given up in turn
            moved = transform(work.pop(name), table.actions_on(name), perms, table)
            if len(rows) == K:
                made[name] = moved
                continue
            if name not in made:
                made[name] = np.empty(array.shape, stored_dtype(array.dtype))
            made[name][place] = moved
    for name, array in arrays.items():
        if name not in made:
            made[name] = array.astype(stored_dtype(array.dtype))
        made[name][~usable] = array[~usable]
    report.refuse(~usable)
    return Canonical({name: beside(made[name], as_array(weights[name])) for name in arrays}, element, report, rule)


def _own(array: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Return the array in the dtype of the result, in memory apart from what was given."""
    if array.dtype != stored_dtype(array.dtype) or np.may_share_memory(array, given):
        return array.astype(stored_dtype(array.dtype), order="C")
    return np.require(array, requirements=["C", "W"])


def _order_rest(work: dict[str, np.ndarray], table: Symmetry, report: Report, threads: int) -> GroupElement:
    """Order channels and signs of weights whose scales and matrices are settled; the signs are applied in place."""
    K = len(report.ties)
    element = GroupElement.identity(table, K)

    def solved(some: np.ndarray) -> None:
        part = take_rows(work, some)
        signs = solve(Moments(part, table, cubes=True))
        flip = GroupElement(GroupElement.identity(table, len(some)).perms, signs.scales)
        for name in part:
            if actions := table.actions_on(name):
                flipped = transform(part[name], actions, flip, table)
                if flipped is not part[name]:
                    work[name][some] = flipped
        found = Report.blank(len(some))
        found.unresolved[:] = signs.unsolved
        perms = complete_order(Moments(take_rows(work, some), table, cubes=True), replace(signs, scales={}), found)
        scales = {name: np.take_along_axis(scale, perms[name], 1) for name, scale in signs.scales.items()}
        report.set(some, found)
        element.put(some, GroupElement(perms, scales))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(solved, pieces(np.arange(K), work, threads)))
    return element


def _least_mass_matrices(
    weights: Stacked, arrays: Mapping[str, np.ndarray], symmetry: Symmetry, rule: Gauge
) -> Canonical:
    """Bring checkpoints of a table with matrices into the gauge ``min-mass``."""
    K = len(next(iter(arrays.values())))
    usable = finite(arrays, K)
    rows = np.flatnonzero(usable)
    report, element = Report.blank(K), GroupElement.identity(symmetry, K)
    report.refuse(~usable)
    if not len(rows):
        return Canonical(_placed(weights, arrays, rows, {}), element, report, rule)
    table = Formulation.of(PINNED, symmetry, {name: array.shape[1:] for name, array in arrays.items()}).table
    found = find_blocks({name: array[rows] for name, array in arrays.items()}, table, balance)
    report.dead[rows], report.degenerate[rows] = found.dropped, found.degenerate
    report.unresolved[rows] = found.unsolved
    element.put(rows, GroupElement({}, found.element.scales, found.element.matrices))
    return Canonical(_placed(weights, arrays, rows, found.weights), element, report, rule)


def _placed(
    weights: Stacked, arrays: Mapping[str, np.ndarray], rows: np.ndarray, made: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Return all weights, with some rows replaced, in their framework."""
    if len(rows) == len(next(iter(arrays.values()))):
        final = {name: made[name] for name in arrays}
    else:
        final = {name: array.astype(stored_dtype(array.dtype)) for name, array in arrays.items()}
        for name, array in final.items():
            if len(rows):
                array[rows] = made[name]
    return {name: beside(array, as_array(weights[name])) for name, array in final.items()}


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


def _solve(arrays: Mapping[str, np.ndarray], symmetry: Symmetry, rule: Gauge) -> tuple[GroupElement, Report]:
    moments = Moments(arrays, symmetry)
    report = Report.blank(moments.K)
    found = rule.scaling(moments)
    report.dead[:], report.clamped[:], report.unresolved[:] = found.dead, found.clamped, found.unsolved
    if rule.order is None:
        return GroupElement(GroupElement.identity(symmetry, moments.K).perms, found.scales), report
    perms = rule.order(moments, found, report)
    scales = {name: np.take_along_axis(scale, perms[name], 1) for name, scale in found.scales.items()}
    return GroupElement(perms, scales), report
