"""The scales that bring every channel to unit size.

Groups are taken from input to output. A channel's size is the norm (or the standard deviation) of its slice of the
first tensor that writes it, with every group before it already scaled: weights first, then gains, then the biases
beside them, the next one where the first is zero. Then

- positive groups: ``s = 1 / size``. In front of a normalisation ``s >= sqrt(eps / (variance + eps))``, where the
  running variance reaches 0; below, the filter is clamped there. A filter that is zero takes its size from
  ``sqrt((variance + eps) / (1 + eps))``.
- signs: the gain of the normalisation that reads the channel becomes positive; without one, where it is 0, or where
  its own sign is free, the sum of the slice does.
- scales that may be any number but 0 have the size of the first and the sign of the second.

A channel that nothing writes is silent: its value is 0 whatever reads it. Its weights in the tensors that read it
count in no other channel's size, and its own size is that of the first such slice that is not zero, once all later
groups are scaled, so that scaling a silent channel changes nothing either. Where silent channels alone read it, those
among them that are scaled count, else the scaled ones that write it, back and forth until all are scaled that are
joined to others at all. The rest takes its size from what writes it, at the very end; where weights join several
channels of one group among the rest the checkpoint is reported.

Where two channels multiply each other, as in a gated unit, what reads their product determines the scales of one once
the other has its own: a silent value's by those of its gate, and a silent gate's by those of its value. Where both are
silent, and nothing else settles one of them, the gate keeps 1 (the value, where the gate alone may be any number but
0), and the other is scaled by what reads the product.

A tensor determines a group's scales where its other axes belong to groups that have theirs. A recurrent or shared
weight, which a group both writes and reads, does so only for channels that nothing else writes: their size is that of
their slice over the channels that have their scales, round by round. Those that are left count as silent ones do. A
group that nothing else writes or reads keeps its scales, and the checkpoint is reported.

Channels that another rule has settled keep its scales, and are not silent: what is left is scaled around them.

Sizes are taken to 40 bits, and within 8 units of the stored precision of 1 they count as 1, so that a second
application changes nothing.

The action on a running variance leaves the normalisation's eps unchanged. A channel before its BatchNorm that is scaled
by s keeps the function when its variance v becomes ``s^2 (v + eps) - eps``. That is computed as
``s (s v) + (s - 1)(s + 1) eps``, in which both terms have small relative errors whatever the size of v beside eps: the
result is that of a v and an eps that are off by a few units of float64's precision, and v itself where s is 1. For s of
at least 1 nothing cancels.

There is a variance for ``s >= a_min = sqrt(eps / (v + eps))`` alone. A little below, where rounding accounts for
the difference, the result is 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import AxisAction, Group
from ckptzoo.symmetry.arrays import by_channel, positions
from ckptzoo.symmetry.moments import Moments, PerGroup, Sizes

Measure = Callable[[AxisAction, str, dict[str, np.ndarray], dict[str, np.ndarray]], Sizes]


@dataclass(frozen=True, eq=False)
class Scales:
    """The result of the rule for K checkpoints.

    Parameters
    ----------
    scales
        group id to (K, n) float64, for the groups that scale; permutations do not enter.
    dead
        (K,) int64, channels that nothing writes, of groups that some tensor could write.
    clamped
        (K,) int64, filters that stop at a running variance of 0.
    unsigned
        (K,) bool, a sign is undetermined: the sums of all that writes a channel vanish.
    unsolved
        (K,) bool, the scales are not those of the rule to its precision, or some are undetermined.
    """

    scales: dict[str, np.ndarray]
    dead: np.ndarray
    clamped: np.ndarray
    unsigned: np.ndarray
    unsolved: np.ndarray


def solve(moments: Moments, *, spread: bool = False, settled: PerGroup | None = None) -> Scales:
    """Return scales to unit norm, or with ``spread`` to unit standard deviation, from input to output and back.

    ``settled`` maps group ids to sizes of scales (K, n) that are kept; NaN where this rule is to find one.
    """
    K, groups = moments.K, moments.symmetry.groups
    scaling = {group.id for group in groups if group.scaled}
    found = Scales({}, np.zeros(K, np.int64), np.zeros(K, np.int64), np.zeros(K, bool), np.zeros(K, bool))
    norms = partial(moments.norms, rounded=_rounded)
    silent: dict[str, np.ndarray] = {}
    for group in groups:
        usable = _determined(moments.writers(group.id), group, moments, scaling - found.scales.keys())
        measures = (moments.deviations, norms) if spread else (norms,)
        if not group.resizes:  # it matters only which sizes are 0
            measures = (moments.unordered_norms,)
        size, rounding = _first_sizes(measures, usable, group, found.scales, silent)
        size = np.broadcast_to(size, (K, group.n))
        given = (settled or {}).get(group.id, np.full((K, group.n), np.nan))
        quiet = (size == 0) & np.isnan(given)
        for action in moments.writers(group.id):
            if action not in usable:
                quiet &= moments.unordered_norms(action, group.id, found.scales, silent).values == 0
        undetermined = (size == 0) & np.isnan(given) & ~quiet
        normalised = moments.variances(group.id)
        if not normalised and moments.writers(group.id):
            found.dead[:] += quiet.sum(axis=1)
        if not group.scaled:
            continue
        scale = np.ones((K, group.n))
        if group.resizes:
            scale = _inverse(size, rounding)
            if normalised:
                scale = _clamped(scale, size, group, moments, found)
        scale = np.where(np.isnan(given), scale, given)
        if group.flips:
            sign = _signs(usable, group, moments, found.scales, silent)
            if (sign == 0).any():
                found.unsigned[:] |= ((sign == 0) & ((size != 0) | _takes_sign(group, moments))).any(axis=1)
            scale = np.where(sign == 0, 1.0, sign) * scale
        found.scales[group.id] = scale
        if not normalised or not group.resizes:
            silent[group.id] = quiet | undetermined
            if undetermined.any():
                unknown = scaling - found.scales.keys()
                _settle_by_own_group(undetermined, unknown, group, moments, found, silent)
    left = _settled_by_others(silent, moments, found)
    several = np.zeros(K, bool)
    for channels in left.values():
        several |= channels.sum(axis=1) > 1
    for row in np.flatnonzero(several).tolist():
        found.unsolved[row] |= _joined({name: channels[row] for name, channels in left.items()}, row, moments)
    for group in groups:
        if group.id in left and left[group.id].any():
            writers = _determined(moments.writers(group.id), group, moments, set())
            _settle(left[group.id], writers, group, moments, found, {})
    return found


def _settle_by_own_group(
    undetermined: np.ndarray,
    unknown: set[str],
    group: Group,
    moments: Moments,
    found: Scales,
    silent: dict[str, np.ndarray],
) -> None:
    """Scale channels (K, n) that nothing but channels of their own group writes, by those that have their scales.

    It goes round by round, as a round may give a scale to what writes others. Scaled channels are removed from
    ``silent``.
    """
    own = [
        action
        for action in moments.writers(group.id)
        if group.id in (others := moments.others(action)) and not others & unknown
    ]
    while undetermined.any():
        rest = _settle(undetermined, own, group, moments, found, silent)
        if (rest == undetermined).all():
            return
        silent[group.id] = silent[group.id] & ~(undetermined & ~rest)
        undetermined = rest


def _settled_by_others(silent: dict[str, np.ndarray], moments: Moments, found: Scales) -> dict[str, np.ndarray]:
    """Scale silent channels by what reads them, else by what writes them, silent ones that are not yet scaled left out.

    This goes back and forth until nothing changes, and returns the channels (K, n) by group that no scaled channel is
    joined to.
    """
    left, groups = dict(silent), [group for group in moments.symmetry.groups if group.id in silent]
    going = True
    while going or _keep_one_of_products(left, moments, found):
        going = False
        for sided, order in ((moments.readers, reversed(groups)), (moments.writers, groups)):
            for group in order:
                if left[group.id].any():
                    others = _determined(sided(group.id), group, moments, set())
                    actions = [*others, *(action for action in sided(group.id) if action not in others)]
                    # the sizes of signs are known, so that they count in those of others
                    unknown = (
                        left if group.flips else {name: left[name] for name in left if moments.symmetry[name].resizes}
                    )
                    rest = _settle(left[group.id], actions, group, moments, found, unknown)
                    going |= bool((rest != left[group.id]).any())
                    left[group.id] = rest
    return left


def _keep_one_of_products(left: dict[str, np.ndarray], moments: Moments, found: Scales) -> bool:
    """Let one of two channels that multiply each other keep 1, where nothing settles either; False where none is left.

    Only channels of one action are treated at a time, as that may settle others. A checkpoint is reported where weights
    join several such channels of one group.
    """
    for action in moments.symmetry.actions:
        for gate, places in positions(action.of_gates, moments.symmetry):
            for value, others in positions(action, moments.symmetry):
                if gate not in left or value not in left or not np.array_equal(places, others):
                    continue
                read = moments.unordered_norms(action.of_gates, gate, {}, {}).values != 0
                both = read & left[gate] & left[value]
                first, second = moments.symmetry[gate], moments.symmetry[value]
                if (first.resizes, first.flips) != (second.resizes, second.flips) and first.resizes and first.flips:
                    first, second = second, first
                less = first.resizes <= second.resizes and first.flips <= second.flips
                if not (less and both.any()):
                    continue
                for row in np.flatnonzero(both.any(axis=1)).tolist():
                    found.unsolved[row] |= _joined({name: left[name][row] for name in left}, row, moments)
                left[first.id] = left[first.id] & ~both
                return True
    return False


def _joined(channels: dict[str, np.ndarray], row: int, moments: Moments) -> bool:
    """Whether weights of a checkpoint join two of these channels (n,) of one group, also through others of these."""
    vertex: dict[str, np.ndarray] = {}
    size = 0
    for name, chosen in channels.items():
        vertex[name] = np.where(chosen, size + np.cumsum(chosen) - 1, -1)
        size += int(chosen.sum())
    label = np.arange(size)
    pairs = [np.zeros((0, 2), np.int64)]
    for tensor in sorted({action.tensor for action in moments.symmetry.actions}):
        actions = [action for action in moments.symmetry.actions_on(tensor) if action.exponent in (1, -1)]
        actions += [gate for action in actions for gate in action.acting[1:]]
        weights = moments.arrays[tensor][row]
        for one, two in combinations(actions, 2):
            ends = [_spread(action, vertex, weights.shape, moments) for action in (one, two)]
            both = (weights != 0) & (ends[0] >= 0) & (ends[1] >= 0)
            pairs.append(np.unique(np.stack([end[both] for end in ends], axis=1), axis=0))
    first, second = np.concatenate(pairs).T
    before = np.full(size, -1)
    while (label != before).any():
        before, least = label.copy(), np.minimum(label[first], label[second])
        np.minimum.at(label, first, least)
        np.minimum.at(label, second, least)
    labels = (label[numbers[numbers >= 0]] for numbers in vertex.values())
    return any(len(np.unique(found)) < len(found) for found in labels)


def _spread(action: AxisAction, vertex: dict[str, np.ndarray], shape: tuple[int, ...], moments: Moments) -> np.ndarray:
    """Return the numbers of an axis' channels (-1 for other positions), for every element of a checkpoint's tensor."""
    numbers = np.full(shape[action.axis] * action.blocks, -1)
    for name, places in positions(action, moments.symmetry):
        if name in vertex:
            numbers[places] = vertex[name][:, None]
    found = np.empty(shape, np.int64)
    view = by_channel(found[None], action)
    view[...] = numbers.reshape(1, action.blocks, -1, *[1] * (view.ndim - 3))
    return found


def _determined(actions: list[AxisAction], group: Group, moments: Moments, open_groups: set[str]) -> list[AxisAction]:
    """Return the actions on tensors whose other axes have their scales already."""
    return [action for action in actions if not moments.others(action) & (open_groups | {group.id})]


def _first_sizes(
    measures: Sequence[Measure],
    actions: list[AxisAction],
    group: Group,
    scales: dict[str, np.ndarray],
    silent: dict[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Return each channel's first size that is not zero, and its relative rounding."""
    size, rounding = np.zeros((1, group.n)), np.ones((1, group.n))
    for measure in measures:
        for action in actions:
            empty = size == 0
            if empty.any():
                found = measure(action, group.id, scales, silent)
                size = np.where(empty, found.values, size)
                rounding = np.where(empty, found.rounding, rounding)
    return size, rounding


