r"""Kinds of groups: how their channels are described, whatever the group does, and how one network is laid on another.

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
from types import MappingProxyType

import numpy as np

from ckptzoo.schema.groups import AxisAction, Group
from ckptzoo.symmetry.kinds.orthogonal import procrustes


@dataclass(frozen=True)
class Turning:
    """Features (K, blocks * size, F) that signs or matrices change as they do the channels, one set a block."""

    key: str
    blocks: int
    size: int
    start: float = 0.0
    """The features of the first round: 1 where the vector of ones stays under the matrices, else 0."""


class InvariantKind:
    """Channels that permutations move, and that nothing else changes once they are in the gauge."""

    roundings = 4
    """Units of the stored precision by which the weights of one network differ at most."""
    gauge_error = 0.0
    """The relative error of what the gauge settles."""
    turns = False
    """Whether matrices leave more open than an order of channels, so that only smooth numbers can be compared."""
    moves = True
    """Whether channels move within their block."""

    def turnings(self, group: Group) -> tuple[Turning, ...]:
        """Return the features of a group's channels that are turned with them."""
        return ()

    def turned_by(self, action: AxisAction) -> bool:
        """Whether an action turns the channels, and does not only permute them."""
        return False

    def keys(self, group: Group, inverted: bool) -> tuple[str, str]:
        """Return the keys of the features that are read where the channels are, and of those that the axis adds to."""
        return group.id, group.id

    def positions(self, channels: np.ndarray, part: int | None) -> np.ndarray:
        """Return the places among the turned features of a group's channels (n, positions)."""
        return channels

    def closest(self, first: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> np.ndarray:
        """Return the matrices that bring sides of every block, (1, blocks, k, m), closest to those of the first."""
        raise NotImplementedError


class _Positive(InvariantKind):
    """Channels with sizes, which the gauge takes to 40 bits (ckptzoo/symmetry/scales.py)."""

    # two copies differ by up to four scales, one for each axis of each, and twice that for depth
    gauge_error = 8 * 2.0**-40


class _Sign(InvariantKind):
    """Channels with signs."""

    def turnings(self, group: Group) -> tuple[Turning, ...]:
        return (Turning(group.id, group.n, 1),)

    def turned_by(self, action: AxisAction) -> bool:
        # variances and moduli have no sign
        return action.exponent in (1, -1) and not action.absolute


class _Nonzero(_Sign):
    """Channels with sizes and signs."""

    gauge_error = _Positive.gauge_error


class _Orthogonal(InvariantKind):
    """Blocks of channels that orthogonal matrices mix."""

    # matrices of condition 10 multiply the rounding of a copy's entries
    roundings = 32
    gauge_error = 1e-11
    turns = True
    moves = False
    mean = False
    """Whether the matrices keep the vector of ones."""

    def turnings(self, group: Group) -> tuple[Turning, ...]:
        blocks, size = _shape(group)
        return (Turning(group.id, blocks, size, float(self.mean)),)

    def closest(self, first: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> np.ndarray:
        crossed = sum(one @ two.swapaxes(-1, -2) for one, two in zip(first, other, strict=True))
        return procrustes(np.asarray(crossed), mean=self.mean)


class _OrthogonalMean(_Orthogonal):
    """Blocks of channels whose matrices also keep the mean, as behind LayerNorm."""

    mean = True


class _Linear(_Orthogonal):
    """Blocks of channels that invertible matrices mix, balanced, so that orthogonal matrices are left."""

    def turnings(self, group: Group) -> tuple[Turning, ...]:
        blocks, size = _shape(group)
        return tuple(Turning(key, blocks, size) for key in self.keys(group, True))

    def keys(self, group: Group, inverted: bool) -> tuple[str, str]:
        # what is written is read with the features from what is read
        written, read = f"{group.id}+", f"{group.id}-"
        return (written, read) if inverted else (read, written)


class _Complex(_Orthogonal):
    """Channels that complex numbers multiply, balanced, so that phases are left."""

    moves = True

    def positions(self, channels: np.ndarray, part: int | None) -> np.ndarray:
        # real and imaginary parts take turns
        return 2 * channels + (np.arange(channels.shape[1]) % 2 if part is None else part)

    def closest(self, first: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> np.ndarray:
        products = np.zeros(first[0].shape[:-2], np.complex128)
        for one, two in zip(first, other, strict=True):
            numbers = [side[..., 0, :] + 1j * side[..., 1, :] for side in (one, two)]
            products += (numbers[0] * numbers[1].conj()).sum(axis=-1)
        sizes = np.abs(products)
        phases = np.ones(sizes.shape, np.complex128)
        np.divide(products, sizes, out=phases, where=sizes > 0)
        return np.stack([phases.real, phases.imag], axis=-1)


def _shape(group: Group) -> tuple[int, int]:
    shape = group.matrix_shape
    assert shape is not None
    return shape[0], shape[1]


KINDS: Mapping[str, InvariantKind] = MappingProxyType(
    {
        "none": InvariantKind(),
        "positive": _Positive(),
        "sign": _Sign(),
        "nonzero": _Nonzero(),
        "orthogonal": _Orthogonal(),
        "orthogonal_mean": _OrthogonalMean(),
        "linear": _Linear(),
        "complex": _Complex(),
    }
)
"""The kind of a group by what the table calls its scale."""


class Description:
    """The number of features that describe a channel and a network, and the kinds that they distinguish."""

    features: int
    """Numbers that describe a channel or a network."""
    turns = False
    """Whether it leaves open what signs and matrices do."""

    def kind(self, group: Group) -> InvariantKind:
        """Return the kind of a group, as it is described."""
        raise NotImplementedError
