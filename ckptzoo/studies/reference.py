"""Do the chains of a reference posterior meet their criteria, and how near do other methods come to it?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo.arguments import Count, Seed, Size, Within, checked
from ckptzoo.console import columns, facts
from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.flags import usable_networks
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure import convergence, tail_ess
from ckptzoo.measure.predictions import accuracy, nll
from ckptzoo.schema import layout
from ckptzoo.schema.documents import JsonFields
from ckptzoo.studies.chains import LEAST_DRAWS, are_comparable, chain_rows
from ckptzoo.studies.discrepancy import mmd
from ckptzoo.studies.ensembles import scored_sets
from ckptzoo.studies.shared.draws import draw_groups, summed_predictions
from ckptzoo.studies.shared.result import Spread, StudyResult
from ckptzoo.studies.shared.selection import evenly, labels_of, parameter_names, table_of
from ckptzoo.symmetry.identity.invariants import invariants
from ckptzoo.text import Progress, counted, counter, printable

LARGEST_R_HAT = 1.01
"""The R-hat below which chains have mixed (Vehtari et al., arXiv 1903.08008; the criterion of posteriordb)."""
INPUTS = 64
"""The inputs whose logits are judged, the first of a set."""
CANONICAL = "canonical"
FLOOR, ENSEMBLE = "other chains", "ensemble"
"""The labels of draws of half of the chains, compared with those of the other half, and of independent members."""
FIGURES = {
    "agreement": "agreement",
    "variation": "total variation",
    "mmd": "MMD as sampled",
    "canonical": "MMD canonical",
    "accuracy": "accuracy",
    "nll": "NLL",
}
"""All in hundredths: of inputs, of probability, 100 MMD², of nats."""
Values = NDArray[np.float64]
Chains = list[NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Criterion(JsonFields, without=("r_hats", "shuffled"), derived=("numbers", "r_hat", "above", "by_chance", "met")):
    """The convergence of some numbers of every draw.

    ``r_hats`` has the (n,) R-hat of all that are not the same in every draw, ascending, and ``shuffled`` the largest
    of each of some random orders of all draws. ``bulk`` and ``tail`` are effective draws, of all chains together.
    """

    of: str
    r_hats: Values
    shuffled: Values
    bulk: Spread
    tail: Spread

    @property
    def numbers(self) -> int:
        return len(self.r_hats)

    @property
    def r_hat(self) -> float:
        """The largest."""
        return float(self.r_hats[-1])

    @property
    def above(self) -> float:
        """The share that is not below ``LARGEST_R_HAT``."""
        return float((self.r_hats >= LARGEST_R_HAT).mean())

    @property
    def by_chance(self) -> float | None:
        """The median of the largest R-hat of random orders; None where none were tried."""
        return float(np.median(self.shuffled)) if len(self.shuffled) else None

    @property
    def met(self) -> bool:
        """Whether every R-hat is below ``LARGEST_R_HAT``."""
        return self.r_hat < LARGEST_R_HAT


@dataclass(frozen=True)
class Nearness(JsonFields):
    """How near a method comes to the reference.

    ``label`` has the method and the settings that distinguish it from others of its name; ``modes`` is ``one`` or
    ``multi``; a replicate has ``mode_count`` modes and ``draws`` checkpoints. ``figures`` are those of ``FIGURES``,
    over replicates.
    """

    label: str
    modes: str
    mode_count: int
    draws: int
    figures: dict[str, Spread]


@dataclass(frozen=True, eq=False)
class ReferenceStudy(StudyResult, derived=("met",)):
    """Criteria of the chains, and the nearness of others to them; drawn as ``reference.png``.

    ``set`` has the ``inputs`` on which predictions are compared; the logits of ``judged`` of them are judged.
    ``accuracy`` and ``nll`` are those of the reference's mean prediction, in hundredths.
    """

    file: ClassVar[str] = "reference.json"

    name: str
    set: str
    inputs: int
    judged: int
    chains: int
    draws: int
    criteria: tuple[Criterion, ...]
    accuracy: float
    nll: float
    entries: tuple[Nearness, ...]
    seed: int

    @property
    def met(self) -> bool:
        """Whether all criteria are met."""
        return all(item.met for item in self.criteria)

    def verdict(self) -> str:
        """Return a sentence on the criteria."""
        if self.met:
            return f"R-hat is below {LARGEST_R_HAT} for every number."
        parts = [
            f"{item.r_hat:.3f} among {item.of}"
            + ("" if item.by_chance is None else f" ({item.by_chance:.3f} for the same draws in random order)")
            for item in self.criteria
            if not item.met
        ]
        return f"R-hat is not below {LARGEST_R_HAT} for every number: it reaches {' and '.join(parts)}."

    def _lines(self) -> Iterator[RenderableType]:
        yield facts(
            [
                ("reference", f"{self.name}: {counted(self.chains, 'chain')} of {counted(self.draws, 'draw')}"),
                ("inputs", f"{self.set}: {self.inputs:,}; logits of the first {self.judged}"),
                ("together", f"accuracy {self.accuracy:.2f} %, {self.nll / 100:.3f} nats"),
            ]
        )
        yield ""
        table = columns("of", "numbers", "largest R-hat", "shuffled", "least bulk ESS", "median", "least tail ESS")
        for item in self.criteria:
            shuffled = "-" if item.by_chance is None else f"{item.by_chance:.4f}"
            sizes = (f"{value:,.0f}" for value in (item.bulk.least, item.bulk.median, item.tail.least))
            table.add_row(item.of, f"{item.numbers:,}", f"{item.r_hat:.4f}", shuffled, *sizes)
        yield table
        yield ""
        yield self.verdict()
        if self.entries:
            yield "\nnearness to the reference, in hundredths: of inputs, of probability, 100 MMD², of nats"
            yield self._nearness()

    def _nearness(self) -> Table:
        table = columns("method", "modes", "draws", "replicates", *FIGURES.values())
        for entry in self.entries:
            cells = [_cell(entry.figures.get(name)) for name in FIGURES]
            count = max(spread.count for spread in entry.figures.values())
            table.add_row(printable(entry.label), f"{entry.mode_count}", f"{entry.draws:,}", f"{count}", *cells)
        return table


@checked
def reference(
    zoo: Zoo,
    samples: Sequence[Zoo] = (),
    set: str | None = None,
    *,
    modes: Annotated[int, Within(2)] = 10,
    draws: Count = 10,
    replicates: Count = 3,
    shuffles: Size = 9,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> ReferenceStudy:
    """Judge the chains of a reference posterior, and compare the draws of other methods with theirs.

    Criteria as those of posteriordb: R-hat below ``LARGEST_R_HAT`` and effective sample sizes, of two kinds of
    numbers. Functions: the logits of the first ``INPUTS`` inputs. Weights, which permute: sums that no symmetry changes
    (``ckptzoo.symmetry.identity.invariants``), and the mean square of every tensor.

    Nearness as in arXiv 2104.14421: the share of inputs on which the mean predictions name the same class, and the mean
    total variation distance of their probabilities; and the discrepancy in weights, as sampled and canonical
    (``ckptzoo.studies.mmd``, bandwidths from the reference alone). As a floor, draws of half of the chains are compared
    with the other half, at random for each replicate.

    Parameters
    ----------
    zoo
        draws of chains, which the columns ``mode`` and ``step`` tell apart and order, in the variant ``canonical`` too
        and with predictions.
    samples
        zoos with the same: draws that name their method, as in ``ckptzoo.studies.posteriors``, or independent members,
        of which those are left out at which a chain of the reference started.
    set
        the predictions to compare; by default the first of the reference that have labels.
    modes, draws
        of the entry with several modes: how many, and the draws of each; an ensemble has as many members.
    replicates
        the greatest number of each entry.
    shuffles
        random orders of the draws, which show what R-hat would be if chains did not differ.
    seed
        of orders and halves.
    progress
        called with what is done and what there is to do.

    Raises
    ------
    ZooError
        There are fewer than two chains, or chains of different lengths; predictions or the variant are missing: the
        message has the command that makes them.
    MissingExtraError
        arviz-stats is not installed.

    Notes
    -----
    2 ms a logit and order, and two discrepancies a replicate. Tested in ``tests/studies/test_reference.py``.

    Examples
    --------
    >>> from ckptzoo.studies.reference import reference
    >>> found = reference(ckptzoo.open("cards/mnist14-mlp-reference"), shuffles=0)
    >>> found.chains, found.draws, [item.of for item in found.criteria]
    (8, 50, ['logits', 'invariants of weights'])
    """
    own, _ = scored_sets(zoo, set, ())
    chains, table = chain_rows(zoo), table_of(zoo, CANONICAL)
    if not are_comparable(chains):
        expected = f"two or more of equal length, {LEAST_DRAWS} draws or more"
        got = ", ".join(f"{len(rows):,}" for rows in chains[:8]) or "none"
        raise ZooError(Problem(zoo.name, "chains", expected, got, "Select draws of one method, as many of each mode."))
    jobs = [job for other in samples for job in _jobs(other, zoo, own, modes, draws, replicates)]
    step = counter(2 + (1 + sum(len(zoos) for _, _, zoos in jobs) if samples else 0), progress)
    generator = np.random.default_rng(np.random.SeedSequence(seed))
    logits = np.asarray(zoo.predictions(own).logits[:, :INPUTS], np.float64)
    judged = {"logits": logits.reshape(len(zoo), -1), "invariants of weights": _invariants(zoo, table)}
    criteria: list[Criterion] = []
    for name, numbers in judged.items():
        criteria.append(_criterion(name, chains, numbers, shuffles, generator))
        step()
    target, entries = _Target(zoo, own), list[Nearness]()
    if samples:
        count = min(modes * draws, len(zoo) // 2)
        halves = [_halves(chains, count, generator) for _ in range(replicates)]
        found = [_Target(zoo.take(rest), own).nearness(zoo.take(some)) for rest, some in halves]
        entries.append(Nearness(FLOOR, "multi", len(chains) // 2, count, _spreads(found)))
        step()
    for label, kind, zoos in jobs:
        found = list[dict[str, float]]()
        for one in zoos:
            found.append(target.nearness(one))
            step()
        named = zoos[0].column("mode").to_pylist()
        mode_count = len(zoos[0]) if label == ENSEMBLE else len({*named})
        entries.append(Nearness(label, kind, mode_count, len(zoos[0]), _spreads(found)))
    quality = target.quality(target.logs)
    return ReferenceStudy(
        name=zoo.name,
        set=own,
        inputs=len(target.logs),
        judged=logits.shape[1],
        chains=len(chains),
        draws=len(chains[0]),
        criteria=tuple(criteria),
        accuracy=quality["accuracy"],
        nll=quality["nll"],
        entries=tuple(entries),
        seed=seed,
    )


def _criterion(name: str, chains: Chains, numbers: Values, shuffles: int, generator: np.random.Generator) -> Criterion:
    stacked = np.stack(chains)
    r_hat, bulk = convergence(numbers[stacked])
    largest = [
        float(np.nanmax(convergence(numbers[generator.permuted(stacked.ravel()).reshape(stacked.shape)]).rhat))
        for _ in range(shuffles)
    ]
    of_bulk, of_tail = Spread.of(bulk), Spread.of(tail_ess(numbers[stacked]))
    if of_bulk is None or of_tail is None:
        what, step = f"{name} of draws", "Name another zoo or set."
        raise ZooError(Problem("reference", what, "numbers that vary", "the same in all", step))
    return Criterion(name, np.sort(r_hat[~np.isnan(r_hat)]), np.array(largest), of_bulk, of_tail)


def _invariants(zoo: Zoo, table: Any) -> Values:
    """Return (K, F) numbers of all draws that the order of neurons does not change."""
    names = parameter_names(zoo.arch)
    canonical = {name: np.asarray(zoo[name, CANONICAL][:]) for name in zoo.arch.names}
    squares = [np.square(np.asarray(zoo[name][:], np.float64)).reshape(len(zoo), -1).mean(1) for name in names]
    return np.column_stack([invariants(canonical, table).sketches, *squares])


def _halves(chains: Chains, count: int, generator: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the draws of half of the chains, chosen at random, and ``count`` of those of the others, evenly spaced."""
    order = generator.permutation(len(chains))
    first, second = (np.concatenate([chains[number] for number in np.sort(some)]) for some in np.array_split(order, 2))
    return first, second[evenly(len(second), count)]


