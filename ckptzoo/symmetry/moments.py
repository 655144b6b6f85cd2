"""Sums of weights per channel whose bits do not depend on the order of channels.

A tensor's moving axes are those that the table acts on. Sums over the other axes run in memory order, which no
permutation changes; sums over moving axes run over sorted values. Where sums are rounded, values are sorted only where
their order could change the result: the sum of M values in any order that numpy takes, and the sorted sum, are within
``(26 + log2 M) 2^-53`` of the sum of their moduli from the exact sum, as it adds up at most 26 values one by one before
it goes on in pairs.
"""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from ckptzoo.schema.groups import AxisAction
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import by_channel, positions, stored_dtype

PIECE = 2**17
"""Elements that are turned into float64 at a time, few enough to stay in the cache."""

HELD = 2**27
"""Bytes of sums that are kept: where every axis of a network moves there are as many sums as weights."""

PerGroup = Mapping[str, np.ndarray]
"""Group id to (K, n)."""
Rounding = Callable[[np.ndarray], np.ndarray]
"""A function that does not fall, from numbers to rounded ones."""


@dataclass(frozen=True, eq=False)
class Sizes:
    """Sizes of channels (K, n), and their relative rounding (K, n) in weights as they are stored."""

    values: np.ndarray
    rounding: np.ndarray


