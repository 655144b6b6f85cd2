"""Data sets as tables of pictures and labels: of Hugging Face ``datasets``, or its Parquet files in a folder."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError, require
from ckptzoo.image_sets.image_set import (
    FOLDER_VARIABLE,
    MAX_BYTES,
    HubTable,
    ImageSet,
    KnownSet,
    file_error,
    first_line,
)
from ckptzoo.image_sets.pictures import EncodedPicture, Shape, decode_all, decode_to_cache
from ckptzoo.text import excerpt, size

_ROWS = 1000
"""The number of rows that are read at a time."""
_PICTURE_BYTES = 2**22
"""The maximum number of bytes of one encoded picture."""
_HELD_BYTES = 2**28
"""Decoded pictures beyond this number of bytes are kept in the cache and mapped, smaller sets in memory."""


def fetch(known: KnownSet) -> Mapping[str, Any]:
    """The splits of a data set, through ``datasets``; raises ``ZooError`` if nothing could be fetched."""
    step = f"Name a folder that holds its files with --data or {FOLDER_VARIABLE}."
    if known.table is None:
        raise ZooError(Problem(known.name, "data set", "files in a folder", "no folder", f"{step} {known.source}"))
    datasets = require("datasets", "hub")
    try:
        return datasets.load_dataset(known.table.address, known.table.configuration)
    # datasets raises its own errors, those of huggingface_hub, httpx and fsspec, OSError and ValueError
    except Exception as error:
        got = first_line(error)
        problem = Problem(known.table.address, "data set", "to fetch it through datasets", got, step)
        raise ZooError(problem) from error


def from_datasets(known: KnownSet, split: str, splits: Mapping[str, Any]) -> ImageSet:
    """``train`` or ``test`` from a ``datasets.DatasetDict``. Raises ``IntegrityError`` if it lacks the split or a
    column, its classes are in another order, or a picture is damaged.
    """
    layout = known.table or HubTable(known.name)
    name, where = layout.splits[split], f"{layout.address}, {layout.splits[split]}"
    if name not in splits:
        raise file_error(layout.address, "splits", name, ", ".join(splits) or "none", known.step)
    table = splits[name]
    _check_columns(known, layout, table.features, where)
    label = table.features[layout.label]
    datasets = require("datasets", "hub")
    if not isinstance(table.features[layout.image], datasets.Image):
        got = type(table.features[layout.image]).__name__
        raise file_error(where, f"column {layout.image}", "pictures", got, known.step)
    count = known.counts.get(split, len(table))
    if len(table) != count:
        raise file_error(where, f"{split} images", f"{count:,}", f"{len(table):,}", known.step)
    # without decoding, so that pictures are decoded in one place and checked there
    table = table.select_columns([layout.image, layout.label])
    table = table.cast_column(layout.image, datasets.Image(decode=False))

    def rows() -> Iterator[tuple[list[Any], list[Any]]]:
        for batch in table.iter(_ROWS):
            yield batch[layout.image], batch[layout.label]

    return _image_set(known, layout, split, rows(), getattr(label, "names", None), where)


def read_parquet(known: KnownSet, split: str, folder: Path) -> ImageSet | None:
    """``<split>-00000-of-00001.parquet`` and so on, as on the hub, here or one folder further in; see ``Form``."""
    layout = known.table
    if layout is None or not known.is_named_by(folder):
        return None
    name = layout.splits[split]
    paths = sorted([*folder.glob(f"{name}-*.parquet"), *folder.glob(f"*/{name}-*.parquet")])
    if not paths:
        return None
    where = paths[0].name if len(paths) == 1 else f"{paths[0].name} to {paths[-1].name}"
    names: list[str] | None = None
    try:
        files = [pq.ParquetFile(path) for path in paths]
        held = sum(file.metadata.num_rows for file in files)
        count = known.counts.get(split, held)
        if held != count:
            raise file_error(where, f"{split} images", f"{count:,}", f"{held:,}", known.step)
        for path, file in zip(paths, files, strict=True):
            _check_columns(known, layout, file.schema_arrow.names, path.name)
            names = names or _names_of(file.schema_arrow, layout.label)
            groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
            # unpacked, as the footers say, before anything is unpacked
            nbytes = sum(group.total_byte_size for group in groups)
            if nbytes > MAX_BYTES:
                raise file_error(path, "size", f"at most {size(MAX_BYTES)} unpacked", size(nbytes), known.step)

        def rows() -> Iterator[tuple[list[Any], list[Any]]]:
            for file in files:
                for batch in file.iter_batches(_ROWS, columns=[layout.image, layout.label]):
                    yield batch.column(layout.image).to_pylist(), batch.column(layout.label).to_pylist()

        return _image_set(known, layout, split, rows(), names, where)
    # pyarrow raises RuntimeError for exceptions of the C++ library that it does not know
    except (OSError, RuntimeError, pa.ArrowException) as error:
        raise file_error(where, "file", "a Parquet file", first_line(error), known.step) from error


def _image_set(
    known: KnownSet,
    layout: HubTable,
    split: str,
    rows: Iterator[tuple[list[Any], list[Any]]],
    names: list[str] | None,
    where: str,
) -> ImageSet:
    pictures: list[EncodedPicture] = []
    labels: list[Any] = []
    nbytes = 0
    for images, numbers in rows:
        pictures += [_picture(item, f"{where}, row {len(pictures) + at}") for at, item in enumerate(images)]
        labels += numbers
        nbytes += sum(len(item.content) for item in pictures[-len(images) :] if isinstance(item.content, bytes))
        if nbytes > MAX_BYTES:
            raise file_error(where, "pictures", f"at most {size(MAX_BYTES)}", size(nbytes), known.step)
    # the hub marks a missing label by -1, or has none
    wrong = next((label for label in labels if not isinstance(label, int) or not 0 <= label < 2**31), 0)
    if wrong != 0:
        raise file_error(where, "labels", "integers from 0", excerpt(wrong, 40), known.step)
    if known.size is None or known.channels is None:
        raise ValueError(f"the size of {known.name} is not known")
    shape = Shape(known.size, known.channels)
    # the labels first, because they take no time
    checked = _labels(known, layout, np.array(labels, np.int64), names, where)
    is_large = len(pictures) * known.channels * known.size**2 > _HELD_BYTES
    images = (decode_to_cache if is_large else decode_all)(pictures, shape)
    return known.image_set(split, images, checked, where)


def _picture(item: Any, where: str) -> EncodedPicture:
    content = item.get("bytes") if isinstance(item, dict) else item
    if content is None and isinstance(item, dict) and item.get("path"):
        return EncodedPicture(where, Path(item["path"]))
    if not isinstance(content, bytes) or len(content) > _PICTURE_BYTES:
        got = f"{len(content):,} bytes" if isinstance(content, bytes) else type(content).__name__
        raise file_error(where, "picture", f"at most {_PICTURE_BYTES:,} bytes of JPEG or PNG", got)
    return EncodedPicture(where, content)


def _labels(
    known: KnownSet, layout: HubTable, labels: NDArray[np.int64], names: list[str] | None, where: str
) -> NDArray[np.int64]:
    """Labels in the order of the set's classes; where the table numbers sorted names, those of the same names."""
    if known.class_names is None:
        return labels
    if names is None:
        if layout.sorted_names:
            raise file_error(where, "names of classes", "those of its labels", "none", known.step)
        return labels
    if not layout.sorted_names or names != sorted(known.class_names):
        known.check_class_names(names, where)
        return labels
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(names):
        raise file_error(where, "labels", f"0 to {len(names) - 1}", f"{labels.min()} to {labels.max()}", known.step)
    return np.array([known.class_names.index(name) for name in names], np.int64)[labels]


def _check_columns(known: KnownSet, layout: HubTable, columns: Any, where: str) -> None:
    if not {layout.image, layout.label} <= set(columns):
        expected = f"{layout.image} and {layout.label}"
        raise file_error(where, "columns", expected, ", ".join(columns) or "none", known.step)


def _names_of(schema: pa.Schema, label: str) -> list[str] | None:
    """The names of classes that ``datasets`` writes beside the schema of a Parquet file."""
    try:
        content = json.loads((schema.metadata or {})[b"huggingface"])
        names = content["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None
