"""Is the posterior one Gaussian, once its symmetries are removed?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo import symmetry
from ckptzoo.archs.gaussian_spec import STD
from ckptzoo.arguments import NETWORK, Count, Seed, checked
from ckptzoo.console import columns, facts
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.flags import usable_networks
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.documents import Document, JsonFields
from ckptzoo.studies.chains import (
    MAX_R_HAT,
    ChainConvergence,
    are_comparable,
    chain_rows,
    convergence_of,
    transpositions_by_lag,
)
from ckptzoo.studies.shared.networks import Weights, evaluator_of
from ckptzoo.studies.shared.result import StudyResult
from ckptzoo.studies.shared.selection import evenly, own_table, parameter_names, usable_members
from ckptzoo.text import Progress, counted, counter, printable

if TYPE_CHECKING:
    from ckptzoo.derive.evaluation import Evaluator

SAMPLED, FIRST, ALIGNED = "as sampled", "aligned with the first", "aligned with all others"
"""The samples to which a Gaussian is fitted; other Gaussians are named after variational methods."""
SIGMA, SIZE, RATIO = "least sigma", "greatest |mean|", "greatest |mean| / sigma"
"""Which weights pruning keeps; the first is that of arXiv 2401.00611."""
KEPT = (1.0, 0.8, 0.6, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05)
"""Shares of the weights that pruning keeps."""
MAX_BYTES = 512 * 2**20
"""Bytes of the weights of all samples, or of two; more samples are thinned out evenly."""
_SHOWN = 100
"""The number of inputs whose probabilities are tested for convergence."""
BINS = np.linspace(-8, 2, 401)
"""Ends of the histograms' bins, in powers of ten."""

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PredictionQuality:
    """The quality of the predictions of a set of networks.

    ``accuracy`` and ``loss``, in nats, are of the mean of their probabilities; ``alone`` is the mean accuracy of single
    networks; ``agreement`` is the share of inputs to which it assigns the class that all samples together name.
    """

    accuracy: float
    loss: float
    alone: float
    agreement: float


@dataclass(frozen=True, eq=False)
class FittedGaussian(JsonFields):
    """A Gaussian with independent weights, and the quality of its predictions.

    ``mean`` and ``draws`` are the quality of the network of the means, and of draws; ``sigma`` counts the (bins,)
    weights with log10 of their standard deviation in each of ``BINS``, those of 0 in the first; ``median_sigma`` is
    over all weights; ``pruned`` maps the rule of pruning to the accuracies of the network of the means for each of
    ``KEPT``.
    """

    mean: PredictionQuality
    draws: PredictionQuality
    sigma: NDArray[np.int64]
    median_sigma: float
    pruned: dict[str, list[float]]


