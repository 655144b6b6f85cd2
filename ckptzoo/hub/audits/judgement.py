"""Judges the steps of runs: which weights are there twice, out of order, of another run, damaged or missing."""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ckptzoo.hub.audits.series import missing_beside, missing_steps
from ckptzoo.hub.audits.steps import PublishedStep, is_finite
from ckptzoo.measure.trajectories import order_of, strangers
from ckptzoo.schema.documents import JsonFields
from ckptzoo.text import counted, excerpt

_STANDS_STILL = 0.2
"""Share of the numbers that change from one step to the next below which two steps may well be equal: rounded to
bfloat16, most updates of a small learning rate change nothing.
"""
_UPDATES, _FIRST_STEPS = 16, 8
"""The first steps are near to one another where they are at most so many apart, or below the median distance by this
factor: updates are skipped there until the loss's scale fits, and a learning rate that grows from 0 changes nothing.
"""
_SURE = 0.7
"""One of two places is that of weights which are nearer to its neighbours by this factor."""
_SHOWN = 6
_AGAIN = "Compare it with its own training run, or fetch it from another publication."
_DIGITS = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Finding(JsonFields):
    """One thing that was found.

    Parameters
    ----------
    kind
        ``copy``, ``other-run``, ``order``, ``stranger``, ``gap``, ``claim``, ``header``, ``nonfinite`` or
        ``unreadable``.
    run
        whose checkpoints these are.
    steps
        the steps, in order.
    detail
        what was found.
    next_step
        what to do.
    """

    kind: str
    run: str
    steps: Sequence[int]
    detail: str
    next_step: str = _AGAIN


@dataclass
class _EqualSteps:
    """Steps with the same numbers; ``is_certain`` where all of these were compared, not only those that were read."""

    steps: list[PublishedStep]
    is_certain: bool


@dataclass
class Judgement:
    """Findings, and notes on what may well be as it should."""

    findings: list[Finding]
    notes: list[Finding]


def judged(
    steps: Sequence[PublishedStep],
    read_all: Callable[[Sequence[PublishedStep]], None],
    unreadable: Sequence[PublishedStep] = (),
) -> Judgement:
    """Judge all steps; ``read_all`` reads every number of some of them. Those that are ``unreadable`` are there."""
    judgement = Judgement([], [])
    runs = _runs(steps)
    groups = _equal(steps, read_all)
    run_of = {step: name for name, own in runs.items() for step in own}
    within: dict[str, list[_EqualSteps]] = defaultdict(list)
    for group in groups:
        by_run: dict[str, list[PublishedStep]] = defaultdict(list)
        for step in group.steps:
            by_run[run_of[step]].append(step)
        for name, own in by_run.items():
            within[name].append(_EqualSteps(own, group.is_certain))
    for name, own in runs.items():
        run = _AuditedRun(name, own, judgement)
        run.check_headers()
        run.check_numbers()
        run.check_claims()
        run.check_trajectory(within[name])
    _check_gaps(_runs([*steps, *unreadable]), judgement)
    _check_other_runs(runs, run_of, groups, judgement)
    return judgement


def _runs(steps: Sequence[PublishedStep]) -> dict[str, list[PublishedStep]]:
    """Return the steps of each run in order; files beside one another, such as averages, are runs of their own."""
    times = Counter((step.run, step.step) for step in steps if step.step is not None)
    several = {run for (run, _), count in times.items() if count > 1}
    runs: dict[str, list[PublishedStep]] = defaultdict(list)
    for step in steps:
        is_beside = step.run in several and step.step is not None
        runs[f"{step.run} ({_DIGITS.sub('#', step.where)})" if is_beside else step.run].append(step)
    return {
        name: sorted(own, key=lambda step: (step.step is None, step.step or 0, step.where))
        for name, own in runs.items()
    }


def _equal(steps: Sequence[PublishedStep], read_all: Callable[[Sequence[PublishedStep]], None]) -> list[_EqualSteps]:
    """Return the groups of two or more steps with the same numbers."""
    by_key: dict[bytes, list[PublishedStep]] = defaultdict(list)
    for step in steps:
        by_key[step.key].append(step)
    groups: list[_EqualSteps] = []
    for alike in by_key.values():
        if len(alike) < 2:
            continue
        if all(step.reader.reads_all for step in alike):
            read_all([step for step in alike if not step.digest.startswith("numbers:")])
        by_digest: dict[str, list[PublishedStep]] = defaultdict(list)
        for step in alike:
            by_digest[step.digest].append(step)
        if all(step.digest.startswith("numbers:") for step in alike) or (len(by_digest) == 1 and alike[0].digest):
            groups += [_EqualSteps(equal, True) for equal in by_digest.values() if len(equal) > 1]
        else:
            groups.append(_EqualSteps(alike, False))
    return groups


