"""The actions of a table on one tensor: for every position of its axes, its source and its factor.

A checkpoint's tensor counts as a matrix of entries: axis 0 gives the rows, the axes from 1 to the last one that moves
the columns, and the axes behind stay together as one entry. Then ``new[i, j] = old[row[i], column[i, j]]``, where the
columns of all rows agree, or of all rows in a block of axis 0.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ckptzoo.schema.groups import AxisAction
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import listings

PerGroup = Mapping[str, Any]
"""Group id to (K, n), numpy or torch."""


@dataclass(frozen=True, eq=False)
class Axis:
    """One action and its channels.

    Parameters
    ----------
    size
        positions on the axis, through all blocks.
    listings
        every listing of a group's channels: the group and positions (n, inner).
    order
        for every position, its place in the listings one after the other, followed by the positions that are in none;
        None where that is the position itself.
    inverted
        for each listing, whether the inverses of its scales act.
    inside
        for each listing, the group that acts inside its channels and its channel at each of the positions; or None.
    beside
        the channels by whose scales the axis is multiplied too, listed in the same way.
    signed
        whether the signs of its scales act alone.
    """

    action: AxisAction
    size: int
    listings: Sequence[tuple[str, np.ndarray]]
    order: np.ndarray | None
    inverted: Sequence[bool] = ()
    inside: Sequence[tuple[str, np.ndarray] | None] = ()
    beside: Sequence["Axis"] = ()
    signed: bool = False

    @classmethod
    def of(cls, action: AxisAction, size: int, symmetry: Symmetry, *, signed: bool = False) -> "Axis":
        """Return the action on an axis with this number of positions."""
        beside = [
            cls.of(replace(action, segments=segments, signs=(), gates=()), size, symmetry, signed=signs)
            for signs, segments in zip((True, False), action.beside, strict=True)
            if segments
        ]
        found = listings(action, symmetry)
        listed_places, inverted = [(item.group, item.places) for item in found], [item.inverse for item in found]
        inside = [item.inside for item in found]
        listed = np.concatenate([places.ravel() for _, places in listed_places])
        if np.array_equal(listed, np.arange(listed.size)):
            return cls(action, size, listed_places, None, inverted, inside, beside, signed)
        rest = np.delete(np.arange(size), listed)
        order = np.argsort(np.concatenate([listed, rest]))
        return cls(action, size, listed_places, order, inverted, inside, beside, signed)

    @property
    def scaling(self) -> set[str]:
        """The groups whose scales act on the axis."""
        return self.action.groups if self.action.exponent else set()

    def sources(self, perms: PerGroup) -> Any | None:
        """Return the source of every position, (K, size); None where no group of the axis is in ``perms``."""
        acting = [name for name in self._names if name in perms]
        if not acting:
            return None
        like = perms[acting[0]]
        xp, K = array_namespace(like), len(like)
        parts: list[Any] = []
        for (name, places), inside in zip(self.listings, self.inside, strict=True):
            if inside is not None and inside[0] in perms:
                parts.append(_sources_inside(places, perms.get(name), perms[inside[0]], inside[1]))
            elif name not in perms:
                parts.append(xp.broadcast_to(_constant(places.ravel(), like), (K, places.size)))
            elif self.order is None and not parts and places.shape[1] == 1:
                parts.append(xp.astype(perms[name], xp.int64, copy=False))
            else:
                flat = xp.reshape(perms[name], (-1,))
                parts.append(xp.reshape(xp.take(_constant(places, like), flat, axis=0), (K, places.size)))
        return self._placed(parts, np.arange(self.size) if self.order is None else np.argsort(self.order), like)

    def factors(self, scales: PerGroup) -> Any | None:
        """Return the scale at every position, (K, size), times those beside it; None where nothing is scaled."""
        if self.signed:
            acting = {name: scales[name] for name, _ in self.listings if name in scales}
            scales = {name: array_namespace(scale).sign(scale) for name, scale in acting.items()}
        factors = self._scale_factors(scales)
        for axis in self.beside:
            if (found := axis.factors(scales)) is not None:
                factors = found if factors is None else factors * found
        return factors

    def _scale_factors(self, scales: PerGroup) -> Any | None:
        acting = [name for name in self._names if name in scales]
        if not acting or not self.action.exponent:
            return None
        like = scales[acting[0]]
        xp, K = array_namespace(like), len(like)
        if self.action.absolute:
            scales = {name: xp.abs(scales[name]) for name in acting}
        parts: list[Any] = []
        for (name, places), inverted, inside in zip(self.listings, self.inverted, self.inside, strict=True):
            if inside is not None and inside[0] in scales:
                scale = xp.take(scales[inside[0]], _constant(inside[1].ravel(), like), axis=1)
                parts.append(1 / scale if inverted else scale)
                continue
            scale = (
                (1 / scales[name] if inverted else scales[name])[:, :, None]
                if name in scales
                else xp.ones((K, 1, 1), dtype=like.dtype, device=device(like))
            )
            parts.append(xp.reshape(xp.broadcast_to(scale, (K, *places.shape)), (K, places.size)))
        return self._placed(parts, np.ones(self.size), like)

    @property
    def _names(self) -> list[str]:
        """The groups in the listings, and those inside their channels."""
        return [name for name, _ in self.listings] + [found[0] for found in self.inside if found is not None]

    def _placed(self, parts: list[Any], others: np.ndarray, like: Any) -> Any:
        """Return the parts, and behind them those of ``others`` that are in no listing, at their positions."""
        xp = array_namespace(like)
        listed = sum(part.shape[1] for part in parts)
        if listed < self.size:
            parts = [*parts, xp.broadcast_to(_constant(others[listed:], like), (len(like), self.size - listed))]
        joined = parts[0] if len(parts) == 1 else xp.concat(parts, axis=1)
        return joined if self.order is None else xp.take(joined, _constant(self.order, like), axis=1)


@dataclass(frozen=True, eq=False)
class Move:
    """The actions on one tensor, by axis, as a matrix of entries.

    ``shape`` is rows, columns and elements an entry, of one checkpoint; ``between`` the lengths of the axes that make
    up the columns. Columns differ at most from one of the ``blocks`` of rows to the next.
    """

    shape: tuple[int, int, int]
    between: tuple[int, ...]
    blocks: int
    axes: Sequence[Axis]

    @classmethod
    def of(cls, shape: tuple[int, ...], actions: Sequence[AxisAction], symmetry: Symmetry) -> "Move":
        """Return the actions on a tensor of this shape in one checkpoint; without any, every element is a row."""
        if not actions:
            return cls((math.prod(shape), 1, 1), (), 1, ())
        last = max(action.axis for action in actions)
        between = shape[1 : last + 1]
        sides = shape[0], math.prod(between), math.prod(shape[last + 1 :])
        blocks = math.lcm(*(action.blocks for action in actions))
        axes = [Axis.of(action, shape[action.axis] * action.blocks, symmetry) for action in actions]
        return cls(sides, between, blocks, axes)

    @property
    def groups(self) -> set[str]:
        """The groups that act."""
        return {name for axis in self.axes for name in axis.action.groups}

    def rows(self, perms: PerGroup) -> Any | None:
        """Return the source of every row, (K, rows); None where all stay."""
        return next((axis.sources(perms) for axis in self.axes if axis.action.axis == 0), None)

    def columns(self, perms: PerGroup) -> Any | None:
        """Return the source of every column, (K, blocks, columns); None where all stay."""
        moving = [
            (axis, found) for axis in self.axes if axis.action.axis and (found := axis.sources(perms)) is not None
        ]
        if not moving:
            return None
        like = moving[0][1]
        xp, K, index = array_namespace(like), len(like), None
        sources = {axis.action.axis - 1: (axis.action.blocks, found) for axis, found in moving}
        for at, length in enumerate(self.between):
            lengths = [length if other == at else 1 for other in range(len(self.between))]
            if at in sources:
                blocks, found = sources[at]
                place = xp.reshape(found % length, (K, blocks, *lengths))
                place = xp.repeat(place, self.blocks // blocks, axis=1) if blocks < self.blocks else place
            else:
                place = xp.reshape(_constant(np.arange(length), like), (1, 1, *lengths))
            index = place if index is None else index * length + place
        return xp.reshape(index, (K, self.blocks, self.shape[1]))

    def scaled(self, scales: PerGroup) -> Any | None:
        """Return which of the K scale anything, (K,) bool; None where nothing on any axis is in ``scales``."""
        groups = {name for axis in self.axes for name in axis.scaling} & scales.keys()
        return reduce(or_, [(scales[name] != 1).any(1) for name in groups]) if groups else None

    def factors(self, scales: PerGroup) -> list[tuple[AxisAction, Any]]:
        """Return the factors in the order in which they act, (K, B, 1 or columns * elements): row i has row i B / rows.

        Channels are read before they are written, and variances come last.
        """
        made: list[tuple[AxisAction, Any]] = []
        # in the order that docs/format.md prescribes, as the last bits depend on it
        for axis in sorted(self.axes, key=lambda axis: axis.action.exponent):
            if (found := axis.factors(scales)) is None:
                continue
            xp, K, action = array_namespace(found), len(found), axis.action
            if action.axis == 0:
                made.append((action, found[:, :, None]))
                continue
            at = action.axis - 1
            lengths = [length if other == at else 1 for other, length in enumerate(self.between)]
            found = xp.reshape(found, (K, action.blocks, *lengths, 1))
            found = xp.broadcast_to(found, (K, action.blocks, *self.between, self.shape[2]))
            made.append((action, xp.reshape(found, (K, action.blocks, self.shape[1] * self.shape[2]))))
        return made


def cuts(K: int, shape: tuple[int, int, int], most: int) -> Iterator[tuple[slice, tuple[int, int]]]:
    """Yield cuts of K matrices of entries: several whole ones, or some rows of one, of about ``most`` elements."""
    rows, size = shape[0], math.prod(shape)
    if not K * size:
        return
    if size <= most:
        step = most // size
        yield from ((slice(at, min(at + step, K)), (0, rows)) for at in range(0, K, step))
        return
    step = max(1, most * rows // size)
    for at in range(K):
        yield from ((slice(at, at + 1), (start, min(start + step, rows))) for start in range(0, rows, step))


def rows_of(values: Any, span: slice, rows: int) -> Any:
    """Return ``values`` (K, B, ...), of which row i of ``rows`` has row i B / rows, in a span: (K, 1 or span, ...)."""
    if values.shape[1] == 1:
        return values
    if values.shape[1] == rows:
        return values[:, span]
    xp = array_namespace(values)
    return xp.take(values, _constant(np.arange(span.start, span.stop) * values.shape[1] // rows, values), axis=1)


def sources(row: Any | None, column: Any | None, span: slice, shape: tuple[int, int, int]) -> Any:
    """Return the sources of a span of rows of K matrices of entries, one behind the other.

    ``row`` and ``column`` are those of ``Move.rows`` and ``Move.columns``; one may be None. The result is rows (K,
    span) where the columns stay, else entries (K, span, columns).
    """
    like: Any = column if row is None else row
    first = _constant(shape[0] * np.arange(len(like)), like)[:, None]
    found = first + (_constant(np.arange(span.start, span.stop), like) if row is None else row[:, span])
    return found if column is None else shape[1] * found[:, :, None] + rows_of(column, span, shape[0])


def _sources_inside(places: np.ndarray, perm: Any | None, within: Any, channels: np.ndarray) -> Any:
    """Return the source of every position (K, n * inner) of channels inside which another group acts.

    ``places`` and ``channels`` (n, inner) are positions and the other group's channels there; ``perm`` (K, n) permutes
    the channels, None where they stay, and ``within`` (K, m) the other group.
    """
    xp, (n, inner) = array_namespace(within), places.shape
    each = int((channels[0] == channels[0, 0]).sum())  # positions of one channel of the other group in one of these
    count = inner // each
    here = xp.take(within, _constant(channels.ravel(), within), axis=1) % count
    offset = xp.astype(here, xp.int64) * each + _constant(np.tile(np.arange(inner) % each, n), within)
    start = np.repeat(np.arange(n), inner) * inner
    if perm is None:
        found = _constant(start, within) + offset
    else:
        owners = _constant(np.repeat(np.arange(n), inner), within)
        found = xp.astype(xp.take(perm, owners, axis=1), xp.int64) * inner + offset
    taken = xp.take(_constant(places.ravel(), within), xp.reshape(found, (-1,)), axis=0)
    return xp.reshape(taken, (within.shape[0], n * inner))


def _constant(values: np.ndarray, like: Any) -> Any:
    return values if isinstance(like, np.ndarray) else array_namespace(like).asarray(values, device=device(like))
