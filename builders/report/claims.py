"""Claims: what the three papers say, in which table, figure or section, and how a study's result is compared with it.

A published number has its paper, its table and its cell: those of Tables 1 and 2 are read from
``ckptzoo.studies.published``, others stand in the claim that names the figure. Ours are computed from results alone.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptzoo import archs
from ckptzoo.studies.barriers import BarrierStudy, ZooBarriers
from ckptzoo.studies.collapse import ENOUGH, SIGNIFICANT, Collapse
from ckptzoo.studies.compact import ALIGNED as ALIGNED_SAMPLES
from ckptzoo.studies.compact import KEPT, SAMPLED, SIGMA, CompactStudy
from ckptzoo.studies.mass import Masses, peak
from ckptzoo.studies.permutations import Permutations
from ckptzoo.studies.posteriors import PERFORMANCE, MethodResult, Posteriors
from ckptzoo.studies.published import PublishedFigure, posterior_figures
from ckptzoo.studies.shared.networks import ALIGNED, RAW
from ckptzoo.studies.toy import Toy
from ckptzoo.studies.transpositions import Transpositions
from ckptzoo.symmetry.transpositions import random_transpositions
from ckptzoo.text import counted

REPRODUCED, IN_PART, DIFFERS, OPEN = "reproduced", "in part", "differs", "open"
VERDICTS = (REPRODUCED, IN_PART, DIFFERS, OPEN)

RELATIVE = 0.1
"""A measured number agrees with a published one where they differ by this share of it at most, ..."""
LEAST_PERFORMANCE, LEAST_DISTANCE = 1.0, 0.2
"""... or by this much: hundredths of figures of predictions, and of 100 MMD^2."""
DEVIATIONS = 2
"""... or by this many standard deviations over replicates, where there are several."""
SCARCE, ALMOST_NONE, MUCH = 0.1, 0.05, 0.25
"""Transpositions between two kept steps, as a share of those between random orders."""
ZERO_BARRIER = 0.02
"""Nats: barriers up to this are called zero."""

DISTANCES = {
    "mmd_median": "MMD median",
    "mmd_mean": "MMD mean",
    "mmd_max": "MMD max",
    "ns_median": "NS median",
    "ns_mean": "NS mean",
    "ns_max": "NS max",
}
"""Columns of Table 2; NS has symmetries removed."""
_METHODS = {
    "dropout": "Dropout",
    "bnn": "BNN",
    "sghmc": "SGHMC",
    "swag": "SWAG",
    "laplace": "Laplace",
    "ensemble": "DE",
}
_MODES = {"one": "one mode", "multi": "several modes"}

Judged = tuple[str, str]
"""The finding here, in words with its numbers, and the verdict."""


@dataclass(frozen=True)
class PaperClaim:
    """One row of the table of verdicts.

    ``where`` is the place in the paper, such as ``Figure 2``, ``says`` what stands there, and ``judge`` makes a verdict
    from the result of the study; None where the paper's figures are not known as numbers or no study computes them, for
    the reason ``open``.
    """

    where: str
    says: str
    judge: Callable[[Any], Judged] | None = None
    open: str = ""


def graded(right: int, of: int) -> str:
    """Return the verdict on ``of`` comparisons of which ``right`` agree with the published ones.

    >>> graded(3, 3), graded(1, 3), graded(0, 3), graded(0, 0)
    ('reproduced', 'in part', 'differs', 'open')
    """
    return OPEN if not of else REPRODUCED if right == of else IN_PART if right else DIFFERS


def agrees(entry: MethodResult, figure: str) -> bool | None:
    """Whether a figure of a method agrees with the published one; None where either is not known."""
    difference = entry.difference(figure)
    if difference is None:
        return None
    published, spread = entry.published[figure].read_as, entry.figures[figure]
    assert published is not None
    least = LEAST_DISTANCE if figure in DISTANCES else LEAST_PERFORMANCE
    allowed = max(RELATIVE * abs(published), least, DEVIATIONS * spread.sd if spread.count > 1 else 0.0)
    return abs(difference) <= allowed + 1e-9


def table_claims(dataset: str, architecture: str, title: str) -> list[PaperClaim]:
    """The rows of Tables 1 and 2 of arXiv 2310.08287 on a data set and an architecture, as the paper titles them."""
    by_table = {"Table 1": PERFORMANCE, "Table 2": DISTANCES}
    claims: list[PaperClaim] = []
    for table, names in by_table.items():
        for (method, modes), figures in posterior_figures(dataset, architecture).items():
            printed = {name: figures[name] for name in names if name in figures}
            if printed:
                where = f"{table}, {title}, {_MODES[modes]}, {_METHODS[method]}"
                says = ", ".join(f"{names[name]} {_printed(item)}" for name, item in printed.items())
                claims.append(
                    PaperClaim(where, says, _row_judge(method, modes, {name: names[name] for name in printed}))
                )
    return claims


def _printed(item: PublishedFigure) -> str:
    if not item.doubt:
        return f"{item.printed:g}"
    return f"{item.printed:g} ({'no number can be read' if item.read_as is None else f'read as {item.read_as:g}'})"


def _row_judge(method: str, modes: str, names: dict[str, str]) -> Callable[[Posteriors], Judged]:
    def judge(result: Posteriors) -> Judged:
        entry = next((item for item in result.entries if (item.method, item.modes) == (method, modes)), None)
        if entry is None:
            return "no such draws in the zoo", OPEN
        # what the paper says of another set is compared on that set alone
        measured = {name: entry.figures[name] for name in names if name in entry.figures and name in entry.published}
        said = ", ".join(
            # adding 0 makes 0 of a negative zero
            f"{names[name]} {round(spread.mean, 1) + 0.0:.1f}" + (f" ± {spread.sd:.1f}" if spread.count > 1 else "")
            for name, spread in measured.items()
        )
        compared = {name: agreed for name in measured if (agreed := agrees(entry, name)) is not None}
        right = [names[name] for name, agreed in compared.items() if agreed]
        unseen = [names[name] for name in names if name in entry.figures and name not in entry.published]
        width = "" if result.published_of == result.architecture else f"of {result.architecture}: "
        verdict = graded(len(right), len(compared))
        return f"{width}{said}; {len(right)} of {len(compared)} agree" + (
            f": {', '.join(right)}" if verdict == IN_PART else ""
        ) + (f"; {', '.join(unseen)} of another set are not compared" if unseen else ""), verdict

    return judge


def _compared(result: Posteriors, figures: Iterable[str], sign: int) -> tuple[int, int]:
    """In how many of some comparisons of a method's several modes with its one mode the former have the better figure:
    larger with sign 1, smaller with -1.
    """
    right = of = 0
    for one in (entry for entry in result.entries if entry.modes == "one"):
        several = next((item for item in result.entries if item.label == one.label and item.modes == "multi"), None)
        for name in figures:
            if several is not None and name in one.figures and name in several.figures:
                of += 1
                right += sign * (several.figures[name].mean - one.figures[name].mean) > 0
    return right, of


def several_modes_are_better(result: Posteriors) -> Judged:
    """Judge whether several modes are better than one in MMD, accuracy and likelihood, method by method."""
    right, of = (
        sum(pair)
        for pair in zip(_compared(result, ["acc"], 1), _compared(result, ["mmd_median", "nll"], -1), strict=True)
    )
    return f"in {right} of {of} comparisons of a method with itself, in MMD, accuracy and NLL", graded(right, of)


def one_mode_is_better_calibrated(result: Posteriors) -> Judged:
    """Judge whether one mode is often better calibrated than several."""
    right, of = _compared(result, ["ece"], 1)
    # the paper says often, not always
    verdict = OPEN if not of else REPRODUCED if 2 * right >= of else IN_PART if right else DIFFERS
    return f"ECE of one mode is lower in {right} of {counted(of, 'method')}", verdict


def several_modes_are_more_diverse(result: Posteriors) -> Judged:
    """Judge whether several modes have more mutual information than one, method by method."""
    right, of = _compared(result, ["idmi", "oodmi"], 1)
    return f"in {right} of {of} comparisons of a method with itself", graded(right, of)


def laplace_is_nearest(result: Posteriors) -> Judged:
    """Judge whether Laplace's approximation is nearest to the target, of the paper's methods but ensembles."""
    nearest: list[str] = []
    for modes in _MODES:
        # methods that the paper does not have are not ranked
        entries = [
            item for item in result.entries if item.modes == modes and item.published and item.method != "ensemble"
        ]
        for name, title in (("mmd_median", "MMD"), ("ns_median", "NS")):
            if len(entries) > 1:
                best = min(entries, key=lambda item: item.figures[name].mean)
                nearest.append(f"{title}, {_MODES[modes]}: {best.method}")
    right = sum(item.endswith(": laplace") for item in nearest)
    return f"nearest but for ensembles: {'; '.join(nearest) or 'no methods to rank'}", graded(right, len(nearest))


def laplace_predicts_worse_than_swag(result: Posteriors) -> Judged:
    """Judge whether SWAG predicts better than Laplace's approximation."""
    right = of = 0
    for modes in _MODES:
        found = {item.method: item.figures for item in result.entries if item.modes == modes}
        for name, sign in (("acc", 1), ("nll", -1)):
            if "swag" in found and "laplace" in found and name in found["swag"] and name in found["laplace"]:
                of += 1
                right += sign * (found["swag"][name].mean - found["laplace"][name].mean) > 0
    return f"SWAG is better in {right} of {of} comparisons of accuracy and NLL", graded(right, of)