class _AuditedRun:
    """The steps of one run, in order."""

    def __init__(self, name: str, steps: Sequence[PublishedStep], judgement: Judgement) -> None:
        self.name, self.all, self.judgement = name, list(steps), judgement
        layouts = Counter(step.layout for step in steps)
        self.layout = max(layouts, key=lambda layout: (layouts[layout], layout == steps[0].layout))
        # of several checkpoints that say no step, none has a place on the trajectory
        self.timed = [step for step in steps if step.step is not None and step.layout == self.layout]

    def found(
        self, kind: str, steps: Iterable[PublishedStep], detail: str, next_step: str = _AGAIN, *, note: bool = False
    ) -> None:
        """Add a finding, or a note."""
        numbers = tuple(step.step for step in steps if step.step is not None)
        target = self.judgement.notes if note else self.judgement.findings
        target.append(Finding(kind, self.name, numbers, detail, next_step))

    def check_headers(self) -> None:
        """Find steps with other tensors than most have."""
        for step in self.all:
            if step.layout != self.layout:
                count = sum(other.layout == self.layout for other in self.all)
                self.found("header", [step], f"{_of(step)} has {_difference(step, self.layout)} ({count} steps agree)")

    def check_numbers(self) -> None:
        """Find steps with NaN or infinity."""
        for step in self.all:
            read = {piece.name for piece, values in step.values.items() if not is_finite(values)}
            if names := sorted(read | set(step.nonfinite)):
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                self.found("nonfinite", [step], f"{_of(step)} has NaN or infinity in {', '.join(names[:3])}{more}")

    def check_claims(self) -> None:
        """Find steps whose files say that they are of another step."""
        for who in sorted({who for step in self.all for who in step.claims}):
            pairs = [(step, step.claims[who]) for step in self.all if who in step.claims and step.step is not None]
            wrong = [(step, claim) for step, claim in pairs if claim != step.step]
            if 2 * len(wrong) >= len(pairs):  # counted in other units, such as epochs and updates
                kept = _increasing([claim for _, claim in pairs])
                wrong = [pair for at, pair in enumerate(pairs) if at not in kept] if 2 * len(kept) > len(pairs) else []
            for step, claim in wrong:
                self.found("claim", [step], f"{_of(step)}: {who} says step {claim}")

    def check_trajectory(self, groups: Sequence[_EqualSteps]) -> None:
        """Find copies within the run, then what is out of order among the other steps."""
        if len(self.timed) < 2:
            return
        place = {step: at for at, step in enumerate(self.timed)}
        numbers = _Numbers(self.timed)
        left_out = set[int]()
        for group in groups:
            at = sorted(place[step] for step in group.steps if step in place)
            if len(at) == len(self.timed) > 1 and not group.is_certain:
                text = f"the numbers that were read are the same at all {len(at)} steps, and files differ"
                self.found("copy", self.timed, text, "Read all numbers: --all.", note=True)
                return
            if len(at) > 1:
                left_out |= self._check_copies(at, numbers, is_certain=group.is_certain)
        kept = [at for at in range(len(self.timed)) if at not in left_out]
        tensors = [values[kept] for values in numbers.tensors]
        if len(kept) < 4:
            return
        order = order_of(tensors)
        for i, j in order.swapped:
            pair = [self.timed[kept[i]], self.timed[kept[j]]]
            text = f"steps {pair[0].step} and {pair[1].step} were swapped: the other way round the weights move less"
            self.found("order", pair, text)
            for values in tensors:
                values[[i, j]] = values[[j, i]]
        if not order.is_known and len(kept) > 5:
            text = "the weights go back and forth between steps, so that swapped ones cannot be told"
            self.found("order", [], text, "Nothing, or compare with another run.", note=True)
        for at in strangers(tensors):
            step = self.timed[kept[at]]
            self.found("stranger", [step], f"{_of(step)} is far from the steps around it: weights of another run?")

    def _check_copies(self, at: Sequence[int], numbers: "_Numbers", *, is_certain: bool) -> set[int]:
        """Say what equal steps are; the result are the places that are not judged any further."""
        steps = [self.timed[place] for place in at]
        extent = "" if is_certain else f" in the {numbers.count:,} numbers that were read of each"
        last = len(self.timed) - 1
        if at[-1] - at[0] == len(at) - 1:
            shares = [
                numbers.moved(*pair)
                for pair in ((at[0] - 1, at[0]), (at[-1], at[-1] + 1))
                if pair[0] >= 0 and pair[1] <= last
            ]
            is_short = at[0] == 0 and self._begins_slowly(at[-1])
            if is_short or (shares and min(shares) < _STANDS_STILL):
                why = (
                    "nothing may have been learnt yet (updates that were skipped, a learning rate of 0)"
                    if is_short
                    else (
                        f"{min(shares):.1%} of the numbers change beside them: training hardly moves at this precision"
                    )
                )
                self.found("copy", steps, f"steps {_listed(steps)} have the same weights{extent}; {why}", "", note=True)
                return set(at[1:])
            self.found("copy", steps, f"steps {_listed(steps)} have the same weights{extent}")
            return set(at[1:])
        owner = numbers.owner(at)
        if (
            not is_certain
            and min(numbers.moved(place, place + 1) for place in range(at[0], at[-1])) < _STANDS_STILL / 4
        ):
            text = f"steps {_listed(steps)} are equal{extent}, and hardly any number moves between them"
            self.found("copy", steps, text, "Read all numbers: --all.", note=True)
            return set(at)
        if owner is None:
            self.found("copy", steps, f"steps {_listed(steps)} have the same weights{extent}")
            return set(at)
        others = [step for step, place in zip(steps, at, strict=True) if place != owner]
        own = self.timed[owner]
        text = f"{'step' if len(others) == 1 else 'steps'} {_listed(others)} {'has' if len(others) == 1 else 'have'}"
        self.found("copy", [*others, own], f"{text} the weights of step {own.step}{extent}")
        return {place for place in at if place != owner}

    def _begins_slowly(self, until: int) -> bool:
        steps = [step.step or 0 for step in self.timed]
        passed, distances = steps[until] - steps[0], np.diff(steps)
        return passed <= _UPDATES or float(passed) * _FIRST_STEPS <= float(np.median(distances))


