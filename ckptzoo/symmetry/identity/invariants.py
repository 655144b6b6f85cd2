r"""Invariants: numbers that describe a checkpoint and its channels, and that no element of the group changes.

They are smooth in the weights: rounding changes them by rounding alone. Checkpoints whose invariants are close may be
one network; ``comparison.py`` decides, weight by weight.

In the gauge ``canonical`` scales have size 1 and blocks of matrices are balanced, so that two networks of one orbit
differ by permutations, signs and orthogonal matrices alone, whatever decided the order of singular values.

A permutation moves channels, and what describes a channel moves with it. Channels that a sign or a matrix mixes have
features that are mixed with them: with ``V = sum w C`` over the weights w of a channel and the features C of the
channels on the other axes, an orthogonal matrix R on the channel gives R V, and

.. math:: C' = \sqrt 2 V (1 + |V|^2 / k)^{-1/2} M

with a fixed matrix M on the features, and the norm of a block of k channels, gives R C'. Signs are such blocks of one
channel, complex numbers of two. Of invertible matrices what is written is read with the features that come from what is
read, and the other way round: these products need no inverse, so that blocks of low rank have smooth invariants too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ckptzoo.schema.groups import Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import is_float, to_numpy
from ckptzoo.symmetry.identity.forms import SettledForm, form_of
from ckptzoo.symmetry.identity.tensor_sums import TensorSums, generator, order_key, random_signs
from ckptzoo.symmetry.kinds.kind import Turning
from ckptzoo.symmetry.ordering import leaders

INVARIANT_BYTES = 32 * 2**20
"""Weights that are turned into float64 at a time, or one checkpoint."""


@dataclass(frozen=True, eq=False)
class Invariants:
    """Numbers that describe K checkpoints, whatever their order, and their signs and matrices where these are open."""

    sketches: np.ndarray
    """The sketches (K, F), the same for all networks of an orbit."""
    channels: Mapping[str, np.ndarray]
    """By leader of a permutation (K, n, F): a description of each channel that moves with it and depends on no other
    order; all channels of a block that a matrix mixes have the same one."""
    turning: Mapping[str, np.ndarray]
    """By group with signs or matrices (K, n, F): a description of each channel that these change as they do the
    channels; (K, 2 n, F) for real and imaginary parts, (K, n, 2 F) for invertible matrices. Empty where the gauge
    settles them."""

    def __getitem__(self, rows: Any) -> "Invariants":
        """Return the invariants of some checkpoints."""
        some = ({name: values[rows] for name, values in part.items()} for part in (self.channels, self.turning))
        return Invariants(self.sketches[rows], *some)


def invariants(weights: Mapping[str, Any], symmetry: Symmetry, form: SettledForm | None = None) -> Invariants:
    """Describe checkpoints and their channels by sums that no element of the group changes.

    Rounds of colour refinement with real numbers. From features C, each channel i of a group has

        V_i = sum_t sqrt(n) / N_t sum_{j, s} w_t[i, j, s] C_j r_s

    over the tensors t with an axis for the group and their sizes N, where j runs over the channels on the other axes
    and s over the positions that stay, with random signs r. Where permutations act, ``U = V / sqrt(1 + V^2)`` describes
    the channel, and ``C = sqrt(2) cos(W U + b)`` with random W and b are its next features; kinds say what signs and
    matrices turn (``Kind.turnings``). The sketch is ``sum_t <w_t, C r> / N_t``, and for open forms also the logarithms
    of the sizes. Weights (K, *shape) are finite and in the gauge ``canonical``. Memory for 32 MiB of them in float64,
    and F numbers a channel.
    """
    form = form or form_of(symmetry)
    arrays = {name: to_numpy(array) for name, array in sorted(weights.items())}
    K = len(next(iter(arrays.values())))
    shapes = tuple(  # counters that no channel owns say nothing; integers that move with channels do
        (name, array.shape[1:])
        for name, array in arrays.items()
        if array.size and (is_float(array) or symmetry.actions_on(name))
    )
    tensors, rounds = _prepared(symmetry, form, shapes)
    features, row_bytes = _Features(symmetry, form), 8 * sum(int(np.prod(shape, dtype=np.int64)) for _, shape in shapes)
    step = max(1, INVARIANT_BYTES // max(1, row_bytes))
    found: list[Invariants] = []
    for start in range(0, max(K, 1), step):
        some = {tensor.name: arrays[tensor.name][start : start + step] for tensor in tensors}
        values = form.values(tensors, some, symmetry)
        colours = sums = features.initial(min(step, K - start))
        sketches = np.zeros((min(step, K - start), form.features))
        for number in range(rounds):
            last = number == rounds - 1
            sums = {key: np.zeros_like(value) for key, value in colours.items()}
            for tensor, (value, rest) in zip(tensors, values, strict=True):
                total = tensor.add(value, colours, sums)
                if last:
                    sketches += (total + rest) / form.share(len(tensors))
            if not last:
                colours = features.next(sums)
        found.append(Invariants(sketches, features.described(sums), features.turning(sums)))
    return found[0] if len(found) == 1 else _joined(found)


def _joined(parts: Sequence[Invariants]) -> Invariants:
    channels, turning = (
        {name: np.concatenate([side[name] for side in sides]) for name in sides[0]}
        for sides in ([part.channels for part in parts], [part.turning for part in parts])
    )
    return Invariants(np.concatenate([part.sketches for part in parts]), channels, turning)


@lru_cache(maxsize=4)
def _prepared(
    symmetry: Symmetry, form: SettledForm, shapes: tuple[tuple[str, tuple[int, ...]], ...]
) -> tuple[tuple[TensorSums, ...], int]:
    """Return the sums over all tensors, and the rounds that are needed; the batches of a zoo share them."""
    tensors = tuple(TensorSums(name, shape, symmetry, form) for name, shape in shapes)
    return tensors, _rounds(tensors, symmetry)


def describe_blocks(channels: Mapping[str, np.ndarray], outer: str, symmetry: Symmetry) -> np.ndarray:
    """Describe the blocks of a block permutation (..., g, features) by their channels in all groups."""
    means: list[np.ndarray] = []
    for group in leaders(symmetry):
        if isinstance(group.perm, Wreath) and group.perm.outer == outer:
            values = channels[group.id]
            shape = (*values.shape[:-2], group.perm.g, group.perm.k, values.shape[-1])
            features = _waves(values).reshape(shape)
            if group.perm.inner == "fixed":
                features = features * random_signs(f"{group.id} in blocks", group.perm.k, shape[-1])
            means.append(features.mean(axis=-2))
    return np.concatenate(means, axis=-1)


def _waves(values: np.ndarray, slope: int = 1) -> np.ndarray:
    """Return smooth features (..., F) of size about 1 from descriptions (..., F) of channels, divided by a slope."""
    frequencies, phases = _wave_parameters(values.shape[-1], slope)
    return np.sqrt(2) * np.cos(values @ frequencies + phases)


@lru_cache(maxsize=4)
def _wave_parameters(features: int, slope: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random frequencies (F, F) and phases (F,), always the same."""
    rng = generator("waves")
    return rng.standard_normal((features, features)) / slope, rng.uniform(0, 2 * np.pi, features)


