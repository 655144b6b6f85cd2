"""In how many directions do the weights of a layer vary? Principal components over the members of a zoo."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.components import ByColumns, ByRows, Components
from ckptzoo.schema.documents import Document, JsonFields
from ckptzoo.studies.shared.selection import BATCH_BYTES, blocks

MAX_SIDE = 1024
"""The largest side of a Gram matrix: at most this number of members is studied for a layer with more parameters."""
SHARES = (0.5, 0.9, 0.99)
"""Shares of the variance for which the number of components is reported."""
LEADING = 100
"""Variances that are listed in the JSON."""
_BLOCK_BYTES = 2**27
"""Columns of all members that are read at a time; a variant that is computed when read is computed once for each."""


@dataclass(frozen=True, eq=False)
class LayerComponents(JsonFields):
    """The principal components of the weights of one layer.

    ``tensors`` are concatenated in this order. ``members`` counts the members taken, all or ``MAX_SIDE`` drawn with the
    seed where both they and the parameters are more; ``components`` maps variants to components, empty where there are
    fewer than two members.
    """

    layer: str
    tensors: tuple[str, ...]
    parameters: int
    members: int
    components: dict[str, Components]

    def to_json(self) -> Document:
        """Every figure by name; the variances of the first ``LEADING`` components."""
        components = {
            variant: {
                "total": item.total,
                "needed": {str(share): item.needed(share) for share in SHARES},
                "variances": item.variances[:LEADING].tolist(),
            }
            for variant, item in self.components.items()
        }
        return {**super().to_json(), "components": components}


def bytes_to_read(zoo: Zoo, tensors: Sequence[str], variants: Sequence[str]) -> int:
    """The bytes that ``layer_components`` reads of a layer."""
    share = _member_count(len(zoo), sum(zoo.arch[name].size for name in tensors)) / len(zoo)
    return sum(round(zoo[name, variant].nbytes * share) for name in tensors for variant in variants)


def layer_components(
    zoo: Zoo, layer: str, tensors: Sequence[str], variants: Sequence[str], *, seed: int, read: Callable[[int], None]
) -> LayerComponents:
    """The principal components of one layer.

    Memory min(K, d)^2 for K members and d parameters, and a few copies of 16 MB of rows or 128 MB of columns. ``seed``
    determines which members are drawn where there are too many; ``read`` is called with the number of bytes read.
    """
    size = sum(zoo.arch[name].size for name in tensors)
    count = _member_count(len(zoo), size)
    if count < len(zoo):
        # sorted, as rows are read in the order of the files
        zoo = zoo.take(np.sort(np.random.default_rng(seed).choice(len(zoo), count, replace=False)))
    components: dict[str, Components] = {}
    for variant in variants if count > 1 else ():
        # the smaller of both Gram matrices: parameters by parameters from rows, or members by members from columns
        sums = ByRows(size) if size < count else ByColumns(count)
        if isinstance(sums, ByRows):
            step = max(1, BATCH_BYTES // (8 * size))  # rows are joined in float64
            for batch in zoo.stream(*tensors, variant=variant, batch_size=step):
                sums.add(np.concatenate([_flat(batch[name]).astype(np.float64) for name in tensors], axis=1))
                read(sum(batch[name].nbytes for name in tensors))
        else:
            for name in tensors:
                tensor = zoo[name, variant]
                for block in blocks(tensor.shape[1:], max(1, _BLOCK_BYTES // (count * tensor.dtype.itemsize))):
                    array = tensor[(slice(None), *block)]
                    sums.add(_flat(array))
                    read(array.nbytes)
        components[variant] = sums.components()
    return LayerComponents(layer, tuple(tensors), size, count, components)


def _member_count(K: int, size: int) -> int:
    return K if min(K, size) <= MAX_SIDE else MAX_SIDE


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), -1)
