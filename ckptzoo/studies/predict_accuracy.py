"""How well do weights alone tell a network's accuracy, what is a gauge worth for that, and what an honest split?

Unterthiner et al. 2020, "Predicting Neural Network Accuracy from Weights" (arXiv 2002.11448), section 3, with the
statistics of section 3.2.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo import symmetry
from ckptzoo.arguments import Count, Seed, Size, checked
from ckptzoo.console import columns, facts
from ckptzoo.errors import Problem, UnknownNameError, ZooError, require
from ckptzoo.format.files import typed
from ckptzoo.format.splits import members_of
from ckptzoo.loader.flags import usable_networks
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.ranks import kendall_tau_b
from ckptzoo.schema import layout
from ckptzoo.schema.documents import JsonFields
from ckptzoo.studies.shared.result import Spread, StudyResult, mean_and_sd
from ckptzoo.studies.shared.selection import own_table
from ckptzoo.text import Progress, counted, counter

TARGET = "test_accuracy"
BY_MEMBER, BY_CHECKPOINT = "by member", "by checkpoint"
STATISTICS, FLAT, SQUARES, COPIES = "statistics", "flat", "flat and squares", "flat, permuted copies"
RIDGE, TREES = "ridge", "trees"
MAX_FLAT_BYTES = 2 * 2**30
"""Larger matrices of weights, float64, are left out; statistics are of any size."""
_QUANTILES = (0, 0.25, 0.5, 0.75, 1)
_PENALTIES = np.logspace(-2, 5, 15)
"""Penalties of ridge regression on standardised features; the best is found by leave-one-out."""
_LEAST = 20
"""The number of checkpoints below which a split says nothing."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Score(JsonFields):
    """How well one regressor predicts on the test sides of the splits.

    The features are ``STATISTICS``, ``FLAT``, ``SQUARES`` or ``COPIES``, the regressor is ``RIDGE`` or ``TREES``, and
    the split is ``BY_MEMBER``, or ``BY_CHECKPOINT``, which puts steps of one member on both sides. ``r2`` is the
    coefficient of determination and ``tau`` Kendall's tau-b, both over the splits.
    """

    variant: str
    features: str
    regressor: str
    split: str
    r2: Spread
    tau: Spread

    @property
    def by_member(self) -> bool:
        """Whether no member is on both sides."""
        return self.split == BY_MEMBER


@dataclass(frozen=True, eq=False)
class PredictAccuracy(StudyResult):
    """The prediction of a column from weights; drawn as ``predict-accuracy.png``.

    ``left_out`` counts checkpoints without the target, not finite, or diverged; ``without_flat`` says whether the
    weights themselves are too many to be features.
    """

    file: ClassVar[str] = "predict-accuracy.json"

    name: str
    target: str
    checkpoints: int
    members: int
    splits: int
    left_out: int
    scores: tuple[Score, ...]
    without_flat: bool

    @property
    def variants(self) -> list[str]:
        """In the order in which they were asked for."""
        return list(dict.fromkeys(score.variant for score in self.scores))

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """Features and regressors."""
        return list(dict.fromkeys((score.features, score.regressor) for score in self.scores))

    def score(self, variant: str, features: str, regressor: str, split: str = BY_MEMBER) -> Score | None:
        """One of the scores, where it was measured."""
        asked = (variant, features, regressor, split)
        keys = ((s.variant, s.features, s.regressor, s.split) for s in self.scores)
        return next((score for score, its in zip(self.scores, keys, strict=True) if its == asked), None)

    def _lines(self) -> Iterator[RenderableType]:
        sides = f"{self.splits}, 70% of the members to train"
        zoo = f"{self.name}: {counted(self.checkpoints, 'checkpoint')} of {counted(self.members, 'member')}"
        rows = [("zoo", zoo), ("target", self.target), ("splits", sides)]
        if self.left_out:
            rows.append(("left out", f"{counted(self.left_out, 'checkpoint')} without it, not finite or diverged"))
        yield facts(rows)
        leaks = not all(score.by_member for score in self.scores)
        for split in (BY_MEMBER, BY_CHECKPOINT) if leaks else (BY_MEMBER,):
            yield ""
            yield f"R2 / Kendall's tau on members that were not trained on, split {split}"
            yield self._table(split)
        if leaks:
            yield ""
            yield (
                f"A split {BY_CHECKPOINT} has steps of one member on both sides: a network is told from its own "
                "earlier and later weights, which says nothing about other networks."
            )
        if self.without_flat:
            yield f"The weights of a checkpoint are too many to be features (above {MAX_FLAT_BYTES >> 30} GiB in all)."

    def _table(self, split: str) -> Table:
        table = columns("features", "regressor", *self.variants)
        for features, regressor in self.kinds:
            scores = [self.score(variant, features, regressor, split) for variant in self.variants]
            cells = [f"{mean_and_sd(s.r2, 2)} / {mean_and_sd(s.tau, 2)}" if s else "-" for s in scores]
            table.add_row(features, regressor, *cells)
        return table


