"""How does the order of a network's neurons move during training?

The keys by which gauges order channels, from raw weights.

Which steps of which members a zoo keeps.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.table import Table

from ckptzoo.errors import ZooError
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.ranks import random_transpositions
from ckptzoo.schema.symmetry import Like, Symmetry
from ckptzoo.studies.inventory import sound
from ckptzoo.studies.movement import AS, ENOUGH, LESS, MORE, SIGMAS, UNKNOWN, Movement, OrderMovement
from ckptzoo.studies.shared.report import need_matplotlib, write
from ckptzoo.studies.shared.weights import BATCH_BYTES, NeuronOrder, orders, table_of
from ckptzoo.symmetry import GAUGES, canonicalize, ordering_keys
from ckptzoo.symmetry.arrays import Stacked, by_channel, positions
from ckptzoo.text import Progress, counted, printable

Keys = dict[str, NDArray[np.float64]]
"""Group id to (K, n), for raw channels in their raw order; groups that are ``Like`` another are left out."""


def keys_of(variant: str) -> Callable[[Stacked, Symmetry], Keys]:
    """The keys that decide a variant's orders: first weights for ``first-weight``, else those of ``canonical``."""
    return first_weights if variant == "first-weight" else ordering_keys


def first_weights(weights: Stacked, symmetry: Symmetry) -> Keys:
    """The first of each channel's incoming weights of unit norm, the channels before it in order.

    Parameters
    ----------
    weights : raw tensors by name, (K, *shape), all finite.

    Raises
    ------
    SymmetryError
        The gauge ``first-weight`` is not defined for the table.
    """
    made = canonicalize(weights, symmetry, gauge="first-weight")
    found: Keys = {}
    for group in symmetry.groups:
        if isinstance(group.perm, Like):
            continue
        writers = [
            action
            for action in symmetry.actions
            if action.exponent == 1 and any(item.group == group.id for item in action.segments)
        ]
        action = min(writers, key=lambda action: action.role not in ("out", "gain"))
        channels = by_channel(np.asarray(made.weights[action.tensor]), action)
        places = next(places for name, places in positions(action, symmetry) if name == group.id)
        first = channels.reshape(len(channels), channels.shape[1] * channels.shape[2], -1)[:, places[:, 0], 0]
        keys = np.empty(first.shape)
        np.put_along_axis(keys, made.element.perms[group.id], first.astype(np.float64), 1)
        found[group.id] = keys
    return found


Pair = tuple[int, int]
"""Two steps, the earlier one first."""


