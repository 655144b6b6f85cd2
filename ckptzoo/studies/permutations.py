"""How does the order of a network's neurons move during training?"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.flags import usable_networks
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.studies.neuron_orders import Keys, NeuronOrder, keys_of, largest_weights, orders
from ckptzoo.studies.order_movement import AS, ENOUGH, LESS, MORE, SIGMAS, UNKNOWN, MemberMovements, Movement
from ckptzoo.studies.shared.result import StudyResult
from ckptzoo.studies.shared.selection import BATCH_BYTES, own_table, table_of
from ckptzoo.symmetry import GAUGES
from ckptzoo.symmetry.transpositions import random_transpositions
from ckptzoo.text import Progress, counted, printable

_ALL = 0.9995
"""Shares above this round to 100.0 %."""

Key = Literal["gauge", "largest-weight"]
"""The keys by which neurons are ordered: those of a variant's gauge, or the largest incoming weight as trained."""
Pair = tuple[int, int]
"""Two steps, the earlier one first."""


@dataclass(frozen=True, eq=False)
class KeptSteps:
    """The kept steps of the members of a zoo.

    ``steps`` ascend; ``rows`` are (M, S) row numbers in the zoo of each member's checkpoint at each step; -1 where
    there is none. Members are those with two steps or more, in the order of the zoo.
    """

    steps: tuple[int, ...]
    rows: NDArray[np.int64]


def compared(steps: Sequence[int]) -> dict[str, list[Pair]]:
    """Which of these ascending steps are compared: each with the one before, the first with all, all with the last."""
    first, last = steps[0], steps[-1]
    return {
        "from the one before": list(pairwise(steps)),
        "from the first": [(first, step) for step in steps[1:]],
        "to the last": [(step, last) for step in steps[:-1]],
    }


def kept_steps(zoo: Zoo) -> KeptSteps:
    """The kept steps of a zoo; raises ``ZooError`` if no member has two, or one has two checkpoints of one step."""
    names = zoo.column("member").combine_chunks().dictionary_encode()
    members, step_of_row = names.indices.to_numpy(), zoo.column("step").to_numpy()
    steps, columns = np.unique(step_of_row, return_inverse=True)
    count = len(names.dictionary)
    rows = np.full((count, len(steps)), -1, np.int64)
    # of two checkpoints at one step the later one stays, and their number is one less
    rows[members, columns] = np.arange(len(zoo))
    if (rows >= 0).sum() < len(zoo):
        overwritten = np.setdiff1d(np.arange(len(zoo)), rows)[0]
        what = f"member {names[int(overwritten)].as_py()!r}"
        expected, step = f"one checkpoint of step {step_of_row[overwritten]}", "Select one of them with --where."
        raise ZooError(Problem(zoo.name, what, expected, "several", step))
    several = (rows >= 0).sum(axis=1) > 1
    if not several.any():
        got = f"one step of each of {counted(count, 'member')}" if count else "no checkpoint with a step"
        step = "Write several values of step for one member, or build with --keep-steps 0,10,100."
        raise ZooError(Problem(zoo.name, "kept steps", "a member with two or more", got, step))
    used = (rows[several] >= 0).any(axis=0)
    return KeptSteps(tuple(steps[used].tolist()), rows[several][:, used])