@checked
def predict_accuracy(
    zoo: Zoo,
    variant: str | None = "canonical",
    *,
    target: str = TARGET,
    splits: Count = 5,
    copies: Size = 4,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> PredictAccuracy:
    """Predict a figure of networks from their weights, raw and in a gauge.

    Ridge regression and gradient-boosted trees, on statistics of each tensor (mean, variance, five quantiles) and on
    the weights themselves. Each split trains on 70 % of the members; where members have several checkpoints, the same
    is done with a split of checkpoints, whose figures are too good.

    Parameters
    ----------
    zoo
        with the target, of 20 usable checkpoints or more.
    variant
        the gauge; None for raw weights alone.
    target
        a column of numbers.
    splits
        how many random splits.
    copies
        random permutations of each training network that are added to it in ``COPIES``; 0 for none.
    seed
        of the splits, permutations and trees.
    progress
        called with the fits done, and all of them.

    Raises
    ------
    ZooError
        There are too few checkpoints with the target, or it is no number.
    MissingExtraError
        scikit-learn is not installed.

    Notes
    -----
    Memory: the weights as float64, several times. Trees of 2,048 OptuNets' weights take seconds a fit. Tested in
    tests/studies/test_predict_accuracy.py.

    Examples
    --------
    >>> from ckptzoo.studies.predict_accuracy import predict_accuracy
    >>> zoo = ckptzoo.open("cards/mnist-optunet").where("seed < 64")
    >>> found = predict_accuracy(zoo, splits=1, copies=0)
    >>> round(found.score("raw", "statistics", "ridge").tau.mean, 1)
    0.4
    """
    require("sklearn", "stats", package="scikit-learn")
    chosen, values = _with_target(zoo, target)
    members = np.array(members_of(chosen.metadata).to_pylist())
    flat = len(chosen) * sum(tensor.size for tensor in chosen.arch.tensors) * 8 <= MAX_FLAT_BYTES
    variants = [layout.RAW] if variant is None else [layout.RAW, variant]
    several = len(set(members.tolist())) < len(members)
    kinds = [BY_MEMBER, BY_CHECKPOINT] if several else [BY_MEMBER]
    sides = {kind: [_trained_on(members, kind, seed, number) for number in range(splits)] for kind in kinds}
    plans = [(STATISTICS, RIDGE), (STATISTICS, TREES)]
    if flat:
        plans += [(FLAT, RIDGE), (SQUARES, RIDGE), (FLAT, TREES)]
    permuted = [(COPIES, RIDGE)] if flat and copies and variant is not None else []
    advance = counter(len(kinds) * splits * (len(plans) * len(variants) + len(permuted)), progress)
    scores: list[Score] = []
    for name in variants:
        features = {STATISTICS: statistics(chosen, name)}
        if flat:
            features[FLAT] = _flat(chosen, name)
            features[SQUARES] = np.concatenate([features[FLAT], features[FLAT] ** 2], axis=1)
        for kind in kinds:
            for what, regressor in plans:
                scores.append(_score(name, what, regressor, kind, features[what], values, sides[kind], seed, advance))
            if permuted and name == layout.RAW:
                more = _permuted(chosen, copies, seed)
                scores.append(
                    _score(name, COPIES, RIDGE, kind, features[FLAT], values, sides[kind], seed, advance, more)
                )
    return PredictAccuracy(
        name=zoo.name,
        target=target,
        checkpoints=len(chosen),
        members=len(set(members.tolist())),
        splits=splits,
        left_out=len(zoo) - len(chosen),
        scores=tuple(scores),
        without_flat=not flat,
    )


def statistics(zoo: Zoo, variant: str) -> Values:
    """(N, 7 * tensors) mean, variance and the quantiles 0, 1/4, 1/2, 3/4, 1 of each tensor of floats."""
    columns: list[Values] = []
    for name in _floats(zoo):
        tensor = zoo[name, variant]
        step = max(1, 64 * 2**20 // max(1, tensor.nbytes // max(1, len(zoo))))
        rows = [_statistics(np.asarray(tensor[start : start + step])) for start in range(0, len(zoo), step)]
        columns.append(np.concatenate(rows))
    return np.concatenate(columns, axis=1)


def _statistics(stacked: NDArray[Any]) -> Values:
    flat = stacked.reshape(len(stacked), -1).astype(np.float64)
    return np.stack([flat.mean(axis=1), flat.var(axis=1), *np.quantile(flat, _QUANTILES, axis=1)], axis=1)


def _floats(zoo: Zoo) -> list[str]:
    return [tensor.name for tensor in zoo.arch.tensors if "float" in tensor.dtype]


def _flat(zoo: Zoo, variant: str) -> Values:
    read = [np.asarray(zoo[name, variant][:]) for name in _floats(zoo)]
    return np.concatenate([array.reshape(len(array), -1).astype(np.float64) for array in read], axis=1)


def _permuted(zoo: Zoo, copies: int, seed: int) -> list[Values]:
    """The weights of all checkpoints under random permutations, ``copies`` times."""
    table = own_table(zoo)
    weights = {tensor.name: np.asarray(zoo[tensor.name][:]) for tensor in zoo.arch.tensors}
    permuted: list[Values] = []
    for number in range(copies):
        drawn = symmetry.GroupElement.random(table, len(zoo), np.random.default_rng([seed, 1, number]))
        # copies differ by permutations alone, as drawn scales would change the features' spread
        ones = {name: np.ones_like(scale) for name, scale in drawn.scales.items()}
        moved = symmetry.apply(symmetry.GroupElement(drawn.perms, ones), weights, table)
        flat = [np.asarray(moved[name]).reshape(len(zoo), -1).astype(np.float64) for name in _floats(zoo)]
        permuted.append(np.concatenate(flat, axis=1))
    return permuted


def _listed(zoo: Zoo) -> str:
    return f"ckptzoo info {typed(zoo.contents.files)} lists the columns."


def _with_target(zoo: Zoo, target: str) -> tuple[Zoo, Values]:
    try:
        values = np.array(zoo.column(target).to_pylist(), np.float64)
    except (UnknownNameError, TypeError, ValueError) as error:
        if isinstance(error, UnknownNameError) and error.hint:  # a name that is spelt nearly so
            raise
        step = f"Name a column of numbers, such as {TARGET}; {_listed(zoo)}"
        raise ZooError(Problem(zoo.name, f"target {target!r}", "a column of numbers", "none", step)) from None
    kept = np.isfinite(values) & usable_networks(zoo)
    # R2 is relative to the variance of the target, which must not be 0
    if kept.sum() < _LEAST or np.ptp(values[kept]) == 0:
        got = f"{kept.sum():,} of {len(zoo):,}" if kept.sum() < _LEAST else "one value for all"
        step = f"Choose others, or another target; {_listed(zoo)}"
        expected = f"{_LEAST} or more usable checkpoints with several values"
        raise ZooError(Problem(zoo.name, f"target {target!r}", expected, got, step))
    return zoo.take(np.flatnonzero(kept).tolist()), values[kept]


def _trained_on(members: NDArray[Any], kind: str, seed: int, number: int) -> NDArray[np.bool_]:
    """(N,) the checkpoints on the training side of a split."""
    units = members if kind == BY_MEMBER else np.arange(len(members)).astype(str)
    distinct = np.unique(units)
    # one stream a split; those of the copies begin with [seed, 1]
    drawn = np.random.default_rng([seed, 0, number]).permutation(distinct)
    return np.isin(units, drawn[: round(0.7 * len(distinct))])


def _score(
    variant: str,
    features: str,
    regressor: str,
    split: str,
    matrix: Values,
    values: Values,
    sides: Sequence[NDArray[np.bool_]],
    seed: int,
    advance: Callable[[int], None],
    more: Sequence[Values] = (),
) -> Score:
    explained, tau = np.empty((2, len(sides)))
    for number, trained in enumerate(sides):
        model = _regressor(regressor, seed)
        examples = np.concatenate([matrix[trained], *(copy[trained] for copy in more)])
        model.fit(examples, np.tile(values[trained], 1 + len(more)))
        predicted, targets = model.predict(matrix[~trained]), values[~trained]
        explained[number] = 1 - ((predicted - targets) ** 2).sum() / ((targets - targets.mean()) ** 2).sum()
        tau[number] = kendall_tau_b(predicted, targets)
        advance(1)
    # a prediction that is the same for all has no order
    r2, orders = Spread.of(explained), Spread.of(np.nan_to_num(tau))
    assert r2 is not None and orders is not None
    return Score(variant, features, regressor, split, r2, orders)


def _regressor(name: str, seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if name == TREES:
        # the seed counts above 10,000 examples, where scikit-learn holds some out to stop early, and above 200,000,
        # from which it draws those that determine the bins
        return HistGradientBoostingRegressor(random_state=seed)
    # one penalty for all coefficients needs features of one scale
    return make_pipeline(StandardScaler(), RidgeCV(_PENALTIES))
