"""Gauges by name: rules that pick one representative from each symmetry orbit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np

from ckptzoo.errors import UnknownNameError
from ckptzoo.spec.symmetry import Symmetry
from ckptzoo.symmetry import first_weight
from ckptzoo.symmetry.action import apply
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.layout import Stacked, is_float, stack_of
from ckptzoo.symmetry.report import Report

Solver = Callable[[Mapping[str, np.ndarray], Symmetry], tuple[GroupElement, Report]]


@dataclass(frozen=True)
class Gauge:
    """A rule for choosing the representative of an orbit.

    Parameters
    ----------
    name : also the name of the variant that holds the result.
    version : raised whenever the rule gives another result for some weights; versions are never mixed.
    collapses : the subgroup whose orbits it collapses: ``"scales"``, ``"permutations"``.
    rule : the rule in a sentence.
    solve : from K finite checkpoints to their group elements.
    """

    name: str
    version: int
    collapses: tuple[str, ...]
    rule: str
    solve: Solver


GAUGES: Mapping[str, Gauge] = MappingProxyType(
    {
        gauge.name: gauge
        for gauge in (
            Gauge(
                "unit-norm",
                1,
                ("scales",),
                "incoming weights of every neuron have unit L2 norm, all layers but the last",
                partial(first_weight.solve, order=False),
            ),
            Gauge(
                "first-weight",
                1,
                ("scales", "permutations"),
                "unit-norm, then neurons in ascending order of their first weight; not tie-safe",
                partial(first_weight.solve, order=True),
            ),
        )
    }
)
"""Every gauge by name."""


@dataclass(frozen=True, eq=False)
class Canonical:
    """K checkpoints in a gauge.

    Parameters
    ----------
    weights : tensor name to (K, *shape), at least float32: ``apply(element, raw)``, bit for bit.
    element : the K group elements that lead from the raw weights to these.
    report : what was found, per checkpoint.
    gauge : the gauge.
    """

    weights: dict[str, np.ndarray]
    element: GroupElement
    report: Report
    gauge: Gauge


def canonicalize(weights: Stacked, symmetry: Symmetry, *, gauge: str = "first-weight") -> Canonical:
    """Bring K stacked checkpoints into a gauge: the same functions with comparable weights.

    ``canonical = g . raw`` with the g that the gauge's rule picks; arXiv 2310.08287, appendix C.2, for
    ``first-weight``.

    Parameters
    ----------
    weights : tensor name to (K, *shape), numpy or torch on the CPU; half precisions give float32.
    symmetry : the network's table.
    gauge : a name in ``GAUGES``.

    Raises
    ------
    UnknownNameError
        No such gauge.
    SymmetryError
        The weights do not fit the table, or the gauge is not defined for it.

    Notes
    -----
    Linear in the size of the weights but for sorting each channel's incoming weights; a few float64 copies of
    the largest tensor. A checkpoint that is not finite comes back as it is, with the identity and
    ``report.gauged`` False, and does not touch the others. Laws: tests/laws/test_symmetry.py.
    """
    if gauge not in GAUGES:
        raise UnknownNameError("ckptzoo.symmetry", "gauge", gauge, tuple(GAUGES))
    arrays, K = stack_of(weights, symmetry)
    rows = np.flatnonzero(_finite(arrays, K))
    with np.errstate(all="ignore"):
        chosen = arrays if len(rows) == K else {name: array[rows] for name, array in arrays.items()}
        found, found_report = GAUGES[gauge].solve(chosen, symmetry)
        usable = np.ones(len(rows), bool)
        for scale in found.scales.values():
            usable &= (np.isfinite(scale) & (scale != 0)).all(axis=1)
        element, report = _spread(found[usable], rows[usable], symmetry, K), Report.blank(K)
        report.set(rows, found_report)
        made = apply(element, arrays, symmetry)
        kept = np.isin(np.arange(K), rows[usable]) & _finite(made, K)
        if not kept[rows[usable]].all():
            element = _spread(element[kept], np.flatnonzero(kept), symmetry, K)
            made = apply(element, arrays, symmetry)
    report.refuse(~kept)
    return Canonical(made, element, report, GAUGES[gauge])


def _finite(arrays: Mapping[str, np.ndarray], K: int) -> np.ndarray:
    finite = np.ones(K, bool)
    for array in arrays.values():
        if is_float(array):
            finite &= np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
    return finite


def _spread(found: GroupElement, rows: np.ndarray, symmetry: Symmetry, K: int) -> GroupElement:
    """The elements on their rows and the identity elsewhere."""
    if len(rows) == K:
        return found
    element = GroupElement.identity(symmetry, K)
    for name, perm in element.perms.items():
        perm[rows] = found.perms[name]
    for name, scale in element.scales.items():
        scale[rows] = found.scales[name]
    return element
