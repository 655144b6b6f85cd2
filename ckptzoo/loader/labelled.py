"""A zoo for xarray: tensors with named axes, read when their numbers are needed, and chains of draws for ArviZ."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa
import xarray as xr
from numpy.typing import NDArray
from xarray.backends import BackendArray
from xarray.core import indexing

from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.chains import OF_CHAINS, chains_of, tells
from ckptzoo.loader.readers import TensorReader
from ckptzoo.loader.stream import Source, column_values, row_blocks_of, rows_digest
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.documents import digest_of
from ckptzoo.schema.symmetry import Symmetry

CHECKPOINT, CHAIN, DRAW = "checkpoint", "chain", "draw"
CHUNK_BYTES = 64 * 2**20
"""The largest chunk of a dask array, unless one checkpoint has more."""
_WINDOWS = ((), ("length",), ("height", "width"), ("depth", "height", "width"))
"""The axes of a convolution's window, by their number."""


def dataset(source: Source, arch: Architecture, symmetry: Symmetry | None, facts: Mapping[str, str]) -> xr.Dataset:
    """The tensors of a source, ``(checkpoint, ...)``; dask arrays where dask is installed. ``facts`` are attributes."""
    axes = axis_names(arch, symmetry)
    found = _dataset(source, axes, (CHECKPOINT,), source.rows, facts)
    if find_spec("dask") is not None and len(source.rows):
        # a name that follows from what is read: dask would pickle every reader to make one
        read = [rows_digest(source.rows), source.revision, *facts.values(), *map(str, found.dtypes.values())]
        found = found.chunk({CHECKPOINT: _chunks(source)}, token=digest_of(read).rpartition(":")[2])
    ids = np.array(source.ids.at(np.arange(len(source.rows))), dtype=object)
    found = found.assign_coords({CHECKPOINT: (CHECKPOINT, ids)})
    for name, values in _columns(source.columns).items():
        found = found.assign_coords({name: (CHECKPOINT, values)})
    return found


def chains(source: Source, arch: Architecture, symmetry: Symmetry | None, facts: Mapping[str, str]) -> xr.DataTree:
    """The draws of a source as a tree with the groups ``posterior``, ``(chain, draw, ...)``, and ``sample_stats``.

    The columns ``OF_CHAINS`` of the source say what belongs together; others become ``sample_stats``.
    """
    assert source.columns is not None
    modes, positions = _chain_positions(source.columns, source.location)
    lead = (CHAIN, DRAW)
    ids = np.array(source.ids.at(positions.ravel()), dtype=object).reshape(positions.shape)
    labels: dict[str, Any] = {CHAIN: np.array(modes, dtype=object), DRAW: np.arange(positions.shape[1])}
    labels |= {CHECKPOINT: (lead, ids), "step": (lead, column_values(source.columns["step"])[positions])}
    posterior = _dataset(source, axis_names(arch, symmetry), lead, source.rows[positions], facts)
    others = source.columns.drop_columns(list(OF_CHAINS))
    stats = {name: (lead, values[positions]) for name, values in _columns(others).items()}
    groups = {"posterior": posterior.assign_coords(labels)}
    if stats:
        groups["sample_stats"] = xr.Dataset(stats, labels)
    return xr.DataTree.from_dict(groups)


def axis_names(arch: Architecture, symmetry: Symmetry | None) -> dict[str, tuple[str, ...]]:
    """The names of every tensor's axes: ``<layer>.<role>``, which tensors of a layer share where they have one size.

    Roles are those of the table; of axes that it does not name, those of the weights of linear layers and convolutions,
    and ``<tensor>.<number>`` for others. They do not depend on which tensors are read.

    >>> arch = Architecture("one", (Tensor("fc.weight", (2, 3)), Tensor("fc.bias", (2,)), Tensor("token", (1, 3))))
    >>> list(axis_names(arch, None).values())
    [('fc.out', 'fc.in'), ('fc.out',), ('token.0', 'token.1')]
    """
    roles = {tensor.name: _roles(tensor, symmetry) for tensor in arch.tensors}
    sizes: dict[str, set[int]] = {}
    for tensor in arch.tensors:
        for role, size in zip(roles[tensor.name], tensor.shape, strict=True):
            sizes.setdefault(f"{tensor.layer}.{role}", set()).add(size)
    names: dict[str, tuple[str, ...]] = {}
    for tensor in arch.tensors:
        own: list[str] = []
        for axis, role in enumerate(roles[tensor.name]):
            shared = f"{tensor.layer}.{role}"
            name = shared if role is not None and len(sizes[shared]) == 1 else f"{tensor.name}.{role or axis}"
            # xarray takes a name for an axis or for a variable of several axes
            while name in arch:
                name += "_"
            own.append(name)
        names[tensor.name] = tuple(own)
    return names


def _roles(tensor: Tensor, symmetry: Symmetry | None) -> list[str | None]:
    """The role of each axis; None where nothing says it."""
    count, last = len(tensor.shape), tensor.name.rpartition(".")[2]
    roles: list[str | None] = [None] * count
    for action in () if symmetry is None else symmetry.actions_on(tensor.name):
        role = "in" if action.role == "in" else "out"
        if role not in roles:
            roles[action.axis] = role
    usual: tuple[str, ...] = ("out",) if count == 1 else ()
    if 2 <= count < 2 + len(_WINDOWS) and ("weight" in last or "kernel" in last):
        window = _WINDOWS[count - 2]
        # Keras and Flax call them kernels, and have the channels last
        usual = (*window, "in", "out") if "kernel" in last else ("out", "in", *window)
    left = iter([role for role in usual if role not in roles])
    return [next(left, None) if role is None else role for role in roles]


