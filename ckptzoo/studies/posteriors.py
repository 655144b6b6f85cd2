"""How near do approximate posteriors come to independently trained members, and what are they good for?"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo.arguments import Count, Seed, Within, checked
from ckptzoo.console import columns, facts
from ckptzoo.errors import Problem, ZooError
from ckptzoo.format import durable
from ckptzoo.loader.flags import usable_networks
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.predictions import average_precision, fpr
from ckptzoo.schema import layout
from ckptzoo.schema.documents import Document, JsonFields, json_value
from ckptzoo.studies.discrepancy import Discrepancy, mmd
from ckptzoo.studies.ensemble_scores import RIGHT
from ckptzoo.studies.ensembles import scored_sets
from ckptzoo.studies.published import (
    OUT_OF_DISTRIBUTION,
    PublishedFigure,
    comparable_figures,
    published_architecture,
)
from ckptzoo.studies.shared.draws import DrawGroup, draw_groups, summed_predictions
from ckptzoo.studies.shared.result import Spread, StudyResult
from ckptzoo.studies.shared.selection import labels_of, table_of, thinned
from ckptzoo.text import Progress, counted, counter, printable

ENSEMBLE = "ensemble"
"""The method whose draws are independent members, left out of the target."""
REMOVALS = {"mmd": layout.RAW, "scales": "unit-norm", "ns": "first-weight", "canonical": "canonical"}
"""Families of distances, and the variant in which weights are compared: as trained, scales removed, and both scales and
order removed, as the paper does (sorted by the first weight) and completely."""
STATISTICS = ("median", "mean", "max")
PERFORMANCE = {
    "acc": "Acc",
    "nll": "NLL",
    "ece": "ECE",
    "brier": "Brier",
    "aupr": "AUPR",
    "fpr95": "FPR95",
    "idmi": "IDMI",
    "oodmi": "OODMI",
}
"""Figures of predictions; all in hundredths, so percent and hundredths of a nat."""
DETECTION = {
    "aupr": "AUPR",
    "fpr95": "FPR95",
    "information_aupr": "AUPR (MI)",
    "information_fpr95": "FPR95 (MI)",
    "oodmi": "OODMI",
}
"""Figures of an out-of-distribution set; the score is the doubt, or mutual information."""
MAX_LAYERS = 8
"""The number of layers whose distances are printed, evenly spaced; all are in the JSON file."""
_CSV_COLUMNS = (
    *("method", "modes", "mode_count", "draws", "figure", "mean", "sd", "replicates"),
    *("published", "read_as", "difference", "doubt"),
)
_MODES = {"one": "one mode", "multi": "several modes"}

Figures = dict[str, Spread]


@dataclass(frozen=True)
class LayerMeans:
    """The distance between draws and target in one layer; means over replicates.

    The distances are in hundredths, ``median`` over the twenty kernels: 10 Laplace kernels and then 10 Gaussian ones.
    ``spread`` and ``offset`` of the draws are in units of the target's spread (``ckptzoo.studies.discrepancy``), None
    where the target's members are all equal.
    """

    median: float
    kernels: tuple[float, ...]
    spread: float | None
    offset: float | None


@dataclass(frozen=True)
class MethodResult(JsonFields, without=("published",)):
    """A method, around one mode or around several.

    ``label`` has the name and the settings that distinguish it from others of this name; ``modes`` is ``one`` or
    ``multi``; a replicate has ``mode_count`` modes and ``draws`` checkpoints in all of them together; ``figures`` are
    those of ``REMOVALS`` with ``_median``, ``_mean`` and ``_max``, and of ``PERFORMANCE``: over replicates, in
    hundredths; ``detection`` maps out-of-distribution sets to the figures of ``DETECTION``; ``published`` has the
    paper's figures.
    """

    method: str
    label: str
    modes: str
    mode_count: int
    draws: int
    figures: Figures
    layers: dict[str, dict[str, LayerMeans]]
    detection: dict[str, Figures]
    published: Mapping[str, PublishedFigure]

    @property
    def replicates(self) -> int:
        """The number of measured replicates."""
        return max((spread.count for spread in self.figures.values()), default=0)

    def difference(self, figure: str) -> float | None:
        """Measured less published, as the published figure is read; None where either is not known."""
        spread, published = self.figures.get(figure), self.published.get(figure)
        return (
            None
            if spread is None or published is None or published.read_as is None
            else spread.mean - published.read_as
        )

    def to_json(self) -> Document:
        return {
            **super().to_json(),
            "figures": [
                {
                    "figure": name,
                    **spread.to_json(),
                    "published": None if (item := self.published.get(name)) is None else item.printed,
                    "read_as": None if item is None else item.read_as,
                    "doubt": "" if item is None else item.doubt,
                    "difference": self.difference(name),
                }
                for name, spread in self.figures.items()
            ],
            "layers": [
                {"distance": family, "layer": layer, **json_value(value)}
                for family, values in self.layers.items()
                for layer, value in values.items()
            ],
            "detection": [
                {"set": name, "figure": figure, **spread.to_json()}
                for name, figures in self.detection.items()
                for figure, spread in figures.items()
            ],
        }


@dataclass(frozen=True, eq=False)
class Posteriors(StudyResult):
    """How near methods come to a target posterior, and how well they predict; drawn as ``posteriors.png``.

    Written beside it: ``posteriors.csv`` and ``posteriors.tex``, the tables for other programs. ``members`` counts the
    target's, without ``starts`` from which modes were started, and ``ensembles`` that serve as ensembles; ``set`` is
    scored, and ``ood`` are the sets to be distinguished from it, the first in the main table; ``entries`` has one mode
    and several of each method; ``published_of`` is the architecture of the published figures, which are shown with its
    width where the target has another; ``diverged`` counts diverged draws by method, which are scored as they are.
    """

    file: ClassVar[str] = "posteriors.json"

    target: str
    samples: str
    members: int
    starts: int
    ensembles: int
    set: str
    ood: tuple[str, ...]
    entries: tuple[MethodResult, ...]
    architecture: str
    published_of: str
    diverged: dict[str, int]
    seed: int

    @property
    def has_published(self) -> bool:
        """Whether the paper has figures for this data set and architecture."""
        return any(entry.published for entry in self.entries)

    def entry(self, method: str, modes: str) -> MethodResult:
        """The entry of a method's name or label."""
        return next(item for item in self.entries if method in (item.method, item.label) and item.modes == modes)

    def to_json(self) -> Document:
        diverged = [{"method": name, "draws": count} for name, count in self.diverged.items()]
        return {**super().to_json(), "diverged": diverged}

    def plot(self, folder: str | Path) -> list[Path]:
        """Plot as every study does, and write the tables as CSV and LaTeX."""
        paths, target = super().plot(folder), Path(folder)
        for name, text in (("posteriors.csv", self.to_csv()), ("posteriors.tex", self.to_latex())):
            durable.write_file(target / name, text.encode())
            paths.append(target / name)
        return paths

    def to_csv(self) -> str:
        """Return the table as CSV, a row for each method, modes and figure."""
        text = io.StringIO()
        writer = csv.DictWriter(text, _CSV_COLUMNS, lineterminator="\n")
        writer.writeheader()
        for entry in self.entries:
            own = {"method": entry.label, "modes": entry.modes, "mode_count": entry.mode_count, "draws": entry.draws}
            for name, spread in entry.figures.items():
                row = {**own, "figure": name, "mean": f"{spread.mean:.6g}", "sd": f"{spread.sd:.3g}"}
                row["replicates"] = spread.count
                if (item := entry.published.get(name)) is not None:
                    row |= {"published": item.printed, "read_as": _text(item.read_as), "doubt": item.doubt}
                    row["difference"] = _text(entry.difference(name))
                writer.writerow(row)
        return text.getvalue()

    def to_latex(self) -> str:
        """Return the main table in LaTeX for booktabs, with the published figures in a smaller line below."""
        names = ["mmd_median", "ns_median", "canonical_median", *PERFORMANCE]
        heads = ["MMD", "NS", "NS (canonical)", *PERFORMANCE.values()]
        rows = [" & ".join(["method", "modes", *heads]) + r" \\", r"\midrule"]
        for entry in self.entries:
            cells = [_cell(entry.figures.get(name), r" $\pm$ ") for name in names]
            rows.append(" & ".join([_latex(entry.label), entry.modes, *cells]) + r" \\")
            if entry.published:
                cells = [_published(entry.published.get(name), r"$^*$") for name in names]
                label = rf"\quad\footnotesize {_latex(self._published_label)}"
                rows.append(" & ".join([label, "", *cells]) + r" \\")
        body = "\n".join(rows)
        return f"\\begin{{tabular}}{{ll{'r' * len(names)}}}\n\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"

    def _lines(self) -> Iterator[RenderableType]:
        yield facts(self._facts())
        yield "\ndistance to the target, 100 MMD²: median, mean and largest of twenty kernels, averaged over layers"
        for family, title in _TABLE_TITLES.items():
            yield f"\n{title}"
            yield self._table({f"{family}_{name}": name for name in STATISTICS})
        yield f"\n{printable(self.set)}, in hundredths"
        yield self._table({name: title for name, title in PERFORMANCE.items() if name not in OUT_OF_DISTRIBUTION})
        if self.ood:
            yield f"\n{printable(self.ood[0])} told from {printable(self.set)}, in hundredths"
            yield self._table({name: PERFORMANCE[name] for name in OUT_OF_DISTRIBUTION})
        yield from self._doubts()
        if len(self.ood) > 1:
            yield "\nhow the figures depend on the out-of-distribution set and on the score, in hundredths"
            yield self._detection_table()
        yield "\nwhat removing symmetries does: 100 MMD², median of twenty kernels (spread, in units of the target's)"
        names = [*next((layers for entry in self.entries for layers in entry.layers.values()), {})]
        shown, left_out = thinned(names, MAX_LAYERS)
        yield self._removal_table(shown)
        if left_out:
            yield f"{counted(left_out, 'more layer')} not shown"

    def _facts(self) -> list[tuple[str, str]]:
        left_out = (
            f"{self.starts:,} from which modes were started and {self.ensembles:,} that serve as ensembles left out"
        )
        rows = [("target", f"{self.target}: {counted(self.members, 'member')}; {left_out}"), ("samples", self.samples)]
        if self.has_published and self.published_of != self.architecture:
            rows.append(("published", f"figures are those of {self.published_of}; the target is {self.architecture}"))
        rows += [("diverged", f"{counted(count, 'draw')} of {name}") for name, count in self.diverged.items() if count]
        return rows

    @property
    def _published_label(self) -> str:
        return "published" if self.published_of == self.architecture else f"of {self.published_of}"

    def _table(self, figures: Mapping[str, str]) -> Table:
        table = columns("method", "modes", "draws", *figures.values())
        for entry in self.entries:
            cells = [_cell(entry.figures.get(name)) for name in figures]
            table.add_row(entry.label, str(entry.mode_count), f"{entry.draws:,}", *cells)
            if any(name in entry.published for name in figures):
                table.add_row(
                    f"  {self._published_label}", "", "", *(_published(entry.published.get(name)) for name in figures)
                )
                differences = [entry.difference(name) for name in figures]
                table.add_row("  difference", "", "", *("" if d is None else f"{d:+.1f}" for d in differences))
        return table

    def _doubts(self) -> Iterator[str]:
        doubts: dict[str, list[str]] = {}
        for entry in self.entries:
            for name, item in entry.published.items():
                if item.doubt:
                    doubts.setdefault(item.doubt, []).append(f"{entry.method} {_MODES[entry.modes]} {name}")
        for doubt, cells in doubts.items():
            shown = ", ".join(cells[:4]) + (f" and {len(cells) - 4} more" if len(cells) > 4 else "")
            yield f"* {doubt} ({shown})."

    def _detection_table(self) -> Table:
        table = columns("method", "modes", "set", *DETECTION.values())
        for entry in self.entries:
            for name, figures in entry.detection.items():
                cells = [_cell(figures.get(figure)) for figure in DETECTION]
                table.add_row(entry.label, str(entry.mode_count), printable(name), *cells)
        return table

    def _removal_table(self, layers: Sequence[str]) -> Table:
        families = {
            family: title for family, title in _FAMILY_TITLES.items() if any(family in e.layers for e in self.entries)
        }
        table = columns("method", "modes", "layer", *families.values())
        for entry in self.entries:
            for layer in layers if entry.layers else ():
                means = [entry.layers[family][layer] for family in families]
                cells = [
                    f"{item.median:.2f} ({'-' if item.spread is None else f'{item.spread:.2f}'})" for item in means
                ]
                table.add_row(entry.label, str(entry.mode_count), printable(layer), *cells)
        return table