@dataclass(frozen=True, eq=False)
class CompactStudy(StudyResult, without=("lag",), derived=("kept",)):
    """Gaussians fitted to samples as they are and aligned; drawn as ``compact.png``.

    There are ``samples`` of ``usable`` ones, of ``chains`` chains, 0 where they are independent members. ``members`` is
    the quality of all together; ``pruned_member`` maps names to the accuracies of one sample for each of ``KEPT``,
    pruned by the aligned Gaussian; ``merged`` maps numbers of averaged samples to the accuracies of their mean, as
    sampled and aligned; ``convergence`` is that of weights, as sampled and aligned, and of probabilities, empty where
    there is one chain, or chains differ in length; ``lag`` maps lags in draws to the mean transpositions between draws
    so far apart in a chain, and their most.
    """

    file: ClassVar[str] = "compact.json"
    kept: ClassVar[tuple[float, ...]] = KEPT
    bins: ClassVar[Values] = BINS

    name: str
    set: str
    inputs: int
    samples: int
    usable: int
    chains: int
    members: PredictionQuality
    gaussians: dict[str, FittedGaussian]
    pruned_member: dict[str, list[float]]
    merged: dict[int, tuple[float, float]]
    convergence: dict[str, ChainConvergence] = field(default_factory=dict)
    lag: dict[int, tuple[float, int]] = field(default_factory=dict)
    draws: int = 50
    seed: int = 0

    def to_json(self) -> Document:
        lags = {str(lag): {"mean": mean, "most": most} for lag, (mean, most) in self.lag.items()}
        return {**super().to_json(), "transpositions": lags}

    def _lines(self) -> Iterator[RenderableType]:
        together = self.members
        thinned = f" of {self.usable:,}, evenly spaced" if self.samples < self.usable else ""
        chains = f" of {counted(self.chains, 'chain')}" if self.chains else ""
        yield facts(
            [
                ("zoo", f"{self.name}: {counted(self.samples, 'sample')}{thinned}{chains}"),
                ("inputs", f"{self.set}: {self.inputs:,}"),
                ("together", f"accuracy {together.accuracy:.2%}, {together.loss:.3f} nats; alone {together.alone:.2%}"),
            ]
        )
        yield ""
        yield f"Gaussians of the samples: the network of the means, and {counted(self.draws, 'draw')} together"
        yield self._gaussians_table()
        yield ""
        yield "accuracy of the network of the means with some of its weights, the others 0"
        yield self._pruning_table()
        yield ""
        yield "accuracy of the mean of several samples"
        yield self._merged_table()
        if self.convergence:
            yield ""
            yield f"convergence of the chains: shares with R-hat above {MAX_R_HAT}, and effective draws"
            yield self._convergence_table()
        if self.lag:
            said = ", ".join(
                f"{counted(lag, 'draw')}: {mean:.1f} (at most {most})" for lag, (mean, most) in self.lag.items()
            )
            yield ""
            yield f"transpositions that align draws of one chain, by the lag: {said}"

    def _gaussians_table(self) -> Table:
        table = columns("of samples", "mean", "nats", "agrees", "draws", "nats", "agrees", "a draw", "median sigma")
        for name, item in self.gaussians.items():
            cells = [_percent(item.mean.accuracy), f"{item.mean.loss:.3f}", _percent(item.mean.agreement)]
            cells += [_percent(item.draws.accuracy), f"{item.draws.loss:.3f}", _percent(item.draws.agreement)]
            table.add_row(printable(name), *cells, _percent(item.draws.alone), f"{item.median_sigma:.2g}")
        return table

    def _pruning_table(self) -> Table:
        table = columns("kept", *(f"{kept:.0%}" for kept in KEPT))
        for name, item in self.gaussians.items():
            for rule, accuracies in item.pruned.items():
                table.add_row(printable(f"{name}: {rule}"), *map(_percent, accuracies))
        for name, accuracies in self.pruned_member.items():
            table.add_row(printable(name), *map(_percent, accuracies))
        return table

    def _merged_table(self) -> Table:
        table = columns("samples", *(f"{count:,}" for count in self.merged))
        for column, name in enumerate((SAMPLED, ALIGNED)):
            table.add_row(name, *(_percent(pair[column]) for pair in self.merged.values()))
        return table

    def _convergence_table(self) -> Table:
        table = columns("of", "numbers", f"R-hat > {MAX_R_HAT}", "median R-hat", "median ESS")
        for name, item in self.convergence.items():
            medians = f"{np.nanmedian(item.r_hat):.3f}", f"{np.nanmedian(item.ess):,.0f}"
            table.add_row(name, f"{len(item.r_hat):,}", f"{item.above:.2%}", *medians)
        return table


