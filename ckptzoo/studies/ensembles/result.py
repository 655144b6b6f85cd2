"""What a study of ensembles found."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group, RenderableType
from rich.table import Table

from ckptzoo.studies.ensembles.scores import Scores
from ckptzoo.studies.shown.drawn import need_matplotlib, write
from ckptzoo.studies.shown.spread import Spread
from ckptzoo.studies.shown.tables import columns, facts
from ckptzoo.words import counted, printable

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
    scores : set to figures by name, as in ``ckptzoo.studies.ensembles.scores.scores``, over the subsets.
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
        from ckptzoo.studies.ensembles import pictures

        kinds_of = {self.set: _OWN, **dict.fromkeys(self.ood, _OTHER)}
        curves = {name: {kind: self.figure(kind, name) for kind in kinds} for name, kinds in kinds_of.items()}
        own, lines = curves.pop(self.set), self.references
        drawn = {
            "ensembles.png": pictures.curves(self.name, self.set, own, lines),
            "members.png": pictures.members(
                self.name, self.set, self.inputs, self.accuracies, self.diverged, own["accuracy"], lines
            ),
        }
        if curves:
            drawn["detection.png"] = pictures.detection(self.name, self.set, curves)
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