@lru_cache(maxsize=2)
def _mixing(features: int) -> np.ndarray:
    """Return a fixed orthogonal matrix (F, F), so that each feature comes to depend on all."""
    return np.linalg.qr(generator("mixing").standard_normal((features, features)))[0]


class _Features:
    """The features of all channels of a table by key, and how they follow from sums."""

    def __init__(self, symmetry: Symmetry, form: SettledForm) -> None:
        self._form = form
        self._turnings = {group.id: form.kind(group).turnings(group) for group in symmetry.groups}
        self._leaders = {
            turning.key: (symmetry.leader(name), turning)
            for name, turnings in self._turnings.items()
            for turning in turnings
        }
        # channels that matrices mix are described by the sizes of their blocks alone
        self._ordered = {group.id: group.n for group in leaders(symmetry) if not form.kind(group).stays_open}
        self._keys = {name: order_key(symmetry[name]) for name in self._ordered}

    def initial(self, K: int) -> dict[str, np.ndarray]:
        """Return 1 for channels that are permuted or whose matrices keep the ones, 0 for others."""
        F = self._form.features
        found = {
            turning.key: np.full((K, turning.blocks * turning.size, F), turning.start)
            for _, turning in self._leaders.values()
        }
        return found | {self._keys[name]: np.ones((K, n, F)) for name, n in self._ordered.items()}

    def next(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the features that follow."""
        found = {
            self._keys[name]: _waves(values, self._form.slope)
            for name, values in self.described(sums).items()
            if name in self._ordered
        }
        for key, (_, turning) in self._leaders.items():
            sizes = np.sqrt(1 + _squares(sums[key], turning))
            found[key] = (np.sqrt(2) * sums[key] / sizes) @ _mixing(self._form.features) + turning.start
        return found

    def described(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return by leader a description of each channel (K, n, F) in -1 to 1 that no sign or matrix changes."""
        totals = {name: sums[key] for name, key in self._keys.items()}
        for key, (leader, turning) in self._leaders.items():
            # one complex number is two positions
            squares = _squares(sums[key], turning)[:, :: turning.blocks * turning.size // leader.n]
            bounded = squares / (1 + squares) * random_signs(f"{key} squares", 1, self._form.features)
            totals[leader.id] = totals[leader.id] + bounded if leader.id in totals else bounded
        return {name: value / np.sqrt(1 + value * value) for name, value in totals.items()}

    def turning(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return by group the sums that signs or matrices turn."""
        return {
            name: np.concatenate([sums[turning.key] for turning in turnings], axis=2)
            for name, turnings in self._turnings.items()
            if turnings
        }


def _squares(sums: np.ndarray, turning: Turning) -> np.ndarray:
    """Return the mean squares of each block, (K, positions, F), the same for all of its positions."""
    values = sums.reshape(len(sums), turning.blocks, turning.size, sums.shape[-1])
    squares = (values * values).mean(axis=2, keepdims=True)
    return np.broadcast_to(squares, values.shape).reshape(sums.shape)


def _rounds(tensors: Sequence[TensorSums], symmetry: Symmetry) -> int:
    """Return the rounds until all channels that signs or matrices act on have features, wherever weights lead there."""
    weighted = {action.tensor for action in symmetry.actions if action.in_mass}
    known = {order_key(group) for group in leaders(symmetry)}
    rounds = 1
    while True:
        reached: set[str] = set()
        for tensor in tensors:
            if tensor.name in weighted:
                for axis in tensor.axes:
                    others = [listed for other in tensor.axes if other is not axis for listed in other.listings]
                    inside = [listed.inside.reads for listed in others if listed.inside is not None]
                    if known.issuperset([*inside, *(listed.reads for listed in others)]):
                        for listed in axis.listings:
                            if listed.inside is None or listed.inside.reads in known:
                                reached.add(listed.adds)
                            if listed.inside is not None and listed.reads in known:
                                reached.add(listed.inside.adds)
        rounds += 1
        if reached <= known:
            return rounds
        known |= reached
