"""A zoo as an iterable dataset of Hugging Face ``datasets``: one example a checkpoint."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from ckptzoo.errors import require
from ckptzoo.format.header import numpy_dtype
from ckptzoo.loader.stream import Source

_ROWS = 64
"""The maximum number of checkpoints that are read at a time."""
_BYTES = 64 * 2**20
"""The maximum number of bytes that are read at a time, unless one checkpoint has more."""
_BFLOAT16 = numpy_dtype("bfloat16")
"""A dtype that Arrow, and so ``datasets``, does not have; float32 holds its values exactly."""
_MAX_AXES = 5
"""Axes of the largest of the features Array2D, ..., Array5D."""


def iterable(source: Source, *, shards: int) -> Any:
    """A ``datasets.IterableDataset`` with one example a checkpoint, in this number of shards, at most one a checkpoint.

    Raises ``MissingExtraError`` if ``datasets`` is not installed.
    """
    datasets = require("datasets", "hub")
    cuts = np.linspace(0, len(source.rows), max(1, min(shards, len(source.rows))) + 1).astype(int)
    spans = list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
    # datasets makes its shards of the lists among these arguments, and every worker gets some of the spans
    examples = datasets.IterableDataset.from_generator(_examples, gen_kwargs={"spans": spans, "source": source})
    # features that from_generator is given make datasets encode every example, 10 times slower and with arrays of one
    # axis as lists; map states them of examples that have them already
    return examples.map(features=_features(datasets, source))


def _features(datasets: Any, source: Source) -> Any:
    features: dict[str, Any] = {"id": datasets.Value("string")}
    for name, reader in source.readers.items():
        features[name] = _feature(datasets, "float32" if reader.dtype == _BFLOAT16 else str(reader.dtype), reader.shape)
    for field in () if source.columns is None else source.columns.schema:
        # times come as texts: with_format("torch") and others make tensors of what is neither a number nor a text
        kind = "string" if pa.types.is_timestamp(field.type) else str(field.type)
        kind = kind if not pa.types.is_floating(field.type) else "float64"
        features[field.name] = datasets.Value(kind)
    return datasets.Features(features)


def _feature(datasets: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """The feature of an array of this dtype and shape."""
    if not shape:
        return datasets.Value(dtype)
    if 2 <= len(shape) <= _MAX_AXES:
        return getattr(datasets, f"Array{len(shape)}D")(shape=shape, dtype=dtype)
    return datasets.Sequence(_feature(datasets, dtype, shape[1:]), length=shape[0])


def _examples(spans: list[tuple[int, int]], source: Source) -> Iterator[dict[str, Any]]:
    step = max(1, min(_ROWS, _BYTES // max(1, source.row_bytes)))
    for first, stop in spans:
        for start in range(first, stop, step):
            rows = slice(start, min(start + step, stop))
            arrays = {name: reader.gather(source.rows[rows]) for name, reader in source.readers.items()}
            for name, array in arrays.items():
                if array.dtype == _BFLOAT16:
                    arrays[name] = array.astype(np.float32)
            ids = source.ids.at(np.arange(rows.start, rows.stop))
            values = [{}] * len(ids) if source.columns is None else source.columns[rows].to_pylist()
            values = [{name: _plain(value) for name, value in row.items()} for row in values]
            for position, (id, row) in enumerate(zip(ids, values, strict=True)):
                yield {"id": id, **{name: array[position] for name, array in arrays.items()}, **row}


def _plain(value: Any) -> Any:
    """A time as text in ISO 8601; anything else as it is."""
    return value.isoformat() if isinstance(value, datetime) else value
