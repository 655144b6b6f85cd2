"""How good are single members, how good are ensembles of them, and from which size on do they gain no more?"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo.arguments import Seed, checked
from ckptzoo.console import columns, facts
from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.flags import flags
from ckptzoo.loader.predictions import Predictions
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.predictions import disagreement
from ckptzoo.schema.documents import Document, JsonFields, json_value
from ckptzoo.studies.ensemble_scores import DisjointEnsembles, Scores, SummedPredictions, log_softmax, scores
from ckptzoo.studies.shared.result import Spread, StudyResult
from ckptzoo.studies.shared.selection import default_sets, labels_of, predict_command
from ckptzoo.text import Progress, counted, counter, printable

SUBSETS = 50
"""The maximum number of scored ensembles of one size; all single members are scored."""
EXTRA = (10, 100)
"""Sizes besides the powers of two."""
BATCH_BYTES = 4 * 2**20
"""Bytes of logits that are read at a time, as far as whole members allow."""
SHARES = (0.9, 0.99)
"""Shares of the gain whose sizes are reported."""
OWN = {"accuracy": "accuracy", "nll": "NLL", "brier": "Brier", "ece": "ECE"}
"""Figures on the networks' own inputs, and their labels in tables."""
OTHER = {
    "auroc": "AUROC",
    "fpr95": "FPR95",
    "information_auroc": "AUROC (MI)",
    "information_fpr95": "FPR95 (MI)",
}
"""Figures on other inputs, which are to be distinguished, and their labels in tables."""
_PERCENT = {"accuracy", "ece", *OTHER}


@dataclass(frozen=True)
class Size(JsonFields):
    """Ensembles of one size.

    ``size`` is 1 for the members themselves; ``subsets`` counts the scored ensembles, no two of which share a member. A
    set for which some members are left out may have fewer, the ``count`` of its figures. ``scores`` maps sets to
    figures by name, as in ``ckptzoo.studies.ensemble_scores.scores``, over the subsets.
    """

    size: int
    subsets: int
    scores: dict[str, dict[str, Spread]]

    @classmethod
    def of(cls, size: int, ensembles: Sequence[Scores]) -> "Size":
        """Make it from the figures of each ensemble."""
        by_set: dict[str, dict[str, Spread]] = {}
        for name, first in ensembles[0].items():
            spreads = {figure: Spread.of([item[name][figure] for item in ensembles]) for figure in first}
            by_set[name] = {figure: spread for figure, spread in spreads.items() if spread is not None}
        return cls(size, len(ensembles), by_set)

    def merged(self, other: "Size | None") -> "Size":
        """Return it with the figures of another for ensembles of this size on other sets."""
        return self if other is None else Size(self.size, other.subsets, other.scores | self.scores)

    def to_json(self) -> Document:
        scores = [{"set": name, **json_value(figures)} for name, figures in self.scores.items()]
        return {**super().to_json(), "scores": scores}


