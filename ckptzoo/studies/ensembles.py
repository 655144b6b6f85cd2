"""How good are single members, how good are ensembles of them, and from which size on do they gain no more?

How good are single members and ensembles of them, by stored predictions?

What a study of ensembles found.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group, RenderableType
from rich.table import Table

from ckptzoo.console import columns, facts
from ckptzoo.errors import ZooError
from ckptzoo.loader.predictions import Predictions
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.predictions import disagreement
from ckptzoo.studies.ensemble_scores import DisjointEnsembles, Scores, Sum, log_softmax, scores
from ckptzoo.studies.shared.report import Spread, need_matplotlib, write
from ckptzoo.text import Progress, counted, printable

SHARES = (0.9, 0.99)
"""Shares of the gain whose sizes are told."""
_OWN = {"accuracy": "accuracy", "nll": "NLL", "brier": "Brier", "ece": "ECE"}
_OTHER = {
    "auroc": "AUROC",
    "fpr95": "FPR95",
    "information_auroc": "AUROC (MI)",
    "information_fpr95": "FPR95 (MI)",
}
_PERCENT = {"accuracy", "ece", *_OTHER}


@dataclass(frozen=True)
class Size:
    """Ensembles of one size.

    Parameters
    ----------
    size : members of each; 1 for the members themselves.
    subsets : ensembles of this size that were scored, no two of which share a member; a set that some members are
        left out for may have fewer, the ``count`` of its figures.
    scores : set to figures by name, as in ``ckptzoo.studies.ensemble_scores.scores``, over the subsets.
    """

    size: int
    subsets: int
    scores: dict[str, dict[str, Spread]]

    @classmethod
    def of(cls, size: int, found: Sequence[Scores]) -> "Size":
        """From the figures of each ensemble."""
        made: dict[str, dict[str, Spread]] = {}
        for name, first in found[0].items():
            spreads = {figure: Spread.of([item[name][figure] for item in found]) for figure in first}
            made[name] = {figure: spread for figure, spread in spreads.items() if spread is not None}
        return cls(size, len(found), made)

    def beside(self, other: "Size | None") -> "Size":
        """With the figures of another for ensembles of this size, on other sets."""
        return self if other is None else Size(self.size, other.subsets, other.scores | self.scores)

    def to_json(self) -> dict[str, Any]:
        """Every figure by name."""
        scores = [
            {"set": name, **{figure: spread.to_json() for figure, spread in figures.items()}}
            for name, figures in self.scores.items()
        ]
        return {"size": self.size, "subsets": self.subsets, "scores": scores}


@dataclass(frozen=True, eq=False)
class Ensembles:
    """How good single members and ensembles of them are.

    Parameters
    ----------
    set, ood : the set that is scored, and those that are told from it.
    ood_not_finite : other set to how many of the members are not finite on it, where some are. They are left out for
        that set; where fewer than two remain, the set is not in ``ood``.
    inputs, classes : of the set.
    members : those that are finite on the set; ``not_finite`` more were left out.
    seed : of the order in which members make ensembles.
    accuracies : (members,) on the set, in that order.
    diverged : (members,) which of them diverged.
    sizes : ascending, from single members to all.
    disagreement : set to the share of pairs of members that choose different classes, mean over the inputs.
    references : name to accuracy, from elsewhere.
    """

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
        """Size to a figure, on the set that is scored or on another; sizes without it are left out."""
        found = {item.size: item.scores.get(set or self.set, {}).get(name) for item in self.sizes}
        return {size: spread for size, spread in found.items() if spread is not None}

    def enough(self, name: str, share: float) -> int | None:
        r"""The least size that, with all larger ones, has this share of the gain that all members make.

        .. math:: \min \left\{ S : \forall T \ge S,\ \frac{a_T - a_1}{a_M - a_1} \ge r \right\}

        for means :math:`a_S` over ensembles of size S, M members and share r.

        Parameters
        ----------
        name : of a figure of the set: ``accuracy``, ``nll``, ``brier`` or ``ece``.
        share : r, at most 1.

        Returns
        -------
        int, or None where the ensemble of all is no better than single members, or where noise hides the size: the
        rest of the gain, :math:`(1 - r) |a_M - a_1|`, is below the standard error of a mean from that size on, or for
        the accuracy below one input, or there is a single ensemble of that size.
        """
        spreads = self.figure(name)
        means = {size: spread.mean for size, spread in spreads.items()}
        if not self._gains(name):
            return None
        gain = means[self.members] - means[1]
        short = [size for size, mean in means.items() if (mean - means[1]) / gain < share]
        found = min(size for size in means if size > max(short, default=0))
        errors = [item.sd / item.count**0.5 for size, item in spreads.items() if size >= found and item.count > 1]
        noise = max(*errors, 1 / self.inputs if name == "accuracy" else 0.0, 0.0)
        return found if spreads[found].count > 1 and (1 - share) * abs(gain) >= noise else None

    def _gains(self, name: str) -> bool:
        means = self.figure(name)
        gain = means[self.members].mean - means[1].mean
        return (gain if name == "accuracy" else -gain) > 0

    def to_json(self) -> dict[str, Any]:
        """Every figure by name, without those of each member."""
        names = ("name", "set", "inputs", "classes", "members", "not_finite", "seed")
        return {
            **{name: getattr(self, name) for name in names},
            "ood": list(self.ood),
            "ood_not_finite": [{"set": name, "members": count} for name, count in self.ood_not_finite.items()],
            "diverged": int(self.diverged.sum()),
            "sizes": [item.to_json() for item in self.sizes],
            "disagreement": [{"set": name, "pairs": share} for name, share in self.disagreement.items()],
            "enough": [
                {"figure": name, "share": share, "size": self.enough(name, share)}
                for name in ("accuracy", "nll", "brier", "ece")
                for share in SHARES
            ],
            "references": [{"name": name, "accuracy": value} for name, value in self.references.items()],
        }

    def print(self, console: Console | None = None) -> None:
        """Print facts, tables and what they say on a rich console, by default the standard output."""
        own, others = printable(self.set), [printable(name) for name in self.ood]
        shown: list[RenderableType] = [facts(self._facts()), "", f"{own}: accuracy and ECE in %, NLL in nats"]
        shown.append(self._table(self.set, _OWN))
        for name, label in zip(self.ood, others, strict=True):
            shown += ["", f"{label} told from {own}, in %: by 1 - largest probability, and by mutual information"]
            shown.append(self._table(name, _OTHER))
        words = "mean ± standard deviation over ensembles that share no member."
        if others:
            words += (
                " AUROC: how often an input of the other set has the higher score. FPR95: the share of the own set "
                "that is flagged where 95 % of the other is."
            )
        shown += ["", self._diversity(), "", words, "", *self._reading()]
        (console or Console()).print(Group(*shown), markup=False, highlight=False)

    def plot(self, folder: str | Path) -> list[Path]:
        """Write ``ensembles.png``, ``members.png``, ``detection.png`` where there are other sets, ``ensembles.json``.

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
        from ckptzoo.studies.plots import ensembles

        kinds_of = {self.set: _OWN, **dict.fromkeys(self.ood, _OTHER)}
        curves = {name: {kind: self.figure(kind, name) for kind in kinds} for name, kinds in kinds_of.items()}
        own, lines = curves.pop(self.set), self.references
        drawn = {
            "ensembles.png": ensembles.curves(self.name, self.set, own, lines),
            "members.png": ensembles.members(
                self.name, self.set, self.inputs, self.accuracies, self.diverged, own["accuracy"], lines
            ),
        }
        if curves:
            drawn["detection.png"] = ensembles.detection(self.name, self.set, curves)
        return write(folder, drawn, "ensembles.json", self.to_json())

    def _facts(self) -> list[tuple[str, str]]:
        spread = self.figure("accuracy")[1]
        count = int(self.diverged.sum())
        apart = f", {count:,} of them diverged" if count else ""
        left = f"; {self.not_finite:,} not finite and left out" if self.not_finite else ""
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
            ("zoo", f"{self.name}: {counted(self.members, 'member')}{apart}{left}"),
            ("set", f"{self.set}: {counted(self.inputs, 'input')}, {self.classes:,} classes"),
            *(("other set", note) for note in notes),
            ("single members", f"accuracy {accuracy}"),
            ("all members", f"accuracy {self.figure('accuracy')[self.members].mean:.2%}"),
            *(("reference", f"accuracy {value:.2%}: {name}") for name, value in self.references.items()),
        ]

    def _table(self, name: str, figures: dict[str, str]) -> Table:
        table = columns("members", "ensembles", *figures.values())
        for size, first in self.figure(next(iter(figures)), name).items():
            shown = [_figure(figure, self.figure(figure, name).get(size)) for figure in figures]
            table.add_row(f"{size:,}", f"{first.count:,}", *shown)
        return table

    def _diversity(self) -> Table:
        table = columns("diversity of all members", "pairs that disagree", "mutual information")
        for name, share in self.disagreement.items():
            information = self.figure("mutual_information", name)
            table.add_row(printable(name), f"{share:.2%}", f"{information[max(information)].mean:.4f} nats")
        return table

    def _reading(self) -> list[str]:
        """What the tables say of where gains end, and of a calibration that is worse together."""
        lines: list[str] = []
        for name, unit in (("accuracy", " %"), ("nll", "")):
            one, most = (f"{_mean(name, self.figure(name)[size])}{unit}" for size in (1, self.members))
            told = [
                f"{size:,} members have {100 * share:g} % of the gain"
                for share in SHARES
                if (size := self.enough(name, share)) is not None
            ]
            none = "where the gain ends is hidden by noise" if self._gains(name) else "no gain"
            lines.append(f"{_OWN[name]}: {one} alone, {most} together; {', '.join(told) or none}.")
        one, most = (self.figure("ece")[size].mean for size in (1, self.members))
        sure, right = (self.figure(name)[self.members].mean for name in ("confidence", "accuracy"))
        if most > one and sure < right:
            lines.append(
                f"ECE: {100 * one:.2f} % alone, {100 * most:.2f} % together: the ensembles are less sure than they are "
                f"right (all together: mean confidence {100 * sure:.2f} %, accuracy {100 * right:.2f} %)."
            )
        return lines


