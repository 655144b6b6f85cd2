"""Do members differ alike in and out of distribution, or do some pairs collapse into one function?"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo.arguments import Seed, Size, checked
from ckptzoo.console import columns, facts
from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.flags import flags
from ckptzoo.loader.predictions import Predictions
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.pairwise import PairwiseInformation
from ckptzoo.schema.documents import Document
from ckptzoo.studies.pair_correlation import LEVEL, PairCorrelation, correlate_pairs
from ckptzoo.studies.shared.result import Spread, StudyResult
from ckptzoo.studies.shared.selection import default_sets, evenly, is_sample, predict_command
from ckptzoo.text import Progress, counted, printable

MAX_MEMBERS = 1000
"""More members than this are thinned out evenly; as many as in arXiv 2310.08287."""
READ_BYTES = 256 * 2**20
"""Bytes of logits that are read at a time, as far as whole inputs allow."""
SIGNIFICANT = 0.05
"""P-values up to this are called a correlation."""
ENOUGH = 17
"""Members from which pairs are called uncorrelated: where members differ in their level, the correlation by chance is
within 1.96 / sqrt(members - 1), which is 0.5 for them."""
_STEP = 500
"""The number of inputs between two calls of ``progress``."""
_NAMES = {"pearson": "Pearson", "spearman": "Spearman"}

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Collapse(StudyResult, without=("information", "ood_information")):
    """The mutual information of every pair of members on two sets of inputs; drawn as ``collapse.png``.

    ``set`` and ``ood`` name the networks' own inputs, and others; ``usable`` counts the members to choose from, each at
    its last step, and ``not_finite`` those left out; ``seed``, ``permutations`` and ``resamples`` belong to the test
    and the interval; ``information`` and ``ood_information`` are (P,) nats, for the P pairs i < j of members in order;
    ``correlations`` has ``pearson`` and ``spearman``, and is empty where either information is the same for all pairs.
    """

    file: ClassVar[str] = "collapse.json"

    name: str
    set: str
    ood: str
    inputs: int
    ood_inputs: int
    classes: int
    members: int
    usable: int
    not_finite: int
    seed: int
    permutations: int
    resamples: int
    information: Values
    ood_information: Values
    correlations: dict[str, PairCorrelation]

    @property
    def spreads(self) -> dict[str, Spread]:
        """The spread over the pairs, by set."""
        by_set = {self.set: Spread.of(self.information), self.ood: Spread.of(self.ood_information)}
        return {name: spread for name, spread in by_set.items() if spread is not None}

    def to_json(self) -> Document:
        """Every figure by name, without those of each pair."""
        spreads = [{"set": name, **spread.to_json()} for name, spread in self.spreads.items()]
        return {**super().to_json(), "pairs": len(self.information), "information": spreads}

    def _lines(self) -> Iterator[RenderableType]:
        yield facts(self._facts())
        yield ""
        yield "mutual information of label and member for the ensembles of two, in nats (at most log 2 = 0.693)"
        yield self._spreads_table()
        if self.correlations:
            yield ""
            yield self._correlations_table()
        yield ""
        yield from self._conclusions()

    def _facts(self) -> list[tuple[str, str]]:
        sample = f" of {self.usable:,}, evenly spaced" if self.members < self.usable else ""
        left_out = f"; {self.not_finite:,} not finite and left out" if self.not_finite else ""
        return [
            ("zoo", f"{self.name}: {counted(self.members, 'member')}{sample}{left_out}"),
            ("pairs", f"{len(self.information):,}"),
            ("in distribution", f"{self.set}: {counted(self.inputs, 'input')}, {self.classes:,} classes"),
            ("out of distribution", f"{self.ood}: {counted(self.ood_inputs, 'input')}"),
        ]

    def _spreads_table(self) -> Table:
        table = columns("set", "mean ± sd", "sd / mean", "least", "median", "most")
        for name, spread in self.spreads.items():
            share = f"{spread.sd / spread.mean:.1%}" if spread.mean else "-"
            ends = [f"{value:.4f}" for value in (spread.least, spread.median, spread.most)]
            table.add_row(printable(name), f"{spread.mean:.4f} ± {spread.sd:.4f}", share, *ends)
        return table

    def _correlations_table(self) -> Table:
        table = columns("correlation of the two", "value", f"{LEVEL:.0%} interval", "p")
        for name, item in self.correlations.items():
            interval = "-" if item.low is None or item.high is None else f"{item.low:.3f} to {item.high:.3f}"
            p_value = "-" if item.p_value is None else f"{item.p_value:.4f}"
            table.add_row(_NAMES[name], f"{item.value:.3f}", interval, p_value)
        return table

    def _conclusions(self) -> Iterator[str]:
        if not self.correlations:
            yield "The mutual information is the same for all pairs, so there is nothing to correlate."
            return
        if self.permutations or self.resamples:
            yield (
                f"p: two-sided, from {self.permutations:,} random exchanges of members on one side (Mantel), as pairs "
                f"share members. Interval: from {self.resamples:,} resamples of members."
            )
        pearson = self.correlations["pearson"]
        if pearson.p_value is None:
            return
        if pearson.p_value > SIGNIFICANT and self.members < ENOUGH:
            members = f"{self.members} members"
            yield f"A correlation is not resolved with {members}: that there is none takes {ENOUGH} or more."
        elif pearson.p_value > SIGNIFICANT:
            yield "No more correlation than by chance: how far two members differ on one set says nothing of the other."
        else:
            how = "more" if pearson.value > 0 else "less"
            own, other = printable(self.set), printable(self.ood)
            yield f"Pairs that differ more on {own} differ {how} on {other}: r^2 = {pearson.value**2:.0%}."


@checked
def collapse(
    zoo: Zoo,
    set: str | None = None,
    ood: str | None = None,
    *,
    permutations: Size = 1000,
    resamples: Size = 1000,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> Collapse:
    """Measure how far the members of each pair differ in what they predict, on two sets of inputs, and relate the two.

    After arXiv 2310.08287, section 5.1 and figures 3, 7 and 8: networks that are one function on the test set might
    still differ elsewhere. Functional collapse would be pairs of low mutual information.

    Parameters
    ----------
    zoo
        what ``ckptzoo.open`` gives, or a selection of it, with predictions. Each member's last step counts. Members
        whose weights or logits on either set are not finite are left out and counted.
    set
        predictions on the networks' own inputs; by default the first set of the zoo that has labels.
    ood
        predictions on other inputs; by default the first set without labels.
    permutations, resamples, seed
        as in ``ckptzoo.studies.pair_correlation.correlate_pairs``.
    progress
        called with the inputs, permutations and resamples done, and all of them.

    Raises
    ------
    UnknownNameError
        No such set.
    ZooError
        Predictions are missing, both sets are one, the networks have a single output, or fewer than three members are
        finite.

    Notes
    -----
    At most ``MAX_MEMBERS`` members, evenly spaced in the zoo's order. Costs are those of
    ``ckptzoo.measure.pairwise.PairwiseInformation`` for each set, of ``correlate_pairs``, and ``READ_BYTES`` of logits
    where these are not on this machine in one shard. Tested in ``tests/studies/test_collapse.py``.

    Examples
    --------
    Of a zoo with stored predictions on two sets, which ``ckptzoo.derive.predict`` adds:

    >>> from ckptzoo.studies.collapse import collapse
    >>> found = collapse(ckptzoo.open("zoos/few"), "digits/test-100", "noise/test-100", permutations=99, resamples=99)
    >>> found.set, found.ood, found.information.shape
    ('digits/test-100', 'noise/test-100', (120,))
    >>> round(found.correlations["spearman"].value, 1)
    0.3
    """
    own, other = _sets(zoo, set, ood)
    last = zoo.last_steps()
    finite = flags(last, "finite", missing=True)
    for name in (own, other):
        finite &= last.predictions(name).finite
    # two members are a single pair, which has no correlation
    if finite.sum() < 3:
        expected, got = f"3 or more with finite logits on {own} and {other}", f"{int(finite.sum())} of {len(last)}"
        raise ZooError(Problem(zoo.name, "members", expected, got, "Select others."))
    usable = last.take(np.flatnonzero(finite))
    members = usable.take(evenly(len(usable), MAX_MEMBERS))
    predictions = {name: members.predictions(name) for name in (own, other)}
    M, inputs, classes = predictions[own].logits.shape
    if classes < 2:
        step = "Choose a zoo of classifiers with an output a class."
        raise ZooError(Problem(zoo.name, f"classes of {own}", "2 or more", str(classes), step))
    ood_inputs = predictions[other].logits.shape[1]
    total, count = inputs + ood_inputs + permutations + resamples, 0

    def done(more: int = 1) -> None:
        nonlocal count
        count += more
        if progress is not None:
            progress(count, total)

    information = [_information(item, done) for item in predictions.values()]
    correlations = correlate_pairs(*information, permutations=permutations, resamples=resamples, seed=seed, done=done)
    pairs = np.triu_indices(M, 1)
    return Collapse(
        name=zoo.name,
        set=own,
        ood=other,
        inputs=inputs,
        ood_inputs=ood_inputs,
        classes=classes,
        members=M,
        usable=len(usable),
        not_finite=len(last) - len(usable),
        seed=seed,
        permutations=permutations,
        resamples=resamples,
        information=information[0][pairs],
        ood_information=information[1][pairs],
        correlations=correlations,
    )


def _information(predictions: Predictions, done: Callable[[int], None]) -> Values:
    """(M, M) the mutual information of every pair. ``done`` is called with the inputs of each step."""
    M, inputs, classes = predictions.logits.shape
    pairs = PairwiseInformation(M)
    # all members at a time: every pair meets on every input
    width = max(1, READ_BYTES // (M * classes * predictions.logits.dtype.itemsize))
    for start in range(0, inputs, width):
        logits = predictions.logits[:, start : start + width]
        for first in range(0, logits.shape[1], _STEP):
            step = logits[:, first : first + _STEP]
            pairs.add(step)
            done(step.shape[1])
    return pairs.mutual_information


def _sets(zoo: Zoo, own: str | None, ood: str | None) -> tuple[str, str]:
    labelled, others = default_sets(zoo)
    got = ", ".join(f"{name} (a sample)" if is_sample(name) else name for name in zoo.predicted) or "none"
    # of other data than MNIST it is not known here which further sets the networks can see
    mnist = zoo.column("dataset").drop_null().unique().to_pylist() == ["mnist"]
    step = f"{predict_command(zoo, 'fashion-mnist/test' if mnist else 'OTHER/test')}."
    own = own or labelled
    if own is None:
        raise ZooError(Problem(zoo.name, "predictions", "a set with labels among them", got, step))
    other = ood or next((name for name in others if name != own), None)
    if other is None:
        step += " Or name two sets: --set and --ood."
        raise ZooError(Problem(zoo.name, "predictions", f"a set without labels beside {own}", got, step))
    if other == own:
        step = "Choose another one."
        raise ZooError(Problem(zoo.name, "ood", f"another set than {own}", "that one", step))
    return own, other
