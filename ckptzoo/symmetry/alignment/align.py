"""``align`` brings networks close to a reference by permutations of their channels."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.arguments import Count, Seed, Size, checked
from ckptzoo.errors import Problem, SymmetryError, UnknownNameError
from ckptzoo.schema.layout import GaugeName
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.action import apply
from ckptzoo.symmetry.alignment.activations import Products, in_gauge, match_activations
from ckptzoo.symmetry.alignment.joint_groups import Arrays, products
from ckptzoo.symmetry.alignment.matching import Matched, Matcher
from ckptzoo.symmetry.alignment.nested_matching import NestedMatcher
from ckptzoo.symmetry.alignment.restarts import nearest_of
from ckptzoo.symmetry.alignment.scale_fitting import ScaleFitter, least_scales, not_below
from ckptzoo.symmetry.arrays import Stacked, as_array, beside, is_float, stack_of, stored_dtype, to_numpy
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.gauges import Canonical, canonicalize, gauge_named
from ckptzoo.symmetry.matrices.gauge import balance_blocks, scales_depend_on_matrices
from ckptzoo.symmetry.matrix_action import unit_gains
from ckptzoo.symmetry.nested import is_nested
from ckptzoo.symmetry.tables import Arch, finite, fits, pieces, table_of, take_rows
from ckptzoo.text import brief_repr

METHODS = ("weights", "activations")
STARTS = ("signature", "identity")
SCALES = ("fixed", "fit")
_SMALL = 2**19
"""Bytes of weights that one thread matches."""
_STATISTICS = ("mean", "variance")
"""Roles of running statistics, which follow the channels and are not compared."""


@dataclass(frozen=True, eq=False)
class Aligned:
    """K networks aligned with a reference.

    Parameters
    ----------
    weights
        tensor name to (K, *shape), at least float32, in their framework: ``apply(element, raw)``.
    element
        the K group elements that lead from the raw weights to these: permutations, after the scales of the gauge, and
        with ``scales="fit"`` scales too; with matrices these, and signs. A block of matrices is NaN where it is
        degenerate, as in ``Canonical``.
    reference
        tensor name to (1 or K, *shape), the reference in the gauge, with balanced blocks where the table has matrices:
        what the weights are close to.
    value
        (K,) float64, ``<A, g B>`` over all floating tensors but running statistics.
    bound
        (K,) what the value is at most for any permutations; not reached by networks that are not copies, as a rule; NaN
        where scales are fitted. With matrices the sum of the products of the tensors' norms.
    distance
        (K,) ``||A - g B||`` over the same tensors.
    sweeps
        (K,) how often all groups were gone through; 0 where signatures or activations alone decide.
    ties
        (K,) channels that look like another one of their group whatever the order of the others, or that hold the same
        on all examples, channels of streams that no tensor tells by itself, and with matrices channels whose signs are
        not looked for, as of a layer that is used twice; where there are any, other weights may fit as well.
    aligned
        (K,) bool, False where the network is not finite, or could not be brought into the gauge: it stays as it is.
    scales
        ``fixed`` or ``fit``, as was asked for.
    """

    weights: dict[str, Any]
    element: GroupElement
    reference: dict[str, NDArray[np.floating]]
    value: NDArray[np.float64]
    bound: NDArray[np.float64]
    distance: NDArray[np.float64]
    sweeps: NDArray[np.int64]
    ties: NDArray[np.int64]
    aligned: NDArray[np.bool_]
    scales: str = "fixed"

    __repr__ = brief_repr

    @property
    def gap(self) -> NDArray[np.float64]:
        """(K,) ``(bound - value) / bound``: 0 for permuted copies, to rounding; NaN where scales are fitted."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return (self.bound - self.value) / self.bound


