"""Chains of draws of networks: whether they have mixed, and how far their neurons are permuted as they go."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo import symmetry
from ckptzoo.loader.chains import OF_CHAINS, chains_of
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.studies.shared.networks import Weights
from ckptzoo.studies.shared.selection import evenly
from ckptzoo.symmetry.transpositions import transpositions_in_total

MAX_R_HAT = 1.1
"""The R-hat above which chains have not mixed (Gelman and Rubin, "Inference from iterative simulation", 1992)."""
LEAST_DRAWS = 4
"""The minimum number of draws of a chain, so that its halves can be compared."""
_LAGS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Distances in draws between the pairs whose transpositions are counted."""
_PAIRS = 64
"""The maximum number of pairs of draws of each lag."""

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ChainConvergence:
    """The convergence of n numbers over some chains.

    ``r_hat`` and ``ess`` are (n,) rank-normalised split R-hat, and effective draws of the bulk, of all chains together;
    NaN for a number that is the same in all draws.
    """

    r_hat: Values
    ess: Values

    @property
    def above(self) -> float:
        """The share with R-hat above ``MAX_R_HAT``."""
        # NaN compares as False, and would count as mixed
        return float(np.nanmean(np.where(np.isnan(self.r_hat), np.nan, self.r_hat > MAX_R_HAT)))

    def to_json(self) -> dict[str, Any]:
        return {
            "numbers": len(self.r_hat),
            "above": self.above,
            "median_r_hat": float(np.nanmedian(self.r_hat)),
            "median_ess": float(np.nanmedian(self.ess)),
        }


def chain_rows(zoo: Zoo) -> list[NDArray[np.int64]]:
    """The rows of each chain, which the column ``mode`` names, in the order in which it made them; none of others.

    Raises ``ZooError`` where chains are of several methods, or nothing tells the order of their draws.
    """
    table = zoo.metadata.select(OF_CHAINS)
    drawn = np.flatnonzero(table["mode"].is_valid().to_numpy())
    if not len(drawn):
        return []
    return [drawn[own] for own in chains_of(table.take(drawn).to_pylist(), zoo.name).values()]


def are_comparable(chains: Sequence[NDArray[np.int64]]) -> bool:
    """Whether there are two chains or more, of one length, with ``LEAST_DRAWS``."""
    return len(chains) > 1 and len({len(rows) for rows in chains}) == 1 and len(chains[0]) >= LEAST_DRAWS


def convergence_of(chains: Sequence[NDArray[np.int64]], numbers: NDArray[Any]) -> ChainConvergence:
    """The convergence of comparable chains in (K, n) numbers; raises ``MissingExtraError`` without arviz-stats."""
    # arviz-stats is needed only where chains are compared
    from ckptzoo.measure.convergence import convergence

    return ChainConvergence(*convergence(numbers[np.stack(chains)]))


def transpositions_by_lag(
    chains: Sequence[NDArray[np.int64]], samples: Weights, table: Symmetry
) -> dict[int, tuple[float, int]]:
    """Map lags to the transpositions that align draws that far apart in one chain: their mean, and the most."""
    by_lag: dict[int, tuple[float, int]] = {}
    for lag in _LAGS:
        pairs = [(chain[start], chain[start + lag]) for chain in chains for start in range(len(chain) - lag)]
        # lags ascend: a chain that is too short for this one is too short for the next
        if not pairs:
            break
        some = np.array([pairs[place] for place in evenly(len(pairs), _PAIRS)])
        earlier, later = ({name: array[some[:, side]] for name, array in samples.items()} for side in (0, 1))
        counts = transpositions_in_total(symmetry.align(later, earlier, table).element, table)
        by_lag[lag] = float(counts.mean()), int(counts.max())
    return by_lag