_FAMILY_TITLES = {
    "mmd": "as trained",
    "scales": "scales removed",
    "ns": "and sorted as paper",
    "canonical": "and sorted, canonical",
}
_TABLE_TITLES = {
    "mmd": "as trained",
    "ns": "symmetries removed as in arXiv 2310.08287: norms of 1, sorted by the first weight",
    "canonical": "symmetries removed by the canonical gauge",
}


@checked
def posteriors(
    target: Zoo,
    samples: Zoo,
    set: str | None = None,
    *,
    ood: Sequence[str] | None = None,
    modes: Annotated[int, Within(2)] = 10,
    draws: Count = 10,
    ensemble: Annotated[int, Within(2)] = 100,
    replicates: Count = 3,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> Posteriors:
    """Compare draws of approximate posteriors with independent members, as Tables 1 and 2 of arXiv 2310.08287.

    For each method of ``samples``, one mode with all its draws, and several modes with the first draws of each: the
    distance to the target's members in weights (``ckptzoo.studies.mmd``), as trained and with symmetries removed, and
    how well the average of the draws' probabilities predicts. Replicates are different modes. An ensemble is made of
    members of the target's zoo. Members from which any mode was started, and those of the ensembles, are left out of
    the target for every method.

    Parameters
    ----------
    target
        independently trained members, with the variants of ``REMOVALS`` and with predictions.
    samples
        draws, whose rows say ``method``, ``mode`` and ``draw``, with the same variants and predictions.
    set
        the predictions to score; by default the first set of the samples that has labels.
    ood
        sets to be distinguished from it, the first for the main table; by default all without labels.
    modes, draws
        of the entry with several modes: how many, and the draws of each.
    ensemble
        members of an ensemble.
    replicates
        the greatest number of each entry.
    seed
        of the members that make the ensembles.
    progress
        called with what is done and what there is to do.

    Raises
    ------
    ZooError
        No draws, other architectures, too few members, or predictions or variants are missing: the message has the
        command that makes them.

    Notes
    -----
    Cost: 4 discrepancies an entry and replicate, each between the target and the draws. Tested in
    ``tests/studies/test_posteriors.py``.

    Examples
    --------
    Of zoos with stored predictions and the variants first-weight and unit-norm, beside canonical:

    >>> from ckptzoo.studies.posteriors import posteriors
    >>> target, samples = ckptzoo.open("zoos/few"), ckptzoo.open("zoos/draws")
    >>> found = posteriors(target, samples, modes=2, draws=2, ensemble=4, replicates=1)
    >>> [(entry.method, entry.modes, entry.draws) for entry in found.entries]
    [('dropout', 'one', 2), ('swag', 'one', 2), ('dropout', 'multi', 4), ('swag', 'multi', 4), ('ensemble', 'multi', 4)]
    """
    own, others = scored_sets(samples, set, ood)
    for zoo in (target, samples):
        for variant in REMOVALS.values():
            if variant != layout.RAW:
                table_of(zoo, variant)
    groups = draw_groups(samples)
    last = target.last_steps()
    start_members = {row["mode"] for group in groups for row in group.rows}
    is_start = np.isin(np.array(last.column("member").to_pylist(), dtype=object), list(start_members))
    # draws stay near the member from which their mode started, which is no independent draw of the target then
    free = usable_networks(last) & ~is_start
    ensembles = _ensembles(np.flatnonzero(free), ensemble, replicates, seed, target)
    remaining = _remaining(last, free, ensembles)
    published = _published_for(target, others)
    jobs: list[tuple[DrawGroup | None, str, list[Zoo]]] = [(None, "multi", [last.take(rows) for rows in ensembles])]
    for group in groups:
        for kind, selections in (("one", group.one(replicates)), ("multi", group.several(modes, draws, replicates))):
            if selections:
                jobs.append((group, kind, [samples.take(np.array(rows)) for rows in selections]))
    step = counter(sum(len(zoos) for _, _, zoos in jobs) * (len(REMOVALS) + 1), progress)
    entries: list[MethodResult] = []
    for group, kind, zoos in jobs:
        distances = [_distances(remaining, zoo, step) for zoo in zoos]
        predictions = [_predictions(zoo, own, others) for zoo in zoos]
        for _ in zoos:
            step()
        values = [
            {**distance, **prediction[0]} for (distance, _), prediction in zip(distances, predictions, strict=True)
        ]
        method = ENSEMBLE if group is None else group.method
        entries.append(
            MethodResult(
                method=method,
                label=method if group is None else group.label,
                modes=kind,
                mode_count=len(zoos[0]) if group is None else len({*zoos[0].column("mode").to_pylist()}),
                draws=len(zoos[0]),
                figures=_spreads(values),
                layers=_layer_distances([layers for _, layers in distances]),
                detection={name: _spreads([prediction[1][name] for prediction in predictions]) for name in others},
                published=published.get((method, kind), {}),
            )
        )
    order = {name: number for number, name in enumerate(dict.fromkeys(group.label for group in groups))}
    entries.sort(key=lambda entry: (entry.modes != "one", order.get(entry.label, len(order))))
    return Posteriors(
        target=target.name,
        samples=samples.name,
        members=len(remaining),
        starts=int(is_start.sum()),
        ensembles=sum(len(rows) for rows in ensembles),
        set=own,
        ood=tuple(others),
        entries=tuple(entries),
        architecture=target.arch.name,
        published_of=published_architecture(target.arch.name),
        diverged={group.label: sum(bool(row["diverged"]) for row in group.rows) for group in groups},
        seed=seed,
    )


def _remaining(members: Zoo, free: NDArray[np.bool_], ensembles: list[NDArray[np.int64]]) -> Zoo:
    """Those of the free members that are in no ensemble: what draws are compared with."""
    rest = free.copy()
    # a target that holds the ensemble's own members would seem too near
    rest[np.concatenate(ensembles)] = False
    if rest.sum() < 2:
        expected, got = "2 or more beside those of ensembles and starts", str(int(rest.sum()))
        raise ZooError(Problem(members.name, "members", expected, got, "Name a larger target, or smaller ensembles."))
    return members.take(np.flatnonzero(rest))


def _ensembles(free: NDArray[np.int64], size: int, replicates: int, seed: int, target: Zoo) -> list[NDArray[np.int64]]:
    """Disjoint members for ensembles, at most half of those available."""
    count = min(replicates, len(free) // (2 * size))
    if not count:
        expected, step = f"{2 * size:,} or more from which no mode was started", "Ask for smaller ensembles."
        raise ZooError(Problem(target.name, "members", expected, f"{len(free):,}", step))
    order = np.random.default_rng(seed).permutation(free)
    return [np.sort(order[start * size : (start + 1) * size]) for start in range(count)]


def _distances(target: Zoo, zoo: Zoo, step: Any) -> tuple[dict[str, float], dict[str, Discrepancy]]:
    """The three statistics of every variant, in hundredths, and the full results."""
    figures: dict[str, float] = {}
    whole: dict[str, Discrepancy] = {}
    for family, variant in REMOVALS.items():
        compared = mmd(target, zoo, variant)
        values = (compared.median, compared.mean, compared.most)
        # the tables of arXiv 2310.08287 print 100 MMD^2
        figures |= {f"{family}_{name}": 100 * value for name, value in zip(STATISTICS, values, strict=True)}
        whole[family] = compared
        step()
    return figures, whole


def _layer_distances(replicates: Sequence[Mapping[str, Discrepancy]]) -> dict[str, dict[str, LayerMeans]]:
    return {
        family: {
            same[0].name: LayerMeans(
                median=100 * float(np.mean([layer.median for layer in same])),
                kernels=tuple((100 * np.mean([layer.mmd2 for layer in same], axis=0)).tolist()),
                spread=_mean([layer.spread for layer in same]),
                offset=_mean([layer.offset for layer in same]),
            )
            for same in zip(*(discrepancies[family].layers for discrepancies in replicates), strict=True)
        }
        for family in REMOVALS
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _predictions(zoo: Zoo, own: str, others: Sequence[str]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Figures of the average of the draws' probabilities, in hundredths: the main ones, and those of each other set."""
    summed = {name: summed_predictions(zoo, name) for name in (own, *others)}
    targets = labels_of(zoo, own)
    logs, information = summed[own].logs, summed[own].mutual_information
    short = {"acc": "accuracy", "nll": "nll", "ece": "ece", "brier": "brier"}
    figures = {name: float(RIGHT[long](logs, targets)) for name, long in short.items()}
    figures["idmi"] = float(information.mean())
    detection: dict[str, dict[str, float]] = {}
    for name in others:
        other = summed[name]
        doubt, own_doubt, other_information = -other.logs.max(-1), -logs.max(-1), other.mutual_information
        detection[name] = {
            "aupr": average_precision(doubt, own_doubt),
            "fpr95": fpr(doubt, own_doubt),
            "information_aupr": average_precision(other_information, information),
            "information_fpr95": fpr(other_information, information),
            "oodmi": float(other_information.mean()),
        }
    if others:
        figures |= {name: detection[others[0]][name] for name in OUT_OF_DISTRIBUTION}
    hundredths = {name: 100 * figures[name] for name in PERFORMANCE if name in figures}
    return hundredths, {
        name: {figure: 100 * value for figure, value in values.items()} for name, values in detection.items()
    }


def _spreads(values: Sequence[Mapping[str, float]]) -> Figures:
    spreads = {name: Spread.of([item[name] for item in values]) for name in values[0]}
    return {name: spread for name, spread in spreads.items() if spread is not None}


def _published_for(target: Zoo, ood: Sequence[str]) -> dict[tuple[str, str], dict[str, PublishedFigure]]:
    datasets = target.column("dataset").drop_null().unique().to_pylist()
    return comparable_figures(datasets[0], target.arch.name, next(iter(ood), None)) if len(datasets) == 1 else {}


def _cell(spread: Spread | None, between: str = " ± ") -> str:
    if spread is None:
        return "-"
    return f"{spread.mean:.1f}" + (f"{between}{spread.sd:.1f}" if spread.count > 1 else "")


def _published(item: PublishedFigure | None, mark: str = "*") -> str:
    if item is None:
        return ""
    return f"{item.printed:g}" + (mark if item.doubt else "")


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _latex(text: str) -> str:
    # characters that TeX reads as commands
    return "".join(f"\\{character}" if character in "_%&#$" else character for character in text)
