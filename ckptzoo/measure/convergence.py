"""Whether Markov chains have mixed: rank-normalised split R-hat and effective sample sizes, by arviz-stats."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptzoo.arguments import ARRAY, checked
from ckptzoo.errors import Problem, ZooError, require

BLOCK = 2**22
"""Numbers that are copied at a time, in float64."""
_CHAINS, _DRAWS = 2, 4
"""At least, for halves of chains to be compared."""


class Convergence(NamedTuple):
    """The convergence of several chains, measured by their draws; one number a parameter.

    Attributes
    ----------
    rhat
        (P,) float64; near 1 where all halves of chains have the same distribution, and above 1.01 (Vehtari et al.)
        where they differ. NaN where all draws are equal.
    ess
        (P,) float64: the number of independent draws that would tell as much of the bulk of the distribution; up to D
        log10(D) of D draws in all, where neighbours are on opposite sides of the mean. NaN where all draws are equal.
    """

    rhat: NDArray[np.float64]
    ess: NDArray[np.float64]


@checked
def convergence(draws: ARRAY) -> Convergence:
    r"""Rank-normalised split R-hat and bulk effective sample size of every parameter.

    Each chain is cut into halves, and the draws of all are replaced by normal scores of their ranks. R-hat is
    :math:`\sqrt{(B / W + n - 1) / n}` with the variance between halves B, n times that of their means, and the mean
    variance W within halves of n draws; the greater of that of the draws and that of their distances from the median
    (Vehtari, Gelman, Simpson, Carpenter and Bürkner, "Rank-normalization, folding, and localization", Bayesian Analysis
    2021, arXiv 1903.08008).

    Parameters
    ----------
    draws
        (C, D, P), chains, draws in the order in which each chain made them, parameters; an array of numpy or torch or a
        memory map.

    Raises
    ------
    ZooError
        Another number of axes, fewer than 2 chains, fewer than 4 draws of each, or a number that is not finite.
    MissingExtraError
        arviz-stats is not installed.

    Notes
    -----
    Time 2 ms a parameter for 1,000 draws, on one core. Memory a few times 8 ``BLOCK`` bytes beside the draws. Tested in
    ``tests/measure/test_convergence.py``.

    Examples
    --------
    >>> draws = np.random.default_rng(0).normal(size=(4, 250, 2))
    >>> draws[0, :, 1] += 2  # one chain is elsewhere
    >>> convergence(draws).rhat.round(1).tolist()
    [1.0, 1.3]
    """
    parameters, stats = _sizes(draws)[2], _stats()
    rhat, ess = np.full(parameters, np.nan), np.full(parameters, np.nan)
    for some, block in _varying(draws):
        # chains that stay where they are have no variance to divide by
        with np.errstate(divide="ignore", invalid="ignore"):
            rhat[some], ess[some] = stats.rhat(block), stats.ess(block)
    return Convergence(rhat, ess)


@checked
def tail_ess(draws: ARRAY) -> NDArray[np.float64]:
    """Effective sample size of the tails of every parameter: the smaller of those of its 5 % and 95 % quantiles.

    Parameters
    ----------
    draws
        (C, D, P) as in ``convergence``.

    Returns
    -------
    NDArray[np.float64]
        (P,) float64; NaN where all draws are equal.

    Raises
    ------
    ZooError, MissingExtraError
        as in ``convergence``.

    Notes
    -----
    The smaller of both after Vehtari et al. (arXiv 1903.08008). Tested in ``tests/measure/test_convergence.py``.

    Examples
    --------
    >>> draws = np.random.default_rng(0).normal(size=(4, 250, 1))
    >>> bool(800 < tail_ess(draws)[0] < 1200)
    True
    """
    stats, ess = _stats(), np.full(_sizes(draws)[2], np.nan)
    for some, block in _varying(draws):
        with np.errstate(divide="ignore", invalid="ignore"):
            ess[some] = stats.ess(block, method="tail", prob=0.95)
    return ess


def _stats() -> Any:
    return require("arviz_stats.base", "hmc", package="arviz-stats").array_stats


def _varying(draws: Any) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Yield the parameters that are not the same in all draws, block by block, and their numbers (p, C, D)."""
    chains, count, parameters = _sizes(draws)
    width = max(1, BLOCK // (chains * count))
    for start in range(0, parameters, width):
        block = np.asarray(draws[:, :, start : start + width]).astype(np.float64).transpose(2, 0, 1)
        _require_finite(block, start)
        # what is the same everywhere has no ranks
        varies = block.min((1, 2)) < block.max((1, 2))
        yield start + np.flatnonzero(varies), block[varies]


def _sizes(draws: Any) -> tuple[int, int, int]:
    shape = tuple(draws.shape)
    if len(shape) != 3 or shape[0] < _CHAINS or shape[1] < _DRAWS:
        expected = f"{_CHAINS} chains or more of {_DRAWS} draws or more, (chains, draws, parameters)"
        raise ZooError(Problem("convergence", "draws", expected, str(shape), "Pass more chains or draws."))
    return shape


def _require_finite(block: NDArray[np.float64], start: int) -> None:
    finite = np.isfinite(block)
    if not finite.all():
        parameter, chain, draw = np.argwhere(~finite)[0].tolist()
        what = f"draw {draw} of parameter {start + parameter} in chain {chain}"
        got = str(block[parameter, chain, draw])
        raise ZooError(Problem("convergence", what, "a finite number", got, "Leave out chains that diverged."))