@checked
def compact(
    zoo: Zoo,
    labelled: Labelled,
    *,
    variational: Zoo | None = None,
    draws: Count = 50,
    module: NETWORK | None = None,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> CompactStudy:
    """Fit a Gaussian with independent weights to samples of a posterior, as they are and aligned, and use both.

    After Xiao, Liu and Bamler (arXiv 2401.00611, figure 3): q_d has the means and deviations of the samples as they
    are, q_r those of the samples after alignment. Here q_r is the barycentre (``ckptzoo.symmetry.barycentre``); the
    Gaussian of samples that are each aligned with the first is shown beside it.

    Parameters
    ----------
    zoo
        draws of chains of one method, which ``mode`` tells apart and ``step``, else ``draw``, orders; or independent
        members.
    labelled
        what networks are scored on.
    variational
        a zoo of Gaussians over the same architecture, such as ``builders posterior bnn`` writes; its first is compared.
    draws
        of each Gaussian, which predict together.
    module
        the network as a torch module, for architectures that are not in ``ckptzoo.archs``.
    seed
        of the draws.
    progress
        called with the steps done, and all of them.

    Raises
    ------
    ZooError
        There are fewer than three usable samples, they are Gaussians themselves, or the variational ones are of another
        architecture; or chains are of several methods, or nothing tells the order of their draws.
    SymmetryError
        No table of symmetries is known.
    MissingExtraError
        torch is not installed; or there are several chains, and arviz-stats is not.

    Notes
    -----
    Samples that are together larger than ``MAX_BYTES`` are thinned out evenly, and are in memory a few times.
    Tested in tests/studies/test_compact.py.

    Examples
    --------
    On images of handwritten digits, scaled as in the networks' training:

    >>> from ckptzoo.derive.labelled import Labelled
    >>> from ckptzoo.image_sets import find
    >>> from ckptzoo.studies.compact import compact
    >>> digits = find("digits/test-100")
    >>> labelled = Labelled("digits/test-100", digits.normalized((0.1307,), (0.3081,)), digits.labels)
    >>> found = compact(ckptzoo.open("zoos/few"), labelled, draws=2)
    >>> found.samples, list(found.gaussians)
    (16, ['as sampled', 'aligned with the first', 'aligned with all others'])
    """
    evaluator = evaluator_of(zoo, labelled, module)
    job = _CompactQuestion(usable_members(zoo, 3), labelled, evaluator, variational, draws, seed, progress)
    return job.run()


class _CompactQuestion:
    """The quantities that all parts of the study share."""

    def __init__(
        self,
        usable: Zoo,
        labelled: Labelled,
        evaluator: "Evaluator",
        variational: Zoo | None,
        draws: int,
        seed: int,
        progress: Progress | None,
    ) -> None:
        self.table, self.arch, self.labelled = own_table(usable), usable.arch, labelled
        self.zoo = usable.take(evenly(len(usable), max(3, MAX_BYTES // usable.arch.nbytes)))
        self.usable, self.draws, self.seed = len(usable), draws, seed
        self.evaluator = evaluator
        self.variational = None if variational is None else _gaussian_of(variational, usable)
        self.names = parameter_names(usable.arch)
        # biases and gains have one axis
        self.pruned = [name for name in self.names if len(usable.arch[name].shape) > 1]
        self._advance = counter(6 + (variational is not None), progress)

    def run(self) -> CompactStudy:
        chains = chain_rows(self.zoo)
        samples = {name: np.asarray(self.zoo[name][:]) for name in self.arch.names}
        first = symmetry.align(samples, {name: array[0] for name, array in samples.items()}, self.table).weights
        self._advance()
        element = symmetry.barycentre(lambda: [samples], self.table).element
        aligned = symmetry.apply(element, samples, self.table)
        self._advance()
        members, answers = self._quality(samples, None)
        self._advance()
        kinds = {SAMPLED: samples, FIRST: first, ALIGNED: aligned}
        moments = {name: self._moments(weights) for name, weights in kinds.items()}
        if self.variational is not None:
            moments["variational"] = self.variational
        gaussians: dict[str, FittedGaussian] = {}
        for name, (mean, sigma) in moments.items():
            gaussians[name] = self._gaussian(mean, sigma, samples, answers)
            self._advance()
        # the first one stays as it is when all are aligned with one another
        sigma, one = moments[ALIGNED][1], len(self.zoo) // 2
        return CompactStudy(
            name=self.zoo.name,
            set=self.labelled.set,
            inputs=len(self.labelled.inputs),
            samples=len(self.zoo),
            usable=self.usable,
            chains=len(chains),
            members=members,
            gaussians=gaussians,
            pruned_member={
                f"one sample, {name}: {SIGMA} of the aligned": self._pruned(
                    {key: weights[key][one] for key in self.names}, {key: -sigma[key] for key in self.pruned}, samples
                )
                for name, weights in ((SAMPLED, samples), (ALIGNED, aligned))
            },
            merged=self._merged(samples, aligned),
            convergence=self._convergence(chains, samples, aligned),
            lag=transpositions_by_lag(chains, samples, self.table),
            draws=self.draws,
            seed=self.seed,
        )

    def _moments(self, weights: Weights) -> tuple[dict[str, Values], dict[str, Values]]:
        """Means and standard deviations (ddof 1) of every parameter."""
        values = {name: np.asarray(weights[name], np.float64) for name in self.names}
        return {name: array.mean(0) for name, array in values.items()}, {
            name: array.std(0, ddof=1) for name, array in values.items()
        }

    def _complete(self, parameters: Mapping[str, Values], samples: Weights) -> dict[str, NDArray[Any]]:
        """Stacked networks of these parameters (K, *shape), with the buffers of the first sample."""
        K = len(next(iter(parameters.values())))
        stacked: dict[str, NDArray[Any]] = {}
        for name, array in samples.items():
            given = parameters.get(name)
            stacked[name] = array[:1].repeat(K, 0) if given is None else given.astype(np.float32)
        return stacked

    def _quality(
        self, weights: Weights, answers: NDArray[np.int64] | None
    ) -> tuple[PredictionQuality, NDArray[np.int64]]:
        """Score K networks together and alone; ``agreement`` is with given answers, or with their own."""
        targets = np.asarray(self.labelled.targets)
        K, size = len(next(iter(weights.values()))), self.evaluator.stack_size
        total, alone = np.zeros(()), 0.0
        for start in range(0, K, size):
            logits = self.evaluator.outputs({name: array[start : start + size] for name, array in weights.items()})
            # softmax does not change with a shift; without the largest logit no exponential overflows
            logits = logits.astype(np.float64) - logits.max(2, keepdims=True)
            alone += float((logits.argmax(2) == targets).mean(1).sum())
            likelihoods = np.exp(logits)
            total = total + (likelihoods / likelihoods.sum(2, keepdims=True)).sum(0)
        predicted = total.argmax(1)
        # tiny: a label to which all networks give 0 would cost infinitely many nats
        loss = -np.log(np.maximum(total[np.arange(len(targets)), targets] / K, np.finfo(np.float64).tiny)).mean()
        agreement = 1.0 if answers is None else float((predicted == answers).mean())
        return PredictionQuality(float((predicted == targets).mean()), float(loss), alone / K, agreement), predicted

    def _gaussian(
        self, mean: Mapping[str, Values], sigma: Mapping[str, Values], samples: Weights, answers: NDArray[np.int64]
    ) -> FittedGaussian:
        # the same seed for each Gaussian: all are drawn with the same noise
        rng = np.random.default_rng([self.seed, 0])
        drawn = {name: mean[name] + sigma[name] * rng.standard_normal((self.draws, *mean[name].shape)) for name in mean}
        at_mean, _ = self._quality(
            self._complete({name: array[None] for name, array in mean.items()}, samples), answers
        )
        together, _ = self._quality(self._complete(drawn, samples), answers)
        every = np.concatenate([sigma[name].ravel() for name in self.names])
        # a deviation of 0 has the logarithm -inf, which is counted in the first bin
        with np.errstate(divide="ignore"):
            logarithms = np.clip(np.log10(every), BINS[0], BINS[-1])
        # a weight that all samples share has deviation 0, and is kept before others
        ratios = {name: np.abs(mean[name]) / np.maximum(sigma[name], np.finfo(np.float64).tiny) for name in self.pruned}
        rules = {
            # the greatest keys are kept, and so the least deviations
            SIGMA: {name: -sigma[name] for name in self.pruned},
            SIZE: {name: np.abs(mean[name]) for name in self.pruned},
            RATIO: ratios,
        }
        return FittedGaussian(
            at_mean,
            together,
            np.histogram(logarithms, BINS)[0],
            float(np.median(every)),
            {rule: self._pruned(mean, keys, samples) for rule, keys in rules.items()},
        )

    def _pruned(self, network: Mapping[str, Any], keys: Mapping[str, Values], samples: Weights) -> list[float]:
        """Accuracies of a network that keeps the weights with the greatest keys, and all biases and gains."""
        ordered = np.sort(np.concatenate([keys[name].ravel() for name in self.pruned]))
        stacked = {name: np.asarray(array, np.float64)[None].repeat(len(KEPT), 0) for name, array in network.items()}
        for row, kept in enumerate(KEPT):
            # the greatest key stays even where the share of few weights rounds to none
            least = ordered[min(len(ordered) - 1, round((1 - kept) * len(ordered)))]
            for name in self.pruned:
                stacked[name][row] *= keys[name] >= least
        (scores,) = self.evaluator.scores([self._complete(stacked, samples)])
        return scores.accuracy.tolist()

    def _merged(self, samples: Weights, aligned: Weights) -> dict[int, tuple[float, float]]:
        """Accuracies of means of 1, 2, 4, ... samples, evenly spaced."""
        counts = [2**power for power in range(int(np.log2(len(self.zoo))) + 1)]
        # all samples together too, where their number is no power of two
        counts += [len(self.zoo)] * (counts[-1] != len(self.zoo))
        chosen = [evenly(len(self.zoo), count) for count in counts]
        accuracies: list[list[float]] = []
        for weights in (samples, aligned):
            means = {
                # summed in float64: weights are float32
                name: np.stack([np.mean(weights[name][rows], 0, np.float64) for rows in chosen])
                for name in self.names
            }
            (scores,) = self.evaluator.scores([self._complete(means, samples)])
            accuracies.append(scores.accuracy.tolist())
        return dict(zip(counts, zip(*accuracies, strict=True), strict=True))

    def _convergence(
        self, chains: Sequence[NDArray[np.int64]], samples: Weights, aligned: Weights
    ) -> dict[str, ChainConvergence]:
        """The convergence of weights as sampled and aligned, and of probabilities, where chains can be compared."""
        if not are_comparable(chains):
            return {}
        by_name: dict[str, ChainConvergence] = {}
        for name, weights in ((SAMPLED, samples), (ALIGNED, aligned)):
            flat = np.concatenate([weights[key].reshape(len(self.zoo), -1) for key in self.names], 1)
            by_name[f"weights, {name}"] = convergence_of(chains, flat)
        outputs = self.evaluator.outputs(samples)[:, :_SHOWN].astype(np.float64)
        likelihoods = np.exp(outputs - outputs.max(2, keepdims=True))
        likelihoods /= likelihoods.sum(2, keepdims=True)
        by_name["probabilities of test inputs"] = convergence_of(chains, likelihoods.reshape(len(self.zoo), -1))
        return by_name


def _gaussian_of(variational: Zoo, samples: Zoo) -> tuple[dict[str, Values], dict[str, Values]]:
    """Means and deviations of the first usable Gaussian of a zoo."""
    names = parameter_names(samples.arch)
    fits = all(
        other in variational.arch and variational.arch[other].shape == samples.arch[name].shape
        for name in names
        for other in (name, f"{name}{STD}")
    )
    rows = np.flatnonzero(usable_networks(variational))
    if not fits or not len(rows):
        expected, got = f"Gaussians over {samples.arch.name}", f"{len(rows)} of {variational.arch.name}"
        raise ZooError(Problem(variational.name, "variational zoo", expected, got, "Name another one."))
    first = variational.take(rows[:1])
    mean, sigma = ({name: first[name + end][0] for name in names} for end in ("", STD))
    return _doubles(mean), _doubles(sigma)


def _doubles(weights: Weights) -> dict[str, Values]:
    return {name: np.asarray(array, np.float64) for name, array in weights.items()}


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