class Moments:
    """Sums and sums of squares of the slices of K checkpoints (K, *shape), finite numpy, for the rules of gauges.

    With ``cubes`` the ``sums`` are those of cubes: sums of centred weights vanish, and cubes have their signs.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], symmetry: Symmetry, *, cubes: bool = False) -> None:
        self.arrays, self.symmetry, self.cubes = arrays, symmetry, cubes
        self.K = len(next(iter(arrays.values())))
        self._acting: dict[str, list[AxisAction]] = {group.id: [] for group in symmetry.groups}
        self._gains: dict[str, list[tuple[AxisAction, bool]]] = {group.id: [] for group in symmetry.groups}
        for action in symmetry.actions:
            for part in action.parts:
                for group in part.listed_groups:
                    self._acting[group].append(part)
                for gate in part.acting[1:]:
                    for group in {item.group for item in gate.segments}:
                        self._acting[group].append(gate)
            decides = not any(symmetry[item.group].flips for item in action.segments)
            for group in {item.group for item in action.signs}:
                self._gains[group].append((replace(action, segments=action.signs, signs=()), decides))
        self._held = np.empty(0)
        self._sums: dict[tuple[str, int], tuple[np.ndarray, np.ndarray]] = {}

    def forget(self) -> None:
        """Give up all sums, as where the weights have changed."""
        self._sums.clear()

    def of(self, arrays: Mapping[str, np.ndarray]) -> "Moments":
        """Return the sums of as many other weights of the same table."""
        made = copy(self)
        made.arrays, made._sums = arrays, {}
        return made

    def precision(self, action: AxisAction) -> float:
        """Return the machine epsilon of the dtype in which the action's tensor is stored."""
        return float(np.finfo(stored_dtype(self.arrays[action.tensor].dtype)).eps)

    def writers(self, group: str) -> list[AxisAction]:
        """Return the actions that write a group's channels: weights first, then vectors beside them."""
        found = [action for action in self._acting[group] if action.exponent == 1]
        return sorted(found, key=lambda action: action.role not in ("out", "gain"))

    def readers(self, group: str) -> list[AxisAction]:
        """Return the actions that read a group's channels."""
        return [action for action in self._acting[group] if action.exponent == -1]

    def variances(self, group: str) -> list[AxisAction]:
        """Return the running variances of a group's channels."""
        return [action for action in self._acting[group] if action.exponent == 2]

    def gains(self, group: str) -> list[tuple[AxisAction, bool]]:
        """Return the gains that take the signs of a group's scales, as actions of this group.

        With each comes whether these scales alone can turn its sign: not where its own group has signs too.
        """
        return self._gains[group]

    def others(self, action: AxisAction) -> set[str]:
        """Return the groups on the other axes of an action's tensor, and those that are multiplied with its own."""
        actions = [other for other in self.symmetry.actions_on(action.tensor) if other.axis != action.axis]
        gates = (gate.listed_groups for other in (action, *actions) for gate in other.acting[1:])
        return set[str]().union(*gates, *(other.listed_groups for other in actions))

    def norms(
        self,
        action: AxisAction,
        group: str,
        scales: PerGroup,
        silent: PerGroup,
        rounded: Rounding | None = None,
    ) -> Sizes:
        """Return Euclidean norms of the channels' slices, the other axes scaled, silent channels left out.

        What ``rounded`` makes of them is the same for any order of the channels, as they are themselves without it.
        """
        squares, exponent = self._slices(2, action, group, scales, silent)
        precision = self.precision(action)
        if rounded is None:
            return _sizes(_sorted_sum(squares), exponent, precision)
        sums = _sum_for(squares, lambda sums: rounded(_sizes(sums, exponent, precision).values))
        return _sizes(sums, exponent, precision)

    def unordered_norms(self, action: AxisAction, group: str, scales: PerGroup, silent: PerGroup) -> Sizes:
        """Return ``norms`` without sorting: the bits depend on the order of values, but not which norms are 0."""
        squares, exponent = self._slices(2, action, group, scales, silent)
        return _sizes(squares.sum(axis=2), exponent, self.precision(action))

    def sizes_of_sums(self, action: AxisAction, group: str, scales: PerGroup, silent: PerGroup) -> np.ndarray:
        """Return the sizes (K, n) that ``sums`` have where terms are like the slice's in size and of random signs.

        The size is the norm of a slice; for cubes of m weights its third power over the root of m.
        """
        norms = self.norms(action, group, scales, silent).values
        if not self.cubes:
            return norms
        squares, _ = self._slices(2, action, group, scales, silent)
        return norms**3 / np.sqrt(squares.shape[2] * self._still(action.tensor))

    def deviations(self, action: AxisAction, group: str, scales: PerGroup, silent: PerGroup) -> Sizes:
        """Return standard deviations of the channels' slices, and the modulus where a slice is one number.

        Below 1e-7 of the root mean square a deviation is rounding, and counts as 0.
        """
        first, _ = self._slices(1, action, group, scales, silent)
        second, exponent = self._slices(2, action, group, scales, silent)
        count = first.shape[2] * self._still(action.tensor)
        mean_square = _sorted_sum(second) / count
        if count == 1:
            return _sizes(mean_square, exponent, self.precision(action))
        variance = mean_square - (_sorted_sum(first) / count) ** 2
        # 1e-7 squared: what is left of the difference below that is rounding
        variance[variance < 1e-14 * mean_square] = 0
        worse = np.divide(mean_square, variance, out=np.ones_like(variance), where=variance > 0)
        return _sizes(variance, exponent, self.precision(action) * worse)

    def sums(
        self,
        action: AxisAction,
        group: str,
        scales: PerGroup,
        silent: PerGroup | None = None,
        rounded: Rounding | None = None,
    ) -> np.ndarray:
        """Return sums (K, n) of the channels' slices, the other axes scaled, silent channels left out.

        Those of a gain take the signs of what it normalises. ``rounded`` is that of ``norms``.
        """
        slices, exponent = self._slices(1, action, group, scales, silent or {})
        if rounded is None:
            return np.ldexp(_sorted_sum(slices), exponent[:, None])
        return np.ldexp(_sum_for(slices, lambda sums: rounded(np.ldexp(sums, exponent[:, None]))), exponent[:, None])

    def entries(self, action: AxisAction, group: str) -> np.ndarray:
        """Return the channels' own entries (K, n, M) in float64, of a vector or any other tensor."""
        action, array = self._moving(action, self.arrays[action.tensor].astype(np.float64))
        return _listed(array, action, group, self.symmetry)

    def moving_axes(self, tensor: str) -> list[int]:
        """Return the axes of a checkpoint's tensor that the table acts on, and axis 0 where one is read by blocks."""
        actions = self.symmetry.actions_on(tensor)
        blocked = {0} if any(action.blocks > 1 for action in actions) else set[int]()
        return sorted(blocked | {action.axis for action in actions})

    def squares(self, tensor: str) -> tuple[np.ndarray, np.ndarray]:
        """Return sums of squares over the axes that stay (K, *moving), times 4 ** -exponent, and int64 exponents."""
        return self._of(tensor, 2)

    def _moving(self, action: AxisAction, array: np.ndarray) -> tuple[AxisAction, np.ndarray]:
        """Return the tensor with its moving axes first, the others as one last axis, and the action on it."""
        axes = self.moving_axes(action.tensor)
        still = [axis for axis in range(array.ndim - 1) if axis not in axes]
        moved = array.transpose(0, *(axis + 1 for axis in (*axes, *still)))
        return replace(action, axis=axes.index(action.axis)), moved.reshape(*moved.shape[: len(axes) + 1], -1)

    def _still(self, tensor: str) -> int:
        axes, shape = self.moving_axes(tensor), self.arrays[tensor].shape[1:]
        return int(np.prod([size for axis, size in enumerate(shape) if axis not in axes], dtype=np.int64))

    def _of(self, tensor: str, power: int) -> tuple[np.ndarray, np.ndarray]:
        """Return sums (power 1) or sums of squares (2) over the axes that stay, of the tensor times 2 ** -exponent."""
        if (tensor, power) not in self._sums:
            _, array = self._moving(self.symmetry.actions_on(tensor)[0], self.arrays[tensor])
            shape, still = array.shape[:-1], array.shape[-1]
            exponent = np.zeros(self.K, np.int64)
            # squares of float64 alone can overflow: those of narrower floats are within float64's range
            if array.dtype == np.float64 and array.size:
                _, exponent = np.frexp(np.abs(array).reshape(self.K, -1).max(axis=1))
            flat = array.reshape(self.K, -1, still)
            found = np.empty(flat.shape[:2])
            rows = max(1, PIECE // still)
            step = max(1, rows // max(1, flat.shape[1]))
            for first in range(0, self.K, step):
                some = slice(first, first + step)
                for start in range(0, flat.shape[1], rows):
                    place = some, slice(start, start + rows)
                    values = np.moveaxis(flat[place], 2, 0)
                    piece = found[place][None] if still == 1 else self._buffer(values.shape)
                    np.copyto(piece, values)
                    if exponent.any():
                        np.ldexp(piece, -exponent[some, None], out=piece)
                    if power == 2:
                        np.square(piece, out=piece)
                    elif self.cubes:
                        np.multiply(piece, piece * piece, out=piece)
                    if still != 1:
                        np.add.reduce(piece, axis=0, out=found[place])
                    elif power == 1:
                        np.add(piece, 0, out=piece)  # a sum of -0.0 alone is 0.0
            made = found.reshape(shape), 3 * exponent if power == 1 and self.cubes else exponent
            while self._sums and sum(sums.nbytes for sums, _ in self._sums.values()) + found.nbytes > HELD:
                del self._sums[next(iter(self._sums))]
            self._sums[tensor, power] = made
        return self._sums[tensor, power]

    def _buffer(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return memory for a piece, used again and again."""
        size = int(np.prod(shape, dtype=np.int64))
        if len(self._held) < size:
            self._held = np.empty(max(size, PIECE))
        return self._held[:size].reshape(shape)

    def _slices(
        self, power: int, action: AxisAction, group: str, scales: PerGroup, silent: PerGroup
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums (power 1) or sums of squares (2) of a group's slices (K, n, M), the other axes scaled.

        They are those of the weights times 2 ** -exponent, so that no square overflows or vanishes.
        """
        moment, exponent = self._of(action.tensor, power)
        owned = False
        axes = self.moving_axes(action.tensor)
        others = [
            (other, scales)
            for acting in self.symmetry.actions_on(action.tensor)
            for other in acting.parts
            if other.axis != action.axis and other.exponent in (1, -1)
        ]
        if action.signs and power == 1:
            signs = {item.group: np.sign(scales[item.group]) for item in action.signs if item.group in scales}
            others.append((replace(action, segments=action.signs, signs=()), signs))
        others += [(gate, factors) for other, factors in others for gate in other.acting[1:]]
        others += [(gate, scales) for gate in action.acting[1:]]
        for other, factors in others:
            factor = _by_position(other, self.symmetry, factors, silent, moment.shape[1 + axes.index(other.axis)])
            if factor is None:
                continue
            factor = np.abs(factor) if other.absolute else factor
            if not owned:
                moment, owned = moment.copy(), True
            _, size = np.frexp(np.where(np.isfinite(factor), np.abs(factor), 0).max(axis=1))
            exponent = exponent + other.exponent * size
            factor = np.ldexp(factor, -size[:, None])
            view = by_channel(moment, replace(other, axis=axes.index(other.axis)))
            factor = (factor * factor if power == 2 else factor).reshape(*view.shape[:3], *[1] * (view.ndim - 3))
            (np.multiply if other.exponent == 1 else np.divide)(view, factor, out=view)
        return _listed(moment, replace(action, axis=axes.index(action.axis)), group, self.symmetry), exponent


def _by_position(
    action: AxisAction, symmetry: Symmetry, scales: PerGroup, silent: PerGroup, size: int
) -> np.ndarray | None:
    """Return the scale at every position (K, blocks * size), infinite at silent channels; None where all are 1."""
    factor: np.ndarray | None = None
    for name, places in positions(action, symmetry):
        if name not in scales:
            continue
        scale = scales[name]
        if name in silent and silent[name].any():
            scale = np.where(silent[name], np.inf if action.exponent == -1 else 0.0, scale)
        if (scale != 1).any():
            if factor is None:
                factor = np.ones((len(scale), size * action.blocks))
            factor[:, places.ravel()] = np.repeat(scale, places.shape[1], axis=1)
    return factor


def _listed(array: np.ndarray, action: AxisAction, group: str, symmetry: Symmetry) -> np.ndarray:
    """Return each channel's slices, one listing of the group behind the other: (K, n, M)."""
    channels = by_channel(array, action)
    K, size = len(array), channels.shape[1] * channels.shape[2]
    flat = channels.reshape(K, size, -1)
    found: list[np.ndarray] = []
    for name, places in positions(action, symmetry):
        if name == group:
            order = places.ravel()
            whole = len(order) == size and (order == np.arange(size)).all()
            found.append((flat if whole else flat[:, order]).reshape(K, len(places), -1))
    return found[0] if len(found) == 1 else np.concatenate(found, axis=2)


def _sorted_sum(slices: np.ndarray) -> np.ndarray:
    """Return sums along the last axis whose bits do not depend on the order of the values."""
    return np.sort(slices, axis=2).sum(axis=2) if slices.shape[2] > 1 else slices[:, :, 0]


def _sum_for(slices: np.ndarray, rounded: Rounding) -> np.ndarray:
    """Return sums along the last axis of which ``rounded`` makes what it makes of the sorted ones."""
    if (count := slices.shape[2]) < 2:
        return _sorted_sum(slices)
    slices = np.ascontiguousarray(slices)
    sums = slices.sum(axis=2)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is sorted
        # moduli add up to the root of count times the norm at most; squares of what is below 2 ** -500 vanish
        moduli = np.sqrt(count * np.einsum("knm,knm->kn", slices, slices)) + count * 2.0**-500
        off = moduli * ((26 + np.log2(count)) * 2.0**-52)
        least, most = rounded(sums - off), rounded(sums + off)
    open_sums = (least != most) | (np.signbit(least) != np.signbit(most))  # -0.0 is 0.0, but not in files
    sums[open_sums] = np.sort(slices[open_sums], axis=1).sum(axis=1)
    return sums


def _sizes(squares: np.ndarray, exponent: np.ndarray, rounding: np.ndarray | float) -> Sizes:
    """Return roots of squares of numbers that were scaled by 2 ** -exponent."""
    return Sizes(np.ldexp(np.sqrt(squares), exponent[:, None]), np.broadcast_to(rounding, squares.shape))
