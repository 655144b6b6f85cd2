"""Laplace and Gaussian kernels: their bandwidths, and their sums over the pairs of two samples.

Bandwidths follow the rule of arXiv 2310.08287's code. Sums are of the samples as they are, or with rows exchanged.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import ArrayLike, NDArray

from ckptzoo.errors import Problem, UnknownNameError, ZooError
from ckptzoo.measure.panels import Panel, run_tasks

# As many, and of as many rows, as in the code of arXiv 2310.08287.
COUNT = 10
"""The number of bandwidths of each norm."""
FIRST = 500
"""The number of rows of each sample whose distances a rule uses."""

Rule = Literal["paper", "fixed"]
RULES: tuple[Rule, ...] = ("paper", "fixed")
PIECE = 2**18
"""The number of distances whose kernels are computed at a time: with fewer, threads wait for the interpreter."""
LEAST = -700.0
"""Exponents below this one count as this one, whose kernel is 1e-304. Vectorised code leaves numbers from -708 on,
where float64 ends, and infinite ones to scalar code, which takes up to ten times as long."""

Values = NDArray[np.float64]
Host = Callable[[Any], Any]
"""A function that brings an array to numpy."""


def bandwidths_of(distances: ArrayLike) -> NDArray[np.float64]:
    r"""Ten bandwidths, evenly spaced on a logarithmic scale, from distances in one norm: (10,) float64, increasing.

    With :math:`d_{(0)} \le d_{(1)} \le \dots` the sorted distances and l their number:

    .. math::

        \begin{align*}
        b_\min &= \tfrac{1}{2} \begin{cases} d_{(0)} & d_{(0)} \ge 0.1 \\
            \max(d_{(\lfloor 0.05\, l \rfloor)}, 0.1) & \text{else} \end{cases} \\
        b_\max &= 2 \max(d_{(l-1)}, 0.3) \\
        b_i &= b_\min (b_\max / b_\min)^{i/9}, \quad i = 0 \dots 9
        \end{align*}

    (the code of arXiv 2310.08287). ``distances`` may have any shape. Raises ``ZooError`` if there is none, or one that
    is not finite or negative. Tested in ``tests/measure/test_bandwidths.py``.
    """
    values = np.asarray(distances, np.float64).ravel()
    if not len(values) or not np.isfinite(values).all() or values.min() < 0:
        got = "none" if not len(values) else f"{values.min()} to {values.max()}"
        step = "Pass distances of at least two rows whose sums do not overflow."
        raise ZooError(Problem("bandwidths", "distances", "finite ones, 0 or above", got, step))
    smallest = float(values.min())
    # 0.1, 0.3, the 5 % quantile, and half of the smallest and twice the largest: all from that code
    if smallest < 0.1:
        index = len(values) // 20
        smallest = max(float(np.partition(values, index)[index]), 0.1)
    low, high = smallest / 2, 2 * max(float(values.max()), 0.3)
    return low * (high / low) ** (np.arange(COUNT) / (COUNT - 1))


def resolve_bandwidths(
    panels: Sequence[Panel], m: int, n: int, bandwidths: Rule | ArrayLike, host: Callable[[Any], NDArray[Any]]
) -> NDArray[np.float64]:
    """(20,) bandwidths: given ones, or the rule's for the distances in the panels, 10 for L1 and then 10 for L2.

    ``bandwidths`` are a rule or numbers: ``paper`` takes the distances between the first 500 rows of X and of Y;
    ``fixed`` those among the first 500 rows of X, each pair once; or (20,) numbers. Raises ``UnknownNameError`` if
    there is no such rule, and ``ZooError`` if the given ones are not 20 finite numbers above 0, or distances are not
    finite.
    """
    if isinstance(bandwidths, str):
        if bandwidths not in RULES:
            raise UnknownNameError("mmd", "bandwidths", bandwidths, RULES)
        cross = bandwidths == "paper"
        squares = _rule_distances(panels, m, n, "squares", cross, host)
        return np.concatenate(
            [bandwidths_of(_rule_distances(panels, m, n, "manhattan", cross, host)), bandwidths_of(np.sqrt(squares))]
        )
    given = np.asarray(bandwidths, np.float64)
    if given.shape != (2 * COUNT,) or not (np.isfinite(given) & (given > 0)).all():
        got = f"{given.shape}" if given.shape != (2 * COUNT,) else f"{given.min()} to {given.max()}"
        step = "Give 10 for Laplace kernels and then 10 for Gaussian ones."
        raise ZooError(Problem("mmd", "bandwidths", "(20,) finite numbers above 0", got, step))
    return given


def _rule_distances(
    panels: Sequence[Panel], m: int, n: int, norm: str, cross: bool, host: Callable[[Any], NDArray[Any]]
) -> NDArray[np.float64]:
    """The distances of one norm from which a rule makes bandwidths."""
    limit = min(m, FIRST)
    blocks: list[NDArray[np.float64]] = []
    for panel in panels:
        if panel.start >= limit:
            break
        rows = slice(limit - panel.start)
        columns = slice(panel.x_columns, panel.x_columns + min(n, FIRST)) if cross else slice(limit - panel.start)
        block = host(getattr(panel, norm)[rows, columns])
        blocks.append(block.ravel() if cross else block[np.triu_indices(block.shape[0], 1, block.shape[1])])
    return np.concatenate(blocks)


def kernel_of(panel: Panel, rows: slice, bandwidths: Values, number: int, out: Any = None) -> Any:
    """Return one kernel of some rows' pairs, in ``out`` where given; 1e-304 where a pair does not count."""
    b = float(bandwidths[number])
    distances = (panel.manhattan if number < COUNT else panel.squares)[rows]
    xp: Any = array_namespace(distances)
    # without the usual factor 2 in the Gaussian, as in the code of arXiv 2310.08287
    kernel = xp.multiply(distances, -1 / b if number < COUNT else -1 / b / b, out=out)
    xp.maximum(kernel, xp.full_like(kernel[:1, :1], LEAST), out=kernel)
    return xp.exp(kernel, out=kernel)