@checked
def align(
    weights: Stacked,
    reference: Stacked,
    arch: Arch,
    *,
    method: str = "weights",
    gauge: GaugeName | None = None,
    scales: str = "fixed",
    start: str = "signature",
    starts: Size = 1,
    seed: Seed = 0,
    activations: Products | None = None,
    threads: Count | None = None,
) -> Aligned:
    r"""Permute the channels of K networks B so that they are close to a reference A: the same functions.

    .. math::

        g^* = \operatorname{argmax}_{g \in P} \langle A, g B \rangle = \operatorname{argmin}_{g \in P} \| A - g B \|

    over the permutations P of the table and all floating tensors but running statistics, which follow. Coordinate
    ascent, group by group (weight matching: Ainsworth et al., arXiv 2209.04836, section 3.2), from an order that sorted
    slices of the weights give. For a Gaussian architecture (``gaussian-<name>``) the distance is the 2-Wasserstein
    distance of the posteriors, which arXiv 2310.10171 aligns by.

    Where the table has matrices, the blocks of both are balanced first, so that queries and keys, values and outputs
    have equal Gram matrices on both sides. What is left of their matrices is orthogonal, and found by the Procrustes
    solution for each pair of heads, inside an assignment of heads; the basis of a stream that RMSNorm or LayerNorm
    reads likewise, complex numbers by their phases, and signs of channels that may change them
    (ckptzoo/symmetry/alignment/matching.py).

    Where heads of queries share heads of keys and values (``Segment.within``), the order of those that share one is an
    assignment of its own, in turns with everything else, from their means on, which do not depend on it
    (ckptzoo/symmetry/alignment/nested_matching.py).

    Parameters
    ----------
    weights
        B: tensor name to (K, *shape), numpy or torch.
    reference
        A: tensor name to (*shape) or (1, *shape), one network for all, or to (K, *shape), one for each.
    arch
        as in ``canonicalize``.
    method
        ``weights``, as above; or ``activations``: channels that answer alike on the same inputs come together, whatever
        the distance of the weights (the same source, section 3.1).
    gauge
        a name in ``ckptzoo.symmetry.GAUGES``, such as ``min-mass``, into which all are brought before; by default they
        keep their scales.
    scales
        ``fixed``, as they are or as the gauge has them; or ``fit``, with method ``weights``: the distance is least over
        scales, too, from those of ``unit-norm`` on. Channels that normalisations read have the norm of the reference's,
        as their distance is least where they vanish. Fitted scales lower distances and raise barriers (perceptrons
        784-16-10: mean loss barrier 0.36, fixed 0.30), as networks come to have small weights where they differ: for
        paths between networks take a gauge instead.
    start
        of the ascent on weights: ``signature``, by which the result does not depend on the order in which B comes, nor
        with fitted scales on those where ``unit-norm`` determines them, or ``identity``.
    starts
        for small networks that are no copies: the ascent begins this many times, at ``start`` and at uniform
        permutations, and from each on again and again after some channels have changed places
        (ckptzoo/symmetry/alignment/restarts.py). What is nearest to the reference is taken. 1 begins once.
    seed
        of what is random in further starts, which is the same for every network.
    activations
        for that method: group id to (K, n, n), the sums over examples of what channel i of A holds times what channel j
        of B holds, ``theirs @ ours.swapaxes(1, 2)`` for activations (K, n, examples); of the networks as they are
        before the gauge. A group that is ``Like`` another may be left out, or the other.
    threads
        at most this number; None for one a core.

    Raises
    ------
    UnknownNameError
        No such method, gauge, rule for scales or start.
    SymmetryError
        Less than one start; several with fitted scales, activations, or a table that has matrices or groups inside the
        channels of others. Scales are to be fitted to activations; the table has matrices or groups inside the channels
        of others and scales or activations are to be fitted, or gates and scales are; the gauge settles scales alone,
        and units with scales read blocks of matrices; gains are not 1 where a stream has orthogonal matrices.
        The weights, the reference or the activations do not fit the table, no table is known, or the reference is not
        finite or cannot be brought into the gauge.
    MissingExtraError
        scipy is not installed, and a group has more than 5 channels.

    Notes
    -----
    Exact for one group alone, such as that of a network with one hidden layer, and where each block of wreath groups
    has at most one group with several channels, as in OptuNet; a local optimum else, and NP-hard. Where a group is on
    two axes of a tensor, as in recurrent layers, steps are those of the linear part of the value, taken where it rises:
    of unrelated layers of five units the best permutation of all, for 21 of 40. Each sweep costs one
    product of matrices a tensor axis and one assignment, O(n^3), a group; with matrices a singular value decomposition
    for each pair of blocks. Heads of queries that share heads of keys take 0.4 to 1 s for a layer of 12 heads of 64
    channels on 4 heads of keys in a width of 768, on one core. In near copies their orders are found; of unrelated
    networks with two heads on each of two the best permutations of all, for 25 of 40. The distance never rises in a
    step. Ten starts take about 2 s for a network with two hidden layers of 16. A network's result does not depend on
    the others. Tested in tests/symmetry/alignment and tests/laws/test_alignment.py.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> zoo = {"fc1.weight": rng.random((3, 8, 4)), "fc1.bias": rng.random((3, 8)), "fc2.weight": rng.random((3, 2, 8))}
    >>> zoo["fc2.bias"] = rng.random((3, 2))
    >>> found = align(zoo, {name: array[0] for name, array in zoo.items()}, "mlp-4-8-2")
    >>> float(found.distance[0]), bool((found.distance[1:] > 0).all())
    (0.0, True)
    """
    table, threads = table_of(arch), threads or os.cpu_count() or 1
    _check_names(start=(start, STARTS), method=(method, METHODS), scales=(scales, SCALES))
    _check_options(table, method, gauge, scales, starts, activations)
    arrays, K = stack_of(weights, table)
    fits(arrays, table, arch)
    target = _reference(reference, arrays, K, table)
    element, usable = GroupElement.identity(table, K), finite(arrays, K)
    target_element = GroupElement.identity(table, len(next(iter(target.values()))))
    if gauge is not None:
        made = canonicalize(weights, arch, gauge=gauge, threads=threads)
        arrays, element, usable = stack_of(made.weights, table)[0], made.element, made.report.gauged.copy()
        made = _gauged(target, table, gauge, threads)
        target, target_element = stack_of(made.weights, table)[0], made.element
    mixed = bool(element.matrices)
    if mixed:
        arrays, balancing = _balanced(arrays, table, usable)
        element = balancing.compose(element)
        target, _ = _balanced(target, table, np.ones(len(target_element), bool))
    compared, rows = comparable(arrays, table), np.flatnonzero(usable)
    # matrices are orthogonal to the rounding of float64
    cast = _double if mixed else _matched_dtype
    ours, theirs = ({name: cast(given[name]) for name in compared} for given in (arrays, target))
    if scales == "fit":
        matched, known = _fit(arrays, target, table, rows, threads, start)
        usable &= known
    elif activations is None:
        matched = _match(ours, theirs, table, rows, threads, start)
        if starts > 1:
            _search(ours, theirs, matched, table, rows, starts=starts, seed=seed, threads=threads)
    else:
        found, known, ties = match_activations(in_gauge(activations, element, target_element), table, K)
        usable &= known
        matched = _with_bound(found, ours, theirs, table, np.flatnonzero(usable), ties)
    element = matched.element.compose(element)
    if scales == "fit":
        # the gauge's variances were rounded
        element = not_below(element, least_scales(stack_of(weights, table)[0], table))
    if mixed:
        # not computed from the raw weights: blocks of lower rank are limits, to which no element leads
        placed = apply(matched.element, arrays, table, threads=threads)
        for name, array in placed.items():
            array[~usable] = arrays[name][~usable]
        placed = {name: beside(array, as_array(weights[name])) for name, array in placed.items()}
    else:
        placed = apply(element, weights, table, threads=threads)
    value, distance = _compared({name: placed[name] for name in compared}, theirs)
    nothing = np.where(usable, 0.0, np.nan)
    return Aligned(
        placed,
        element,
        target,
        value + nothing,
        matched.bound + nothing,
        distance + nothing,
        matched.sweeps,
        matched.ties,
        usable,
        scales,
    )


