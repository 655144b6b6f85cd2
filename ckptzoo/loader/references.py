"""A tensor whose rows lie in files of others, one file or more a checkpoint."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.format.header import numpy_dtype
from ckptzoo.format.part import rows_a_shard
from ckptzoo.format.referenced_files import ReferencedFiles
from ckptzoo.format.shard import block_rows
from ckptzoo.format.tree import Tree
from ckptzoo.loader.readers import COPY_BYTES
from ckptzoo.loader.shard_index import ShardMaps
from ckptzoo.schema.layout import Span


class ReferenceReader:
    """A tensor of a zoo that refers to files: rows are copied from the file of each, which is checked as it is opened.

    ``files`` are those of the zoo, ``tree`` its raw tree. Row blocks, and so the order of a stream, are those of a zoo
    that holds the same weights.
    """

    def __init__(self, files: ReferencedFiles, tree: Tree, tensor: str) -> None:
        arch = files.references.arch
        self._files, self._tensor = files, tensor
        self._pieces, self._offsets = files.references.places(tensor)
        self._shard_rows = rows_a_shard(arch.tensors)
        self._bounds = np.cumsum([0, *(part.rows for part in tree.parts)]).tolist()
        self.dtype: np.dtype[Any] = numpy_dtype(arch[tensor].dtype)
        self.shape, self.row_bytes = arch[tensor].shape, arch[tensor].nbytes
        self.source = f"{len(files.references):,} references"

    @property
    def row_blocks(self) -> NDArray[np.int64]:
        """(P,) first rows of the blocks in which a zoo would hold the tensor."""
        starts = list[int]()
        for first, stop in zip(self._bounds[:-1], self._bounds[1:], strict=True):
            for shard in range(first, stop, self._shard_rows):
                count = min(self._shard_rows, stop - shard)
                starts += [shard + start for start, _ in block_rows(count, self.row_bytes)]
        return np.array(starts, np.int64)

    def gather(
        self, rows: NDArray[np.int64], key: tuple[Any, ...] = (), *, private: ShardMaps | None = None
    ) -> NDArray[Any]:
        """Rows as one array of its own."""
        out = np.empty((len(rows), *self.shape), self.dtype)
        if out.size:
            places = self._pieces[rows].tolist(), self._offsets[rows].tolist()
            self._files.read(*places, self.row_bytes, out.reshape(-1).view(np.uint8).data)
        return out[(slice(None), *key)]

    def heads(self, rows: NDArray[np.int64], count: int) -> NDArray[Any]:
        """(K, ``count``) the first numbers of some rows; no others are read."""
        out = np.empty((len(rows), count), self.dtype)
        if out.size:
            places = self._pieces[rows].tolist(), self._offsets[rows].tolist()
            self._files.read(*places, count * self.dtype.itemsize, out.reshape(-1).view(np.uint8).data)
        return out

    @property
    def is_remote(self) -> bool:
        """Whether some rows are in files on other machines."""
        return bool(self._files.references.is_remote.any())

    def runs(self, rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Rows in order, ``COPY_BYTES`` at a time."""
        step = max(1, COPY_BYTES // max(1, self.row_bytes))
        return (self.gather(rows[start : start + step]) for start in range(0, len(rows), step))

    def places(self, rows: Sequence[int] | NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
        """The reference that has each of these rows, the row's first byte in its file, and its number of bytes."""
        for piece, offset in zip(self._pieces[rows].tolist(), self._offsets[rows].tolist(), strict=True):
            yield piece, offset, self.row_bytes

    def required_blocks(self, rows: NDArray[np.int64]) -> Sequence[Span]:
        """The bytes of these rows in files on other machines, by the addresses of the files."""
        references = self._files.references
        return [
            Span(references.remote_files[piece].address, offset, offset + nbytes, b"")
            for piece, offset, nbytes in self.places(rows)
            if references.is_remote[piece]
        ]