def unbiased(within_x: Any, within_y: Any, across: Any, m: int, n: int) -> Any:
    r"""The unbiased estimate of the squared maximum mean discrepancy from sums of a kernel.

    .. math:: \frac{1}{m(m-1)} \sum_{i \ne j} k(x_i, x_j) + \frac{1}{n(n-1)} \sum_{i \ne j} k(y_i, y_j)
        - \frac{2}{mn} \sum_{i, j} k(x_i, y_j)

    (Gretton et al., "A kernel two-sample test", JMLR 2012, equation 3.) ``within_x`` and ``within_y`` are sums over the
    unordered pairs of different rows of one sample; ``across`` is the sum over all pairs of a row of X and a row of Y.
    """
    return 2 * within_x / (m * (m - 1)) + 2 * within_y / (n * (n - 1)) - 2 * across / (m * n)


def kernel_estimates(panels: Sequence[Panel], m: int, n: int, bandwidths: Values, host: Host) -> Values:
    """(20,) the estimate of every kernel."""
    columns = m + n
    step = max(1, PIECE // columns)
    pieces = [
        (panel, slice(start, start + step)) for panel in panels for start in range(0, panel.stop - panel.start, step)
    ]
    sums = np.empty((len(pieces), 2 * COUNT, 2))

    def summer() -> Callable[[int], None]:
        xp: Any = array_namespace(panels[0].manhattan)
        memory = xp.empty(step * columns, dtype=xp.float64, device=device(panels[0].manhattan))

        def act(number: int) -> None:
            panel, rows = pieces[number]
            x_columns = panel.x_columns
            shape = panel.manhattan[rows].shape
            out = xp.reshape(memory[: math.prod(shape)], shape)
            for kernel_number in range(2 * COUNT):
                kernel = kernel_of(panel, rows, bandwidths, kernel_number, out)
                left, right = xp.sum(kernel[:, :x_columns]), xp.sum(kernel[:, x_columns:])
                sums[number, kernel_number] = [float(left), float(right)]

        return act

    run_tasks(range(len(pieces)), summer)
    of_x = np.array([panel.x_columns > 0 for panel, _ in pieces])
    left, right = sums[of_x].sum(axis=0).T
    return unbiased(left, sums[~of_x, :, 1].sum(axis=0), right, m, n)


def mean_square_distances(panels: Sequence[Panel], m: int, n: int, host: Host) -> Values:
    """(3,) the mean squared Euclidean distance within X, within Y, and across; of different rows."""
    sums = np.zeros(3)
    for panel in panels:
        # pairs that do not count are infinitely far apart
        squares = np.nan_to_num(host(panel.squares), posinf=0.0)
        left, right = squares[:, : panel.x_columns].sum(), squares[:, panel.x_columns :].sum()
        sums += [left, 0, right] if panel.x_columns else [0, right, 0]
    return sums / [m * (m - 1) / 2, n * (n - 1) / 2, m * n]


def permuted_estimates(panels: Sequence[Panel], m: int, n: int, bandwidths: Values, labels: Any) -> Iterator[Any]:
    """For every kernel the (B,) estimates of B ways to call m of the rows X and the others Y.

    With K the kernel's matrix without its diagonal and z the indicator of X, the sums over ordered pairs are ``z'Kz``
    within X, ``z'K1 - z'Kz`` across and ``1'K1 - 2 z'K1 + z'Kz`` within Y: one product of K with all labels does for
    all of them, a panel of K at a time.

    ``labels`` are (m + n, B) float64 on the distances' device, 1 where a row is of X, else 0.
    """
    xp: Any = array_namespace(labels)
    for number in range(2 * COUNT):
        inside, degree = 0.0 * labels[0], 0.0 * labels[:, 0]
        for panel in panels:
            kernel = kernel_of(panel, slice(None), bandwidths, number)
            rows = slice(panel.start, panel.stop)
            inside += xp.sum(labels[rows] * (kernel @ labels[panel.start :]), axis=0)
            degree[rows] += xp.sum(kernel, axis=1)
            degree[panel.start :] += xp.sum(kernel, axis=0)
        of_x = degree @ labels
        across = of_x - 2 * inside
        yield unbiased(inside, (xp.sum(degree) - of_x - across) / 2, across, m, n)
