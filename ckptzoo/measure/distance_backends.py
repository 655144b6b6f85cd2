"""Where distances are computed: in numpy, or in torch on the device that holds the weights (``select_backend``).

In numpy they are computed in tiles that stay in the cache, on a few threads; where Numba is installed, which the extra
``fast`` brings, and there are enough of them, by ``ckptzoo.measure.distances_compiled``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array, to_device
from numpy.typing import NDArray

from ckptzoo.measure.panels import MAX_THREADS, ROWS, Panel, run_tasks

CHUNK = 256
"""The number of columns that are added up before the sum goes on in float64."""
TILE = 2**18
"""Bytes of a tile; with its copy about half of a core's second-level cache."""
MAXIMA = 2**20
"""Bytes of maxima that are taken at a time: with fewer, threads wait for the interpreter."""
GROUP = 32
"""Rows of a product. With ``CHUNK`` columns it is small enough for BLAS to compute it on the calling thread."""
SMALL = 2**20
"""The minimum number of differences for each thread: with fewer, one thread does all."""
COMPILED = 2**31
"""Differences from which on Numba does them where it is installed: numpy takes about a second for fewer, and that is
what it takes to import Numba and to load what it has compiled."""
NARROW = 16
"""Columns of a chunk up to which maxima are taken a column at a time: numpy's loops over rows that short cost more."""
LARGEST = 2.0**500
"""Sums of squares of smaller numbers stay finite in float64, which ends at 2^1024."""
LARGEST_SINGLE = 2.0**100
"""Sums of smaller numbers stay finite in float32, which ends at 2^128."""

Rows = NDArray[Any]
Values = NDArray[np.float64]
Task = tuple[Panel, int, int]


class ArrayBackend(Protocol):
    """The operations that distances need, for arrays of one framework on one device."""

    def full(self, shape: tuple[int, int], value: float) -> Any:
        """A new float64 array filled with one number."""
        ...

    def block(self, x: Any, y: Any, columns: slice) -> Any:
        """Some columns of X, and below them those of Y, as a new float64 array."""
        ...

    def from_numpy(self, array: NDArray[np.float64]) -> Any:
        """Bring an array of numpy to the backend."""
        ...

    def to_numpy(self, array: Any) -> NDArray[Any]:
        """Bring an array to numpy."""
        ...

    def add_distances(self, panels: Sequence[Panel], x: Any, y: Any, columns: slice, single: bool) -> bool:
        """Add the distances in some columns, of float32 where ``single`` and it serves. Returns whether all elements
        are finite, and below ``LARGEST`` when centred; if not, nothing is added.
        """
        ...


def select_backend(x: Any, y: Any) -> tuple[ArrayBackend, Any, Any]:
    """The backend for the distances of two arrays, and the arrays as it takes them. Two torch tensors on one device
    stay there where it has float64; everything else comes to numpy.
    """
    if all(is_torch_array(array) for array in (x, y)) and device(x) == device(y):
        # array_api_compat leaves out the dtypes that torch cannot make on the device, as float64 on Apple's MPS
        kinds = array_namespace(x).__array_namespace_info__().dtypes(device=device(x), kind="real floating")
        if "float64" in kinds:
            return TorchBackend(array_namespace(x), device(x)), x.detach(), y.detach()
    return NumpyBackend(), _in_numpy(x), _in_numpy(y)


@dataclass(frozen=True)
class NumpyBackend:
    """The numpy backend."""

    def full(self, shape: tuple[int, int], value: float) -> NDArray[np.float64]:
        return np.full(shape, value)

    def block(self, x: NDArray[Any], y: NDArray[Any], columns: slice) -> NDArray[np.float64]:
        rows = np.empty((len(x) + len(y), x[:1, columns].shape[1]))
        rows[: len(x)], rows[len(x) :] = x[:, columns], y[:, columns]
        return rows

    def from_numpy(self, array: NDArray[np.float64]) -> NDArray[np.float64]:
        return array

    def to_numpy(self, array: NDArray[Any]) -> NDArray[Any]:
        return array

    def add_distances(
        self, panels: Sequence[Panel], x: NDArray[Any], y: NDArray[Any], columns: slice, single: bool
    ) -> bool:
        count, width = len(x) + len(y), x.shape[1]
        if count * (count - 1) // 2 * width >= COMPILED and find_spec("numba") is not None:
            from ckptzoo.measure.distances_compiled import add_distances as add_compiled

            return add_compiled(panels, x[:, columns], y[:, columns], np.float32 if single else np.float64, LARGEST)
        block, largest = _centred(self.block(x, y, columns))
        if not largest < LARGEST:
            return False
        add_distances(panels, block, single and largest < LARGEST_SINGLE)
        return True


