"""Whether the checkpoints of one training run are in the order in which they were trained.

Let ``w_0, w_1, ...`` be the weights at the steps of a run. For two steps i < j and neighbours a of i and b of j, none
of them i or j, look at

    <w_j - w_i, w_b - w_a>,                    a in {i-1, i-2} and b in {j+1, j+2} where j = i + 1,
                                               a in {i-1, i+1} and b in {j-1, j+1} elsewhere.

Training moves in one direction for a while, and jitters: ``w_t = d_t + r_t + n_t`` with a drift d, a random walk r of
independent increments, and noise n that is independent from one checkpoint to the next (minibatches, rounding to
bfloat16). A drift adds a product of displacements in one direction, which is positive. A random walk adds the sum of
squares of the increments that both differences have in common, which is positive, or 0 where they have none. Noise adds
nothing: no index occurs in both differences. (Squared distances between neighbours, whose sum is the path's energy, do
contain the squares of n: where the learning rate goes up and down, a path through the quiet steps first is shorter than
the true one, although nothing is out of order.) A process with the correlation c between checkpoints, such as noise
around a minimum (Ornstein and Uhlenbeck), adds c (1 - c) times its variance where j = i + 1, which is not negative.

Exchanging the weights of i and j changes the sign of all of these products. So they are negative together where two
steps were swapped, and elsewhere only by chance, where weights move in few directions, or where they oscillate with a
period of few steps, as beyond the edge of stability: the two parities of b - a keep a period of two from making all of
them negative. A finding needs all products below 0; the nearest ones with a cosine below ``-COSINE`` and, relative to
the larger of both squared lengths, below ``-SHARE``, so that steps which hardly differ are not judged; the same sign
in most tensors; and a path through all steps that becomes shorter by the exchange. Of several pairs that fit, the one
that shortens the path most is exchanged first, and the rest are looked at again. At last the run itself is the measure:
with the swapped steps put right, its cosines say how far below its median one is by chance, and where several steps
still go back, the order is not known and nothing is found.

Where j = i + 1 are the first two or the last two steps, only one side has neighbours: <w_1 - w_0, w_b - w_0> with b in
{2, 3} is positive for each of drift, walk and noise, and clearly negative after an exchange only where the drift
outweighs the rest.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

COSINE, SHARE, AT_ENDS = 0.2, 0.06, 0.4
"""Bounds of the cosine and of the product relative to the squared lengths, and of the cosine at the ends of a run,
where only one side is known. tests/hub/audits/test_planted.py tries them on networks that are trained there.
"""
_CONSENSUS = 0.7
"""Share of the tensors in which the product is negative: directions of one layer may oscillate alone."""
_DOUBT, _DOUBTS = 0.1, 0.05
"""A cosine below minus the first says that a step goes back; in more than this share of the steps, with the swapped
ones put right, weights oscillate, and their order is not known.
"""
_WINDOW = 512
"""Steps between which all distances are in memory at a time; longer runs are judged in windows that overlap by half."""
_SPREADS = 2
"""How far a cosine is below the run's median, in units of the distance to its lowest twentieth."""
_AROUND = 3
_FAR, _FAR_AT_ENDS = 2.0, 4.0
_ROOM = 1.25
_EPSILON, _TIE = 1e-300, 1e-6


class StepOrder(NamedTuple):
    """The pairs of steps whose weights were swapped; ``is_known`` is False where distances do not tell the order."""

    swapped: list[tuple[int, int]]
    is_known: bool


