"""Permuted and rescaled networks: every one is found, and nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import dedupe
from ckptzoo.errors import ZooError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.symmetry import GroupElement, apply
from tests.support.derived_zoos import ARCH, TABLE, Weights, files_of, weights_of, written
from tests.support.effort import examples

COUNT = 8192


def rescaled(weights: Weights, rows: Any, seed: int, *, scales: bool, dtype: Any = np.float32) -> Weights:
    """The same networks with other weights: permuted, and scaled if wanted, in the precision they have."""
    some = {name: array[rows] for name, array in weights.items()}
    element = GroupElement.random(TABLE, len(rows), np.random.default_rng(seed))
    if not scales:
        element = GroupElement(element.perms, {name: np.ones_like(scale) for name, scale in element.scales.items()})
    return {name: array.astype(dtype) for name, array in apply(element, some, TABLE).items()}


def put(weights: Weights, rows: Any, values: Weights) -> None:
    for name, array in weights.items():
        array[rows] = values[name]


def ids(groups: Any) -> tuple[tuple[str, ...], ...]:
    return tuple(sorted((tuple(map(str, sorted(group))) for group in groups), key=lambda group: int(group[0])))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]], list[list[int]]]:
    """8,192 OptuNets: 300 permuted, 300 permuted and scaled, 100 chains of three, and 300 near-misses."""
    weights = weights_of(COUNT, 0)
    places = np.random.default_rng(1).permutation(COUNT)
    exact, rounded, chains, near = np.split(places[: 2 * 300 * 3 + 300], [600, 1200, 1500])
    put(weights, exact[300:], rescaled(weights, exact[:300], 2, scales=False))
    put(weights, rounded[300:], rescaled(weights, rounded[:300], 3, scales=True))
    put(weights, chains[100:200], rescaled(weights, chains[:100], 4, scales=True))
    put(weights, chains[200:], rescaled(weights, chains[100:200], 5, scales=True))
    missed = rescaled(weights, near[:300], 6, scales=False)
    rng = np.random.default_rng(7)
    for row in range(300):
        name = ARCH.names[rng.integers(len(ARCH.names))]
        missed[name][row].reshape(-1)[rng.integers(ARCH[name].nbytes // 4)] += 1e-3
    put(weights, near[300:], missed)
    same = np.stack([exact[:300], exact[300:]], axis=1).tolist()
    close = np.stack([rounded[:300], rounded[300:]], axis=1).tolist() + chains.reshape(3, 100).T.tolist()
    return written(tmp_path_factory.mktemp("planted") / "zoo", ARCH, weights), same, close


@pytest.mark.slow
def test_every_planted_duplicate_is_found_and_nothing_else(planted: Any) -> None:
    path, same, close = planted
    seen: list[tuple[int, int]] = []
    found = dedupe(ckptzoo.open(path), progress=lambda done, total: seen.append((done, total)))
    assert found.groups == ids(same + close)
    exact = dict(zip(found.groups, found.identical, strict=True))
    assert all(exact[group] for group in ids(same)) and not all(exact[group] for group in ids(close))
    assert (found.checkpoints, found.skipped, found.spare) == (COUNT, (), 300 + 300 + 200)
    assert seen[-1] == (COUNT, COUNT) and [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert len(found.to_json()["groups"]) == len(found.groups)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_tolerance_of_zero_finds_what_is_equal_and_a_large_one_near_misses_too(planted: Any) -> None:
    path, same, close = planted
    zoo = ckptzoo.open(path)
    exact = dedupe(zoo, tolerance=0)
    assert set(ids(same)) <= set(exact.groups) and all(exact.identical)
    assert {group[0] for group in exact.groups} <= {group[0] for group in ids(same + close)} | {
        group[1] for group in ids(close)
    }
    loose = dedupe(zoo, tolerance=0.02)
    assert set(ids(same + close)) <= set(loose.groups)
    assert 290 <= len(loose.groups) - len(same) - len(close) <= 300, "a few near-misses have channels in another order"


def test_a_selection_is_compared_alone(planted: Any) -> None:
    path, same, _ = planted
    zoo = ckptzoo.open(path)
    pair, other = same[0], same[1][0]
    found = dedupe(zoo.take([pair[1], other, pair[0]]))
    assert found.groups == ((str(pair[1]), str(pair[0])),) and found.checkpoints == 3
    assert dedupe(zoo.take([])).groups == ()


@pytest.mark.slow
@given(
    seed=st.integers(0, 10**6),
    owners=st.lists(st.integers(0, 4), min_size=1, max_size=14),
    scales=st.booleans(),
    rows=st.integers(1, 5),
)
@settings(max_examples=examples(25, 10), deadline=None)
def test_groups_are_those_that_were_planted_whatever_is_held_at_a_time(
    tmp_path_factory: pytest.TempPathFactory, seed: int, owners: list[int], scales: bool, rows: int
) -> None:
    weights = rescaled(weights_of(5, seed), owners, seed + 1, scales=scales)
    path = written(tmp_path_factory.mktemp("owners") / "zoo", ARCH, weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ckptzoo.derive.duplicates.BATCH_BYTES", rows * ARCH.nbytes)
        patch.setattr("ckptzoo.derive.duplicates.CANDIDATE_BYTES", rows * ARCH.nbytes)
        found = dedupe(ckptzoo.open(path))
    places = [[at for at, owner in enumerate(owners) if owner == one] for one in range(5)]
    assert found.groups == ids(place for place in places if len(place) > 1)
    assert scales or all(found.identical)


def test_half_precision_that_was_permuted(tmp_path: Path) -> None:
    half = Architecture("half", tuple(replace(tensor, dtype="float16") for tensor in ARCH.tensors), "optunet")
    weights = weights_of(60, 0, dtype=np.float16)
    put(weights, np.arange(30, 60), rescaled(weights, np.arange(30), 1, scales=False, dtype=np.float16))
    found = dedupe(ckptzoo.open(written(tmp_path / "zoo", half, weights)))
    assert found.groups == ids([at, at + 30] for at in range(30)) and all(found.identical)


def copies_of(arch: Architecture, weights: Weights, seed: int) -> Weights:
    """The networks, and behind them each again, permuted and rescaled and rounded as they are."""
    table = archs.symmetry(str(arch.forward))
    count = len(next(iter(weights.values())))
    element = GroupElement.random(table, count, np.random.default_rng(seed), spread=0.5)
    moved = apply(element, weights, table)
    return {name: np.concatenate([array, moved[name].astype(array.dtype)]) for name, array in weights.items()}


def double(name: str) -> Architecture:
    arch = archs.architecture(name)
    return replace(arch, tensors=tuple(replace(tensor, dtype="float64") for tensor in arch.tensors))


@pytest.mark.parametrize("name", ["optunet", "mlp-7-20-30-20-3"])
def test_scaled_twins_in_float64(name: str, tmp_path: Path) -> None:
    """The gauge takes scales to 40 bits, so that canonical forms differ by more than the rounding of float64."""
    arch = double(name)
    weights = copies_of(arch, weights_of(50, 0, arch=arch, dtype=np.float64), 1)
    found = dedupe(ckptzoo.open(written(tmp_path / "zoo", arch, weights)))
    assert found.groups == ids([at, at + 50] for at in range(50))
    assert found.uncertain == 0 and not all(found.identical)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["mlp-9-256-256-4", "optunet"])
@pytest.mark.sampled(2)
def test_channels_whose_keys_are_within_rounding(name: str, dtype: type, tmp_path: Path) -> None:
    """A third of the channels have the incoming weights of another in another order, and so its key."""
    arch, rng = archs.architecture(name) if dtype is np.float32 else double(name), np.random.default_rng(0)
    weights = weights_of(10, 0, arch=arch, dtype=dtype)
    for tensor in arch.tensors[:-1]:
        array = weights[tensor.name]
        if array.ndim > 2:
            for channel in range(0, array.shape[1] - 1, 3):
                array[:, channel + 1] = rng.permuted(array[:, channel].reshape(10, -1), axis=1).reshape(
                    array[:, channel].shape
                )
        elif tensor.name.endswith("bias"):
            array[...] = 0
    weights = copies_of(arch, weights, 1)
    found = dedupe(ckptzoo.open(written(tmp_path / "zoo", arch, weights)))
    assert found.groups == ids([at, at + 10] for at in range(10))
    assert found.uncertain == 0 and not found.skipped


def test_wide_random_networks_are_not_uncertain(tmp_path: Path) -> None:
    """Of widths at which the keys of some channels are within rounding in most checkpoints."""
    arch = archs.architecture("mlp-5-2048-2")
    weights = copies_of(arch, weights_of(15, 0, arch=arch), 1)
    found = dedupe(ckptzoo.open(written(tmp_path / "zoo", arch, weights)))
    assert found.groups == ids([at, at + 15] for at in range(15)) and found.uncertain == 0


def test_channels_that_only_the_weights_tell_apart_are_counted(tmp_path: Path) -> None:
    """Two layers that are joined in a cycle of twelve channels: none is like another, and all look alike."""
    arch = archs.architecture("mlp-3-6-6-2")
    weights = {name: np.zeros_like(array) for name, array in weights_of(2, 0, arch=arch).items()}
    first, middle, last = (name for name in weights if name.endswith("weight"))
    weights[first][0], weights[last][0] = 1, 1
    weights[middle][0] = np.eye(6) + np.roll(np.eye(6), 1, axis=0)
    for name, array in weights_of(1, 1, arch=arch).items():
        weights[name][1] = array[0]
    found = dedupe(ckptzoo.open(written(tmp_path / "zoo", arch, weights)))
    assert (found.groups, found.uncertain, found.checkpoints) == ((), 1, 2)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_many_copies_and_a_walk_of_small_steps(tmp_path: Path) -> None:
    one = weights_of(1, 0)
    weights = rescaled(one, np.zeros(1500, int), 1, scales=False)
    rng = np.random.default_rng(2)
    for array in weights.values():
        size = np.linalg.norm(array[0]) * 3e-7
        steps = rng.standard_normal((500, *array.shape[1:]))
        steps *= size / np.linalg.norm(steps.reshape(500, -1), axis=1).reshape(-1, *[1] * (array.ndim - 1))
        walk = array[0].astype(np.float64) + np.cumsum(steps, axis=0)
        array[1000:] = walk.astype(np.float32)
    found = dedupe(ckptzoo.open(written(tmp_path / "zoo", ARCH, weights)))
    assert found.groups == (tuple(map(str, range(1500))),) and found.identical == (False,)


def test_what_is_not_finite_is_skipped_and_ties_are_told_apart(tmp_path: Path) -> None:
    weights = weights_of(12, 0)
    for row in (3, 4):
        weights["conv2.weight"][row, 6] = weights["conv2.weight"][row, 5]
        weights["fc.weight"][row, :, 6] = weights["fc.weight"][row, :, 5]
    weights["conv2.weight"][5] = weights["conv2.weight"][5, :1]
    put(weights, [9, 10, 11], rescaled(weights, [3, 4, 5], 1, scales=False))
    weights["fc.bias"][[0, 1], 2] = np.nan
    path = written(tmp_path / "zoo", ARCH, weights)
    assert dedupe(ckptzoo.open(path).take([0, 1])).skipped == ("0", "1")
    found = dedupe(ckptzoo.open(path))
    assert found.skipped == ("0", "1") and found.checkpoints == 10
    assert found.groups == (("3", "9"), ("4", "10"), ("5", "11")) and all(found.identical)


def test_normalisations_and_counters(tmp_path: Path) -> None:
    arch, table = archs.architecture("resnet8-conv-10"), archs.symmetry("resnet8-conv-10")
    weights = weights_of(6, 0, arch=arch)
    element = GroupElement.random(table, 6, np.random.default_rng(0), spread=0.3)
    normalised = {part.group for action in table.actions if action.exponent == 2 for part in action.segments}
    scales = {name: np.maximum(s, 1 / s) if name in normalised else s for name, s in element.scales.items()}
    copies = apply(GroupElement(element.perms, scales), weights, table)
    both = {name: np.concatenate([array, copies[name].astype(array.dtype)]) for name, array in weights.items()}
    both["bn1.num_batches_tracked"][7] += 1
    found = dedupe(ckptzoo.open(written(tmp_path / "zoo", arch, both)))
    assert found.groups == ids([at, at + 6] for at in range(6) if at != 1)


def test_the_tolerance_is_checked_and_nothing_is_written(tmp_path: Path) -> None:
    path = written(tmp_path / "zoo", ARCH, weights_of(3, 0))
    before = files_of(path)
    assert dedupe(ckptzoo.open(path)).groups == ()
    for tolerance in (-1.0, np.nan, np.inf):
        with pytest.raises(ZooError, match="dedupe: tolerance: expected a finite number"):
            dedupe(ckptzoo.open(path), tolerance=tolerance)
    assert files_of(path) == before
