"""Tests of pairs of checkpoints for independence: ``ckptzoo.measure.independence`` on the neurons of a zoo."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.derive.near_copies import origins
from ckptzoo.derive.tables import symmetry_of
from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.table import filled_with
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.permutation_tests import Independence, independence
from ckptzoo.symmetry.neurons import neurons_of

BATCH_BYTES = 64 * 2**20
"""Bytes of weights and similarities of pairs in memory at a time, unless one pair has more; copies come on top."""
MAX_ORDER_BYTES = 64 * 2**20
"""Bytes of permutations of all neurons."""

UNIFORM = 0.001
"""The level of the test of all p-values of disjoint pairs together."""

Rows = NDArray[np.int64]


class IndependenceTest:
    """The test of pairs of checkpoints of one network.

    ``permutations`` are as many besides the identity; ``seed`` is that of all that is drawn. Raises ``ZooError`` where
    the checkpoints are Gaussians, and ``SymmetryError`` without a symmetry table, or with too few permutations.
    """

    def __init__(self, zoo: Zoo, *, permutations: int, seed: int) -> None:
        if (base := archs.base_of(zoo.arch.forward)) is not None:
            step = "Draw networks from them with ckptzoo.derive.draws, and test those."
            raise ZooError(Problem(zoo.name, "checkpoints", f"networks {base}", "Gaussians over their weights", step))
        self.arch, self._seed = zoo.arch, seed
        floats = [tensor.name for tensor in zoo.arch.tensors if "float" in tensor.dtype]
        self.neurons = neurons_of(symmetry_of(zoo.contents), floats, location=zoo.name)
        sizes = [self.neurons.table[group].n for group in self.neurons.groups]
        # similarities are float32
        self._pair_bytes = 2 * zoo.arch.nbytes + 4 * sum(n * n for n in sizes)
        self.most = max(999, MAX_ORDER_BYTES // (8 * sum(sizes)))
        self.orders = self._orders(permutations)

    def _orders(self, permutations: int) -> list[NDArray[np.int64]]:
        """Draw permutations; ``independence`` counts the one that leaves a pair as it is among them."""
        rng = np.random.default_rng(np.random.SeedSequence([self._seed, permutations]))
        return self.neurons.orders(1 + min(permutations, self.most), rng)

    def of(
        self,
        first: Zoo,
        second: Zoo,
        pairs: Rows,
        *,
        permutations: int | None = None,
        advance: Callable[[int], None] = lambda _: None,
    ) -> Independence:
        """Test pairs (P, 2): rows of the first zoo and of the second one, with other permutations where a number is
        given; ``advance`` is called with the pairs of each batch.
        """
        orders = self.orders if permutations is None else self._orders(permutations)
        parts: list[Independence] = []
        step = max(1, BATCH_BYTES // self._pair_bytes)
        for number, start in enumerate(range(0, len(pairs), step)):
            some = pairs[start : start + step]
            sides = (self.unit(first, some[:, 0]), self.unit(second, some[:, 1]))
            seed = int(np.random.SeedSequence([self._seed, len(orders[0]), number]).generate_state(1)[0])
            parts.append(independence(self.neurons.similarities(*sides), orders, seed=seed))
            advance(len(some))
        names = ("p", "statistic", "excess")
        empty = np.empty(0)
        return Independence(*(np.concatenate([empty, *(getattr(part, name) for part in parts)]) for name in names))

    def unit(self, zoo: Zoo, rows: Rows) -> Mapping[str, NDArray[np.float32]]:
        """Return incoming weights of some checkpoints, as similarities take them."""
        return self.neurons.unit({name: np.asarray(zoo[name][rows]) for name in self.arch.names})


def first_and_last(zoo: Zoo) -> tuple[Rows, Rows]:
    """Return rows of the first and last checkpoint of each origin, by step and draw; origins in the zoo's order."""
    _, place, label = np.unique(origins(zoo), return_index=True, return_inverse=True)
    label = np.argsort(np.argsort(place))[label.reshape(-1)]
    steps, draws = (filled_with(zoo.column(name), -1) for name in ("step", "draw"))
    # lexsort sorts by its last key first
    order = np.lexsort((draws, steps, label))
    starts = np.searchsorted(label[order], np.arange(len(place) + 1))
    return order[starts[:-1]], order[starts[1:] - 1]


def random_pairs(count: int, limit: int, disjoint: bool, rng: np.random.Generator) -> Rows:
    """Return (P, 2) random pairs of ``count`` things, each in one pair at most, or any different pairs."""
    if disjoint:
        return rng.permutation(count)[: 2 * min(limit, count // 2)].reshape(-1, 2)
    total = count * (count - 1) // 2
    numbers = np.arange(total) if total <= limit else np.sort(rng.choice(total, limit, replace=False))
    # pair k is that of j and k - j (j - 1) / 2, as j things are in j (j - 1) / 2 pairs
    larger = np.floor((1 + np.sqrt(1 + 8 * numbers.astype(np.float64))) / 2).astype(np.int64)
    return np.stack([numbers - larger * (larger - 1) // 2, larger], 1)
