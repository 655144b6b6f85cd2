"""How studies read the weights of a zoo: which tensors, in which pieces, with which progress."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ckptzoo.loader.zoo import Zoo
from ckptzoo.spec.architecture import Architecture

BATCH_BYTES = 16 * 2**20
"""Weights that are read at a time, as far as whole rows allow."""

Progress = Callable[[int, int], None]
"""Called with the bytes of weights read and the bytes in all."""


def parameter_names(arch: Architecture) -> list[str]:
    """Floating-point parameters; buffers, such as running statistics, are not among them."""
    return [tensor.name for tensor in arch.tensors if tensor.kind == "parameter" and "float" in tensor.dtype]


def weight_names(arch: Architecture) -> list[str]:
    """Floating-point parameters with two axes or more; all of them where there are none such."""
    floats = parameter_names(arch)
    return [name for name in floats if len(arch[name].shape) > 1] or floats


def batches(zoo: Zoo, name: str, variant: str) -> Iterator[NDArray[np.generic]]:
    """A tensor of all checkpoints in zoo order, (K, *shape) at a time, about ``BATCH_BYTES`` each."""
    row_bytes = max(1, zoo[name, variant].nbytes // len(zoo))
    for batch in zoo.stream(name, variant=variant, batch_size=max(1, BATCH_BYTES // row_bytes)):
        yield batch[name]