def order_of(tensors: Sequence[NDArray[Any]]) -> StepOrder:
    """Return which steps of a run were swapped with one another.

    ``tensors`` are (N, numbers) each, in the order of the N steps; each counts by its distances relative to the median
    of those between neighbours. In a run of more than ``_WINDOW`` steps a swap is found wherever it is where both steps
    are less than ``_WINDOW // 2 - 3`` apart; of others perhaps only that the order is not known.
    """
    count = len(tensors[0]) if len(tensors) else 0
    if count <= _WINDOW:
        return _order_of(tensors)
    order, swapped, is_known = np.arange(count), set[tuple[int, int]](), True
    # the order in a window that a swap reaches out of is known once it was put right
    for _ in range(2):
        found, is_known = set[tuple[int, int]](), True
        for start in range(0, count - _WINDOW // 2, _WINDOW // 2):
            own = _order_of([values[order[start : start + _WINDOW]] for values in tensors])
            is_known = is_known and own.is_known
            # what a window cuts off has neighbours in the next one
            low, high = start + 2 if start else 0, start + _WINDOW - 2 if start + _WINDOW < count else count
            found |= {(start + i, start + j) for i, j in own.swapped if low <= start + i and start + j < high}
        swapped |= {(int(min(order[[i, j]])), int(max(order[[i, j]]))) for i, j in found}
        for i, j in found:
            order[[i, j]] = order[[j, i]]
        if not found:
            break
    return StepOrder(sorted(swapped), is_known)


def _order_of(tensors: Sequence[NDArray[Any]]) -> StepOrder:
    """Return which steps were swapped, by distances between all of them."""
    moving = _moving(tensors)
    if not moving or (count := len(moving[0])) < 4:
        return StepOrder([], False)
    order, swapped, gram = np.arange(count), list[tuple[int, int, float]](), _gram(moving)
    while (best := _best_exchange(gram, moving)) is not None:
        if len(swapped) >= max(1, count // 8):
            return StepOrder([], False)
        (i, j), cosine = best
        swapped.append((int(min(order[i], order[j])), int(max(order[i], order[j])), cosine))
        order[[i, j]] = order[[j, i]]
        # each tensor counts by the ways from step to step, which are others now
        moving = _moving([values[order] for values in tensors])
        gram = _gram(moving)
    cosines = _turns(gram)
    back = np.flatnonzero(cosines < -_DOUBT) + 1
    places = sorted(at for i, j, _ in swapped for at in (i, j))
    # exchanges that reach into one another are how oscillation looks
    entangled = sum(b - a <= 2 for a, b in pairwise(places)) > sum(j - i <= 2 for i, j, _ in swapped)
    touched = {at for place in np.flatnonzero(order != np.arange(count)) for at in range(place - 2, place + 3)}
    if entangled or len(back) > max(1, _DOUBTS * count) or touched & {int(at) for at in back}:
        return StepOrder([], False)
    return StepOrder(sorted((i, j) for i, j, cosine in swapped if cosine < _least(cosines)), True)


def _least(turns: NDArray[np.float64]) -> float:
    """Return the cosine that is an exception in a run: what one step in twenty does by chance says nothing."""
    median, low = np.quantile(turns, (0.5, 0.05))
    return float(median - _SPREADS * (median - low))


class Exchange(NamedTuple):
    """The evidence about two steps: the smallest of the cosines that the order is judged by, and of the shares.

    ``can_be_told`` is True where an exchange of both is a finding, with some room.
    """

    cosine: float
    share: float
    can_be_told: bool


def exchange(tensors: Sequence[NDArray[Any]], i: int, j: int) -> Exchange:
    """Return how well the order of two steps of a run that is in order can be told."""
    moving = _moving(tensors)
    gram = _gram(moving)
    distances = _distances(gram)
    first, second = np.array([i]), np.array([j])
    cosine, share, is_told, judged = 1.0, 1.0, True, 0
    for start, end, which, cosine_bound, share_bound in _contexts(first, second, len(gram)):
        if not which[0]:
            continue
        a, b, judged = int(start[0]), int(end[0]), judged + 1
        # at the ends a product is with one of the two steps, which is the other one after an exchange
        a, b = j if a == i else a, i if b == j else b
        product = gram[j, b] - gram[j, a] - gram[i, b] + gram[i, a]
        lengths = distances[i, j], distances[a, b]
        values = product / max(lengths[0] * lengths[1], _EPSILON), product / max(*lengths, _EPSILON) ** 2
        is_told &= values[0] > _ROOM * cosine_bound and values[1] > _ROOM * share_bound
        if cosine_bound:
            cosine, share = min(cosine, float(values[0])), min(share, float(values[1]))
    turns = _turns(gram)
    near = [turns[at - 1] for place in (i, j) for at in range(place - 2, place + 3) if 1 <= at <= len(turns)]
    is_calm = min(near, default=1.0) >= -_DOUBT and -cosine < _least(turns)
    is_longer = _gain(distances, i, j) < 0 and float(np.mean(_products(moving, i, j) > 0)) >= _CONSENSUS
    return Exchange(cosine, share, bool(is_told and judged and is_calm and is_longer))


def strangers(tensors: Sequence[NDArray[Any]]) -> list[int]:
    """Return the steps whose weights belong to no trajectory through the others, such as those of another run.

    A step is one where the nearer of both neighbours is ``_FAR`` times as far away as any two of the neighbours are
    from one another; at the ends, where there is one neighbour, ``_FAR_AT_ENDS`` times. ``tensors`` are as
    ``order_of`` takes them.
    """
    moving = _moving(tensors)
    if not moving or len(moving[0]) < 5:
        return []
    # to the next step, and to the one behind that
    to_next, to_second = (
        np.sqrt(sum(np.square(values[lag:] - values[:-lag]).sum(axis=1) for values in moving)) for lag in (1, 2)
    )
    last, found = len(to_next), list[int]()
    for at in range(last + 1):
        around = [other for other in range(max(0, at - _AROUND), min(last, at + _AROUND) + 1) if other != at]
        most = max(float((to_next if b == a + 1 else to_second)[a]) for a, b in pairwise(around))
        nearest = min(float(to_next[before]) for before in (at - 1, at) if 0 <= before < last)
        if nearest > (_FAR_AT_ENDS if at in (0, last) else _FAR) * most > 0:
            found.append(at)
    return found


def _moving(tensors: Iterable[NDArray[Any]]) -> list[NDArray[np.float64]]:
    """Return tensors in units of their median way from step to step, without those that hardly move."""
    found: list[NDArray[np.float64]] = []
    for values in tensors:
        centred = np.asarray(values, np.float64)
        centred = centred - centred.mean(axis=0)
        lengths = np.linalg.norm(np.diff(centred, axis=0), axis=1)
        lengths = lengths[lengths > 0]
        if len(lengths) > 1:
            found.append(centred / np.median(lengths))
    return found


def _gram(moving: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the inner products of the steps, with all tensors."""
    gram = np.zeros((len(moving[0]), len(moving[0])))
    for values in moving:
        gram += values @ values.T
    return gram


def _distances(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    squares = np.diagonal(gram)
    return np.sqrt(np.maximum(squares[:, None] + squares[None, :] - 2 * gram, 0))


def _turns(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cosine of each step but the ends with the way from the one before to the one behind."""
    at, distances = np.arange(1, len(gram) - 2), _distances(gram)
    product = gram[at + 1, at + 2] - gram[at + 1, at - 1] - gram[at, at + 2] + gram[at, at - 1]
    return product / np.maximum(distances[at, at + 1] * distances[at - 1, at + 2], _EPSILON)


def _best_exchange(
    gram: NDArray[np.float64], moving: Sequence[NDArray[np.float64]]
) -> tuple[tuple[int, int], float] | None:
    """Return the exchange that fits all conditions and shortens the path most, and the largest of its cosines."""
    count = len(gram)
    distances = _distances(gram)
    first, second = np.triu_indices(count, 1)
    fits, judged = np.ones(len(first), bool), np.zeros(len(first), int)
    largest = np.full(len(first), -1.0)
    for start, end, which, cosine, share in _contexts(first, second, count):
        i, j = first[which], second[which]
        product = gram[j, end] - gram[j, start] - gram[i, end] + gram[i, start]
        lengths = distances[i, j], distances[start, end]
        cosines = product / np.maximum(lengths[0] * lengths[1], _EPSILON)
        shares = product / np.maximum(np.maximum(*lengths) ** 2, _EPSILON)
        fits[which] &= (cosines < -cosine) & (shares < -share)
        judged[which] += 1
        if cosine:
            largest[which] = np.maximum(largest[which], cosines)
    fits &= judged > 0
    best, most = None, 0.0
    # nearer pairs first: of five steps, the exchange of the outer two makes the same path, run from behind
    for at in sorted(np.flatnonzero(fits), key=lambda at: int(second[at] - first[at])):
        i, j = int(first[at]), int(second[at])
        gain = _gain(distances, i, j)
        if gain > most * (1 + _TIE) and np.mean(_products(moving, i, j) < 0) >= _CONSENSUS:
            best, most = ((i, j), float(largest[at])), gain
    return best


def _products(moving: Sequence[NDArray[np.float64]], i: int, j: int) -> NDArray[np.float64]:
    """Return the product with the nearest neighbours of two steps, for each tensor."""
    last, near = len(moving[0]) - 1, j == i + 1
    a = i - 1 if i else i if near else i + 1
    b = j + 1 if j < last else j if near else j - 1
    return np.array([(values[j] - values[i]) @ (values[b] - values[a]) for values in moving])


def _contexts(
    first: NDArray[np.intp], second: NDArray[np.intp], count: int
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_], float, float]]:
    """Yield neighbours of the first and of the second step of each pair, the pairs that have them, and the bounds.

    What is farther away has to agree only in the sign.
    """
    near = second == first + 1
    for before in (1, 2):
        for after in (1, 2):
            a, b = first - before, second + after
            which = near & (a >= 0) & (b < count)
            is_nearest = before == after == 1
            yield a[which], b[which], which, COSINE if is_nearest else 0.0, SHARE if is_nearest else 0.0
    for before in (-1, 1):
        for after in (-1, 1):
            a, b = first + before, second + after
            which = ~near & (a >= 0) & (b < count) & (a != b)
            yield a[which], b[which], which, COSINE, SHARE
    for distance in (1, 2):
        which = near & (first == 0) & (second + distance < count)
        yield first[which], second[which] + distance, which, AT_ENDS, SHARE
        which = near & (second == count - 1) & (first - distance >= 0)
        yield first[which] - distance, second[which], which, AT_ENDS, SHARE


def _gain(distances: NDArray[np.float64], i: int, j: int) -> float:
    """Return by how much the path becomes shorter when two of its points change places."""
    count = len(distances)
    edges = {(at, at + 1) for at in (i - 1, i, j - 1, j) if at >= 0 and at + 1 < count}
    moved = {i: j, j: i}
    before = sum(float(distances[a, b]) for a, b in edges)
    return before - sum(float(distances[moved.get(a, a), moved.get(b, b)]) for a, b in edges)
