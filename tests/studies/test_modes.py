"""How many modes are counted where clusters are planted."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import derive
from ckptzoo.errors import MissingExtraError, SymmetryError, UnknownNameError, ZooError
from ckptzoo.schema.documents import canonical
from ckptzoo.studies import mean_shift
from ckptzoo.studies import modes as module
from ckptzoo.studies.mean_shift import QUANTILES, RUNS, ModeCurve, PointSet, mode_curve
from ckptzoo.studies.modes import ALL, modes
from ckptzoo.studies.shared import plots
from ckptzoo.symmetry import GroupElement, apply
from tests.support import effort
from tests.support.pictures import share
from tests.support.printed import printed

Make = Callable[..., tuple[ckptzoo.Zoo, dict[str, np.ndarray]]]


def clusters(count: int, each: int, dimensions: int, *, width: float, distance: float, seed: int = 0) -> np.ndarray:
    """Points of ``count`` clusters whose centres are at least ``distance`` apart; inside one at most ``width``."""
    rng = np.random.default_rng(seed)
    centres = distance * np.eye(dimensions)[:count] / 2**0.5
    inside = rng.uniform(-1, 1, (count, each, dimensions)) * width / 2 / dimensions**0.5
    return (centres[:, None] + inside).reshape(-1, dimensions)


def shifted(points: np.ndarray) -> ModeCurve:
    found = mode_curve(points, lambda: None)
    assert found is not None
    return found


def networks(count: int, tmp_path: Path, *, copies: int, noise: float = 0.01) -> ckptzoo.Zoo:
    """So many random networks, each in several copies that symmetries and a little noise tell apart."""
    arch, table = archs.architecture("mlp-3-4-2"), archs.symmetry("mlp-3-4-2")
    rng = np.random.default_rng(9)
    weights = {tensor.name: rng.normal(size=(count, *tensor.shape)) for tensor in arch.tensors}
    weights = {name: np.repeat(value, copies, axis=0) for name, value in weights.items()}
    weights = {name: value + noise * rng.normal(size=value.shape) for name, value in weights.items()}
    moved = apply(GroupElement.random(table, count * copies, rng), weights, table)
    with ckptzoo.create(tmp_path / "nets", arch=arch, symmetry=table) as writer:
        stored = {name: np.asarray(value, np.float32) for name, value in moved.items()}
        writer.add(stored, [{"id": f"n{at}"} for at in range(count * copies)])
    derive(tmp_path / "nets", gauge="canonical", certify="none")
    return ckptzoo.open(tmp_path / "nets")


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Curves of five bandwidths, where their form is not what is tested."""
    monkeypatch.setattr(mean_shift, "BANDWIDTHS", 5)


@pytest.mark.slow
def test_planted_clusters_are_found_between_their_width_and_their_distance() -> None:
    found = shifted(clusters(4, 8, 5, width=0.5, distance=20.0))
    within = (found.bandwidths > 0.5) & (found.bandwidths < 19)
    assert within.sum() > 5 and (found.modes[within] == 4).all()
    assert (found.modes[found.bandwidths < 0.05] > 20).all() and found.modes[0] == 32
    assert (found.modes[found.bandwidths > 25] == 1).all() and found.modes[-1] == 1
    assert found.steadiest is not None and found.steadiest[0] == 4 and found.steadiest[1] > 15
    by_quantile = {item.quantile: item for item in found.estimates}
    assert by_quantile[0.2].modes == 4 and by_quantile[0.2].largest == 0.25
    assert by_quantile[0.5].modes == 1, "half of the points lie in other clusters"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_one_cloud_has_no_steady_number() -> None:
    found = shifted(np.random.default_rng(1).normal(size=(25, 30)))
    assert (found.modes[0], found.modes[-1], found.distinct) == (25, 1, 25)
    assert found.one_from / found.apart_up_to < 2
    assert found.steadiest is None or found.steadiest[1] < 1.3


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_ends_are_one_a_point_and_one_in_all() -> None:
    points = np.random.default_rng(2).normal(size=(25, 2))
    found = shifted(points)
    apart = np.linalg.norm(points[:, None] - points, axis=2)[np.triu_indices(25, 1)]
    assert found.bandwidths[[0, -1]] == pytest.approx([0.98 * apart.min(), 1.02 * apart.max()])
    assert found.median == pytest.approx(np.median(apart))
    ahead = found.bandwidths <= found.apart_up_to
    assert (found.modes[ahead] == 25).all() and found.modes[ahead.sum()] < 25
    assert (found.modes[found.bandwidths >= found.one_from] == 1).all()


