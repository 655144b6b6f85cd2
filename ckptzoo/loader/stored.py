"""A stack whose rows lie in shards: views of their maps, or copies."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.format.header import numpy_dtype
from ckptzoo.loader.directory import Directory, Extents
from ckptzoo.loader.stack import Maps, assembled, by_owner, consecutive, evenly
from ckptzoo.spec.span import Span

RUN_BYTES = 2**20
"""Runs of rows of up to so many bytes are asked for at once; the kernel reads longer ones faster by itself."""


class Stored:
    """One tensor of a tree in the shards of one stem."""

    def __init__(self, directory: Directory, extents: Extents) -> None:
        self._directory, self._extents = directory, extents
        self.dtype: np.dtype[Any] = numpy_dtype(extents.dtype)
        self.shape, self.row_bytes, self.pages = extents.shape, extents.row_bytes, extents.pages
        self.source = f"{len(extents.shards)} shards"

    def gather(
        self, rows: NDArray[np.int64], rest: tuple[Any, ...] = (), *, private: Maps | None = None
    ) -> NDArray[Any]:
        """Rows as one array: a view where they lie evenly spaced in one shard, else a copy."""
        if not len(rows):
            return np.empty((0, *self.shape), self.dtype)[(slice(None), *rest)]
        starts = self._extents.starts
        owner = np.searchsorted(starts, rows, side="right") - 1
        if owner[0] == owner[-1] and (owner == owner[0]).all():
            at = int(owner[0])
            return self._whole(at, private=private)[(evenly(rows - starts[at]), *rest)]
        pieces = by_owner(owner, self.row_bytes)
        found = ((some, self._whole(at)[(evenly(rows[some] - starts[at]), *rest)]) for at, some in pieces)
        return assembled(len(rows), found)

    def runs(self, rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Rows in order, one view for every run of rows in one shard."""
        extents = self._extents
        for at, start, stop in consecutive(extents.starts.searchsorted(rows, side="right") - 1):
            whole = self._whole(at)
            if whole.nbytes <= RUN_BYTES:
                self._directory.map(extents.shards[at]).will_need(extents.offsets[at], whole.nbytes)
            yield whole[evenly(rows[start:stop] - extents.starts[at])]

    def needs(self, rows: NDArray[np.int64]) -> Sequence[Span]:
        """None: the shards are on this machine."""
        return ()

    def _whole(self, at: int, *, private: Maps | None = None) -> NDArray[Any]:
        """The tensor's rows in one shard, all of them, as a view."""
        extents = self._extents
        mapped = self._directory.map(extents.shards[at], private=private)
        count = int(extents.stops[at] - extents.starts[at])
        array = mapped.array(extents.offsets[at], extents.dtype, (count, *extents.shape))
        array.flags.writeable = private is not None
        return array
