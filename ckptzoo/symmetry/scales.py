"""The scales that bring every channel to unit size.

Groups are taken from input to output. A channel's size is the norm (or the standard deviation) of its slice of the
first tensor that writes it, with every group before it already scaled: weights first, then gains, then the biases
beside them, the next one where the first is zero. Then

- positive groups: ``s = 1 / size``. In front of a normalisation ``s >= sqrt(eps / (variance + eps))``, where the
  running variance reaches 0; below, the filter is clamped there. A filter that is zero takes its size from
  ``sqrt((variance + eps) / (1 + eps))``.
- signs: the sum of the slice becomes positive.

A channel that nothing writes is silent: its value is 0 whatever reads it. Its weights in the tensors that read it
count in no other channel's size, and its own size is that of the first such slice that is not zero, once all later
groups are scaled, so that scaling a silent channel changes nothing either. Where silent channels alone read it, those
among them that are scaled count, else the scaled ones that write it, back and forth until all are scaled that are
joined to others at all. The rest takes its size from what writes it, at the very end; where that is several channels
of one group the checkpoint is reported.

A tensor says something about a group's scales where its other axes belong to groups that have theirs: a recurrent
weight says nothing, and a group that nothing else writes or reads keeps its scales.

Channels that another rule has settled keep its scales, and are not silent: what is left is scaled around them.

Sizes are taken to 40 bits, and within 8 units of the stored precision of 1 they count as 1, so that a second
application changes nothing.

The action on a running variance, with the normalisation's eps unchanged.

A channel before its BatchNorm that is scaled by s keeps the function when its variance v becomes
``s^2 (v + eps) - eps``. That is computed as ``s (s v) + (s - 1)(s + 1) eps``, in which both terms have small
relative errors whatever the size of v beside eps: the result is that of a v and an eps that are off by a few units
of float64's precision, and v itself where s is 1. For s of at least 1 nothing cancels.

There is a variance for ``s >= a_min = sqrt(eps / (v + eps))`` alone. A little below, where rounding accounts for
the difference, the result is 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.symmetry import AxisAction, Group
from ckptzoo.symmetry.moments import Moments, PerGroup, Sizes

Measure = Callable[[AxisAction, str, dict[str, np.ndarray], dict[str, np.ndarray]], Sizes]


@dataclass(frozen=True, eq=False)
class Scales:
    """What the rule found for K checkpoints.

    Parameters
    ----------
    scales : group id to (K, n) float64, for the groups that scale; permutations do not enter.
    dead : (K,) int64, channels that nothing writes.
    clamped : (K,) int64, filters that stop at a running variance of 0.
    unsigned : (K,) bool, a sign could not be told: the sums of all that writes a channel vanish.
    unsolved : (K,) bool, the scales are not those of the rule to its precision, or some could not be told.
    """

    scales: dict[str, np.ndarray]
    dead: np.ndarray
    clamped: np.ndarray
    unsigned: np.ndarray
    unsolved: np.ndarray


def solve(moments: Moments, *, spread: bool = False, settled: PerGroup | None = None) -> Scales:
    """Scales to unit norm, or with ``spread`` to unit standard deviation, from input to output and back.

    Parameters
    ----------
    moments : the checkpoints.
    spread : whether sizes are standard deviations.
    settled : group id to scales (K, n) that stay as they are; NaN where this rule is to find one.
    """
    K, groups = moments.K, moments.symmetry.groups
    scaling = {group.id for group in groups if group.scale != "none"}
    found = Scales({}, np.zeros(K, np.int64), np.zeros(K, np.int64), np.zeros(K, bool), np.zeros(K, bool))
    silent: dict[str, np.ndarray] = {}
    for group in groups:
        usable = _determined(moments.writers(group.id), group, moments, scaling - found.scales.keys())
        measures = (moments.deviations, moments.norms) if spread else (moments.norms,)
        size, rounding = _first_sizes(measures, usable, group, found.scales, silent)
        size = np.broadcast_to(size, (K, group.n))
        given = (settled or {}).get(group.id, np.full((K, group.n), np.nan))
        quiet = (size == 0) & np.isnan(given)
        for action in moments.writers(group.id):
            if action not in usable:
                quiet &= moments.norms(action, group.id, found.scales, silent).values == 0
        normalised = moments.variances(group.id)
        if not normalised:
            found.dead[:] += quiet.sum(axis=1)
        if group.scale == "positive":
            scale = _inverse(size, rounding)
            if normalised:
                scale = _clamped(scale, size, group, moments, found)
        elif group.scale == "sign":
            scale = _signs(usable, group, moments, found.scales, silent)
            found.unsigned[:] |= ((scale == 0) & ~quiet).any(axis=1)
            scale = np.where(scale == 0, 1.0, scale)
        else:
            continue
        found.scales[group.id] = np.where(np.isnan(given), scale, given)
        if not normalised or group.scale == "sign":
            silent[group.id] = quiet
    left = _settled_by_others(silent, moments, found)
    for group in groups:
        if group.id in left and left[group.id].any():
            around = [*moments.writers(group.id), *moments.readers(group.id)]
            size, _ = _first_sizes(
                (moments.norms,), _determined(around, group, moments, set()), group, found.scales, {}
            )
            found.unsolved[:] |= (left[group.id] & (size != 0)).sum(axis=1) > 1
            writers = _determined(moments.writers(group.id), group, moments, set())
            _settle(left[group.id], writers, group, moments, found, {})
    return found


def _settled_by_others(silent: dict[str, np.ndarray], moments: Moments, found: Scales) -> dict[str, np.ndarray]:
    """Scale silent channels by what reads them, else by what writes them, silent ones that are not yet scaled left out.

    Back and forth until nothing changes; returns the channels (K, n) by group that no scaled channel is joined to.
    """
    left, groups = dict(silent), [group for group in moments.symmetry.groups if group.id in silent]
    going = True
    while going:
        going = False
        for sided, order in ((moments.readers, reversed(groups)), (moments.writers, groups)):
            for group in order:
                if left[group.id].any():
                    actions = _determined(sided(group.id), group, moments, set())
                    rest = _settle(left[group.id], actions, group, moments, found, left)
                    going |= bool((rest != left[group.id]).any())
                    left[group.id] = rest
    return left


def _determined(actions: list[AxisAction], group: Group, moments: Moments, open_groups: set[str]) -> list[AxisAction]:
    """The actions on tensors whose other axes have their scales already."""
    return [action for action in actions if not moments.others(action) & (open_groups | {group.id})]


def _first_sizes(
    measures: Sequence[Measure],
    actions: list[AxisAction],
    group: Group,
    scales: dict[str, np.ndarray],
    silent: dict[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Each channel's first size that is not zero, and its relative rounding."""
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
    """1 over sizes of 40 significant bits, so that sizes that are equal but for rounding scale alike."""
    mantissa, exponent = np.frexp(size)
    size = np.ldexp(np.round(mantissa * 2.0**40) / 2.0**40, exponent)
    off = np.abs(size - 1) > np.maximum(8 * rounding, 2.0**-40)
    return np.divide(1, size, out=np.ones_like(size), where=(size != 0) & off)