class _Numbers:
    """The numbers of steps of one layout that were read of all of them."""

    def __init__(self, steps: Sequence[PublishedStep]) -> None:
        shared = sorted(set.intersection(*(set(step.values) for step in steps)))
        arrays = [np.stack([step.values[piece] for step in steps]) for piece in shared]
        bits = [array.view(f"u{array.dtype.itemsize}") for array in arrays]
        moving = [(one != one[0]).any(axis=0) for one in bits]
        # networks of integers alone have no numbers that are read
        self._bits = np.concatenate(
            [
                np.empty((len(steps), 0), np.uint64),
                *(one[:, moves].astype(np.uint64) for one, moves in zip(bits, moving, strict=True)),
            ],
            1,
        )
        self.count = sum(piece.numbers for piece in shared)
        # NaN and infinity are found elsewhere, and have no distances
        self.tensors = [
            np.nan_to_num(array.astype(np.float64)[:, moves], nan=0, posinf=0, neginf=0)
            for array, moves in zip(arrays, moving, strict=True)
            if moves.any()
        ]

    def moved(self, one: int, other: int) -> float:
        """Return the share of the numbers, of those that ever change, that differ between two steps."""
        if not self._bits.shape[1]:
            return 0.0
        return float(np.mean(self._bits[one] != self._bits[other]))

    def owner(self, at: Sequence[int]) -> int | None:
        """Return the place whose neighbours are nearest to the weights that several places share; None if unclear."""
        last = len(self._bits) - 1
        distances: list[tuple[float, int]] = []
        for place in at:
            before = next((other for other in range(place - 1, -1, -1) if other not in at), None)
            after = next((other for other in range(place + 1, last + 1) if other not in at), None)
            near = [self._distance(place, other) for other in (before, after) if other is not None]
            distances.append((float(np.mean(near)) if near else 0.0, place))
        distances.sort()
        return distances[0][1] if distances[0][0] < _SURE * distances[1][0] else None

    def _distance(self, one: int, other: int) -> float:
        return float(np.sqrt(sum(np.sum((values[one] - values[other]) ** 2) for values in self.tensors)))


def _check_gaps(runs: Mapping[str, Sequence[PublishedStep]], judgement: Judgement) -> None:
    """Find steps that are missing from a run's series, and those that most runs have."""
    steps = {name: sorted({step.step for step in own if step.step is not None}) for name, own in runs.items()}
    # networks of one moment are no runs
    series = {name: own for name, own in steps.items() if len(own) > 1}
    beside = missing_beside(list(series.values()))
    for (name, own), lacking in zip(series.items(), beside, strict=True):
        missing = sorted({*missing_steps(own), *lacking})
        if missing:
            shown = ", ".join(map(str, missing[:_SHOWN])) + (
                f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            )
            why = "which most runs have" if set(missing) <= set(lacking) else "by the steps around them"
            are = ("step", "is") if len(missing) == 1 else ("steps", "are")
            text = f"{are[0]} {shown} {are[1]} missing, {why}"
            judgement.findings.append(
                Finding("gap", name, tuple(missing), text, "Fetch them, or ask who published them.")
            )


