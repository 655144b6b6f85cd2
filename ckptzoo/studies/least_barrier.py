"""The permutation of one OptuNet with the least loss halfway to another one, of all 28,800."""

from collections.abc import Mapping
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement

_BLOCKS, _SIZE = 2, 5
"""Channels of the first convolution, and those of the second that read each of them."""
_EXAMPLES = 256
"""Inputs whose losses are computed at once: for each (28,800,) numbers."""
_LEAST = 1e-290
"""Sums of exponentials below this one have lost digits, or all: the least number of 53 bits is 2.2e-308."""

Weights = Mapping[str, NDArray[Any]]


def least_midpoints(
    evaluator: Any, first: Weights, second: Weights, table: Symmetry, targets: NDArray[np.int64]
) -> GroupElement:
    """The permutation g with the least loss of ``(first + g second) / 2``, by trying all of them.

    Halfway, channel i of block a is the mean of it and of a channel j of block b of the second network, and adds
    :math:`h_{abij}(x)` to the logits; a permutation chooses blocks and channels, so that its logits are a sum of 10 of
    100 such tables. With :math:`E = e^h` of the five channels of a block, the sums over classes of all 120 x 120
    combinations are one product of matrices an input.

    Returns one element, for ``apply(g, second, table)``. 2 s for 10,000 inputs on two cores; the loss is computed in
    float64 from outputs in float32. Tested against all networks halfway in tests/studies/test_barriers.py.
    ``evaluator`` scores OptuNets (``ckptzoo.derive.evaluation.Evaluator``), ``table`` is OptuNet's; ``first`` and
    ``second`` map tensor names to (1, *shape), and ``targets`` are the (N,) labels of the evaluator's inputs.
    """
    tables, bias = _tables(evaluator, first, second)
    orders = np.array(list(permutations(range(_SIZE))))
    losses = _losses(tables, bias, orders, targets)
    swapped, one, other = np.unravel_index(losses.argmin(), losses.shape)
    blocks, places = (int(swapped), 1 - int(swapped)), (int(one), int(other))
    order = np.concatenate([block * _SIZE + orders[place] for block, place in zip(blocks, places, strict=True)])
    element = GroupElement.identity(table, 1)
    # an OptuNet's groups are told by their sizes, 2 and 10
    order_by_group = {_BLOCKS: np.array(blocks), _BLOCKS * _SIZE: order}
    for group in table.groups:
        element.perms[group.id][0] = order_by_group[group.n]
    return element


def _tables(evaluator: Any, first: Weights, second: Weights) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """(a, b, i, j, N, classes) logits of an OptuNet with one channel halfway, the others 0; and the bias halfway."""
    half = {name: (first[name][0].astype(np.float64), second[name][0].astype(np.float64)) for name in first}
    count = (_BLOCKS * _SIZE) ** 2
    weights = {name: np.zeros((count, *array[0].shape), np.float32) for name, array in half.items()}
    for row, (channel, other) in enumerate(np.ndindex(_BLOCKS * _SIZE, _BLOCKS * _SIZE)):
        ours, theirs = half["conv1.weight"]
        # one channel of the first layer and one of the second, put first
        weights["conv1.weight"][row, 0] = (ours[channel // _SIZE] + theirs[other // _SIZE]) / 2
        ours, theirs = half["conv2.weight"]
        weights["conv2.weight"][row, 0] = (ours[channel] + theirs[other]) / 2
        ours, theirs = half["fc.weight"]
        weights["fc.weight"][row, :, 0] = (ours[:, channel] + theirs[:, other]) / 2
    outputs = evaluator.outputs(weights)
    shape = (_BLOCKS, _SIZE, _BLOCKS, _SIZE, *outputs.shape[1:])
    return outputs.reshape(shape).swapaxes(1, 2), np.mean(half["fc.bias"], axis=0)


def _losses(
    tables: NDArray[np.float32],
    bias: NDArray[np.float64],
    orders: NDArray[np.int64],
    targets: NDArray[np.int64],
) -> NDArray[np.float64]:
    """(2, P, P) mean losses: blocks in place or exchanged, and the orders (P, 5) of the channels of both blocks."""
    P, channels = len(orders), np.arange(_SIZE)
    total = np.zeros((_BLOCKS, P, P))
    for start in range(0, len(targets), _EXAMPLES):
        rows = slice(start, start + _EXAMPLES)
        some = tables[:, :, :, :, rows].astype(np.float64)
        labels = (slice(None), np.arange(some.shape[4]), targets[rows])
        for swapped in range(_BLOCKS):
            # (P, N, classes): the sum of the five channels of a block, for every order
            ours = some[0, swapped, channels, orders].sum(1) + bias
            theirs = some[1, 1 - swapped, channels, orders].sum(1)
            # relative to the label's logit: the cross-entropy is then the logarithm of the sum of exponentials
            ours, theirs = ours - ours[labels][..., None], theirs - theirs[labels][..., None]
            # the largest term of each factor is taken out, so that no exponential overflows
            peaks = [array.max(2) for array in (ours, theirs)]
            exponents = [array - peak[..., None] for array, peak in zip((ours, theirs), peaks, strict=True)]
            ours, theirs = (np.exp(exponent) for exponent in exponents)
            # a product (P, classes) @ (classes, P) for every input
            sums = ours.swapaxes(0, 1) @ theirs.transpose(1, 2, 0)
            # where the largest terms are of different classes, all products may be below float64
            lost = sums < _LEAST
            total[swapped] += np.log(sums, where=~lost, out=np.zeros_like(sums)).sum(0)
            total[swapped] += peaks[0].sum(1)[:, None] + peaks[1].sum(1)
            for row in np.flatnonzero(lost.any((1, 2))):
                left, right = np.nonzero(lost[row])
                logits = exponents[0][left, row] + exponents[1][right, row]
                np.add.at(total[swapped], (left, right), np.logaddexp.reduce(logits, axis=1))
    return total / len(targets)