def _inverse(size: np.ndarray, rounding: np.ndarray | float) -> np.ndarray:
    """Return 1 over sizes of 40 significant bits, so that sizes that are equal but for rounding scale alike."""
    size = _rounded(size)
    # sizes that rounding alone moves from 1 count as 1, so that a second application changes nothing
    off = np.abs(size - 1) > np.maximum(8 * rounding, 2.0**-40)
    return np.divide(1, size, out=np.ones_like(size), where=(size != 0) & off)


def _rounded(size: np.ndarray) -> np.ndarray:
    mantissa, exponent = np.frexp(size)
    return np.ldexp(np.round(mantissa * 2.0**40) / 2.0**40, exponent)


def _clamped(scale: np.ndarray, size: np.ndarray, group: Group, moments: Moments, found: Scales) -> np.ndarray:
    """Return scales in front of a normalisation, not below the point where a running variance reaches 0."""
    least = np.zeros_like(scale)
    for action in moments.variances(group.id):
        shifted = moments.entries(action, group.id) + action.eps
        unit = np.sqrt((shifted / (1 + action.eps)).max(axis=2))
        scale = np.where(size == 0, _inverse(unit, moments.precision(action)), scale)
        if action.eps:
            least = np.maximum(least, np.sqrt(action.eps / shifted).max(axis=2))
    least = np.where(least < 1, least * (1 - 2.0**-51), least)  # a little below, the variance comes out as 0
    found.clamped[:] += (scale < least).sum(axis=1)
    return np.maximum(scale, least)


