"""Are planted permutations of hidden neurons still there after training?"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo import symmetry
from ckptzoo.arguments import NETWORK, Within, checked
from ckptzoo.console import columns, facts
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.flags import usable_networks
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.ranks import kendall_tau_b
from ckptzoo.schema.documents import Document
from ckptzoo.schema.metadata import parse_extra
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.studies.shared.networks import (
    ALIGNED,
    RAW,
    distances,
    evaluator_of,
    line_barriers,
    pairs_at_once,
    read_networks,
)
from ckptzoo.studies.shared.result import Spread, StudyResult, mean_and_sd
from ckptzoo.studies.shared.selection import own_table
from ckptzoo.symmetry import GroupElement
from ckptzoo.symmetry.transpositions import most_transpositions, transpositions_in_total
from ckptzoo.text import Progress, counted, counter

UNDONE = "planted undone"
"""The way in which the planted permutation is undone, as if nothing had changed in training."""
WAYS = (RAW, ALIGNED, UNDONE)
_BUILD = "python -m builders planted RECIPE --transpositions 0,1,2,4 --runs 5 --to ZOO"

Values = NDArray[np.float64]
Counts = NDArray[np.int64]
Weights = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class PlantedPair:
    """A reference and a member that started at its initial weights, permuted.

    ``run`` and ``transpositions`` are as in ``extra.planted``; ``element`` is one group element; ``rows`` maps each
    step that both have to the rows of both in the zoo.
    """

    run: int
    transpositions: int
    element: GroupElement
    rows: dict[int, tuple[int, int]]

    @property
    def last(self) -> int:
        """The last step that both have."""
        return max(self.rows)


@dataclass(frozen=True, eq=False)
class Transpositions(StudyResult, without=("found_at", "apart_at"), derived=("correlations",)):
    """The fate of planted permutations, over P pairs; drawn as ``transpositions.png``.

    ``left_out`` counts planted members without a pair: not finite, diverged, or without their reference. ``planted``
    has the (P,) numbers of planted transpositions, ``found`` those that bring the trained member closest to the
    reference, and ``apart`` those between the permutation that was found and the planted one. ``distances`` maps ways
    to (P,) Euclidean distances of the trained parameters. ``found_at`` and ``apart_at`` are (S, P) at the kept
    ``steps``, -1 where a pair has no such step; ``along`` is (P, T), the numbers between the reference and the network
    at ``points``, from 0, the reference, to 1, the member. ``barriers`` maps ways to (P,), of the loss in nats, and is
    empty without inputs.
    """

    file: ClassVar[str] = "transpositions.json"

    name: str
    architecture: str
    most: int
    left_out: int
    runs: Counts
    planted: Counts
    found: Counts
    apart: Counts
    distances: dict[str, Values]
    steps: tuple[int, ...]
    found_at: Counts
    apart_at: Counts
    points: Values
    along: Counts
    set: str | None
    inputs: int
    barriers: dict[str, Values]

    @property
    def numbers(self) -> list[int]:
        """The planted numbers, ascending."""
        return np.unique(self.planted).tolist()

    @property
    def rising(self) -> NDArray[np.bool_]:
        """(P,) where the number never falls from the reference to the member."""
        return np.all(np.diff(self.along, axis=1) >= 0, axis=1)

    @property
    def correlations(self) -> dict[str, float]:
        """Kendall's tau-b over the pairs: of planted and found numbers, and of found numbers and barriers."""
        both: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {"planted and found": (self.planted, self.found)}
        if self.barriers:
            both["found and barrier as trained"] = (self.found, self.barriers[RAW])
        taus = {
            name: float(kendall_tau_b(*pair))
            for name, pair in both.items()
            # NaN has no rank
            if len(pair[0]) > 1 and all(np.isfinite(values).all() for values in pair)
        }
        return {name: tau for name, tau in taus.items() if np.isfinite(tau)}

    def to_json(self) -> Document:
        """Every figure by name; of each pair, and means along the line for every planted number."""
        steps = [
            {"step": step, "found": found.tolist(), "apart": apart.tolist()}
            for step, found, apart in zip(self.steps, self.found_at, self.apart_at, strict=True)
        ]
        return {
            **super().to_json(),
            "barriers": {way: [_number(value) for value in values] for way, values in self.barriers.items()},
            "steps": steps,
            "along": {str(number): self.along[self.planted == number].mean(0).tolist() for number in self.numbers},
            "rising": int(self.rising.sum()),
        }

    def _lines(self) -> Iterator[RenderableType]:
        yield facts(self._facts())
        yield ""
        yield "transpositions, by what was planted"
        yield self._table({"found": self.found, "apart": self.apart}, 1)
        yield ""
        yield "distances of the weights, by what was planted"
        yield self._table(self.distances, 2)
        if self.barriers:
            yield ""
            yield "barriers of the loss in nats, by what was planted"
            yield self._table(self.barriers, 3)
        if len(self.steps) > 1:
            yield ""
            yield "by step"
            yield self._steps_table()
        yield ""
        yield from self._conclusions()

    def _facts(self) -> list[tuple[str, str]]:
        left = f"; {counted(self.left_out, 'planted member')} left out" if self.left_out else ""
        runs = counted(len(np.unique(self.runs)), "run")
        rows = [
            ("zoo", f"{self.name}: {counted(len(self.planted), 'pair')} of {runs}{left}"),
            ("architecture", f"{self.architecture}, at most {counted(self.most, 'transposition')}"),
        ]
        if self.set is not None:
            rows.append(("barriers", f"in nats, on {self.set}: {counted(self.inputs, 'input')}"))
        return rows

    def _table(self, values: Mapping[str, NDArray[Any]], digits: int) -> Table:
        table = columns("planted", "pairs", *values)
        for number in self.numbers:
            of = self.planted == number
            cells = [mean_and_sd(Spread.of(item[of]), digits) for item in values.values()]
            table.add_row(f"{number:,}", f"{of.sum():,}", *cells)
        return table

    def _steps_table(self) -> Table:
        table = columns("step", "pairs", "found as planted", "apart", "found less planted")
        for step, found, apart in zip(self.steps, self.found_at, self.apart_at, strict=True):
            of = found >= 0
            differences = [mean_and_sd(Spread.of(item[of]), 1) for item in (apart, found - self.planted)]
            table.add_row(f"{step:,}", f"{of.sum():,}", f"{(apart[of] == 0).sum():,}", *differences)
        return table

    def _conclusions(self) -> Iterator[str]:
        yield (
            "found: the permutation that brings the member closest to the reference, as transpositions. apart: between "
            "it and what was planted."
        )
        yield (
            f"The planted permutation is found again in {(self.apart == 0).sum():,} of {len(self.apart):,} pairs, "
            f"and as many transpositions as were planted in {(self.found == self.planted).sum():,}."
        )
        for name, tau in self.correlations.items():
            yield f"Kendall's tau of {name}: {tau:.2f}."
        yield (
            f"On the line from the reference to the member the number of transpositions never falls in "
            f"{self.rising.sum():,} of {len(self.rising):,} pairs."
        )