def _clamped(scale: np.ndarray, size: np.ndarray, group: Group, moments: Moments, found: Scales) -> np.ndarray:
    """Scales in front of a normalisation: not below the point where a running variance reaches 0."""
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
    """The sign of the first sum that is not zero, else 0."""
    sign = np.zeros((moments.K, group.n))
    for action in actions:
        if not sign.all():
            sign = np.where(sign == 0, np.sign(moments.sums(action, group.id, scales, silent)), sign)
    return sign


def _settle(
    channels: np.ndarray,
    actions: list[AxisAction],
    group: Group,
    moments: Moments,
    found: Scales,
    silent: dict[str, np.ndarray],
) -> np.ndarray:
    """Scale some channels (K, n) to unit size in the first of these tensors; returns those that are zero in all."""
    size, rounding = _first_sizes((moments.norms,), actions, group, found.scales, silent)
    if group.scale == "sign":
        sign = _signs(actions, group, moments, found.scales, silent)
        found.unsigned[:] |= (channels & (sign == 0) & (size != 0)).any(axis=1)
        scale = np.where(sign == 0, 1.0, sign)
    else:
        scale = _inverse(size, rounding)
        scale = 1 / scale if actions and actions[0].exponent == -1 else scale
    found.scales[group.id] = np.where(channels, scale, found.scales[group.id])
    return channels & (size == 0)


ROUNDING = 8
"""A result counts as 0 down to so many units of the stored precision below it, relative to s^2 (v + eps)."""


def scaled_variance(variance: Any, scale: Any, eps: float, precision: float, tensor: str) -> Any:
    """``scale^2 (variance + eps) - eps`` in float64, and exactly 0 where that is negative by rounding alone.

    Parameters
    ----------
    variance, scale : float64 arrays that broadcast.
    eps : the normalisation's; with 0 this is ``scale^2 variance``.
    precision : machine epsilon of the dtype that derived variances are stored in.
    tensor : the name in errors.

    Raises
    ------
    SymmetryError
        A scale is below a_min by more than rounding.

    Notes
    -----
    A negative variance follows the formula and is not refused: it is wrong already. Law:
    tests/symmetry/test_variance.py.
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
