"""Copies among contributed checkpoints and of those of a zoo: permuted and rescaled ones are found, others are not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.hub.contributions import duplicates
from ckptzoo.hub.contributions.duplicates import copies
from ckptzoo.hub.contributions.target_zoo import TargetZoo
from ckptzoo.hub.push import push
from ckptzoo.symmetry import GAUGES, GroupElement, apply, canonicalize
from tests.support.effort import examples
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import ARCH, TABLE, weights_of, zoo_of

Weights = dict[str, np.ndarray]


def added(path: Path, *weights: Weights) -> ckptzoo.Zoo:
    """A zoo of OptuNets x0, x1, ... with these weights."""
    writer = ckptzoo.create(path, arch=ARCH, symmetry=TABLE)
    for number, item in enumerate(weights):
        writer.add(item, [{"id": f"x{number}"}])
    writer.commit()
    return ckptzoo.open(path)


def rescaled(weights: Weights, seed: int, spread: float = 1.0) -> Weights:
    element = GroupElement.random(TABLE, len(weights["fc.bias"]), np.random.default_rng(seed), spread=spread)
    return {name: np.asarray(array) for name, array in apply(element, weights, TABLE).items()}


def held(row: int) -> Weights:
    """A checkpoint of the zoo that ``make_zoo`` makes."""
    return {name: array[row : row + 1] for name, array in weights_of(3, 1000 * ord("m")).items()}


@settings(deadline=None, max_examples=examples(25, 4), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 2.0]))
def test_permuted_and_rescaled_copies_are_found(
    tmp_path_factory: pytest.TempPathFactory, row: int, seed: int, spread: float
) -> None:
    folder = tmp_path_factory.mktemp("law")
    zoo = ckptzoo.open(zoo_of(folder / "zoo"))
    found = copies(added(folder / "new", weights_of(1, 5), rescaled(held(row), seed, spread)), TargetZoo(zoo))
    assert list(found.found) == ["x1"] and found.found["x1"].startswith(f"m0-{row} of the zoo")
    assert found.check().outcome == "failed" and found.left == 0


@settings(deadline=None, max_examples=examples(20, 4), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 3), max_size=5),
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.sets(st.integers(0, 5)),
    st.integers(0, 2**16),
)
def test_the_first_copy_is_named_of_the_contribution_before_the_zoo(
    tmp_path_factory: pytest.TempPathFactory, held_owners: list[int], owners: list[int], same: set[int], seed: int
) -> None:
    """Whatever was permuted, repeated bit for bit, or brought twice."""
    folder = tmp_path_factory.mktemp("law")
    base = [weights_of(1, owner) for owner in range(6)]

    def disguised(owner: int, place: int) -> Weights:
        return base[owner] if owner in same else rescaled(base[owner], seed + place, 0.3)

    target = None
    if held_owners:
        theirs = [disguised(owner, place) for place, owner in enumerate(held_owners)]
        target = TargetZoo(added(folder / "zoo", *theirs))
    mine = [disguised(owner, 100 + place) for place, owner in enumerate(owners)]
    expected: dict[str, str] = {}
    for place, owner in enumerate(owners):
        how = "bit for bit" if owner in same else "permuted or rescaled"
        if owner in owners[:place]:
            expected[f"x{place}"] = f"x{owners.index(owner)} of the same contribution, {how}"
        elif owner in held_owners:
            expected[f"x{place}"] = f"x{held_owners.index(owner)} of the zoo, {how}"
    assert copies(added(folder / "new", *mine), target).found == expected


def test_networks_that_only_share_a_fingerprint_are_not_copies(
    make_zoo: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that differ by more than rounding, under one fingerprint: the weights decide."""
    near = {name: array * np.float32(1 + 1e-4) for name, array in held(0).items()}
    monkeypatch.setattr(duplicates, "fingerprint", lambda made: ["same"] * len(made.report.gauged))
    found = copies(added(tmp_path / "new", near, held(1)), TargetZoo(ckptzoo.open(make_zoo())))
    assert list(found.found) == ["x1"]
    assert copies(added(tmp_path / "more", near), None).found == {}


