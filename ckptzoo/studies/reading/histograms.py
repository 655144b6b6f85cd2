"""How the elements of each weight tensor are distributed over all checkpoints of a zoo."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.loader.zoo import Zoo
from ckptzoo.studies.reading.batches import Progress, batches
from ckptzoo.studies.reading.density import Counts

BINS = 100
"""At most; twice the square root of the number of values where that is less, and 10 at least."""


@dataclass(frozen=True, eq=False)
class Histogram:
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


def histograms(
    zoo: Zoo, tensors: Sequence[str], variants: Sequence[str], progress: Progress | None
) -> tuple[Histogram, ...]:
    """The histogram of each of these tensors.

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
    done, made = 0, list[Histogram]()
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
        values = min(found.total for found in counts.values())
        edges = np.linspace(low - margin, high + margin, int(np.clip(2 * values**0.5, 10, BINS)) + 1)
        made.append(
            Histogram(
                name,
                zoo.arch[name].shape,
                edges,
                {variant: found.density(edges) for variant, found in counts.items()},
                {variant: found.mean for variant, found in counts.items()},
                {variant: found.sd for variant, found in counts.items()},
            )
        )
    return tuple(made)