@dataclass(frozen=True)
class TorchBackend:
    """The torch backend for one device. Sums of absolute differences are ``torch.pdist``'s, ``CHUNK`` columns at a
    time. ``framework`` is the array API namespace of torch; ``device`` is a torch device.
    """

    framework: Any
    device: Any

    def full(self, shape: tuple[int, int], value: float) -> Any:
        return self.framework.full(shape, value, dtype=self.framework.float64, device=self.device)

    def block(self, x: Any, y: Any, columns: slice) -> Any:
        xp = self.framework
        return xp.concat([xp.astype(array[:, columns], xp.float64) for array in (x, y)], axis=0)

    def from_numpy(self, array: NDArray[np.float64]) -> Any:
        return self.framework.asarray(array, device=self.device)

    def to_numpy(self, array: Any) -> NDArray[Any]:
        return np.asarray(to_device(array, "cpu"))

    def add_distances(self, panels: Sequence[Panel], x: Any, y: Any, columns: slice, single: bool) -> bool:
        xp = self.framework
        block, largest = _centred(self.block(x, y, columns))
        if not largest < LARGEST:
            return False
        single = single and largest < LARGEST_SINGLE
        rows = xp.astype(block, xp.float32 if single else xp.float64, copy=False)
        count, width = rows.shape
        distances = xp.zeros(count * (count - 1) // 2, dtype=xp.float64, device=self.device)
        for start in range(0, width, CHUNK):
            distances += xp.pdist(rows[:, start : start + CHUNK], p=1.0)
        # pdist lists pairs row by row, so that every panel takes the next ones.
        for panel in panels:
            shape = panel.manhattan.shape
            upper = tuple(xp.triu_indices(*shape, offset=1, device=self.device))
            panel.manhattan[upper] += distances[: len(upper[0])]
            distances = distances[len(upper[0]) :]
        norms = xp.sum(block * block, axis=1)
        for panel in panels:
            sums = norms[panel.start : panel.stop, None] + norms[panel.start :]
            # the Gram form of the squares; rounding can leave those of equal rows below 0
            sums -= 2 * (block[panel.start : panel.stop] @ block[panel.start :].T)
            panel.squares[...] += xp.clip(sums, 0)
        return True


def _in_numpy(array: Any) -> NDArray[Any]:
    if not is_torch_array(array):
        return np.asarray(array)
    # numpy() refuses tensors that require gradients and those on another device
    on_host: Any = array.detach().cpu()
    # numpy has no bfloat16; float32 holds every number of two bytes.
    return (on_host.float() if on_host.dtype.itemsize == 2 else on_host).numpy()


def _centred(block: Any) -> tuple[Any, float]:
    """The block with columns of mean 0, in place, and its largest absolute value, or NaN or infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        block -= block.mean(0)
        return block, float(max(block.max(), -block.min()))


def add_distances(panels: Sequence[Panel], block: Values, single: bool) -> None:
    r"""Add the distances in some columns to those of the panels.

    .. math::

        \begin{align*}
        \sum_c |a_c - b_c| &= 2 \sum_c \max(a_c, b_c) - \sum_c a_c - \sum_c b_c \\
        \sum_c (a_c - b_c)^2 &= \sum_c a_c^2 + \sum_c b_c^2 - 2 \sum_c a_c b_c
        \end{align*}

    because :math:`|a - b| = 2 \max(a, b) - a - b`: the maximum of a row and a tile of rows, and a product with ones,
    where differences would take a pass more. The maxima are exact. ``block`` is (N, w) of which each column has mean 0,
    so that little cancels; finite, and so are sums of its squares; ``single`` rounds to float32 for the absolute
    differences; sums must then be finite in float32. Errors are bounded as in ``ckptzoo.measure.Distances``. No bit
    depends on the threads, those of BLAS included.
    """
    count, width = block.shape
    whole = _chunks(block, np.dtype(np.float64))
    rounded = _chunks(block, np.dtype(np.float32)) if single else whole
    totals = np.sum([chunk[:count].sum(axis=1, dtype=np.float64) for chunk in rounded], axis=0)
    norms = np.square(block).sum(axis=1)
    # a tile holds the columns of some rows, or the pairs of a panel's rows and some rows
    step = TILE // rounded[0].itemsize // max(rounded[0].shape[1], ROWS) // GROUP * GROUP

    def tasks() -> Iterator[Task]:
        for panel in panels:
            for first in range(panel.start, count, step):
                yield panel, first, min(first + step, count)

    def worker() -> Callable[[Task], None]:
        tile = np.empty(MAXIMA // rounded[0].itemsize, rounded[0].dtype)

        def act(task: Task) -> None:
            panel, first, stop = task
            rows, columns = slice(panel.start, panel.stop), slice(first, stop)
            place = slice(first - panel.start, stop - panel.start)
            for into, sums, scale, own in (
                (panel.manhattan, _larger(rounded, task, tile), 2, -totals),
                (panel.squares, _products(whole, task), -2, norms),
            ):
                distances = sums[: panel.stop - panel.start, : stop - first]
                distances *= scale
                distances += own[rows, None]
                distances += own[columns]
                # Rounding can leave a distance of equal rows slightly below 0.
                into[:, place] += np.maximum(distances, 0, out=distances)

        return act

    run_tasks(tasks(), worker, max_threads=min(MAX_THREADS, max(1, count * count * width // SMALL)))


def _chunks(block: Values, dtype: np.dtype[Any]) -> list[Rows]:
    """The columns ``CHUNK`` at a time, each with ``GROUP`` rows of zeros at the end, so that groups can be whole."""
    count, width = block.shape
    chunks: list[Rows] = []
    for start in range(0, width, CHUNK):
        columns = block[:, start : start + CHUNK]
        chunks.append(np.zeros((count + GROUP, columns.shape[1]), dtype))
        chunks[-1][:count] = columns
    return chunks


def _larger(chunks: Sequence[Rows], task: Task, tile: Rows) -> Values:
    """(I, J) sums of the larger elements, for the rows of the panel and the later rows of the tile."""
    panel, first, stop = task
    groups = -(-(stop - first) // GROUP)
    sums = np.zeros((panel.stop - panel.start, groups * GROUP))
    part = np.zeros((len(sums), groups, GROUP), chunks[0].dtype)
    for chunk in chunks:
        width = chunk.shape[1]
        if width <= NARROW:
            _add_larger_by_column(sums, chunk, task, tile)
            continue
        ones = np.ones(width, chunk.dtype)
        rows_of_tile = chunk[first : first + groups * GROUP]
        together = max(1, len(tile) // rows_of_tile.size)
        for start in range(0, len(part), together):
            rows = chunk[panel.start + start : min(panel.start + start + together, panel.stop)]
            # groups of the tile whose rows all come before these rows' pairs are left out
            skip = max(0, panel.start + start + 1 - first) // GROUP
            if skip < groups:
                later = rows_of_tile[skip * GROUP :]
                maxima = tile[: len(rows) * later.size].reshape(len(rows), len(later), width)
                np.maximum(later, rows[:, None], out=maxima)
                groups_of_maxima = maxima.reshape(len(rows), -1, GROUP, width)
                np.matmul(groups_of_maxima, ones, out=part[start : start + together, skip:])
        sums += part.reshape(sums.shape)
    return sums


def _add_larger_by_column(sums: Values, chunk: Rows, task: Task, tile: Rows) -> None:
    """Add the sums of the larger elements of one chunk to the first columns of ``sums``."""
    panel, first, stop = task
    rows, columns = panel.stop - panel.start, stop - first
    maxima = tile[: rows * columns].reshape(rows, columns)
    for own, others in zip(chunk[panel.start : panel.stop].T, chunk[first:stop].T.copy(), strict=True):
        np.maximum(own[:, None], others, out=maxima)
        sums[:, :columns] += maxima


def _products(chunks: Sequence[Values], task: Task) -> Values:
    """(I, J) products of the rows of the panel and those of the tile, in whole groups."""
    panel, first, stop = task
    high, wide = (-(-size // GROUP) for size in (panel.stop - panel.start, stop - first))
    sums = np.zeros((high, wide, GROUP, GROUP))
    part = np.empty_like(sums)
    for chunk in chunks:
        left = chunk[panel.start : panel.start + high * GROUP].reshape(high, 1, GROUP, -1)
        right = chunk[first : first + wide * GROUP].reshape(1, wide, GROUP, -1)
        sums += np.matmul(left, right.swapaxes(2, 3), out=part)
    return sums.swapaxes(1, 2).reshape(high * GROUP, wide * GROUP)
