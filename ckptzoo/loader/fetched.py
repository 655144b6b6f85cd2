"""A stack whose rows lie in shards on another machine: blocks that are fetched, checked and copied from."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.format.header import numpy_dtype
from ckptzoo.loader.afar import Afar
from ckptzoo.loader.directory import Directory, Extents
from ckptzoo.loader.stack import Maps, assembled, evenly
from ckptzoo.spec.span import Span

RUN_BYTES = 64 * 2**20
"""Runs of rows are fetched so many bytes at a time."""


class Fetched:
    """One tensor of a tree in the shards of one stem, afar."""

    def __init__(self, directory: Directory, extents: Extents, afar: Afar) -> None:
        self._directory, self._extents, self._afar = directory, extents, afar
        self.dtype: np.dtype[Any] = numpy_dtype(extents.dtype)
        self.shape, self.row_bytes, self.pages = extents.shape, extents.row_bytes, extents.pages
        self.source = f"{len(extents.shards)} shards of {afar.name}"

    def gather(
        self, rows: NDArray[np.int64], rest: tuple[Any, ...] = (), *, private: Maps | None = None
    ) -> NDArray[Any]:
        """Rows as one array of its own."""
        if not len(rows):
            return np.empty((0, *self.shape), self.dtype)[(slice(None), *rest)]
        owner = self._owner(rows)
        order = np.argsort(owner, kind="stable")
        heads = np.flatnonzero(np.diff(owner[order], prepend=-1))
        mine = np.split(order, heads[1:])
        wanted = self._directory.spans(self._extents, [int(owner[places[0]]) for places in mine])
        sizes = [span.stop - span.start for span in wanted]
        part = [at for at, places in enumerate(mine) if len(places) * self.row_bytes < sizes[at]]

        def found() -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
            for at, data in self._afar.blocks(wanted, hold=part):
                places = mine[at]
                block = np.frombuffer(data, self.dtype).reshape(-1, *self.shape)
                yield places, block[(evenly(rows[places] - self.pages[owner[places[0]]]), *rest)]

        return assembled(len(rows), found())

    def runs(self, rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Rows in order, ``RUN_BYTES`` at a time; the next run is fetched while one is used."""
        step = max(1, RUN_BYTES // self.row_bytes)
        with ThreadPoolExecutor(1, thread_name_prefix="ckptzoo-run") as pool:
            coming: Future[NDArray[Any]] | None = None
            try:
                for start in range(0, len(rows), step):
                    found, coming = coming, pool.submit(self.gather, rows[start : start + step])
                    if found is not None:
                        yield found.result()
                if coming is not None:
                    yield coming.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def needs(self, rows: NDArray[np.int64]) -> Sequence[Span]:
        """The blocks that hold these rows."""
        return self._directory.spans(self._extents, np.unique(self._owner(rows)).tolist())

    def _owner(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.pages.searchsorted(rows, side="right") - 1
