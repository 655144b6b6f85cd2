"""The loader's side of Hugging Face datasets."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ckptzoo.errors import MissingExtraError
from ckptzoo.loader.stream import Source

_ROWS = 64


def iterable(source: Source, *, shards: int) -> Any:
    """A ``datasets.IterableDataset`` with one example a checkpoint and so many shards, at most one a checkpoint."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise MissingExtraError("datasets", "hub") from error
    cuts = np.linspace(0, len(source.rows), max(1, min(shards, len(source.rows))) + 1).astype(int)
    spans = list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
    return datasets.IterableDataset.from_generator(_examples, gen_kwargs={"spans": spans, "source": source})


def _examples(spans: list[tuple[int, int]], source: Source) -> Iterator[dict[str, Any]]:
    for start, stop in spans:
        for at in range(start, stop, _ROWS):
            rows = slice(at, min(at + _ROWS, stop))
            arrays = {name: stack.gather(source.rows[rows]) for name, stack in source.stacks.items()}
            for place, name in enumerate(source.ids[rows].to_pylist()):
                yield {"id": name, **{tensor: array[place] for tensor, array in arrays.items()}}