def _check_other_runs(
    runs: Mapping[str, Sequence[PublishedStep]],
    run_of: Mapping[PublishedStep, str],
    groups: Sequence[_EqualSteps],
    judgement: Judgement,
) -> None:
    """Find weights that several runs have; runs that begin with the same steps share them by design."""
    index = {step: at for own in runs.values() for at, step in enumerate(own)}
    strange = {(item.run, step) for item in judgement.findings if item.kind == "stranger" for step in item.steps}

    def is_strange(step: PublishedStep) -> bool:
        return (run_of[step], step.step) in strange

    shared: dict[tuple[str, str], list[tuple[PublishedStep, PublishedStep, bool]]] = defaultdict(list)
    for group in groups:
        for one, other in combinations(group.steps, 2):
            if run_of[one] != run_of[other]:
                first, second = sorted((one, other), key=lambda step: (is_strange(step), run_of[step]))
                shared[run_of[first], run_of[second]].append((first, second, group.is_certain))
    together: dict[int, set[str]] = defaultdict(set)
    for (first, second), pairs in shared.items():
        places = sorted((index[one], index[two]) for one, two, _ in pairs)
        is_start = places == [(at, at) for at in range(len(places))] and all(
            one.step == two.step and not is_strange(two) for one, two, _ in pairs
        )
        if is_start and len(places) < min(len(runs[first]), len(runs[second])):
            together[len(places)] |= {first, second}
            continue
        extent = "" if all(is_certain for *_, is_certain in pairs) else " in the numbers that were read"
        alike = [two for one, two, _ in pairs if one.step == two.step]
        others = [(one, two) for one, two, _ in pairs if one.step != two.step]
        if alike:
            named = _of(alike[0]) if len(alike) == 1 else f"steps {_listed(alike)}"
            text = f"{named} {'has' if len(alike) == 1 else 'have'} the weights of {excerpt(first)} there{extent}"
            numbers = tuple(two.step for two in alike if two.step is not None)
            judgement.findings.append(Finding("other-run", second, numbers, text))
        for one, two in others:
            text = f"{_of(two)} has the weights of {excerpt(first)} at {_of(one)}{extent}"
            judgement.findings.append(Finding("other-run", second, () if two.step is None else (two.step,), text))
    known = {(item.run, step) for item in judgement.findings if item.kind == "other-run" for step in item.steps}
    judgement.findings[:] = [
        item
        for item in judgement.findings
        if item.kind != "stranger" or not {(item.run, step) for step in item.steps} & known
    ]
    for count, names in sorted(together.items()):
        shown = ", ".join(sorted(names)[:_SHOWN])
        text = f"{counted(len(names), 'run')} begin with the same {counted(count, 'step')}: {shown}"
        judgement.notes.append(Finding("other-run", min(names), (), text, ""))


def _increasing(values: Sequence[int]) -> set[int]:
    """Return the places of a longest increasing subsequence."""
    tails, at, before = list[int](), list[int](), list[int]()
    for place, value in enumerate(values):
        position = bisect_left(tails, value)
        before.append(at[position - 1] if position else -1)
        tails[position : position + 1] = [value]
        at[position : position + 1] = [place]
    kept, place = set[int](), at[-1] if at else -1
    while place >= 0:
        kept.add(place)
        place = before[place]
    return kept


def _difference(step: PublishedStep, layout: Any) -> str:
    """Describe the first tensor that differs from a layout."""
    own, other = ({name: (dtype, shape) for name, dtype, shape in item} for item in (step.layout, layout))
    if lacking := sorted(other.keys() - own.keys()):
        return f"no tensor {excerpt(lacking[0], 80)}"
    if added := sorted(own.keys() - other.keys()):
        return f"another tensor, {excerpt(added[0], 80)}"
    name = next(name for name in sorted(own) if own[name] != other[name])
    return f"{excerpt(name, 80)} as {own[name][0]} {own[name][1]}, not {other[name][0]} {other[name][1]}"


def _of(step: PublishedStep) -> str:
    return excerpt(step.where, 120) if step.step is None else f"step {step.step}"


def _listed(steps: Sequence[PublishedStep]) -> str:
    numbers = [str(step.step) for step in steps]
    if len(numbers) <= _SHOWN:
        return ", ".join(numbers[:-1]) + (" and " if len(numbers) > 1 else "") + numbers[-1]
    return f"{', '.join(numbers[:3])}, ... {numbers[-1]} ({len(numbers)} of them)"
