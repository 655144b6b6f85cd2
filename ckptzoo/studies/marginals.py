"""How the elements of each weight tensor are distributed over all checkpoints of a zoo."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.loader.zoo import Zoo
from ckptzoo.spec.architecture import Architecture
from ckptzoo.studies.density import Counts

BINS = 100
BATCH_BYTES = 16 * 2**20
"""Weights that are read at a time, as far as whole rows allow."""

Progress = Callable[[int, int], None]
"""Called with the bytes of weights read and the bytes in all."""


@dataclass(frozen=True, eq=False)
class Marginal:
    """All elements of one tensor over all checkpoints, in one or two variants.

    Parameters
    ----------
    edges : (B + 1,) of the bins, the same for every variant; they leave out the outermost 0.1 % at either end.
    heights : variant to (B,) densities.
    mean, sd : variant to figures of all the elements.
    """

    tensor: str
    shape: tuple[int, ...]
    edges: NDArray[np.float64]
    heights: dict[str, NDArray[np.float64]]
    mean: dict[str, float]
    sd: dict[str, float]


def weight_names(arch: Architecture) -> list[str]:
    """Floating-point parameters with two axes or more; all of them where there are none such."""
    floats = [tensor for tensor in arch.tensors if tensor.kind == "parameter" and "float" in tensor.dtype]
    return [tensor.name for tensor in floats if len(tensor.shape) > 1] or [tensor.name for tensor in floats]


def batches(zoo: Zoo, name: str, variant: str) -> Iterator[NDArray[np.generic]]:
    """A tensor of all checkpoints in zoo order, (K, *shape) at a time, about ``BATCH_BYTES`` each."""
    row_bytes = max(1, zoo[name, variant].nbytes // len(zoo))
    for batch in zoo.stream(name, variant=variant, batch_size=max(1, BATCH_BYTES // row_bytes)):
        yield batch[name]


def marginals(
    zoo: Zoo, tensors: Sequence[str], variants: Sequence[str], progress: Progress | None
) -> tuple[Marginal, ...]:
    """The marginal of each of these tensors.

    Parameters
    ----------
    tensors : their names, such as ``weight_names`` gives.
    variants : the gauges that are compared; they share the bins.
    progress : called as weights are read.

    Notes
    -----
    One pass over the tensors in every variant, in bounded memory.
    """
    total = sum(zoo[name, variant].nbytes for name in tensors for variant in variants)
    done, made = 0, list[Marginal]()
    for name in tensors:
        counts = {variant: Counts() for variant in variants}
        for variant in variants:
            for array in batches(zoo, name, variant):
                counts[variant].add(array)
                done += array.nbytes
                if progress is not None:
                    progress(done, total)
        low = min(found.quantile(0.001) for found in counts.values())
        high = max(found.quantile(0.999) for found in counts.values())
        margin = 0.02 * (high - low) or max(1e-6, 0.1 * abs(high))
        edges = np.linspace(low - margin, high + margin, BINS + 1)
        made.append(
            Marginal(
                name,
                zoo.arch[name].shape,
                edges,
                {variant: found.density(edges) for variant, found in counts.items()},
                {variant: found.mean for variant, found in counts.items()},
                {variant: found.sd for variant, found in counts.items()},
            )
        )
    return tuple(made)
