"""The distances between all rows of two samples, added up over blocks of columns."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ckptzoo.errors import Problem, ZooError
from ckptzoo.measure.distance_backends import CHUNK, ArrayBackend, select_backend
from ckptzoo.measure.kernels import (
    Rule,
    kernel_estimates,
    mean_square_distances,
    permuted_estimates,
    resolve_bandwidths,
)
from ckptzoo.measure.panels import Panel, make_panels

SPAN = 2**21
"""Elements of a block of columns, 16 MiB of float64, that is centred and measured at a time."""

Values = NDArray[np.float64]


class Distances:
    r"""Sums of absolute and of squared differences between m rows X and n rows Y, and what follows from them.

    Both distances are sums over columns, so columns come block by block, in any order, and are not kept:

    .. math:: \|x - y\|_1 = \sum_c |x_c - y_c|, \qquad
        \|x - y\|_2^2 = \|\tilde x\|^2 + \|\tilde y\|^2 - 2\, \tilde x \cdot \tilde y, \quad \tilde x = x - \mu

    where :math:`\mu`, the mean of the block's rows, keeps the cancellation small. Where Numba is installed
    (``ckptzoo[fast]``), arrays of numpy with many differences are measured by compiled code, which adds up the squares
    of the differences themselves.

    Parameters
    ----------
    m, n
        2 or more.

    Raises
    ------
    ZooError
        m or n is below 2.

    Notes
    -----
    Memory: 16 bytes a pair, (m + n)(m + n + 127) / 2 pairs at most, and some copies of ``SPAN`` elements for a block,
    whatever the number of columns. Only the upper triangles of X-X and Y-Y are computed. Compiled code serves blocks
    that are added with ``COMPILED`` = 2^31 differences or more, and is kept on disk once it has been compiled, which
    takes about two seconds. No bit depends on the number of threads.

    The columns are taken in B blocks of at most w columns: those that are added, cut where they have more than
    ``SPAN`` elements. With R1(x) the L1 norm of x - mu over all columns, R2(x) the L2 norm in a block, and to first
    order, the errors are at most

    - ``2 CHUNK u (R1(x) + R1(y))`` for the sum of absolute differences, with CHUNK = 256; u = 2^-24 for added blocks
      of more than CHUNK columns with 4 bytes an element or fewer, else u = 2^-53;
    - ``(w + B + 8) 2^-53 sum (R2(x) + R2(y))^2`` for the sum of squares, the sum over blocks; and
      ``CHUNK 2^-24 sum (R2(x) + R2(y))^2`` more where compiled code takes blocks for which u = 2^-24.

    Typical errors are far smaller. All bounds are tested against exact fractions in
    ``tests/measure/test_distances.py``.
    """

    def __init__(self, m: int, n: int) -> None:
        if min(m, n) < 2:
            step = "The unbiased estimate needs pairs of each."
            raise ZooError(Problem("mmd", "rows", "2 or more of X and of Y", f"{m} and {n}", step))
        self.m, self.n, self.columns = m, n, 0
        self._backend: ArrayBackend | None = None
        self._panels: tuple[Panel, ...] = ()

    def add(self, x: Any, y: Any) -> None:
        """Add the distances in some columns.

        Parameters
        ----------
        x
            (m, w) or (m, ...) floats of 2, 4 or 8 bytes or integers, of numpy or torch; trailing axes are columns.
        y
            (n, w) or (n, ...) alike. Two torch tensors on one device stay there.

        Raises
        ------
        ZooError
            The shapes do not fit, an element is not finite, or blocks came from different devices.
        """
        backend, x, y = select_backend(x, y)
        if not len(x.shape) or not len(y.shape) or (x.shape[0], y.shape[0]) != (self.m, self.n):
            expected = f"{self.m} and {self.n} rows"
            got = f"shapes {tuple(x.shape)} and {tuple(y.shape)}"
            raise ZooError(Problem("mmd", "a block", expected, got, "Pass the same rows in every block."))
        if tuple(x.shape[1:]) != tuple(y.shape[1:]):
            got = f"{tuple(x.shape[1:])} and {tuple(y.shape[1:])}"
            raise ZooError(Problem("mmd", "a block", "the same columns of X and Y", got, "Pass the same tensor."))
        x, y = (array.reshape(array.shape[0], math.prod(array.shape[1:])) for array in (x, y))
        self._prepare(backend)
        width = x.shape[1]
        if width:
            # whole chunks, so that sums are cut at the same columns whatever the blocks
            limit = max(CHUNK, SPAN // (self.m + self.n) // CHUNK * CHUNK)
            # a single chunk, such as a bias, is fast enough in float64
            single = width > CHUNK and _single(x) and _single(y)
            for start in range(0, width, limit):
                columns = slice(start, min(start + limit, width))
                if not backend.add_distances(self._panels, x, y, columns, single):
                    self._raise_not_finite(backend, x, y, columns)
        self.columns += width

    def include(self, other: "Distances") -> None:
        """Add the distances of the same rows in other columns.

        Parameters
        ----------
        other
            distances of the same rows.

        Raises
        ------
        ZooError
            The numbers of rows differ.
        """
        if (other.m, other.n) != (self.m, self.n):
            got = f"{other.m} and {other.n}"
            step = "Include distances of the same rows."
            raise ZooError(Problem("mmd", "rows", f"{self.m} and {self.n}", got, step))
        if other._backend is None:
            return
        self._prepare(other._backend)
        for mine, others in zip(self._panels, other._panels, strict=True):
            mine.manhattan[...] += others.manhattan
            mine.squares[...] += others.squares
        self.columns += other.columns

    def sums(self) -> Values:
        """(2, P) the sums of absolute and of squared differences of all pairs, panel by panel; see ``from_sums``."""
        backend = self._ready()
        kinds = [[panel.manhattan for panel in self._panels], [panel.squares for panel in self._panels]]
        return np.stack([np.concatenate([backend.to_numpy(item).ravel() for item in kind]) for kind in kinds])

    @classmethod
    def from_sums(cls, m: int, n: int, columns: int, sums: Values, like: Any = None) -> "Distances":
        """Distances whose ``sums`` over so many columns are known.

        Parameters
        ----------
        m
            rows of the first set.
        n
            rows of the second set.
        columns
            how many were summed over.
        sums
            as the property ``sums`` holds them.
        like
            an array of those that were measured; the distances are where theirs would be. By default in numpy.

        Raises
        ------
        ValueError
            The sums are not those of m and n rows.
        """
        distances, (backend, _, _) = cls(m, n), select_backend(*[sums if like is None else like] * 2)
        distances._prepare(backend)
        shapes = [tuple(panel.manhattan.shape) for panel in distances._panels]
        sizes = [math.prod(shape) for shape in shapes]
        if sums.shape != (2, sum(sizes)) or sums.dtype != np.float64 or columns < 1:
            raise ValueError(f"expected (2, {sum(sizes)}) float64, got {sums.shape} {sums.dtype} of {columns} columns")
        ends = np.cumsum(sizes)[:-1]
        parts = zip(distances._panels, shapes, *(np.split(row, ends) for row in sums), strict=True)
        for panel, shape, manhattan, squares in parts:
            panel.manhattan[...] = backend.from_numpy(manhattan.reshape(shape))
            panel.squares[...] = backend.from_numpy(squares.reshape(shape))
        distances.columns = columns
        return distances

    def bandwidths(self, bandwidths: Rule | ArrayLike = "paper") -> Values:
        """(20,) the bandwidths of a rule, 10 for L1 and 10 for L2; given ones are checked. See ``mmd2``.

        Parameters
        ----------
        bandwidths
            the name of a rule, or 20 numbers.
        """
        backend = self._ready()
        return resolve_bandwidths(self._panels, self.m, self.n, bandwidths, backend.to_numpy)

    def mmd2(self, bandwidths: Rule | ArrayLike = "paper") -> Values:
        """(20,) unbiased estimates of the squared maximum mean discrepancy, as the function ``mmd2`` has them.

        Parameters
        ----------
        bandwidths
            the name of a rule, or 20 numbers.
        """
        backend = self._ready()
        return kernel_estimates(self._panels, self.m, self.n, self.bandwidths(bandwidths), backend.to_numpy)

    def mean_squares(self) -> Values:
        """(3,) the mean squared Euclidean distance between different rows: within X, within Y, and across."""
        backend = self._ready()
        return mean_square_distances(self._panels, self.m, self.n, backend.to_numpy)

    def null(self, bandwidths: Rule | ArrayLike = "paper", *, permutations: int, seed: int = 0) -> Values:
        """(20, B) the same estimates after B random exchanges of rows between X and Y.

        Parameters
        ----------
        bandwidths
            as in ``mmd2``; those of the samples as they are serve all exchanges.
        permutations
            B, 1 or more.
        seed
            of ``numpy.random.default_rng``; equal seeds, m and n give equal exchanges, for any columns.

        Notes
        -----
        One product of each kernel's matrix, a panel of 128 rows of it at a time, with all labels: 20 (m + n)^2 B
        multiplications, and 8 (m + n) B bytes of labels.
        """
        if permutations < 1:
            raise ZooError(Problem("mmd", "permutations", "1 or more", str(permutations), "Ask for some."))
        backend, count = self._ready(), self.m + self.n
        rng, labels = np.random.default_rng(seed), np.zeros((count, permutations))
        for number in range(permutations):
            labels[rng.permutation(count)[: self.m], number] = 1
        estimates = permuted_estimates(
            self._panels, self.m, self.n, self.bandwidths(bandwidths), backend.from_numpy(labels)
        )
        return np.stack([backend.to_numpy(item) for item in estimates])

    def _ready(self) -> ArrayBackend:
        if self._backend is None or not self.columns:
            raise ZooError(Problem("mmd", "columns", "at least one", "none", "Add blocks first."))
        return self._backend

    def _prepare(self, backend: ArrayBackend) -> None:
        if self._backend is None:
            self._backend, self._panels = backend, tuple(make_panels(self.m, self.n, backend.full))
        elif backend != self._backend:
            step = "Keep all blocks where the first one is."
            raise ZooError(Problem("mmd", "a block", "arrays on the device of those before", "others", step))

    def _raise_not_finite(self, backend: ArrayBackend, x: Any, y: Any, columns: slice) -> None:
        """Raise the error for elements that are not finite, or too large, with their rows."""
        descriptions: list[str] = []
        for name, array in (("X", x), ("Y", y)):
            good = np.isfinite(backend.to_numpy(backend.block(array, array[:0], columns))).all(axis=1)
            bad = np.flatnonzero(~good)
            if len(bad):
                shown = ", ".join(map(str, bad[:8].tolist())) + (", ..." if len(bad) > 8 else "")
                descriptions.append(
                    f"row{'s' * (len(bad) > 1)} {shown} of {name} that {'are' if len(bad) > 1 else 'is'} not"
                )
        got = " and ".join(descriptions) or "elements whose squares overflow"
        raise ZooError(Problem("mmd", "weights", "finite ones", got, "Leave them out."))


def _single(array: Any) -> bool:
    """Whether float32 holds every element."""
    return "float" in str(array.dtype) and array.dtype.itemsize <= 4