def _jobs(
    other: Zoo, zoo: Zoo, own: str, modes: int, draws: int, replicates: int
) -> Iterator[tuple[str, str, list[Zoo]]]:
    """Yield the label, the kind and the replicates of every entry of a zoo."""
    scored_sets(other, own, ())
    table_of(other, CANONICAL)
    if any(name is not None for name in other.column("method").to_pylist()):
        for group in draw_groups(other):
            for kind, selections in (
                ("one", group.one(replicates)),
                ("multi", group.several(modes, draws, replicates)),
            ):
                if selections:
                    yield group.label, kind, [other.take(np.array(rows)) for rows in selections]
        return
    last, starts = other.last_steps(), {*zoo.column("mode").to_pylist()}
    members = last.column("member").to_pylist()
    free = np.flatnonzero(usable_networks(last) & ~np.isin(np.array(members, dtype=object), list(starts)))
    size = min(modes * draws, len(free))
    blocks = [free[start : start + size] for start in range(0, len(free) - size + 1, max(1, size))][:replicates]
    if size < 2:
        expected, step = "2 or more at which no chain started", "Name a larger zoo."
        raise ZooError(Problem(other.name, "usable members", expected, str(size), step))
    yield ENSEMBLE, "multi", [last.take(rows) for rows in blocks]


