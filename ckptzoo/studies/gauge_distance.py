"""How far raw checkpoints are from a variant: where their channels go, and by how much they are scaled."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.loader.lazy_tensor import StackedTensor
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.ranks import kendall
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.documents import Document, JsonFields
from ckptzoo.schema.groups import Group
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.studies.neuron_orders import NeuronOrder, orders
from ckptzoo.studies.shared.result import Spread
from ckptzoo.studies.shared.selection import BATCH_BYTES
from ckptzoo.studies.shared.value_histograms import ValueHistogram
from ckptzoo.symmetry.transpositions import random_transpositions, transpositions
from ckptzoo.text import Progress, counter

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_COPIES = 8
"""The number of arrays as large as a batch that are held at a time."""

_Read = Callable[[int], None]


@dataclass(frozen=True)
class OrderDistance(JsonFields):
    """The effect of the permutations of one order on raw checkpoints; spreads are over checkpoints.

    An order holds ``n`` things, and a checkpoint has ``orders`` orders, over which figures are means; ``moved`` is the
    fraction of the things that are not in place; ``transpositions`` is the number of exchanges that bring them into
    place, n less the cycles; ``tau`` is Kendall's tau of the raw order against the variant's.
    """

    label: str
    n: int
    orders: int
    moved: Spread
    transpositions: Spread
    tau: Spread

    @property
    def random_moved(self) -> float:
        """The fraction to expect of a random order."""
        return 1 - 1 / self.n  # a random permutation has one fixed point on average, whatever n is

    @property
    def random_transpositions(self) -> float:
        """The transpositions to expect of a random order."""
        return random_transpositions(self.n)

    def to_json(self) -> Document:
        random = {"moved": self.random_moved, "transpositions": self.random_transpositions, "tau": 0.0}
        return {**super().to_json(), "random": random}


@dataclass(frozen=True)
class Scaling(JsonFields):
    """The scales of one group, over all its channels in all checkpoints.

    ``kind`` is ``"positive"``, ``"sign"`` or ``"nonzero"``; ``quantiles`` are those of the scales' moduli at
    ``QUANTILES``, and ``size`` is the median of ``|ln |scale||``, both None for signs; ``flipped`` is the fraction of
    channels whose sign changes, None for positive scales.
    """

    group: str
    n: int
    kind: str
    quantiles: tuple[float, ...] | None
    size: float | None
    flipped: float | None

    def to_json(self) -> Document:
        """Every figure by name; the quantiles by their shares."""
        values = self.quantiles
        named = None if values is None else dict(zip(map(str, QUANTILES), values, strict=True))
        return {**super().to_json(), "quantiles": named}


@dataclass(frozen=True)
class LayerDistance(JsonFields):
    """``||variant - raw|| / ||raw||`` of a layer's floating tensors; None where every raw norm is 0."""

    layer: str
    relative: Spread | None


def gauge_distance(
    zoo: Zoo, variant: str, symmetry: Symmetry, progress: Progress | None
) -> tuple[tuple[OrderDistance, ...], tuple[Scaling, ...], tuple[LayerDistance, ...]]:
    """Compare raw checkpoints with a variant: every order, every group that scales, every layer.

    Parameters
    ----------
    zoo
        one checkpoint or more, all of them in the gauge.
    variant
        the gauge.
    symmetry
        the zoo's table.
    progress
        called with the bytes read and the bytes in all.

    Notes
    -----
    One pass over the group elements and over the weights raw and derived, in batches of 16 MB.
    """
    element = zoo.group_element(variant)
    perms = [(order, element[f"{order.group}.perm"]) for order in orders(symmetry)]
    scales = [(group, element[f"{group.id}.scale"]) for group in symmetry.groups if group.scaled]
    weights = [zoo[name, kind] for name in _floats(zoo.arch, zoo.arch.names) for kind in (layout.RAW, variant)]
    elements = [*(tensor for _, tensor in perms), *(tensor for _, tensor in scales)]
    read = counter(sum(tensor.nbytes for tensor in (*elements, *weights)), progress)
    return (
        tuple(_order_distance(order, tensor, read) for order, tensor in perms),
        tuple(_scaling(group, tensor, read) for group, tensor in scales),
        tuple(_layer_distance(zoo, variant, layer, read) for layer in zoo.layers),
    )


def _order_distance(order: NeuronOrder, perms: StackedTensor, read: _Read) -> OrderDistance:
    moved, exchanges, tau = np.empty((3, len(perms)))
    for rows in _batches(len(perms), perms.shape[1] * 8):  # ranks are int64
        array = perms[rows]
        ranks = order.ranks(array)
        in_place = np.broadcast_to(np.arange(order.n), ranks.shape)
        moved[rows] = (ranks != in_place).mean(axis=(1, 2))
        exchanges[rows] = transpositions(ranks).mean(axis=1)
        # Kendall's tau takes ranks; of orders it would be another number (ckptzoo.measure.ranks.kendall)
        tau[rows] = kendall(ranks, in_place).mean(axis=1)
        read(array.nbytes)
    spreads = _spread(moved), _spread(exchanges), _spread(tau)
    return OrderDistance(order.label, order.n, 1 if order.blocks else order.g, *spreads)


def _scaling(group: Group, scales: StackedTensor, read: _Read) -> Scaling:
    values, sizes, negative = ValueHistogram(), ValueHistogram(), 0
    for rows in _batches(len(scales), scales.shape[1] * 8):
        array = scales[rows]
        values.add(np.abs(array))
        # |ln s| is the same for s and 1 / s, so that shrinking and growing count alike
        sizes.add(np.abs(np.log(np.abs(array))))
        negative += int((array < 0).sum())
        read(array.nbytes)
    flipped = negative / scales.size if group.flips else None
    if not group.resizes:
        return Scaling(group.id, group.n, group.scale, None, None, flipped)
    quantiles = tuple(values.quantile(share) for share in QUANTILES)
    return Scaling(group.id, group.n, group.scale, quantiles, sizes.quantile(0.5), flipped)


def _layer_distance(zoo: Zoo, variant: str, layer: str, read: _Read) -> LayerDistance:
    change, size = np.zeros((2, len(zoo)))
    for name in _floats(zoo.arch, zoo.layers[layer]):
        raw, derived = zoo[name], zoo[name, variant]
        for rows in _batches(len(zoo), zoo.arch[name].size * 8):  # differences are float64
            before, after = raw[rows], derived[rows]
            read(before.nbytes + after.nbytes)
            flat = before.reshape(len(before), -1).astype(np.float64)
            size[rows] += _squares(flat)
            change[rows] += _squares(after.reshape(len(after), -1) - flat)
    # a layer of zeros has 0 / 0, which Spread leaves out
    with np.errstate(invalid="ignore", divide="ignore"):
        return LayerDistance(layer, Spread.of(np.sqrt(change / size)))


def _floats(arch: Architecture, names: Iterable[str]) -> list[str]:
    return [name for name in names if "float" in arch[name].dtype]


def _squares(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.einsum("ij,ij->i", rows, rows)


def _spread(values: NDArray[np.float64]) -> Spread:
    spread = Spread.of(values)
    assert spread is not None  # there is one checkpoint or more, and all figures are finite
    return spread


def _batches(count: int, row_bytes: int) -> Iterator[slice]:
    step = max(1, BATCH_BYTES // (_COPIES * max(1, row_bytes)))
    for start in range(0, count, step):
        yield slice(start, start + step)
