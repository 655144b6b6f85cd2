"""Where every stacked tensor of a tree lies, and the maps that its arrays are views of."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import UnknownNameError
from ckptzoo.format.header import numpy_dtype
from ckptzoo.format.shard import ShardMap
from ckptzoo.format.tree import Tree
from ckptzoo.spec.architecture import Architecture
from ckptzoo.spec.layout import RAW

MAX_MAPS = 256
"""Shards that are kept mapped at a time; arrays that are in use keep theirs."""

RUN_BYTES = 2**20
"""Runs of rows of up to so many bytes are asked for at once; the kernel reads longer ones faster by itself."""

COPY_BYTES = 8 * 2**20
"""Rows that are gathered from several shards are copied so many bytes at a time."""


@dataclass(frozen=True)
class Extents:
    """One tensor in every shard that holds it, in zoo order.

    Parameters
    ----------
    bounds : (S + 1,) int64, first row of each shard, and the number of rows.
    shards : (S,) numbers of the shards in the directory.
    offsets : (S,) bytes from the start of each shard to its first row.
    pages : (P,) int64, first row of every block of rows that has a digest.
    """

    dtype: str
    shape: tuple[int, ...]
    row_bytes: int
    bounds: NDArray[np.int64]
    shards: tuple[int, ...]
    offsets: tuple[int, ...]
    pages: NDArray[np.int64]


class Directory:
    """The shards of a tree, opened when first needed."""

    def __init__(self, root: Path, tree: Tree, arch: Architecture) -> None:
        self._root, self._where = root, f"{root.name}/{tree.parts[0].tree if tree.parts else 'parts'}"
        index = tree.index
        starts = np.cumsum([0, *(part.rows for part in tree.parts)], dtype=np.int64)
        whole = index["tensor"].is_null().to_numpy()
        number = np.cumsum(whole) - 1  # every row belongs to the shard whose own row came last
        parts = index["part"].to_numpy()
        base = starts[parts]
        files = index["file"].to_pylist()
        heads = np.flatnonzero(whole)
        self.files = [f"{tree.parts[parts[at]].path}/{files[at]}" for at in heads]
        self.sizes = index["nbytes"].to_numpy()[heads]
        self._extents = _extents(index, base, whole, number, files) if tree.parts else _none(arch)
        self._maps: OrderedDict[int, ShardMap] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": OrderedDict()}

    def extents(self, stem: str, tensor: str) -> Extents:
        """Where a tensor lies; raises UnknownNameError when the stem's shards have no such tensor."""
        try:
            return self._extents[stem, tensor]
        except KeyError:
            raise UnknownNameError(self._where, "tensor", tensor, list(self.tensors(stem))) from None

    def tensors(self, stem: str) -> Iterator[str]:
        """Names of the tensors in a stem's shards."""
        return (tensor for found, tensor in self._extents if found == stem)

    def map(self, shard: int) -> ShardMap:
        """The shard's shared map; arrays made from it are handed out read-only."""
        found = self._maps.pop(shard, None) or self.private_map(shard)
        self._maps[shard] = found
        if len(self._maps) > MAX_MAPS:
            self._maps.popitem(last=False)
        return found

    def private_map(self, shard: int) -> ShardMap:
        """A map of one's own: what is written into its arrays is seen by nobody else."""
        return ShardMap(f"{self._root}/{self.files[shard]}", nbytes=int(self.sizes[shard]))

    def will_need(self, tensors: Iterable[Extents], row: int) -> None:
        """Ask the kernel to read one row of these tensors ahead."""
        wanted: list[tuple[int, int, int]] = []
        for extents in tensors:
            at = int(np.searchsorted(extents.bounds, row, side="right")) - 1
            offset = extents.offsets[at] + (row - int(extents.bounds[at])) * extents.row_bytes
            wanted.append((extents.shards[at], offset, extents.row_bytes))
        for shard, offset, nbytes in sorted(wanted):
            self.map(shard).will_need(offset, nbytes)

    def gather(
        self,
        extents: Extents,
        rows: NDArray[np.int64],
        rest: tuple[Any, ...] = (),
        *,
        private: dict[int, ShardMap] | None = None,
    ) -> NDArray[Any]:
        """Rows of a tensor as one array: a view where they lie evenly spaced in one shard, else a copy.

        Parameters
        ----------
        rows : (N,) rows of the tree, in any order.
        rest : integers and slices for the tensor's own axes, applied before anything is copied.
        private : maps of the caller's own, by shard, which it may write to; missing ones are added.
        """
        if not len(rows):
            return np.empty((0, *extents.shape), numpy_dtype(extents.dtype))[(slice(None), *rest)]
        owner = np.searchsorted(extents.bounds, rows, side="right") - 1
        if owner[0] == owner[-1] and (owner == owner[0]).all():
            at = int(owner[0])
            return self._whole(extents, at, private=private)[(_place(rows - extents.bounds[at]), *rest)]
        order = np.argsort(owner, kind="stable")
        heads = np.flatnonzero(np.diff(owner[order], prepend=-1))
        out: NDArray[Any] | None = None
        step = max(1, COPY_BYTES // extents.row_bytes)
        for mine in np.split(order, heads[1:]):
            at = int(owner[mine[0]])
            whole = self._whole(extents, at)
            for some in (mine[start : start + step] for start in range(0, len(mine), step)):
                found = whole[(_place(rows[some] - extents.bounds[at]), *rest)]
                if out is None:
                    out = np.empty((len(rows), *found.shape[1:]), found.dtype)
                out[_place(some)] = found
        assert out is not None
        return out

    def runs(self, extents: Extents, rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Rows of a tensor in order, one array for every run of rows in one shard."""
        owner = extents.bounds.searchsorted(rows, side="right") - 1
        start = 0
        for stop in (*(np.flatnonzero(owner[1:] != owner[:-1]) + 1).tolist(), len(rows)):
            if start < stop:
                at = int(owner[start])
                whole = self._whole(extents, at)
                if whole.nbytes <= RUN_BYTES:
                    self.map(extents.shards[at]).will_need(extents.offsets[at], whole.nbytes)
                yield whole[_place(rows[start:stop] - extents.bounds[at])]
            start = stop

    def _whole(self, extents: Extents, at: int, *, private: dict[int, ShardMap] | None = None) -> NDArray[Any]:
        """The tensor's rows in one shard, all of them, as a view."""
        shard = extents.shards[at]
        if private is None:
            mapped = self.map(shard)
        else:
            mapped = private.get(shard) or private.setdefault(shard, self.private_map(shard))
        count = int(extents.bounds[at + 1] - extents.bounds[at])
        array = mapped.array(extents.offsets[at], extents.dtype, (count, *extents.shape))
        array.flags.writeable = private is not None
        return array


def _place(rows: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Rows as a slice where they are evenly spaced upwards, so that taking them copies nothing."""
    first, last, count = int(rows[0]), int(rows[-1]), len(rows)
    if count == 1:
        return slice(first, first + 1)
    step = int(rows[1]) - first
    if step > 0 and last - first == step * (count - 1) and (count == 2 or (np.diff(rows) == step).all()):
        return slice(first, last + 1, step)
    return rows


def _extents(index: Any, base: Any, whole: Any, number: Any, files: list[str]) -> dict[tuple[str, str], Extents]:
    names = index["tensor"].to_pylist()
    first = base + index["row_start"].to_numpy()
    stop = base + index["row_stop"].to_numpy()
    offset, nbytes = index["offset"].to_numpy(), index["nbytes"].to_numpy()
    dtypes, shapes = index["dtype"].to_pylist(), index["shape"].to_pylist()
    groups: dict[tuple[str, str], list[int]] = {}
    for at in np.flatnonzero(~whole).tolist():
        groups.setdefault((files[at].rpartition("-")[0], names[at]), []).append(at)
    made: dict[tuple[str, str], Extents] = {}
    for key, places in groups.items():
        rows = np.array(places)
        rows = rows[np.argsort(first[rows], kind="stable")]
        heads = rows[np.flatnonzero(np.diff(number[rows], prepend=-1))]
        at = int(rows[0])
        made[key] = Extents(
            dtypes[at],
            tuple(shapes[at][1:]),
            int(nbytes[at]) // shapes[at][0],
            np.append(first[heads], stop[rows[-1]]),
            tuple(number[heads].tolist()),
            tuple(offset[heads].tolist()),
            first[rows],
        )
    return made


def _none(arch: Architecture) -> dict[tuple[str, str], Extents]:
    """The raw tensors of a zoo without checkpoints."""
    zero = np.zeros(1, np.int64)
    return {
        (RAW, tensor.name): Extents(tensor.dtype, tensor.shape, tensor.nbytes, zero, (), (), zero)
        for tensor in arch.tensors
    }