class _Target:
    """The draws that others are compared with."""

    def __init__(self, zoo: Zoo, own: str) -> None:
        self._zoo, self._own, self._labels = zoo, own, labels_of(zoo, own)
        self.logs = summed_predictions(zoo, own).logs

    def quality(self, logs: Values) -> dict[str, float]:
        """Return accuracy and negative log-likelihood of predictions, in hundredths."""
        return {
            "accuracy": 100 * float(accuracy(logs, self._labels)),
            "nll": 100 * float(nll(logs, self._labels)),
        }

    def nearness(self, zoo: Zoo) -> dict[str, float]:
        """Return ``FIGURES`` of a sample."""
        logs = summed_predictions(zoo, self._own).logs
        if logs.shape != self.logs.shape:
            expected, got = (str(array.shape) for array in (self.logs, logs))
            step = "Predict on the same inputs."
            raise ZooError(Problem(zoo.name, f"predictions on {self._own!r}", expected, got, step))
        distances = {
            name: 100 * mmd(self._zoo, zoo, variant, bandwidths="fixed").median
            for name, variant in (("mmd", layout.RAW), (CANONICAL, CANONICAL))
        }
        return {
            "agreement": 100 * float((logs.argmax(-1) == self.logs.argmax(-1)).mean()),
            "variation": 100 * float(np.abs(np.exp(logs) - np.exp(self.logs)).sum(-1).mean() / 2),
            **distances,
            **self.quality(logs),
        }


def _spreads(replicates: Sequence[dict[str, float]]) -> dict[str, Spread]:
    spreads = {name: Spread.of([figures[name] for figures in replicates]) for name in FIGURES}
    return {name: spread for name, spread in spreads.items() if spread is not None}


def _cell(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return f"{spread.mean:.1f}" + (f" ± {spread.sd:.1f}" if spread.count > 1 else "")
