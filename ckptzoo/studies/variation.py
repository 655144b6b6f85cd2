"""How many directions do the weights of a layer vary in? Principal components over the members of a zoo."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.components import ByColumns, ByRows, Components
from ckptzoo.studies.shared.weights import BATCH_BYTES

MAX_SIDE = 1024
"""Of a Gram matrix: layers with more parameters are studied on at most so many members."""
SHARES = (0.5, 0.9, 0.99)
LEADING = 100
"""Variances that are told one by one."""
_BLOCK_BYTES = 2**27
"""Columns of all members that are read at a time; a variant that is computed when read is computed once for each."""

Index = tuple[int | slice, ...]


@dataclass(frozen=True, eq=False)
class Variation:
    """The principal components of the weights of one layer.

    Parameters
    ----------
    tensors : those that the layer's weights are taken from, one behind the other.
    parameters : in all of them.
    members : how many were taken; all of them, or ``MAX_SIDE``, drawn with the seed, where both they and the parameters
        are more.
    components : by variant; none where there are fewer than two members.
    """

    layer: str
    tensors: tuple[str, ...]
    parameters: int
    members: int
    components: dict[str, Components]

    def to_json(self) -> dict[str, Any]:
        """Every figure by name; the variances of the first ``LEADING`` components."""
        return {
            "layer": self.layer,
            "tensors": list(self.tensors),
            "parameters": self.parameters,
            "members": self.members,
            "components": {
                variant: {
                    "total": found.total,
                    "needed": {str(share): found.needed(share) for share in SHARES},
                    "variances": found.variances[:LEADING].tolist(),
                }
                for variant, found in self.components.items()
            },
        }


def bytes_to_read(zoo: Zoo, tensors: Sequence[str], variants: Sequence[str]) -> int:
    """What ``variation`` reads of a layer."""
    share = _members(len(zoo), sum(zoo.arch[name].size for name in tensors)) / len(zoo)
    return sum(round(zoo[name, variant].nbytes * share) for name in tensors for variant in variants)


def variation(
    zoo: Zoo, layer: str, tensors: Sequence[str], variants: Sequence[str], *, seed: int, read: Callable[[int], None]
) -> Variation:
    """The principal components of one layer.

    Parameters
    ----------
    tensors : of the layer, in any dtype of floats.
    seed : draws the members where there are too many.
    read : called with the bytes that were read.

    Notes
    -----
    Memory min(K, d)^2 for K members and d parameters, and a few copies of 16 MB of rows or 128 MB of columns.
    """
    size = sum(zoo.arch[name].size for name in tensors)
    count = _members(len(zoo), size)
    if count < len(zoo):
        zoo = zoo.take(np.sort(np.random.default_rng(seed).choice(len(zoo), count, replace=False)))
    made: dict[str, Components] = {}
    for variant in variants if count > 1 else ():
        gathered = ByRows(size) if size < count else ByColumns(count)
        if isinstance(gathered, ByRows):
            step = max(1, BATCH_BYTES // (8 * size))
            for batch in zoo.stream(*tensors, variant=variant, batch_size=step):
                gathered.add(np.concatenate([_flat(batch[name]).astype(np.float64) for name in tensors], axis=1))
                read(sum(batch[name].nbytes for name in tensors))
        else:
            for name in tensors:
                tensor = zoo[name, variant]
                for index in blocks(tensor.shape[1:], max(1, _BLOCK_BYTES // (count * tensor.dtype.itemsize))):
                    block = tensor[(slice(None), *index)]
                    gathered.add(_flat(block))
                    read(block.nbytes)
        made[variant] = gathered.components()
    return Variation(layer, tuple(tensors), size, count, made)


def blocks(shape: tuple[int, ...], most: int) -> Iterator[Index]:
    """Cut a tensor of this shape into pieces of up to ``most`` elements, along its first axes."""
    if not shape:
        yield ()
        return
    inner = int(np.prod(shape[1:], dtype=np.int64))
    if inner > most:
        yield from ((at, *index) for at in range(shape[0]) for index in blocks(shape[1:], most))
        return
    step = most // max(1, inner)
    yield from ((slice(start, start + step),) for start in range(0, shape[0], step))


def _members(K: int, size: int) -> int:
    return K if min(K, size) <= MAX_SIDE else MAX_SIDE


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), -1)