def _signs(
    actions: list[AxisAction],
    group: Group,
    moments: Moments,
    scales: dict[str, np.ndarray],
    silent: dict[str, np.ndarray],
) -> np.ndarray:
    """Return the sign of the first gain that is not zero, else of the first sum that is more than rounding, else 0."""
    sign = np.zeros((moments.K, group.n))
    for action, decides in moments.gains(group.id):
        for gain in np.moveaxis(np.sign(moments.entries(action, group.id)), 2, 0) if decides else ():
            sign = np.where(sign == 0, gain, sign)
    for action in (action for action in actions if not action.absolute):
        # the sign of a gain counts once that of what it normalises is known
        if not sign.all() and all(segment.group in scales for segment in action.signs):
            sums = moments.sums(action, group.id, scales, silent)
            sizes = moments.sizes_of_sums(action, group.id, scales, silent)
            rounding = max(ROUNDING * moments.precision(action), SCALE_ROUNDING)
            sums[np.abs(sums) <= rounding * sizes] = 0
            sign = np.where(sign == 0, np.sign(sums), sign)
    return sign


def _takes_sign(group: Group, moments: Moments) -> np.ndarray:
    """Return whether a sign changes anything (K, n) that cannot decide it: in front of a normalisation, or a gain.

    The weights there are those that silent channels write, or that read a channel which is zero; they have no size yet.
    The sign of such a gain is free itself.
    """
    changed = np.zeros((moments.K, group.n), bool)
    if moments.variances(group.id):
        for action in (*moments.writers(group.id), *moments.readers(group.id)):
            changed |= (moments.unordered_norms(action, group.id, {}, {}).values != 0) & (not action.absolute)
    for action, _ in moments.gains(group.id):
        changed |= (moments.entries(action, group.id) != 0).any(axis=2)
    return changed


