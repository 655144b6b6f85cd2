"""The weights of a layer as a page shows them: two principal components of every member, and all values' histogram.

A layer's weights are read in pieces, so that memory does not grow with them: through the covariance of the columns
where there are few parameters, else through the Gram matrix of the members; where both are many, the components of
``BASIS`` members are taken for those of all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import require
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.documents import JsonFields

Values = NDArray[np.float64]

SIDE = 4096
"""The largest side of a covariance or of a Gram matrix: 128 MiB of float64."""
BASIS = 2048
"""Members whose components are taken for those of all, where members and parameters are both more than ``SIDE``."""
BINS = 60
# The least int16; scores reach from -32,767 to 32,767.
MISSING = -(2**15)
"""The score of a member that has none."""
_BATCH_BYTES = 16 * 2**20
_BLOCK_BYTES = 64 * 2**20
"""Bytes of the columns of all members that are read at a time; a variant that is computed when read is computed once
for each.
"""
_PIECE = 2**21
"""Numbers that are centred at a time: 16 MiB of float64."""
_SAMPLE_MEMBERS, _SAMPLE_VALUES = 64, 2**14
"""Members, and values of each of their tensors, whose quantiles are the range of the bins."""


@dataclass(frozen=True, eq=False)
class PrincipalScores:
    """Members along the first two principal components of the weights of a layer in one gauge.

    ``positions`` (N, 2) int16 are multiples of ``steps``, those of the two axes; ``MISSING`` for members without a
    position. ``ratios`` are the two components' shares of the variance, 0 where nothing varies. ``members`` counts
    those with a position, ``basis`` the members whose components they are: all, or ``BASIS``.
    """

    positions: NDArray[np.int16]
    steps: tuple[float, float]
    ratios: tuple[float, float]
    members: int
    basis: int


@dataclass(frozen=True, eq=False)
class ValueCounts(JsonFields):
    """All weights of a layer in one gauge, counted in bins.

    ``counts`` (B,) int64 are in the bins of the layer; ``beyond`` counts the finite weights in no bin, ``not_finite``
    those that are NaN or infinite.
    """

    counts: NDArray[np.int64]
    beyond: int
    not_finite: int


class LayerWeights:
    """The weights of a layer in one gauge, one row a member.

    ``tensors`` are those of the layer, of floats.
    """

    def __init__(self, zoo: Zoo, tensors: Sequence[str], variant: str) -> None:
        self.zoo, self.tensors, self.variant = zoo, tuple(tensors), variant
        self.parameters = sum(zoo.arch[name].size for name in tensors)

    def take(self, rows: NDArray[Any]) -> "LayerWeights":
        return LayerWeights(self.zoo.take(rows), self.tensors, self.variant)

    def rows(self) -> Iterator[NDArray[Any]]:
        """Yield (k, d) blocks of members, in order."""
        for batch in self.zoo.batches(*self.tensors, variant=self.variant, max_bytes=_BATCH_BYTES):
            flat = [_flat(batch[name]) for name in self.tensors]
            yield flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)

    def columns(self) -> Iterator[NDArray[Any]]:
        """Yield (K, c) blocks of parameters, in order."""
        for name in self.tensors:
            tensor = self.zoo[name, self.variant]
            if tensor.ndim == 1:
                yield _flat(tensor[:])
                continue
            step = max(1, _BLOCK_BYTES * tensor.shape[1] // max(1, tensor.nbytes))
            for start in range(0, tensor.shape[1], step):
                yield _flat(tensor[:, start : start + step])


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    return array.reshape(len(array), -1)


def edges_of(layers: Sequence[LayerWeights]) -> Values:
    """Return (B + 1,) edges of bins for the weights of a layer, the same in every gauge. They leave out the outermost
    0.1 % at either end of a sample: some members' first weights of each tensor.
    """
    values: list[Values] = []
    for layer in layers:
        count = len(layer.zoo)
        rows = np.unique(np.linspace(0, count - 1, min(count, _SAMPLE_MEMBERS)).astype(np.int64))
        zoo = layer.zoo.take(rows)
        for name in layer.tensors:
            tensor = zoo[name, layer.variant]
            first = (
                max(1, -(-_SAMPLE_VALUES * tensor.shape[1] // max(1, zoo.arch[name].size))) if tensor.ndim > 1 else 1
            )
            sample = (tensor[:, :first] if tensor.ndim > 1 else tensor[:]).astype(np.float64).ravel()
            values.append(sample[np.isfinite(sample)])
    joined = np.concatenate(values) if values else np.empty(0)
    if not len(joined):
        return np.array([-1.0, 1.0])
    low, high = (float(end) for end in np.quantile(joined, [0.001, 0.999]))
    # weights that are all equal, such as gains of 1, have no range
    margin = 0.05 * (high - low) or max(1e-6, 0.1 * abs(high))
    return np.linspace(low - margin, high + margin, BINS + 1)


class ValueCounter:
    """Counts values in bins of equal width, whose edges are (B + 1,)."""

    def __init__(self, edges: Values) -> None:
        self._edges = edges
        self._counts, self._finite, self._all = np.zeros(len(edges) - 1, np.int64), 0, 0

    def add(self, values: NDArray[Any]) -> None:
        flat = values.reshape(-1)
        for start in range(0, len(flat), _PIECE):
            piece = flat[start : start + _PIECE].astype(np.float64)
            finite = piece[np.isfinite(piece)]
            # numpy counts in bins of equal width three times as fast where it may compute them
            ends = float(self._edges[0]), float(self._edges[-1])
            self._counts += np.histogram(finite, len(self._counts), ends)[0]
            self._finite += len(finite)
            self._all += len(piece)

    def counted(self) -> ValueCounts:
        """Return the counts so far."""
        beyond = self._finite - int(self._counts.sum())
        return ValueCounts(self._counts, beyond, self._all - self._finite)


def count_values(layer: LayerWeights, edges: Values) -> ValueCounts:
    """Count all weights of a layer, in bins."""
    counter = ValueCounter(edges)
    for block in layer.columns() if len(layer.zoo) <= SIDE else layer.rows():
        counter.add(block)
    return counter.counted()


def scores(layer: LayerWeights, basis: NDArray[Any], edges: Values) -> tuple[PrincipalScores, ValueCounts]:
    r"""Return the members along the two principal components of largest variance, and the histogram of all weights.

    .. math:: s_i = V^T (x_i - \bar x), \qquad C V = V \Lambda, \qquad C = \frac 1 {K - 1} \sum_i (x_i - \bar x)
        (x_i - \bar x)^T

    The sign of each component is that for which its largest loading is positive.

    Members of ``layer`` with a weight that is not finite have no position, but count in the histogram. ``basis`` are
    the positions of the members whose components are taken, where members and parameters are both more than ``SIDE``;
    ``edges`` are those of the bins.

    Time K d min(K, d); memory min(K, d)^2 and pieces of 64 MiB. Tested in ``tests/explorer/test_weights.py``.
    """
    counter, count = ValueCounter(edges), len(layer.zoo)
    places = np.full((count, 2), np.nan)
    is_finite = np.ones(count, bool)
    by_columns = count <= SIDE and count < layer.parameters
    if by_columns:
        for block in layer.columns():
            is_finite &= np.isfinite(block).all(axis=1)
            counter.add(block)
    else:
        start = 0
        for block in layer.rows():
            is_finite[start : start + len(block)] = np.isfinite(block).all(axis=1)
            counter.add(block)
            start += len(block)
    rows = np.flatnonzero(is_finite)
    used = len(rows)
    ratios = (0.0, 0.0)
    if len(rows) >= 2:
        kept = layer if len(rows) == count else layer.take(rows)
        if by_columns:
            places[rows], ratios = _by_columns(kept)
        elif layer.parameters <= SIDE:
            places[rows], ratios = _by_rows(kept)
        else:
            own = np.intersect1d(basis, rows)
            used = len(own)
            places[rows], ratios = _by_basis(kept, layer.take(own))
    elif len(rows):
        places[rows] = 0.0
    # the largest distance from the centre is the largest int16
    steps = np.nanmax(np.abs(places), axis=0, initial=0.0) / (2**15 - 1) if len(rows) else np.zeros(2)
    steps[~(steps > 0)] = 1.0
    with np.errstate(invalid="ignore"):
        positions = np.where(np.isnan(places), MISSING, np.rint(places / steps)).astype(np.int16)
    placed = PrincipalScores(positions, (float(steps[0]), float(steps[1])), ratios, len(rows), used)
    return placed, counter.counted()


def _by_rows(layer: LayerWeights) -> tuple[Values, tuple[float, float]]:
    """Compute the components through the covariance of the columns."""
    d, count = layer.parameters, len(layer.zoo)
    origin, total, products = None, np.zeros(d), np.zeros((d, d))
    for block in layer.rows():
        for piece in _pieces(block):
            # differences to the first row, so that a large mean costs no digits
            origin = piece[0].copy() if origin is None else origin
            piece -= origin
            total += piece.sum(axis=0)
            products += piece.T @ piece
    vectors, ratios = _two_largest(products - np.outer(total, total / count))
    loadings = vectors * _signs(vectors)
    centre = (0 if origin is None else origin) + total / count
    projected = [(piece - centre) @ loadings for block in layer.rows() for piece in _pieces(block)]
    return np.concatenate(projected), ratios


def _by_columns(layer: LayerWeights) -> tuple[Values, tuple[float, float]]:
    """Compute the components through the Gram matrix of the members."""
    vectors, lengths, ratios = _of_gram(layer)
    signs = _signs_of(layer, vectors)
    return vectors * lengths * signs, ratios


def _by_basis(layer: LayerWeights, basis: LayerWeights) -> tuple[Values, tuple[float, float]]:
    """Compute the components of some members, and the scores of all members along these."""
    vectors, lengths, ratios = _of_gram(basis)
    pieces: list[Values] = []
    centres: list[Values] = []
    for piece in _centred(basis, centres):
        pieces.append(piece.T @ vectors)
    loadings = np.concatenate(pieces) / np.where(lengths > 0, lengths, 1.0)
    loadings *= _signs(loadings)
    shift = np.concatenate(centres) @ loadings
    projected = [piece @ loadings - shift for block in layer.rows() for piece in _pieces(block)]
    return np.concatenate(projected), ratios


def _of_gram(layer: LayerWeights) -> tuple[Values, Values, tuple[float, float]]:
    """Return (K, 2) unit vectors over the members, the (2,) lengths of the scores along them, and shares of the
    variance.
    """
    count = len(layer.zoo)
    gram = np.zeros((count, count))
    for piece in _centred(layer):
        gram += piece @ piece.T
    vectors, ratios = _two_largest(gram)
    total = float(np.trace(gram))
    return vectors, np.sqrt(np.array(ratios) * total), ratios


def _signs_of(layer: LayerWeights, vectors: Values) -> Values:
    """Return (2,) signs that make the largest loadings positive, of vectors over the members."""
    largest = np.zeros(2)
    for piece in _centred(layer):
        loadings = piece.T @ vectors
        own = loadings[np.abs(loadings).argmax(axis=0), [0, 1]]
        largest = np.where(np.abs(own) > np.abs(largest), own, largest)
    return np.where(largest < 0, -1.0, 1.0)


def _signs(loadings: Values) -> Values:
    """Return (2,) signs that make the largest loadings positive."""
    return np.where(loadings[np.abs(loadings).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)


def _two_largest(scatter: Values) -> tuple[Values, tuple[float, float]]:
    """Return (n, 2) eigenvectors of the largest eigenvalues of a symmetric matrix, and the shares of the trace."""
    n, total = len(scatter), float(np.trace(scatter))
    # only two of the eigenvectors: all of 2,048 take ten times as long
    values, vectors = require("scipy.linalg", "page").eigh(scatter, subset_by_index=[max(0, n - 2), n - 1])
    values, vectors = values[::-1].clip(0), vectors[:, ::-1]
    if n == 1:
        values, vectors = np.append(values, 0.0), np.append(vectors, np.zeros((1, 1)), axis=1)
    shares = values / total if total > 0 else np.zeros(2)
    # directions of no variance are rounding errors
    vectors = np.where(shares > 1e-14, vectors, 0.0)
    return vectors, (float(shares[0]), float(shares[1]))


def _centred(layer: LayerWeights, centres: list[Values] | None = None) -> Iterator[Values]:
    """Yield (K, c) pieces of columns less their means, which are added to ``centres``."""
    for block in layer.columns():
        step = max(1, _PIECE // max(1, len(block)))
        for start in range(0, block.shape[1], step):
            piece = block[:, start : start + step].astype(np.float64)
            # first less the first row, so that a large mean costs no digits
            first = piece[0].copy()
            piece -= first
            mean = piece.mean(axis=0)
            piece -= mean
            if centres is not None:
                centres.append(first + mean)
            yield piece


def _pieces(block: NDArray[Any]) -> Iterator[Values]:
    """Yield (k, d) pieces of rows in float64, which may be changed."""
    step = max(1, _PIECE // max(1, block.shape[1]))
    for start in range(0, len(block), step):
        yield block[start : start + step].astype(np.float64)