def test_points_that_are_alike_count_once() -> None:
    points = np.repeat(np.random.default_rng(3).normal(size=(5, 3)), 4, axis=0)
    found = shifted(points)
    assert (found.points, found.distinct, found.modes[0]) == (20, 5, 5)
    assert mode_curve(np.ones((6, 2)), lambda: None) is None and mode_curve(np.ones((1, 2)), lambda: None) is None


def test_so_few_points_have_no_neighbour_in_a_small_quantile() -> None:
    found = shifted(np.array([[0.0], [1.0], [3.0]]))
    assert [item.modes for item in found.estimates] == [None] * len(QUANTILES)
    five = shifted(np.arange(5.0)[:, None] ** 2)
    assert [item.bandwidth is None for item in five.estimates] == [True, True, True, True, False]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_wide_points_keep_their_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(4).normal(3, 1, (12, 60))
    monkeypatch.setattr(mean_shift, "WIDE", 20)
    wide = PointSet(12)
    for start in range(0, 60, 7):
        wide.add(points[:, start : start + 7])
    reduced = wide.coordinates()
    assert reduced.shape == (12, 11)
    between = [np.linalg.norm(held[:, None] - held, axis=2) for held in (points, reduced)]
    np.testing.assert_allclose(between[1], between[0], atol=1e-6)
    assert np.array_equal(shifted(reduced).modes, shifted(points).modes)
    narrow = PointSet(12)
    narrow.add(points[:, :9])
    np.testing.assert_allclose(narrow.coordinates(), points[:, :9] - points[:, :9].mean(axis=0))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_symmetric_copies_are_one_mode_in_the_gauge_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    found = modes(networks(3, tmp_path, copies=5), progress=lambda done, total: seen.append((done, total)))
    assert found.counts.permutations == 24 and found.counts.scaling_train == 4
    assert [space.label for space in found.spaces] == ["fc1", "fc2", ALL]
    assert [space.parameters for space in found.spaces] == [16, 10, 26]
    for space in found.spaces:
        derived, raw = space.curves["canonical"], space.curves["raw"]
        assert derived is not None and raw is not None
        assert derived.steadiest is not None and derived.steadiest[0] == 3 and derived.steadiest[1] > 4
        assert raw.steadiest is None or raw.steadiest[1] < derived.steadiest[1] / 2
    assert seen == [(at + 1, 6 * RUNS) for at in range(6 * RUNS)]
    text = printed(found)
    assert "each mode is 24 modes by permutations" in text and "set of 4 dimensions (15.38% of" in text
    assert "The steadiest number of all is 3" in text
    monkeypatch.setattr(mean_shift, "BANDWIDTHS", 5)
    few = printed(modes(networks(3, tmp_path / "few", copies=4)))
    assert "not resolved with 12 members; that takes 14 or more" in few and "steadiest number of all" not in few


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
def test_many_members_are_thinned_out(perceptrons: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo, _ = perceptrons(20)
    monkeypatch.setattr(module, "MAX_MEMBERS", 5)
    few = modes(zoo, "first-weight")
    assert (few.members, few.usable) == (5, 20) and "5 members of 20, evenly spaced" in printed(few)
    same = modes(zoo.take([0, 5, 10, 14, 19]), "first-weight")
    assert canonical(few.to_json()["spaces"]) == canonical(same.to_json()["spaces"])
    monkeypatch.setattr(module, "MAX_BYTES", 3 * 24)
    assert modes(zoo, "first-weight").members == 3


@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
@pytest.mark.exhaustive
def test_many_layers_are_thinned_out(perceptrons: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo, _ = perceptrons(6)
    both = modes(zoo, "first-weight")
    monkeypatch.setattr(module, "MAX_LAYERS", 1)
    found = modes(zoo, "first-weight")
    assert [space.label for space in found.spaces] == ["hidden", ALL] and found.layers == 2
    assert "1 of 2, evenly spaced" in printed(found)
    assert canonical(found.spaces[-1].to_json()) == canonical(both.spaces[-1].to_json()), "all are still all"


@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
@pytest.mark.exhaustive
def test_small_pieces_give_the_same(perceptrons: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo, _ = perceptrons(8)
    whole = modes(zoo, "first-weight")
    monkeypatch.setattr(module, "_COLUMNS", 2)
    assert canonical(modes(zoo, "first-weight").to_json()) == canonical(whole.to_json())


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
def test_what_cannot_be_used_is_left_out(perceptrons: Make, tmp_path: Path) -> None:
    zoo, _ = perceptrons(9)
    weights = {name: np.array(zoo[name]) for name in zoo.arch.names}
    weights["hidden.weight"][4, 0, 0] = np.nan
    rows: list[dict[str, Any]] = [{"id": f"q{at}", "member": f"m{min(at, 7)}", "step": at} for at in range(9)]
    rows[2]["diverged"] = True
    with ckptzoo.create(tmp_path / "odd", arch=zoo.arch, symmetry=zoo.symmetry) as writer:
        writer.add(weights, rows)
    derive(tmp_path / "odd", gauge="first-weight")
    odd = ckptzoo.open(tmp_path / "odd")
    found = modes(odd, "first-weight")
    assert (found.members, found.left_out) == (6, 2), "m7 counts once"
    assert "2 checkpoints: diverged, not finite or not in the gauge" in printed(found)
    good = modes(odd.take([0, 1, 3, 5, 6, 8]), "first-weight")
    assert canonical(good.to_json()["spaces"]) == canonical(found.to_json()["spaces"])
    with pytest.raises(ZooError, match="members: expected at least one that is finite"):
        modes(odd.take([2, 4]), "first-weight")


def test_what_is_missing_is_said(perceptrons: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo, _ = perceptrons(3)
    with pytest.raises(ZooError, match=r"Run ckptzoo derive \S+ --gauge canonical"):
        modes(zoo)
    with pytest.raises(UnknownNameError, match="first-weight"):
        modes(zoo, "raw")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(MissingExtraError, match=r"ckptzoo\[stats\]"):
        modes(zoo, "first-weight")


def test_a_zoo_without_a_table_is_refused(make_zoo: Callable[..., tuple[Path, dict[str, np.ndarray]]]) -> None:
    with pytest.raises(SymmetryError, match="symmetry table: expected one, got none"):
        modes(ckptzoo.open(make_zoo()[0]))


@pytest.mark.slow
@pytest.mark.parametrize("count", [6, 1, 2])
@pytest.mark.sampled(3)
def test_print_plot_and_json(perceptrons: Make, tmp_path: Path, request: pytest.FixtureRequest, count: int) -> None:
    if not effort.ALL:
        request.getfixturevalue("coarse")
    zoo, _ = perceptrons(count, name="a" * 60)
    found = modes(zoo, "first-weight")
    first = found.plot(tmp_path / "one")
    assert [path.name for path in first] == ["modes.png", "modes.json"]
    if effort.ALL:
        assert first[0].read_bytes() == found.plot(tmp_path / "two")[0].read_bytes()
    for colour in (plots.DERIVED_COLOUR, *[plots.RAW_COLOUR] * (count > 1)):
        assert share(first[0], colour) > 1e-4
    plain = json.loads(first[1].read_bytes())
    assert plain == json.loads(canonical(found.to_json())) and plain["members"] == count
    text = printed(found)
    assert "6 modes by permutations" in text
    assert ("Fewer than three members differ" in text) == (count < 3)
    assert "…" not in printed(found, 80)


@pytest.mark.usefixtures("coarse")
def test_without_matplotlib_the_extra_is_named(
    perceptrons: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = modes(perceptrons(3)[0], "first-weight")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"ckptzoo\[plot\]"):
        found.plot(tmp_path / "none")
    assert not (tmp_path / "none").exists()