@checked
def transpositions(
    zoo: Zoo,
    labelled: Labelled | None = None,
    *,
    points: Annotated[int, Within(2, 2**31 - 1)] = 11,
    module: NETWORK | None = None,
    progress: Progress | None = None,
) -> Transpositions:
    r"""Look for planted permutations in trained networks.

    After arXiv 2401.00611, figure 2. A member was trained from :math:`g \theta_0` and its reference from
    :math:`\theta_0`, in another order of the examples (``python -m builders planted``). The permutation h that brings
    the trained member B closest to the trained reference A by weights (``ckptzoo.symmetry.align``) would be
    :math:`g^{-1}` had training not changed it. The number of transpositions of h is what is found, and that of h g how
    far it is from what was planted.

    Parameters
    ----------
    zoo
        what ``ckptzoo.open`` gives, or a selection of it, with rows that tell ``planted`` in ``extra``.
    labelled
        what losses on the line between A and B are measured on; None for no barriers.
    points
        on a line, both ends counted.
    module
        the network as a torch module, for architectures that are not in ``ckptzoo.archs``.
    progress
        called with the alignments and evaluations of pairs done, and all of them.

    Raises
    ------
    ZooError
        There is no pair whose networks are both finite and did not diverge, what rows tell of it is incomplete, or
        losses of Gaussians were asked for.
    SymmetryError
        No table of symmetries is known, or a planted permutation is none of it.

    Notes
    -----
    Time: that of an alignment a pair, kept step and point, and of T evaluations a pair and way. Memory: pairs of
    64 MiB with copies. Tested in tests/studies/test_transpositions.py.

    Examples
    --------
    Of a zoo made by
    ``python -m builders planted toy --runs 2 --transpositions 0,1 --keep-steps 0 --to zoos/planted``:

    >>> from ckptzoo.studies.transpositions import transpositions
    >>> found = transpositions(ckptzoo.open("zoos/planted"))
    >>> found.planted.tolist(), found.steps
    ([0, 0, 1, 1], (0, 400))
    >>> found.found_at[0].tolist()
    [0, 0, 1, 1]
    """
    evaluator = None if labelled is None else evaluator_of(zoo, labelled, module)
    table = own_table(zoo)
    pairs, left_out = planted_pairs(zoo, table)
    steps = sorted({step for pair in pairs for step in pair.rows})
    taus, size = np.linspace(0, 1, points), pairs_at_once(zoo.arch)
    total = sum(len(pair.rows) for pair in pairs) + len(pairs) * (points - 2 + (len(WAYS) if labelled else 0))
    advance = counter(total, progress)
    # -1 stands where a pair has no such step
    found_at, apart_at = np.empty((2, len(steps), len(pairs)), np.int64)
    found, apart = np.zeros((2, len(pairs)), np.int64)
    along = np.zeros((len(pairs), points), np.int64)
    apart_by = {way: np.zeros(len(pairs)) for way in WAYS}
    heights = {way: np.zeros(len(pairs)) for way in (WAYS if labelled else ())}
    for start in range(0, len(pairs), size):
        batch = np.arange(start, min(start + size, len(pairs)))
        some = [pairs[index] for index in batch]
        planted = _stacked([pair.element for pair in some])
        found_at[:, batch], apart_at[:, batch] = _at_earlier_steps(zoo, some, steps, planted, table, advance)
        last = np.array([pair.rows[pair.last] for pair in some])
        first, second = (read_networks(zoo, column) for column in last.T)
        aligned = symmetry.align(second, first, table)
        found[batch] = along[batch, -1] = transpositions_in_total(aligned.element, table)
        apart[batch] = transpositions_in_total(aligned.element.compose(planted), table)
        advance(len(batch))
        ways = {RAW: second, ALIGNED: aligned.weights, UNDONE: symmetry.apply(planted.inverse(), second, table)}
        for way, weights in ways.items():
            apart_by[way][batch] = distances(zoo.arch, first, weights)
            if evaluator is not None:
                heights[way][batch] = line_barriers(evaluator, first, weights, taus)
                advance(len(batch))
        # both ends are known: nothing at the reference, and what was found at the member
        for point in range(1, points - 1):
            between = symmetry.align(_between(first, second, taus[point]), first, table).element
            along[batch, point] = transpositions_in_total(between, table)
            advance(len(batch))
    ends = [steps.index(pair.last) for pair in pairs], np.arange(len(pairs))
    found_at[ends], apart_at[ends] = found, apart
    return Transpositions(
        name=zoo.name,
        architecture=zoo.arch.name,
        most=most_transpositions(table),
        left_out=left_out,
        runs=np.array([pair.run for pair in pairs]),
        planted=np.array([pair.transpositions for pair in pairs]),
        found=found,
        apart=apart,
        distances=apart_by,
        steps=tuple(steps),
        found_at=found_at,
        apart_at=apart_at,
        points=taus,
        along=along,
        set=None if labelled is None else labelled.set,
        inputs=0 if labelled is None else len(labelled.inputs),
        barriers=heights,
    )


