"""One tensor of many checkpoints, read when it is indexed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.loader.readers import TensorReader

_BASIC = (int, np.integer, slice, type(Ellipsis), type(None))


class StackedTensor:
    """A tensor of N checkpoints as a lazy array ``(N, *shape)``.

    Indexing reads: ``W[3]``, ``W[10:20]``, ``W[[5, 1]]``, ``W[mask]``, ``W[:, 0]``, ``np.asarray(W)``. Rows that
    lie evenly spaced in one shard come as a read-only view of the file, others as a copy. Rows of a variant that
    stores only its group elements are computed, and are arrays of their own with the same bits.

    Notes
    -----
    Costs no memory of its own; a copy costs the bytes asked for, computing some pieces of 32 MiB beside them.
    """

    def __init__(self, stack: TensorReader, rows: NDArray[np.int64], *, name: str) -> None:
        self._stack, self._rows, self.name = stack, rows, name
        self.shape: tuple[int, ...] = (len(rows), *stack.shape)
        self.dtype: np.dtype[Any] = stack.dtype

    @property
    def ndim(self) -> int:
        """Number of axes, that of the checkpoints included."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements in all."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return len(self._rows) * self._stack.row_bytes

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<{self.name} {self.shape} {self.dtype}, {self._stack.source}>"

    def __getitem__(self, key: Any) -> NDArray[Any]:
        first, *rest = key if isinstance(key, tuple) else (key,)
        if first is Ellipsis or first is None or not all(isinstance(item, _BASIC) for item in rest):
            return np.asarray(self)[key]
        rows = self._rows[first]
        if isinstance(rows, np.integer):
            return self._stack.gather(np.array([rows]), tuple(rest))[0]
        if rows.ndim != 1:
            raise IndexError(f"{self.name}: rows: expected an integer, a slice, a list or a mask, got {first!r}.")
        return self._stack.gather(rows, tuple(rest))

    def __iter__(self) -> Iterator[NDArray[Any]]:
        for view in self.views():
            yield from view

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = self._stack.gather(self._rows)
        view = not array.flags.writeable
        if copy is False and (not view or (dtype is not None and array.dtype != dtype)):
            raise ValueError(f"{self.name}: a view: expected rows of one shard in their own dtype, got others.")
        return array.astype(dtype or array.dtype, copy=bool(copy) and view)

    def views(self) -> Iterator[NDArray[Any]]:
        """The rows in order: a read-only view for every run of rows in one shard, or computed pieces of 32 MiB."""
        return self._stack.runs(self._rows)