class _LazyRows(BackendArray):
    """A tensor whose first axes are those of ``rows``, read when it is indexed."""

    def __init__(self, reader: TensorReader, rows: NDArray[np.int64]) -> None:
        self._reader, self._rows = reader, rows
        self.shape: tuple[int, ...] = (*rows.shape, *reader.shape)
        self.dtype: np.dtype[Any] = reader.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        # xarray's adapter fails at slices downwards without elements, which two selections in a row may give
        if not isinstance(key, indexing.VectorizedIndexer):
            return self._read(key.tuple)
        support = indexing.IndexingSupport.OUTER
        return indexing.explicit_indexing_adapter(key, self.shape, support, self._read)

    def _read(self, key: tuple[Any, ...]) -> NDArray[Any]:
        """The elements at integers, slices and positions, each for its own axis."""
        rows, lead = self._rows, self._rows.ndim
        for axis in reversed(range(lead)):
            rows = rows[(*[slice(None)] * axis, key[axis])]
        own = key[lead:]
        basic = tuple(item if isinstance(item, int | np.integer | slice) else slice(None) for item in own)
        read = self._reader.gather(np.atleast_1d(rows).ravel(), basic)
        read = read.reshape(np.shape(rows) + read.shape[1:])
        # from the last axis on: an integer has taken its own away
        axis = read.ndim
        for item, taken in zip(reversed(own), reversed(basic), strict=True):
            axis -= isinstance(taken, slice)
            if not isinstance(item, int | np.integer | slice):
                read = np.take(read, item, axis)
        return read


def _dataset(
    source: Source,
    axes: Mapping[str, tuple[str, ...]],
    lead: tuple[str, ...],
    rows: NDArray[np.int64],
    facts: Mapping[str, str],
) -> xr.Dataset:
    """The tensors of a source, whose first axes are those of ``rows``."""
    if taken := [name for name in (CHECKPOINT, CHAIN, DRAW, *OF_CHAINS) if name in source.readers]:
        step = "Read it with zoo[name], and name the others here."
        expected = "another name than that of an axis of all tensors"
        raise ZooError(Problem(source.location, f"tensor {taken[0]!r}", expected, "the same", step))
    variables: dict[str, xr.Variable] = {}
    for name, reader in source.readers.items():
        lazy: Any = indexing.LazilyIndexedArray(_LazyRows(reader, rows))
        # a copy is made before what was read is written to: it may be a view of the file
        variables[name] = xr.Variable((*lead, *axes[name]), indexing.CopyOnWriteArray(lazy))
    return xr.Dataset(variables, attrs=dict(facts))


def _columns(table: pa.Table | None) -> dict[str, NDArray[Any]]:
    """Columns as arrays: numbers as a stream has them, times as datetime64, texts as objects."""
    found: dict[str, NDArray[Any]] = {}
    for name, column in () if table is None else zip(table.column_names, table.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            found[name] = column.combine_chunks().cast(pa.timestamp("us")).to_numpy(zero_copy_only=False)
        elif isinstance(values := column_values(column), np.ndarray):
            found[name] = values
        else:
            # equal texts become one object
            found[name] = values.dictionary_encode().to_pandas().astype(object).to_numpy()
    return found


def _chunks(source: Source) -> tuple[int, ...]:
    """Checkpoints of each chunk: whole blocks of the widest tensor, as many as ``CHUNK_BYTES`` hold."""
    widest = max(source.readers.values(), key=lambda reader: reader.row_bytes)
    most = max(1, CHUNK_BYTES // max(1, widest.row_bytes))
    bounds, cuts = row_blocks_of(source.rows, widest.row_blocks), [0]
    while cuts[-1] < bounds[-1]:
        last = int(bounds[np.searchsorted(bounds, cuts[-1] + most, side="right") - 1])
        cuts.append(last if last > cuts[-1] else min(cuts[-1] + most, int(bounds[-1])))
    return tuple(np.diff(cuts).tolist())


def _chain_positions(table: pa.Table, location: str) -> tuple[list[str], NDArray[np.int64]]:
    """The modes, and (C, D) the position of each draw in the order in which its chain made them."""
    rows = table.select(OF_CHAINS).to_pylist()
    found = chains_of(rows, location)
    counts = {mode: len(own) for mode, own in found.items()}
    if (fewest := min(counts.values())) < (most := max(counts.values())):
        shortest, longest = (next(mode for mode in counts if counts[mode] == count) for count in (fewest, most))
        bound = DRAW if tells(DRAW, rows, found) else "step"
        last = max(rows[position][bound] for position in found[shortest])
        step = f"Take as many of each, perhaps zoo.where([({bound!r}, '<=', {last})])."
        got = f"{fewest:,} in {shortest!r} and {most:,} in {longest!r}"
        raise ZooError(Problem(location, "chains", "as many draws in each", got, step))
    return list(found), np.array(list(found.values()), dtype=np.int64)
