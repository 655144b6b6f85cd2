"""Faults that are planted in trajectories of networks that were trained are found, and clean ones give no finding."""

from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptzoo.hub.audits import Audit, audit
from ckptzoo.hub.audits.steps import layout_of, pieces_of
from ckptzoo.measure.trajectories import exchange
from tests.support.effort import ALL, examples
from tests.support.training_runs import OPTIMISERS, ROUNDINGS, SCHEDULES, SPACINGS, Trajectory, trajectories

COUNT = 3
"""Networks that are trained side by side."""
COMBINATIONS = list(product(OPTIMISERS, SCHEDULES, SPACINGS)) if ALL else [("sgd", "cosine", "linear")]
SEEDS = 2 if ALL else 1
KINDS = ("swap", "copy", "gap", "stale", "other-run")


def drawn(number: int) -> tuple[list[Trajectory], np.random.Generator]:
    """Some runs of one task: optimiser, schedule, spacing, precision, averages and frozen layers by chance."""
    rng = np.random.default_rng(np.random.SeedSequence([11, number]))
    chosen = COMBINATIONS[int(rng.integers(len(COMBINATIONS)))]
    runs = list(trajectories(int(rng.integers(SEEDS)), COUNT, *chosen))
    if rng.random() < 0.25:
        runs = [run.averaged() for run in runs]
    if rng.random() < 0.25:
        runs = [run.frozen("fc2.weight", "fc2.bias") for run in runs]
    rounding = str(rng.choice(ROUNDINGS))
    return [run.rounded(rounding) for run in runs], rng


def written(folder: Path, runs: list[Trajectory]) -> Path:
    for number, run in enumerate(runs):
        for at, step in enumerate(run.steps):
            place = folder / f"seed{number}" / f"step{step}"
            place.mkdir(parents=True)
            save_file({name: array[at] for name, array in run.tensors.items()}, place / "model.safetensors")
    return folder


def planted(kind: str, runs: list[Trajectory], rng: np.random.Generator) -> tuple[int, set[int]]:
    """Plant a fault in place, and return in which run and at which steps."""
    which = int(rng.integers(len(runs)))
    run, count = runs[which], len(runs[which].steps)
    order = list(range(count))
    if kind == "swap":
        i, j = _told_apart(run, rng)
        order[i], order[j] = j, i
        runs[which] = run.reordered(order)
        return which, {run.steps[i], run.steps[j]}
    if kind == "gap":
        at = int(rng.integers(2, count - 1))
        runs[which] = run.without(at)
        return which, {run.steps[at]}
    if kind == "other-run":
        at, other = int(rng.integers(1, count)), runs[(which + 1) % len(runs)]
        tensors = {name: array.copy() for name, array in run.tensors.items()}
        for name, array in tensors.items():
            array[at] = other.tensors[name][at]
        runs[which] = Trajectory(run.steps, tensors)
        return which, {run.steps[at]}
    source = count - 1 if kind == "stale" else int(rng.integers(count))
    moved = [at for at in range(1, count) if at != source and _differ(run, at, source)]
    chosen = [
        int(at) for at in rng.permutation(moved)[: 1 if kind == "copy" else int(rng.integers(1, max(2, count // 2)))]
    ]
    for at in chosen:
        order[at] = source
    runs[which] = run.reordered(order)
    return which, {run.steps[at] for at in chosen}


def _differ(run: Trajectory, one: int, other: int) -> bool:
    """Whether at least a fifth of the numbers that ever move differ: in bfloat16 the last steps may be one."""
    pairs = [(array[one], array[other], (array != array[0]).any(axis=0)) for array in run.tensors.values()]
    moving = sum(int(moves.sum()) for *_, moves in pairs)
    return sum(int(((a != b) & moves).sum()) for a, b, moves in pairs) >= 0.5 * moving


def _told_apart(run: Trajectory, rng: np.random.Generator) -> tuple[int, int]:
    """Two steps, neighbours half of the time, between which weights move enough for their order to be told."""
    pairs, layout = list(combinations(range(len(run.steps)), 2)), layout_of(run.reordered([0]).tensors)
    layout = tuple((name, dtype, shape[1:]) for name, dtype, shape in layout)
    flat = dict(zip(run.tensors, run.flat(), strict=True))
    # what an audit reads: what other numbers tell is not known to it
    tensors = [flat[piece.name][:, : piece.numbers] for piece in pieces_of(layout, 0)]
    near = bool(rng.random() < 0.5)
    for i, j in rng.permutation([pair for pair in pairs if (pair[1] == pair[0] + 1) == near]).tolist():
        # the weights of a step that has a twin are a copy wherever they are
        alone = all(_differ(run, at, other) for at in (i, j) for other in range(len(run.steps)) if other != at)
        if alone and exchange(tensors, i, j).can_be_told:
            return i, j
    pytest.skip("the order of no two steps of this run can be told")


def named(result: Audit, run: int, kinds: set[str]) -> set[int]:
    """The steps of a run that findings, or notes on copies, name."""
    items = [*result.findings, *(item for item in result.notes if item.kind == "copy")]
    return {
        step for item in items if item.kind in kinds and f"seed{run}" in item.run + item.detail for step in item.steps
    }


@pytest.mark.parametrize("number", range(examples(100, 2)))
def test_clean_runs_give_no_finding(number: int, tmp_path: Path) -> None:
    runs, _ = drawn(number)
    result = audit(written(tmp_path, runs))
    assert not result.findings, [item.detail for item in result.findings]
    assert result.checkpoints == sum(len(run.steps) for run in runs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(examples(100, 1)))
def test_planted_faults_are_found(kind: str, number: int, tmp_path: Path) -> None:
    runs, rng = drawn(number + 1000 * KINDS.index(kind))
    which, steps = planted(kind, runs, rng)
    result = audit(written(tmp_path, runs))
    kinds: dict[str, Any] = {"swap": {"order"}, "copy": {"copy"}, "stale": {"copy"}, "gap": {"gap"}}
    assert steps <= named(result, which, kinds.get(kind, {"other-run"})), (steps, result.findings, result.notes)
    clean = [item for item in result.findings if f"seed{which}" not in item.run + item.detail]
    assert not clean, clean