def _mean(name: str, spread: Spread) -> str:
    return f"{100 * spread.mean:.2f}" if name in _PERCENT else f"{spread.mean:.3f}"


def _figure(name: str, spread: Spread | None) -> str:
    if spread is None:
        return "-"
    if spread.count == 1:
        return _mean(name, spread)
    sd = f"{100 * spread.sd:.2f}" if name in _PERCENT else f"{spread.sd:.3f}"
    return f"{_mean(name, spread)} ± {sd}"


SUBSETS = 50
"""Ensembles of one size that are scored, at most; single members are all."""
EXTRA = (10, 100)
"""Sizes beside the powers of two."""
BATCH_BYTES = 4 * 2**20
"""Logits that are read at a time, as far as whole members allow."""


def ensembles(
    zoo: Zoo,
    set: str | None = None,
    *,
    ood: Sequence[str] | None = None,
    references: Mapping[str, float] | None = None,
    seed: int = 0,
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
    zoo : what ``ckptzoo.open`` gives, or a selection of it, with predictions. Each member's last step counts. Members
        that diverged count; those whose weights or logits on ``set`` are not finite are left out and counted.
    set : the predictions to score; by default the first set of the zoo that has labels.
    ood : sets of other inputs, to be told from those of ``set``; by default all that have no labels. Members whose
        logits on one of them are not finite are left out for that set alone.
    references : accuracies from elsewhere, 0 to 1, by the names under which they are shown.
    seed : of the order.
    progress : called with the bytes of logits read and the bytes in all.

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
    count as that. Known answers: ``tests/studies/test_ensembles.py``.
    """
    if wrong := {name: value for name, value in (references or {}).items() if not 0 <= value <= 1}:
        raise ZooError(f"{zoo.name}: references: expected accuracies from 0 to 1, got {wrong}. Correct them.")
    own, others = _sets(zoo, set, ood)
    last = zoo.last_steps()
    finite = last.metadata["finite"].fill_null(True).to_numpy().astype(np.bool_) & last.predictions(own).finite
    _enough(zoo, own, int(finite.sum()), len(last))
    members = last.take(np.random.default_rng(seed).permutation(np.flatnonzero(finite)))
    held = {name: members.predictions(name) for name in (own, *others)}
    targets, classes = held[own].targets, held[own].logits.shape[2]
    if targets is None:
        step = "Choose another set, or predict it with its labels."
        raise ZooError(f"{zoo.name}: labels of {own}: expected some, got none. {step}")
    if classes < 2:
        step = "Choose a zoo of classifiers with an output a class."
        raise ZooError(f"{zoo.name}: classes of {own}: expected 2 or more, got {classes}. {step}")
    odd = {name: int((~held[name].finite).sum()) for name in others}
    told = [name for name in others if len(members) - odd[name] >= 2]
    passes = [{name: held[name] for name in (own, *told) if not odd.get(name)}]
    for name in told:
        if odd[name]:
            kept = members.take(np.flatnonzero(held[name].finite))
            passes.append({each: kept.predictions(each) for each in (own, name)})
    total, done = sum(item.logits.nbytes for each in passes for item in each.values()), 0

    def read(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(done, total)

    (scored, apart), *more = [_scored(each, targets, read) for each in passes]
    sizes = {size: Size.of(size, found) for size, found in scored.items()}
    for each, pairs in more:
        (name,) = pairs.keys() - {own}
        apart[name] = pairs[name]
        for size, found in each.items():
            sizes[size] = Size.of(size, [{name: item[name]} for item in found]).beside(sizes.get(size))
    return Ensembles(
        name=zoo.name,
        set=own,
        ood=tuple(told),
        ood_not_finite={name: count for name, count in odd.items() if count},
        inputs=len(targets),
        classes=classes,
        members=len(members),
        not_finite=len(last) - len(members),
        seed=seed,
        accuracies=np.array([item[own]["accuracy"] for item in scored[1]]),
        diverged=members.metadata["diverged"].fill_null(False).to_numpy().astype(np.bool_),
        sizes=tuple(sizes[size] for size in sorted(sizes)),
        disagreement={name: apart[name] for name in (own, *told)},
        references=dict(references or {}),
    )


def _scored(
    held: Mapping[str, Predictions], targets: NDArray[np.int64], read: Callable[[int], None]
) -> tuple[dict[int, list[Scores]], dict[str, float]]:
    """Size to the figures of each ensemble, and set to the share of pairs of members that disagree.

    Parameters
    ----------
    held : set to the predictions of the same members, the set that is scored first.
    read : called with the bytes of each batch.
    """
    own = next(iter(held))
    K, _, classes = held[own].logits.shape
    ends = np.cumsum([0, *(item.logits.shape[1] for item in held.values())])
    sets = {name: slice(*ends[at : at + 2]) for at, name in enumerate(held)}
    sizes = _sizes(K)
    growing, votes = DisjointEnsembles(sizes), np.zeros((ends[-1], classes), np.int64)
    scored: dict[int, list[Scores]] = {size: [] for size in (1, *sizes)}
    several = max(1, BATCH_BYTES * K // sum(item.logits.nbytes for item in held.values()))
    for batches in zip(*(item.stream(batch_size=several) for item in held.values()), strict=True):
        logits = np.concatenate([batch["logits"] for batch in batches], axis=1)
        for one in logits:
            logs = log_softmax(one)
            scored[1].append(scores(logs, None, sets, targets))
            votes[np.arange(len(logs)), logs.argmax(-1)] += 1
            for whole in growing.add(Sum.of(logs)):
                if len(scored[whole.size]) < SUBSETS:
                    scored[whole.size].append(scores(whole.logs, whole.mutual_information, sets, targets))
        read(logits.nbytes)
    return scored, {name: float(disagreement(votes[inputs]).mean()) for name, inputs in sets.items()}


def _enough(zoo: Zoo, own: str, members: int, among: int) -> None:
    if members < 2:
        got = f"{members} of {among}"
        step = "Select others."
        raise ZooError(f"{zoo.name}: members: expected 2 or more with finite logits on {own}, got {got}. {step}")


def _sizes(members: int) -> list[int]:
    """2 or more each, ascending; the last is all."""
    powers = [2**power for power in range(1, members.bit_length())]
    return sorted({size for size in (*powers, *EXTRA, members) if size <= members})


def _sets(zoo: Zoo, own: str | None, ood: Sequence[str] | None) -> tuple[str, list[str]]:
    """The set to score, and those to tell from it."""
    known = zoo.predicted
    if not known:
        raise ZooError(f"{zoo.name}: predictions: expected those on a set of inputs, got none. {_predict(zoo)}.")
    if own is None:
        own = next((name for name in known if _labelled(zoo, name)), None)
    if own is None:
        got = f"got {', '.join(known)}. {_predict(zoo)}"
        raise ZooError(f"{zoo.name}: predictions: expected a set with labels among them, {got}.")
    if ood is not None and own in ood:
        step = "Leave it out, or choose another set to score."
        raise ZooError(f"{zoo.name}: ood: expected other sets than {own}, which is scored, got that one too. {step}")
    others = [name for name in known if not _labelled(zoo, name)] if ood is None else dict.fromkeys(ood)
    return own, [name for name in others if name != own]


def _predict(zoo: Zoo) -> str:
    """The command that stores predictions with labels: those on the data set of the networks have them."""
    folder, datasets = zoo.contents.files.here, zoo.metadata["dataset"].drop_null().unique().to_pylist()
    name = f"{datasets[0]}/test" if len(datasets) == 1 else "mnist/test"
    command = f"ckptzoo predict {quote(str(folder)) if folder else 'FOLDER'} {quote(name)}"
    return f"{'Run' if folder else 'Pull the zoo, then run'} {command}, which writes into that folder"


def _labelled(zoo: Zoo, name: str) -> bool:
    return zoo.predictions(name).targets is not None