def mass_range(result: Masses) -> Judged:
    """Judge whether most masses as trained are within 120 to 240."""
    within = float(((result.before >= 120) & (result.before <= 240)).mean())
    said = f"{within:.0%} within 120 to 240, all within {result.before.min():.0f} to {result.before.max():.0f}"
    return f"{said}, of {counted(result.members, 'member')}", REPRODUCED if within > 0.5 else DIFFERS


def mass_excess(result: Masses) -> Judged:
    """Judge whether the excess over the least mass peaks near 30 % and reaches 60 %."""
    finite = result.excess[np.isfinite(result.excess)]
    if not len(finite):
        return "no network has a path from input to output", OPEN
    top, most = peak(finite), float(finite.max())
    if top is None:
        return f"reaches {most:.0f} %; too few members for a peak, or equal ones", OPEN
    right = (abs(top - 30) <= RELATIVE * 30) + (abs(most - 60) <= RELATIVE * 60)
    return f"peaks at {top:.0f} %, median {np.median(finite):.0f} %, reaches {most:.0f} %", graded(right, 2)


def mass_elements(result: Masses) -> Judged:
    """Judge whether the least mass raises the largest elements of the smallest layer, and more than of the largest."""
    if result.registered is None or len(result.layers) < 2:
        return "an architecture whose layers are not known", OPEN
    arch = archs.architecture(result.registered)
    sizes = {layer: sum(arch[name].size for name in names) for layer, names in arch.layers.items()}
    ratios = {item.layer: float(np.median(item.after / item.before)) for item in result.layers}
    ordered = sorted(ratios, key=lambda layer: sizes[layer])
    said = ", ".join(f"{layer} ({sizes[layer]:,} parameters) {ratios[layer]:.2f}" for layer in ordered)
    raised = ratios[ordered[0]] > 1
    falls = ratios[ordered[0]] > ratios[ordered[-1]]
    return f"largest element at the least mass over that as trained, median: {said}", graded(raised + falls, 2)