def _check_names(**options: tuple[str, tuple[str, ...]]) -> None:
    """Raise for unknown names, with the list of those that exist."""
    for what, (name, known) in options.items():
        if name not in known:
            raise UnknownNameError("ckptzoo.symmetry.align", what, name, known)


def _check_options(
    table: Symmetry, method: str, gauge: GaugeName | None, scales: str, starts: int, activations: Products | None
) -> None:
    """Refuse options that exclude each other, and those that a table's kinds of symmetry do not have."""
    if scales == "fit" and method != "weights":
        raise SymmetryError(
            f"align: scales 'fit': expected method 'weights', got {method!r}. Activations say nothing about scales."
        )
    nested, mixed = is_nested(table), table.has_matrices
    alone = "scales 'fit'" if scales == "fit" else "method 'activations'" if method == "activations" else None
    if starts < 1 or (starts > 1 and (alone or mixed or nested)):
        expected = "1 or more by weights, at fixed scales, of a table without matrices and groups inside channels"
        raise SymmetryError(Problem("align", "starts", expected, f"{starts}", "Leave it out: align begins once."))
    if alone and mixed:
        among = "unnested(ckptzoo.symmetry.monomial(table))" if nested else "monomial(table)"
        step = f"Align by weights at fixed scales, or by the permutations alone: ckptzoo.symmetry.{among}."
        raise SymmetryError(Problem("align", alone, "a table without matrices", "one with matrices", step))
    if alone and nested:
        expected = "a table without groups inside the channels of others"
        step = (
            "Align by weights at fixed scales, or keep the order of these channels: ckptzoo.symmetry.unnested(table)."
        )
        raise SymmetryError(Problem("align", alone, expected, "one with them", step))
    if scales == "fit" and table.has_gates:
        step = "Align at fixed scales, after a gauge that settles them: gauge='min-mass'."
        raise SymmetryError(
            Problem("align", "scales 'fit'", "no axis with gates, as of products of two scaled values", "some", step)
        )
    if (method == "activations") != (activations is not None):
        got = "none" if activations is None else f"some for method {method!r}"
        raise SymmetryError(
            f"align: activations: expected them with method 'activations' and no other, got {got}. "
            "Sum products of what channels of the reference and of the networks hold on the same inputs."
        )
    if (
        gauge is not None
        and gauge_named(gauge) not in ("canonical", "min-mass")
        and mixed
        and scales_depend_on_matrices(table)
    ):
        expected, step = "one that settles matrices and scales", "Take gauge='canonical' or gauge='min-mass'."
        what = "gauge of a table whose units read blocks of matrices"
        raise SymmetryError(Problem("align", what, expected, repr(gauge), step))