@dataclass(frozen=True, eq=False)
class Ensembles(StudyResult, without=("accuracies",)):
    """The scores of single members and of ensembles of them.

    Drawn as ``ensembles.png`` and ``members.png``, and ``detection.png`` where there are other sets. ``set`` is scored,
    and the inputs of the sets ``ood`` are to be separated from its own. ``members`` are finite on ``set``, and
    ``not_finite`` more were left out; ``ood_not_finite`` maps other sets to how many of the members are not finite on
    them and left out there: a set where fewer than two remain is not in ``ood``. ``seed`` determines the order in which
    members make ensembles, which is that of the (members,) ``accuracies``; ``sizes`` ascend from single members to all;
    ``disagreement`` maps sets to the share of pairs of members that choose different classes, mean over the inputs;
    ``references`` maps names to accuracies from elsewhere.
    """

    file: ClassVar[str] = "ensembles.json"

    name: str
    set: str
    ood: tuple[str, ...]
    ood_not_finite: dict[str, int]
    inputs: int
    classes: int
    members: int
    not_finite: int
    seed: int
    accuracies: NDArray[np.float64]
    diverged: NDArray[np.bool_]
    sizes: tuple[Size, ...]
    disagreement: dict[str, float]
    references: dict[str, float]

    def figure(self, name: str, set: str | None = None) -> dict[int, Spread]:
        """Map sizes to a figure on the scored set or on another; sizes without it are left out."""
        spreads = {item.size: item.scores.get(set or self.set, {}).get(name) for item in self.sizes}
        return {size: spread for size, spread in spreads.items() if spread is not None}

    def enough(self, name: str, share: float) -> int | None:
        r"""The least size that, with all larger ones, has this share of the gain that all members make.

        .. math:: \min \left\{ S : \forall T \ge S,\ \frac{a_T - a_1}{a_M - a_1} \ge r \right\}

        for means :math:`a_S` over ensembles of size S, M members and share r. ``name`` is a figure of the set:
        ``accuracy``, ``nll``, ``brier`` or ``ece``; ``share`` is r, at most 1. Returns None where the ensemble of all
        is no better than single members, or where noise hides the size: the rest of the gain, :math:`(1 - r) |a_M -
        a_1|`, is below the standard error of a mean from that size on, or for the accuracy below one input, or there is
        a single ensemble of that size.
        """
        spreads = self.figure(name)
        means = {size: spread.mean for size, spread in spreads.items()}
        if not self._gains(name):
            return None
        gain = means[self.members] - means[1]
        short = [size for size, mean in means.items() if (mean - means[1]) / gain < share]
        least = min(size for size in means if size > max(short, default=0))
        errors = [item.sd / item.count**0.5 for size, item in spreads.items() if size >= least and item.count > 1]
        # an accuracy is a multiple of one over the number of inputs, whatever the spread between ensembles
        noise = max(*errors, 1 / self.inputs if name == "accuracy" else 0.0, 0.0)
        return least if spreads[least].count > 1 and (1 - share) * abs(gain) >= noise else None

    def _gains(self, name: str) -> bool:
        means = self.figure(name)
        gain = means[self.members].mean - means[1].mean
        return (gain if name == "accuracy" else -gain) > 0

    def to_json(self) -> Document:
        """Every figure by name, without those of each member."""
        return {
            **super().to_json(),
            "ood_not_finite": [{"set": name, "members": count} for name, count in self.ood_not_finite.items()],
            "diverged": int(self.diverged.sum()),
            "disagreement": [{"set": name, "pairs": share} for name, share in self.disagreement.items()],
            "enough": [
                {"figure": name, "share": share, "size": self.enough(name, share)}
                for name in ("accuracy", "nll", "brier", "ece")
                for share in SHARES
            ],
            "references": [{"name": name, "accuracy": value} for name, value in self.references.items()],
        }

    def _lines(self) -> Iterator[RenderableType]:
        own, others = printable(self.set), [printable(name) for name in self.ood]
        yield facts(self._facts())
        yield ""
        yield f"{own}: accuracy and ECE in %, NLL in nats"
        yield self._table(self.set, OWN)
        for name, label in zip(self.ood, others, strict=True):
            yield ""
            yield f"{label} distinguished from {own}, in %: by 1 - largest probability, and by mutual information"
            yield self._table(name, OTHER)
        yield ""
        yield self._diversity()
        yield ""
        words = "mean ± standard deviation over ensembles that share no member."
        if others:
            words += (
                " AUROC: how often an input of the other set has the higher score. FPR95: the share of the own set "
                "that is flagged where 95% of the other is."
            )
        yield words
        yield ""
        yield from self._conclusions()

    def _facts(self) -> list[tuple[str, str]]:
        spread = self.figure("accuracy")[1]
        count = int(self.diverged.sum())
        diverged = f", {count:,} of them diverged" if count else ""
        left_out = f"; {self.not_finite:,} not finite and left out" if self.not_finite else ""
        accuracy = (
            f"mean {spread.mean:.2%}, sd {spread.sd:.2%}, worst {spread.least:.2%}, median {spread.median:.2%}, "
            f"best {spread.most:.2%}"
        )
        notes = [
            f"{name}: {count:,} of {counted(self.members, 'member')} not finite on it, "
            f"{'left out for it' if name in self.ood else 'so it is left out'}"
            for name, count in self.ood_not_finite.items()
        ]
        return [
            ("zoo", f"{self.name}: {counted(self.members, 'member')}{diverged}{left_out}"),
            ("set", f"{self.set}: {counted(self.inputs, 'input')}, {self.classes:,} classes"),
            *(("other set", note) for note in notes),
            ("single members", f"accuracy {accuracy}"),
            ("all members", f"accuracy {self.figure('accuracy')[self.members].mean:.2%}"),
            *(("reference", f"accuracy {value:.2%}: {name}") for name, value in self.references.items()),
        ]

    def _table(self, name: str, figures: dict[str, str]) -> Table:
        table = columns("members", "ensembles", *figures.values())
        for size, first in self.figure(next(iter(figures)), name).items():
            cells = [_cell(figure, self.figure(figure, name).get(size)) for figure in figures]
            table.add_row(f"{size:,}", f"{first.count:,}", *cells)
        return table

    def _diversity(self) -> Table:
        table = columns("diversity of all members", "pairs that disagree", "mutual information")
        for name, share in self.disagreement.items():
            information = self.figure("mutual_information", name)
            table.add_row(printable(name), f"{share:.2%}", f"{information[max(information)].mean:.4f} nats")
        return table

    def _conclusions(self) -> Iterator[str]:
        """Say where gains end, and whether ensembles are worse calibrated than single members."""
        for name, unit in (("accuracy", " %"), ("nll", "")):
            alone, together = (f"{_mean(name, self.figure(name)[size])}{unit}" for size in (1, self.members))
            shares = [
                f"{size:,} members have {100 * share:g}% of the gain"
                for share in SHARES
                if (size := self.enough(name, share)) is not None
            ]
            otherwise = "where the gain ends is hidden by noise" if self._gains(name) else "no gain"
            yield f"{OWN[name]}: {alone} alone, {together} together; {', '.join(shares) or otherwise}."
        alone, together = (self.figure("ece")[size].mean for size in (1, self.members))
        sure, right = (self.figure(name)[self.members].mean for name in ("confidence", "accuracy"))
        if together > alone and sure < right:
            yield (
                f"ECE: {100 * alone:.2f}% alone, {100 * together:.2f}% together: the ensembles are less sure than "
                f"they are right (all together: mean confidence {100 * sure:.2f}%, accuracy {100 * right:.2f}%)."
            )