def exchange_mirrors(result: Toy) -> Judged:
    """Judge whether as many networks are above the diagonal as below, and all above once they are in order."""
    trained, *_, ordered = result.panels
    error = 0.5 / result.members**0.5
    right = (abs(trained.above - 0.5) <= 3 * error) + (ordered.above == 1)
    modes = [len(panel.density.peaks) for panel in result.panels if panel.density.heights is not None]
    counts = f"; modes {', '.join(map(str, modes))}" if modes else ""
    said = f"above the diagonal {trained.above:.1%} as trained, {ordered.above:.0%} in order{counts}"
    return f"{said}, of {counted(result.members, 'network')}", graded(right, 2)


def spread_is_wider_outside(result: Collapse) -> Judged:
    """Judge whether the mutual information of pairs varies less in distribution than out of it."""
    own, other = (result.spreads[name] for name in (result.set, result.ood))
    said = (
        f"{own.mean:.3f} ± {own.sd:.3f} nats on {result.set}, {other.mean:.3f} ± {other.sd:.3f} on {result.ood}, "
        f"{counted(len(result.information), 'pair')} of {counted(result.members, 'member')}"
    )
    return said, REPRODUCED if own.sd < other.sd else DIFFERS


def correlation_judge(expected: bool) -> Callable[[Collapse], Judged]:
    """Judge whether a significant correlation is expected, or none."""

    def judge(result: Collapse) -> Judged:
        pearson = result.correlations.get("pearson")
        if pearson is None or pearson.p_value is None:
            return "all pairs differ alike", OPEN
        said = f"Pearson {pearson.value:.2f}, p = {pearson.p_value:.3f}"
        found = pearson.p_value <= SIGNIFICANT
        if not found and result.members < ENOUGH:
            return f"{said}: {counted(result.members, 'member')} cannot tell", OPEN
        return said, REPRODUCED if found == expected else DIFFERS

    return judge


