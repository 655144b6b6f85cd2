"""Were the members of a zoo trained from independent initial weights?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo.arguments import Count, Seed, Within, checked
from ckptzoo.console import columns, facts
from ckptzoo.derive.independence import UNIFORM, IndependenceTest, first_and_last, random_pairs
from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.flags import usable_networks
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.marginals import uniformity
from ckptzoo.measure.permutation_tests import Independence, holm
from ckptzoo.schema.documents import Document, JsonFields
from ckptzoo.studies.shared.result import Spread, StudyResult
from ckptzoo.text import Progress, counted, counter, printable

LEVELS = (0.01, 0.05)
"""Levels up to which the shares of p-values are reported."""
FLAGGED = 0.01
"""The level of pairs that stand out among all that were tested, by Holm's procedure."""
MAX_PAIRS = 4096
"""The number of pairs that are tested unless another one is asked for."""
REFINED = 100
"""The number of small p-values that are computed again, with enough permutations for one pair to stand out."""
SHOWN = 10
"""The number of flagged pairs that are printed."""

Values = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TestedPairs(JsonFields, derived=("below", "flagged")):
    """Tests of some pairs of checkpoints.

    ``ids`` are the (P,) pairs; ``p`` their (P,) p-values with the permutations of the study, and ``excess`` the (P,)
    distances of the statistic from its mean, in standard deviations. ``adjusted`` are (P,) p-values by Holm, of the
    smallest with more permutations. ``uniform`` is the p-value of all p-values (``ckptzoo.measure.marginals``), None
    where pairs share members.
    """

    ids: tuple[tuple[str, str], ...]
    p: Values
    excess: Values
    adjusted: Values
    uniform: float | None

    @property
    def below(self) -> dict[str, float]:
        """The shares of the p-values up to each of ``LEVELS``."""
        return {f"{level:g}": float((self.p <= level).mean()) for level in LEVELS}

    @property
    def flagged(self) -> tuple[tuple[str, str, float], ...]:
        """Ids and adjusted p-values of the pairs that are dependent at the level ``FLAGGED``, the smallest first."""
        order = np.argsort(self.adjusted, kind="stable")
        return tuple((*self.ids[at], float(self.adjusted[at])) for at in order if self.adjusted[at] <= FLAGGED)

    def to_json(self) -> Document:
        excess = Spread.of(self.excess)
        return {**super().to_json(), "excess": excess and excess.to_json()}


@dataclass(frozen=True, eq=False)
class IndependenceStudy(StudyResult, derived=("independent",)):
    """Tests of pairs of members, and of pairs of one origin; drawn as ``independence.png``.

    ``members`` are usable ones and ``origins`` the members or modes that they stem from. ``groups`` are those whose
    neurons are permuted, with ``log10_permutations`` permutations in all, of which ``permutations`` were drawn beside
    the identity. ``different`` are pairs of different origins, ``same`` the first and last checkpoint of each origin
    that has several, None where none has. ``least`` is the smallest adjusted p-value that one pair could have.
    """

    file: ClassVar[str] = "independence.json"

    name: str
    members: int
    origins: int
    groups: tuple[str, ...]
    log10_permutations: float
    permutations: int
    disjoint: bool
    different: TestedPairs
    same: TestedPairs | None
    least: float
    seed: int

    @property
    def independent(self) -> bool:
        """Whether nothing shows that members of different origins depend on each other."""
        uniform = self.different.uniform
        return not self.different.flagged and (uniform is None or uniform >= UNIFORM)

    def verdict(self) -> str:
        """Return a sentence on members of different origins, by the tests."""
        tested, uniform = counted(len(self.different.p), "pair"), self.different.uniform
        together = "" if uniform is None else f" (p {uniform:.2g} for all together)"
        if self.independent:
            return f"No sign that members share their initial weights, in {tested}{together}."
        if self.different.flagged:
            found = counted(len(self.different.flagged), "pair")
            return f"{found} of {len(self.different.p):,} share their initial weights{together}."
        return f"Members share their initial weights: p-values of {tested} are too small{together}."

    def _lines(self) -> Iterator[RenderableType]:
        stem = "" if self.origins == self.members else f" of {counted(self.origins, 'origin')}"
        if self.log10_permutations < 6:
            total = f"{round(10**self.log10_permutations):,}"
        else:
            total = f"10^{self.log10_permutations:.1f}"
        yield facts(
            [
                ("zoo", f"{self.name}: {counted(self.members, 'member')}{stem}"),
                ("permutations", f"{self.permutations:,} of {total}, of {printable(', '.join(self.groups))}"),
                ("pairs", "disjoint" if self.disjoint else "all; those that share a member depend on each other"),
            ]
        )
        yield ""
        yield self._table()
        yield ""
        yield self.verdict()
        if not self.different.flagged and self.least > FLAGGED:
            yield (
                f"One pair alone cannot stand out: its adjusted p-value is {self.least:.2g} at least, "
                f"above {FLAGGED:g}. Fewer pairs (--pairs, --where) have smaller ones."
            )
        if self.different.flagged:
            yield self._flagged_table()

    def _table(self) -> Table:
        table = columns("checkpoints", "pairs", *(f"p <= {level:g}" for level in LEVELS), "all together", "stand out")
        named = {"different origins": self.different, "one origin, first and last": self.same}
        for name, tested in named.items():
            if tested is None:
                continue
            shares = [f"{100 * share:.1f} %" for share in tested.below.values()]
            uniform = "-" if tested.uniform is None else f"p {tested.uniform:.2g}"
            table.add_row(name, f"{len(tested.p):,}", *shares, uniform, f"{len(tested.flagged):,}")
        return table

    def _flagged_table(self) -> Table:
        table = columns("not independent", "and", "adjusted p")
        for first, second, p in self.different.flagged[:SHOWN]:
            table.add_row(printable(first), printable(second), f"{p:.2g}")
        return table