def _mean(name: str, spread: Spread) -> str:
    return f"{100 * spread.mean:.2f}" if name in _PERCENT else f"{spread.mean:.3f}"


def _cell(name: str, spread: Spread | None) -> str:
    if spread is None:
        return "-"
    if spread.count == 1:
        return _mean(name, spread)
    sd = f"{100 * spread.sd:.2f}" if name in _PERCENT else f"{spread.sd:.3f}"
    return f"{_mean(name, spread)} ± {sd}"


@checked
def ensembles(
    zoo: Zoo,
    set: str | None = None,
    *,
    ood: Sequence[str] | None = None,
    references: Mapping[str, float] | None = None,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> Ensembles:
    r"""Score single members and ensembles of 2, 4, 8, ..., also 10, 100, and all of them.

    An ensemble predicts the average of its members' probabilities,

    .. math:: p(c \mid x) = \frac{1}{S} \sum_{s=1}^S \operatorname{softmax}(f_s(x))_c

    (Lakshminarayanan, Pritzel and Blundell, arXiv 1612.01474, section 2.4; on zoos: arXiv 2310.08287). The members are
    put in a random order and cut into disjoint ensembles of each size, so that the ensembles of a size are independent
    of one another as far as the members are; mean and standard deviation are over these, ``SUBSETS`` of them at most.

    Parameters
    ----------
    zoo
        what ``ckptzoo.open`` gives, or a selection of it, with predictions. Each member's last step counts. Members
        that diverged count; those whose weights or logits on ``set`` are not finite are left out and counted.
    set
        the predictions to score; by default the first set of the zoo that has labels.
    ood
        sets of other inputs, to be distinguished from those of ``set``; by default all that have no labels. Members
        whose logits on one of them are not finite are left out for that set alone.
    references
        accuracies from elsewhere, 0 to 1, by the names under which they are shown.
    seed
        of the order.
    progress
        called with the bytes of logits read and the bytes in all.

    Raises
    ------
    UnknownNameError
        No such set.
    ZooError
        The zoo has no predictions, the set has no labels or is among ``ood``, the networks have a single output, fewer
        than two members are finite, or a reference is no accuracy.

    Notes
    -----
    One pass, and one more for each other set on which some members are not finite; 8 bytes an input, class and size,
    and some copies of ``BATCH_BYTES``, whatever the number of members. In an average probabilities below exp(-700)
    count as that. Tested in ``tests/studies/test_ensembles.py``.

    Examples
    --------
    >>> from ckptzoo.studies.ensembles import ensembles
    >>> found = ensembles(ckptzoo.open("cards/cifar100-resnet18-w8").where("seed < 8"))
    >>> {size: round(spread.mean, 2) for size, spread in found.figure("nll").items()}
    {1: 2.71, 2: 2.61, 4: 2.56, 8: 2.54}
    """
    if wrong := {name: value for name, value in (references or {}).items() if not 0 <= value <= 1}:
        raise ZooError(Problem(zoo.name, "references", "accuracies from 0 to 1", str(wrong), "Correct them."))
    own, others = scored_sets(zoo, set, ood)
    last = zoo.last_steps()
    finite = flags(last, "finite", missing=True) & last.predictions(own).finite
    if finite.sum() < 2:
        expected, got = f"2 or more with finite logits on {own}", f"{int(finite.sum())} of {len(last)}"
        raise ZooError(Problem(zoo.name, "members", expected, got, "Select others."))
    # a random order: neighbours in a zoo can be related, such as draws of one chain
    members = last.take(np.random.default_rng(seed).permutation(np.flatnonzero(finite)))
    predictions = {name: members.predictions(name) for name in (own, *others)}
    targets, classes = labels_of(zoo, own), predictions[own].logits.shape[2]
    if classes < 2:
        step = "Choose a zoo of classifiers with an output a class."
        raise ZooError(Problem(zoo.name, f"classes of {own}", "2 or more", str(classes), step))
    not_finite = {name: int((~predictions[name].finite).sum()) for name in others}
    scored_others = [name for name in others if len(members) - not_finite[name] >= 2]
    # one pass over the sets on which all members are finite, and one for each other set without those that are not
    passes = [{name: predictions[name] for name in (own, *scored_others) if not not_finite.get(name)}]
    for name in scored_others:
        if not_finite[name]:
            usable = members.take(np.flatnonzero(predictions[name].finite))
            passes.append({each: usable.predictions(each) for each in (own, name)})
    read = counter(sum(item.logits.nbytes for each in passes for item in each.values()), progress)
    (by_size, disagreements), *more = [_scored(each, targets, read) for each in passes]
    sizes = {size: Size.of(size, figures) for size, figures in by_size.items()}
    for of_pass, disagreement_of in more:
        # the own set was scored with all members in the first pass, and is here only to be compared with the other
        (name,) = disagreement_of.keys() - {own}
        disagreements[name] = disagreement_of[name]
        for size, figures in of_pass.items():
            sizes[size] = Size.of(size, [{name: item[name]} for item in figures]).merged(sizes.get(size))
    return Ensembles(
        name=zoo.name,
        set=own,
        ood=tuple(scored_others),
        ood_not_finite={name: count for name, count in not_finite.items() if count},
        inputs=len(targets),
        classes=classes,
        members=len(members),
        not_finite=len(last) - len(members),
        seed=seed,
        accuracies=np.array([item[own]["accuracy"] for item in by_size[1]]),
        diverged=flags(members, "diverged"),
        sizes=tuple(sizes[size] for size in sorted(sizes)),
        disagreement={name: disagreements[name] for name in (own, *scored_others)},
        references=dict(references or {}),
    )


def _scored(
    predictions: Mapping[str, Predictions], targets: NDArray[np.int64], read: Callable[[int], None]
) -> tuple[dict[int, list[Scores]], dict[str, float]]:
    """Map sizes to the figures of each ensemble, and sets to the share of pairs of members that disagree.

    ``predictions`` maps sets to predictions of the same members, with the scored set first; ``read`` is called with the
    bytes of each batch.
    """
    own = next(iter(predictions))
    K, _, classes = predictions[own].logits.shape
    ends = np.cumsum([0, *(item.logits.shape[1] for item in predictions.values())])
    sets = {name: slice(*ends[index : index + 2]) for index, name in enumerate(predictions)}
    sizes = _sizes(K)
    growing, votes = DisjointEnsembles(sizes), np.zeros((ends[-1], classes), np.int64)
    scored: dict[int, list[Scores]] = {size: [] for size in (1, *sizes)}
    # a member has a K-th of all bytes
    batch_size = max(1, BATCH_BYTES * K // sum(item.logits.nbytes for item in predictions.values()))
    for batches in zip(*(item.stream(batch_size=batch_size) for item in predictions.values()), strict=True):
        logits = np.concatenate([batch["logits"] for batch in batches], axis=1)
        for of_member in logits:
            logs = log_softmax(of_member)
            scored[1].append(scores(logs, None, sets, targets))
            # every row once: numpy would add a repeated index a single time
            votes[np.arange(len(logs)), logs.argmax(-1)] += 1
            for ensemble in growing.add(SummedPredictions.of(logs)):
                if len(scored[ensemble.size]) < SUBSETS:
                    figures = scores(ensemble.logs, ensemble.mutual_information, sets, targets)
                    scored[ensemble.size].append(figures)
        read(logits.nbytes)
    return scored, {name: float(disagreement(votes[inputs]).mean()) for name, inputs in sets.items()}


def _sizes(members: int) -> list[int]:
    """Return the sizes of ensembles, ascending and 2 or more each; the last is all members."""
    # 2^(bit_length - 1) is the largest power of two that is not above the number
    powers = [2**power for power in range(1, members.bit_length())]
    return sorted({size for size in (*powers, *EXTRA, members) if size <= members})


def scored_sets(zoo: Zoo, own: str | None, ood: Sequence[str] | None) -> tuple[str, list[str]]:
    """Return the set to score, and those to distinguish from it."""
    known = zoo.predicted
    if not known:
        raise ZooError(Problem(zoo.name, "predictions", "those on a set of inputs", "none", f"{predict_command(zoo)}."))
    if own is None:
        own = default_sets(zoo)[0]
    if own is None:
        expected = "a set with labels among them"
        raise ZooError(Problem(zoo.name, "predictions", expected, ", ".join(known), f"{predict_command(zoo)}."))
    if ood is not None and own in ood:
        step = "Leave it out, or choose another set to score."
        raise ZooError(Problem(zoo.name, "ood", f"other sets than {own}, which is scored", "that one too", step))
    others = default_sets(zoo)[1] if ood is None else dict.fromkeys(ood)
    return own, [name for name in others if name != own]
