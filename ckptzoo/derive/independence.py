"""Tests of pairs of checkpoints for independence: ``ckptzoo.measure.independence`` on the neurons of a zoo."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.derive.tables import symmetry_of
from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.independence import Independence, independence
from ckptzoo.symmetry.neurons import neurons_of

BATCH_BYTES = 64 * 2**20
"""Bytes of weights of pairs that are in memory at a time, unless one pair has more; copies come on top."""
MAX_ORDER_BYTES = 64 * 2**20
"""Bytes of permutations of all neurons."""

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
        step = max(1, BATCH_BYTES // (2 * self.arch.nbytes))
        for number, start in enumerate(range(0, len(pairs), step)):
            some = pairs[start : start + step]
            sides = (self._weights(first, some[:, 0]), self._weights(second, some[:, 1]))
            seed = int(np.random.SeedSequence([self._seed, len(orders[0]), number]).generate_state(1)[0])
            parts.append(independence(self.neurons.similarities(*sides), orders, seed=seed))
            advance(len(some))
        names = ("p", "statistic", "excess")
        empty = np.empty(0)
        return Independence(*(np.concatenate([empty, *(getattr(part, name) for part in parts)]) for name in names))

    def _weights(self, zoo: Zoo, rows: Rows) -> Mapping[str, NDArray[np.float32]]:
        return self.neurons.unit({name: np.asarray(zoo[name][rows]) for name in self.arch.names})