def _gauged(reference: Arrays, table: Symmetry, gauge: GaugeName, threads: int) -> Canonical:
    """Return references in a gauge; raise for those that have no representative there."""
    made = canonicalize(reference, table, gauge=gauge, threads=threads)
    if not made.report.gauged.all():
        raise _refused("weights", f"those of a network that the gauge {gauge!r} can hold", "others")
    return made


def _compared(placed: Stacked, theirs: Arrays) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return ``<A, B>`` and ``||A - B||``, each (K,), over some tensors of networks and references."""
    K = len(next(iter(placed.values())))
    value, square = np.zeros(K), np.zeros(K)
    with np.errstate(all="ignore"):  # some networks are not finite
        for name, array in placed.items():
            result = to_numpy(array)
            value += products(theirs[name], result)
            difference = theirs[name] - result
            square += products(difference, difference)
    return value, np.sqrt(square)


def _match(ours: Arrays, theirs: Arrays, table: Symmetry, rows: NDArray[np.int64], threads: int, start: str) -> Matched:
    """Match some rows, in pieces; the others keep the identity."""
    K = len(next(iter(ours.values())))
    found = Matched(GroupElement.identity(table, K), np.zeros(K), np.zeros(K, np.int64), np.zeros(K, np.int64))
    shared = NestedMatcher(theirs, table) if len(next(iter(theirs.values()))) == 1 else None

    def match(some: NDArray[np.int64]) -> None:
        matcher = shared or NestedMatcher(take_rows(theirs, some), table)
        made = matcher.match(take_rows(ours, some), start=start)
        found.element.put(some, made.element)
        found.bound[some], found.sweeps[some], found.ties[some] = made.bound, made.sweeps, made.ties

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(match, pieces(rows, ours, threads, _SMALL)))
    return found


def _search(
    ours: Arrays,
    theirs: Arrays,
    matched: Matched,
    table: Symmetry,
    rows: NDArray[np.int64],
    *,
    starts: int,
    seed: int,
    threads: int,
) -> None:
    """Replace the permutations of one search by the best ones that several starts find."""
    several = len(next(iter(theirs.values()))) > 1

    def search(row: int) -> None:
        some = np.array([row])
        its = take_rows(theirs, some) if several else theirs
        matcher = Matcher(its, table)
        best = nearest_of(matcher, take_rows(ours, some), matched.element[some], its, starts=starts, seed=seed)
        matched.element.put(some, best)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(search, rows.tolist()))


def _fit(
    arrays: Arrays, target: Arrays, table: Symmetry, rows: NDArray[np.int64], threads: int, start: str
) -> tuple[Matched, NDArray[np.bool_]]:
    """Fit permutations and scales of some rows, in pieces, and say which rows have them; others keep the identity."""
    K, compared = len(next(iter(arrays.values()))), comparable(arrays, table)
    found = Matched(GroupElement.identity(table, K), np.full(K, np.nan), np.zeros(K, np.int64), np.zeros(K, np.int64))
    known = np.zeros(K, bool)
    ours, theirs = ({name: _double(array) for name, array in given.items()} for given in (arrays, target))
    reference = _gauged(theirs, table, "unit-norm", threads) if start == "signature" else None

    def fit(some: NDArray[np.int64]) -> None:
        mine, own = take_rows(ours, some), np.arange(len(some))
        its = some if len(next(iter(theirs.values()))) > 1 else np.zeros(1, np.int64)
        first, ties, usable = GroupElement.identity(table, len(some)), np.zeros(len(some), np.int64), own >= 0
        if reference is not None:
            unit = canonicalize(mine, table, gauge="unit-norm", threads=1)
            matcher = Matcher({name: reference.weights[name][its] for name in compared}, table)
            matched = matcher.match({name: unit.weights[name] for name in compared})
            back = reference.element[its if len(its) == len(some) else np.zeros(len(some), np.int64)].inverse()
            first, ties = back.compose(matched.element.compose(unit.element)), matched.ties
            usable = unit.report.gauged
        fitter = ScaleFitter({name: theirs[name][its] for name in compared}, table)
        element, sweeps = fitter.fit(mine, first)
        found.element.put(some[usable], element[usable])
        found.sweeps[some], found.ties[some], known[some] = sweeps, ties, usable

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fit, pieces(rows, arrays, threads, _SMALL)))
    return found, known


def _balanced(
    arrays: Arrays, table: Symmetry, usable: NDArray[np.bool_]
) -> tuple[dict[str, NDArray[Any]], GroupElement]:
    """Return networks with balanced blocks, at least float32, and the elements that lead there.

    Raises ``SymmetryError`` where gains are not 1 at a stream with orthogonal matrices.
    """
    made = {name: array.astype(stored_dtype(array.dtype), order="C") for name, array in arrays.items()}
    rows, element = np.flatnonzero(usable), GroupElement.identity(table, len(usable))
    if len(rows):
        some = {name: array[rows] for name, array in made.items()}
        unit_gains(some, table, set(element.matrices))
        found = balance_blocks(some, table)
        for name, array in some.items():
            made[name][rows] = array
        element.put(rows, GroupElement({}, {}, found.matrices))
    return made, element


def _double(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array in float64 where it is floating."""
    return array.astype(np.float64, copy=False) if is_float(array) else array