@checked
def independence(
    zoo: Zoo,
    *,
    pairs: Count = MAX_PAIRS,
    disjoint: bool = True,
    permutations: Annotated[int, Within(99, 2**20)] = 999,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> IndependenceStudy:
    """Test whether members started from independent random weights, pair by pair and all together.

    An exact permutation test from the weights alone (arXiv 2502.12292): corresponding neurons of two members are no
    more similar than others if the members are independent. Draws around one mode have one origin, and so have the
    steps of one member; one checkpoint of each origin, its last one, is compared with others, because repeated use of
    a pair of modes would look like dependence.

    Parameters
    ----------
    zoo
        checkpoints of two origins or more.
    pairs
        the greatest number of pairs.
    disjoint
        pair every origin with one other at random. Otherwise with every other one, and the p-values, which then depend
        on each other, are not judged together.
    permutations
        drawn for each pair.
    seed
        of pairs and permutations.
    progress
        called with the pairs tested, and all of them.

    Raises
    ------
    ZooError
        There are fewer than two origins, or the checkpoints are Gaussians.
    SymmetryError
        No symmetry table is known, or the table has fewer than 100 permutations of neurons.

    Notes
    -----
    0.2 ms a pair of OptuNets and 999 permutations, on one core. Up to ``REFINED`` pairs with a p-value up to 0.01 are
    tested again with 100 permutations a pair or more, as far as 64 MiB hold these. A member that somebody permuted
    after training looks independent of the original; ``ckptzoo.derive.dedupe`` finds such copies. Tested in
    tests/studies/test_independence.py.

    Examples
    --------
    >>> from ckptzoo.studies.independence import independence
    >>> found = independence(ckptzoo.open("cards/mnist-optunet-trajectories"))
    >>> found.independent, found.same.below["0.01"]
    (True, 0.59375)
    """
    usable = zoo.take(usable_networks(zoo))
    first, last = first_and_last(usable)
    if len(last) < 2:
        step = "Select other members too: steps of one member, and draws around one mode, have one start."
        raise ZooError(Problem(zoo.name, "independent members or modes", "two or more", str(len(last)), step))
    test = IndependenceTest(usable, permutations=permutations, seed=seed)
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    between = last[random_pairs(len(last), pairs, disjoint, rng)]
    within = np.stack([first, last], 1)[first != last][:pairs]
    advance = counter(len(between) + len(within), progress)
    kinds = (between, within)
    tested = [test.of(usable, usable, some, advance=advance) for some in kinds]
    different, same = (
        _tested(usable, some, found, test, disjoint=disjoint or some is within)
        for some, found in zip(kinds, tested, strict=True)
    )
    # 10**log10 is above the greatest float from 171 neurons on
    elements = min(10 ** min(test.neurons.log10, 18), 1 + _refined_permutations(len(between), test))
    return IndependenceStudy(
        name=zoo.name,
        members=len(usable.last_steps()),
        origins=len(last),
        groups=test.neurons.groups,
        log10_permutations=test.neurons.log10,
        permutations=len(test.orders[0]) - 1,
        disjoint=disjoint,
        different=different,
        same=same if len(within) else None,
        least=min(1.0, len(between) / elements),
        seed=seed,
    )


def _refined_permutations(pairs: int, test: IndependenceTest) -> int:
    """Return the number of permutations with which one of ``pairs`` can stand out, as far as memory allows."""
    return min(max(int(pairs / FLAGGED), len(test.orders[0]) - 1), test.most, 2**20)


def _tested(zoo: Zoo, rows: Rows, found: Independence, test: IndependenceTest, *, disjoint: bool) -> TestedPairs:
    """Return the tests of some pairs, the smallest p-values refined for Holm's procedure."""
    p = found.p.copy()
    # a p-value of other permutations in place of one that was small is valid: small ones come from both together
    small = np.argsort(p, kind="stable")[:REFINED]
    small = small[p[small] <= FLAGGED]
    more = _refined_permutations(len(p), test)
    if len(small) and more > len(test.orders[0]):
        p[small] = test.of(zoo, zoo, rows[small], permutations=more).p
    ids = zoo.ids
    return TestedPairs(
        ids=tuple((ids[one], ids[other]) for one, other in rows.tolist()),
        p=found.p,
        excess=found.excess,
        adjusted=holm(p),
        uniform=uniformity(found.p) if disjoint else None,
    )
