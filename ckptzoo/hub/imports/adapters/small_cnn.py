"""``small-cnn``: the Small CNN Zoo (Unterthiner et al. 2020, arXiv 2002.11448).

Its code is google-research ``dnn_predict_accuracy``. ``weights.npy`` has a row of 4,970 numbers a checkpoint,
``layout.csv`` says which of them are which tensor, and ``metrics.csv.gz`` has a row a checkpoint. AllanYangZhou/nfn at
ce78322, ``data_utils.py``, reads it as is done here.
"""

from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.imports.adapters.adapter import FoundArrays, Options, identifier, side_files
from ckptzoo.hub.imports.facts import Row, row_of
from ckptzoo.hub.imports.sources import ImportSource, SourceFile
from ckptzoo.hub.imports.tables import Slice, read_layout, read_table

_WEIGHTS, _LAYOUT, _METRICS = "weights.npy", "layout.csv", ("metrics.csv.gz", "metrics.csv")
_BATCH_BYTES = 32 * 2**20
_MAX_HEADER = 10_000


class SmallCnn:
    """Members are the folders of the models, steps their epochs.

    TensorFlow's tensors get the names and layouts of torch: kernels (height, width, in, out) become (out, in, height,
    width), dense ones (in, out) become (out, in).
    """

    name = "small-cnn"
    license: str | None = "CC-BY-4.0"
    by_order = False

    def recognises(self, paths: Sequence[str]) -> bool:
        """Whether there are the matrix and its layout."""
        names = {path.rpartition("/")[2] for path in paths}
        return {_WEIGHTS, _LAYOUT} <= names

    def checkpoints(self, source: ImportSource, options: Options) -> Iterator[FoundArrays]:
        """Yield the rows of the matrix, some megabytes at a time."""
        texts, _ = side_files(source, lambda path: path.rpartition("/")[2] in (_LAYOUT, *_METRICS))
        by_name = {path.rpartition("/")[2]: (path, data) for path, data in texts.items()}
        metrics = next((by_name[name] for name in _METRICS if name in by_name), None)
        for what, found in ((_LAYOUT, by_name.get(_LAYOUT)), (_METRICS[0], metrics)):
            if found is None:
                step = "Fetch it: the matrix alone does not say what its rows are."
                raise ZooError(Problem(source.address, what, "a file", "none", step))
        assert metrics is not None
        path, data = by_name[_LAYOUT]
        slices, rows = read_layout(data, path), read_table(metrics[1], metrics[0])
        for file in source.files():
            if file.name == _WEIGHTS:
                yield from _matrix(file, slices, rows, metrics[0], options)


def _matrix(
    file: SourceFile, slices: Sequence[Slice], rows: Sequence[Row], table: str, options: Options
) -> Iterator[FoundArrays]:
    with file.open() as stream:
        count, width, dtype = _header(stream, file.path)
        if width != slices[-1].stop:
            step = "Use the layout that was published with the matrix."
            raise ZooError(Problem(file.path, "columns", str(slices[-1].stop), str(width), step))
        if count != len(rows):
            step = "Fetch both files again, from one release."
            raise ZooError(Problem(table, "rows", f"{count}, as many as {file.path} has", str(len(rows)), step))
        batch = max(1, _BATCH_BYTES // (width * dtype.itemsize))
        for start in range(0, count, batch):
            stop = min(count, start + batch)
            block = _rows_of(stream, (stop - start, width), dtype, file.path)
            described = [
                _described(row, f"{table}, row {start + at}", options) for at, row in enumerate(rows[start:stop])
            ]
            members, steps, columns = zip(*described, strict=True)
            tensors = {_torch_name(item.name): _torch_layout(block, item) for item in slices}
            yield FoundArrays(f"{file.path}[{start}:{stop}]", members, steps, columns, tensors)


def _header(stream: IO[bytes], location: str) -> tuple[int, int, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream, max_header_size=_MAX_HEADER)
    except Exception as error:  # numpy parses the header with ast; what that raises is not documented
        step = "Fetch it again."
        raise ZooError(Problem(location, "header", "that of numpy.save", f"{type(error).__name__}", step)) from None
    if len(shape) != 2 or fortran or dtype.kind != "f":
        order = "by columns" if fortran else "by rows"
        raise ZooError(
            Problem(location, "array", "a matrix of floats by rows", f"{shape} {dtype} {order}", "Save it so.")
        )
    return shape[0], shape[1], dtype


def _rows_of(stream: IO[bytes], shape: tuple[int, int], dtype: np.dtype[Any], location: str) -> NDArray[Any]:
    block = np.empty(shape, dtype)
    view, done = block.data.cast("B"), 0
    while done < block.nbytes:
        piece = stream.read(min(2**22, block.nbytes - done))
        if not piece:
            raise ZooError(Problem(location, "matrix", "all its rows", "an early end", "Fetch it again."))
        view[done : done + len(piece)] = piece
        done += len(piece)
    return block.astype(dtype.newbyteorder("="), copy=False)


def _described(row: Row, location: str, options: Options) -> tuple[str, int | None, Row]:
    facts = dict(row)
    folder, step = facts.pop("modeldir", None), facts.pop("step", None)
    if folder is None:
        raise ZooError(Problem(location, "modeldir", "the model's folder", "none", "Fetch the table again."))
    columns = row_of(facts, location=location, percent=options.percent)
    if type(step) is int:
        columns.setdefault("epoch", float(step))
    return identifier(str(folder).rstrip("/").rpartition("/")[2]), step if type(step) is int else None, columns


def _torch_name(name: str) -> str:
    """Rename as torch would: ``sequential/conv2d_1/kernel:0`` is ``conv2d_1.weight``."""
    # TensorFlow ends the name of a variable with the number of an output
    *_, layer, leaf = ("", *name.partition(":")[0].split("/"))
    return f"{layer}.{ {'kernel': 'weight'}.get(leaf, leaf) }".lstrip(".")


def _torch_layout(block: NDArray[Any], item: Slice) -> NDArray[Any]:
    tensor = block[:, item.start : item.stop].reshape(len(block), *item.shape)
    orders = {2: (0, 2, 1), 4: (0, 4, 3, 1, 2)}
    return np.ascontiguousarray(tensor.transpose(orders[len(item.shape)]) if len(item.shape) in orders else tensor)