def _with_bound(
    element: GroupElement,
    ours: Arrays,
    theirs: Arrays,
    table: Symmetry,
    rows: NDArray[np.int64],
    ties: NDArray[np.int64],
) -> Matched:
    """Return permutations that did not come from weights, with an upper bound on their value."""
    K, matcher = len(element), Matcher(theirs, table)
    bound = np.zeros(K)
    if len(rows):
        if len(next(iter(theirs.values()))) > 1:
            matcher = Matcher(take_rows(theirs, rows), table)
        bound[rows], _ = matcher.bound(take_rows(ours, rows))
    return Matched(element, bound, np.zeros(K, np.int64), ties)


def _reference(
    reference: Stacked, arrays: Mapping[str, NDArray[Any]], K: int, table: Symmetry
) -> dict[str, NDArray[Any]]:
    """Return the reference stacked as the weights are, (1 or K, *shape); raise where the shapes do not fit."""
    # counters that nothing moves may be missing, as they are of a mean
    needed = [name for name, array in arrays.items() if is_float(array) or table.actions_on(name)]
    found = {name: to_numpy(as_array(value)) for name, value in reference.items() if name in needed}
    if missing := sorted(set(needed) - found.keys()):
        raise _refused(f"tensor {missing[0]!r}", "it, as the weights have it", "none")
    for name in needed:
        shape = arrays[name].shape[1:]
        if found[name].shape == shape:
            found[name] = found[name][None]
        if found[name].shape[1:] != shape or len(found[name]) not in (1, K):
            raise _refused(f"tensor {name!r}", f"shape {shape}, or (1 or {K}, *shape)", str(found[name].shape))
    if len(sizes := {len(array) for array in found.values()}) > 1:
        raise _refused("leading axes", "one number of networks in every tensor", str(sorted(sizes)))
    for name in comparable(found, table):
        if not finite({name: found[name]}, next(iter(sizes))).all():
            step = "Align to a network without them: the distance to them is not defined."
            raise SymmetryError(Problem("reference", f"tensor {name!r}", "finite numbers", "others", step))
    return found


def comparable(arrays: Mapping[str, NDArray[Any]], table: Symmetry) -> list[str]:
    """Return the names of the floating tensors that are no running statistics."""
    following = {action.tensor for action in table.actions if action.role in _STATISTICS}
    return [name for name, array in arrays.items() if is_float(array) and name not in following]


def _matched_dtype(array: NDArray[Any]) -> NDArray[np.floating]:
    """Return the array in float64 where it is float64, else in float32."""
    return array.astype(np.float64 if array.dtype == np.float64 else np.float32, copy=False)


def _refused(what: str, expected: str, got: str) -> SymmetryError:
    return SymmetryError(f"reference: {what}: expected {expected}, got {got}. Name a network of the same architecture.")