def _moved(result: Permutations) -> list[tuple[int, int, float]]:
    """For each interval of kept steps, transpositions as a share of those between random orders, over all orders."""
    by_interval: dict[tuple[int, int], list[float]] = {}
    for label in result.labels:
        for item in result.of(label)["from the one before"]:
            # a single channel has one order
            share = item.transpositions / (random_transpositions(item.n) or 1)
            by_interval.setdefault((item.first, item.second), []).append(share)
    return [(first, second, float(np.mean(shares))) for (first, second), shares in sorted(by_interval.items())]


def _interval(interval: tuple[int, int, float]) -> str:
    return f"{interval[2]:.0%} from step {interval[0]:,} to {interval[1]:,}"


def changes_are_scarce(result: Permutations) -> Judged:
    """Judge whether orders change little in the intervals between kept steps."""
    moved = _moved(result)
    few = sum(share <= SCARCE for _, _, share in moved)
    most = max(moved, key=lambda interval: interval[2])
    said = f"transpositions, as a share of those between random orders: at most {_interval(most)}; "
    return f"{said}up to {SCARCE:.0%} in {few} of {len(moved)} intervals", graded(few, len(moved))


def last_is_still(result: Permutations) -> Judged:
    """Judge whether orders hardly change in the last interval."""
    last = _moved(result)[-1]
    return _interval(last), REPRODUCED if last[2] <= ALMOST_NONE else IN_PART if last[2] <= SCARCE else DIFFERS


def first_moves_much(result: Permutations) -> Judged:
    """Judge whether orders change much in the first interval."""
    first = _moved(result)[0]
    return _interval(first), REPRODUCED if first[2] >= MUCH else IN_PART if first[2] > SCARCE else DIFFERS


def _height(zoo: ZooBarriers, way: str) -> float:
    return float(zoo.lines[way].barriers.height.mean())


def _gaussians(result: BarrierStudy) -> list[ZooBarriers]:
    return [zoo for zoo in result.zoos if zoo.kind.startswith("Gaussians")]


def zero_after_alignment(result: BarrierStudy) -> Judged:
    """Judge whether Gaussians have no barrier after alignment."""
    zoos = sorted(_gaussians(result), key=lambda zoo: zoo.width)
    right = sum(_height(zoo, ALIGNED) <= ZERO_BARRIER for zoo in zoos)
    said = "; ".join(f"{zoo.name} {_height(zoo, ALIGNED):.3f}" for zoo in zoos)
    return (f"aligned, nats: {said}" if zoos else "no zoo of Gaussians"), graded(right, len(zoos))


def wider_is_lower(result: BarrierStudy) -> Judged:
    """Judge whether barriers fall from each width to the next, as trained and aligned."""
    by_kind: dict[str, list[ZooBarriers]] = {}
    for zoo in sorted(result.zoos, key=lambda zoo: zoo.width):
        by_kind.setdefault(zoo.kind, []).append(zoo)
    right = of = 0
    said: list[str] = []
    for kind, zoos in by_kind.items():
        for way in (RAW, ALIGNED):
            heights = [_height(zoo, way) for zoo in zoos]
            of += len(heights) - 1
            right += sum(later < earlier for earlier, later in itertools.pairwise(heights))
            if len(heights) > 1:
                said.append(f"{kind}, {way}: {', '.join(f'{height:.3f}' for height in heights)}")
    return "; ".join(said) or "one width alone", graded(right, of)