def _at_earlier_steps(
    zoo: Zoo,
    pairs: list[PlantedPair],
    steps: list[int],
    planted: GroupElement,
    table: Symmetry,
    advance: Callable[..., None],
) -> Counts:
    """Transpositions that are found and that are apart at the steps before the last one of each of P pairs.

    Returns (2, S, P); -1 where a pair does not have the step, or it is the pair's last.
    """
    counts = np.full((2, len(steps), len(pairs)), -1, np.int64)
    for number, step in enumerate(steps):
        # the last step is aligned once, with what the line between both networks needs
        earlier = np.array([step in pair.rows and step < pair.last for pair in pairs])
        if earlier.any():
            rows = [pair.rows[step] for pair, has in zip(pairs, earlier, strict=True) if has]
            first, second = (read_networks(zoo, column) for column in np.array(rows).T)
            element = symmetry.align(second, first, table).element
            counts[0, number, earlier] = transpositions_in_total(element, table)
            counts[1, number, earlier] = transpositions_in_total(element.compose(planted[earlier]), table)
            advance(int(earlier.sum()))
    return counts


def planted_pairs(zoo: Zoo, table: Symmetry) -> tuple[list[PlantedPair], int]:
    """The pairs of a zoo whose networks are usable, by number and run, and how many planted members have none.

    Raises ``ZooError`` if there are none, or a row's record of them is incomplete, and ``SymmetryError`` if a
    permutation is not one of the table.
    """
    usable = usable_networks(zoo)
    rows_of: dict[str, dict[int, int]] = {}
    facts_of: dict[str, dict[str, Any]] = {}
    for row, entry in enumerate(zoo.metadata.select(["id", "member", "step", "extra"]).to_pylist()):
        planted = (parse_extra(entry["extra"]) or {}).get("planted")
        if planted is None or entry["member"] is None:
            continue
        needed = {"run", "transpositions", "permutations"}
        if not isinstance(planted, dict) or ("of" in planted and not needed <= planted.keys()):
            expected, step = f"of and {', '.join(sorted(needed))}", f"Build the zoo again: {_BUILD}."
            raise ZooError(Problem(zoo.name, f"planted of {entry['id']}", expected, str(planted)[:80], step))
        # of a network that diverged all steps say so
        rows_of.setdefault(entry["member"], {})
        if "of" in planted:
            # a reference names no other member
            facts_of[entry["member"]] = planted
        if usable[row]:
            rows_of[entry["member"]][entry["step"] or 0] = row
    pairs: list[PlantedPair] = []
    for member, planted in facts_of.items():
        own, reference = rows_of[member], rows_of.get(planted["of"], {})
        if both := {step: (reference[step], own[step]) for step in sorted(own.keys() & reference.keys())}:
            element = _planted_element(planted["permutations"], table)
            pairs.append(PlantedPair(int(planted["run"]), int(planted["transpositions"]), element, both))
    if not pairs:
        got = f"none of {counted(len(facts_of), 'planted member')}" if facts_of else "no planted members"
        expected, step = "a planted member and its reference, both finite", f"Build some: {_BUILD}."
        raise ZooError(Problem(zoo.name, "pairs", expected, got, step))
    return sorted(pairs, key=lambda pair: (pair.transpositions, pair.run)), len(facts_of) - len(pairs)


def _planted_element(perms: Mapping[str, list[int]], table: Symmetry) -> GroupElement:
    """The element that permutes some groups; groups that are like one of these follow it."""
    identity = GroupElement.identity(table, 1)
    moved = dict(identity.perms)
    for group in table.groups:
        leader = table.leader(group.id).id
        if leader in perms:
            moved[group.id] = np.array([perms[leader]])
    element = GroupElement(moved, identity.scales)
    element.check(table)
    return element


def _stacked(elements: list[GroupElement]) -> GroupElement:
    return GroupElement(
        {name: np.concatenate([element.perms[name] for element in elements]) for name in elements[0].perms},
        {name: np.concatenate([element.scales[name] for element in elements]) for name in elements[0].scales},
    )


def _between(first: Weights, second: Weights, tau: float) -> Weights:
    """The networks at tau of the lines, with the counters of the first."""
    return {
        # integers, such as BatchNorm's count of batches, have nothing between two values
        name: array if array.dtype.kind in "iub" else ((1 - tau) * array + tau * second[name]).astype(array.dtype)
        for name, array in first.items()
    }


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