@dataclass(frozen=True, eq=False)
class Kept:
    """The kept steps of the members of a zoo.

    Parameters
    ----------
    steps : all of them, ascending.
    rows : (M, S) the checkpoint of each member at each step, as its place in the zoo; -1 where there is none. Members
        are those with two steps or more, in the order of the zoo.
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


def kept(zoo: Zoo) -> Kept:
    """The kept steps of a zoo, all of whose checkpoints have a step.

    Raises
    ------
    ZooError
        No member has two, or one has two checkpoints of one step.
    """
    names = zoo.metadata["member"].combine_chunks().dictionary_encode()
    members, every = names.indices.to_numpy(), zoo.metadata["step"].to_numpy()
    steps, places = np.unique(every, return_inverse=True)
    count = len(names.dictionary)
    rows = np.full((count, len(steps)), -1, np.int64)
    rows[members, places] = np.arange(len(zoo))
    if (rows >= 0).sum() < len(zoo):
        again = np.setdiff1d(np.arange(len(zoo)), rows)[0]
        raise ZooError(
            f"{zoo.name}: member {names[int(again)].as_py()!r}: expected one checkpoint of step {every[again]}, got "
            "several. Select one of them with --where."
        )
    several = (rows >= 0).sum(axis=1) > 1
    if not several.any():
        raise ZooError(
            f"{zoo.name}: kept steps: expected a member with two or more, got one step of each of {count} members. "
            "Build a zoo that keeps more: python -m builders build ... --keep-steps 0,10,100."
        )
    used = (rows[several] >= 0).any(axis=0)
    return Kept(tuple(steps[used].tolist()), rows[several][:, used])


_ALL = 0.9995
"""More than this rounds to all."""


@dataclass(frozen=True, eq=False)
class Permutations:
    """How the orders of a zoo's members move between their kept steps.

    Parameters
    ----------
    members : those with two kept steps or more.
    left_out : checkpoints that diverged, are not in the gauge or have no step.
    steps : the kept steps, ascending.
    explained : fraction of the orders that are those of the keys; what noise would do is worked out from the keys.
    movements : every order between each step and the one before it, the first and the last, where members have both.
    """

    name: str
    variant: str
    architecture: str
    members: int
    left_out: int
    steps: tuple[int, ...]
    explained: float
    movements: tuple[Movement, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """What is ordered, from input to output."""
        return tuple(dict.fromkeys(item.label for item in self.movements))

    def of(self, label: str) -> dict[str, list[Movement]]:
        """The movements of one order: from the step before, from the first and to the last."""
        held = {(item.first, item.second): item for item in self.movements if item.label == label}
        return {name: [held[pair] for pair in pairs if pair in held] for name, pairs in compared(self.steps).items()}

    def to_json(self) -> dict[str, Any]:
        """Every figure by name."""
        return {
            "name": self.name,
            "variant": self.variant,
            "architecture": self.architecture,
            "members": self.members,
            "left_out": self.left_out,
            "steps": list(self.steps),
            "explained": self.explained,
            "movements": [item.to_json() for item in self.movements],
        }

    def print(self, console: Console | None = None) -> None:
        """Print a table for each order and what they say, on a rich console, by default the standard output."""
        varying = len({item.members for item in self.movements}) > 1
        lines: list[Any] = [f"{name}: {printable(text)}" for name, text in self._facts()]
        for label in self.labels:
            lines += ["", *self._table(label, varying=varying)]
        (console or Console()).print(Group(*lines, "", *self._words()), markup=False, highlight=False)

    def plot(self, folder: str | Path) -> list[Path]:
        """Write ``permutations.png`` and ``permutations.json``.

        Equal results give equal bytes at equal versions of matplotlib.

        Parameters
        ----------
        folder : made where it is missing; files of these names are replaced.

        Raises
        ------
        MissingExtraError
            matplotlib is not installed.
        """
        need_matplotlib()
        from ckptzoo.studies.plots import permutations as pictures

        held = {label: self.of(label) for label in self.labels}
        title = f"{self.name}, {self.variant}"
        figures = {"permutations.png": pictures.orders(title, self.members, held)}
        return write(folder, figures, "permutations.json", self.to_json())

    def _facts(self) -> list[tuple[str, str]]:
        left = f"; {counted(self.left_out, 'checkpoint')} left out" if self.left_out else ""
        steps = ", ".join(f"{step:,}" for step in self.steps)
        return [
            ("zoo", f"{self.name}: {counted(self.members, 'member')} of {self.architecture}{left}"),
            ("gauge", self.variant),
            ("steps", steps),
        ]

    def _table(self, label: str, *, varying: bool) -> list[Any]:
        one = next(item for item in self.movements if item.label == label)
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
        random = f"at random tau 0, {random_transpositions(one.n):.2f} transpositions"
        return [f"{printable(label)}, n = {one.n:,}: {random}", table]

    def _words(self) -> list[str]:
        """What the columns are and what they say."""
        lines = [
            "tau: Kendall's, between the ranks at two steps, mean over members ± standard error.",
            "d: how far the keys moved, in standard deviations of the keys.",
            "noise: the tau expected of keys that move so far independently of where they are.",
            "normal: the tau expected of normal keys with the correlation that was measured.",
            f"kept: as much of the order as by noise, within {SIGMAS} standard errors, or more or less.",
            "",
        ]
        than = Counter(item.than_noise for item in self.movements)
        number = len(self.movements)
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
        normal = Counter(item.than_normal for item in self.movements)
        if known := number - normal[UNKNOWN]:
            lines.append(f"The correlation of the keys accounts for tau in {normal[AS]:,} of {known:,}.")
        if self.explained < _ALL:
            lines.append(f"{self.explained:.1%} of the orders are those of the keys; what is expected holds for these.")
        return lines


def permutations(zoo: Zoo, variant: str = "canonical", *, progress: Progress | None = None) -> Permutations:
    r"""Follow the orders into which a gauge puts the channels of every member, from kept step to kept step.

    After arXiv 2310.08287, figure 4, with what to expect of keys that merely move: had every key x changed into
    x + d s e, with s the standard deviation of the keys and e independent and standard normal, tau would be

    .. math:: \frac{2}{\pi} \arcsin \frac{1}{\sqrt{1 + d^2}}

    on average (``ckptzoo.measure.ranks.noise_tau``). d is measured from the raw weights' keys.

    Parameters
    ----------
    zoo : what ``ckptzoo.open`` gives, or a selection of it; checkpoints that diverged, are not in the gauge or have
        no step are left out.
    variant : a derived variant whose gauge orders channels.
    progress : called with the members done and the members in all.

    Raises
    ------
    SymmetryError
        The zoo has no symmetry table.
    ZooError
        No member has two kept steps, or the variant is missing, lacks checkpoints or orders nothing.

    Notes
    -----
    Reads the weights and permutations of all kept steps once, some members at a time: a few copies of 16 MB, or of
    the keys of one member. Members are the independent units; channels and steps of one member are not.
    """
    if variant in GAUGES and "permutations" not in GAUGES[variant].collapses:
        names = [name for name, gauge in GAUGES.items() if "permutations" in gauge.collapses]
        raise ZooError(
            f"{zoo.name}: variant {variant!r}: expected a gauge that orders channels, got one that leaves them. "
            f"Study {' or '.join(names)}."
        )
    symmetry = table_of(zoo, variant)
    ordered = orders(symmetry)
    if not ordered:
        raise ZooError(f"{zoo.name}: symmetry table: expected channels to order, got none. Study another zoo.")
    gauged = zoo.variant_metadata(variant)["gauged"].to_numpy()
    usable = gauged & sound(zoo.metadata) & zoo.metadata["step"].is_valid().to_numpy()
    good = zoo.take(usable)
    found = kept(good)
    work = _OrderReader(good, variant, symmetry, ordered)
    pairs = sorted({pair for listed in compared(found.steps).values() for pair in listed})
    measured = work.measure(found, pairs, progress)
    return Permutations(
        name=zoo.name,
        variant=variant,
        architecture=zoo.arch.name,
        members=len(found.rows),
        left_out=len(zoo) - len(good),
        steps=found.steps,
        explained=work.explained,
        movements=measured,
    )


def _with_error(value: float, error: float | None) -> str:
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"


class _OrderReader:
    """Ranks and keys of a zoo's checkpoints, some members at a time."""

    def __init__(self, zoo: Zoo, variant: str, symmetry: Symmetry, ordered: tuple[NeuronOrder, ...]) -> None:
        self._zoo, self._variant, self._symmetry, self._orders = zoo, variant, symmetry, ordered
        self._names = list(dict.fromkeys(action.tensor for action in symmetry.actions))
        self._element = zoo.group_element(variant)
        self._step = max(1, BATCH_BYTES // sum(zoo.arch[name].nbytes for name in self._names))
        self._same = self._seen = 0

    @property
    def explained(self) -> float:
        """Of what was read, the fraction of the orders that are those of the keys."""
        return self._same / self._seen

    def measure(self, found: Kept, pairs: list[tuple[int, int]], progress: Progress | None) -> tuple[Movement, ...]:
        """Every order between each pair of steps that some member has."""
        places = {step: at for at, step in enumerate(found.steps)}
        parts: dict[tuple[int, int, int], list[OrderMovement]] = {}
        members = max(1, self._step // len(found.steps))
        for start in range(0, len(found.rows), members):
            rows = found.rows[start : start + members]
            held = np.unique(rows[rows >= 0])
            ranks, keys = self._read(held)
            for pair in pairs:
                both = rows[:, [places[step] for step in pair]]
                first, second = np.searchsorted(held, both[(both >= 0).all(axis=1)]).T
                if not len(first):
                    continue
                for at in range(len(self._orders)):
                    item = OrderMovement.of((ranks[at][first], ranks[at][second]), (keys[at][first], keys[at][second]))
                    parts.setdefault((at, *pair), []).append(item)
            if progress is not None:
                progress(start + len(rows), len(found.rows))
        made: list[Movement] = []
        for (at, *pair), listed in sorted(parts.items()):
            order = self._orders[at]
            times = 1 if order.blocks else order.g
            made.append(OrderMovement.join(listed).movement(order.label, order.n, times, (pair[0], pair[1])))
        return tuple(made)

    def _read(self, rows: NDArray[np.int64]) -> tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]:
        """The ranks and the keys of every order, (R, v, n) each."""
        ranks = [order.ranks(self._element[f"{order.group}.perm"][rows]) for order in self._orders]
        pieces: list[list[NDArray[np.float64]]] = [[] for _ in self._orders]
        for start in range(0, len(rows), self._step):
            some = rows[start : start + self._step]
            found = keys_of(self._variant)({name: self._zoo[name][some] for name in self._names}, self._symmetry)
            for piece, order in zip(pieces, self._orders, strict=True):
                piece.append(order.keys(found[order.group]))
        keys = [np.concatenate(piece) for piece in pieces]
        for rank, key in zip(ranks, keys, strict=True):
            same = (np.argsort(np.argsort(key, axis=2, kind="stable"), axis=2) == rank).all(axis=2)
            self._same, self._seen = self._same + int(same.sum()), self._seen + same.size
        return ranks, keys