def _settle(
    channels: np.ndarray,
    actions: list[AxisAction],
    group: Group,
    moments: Moments,
    found: Scales,
    silent: dict[str, np.ndarray],
) -> np.ndarray:
    """Scale some channels (K, n) to unit size in the first of these tensors, and return those that are zero in all."""
    size, rounding = _first_sizes((partial(moments.norms, rounded=_rounded),), actions, group, found.scales, silent)
    scale = np.ones((moments.K, group.n))
    if group.resizes:
        scale = _inverse(size, rounding)
        scale = 1 / scale if actions and actions[0].exponent == -1 else scale
    if group.flips:
        sign = _signs(actions, group, moments, found.scales, silent)
        found.unsigned[:] |= (channels & (sign == 0) & (size != 0)).any(axis=1)
        scale = np.where(sign == 0, 1.0, sign) * scale
    found.scales[group.id] = np.where(channels, scale, found.scales[group.id])
    return channels & (size == 0)


SCALE_ROUNDING = 2.0**-36
"""Scales are taken to 40 bits (``_inverse``), so that a sum of scaled weights below this part of their norm is none."""
ROUNDING = 8
"""A variance counts as 0 down to this number of units of the stored precision below it, relative to s^2 (v + eps); so
does a sum of weights that decides a sign, relative to their norm."""


def scaled_variance(variance: Any, scale: Any, eps: float, precision: float, tensor: str) -> Any:
    """Return ``scale^2 (variance + eps) - eps`` in float64, and exactly 0 where that is negative by rounding alone.

    ``variance`` and ``scale`` are float64 and broadcast; ``precision`` is the machine epsilon of the dtype in which
    derived variances are stored, ``tensor`` the name in errors. With eps 0 the result is ``scale^2 variance``. A
    negative variance follows the formula: it is wrong already. Raises ``SymmetryError`` where a scale is below a_min by
    more than rounding.
    """
    made = scale * (scale * variance)
    if not eps:
        return made
    xp = array_namespace(variance)
    made = made + (scale - 1) * (scale + 1) * eps
    below = (made < 0) & (variance >= 0)
    if not bool(xp.any(below)):
        return made
    if bool(xp.any(refused := below & (made < -ROUNDING * precision * (scale * scale * (variance + eps))))):
        raise SymmetryError(
            f"tensor {tensor!r}: scales: expected at least sqrt(eps / (variance + eps)), "
            f"got a variance of {float(xp.min(made[refused])):.3g} after scaling. Use larger scales."
        )
    return xp.where(below, xp.zeros_like(made), made)