@dataclass(frozen=True, eq=False)
class Permutations(StudyResult):
    """How the orders of a zoo's members move between their kept steps; drawn as ``permutations.png``.

    The gauge of ``variant`` orders neurons, ``raw`` where ``key`` is ``largest-weight``; ``members`` counts those with
    two kept steps or more, ``left_out`` checkpoints that diverged, are not in the gauge or have no step; ``explained``
    is the fraction of the orders that are those of the keys, from which the effect of noise is computed; ``movements``
    has every order between each step and the one before it, the first and the last, where members have both.
    """

    file: ClassVar[str] = "permutations.json"

    name: str
    variant: str
    key: Key
    architecture: str
    members: int
    left_out: int
    steps: tuple[int, ...]
    explained: float
    movements: tuple[Movement, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the orders, from input to output."""
        return tuple(dict.fromkeys(item.label for item in self.movements))

    def of(self, label: str) -> dict[str, list[Movement]]:
        """The movements of one order: from the step before, from the first and to the last."""
        by_pair = {(item.first, item.second): item for item in self.movements if item.label == label}
        return {
            name: [by_pair[pair] for pair in pairs if pair in by_pair] for name, pairs in compared(self.steps).items()
        }

    def _lines(self) -> Iterator[RenderableType]:
        varying = len({item.members for item in self.movements}) > 1
        for name, text in self._facts():
            yield f"{name}: {printable(text)}"
        for label in self.labels:
            yield ""
            yield from self._table(label, varying=varying)
        yield ""
        yield from self._words()

    def _facts(self) -> list[tuple[str, str]]:
        left = f"; {counted(self.left_out, 'checkpoint')} left out" if self.left_out else ""
        steps = ", ".join(f"{step:,}" for step in self.steps)
        return [
            ("zoo", f"{self.name}: {counted(self.members, 'member')} of {self.architecture}{left}"),
            ("gauge", self.variant) if self.key == "gauge" else ("order", "by the largest incoming weight as trained"),
            ("steps", steps),
        ]

    def _table(self, label: str, *, varying: bool) -> list[RenderableType]:
        n = next(item.n for item in self.movements if item.label == label)
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("steps", no_wrap=True)
        for name in ("members",) * varying + ("tau", "d", "noise", "normal", "transpositions"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("kept", no_wrap=True)
        for name, items in self.of(label).items():
            table.add_row(name)
            for item in items:
                figures = [
                    _with_error(item.tau, item.tau_se),
                    f"{item.distance:.2f}",
                    f"{item.noise:.3f}",
                    f"{item.normal:.3f}",
                    _with_error(item.transpositions, item.transpositions_se),
                    item.than_noise,
                ]
                table.add_row(f"  {item.first:,} to {item.second:,}", *[f"{item.members:,}"] * varying, *figures)
        random = f"at random tau 0, {random_transpositions(n):.2f} transpositions"
        return [f"{printable(label)}, n = {n:,}: {random}", table]

    def _words(self) -> list[str]:
        """Say what the columns are and what they show."""
        lines = [
            "tau: Kendall's, between the ranks at two steps, mean over members ± standard error.",
            "d: how far the keys moved, in standard deviations of the keys.",
            "noise: the tau expected of keys that move so far independently of where they are.",
            "normal: the tau expected of normal keys with the correlation that was measured.",
            f"kept: as much of the order as by noise, within {SIGMAS} standard errors, or more or less.",
            "",
        ]
        than = Counter(item.than_noise for item in self.movements)
        number = len(self.movements)  # each pair once, though the tables list first and last step in two groups
        if than[AS]:
            lines.append(
                f"As by noise in {than[AS]:,} of {number:,}, as far as these members can tell: there tau says only "
                "that the keys moved so far."
            )
        if than[MORE]:
            lines.append(f"More in {than[MORE]:,} of {number:,}: noise of that size would have mixed the order more.")
        if than[LESS]:
            lines.append(
                f"Less in {than[LESS]:,} of {number:,}: the keys did not move independently of where they were. "
                "Noise would widen their spread; keys that keep theirs, as those of unit norm do, change places sooner."
            )
        if than[UNKNOWN]:
            lines.append(f"Unknown in {than[UNKNOWN]:,} of {number:,}: a comparison takes {ENOUGH} members or more.")
        for label in self.labels:
            items = self.of(label)["from the one before"]
            shares = [f"{item.changed:.0%} from {item.first:,} to {item.second:,}" for item in items]
            if len(shares) > 2:
                most = max(range(len(items)), key=lambda index: items[index].changed)
                at_most = [f"at most {shares[most]}"]
                between = at_most if 0 < most < len(shares) - 1 else []
                shares = [*(shares[:1] if most else at_most), *between, f"in the end {shares[-1]}"]
            lines.append(f"Orders of {printable(label)} that changed at all: {', '.join(shares)}.")
        normal = Counter(item.than_normal for item in self.movements)
        if known := number - normal[UNKNOWN]:
            lines.append(f"The correlation of the keys accounts for tau in {normal[AS]:,} of {known:,}.")
        if self.explained < _ALL:
            lines.append(f"{self.explained:.1%} of the orders are those of the keys; what is expected holds for these.")
        return lines


@checked
def permutations(
    zoo: Zoo, variant: str = "canonical", *, key: Key = "gauge", progress: Progress | None = None
) -> Permutations:
    r"""Follow the orders into which a key puts the channels of every member, from kept step to kept step.

    After arXiv 2310.08287, figure 4, with what to expect of keys that merely move: had every key x changed into
    x + d s e, with s the standard deviation of the keys and e independent and standard normal, tau would be

    .. math:: \frac{2}{\pi} \arcsin \frac{1}{\sqrt{1 + d^2}}

    on average (``ckptzoo.measure.ranks.noise_tau``). d is measured from the raw weights' keys.

    Parameters
    ----------
    zoo
        what ``ckptzoo.open`` gives, or a selection of it; checkpoints that diverged, are not in the gauge or have no
        step are left out.
    variant
        a derived variant whose gauge orders channels. It does not count with the key ``largest-weight``.
    key
        ``gauge``, what the variant's gauge sorts by, which scales do not change; or ``largest-weight``, the paper's:
        the largest of the incoming weights as trained (``ckptzoo.studies.neuron_orders.largest_weights``). That one
        needs no variant.
    progress
        called with the members done and the members in all.

    Raises
    ------
    SymmetryError
        The zoo has no symmetry table.
    ZooError
        No member has two kept steps, the variant is missing, lacks checkpoints or orders nothing, or there is no such
        key.

    Notes
    -----
    Reads the weights and permutations of all kept steps once, some members at a time: a few copies of 16 MB, or of
    the keys of one member. Members are the independent units; channels and steps of one member are not.

    Examples
    --------
    >>> from ckptzoo.studies.permutations import permutations
    >>> found = permutations(ckptzoo.open("cards/mnist-optunet-trajectories"))
    >>> found.members, found.steps[-1], found.labels
    (32, 56280, ('blocks of conv1 and conv2', 'conv2 within its 2 blocks'))
    """
    if key not in get_args(Key):
        raise ZooError(Problem(zoo.name, "key", " or ".join(get_args(Key)), repr(key), "Choose one of them."))
    largest = key == "largest-weight"
    if not largest and variant in GAUGES and "permutations" not in GAUGES[variant].collapses:
        names = [name for name, gauge in GAUGES.items() if "permutations" in gauge.collapses]
        step = f"Study {' or '.join(names)}."
        raise ZooError(
            Problem(zoo.name, f"variant {variant!r}", "a gauge that orders channels", "one that leaves them", step)
        )
    symmetry = own_table(zoo) if largest else table_of(zoo, variant)
    ordered = orders(symmetry)
    if not ordered:
        raise ZooError(Problem(zoo.name, "symmetry table", "channels to order", "none", "Study another zoo."))
    rows = usable_networks(zoo) & zoo.column("step").is_valid().to_numpy()
    if not largest:
        rows &= zoo.variant_metadata(variant)["gauged"].to_numpy()
    usable = zoo.take(rows)
    kept = kept_steps(usable)
    reader = _OrderReader(usable, None if largest else variant, symmetry, ordered)
    pairs = sorted({pair for listed in compared(kept.steps).values() for pair in listed})
    movements = reader.movements(kept, pairs, progress)
    return Permutations(
        name=zoo.name,
        variant=layout.RAW if largest else variant,
        key=key,
        architecture=zoo.arch.name,
        members=len(kept.rows),
        left_out=len(zoo) - len(usable),
        steps=kept.steps,
        explained=reader.explained,
        movements=movements,
    )


def _with_error(value: float, error: float | None) -> str:
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"


class _OrderReader:
    """Ranks and keys of checkpoints, some members at a time; those of the largest weights where ``variant`` is None."""

    def __init__(self, zoo: Zoo, variant: str | None, symmetry: Symmetry, ordered: tuple[NeuronOrder, ...]) -> None:
        self._zoo, self._symmetry, self._orders, self._largest = zoo, symmetry, ordered, variant is None
        self._keys_of: Callable[..., Keys] = largest_weights if variant is None else keys_of(variant)
        self._names = list(dict.fromkeys(action.tensor for action in symmetry.actions))
        self._element = None if variant is None else zoo.group_element(variant)
        self._batch = max(1, BATCH_BYTES // sum(zoo.arch[name].nbytes for name in self._names))
        self._same = self._seen = 0

    @property
    def explained(self) -> float:
        """The fraction of the orders that were read which are those of the keys."""
        return self._same / self._seen

    def movements(self, kept: KeptSteps, pairs: list[Pair], progress: Progress | None) -> tuple[Movement, ...]:
        """Every order between each pair of steps that some member has."""
        columns = {step: column for column, step in enumerate(kept.steps)}
        parts: dict[tuple[int, int, int], list[MemberMovements]] = {}
        # as many members as have a batch of checkpoints in all their steps; their ranks and keys are held together
        members = max(1, self._batch // len(kept.steps))
        for start in range(0, len(kept.rows), members):
            rows = kept.rows[start : start + members]
            present = np.unique(rows[rows >= 0])
            ranks, keys = self._read(present)
            for pair in pairs:
                both = rows[:, [columns[step] for step in pair]]
                first, second = np.searchsorted(present, both[(both >= 0).all(axis=1)]).T
                if not len(first):
                    continue
                for order, (rank, key) in enumerate(zip(ranks, keys, strict=True)):
                    part = MemberMovements.of((rank[first], rank[second]), (key[first], key[second]))
                    parts.setdefault((order, *pair), []).append(part)
            if progress is not None:
                progress(start + len(rows), len(kept.rows))
        results: list[Movement] = []
        for (index, first, second), of_members in sorted(parts.items(), key=lambda item: item[0]):
            order = self._orders[index]
            in_a_member = 1 if order.blocks else order.g
            movement = MemberMovements.join(of_members).movement(order.label, order.n, in_a_member, (first, second))
            results.append(movement)
        return tuple(results)

    def _read(self, rows: NDArray[np.int64]) -> tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]:
        """The ranks and the keys of every order, (R, v, n) each."""
        batches: list[list[NDArray[np.float64]]] = [[] for _ in self._orders]
        for start in range(0, len(rows), self._batch):
            batch = rows[start : start + self._batch]
            by_group = self._keys_of({name: self._zoo[name][batch] for name in self._names}, self._symmetry)
            for listed, order in zip(batches, self._orders, strict=True):
                listed.append(order.keys(by_group[order.group], largest=self._largest))
        keys = [np.concatenate(listed) for listed in batches]
        # argsort of argsort are ranks; equal keys keep their raw order, as stable says
        by_keys = [np.argsort(np.argsort(key, axis=2, kind="stable"), axis=2) for key in keys]
        ranks = by_keys
        if self._element is not None:
            ranks = [order.ranks(self._element[f"{order.group}.perm"][rows]) for order in self._orders]
        for rank, by_key in zip(ranks, by_keys, strict=True):
            same = (by_key == rank).all(axis=2)
            self._same, self._seen = self._same + int(same.sum()), self._seen + same.size
        return ranks, keys