def same_for_all(setting: str) -> Callable[[BarrierStudy], Judged]:
    """Judge whether the widest Gaussians have no barrier after alignment for each value of a setting of the posterior,
    ``prior`` or ``temperature``.
    """

    def judge(result: BarrierStudy) -> Judged:
        widest: dict[str, ZooBarriers] = {}
        for zoo in sorted(_gaussians(result), key=lambda zoo: zoo.width):
            widest[zoo.kind] = zoo
        # a kind is the method, and then each setting with its value
        values = {item for kind in widest for item in kind.split(", ") if item.startswith(f"{setting} ")}
        if len(values) < 2:
            return f"Gaussians of one {setting} alone: {next(iter(values), 'none')}", OPEN
        right = sum(_height(zoo, ALIGNED) <= ZERO_BARRIER for zoo in widest.values())
        said = "; ".join(
            f"{kind}, width {zoo.width:,}: {_height(zoo, ALIGNED):.3f}" for kind, zoo in sorted(widest.items())
        )
        return f"aligned, nats: {said}", graded(right, len(widest))

    return judge


def number_is_stable(result: Transpositions) -> Judged:
    """Judge whether as many transpositions are found as were planted."""
    tau = result.correlations.get("planted and found")
    off = np.abs(result.found - result.planted)
    said = f"found less planted {off.mean():.1f} on average, of up to {result.most:,}, {counted(len(off), 'pair')}"
    if tau is None:
        return said, OPEN
    return (
        f"{said}; Kendall's tau of both {tau:.2f}",
        REPRODUCED if off.mean() <= ALMOST_NONE * result.most else DIFFERS,
    )


def number_goes_with_barrier(result: Transpositions) -> Judged:
    """Judge whether the number of transpositions correlates with the barrier."""
    tau = result.correlations.get("found and barrier as trained")
    if tau is None:
        return "no barriers were measured", OPEN
    return f"Kendall's tau {tau:.2f}", REPRODUCED if tau >= 0.5 else IN_PART if tau > 0 else DIFFERS


def number_is_monotone(result: Transpositions) -> Judged:
    """Judge whether the number of transpositions never falls along the line between two models."""
    right, of = int(result.rising.sum()), len(result.rising)
    return f"never falls in {right} of {counted(of, 'pair')}", graded(right, of)


def alignment_narrows(result: CompactStudy) -> Judged:
    """Judge whether alignment makes the standard deviations of weights smaller."""
    before, after = (result.gaussians[name].median_sigma for name in (SAMPLED, ALIGNED_SAMPLES))
    verdict = REPRODUCED if after <= (1 - RELATIVE) * before else IN_PART if after < before else DIFFERS
    return f"median of the standard deviations {before:.3g} as sampled, {after:.3g} aligned", verdict


def pruning_by_sigma(result: CompactStudy) -> Judged:
    """Say how accuracy falls with pruning; the paper's curve is not known as numbers."""
    pruned = result.gaussians[ALIGNED_SAMPLES].pruned[SIGMA]
    return ", ".join(f"{kept:.0%} kept: {accuracy:.1%}" for kept, accuracy in zip(KEPT, pruned, strict=True)), OPEN


def aligned_gaussian_is_closer(result: CompactStudy) -> Judged:
    """Judge whether the Gaussian of aligned samples predicts better than that of the samples as they are."""
    before, after = (result.gaussians[name] for name in (SAMPLED, ALIGNED_SAMPLES))
    pairs = [
        ("mean network", before.mean.accuracy, after.mean.accuracy),
        (f"{result.draws} draws", before.draws.accuracy, after.draws.accuracy),
    ]
    right = sum(second > first for _, first, second in pairs)
    said = "; ".join(f"{name} {first:.1%} by q_d, {second:.1%} by q_r" for name, first, second in pairs)
    return f"accuracy: {said}; samples together {result.members.accuracy:.1%}", graded(right, len(pairs))