def test_checkpoints_that_lie_close_are_told_apart_by_their_sketches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of 40 steps of one run are read once each, though most of them share a fingerprint."""
    moves = [weights_of(1, at) for at in range(40)]
    steps = [{name: array + np.float32(1e-2) * move[name] for name, array in held(0).items()} for move in moves]
    zoo = added(tmp_path / "new", *steps)
    monkeypatch.setattr(duplicates, "fingerprint", lambda made: ["same"] * len(made.report.gauged))
    calls: list[int] = []

    def counted(weights: Weights, *arguments: object, **options: str) -> object:
        calls.append(len(weights["fc.bias"]))
        return canonicalize(weights, *arguments, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(duplicates, "canonicalize", counted)
    assert copies(zoo, None).found == {} and sum(calls) < 2 * len(steps)


def test_stored_fingerprints_save_the_weights(
    server: Hosted, make_zoo: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_zoo()
    derive(folder, certify="none")
    push(folder, ZOO, endpoint=server.url, token=server.tokens["write"])
    monkeypatch.setattr("ckptzoo.hub.contributions.target_zoo.COMPARED_BYTES", 0)
    zoo = ckptzoo.open(ZOO, endpoint=server.url)
    before = len(server.request_log.entries)
    fresh = copies(added(tmp_path / "new", weights_of(1, 5)), TargetZoo(zoo))
    assert fresh.found == {} and fresh.check().outcome == "passed"
    assert not [entry.path for entry in server.request_log.entries[before:] if "safetensors" in entry.path]
    found = copies(added(tmp_path / "copy", rescaled(held(2), 3)), TargetZoo(zoo))
    assert found.found == {"x0": "m0-2 of the zoo, permuted or rescaled"}
    found = copies(added(tmp_path / "same", held(2)), TargetZoo(zoo))
    assert found.found == {"x0": "m0-2 of the zoo, bit for bit"}


def test_large_zoos_without_fingerprints_are_not_compared(
    make_zoo: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptzoo.hub.contributions.target_zoo.COMPARED_BYTES", 0)
    found = copies(added(tmp_path / "new", held(0)), TargetZoo(ckptzoo.open(make_zoo())))
    assert found.found == {} and found.left == 5
    check = found.check()
    assert check.outcome == "not done" and "5 checkpoints of the zoo not compared" in check.detail


def test_weights_without_a_canonical_form(make_zoo: Callable[..., Path], tmp_path: Path) -> None:
    """Not finite, or all zeros: compared bit for bit."""
    broken = held(0)
    broken["fc.bias"] = np.full((1, 10), np.nan, np.float32)
    found = copies(added(tmp_path / "new", broken, broken), TargetZoo(ckptzoo.open(make_zoo())))
    assert list(found.found) == ["x1"] and "bit for bit" in found.found["x1"] and not found.resolved


def test_other_versions_of_fingerprints_are_not_compared(
    make_zoo: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_zoo()
    derive(folder, certify="none")
    monkeypatch.setattr(duplicates, "_KIND", "canonical-99:")
    found = copies(added(tmp_path / "copy", rescaled(held(2), 3)), TargetZoo(ckptzoo.open(folder)))
    assert found.found == {"x0": "m0-2 of the zoo, permuted or rescaled"}  # from the weights, which are few
    monkeypatch.setattr("ckptzoo.hub.contributions.target_zoo.COMPARED_BYTES", 0)
    found = copies(added(tmp_path / "more", rescaled(held(2), 3)), TargetZoo(ckptzoo.open(folder)))
    assert found.left == 5 and found.outdated
    assert (
        f"of another version than {GAUGES['canonical'].version}: remove derived/canonical and make it again"
        in found.check().detail
    )
