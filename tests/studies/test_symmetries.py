"""What a study of symmetries finds where permutations and scales are planted."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import derive
from ckptzoo.errors import MissingExtraError, SymmetryError, UnknownNameError, ZooError
from ckptzoo.measure.ranks import kendall
from ckptzoo.schema.documents import canonical
from ckptzoo.studies import gauge_distance as module
from ckptzoo.studies.shared import plots
from ckptzoo.studies.symmetries import GaugeCounts, symmetries
from ckptzoo.symmetry import GroupElement, apply, transpositions
from tests.support.effort import ALL
from tests.support.pictures import share
from tests.support.printed import printed

Make = Callable[..., ckptzoo.Zoo]

KEYS = np.array([-0.7, -0.35, 0.1, 0.2, 0.85])
"""Sorted first weights of five units."""


def planted(perms: np.ndarray) -> np.ndarray:
    """(K, 5) keys of raw units, of which unit ``perms[k, i]`` comes to place i."""
    keys = np.empty(perms.shape)
    np.put_along_axis(keys, perms, np.broadcast_to(KEYS, perms.shape), 1)
    return keys


def test_planted_permutations_are_found(sorted_units: Make) -> None:
    perms = np.array([[0, 1, 2, 3, 4], [1, 0, 2, 3, 4], [1, 2, 3, 4, 0], [4, 3, 2, 1, 0]])
    (item,) = symmetries(sorted_units(planted(perms)), "first-weight").moves
    assert (item.label, item.n, item.orders) == ("units", 5, 1)
    assert item.moved.mean == pytest.approx((0 + 2 / 5 + 1 + 4 / 5) / 4)
    assert item.transpositions.mean == pytest.approx((0 + 1 + 4 + 2) / 4)
    assert (item.transpositions.least, item.transpositions.most) == (0, 4)
    assert item.tau.mean == pytest.approx((1 + 0.8 + 0.2 - 1) / 4)
    assert item.random_moved == 0.8
    assert item.random_transpositions == pytest.approx(5 - (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5))


def test_random_initialisations_are_as_far_as_random_orders(sorted_units: Make) -> None:
    keys = np.random.default_rng(1).uniform(-0.9, 0.9, (600, 12))
    (item,) = symmetries(sorted_units(keys), "first-weight").moves
    for spread, expected in (
        (item.moved, item.random_moved),
        (item.transpositions, item.random_transpositions),
        (item.tau, 0.0),
    ):
        assert spread.count == 600
        assert spread.mean == pytest.approx(expected, abs=4 * spread.sd / 600**0.5)


def test_planted_scales_are_found(sorted_units: Make) -> None:
    scales = np.random.default_rng(0).permutation(np.repeat([0.25, 0.5, 1.0, 4.0, 8.0], 40)).reshape(40, 5)
    (item,) = symmetries(sorted_units(np.tile(KEYS, (40, 1)), scales), "first-weight").scalings
    assert (item.group, item.n, item.kind, item.flipped) == ("units", 5, "positive", None)
    assert item.quantiles is not None and item.size is not None
    assert item.quantiles == pytest.approx(np.quantile(scales, module.QUANTILES), rel=0.01)
    assert item.size == pytest.approx(np.log(4), rel=0.01)


def test_turned_signs_are_counted(sorted_units: Make) -> None:
    keys = np.array([[0.5, -0.6, 0.7], [0.1, 0.2, 0.3]])
    zoo = sorted_units(keys, np.array([[1, -1, 1], [-1, 1, -1.0]]), kind="sign")
    found = symmetries(zoo, "first-weight")
    (item,) = found.scalings
    element = np.asarray(zoo.group_element("first-weight")["units.scale"])
    assert item.quantiles is None and item.size is None
    assert item.flipped == (element < 0).mean() == 0.5
    assert "50.0%" in printed(found) and found.counts.signs == 3


def test_distances_are_those_of_the_weights(sorted_units: Make) -> None:
    keys = np.random.default_rng(2).uniform(-0.9, 0.9, (7, 5))
    zoo = sorted_units(keys, np.random.default_rng(3).uniform(0.3, 3, (7, 5)))
    found = symmetries(zoo, "first-weight")
    assert [item.layer for item in found.distances] == ["hidden", "out"]
    for item, name in zip(found.distances, ("hidden.weight", "out.weight"), strict=True):
        raw, derived = (
            np.asarray(zoo[name, kind]).astype(np.float64).reshape(7, -1) for kind in ("raw", "first-weight")
        )
        expected = np.linalg.norm(derived - raw, axis=1) / np.linalg.norm(raw, axis=1)
        assert item.relative is not None and item.relative.mean == pytest.approx(expected.mean(), rel=1e-12)
        assert item.relative.most == pytest.approx(expected.max(), rel=1e-12)


def test_ties_dead_channels_and_margins_are_told(sorted_units: Make, tmp_path: Path) -> None:
    keys = np.tile(KEYS, (6, 1))
    keys[1, 3] = keys[1, 2]
    keys[2] = [-0.5, -0.4, -0.3, 0.301, 0.3]
    zoo = sorted_units(keys)
    weights = {name: np.array(zoo[name]) for name in zoo.arch.names}
    weights["hidden.weight"][3, 0] = 0
    weights["hidden.weight"][4] = np.nan
    with ckptzoo.create(tmp_path / "odd", arch=zoo.arch, symmetry=zoo.symmetry) as writer:
        writer.add(weights, [{"id": f"net-{at}"} for at in range(6)])
    derive(tmp_path / "odd", gauge="first-weight")
    found = symmetries(ckptzoo.open(tmp_path / "odd"), "first-weight")
    assert (found.checkpoints, found.gauged, found.left_out) == (6, 5, 1)
    assert found.ties == GaugeCounts(1, 1) and found.dead == GaugeCounts(1, 1)
    assert len(found.margins) == 5 and (found.margins == 0).sum() == 1
    assert found.closest is not None and found.closest[0] == "net-2"
    assert found.closest[1] == pytest.approx(0.001, rel=1e-6)
    text = printed(found)
    for words in ("1 left as they were", "1 pair in 1 checkpoint", "1 channel in 1 checkpoint", "0.001 in net-2"):
        assert words in text, text


def test_blocks_are_followed_apart_from_what_is_within(tmp_path: Path) -> None:
    symmetry, arch = archs.symmetry("optunet"), archs.architecture("optunet")
    assert symmetry is not None
    rng = np.random.default_rng(6)
    weights = {tensor.name: rng.normal(size=(40, *tensor.shape)) for tensor in arch.tensors}
    with ckptzoo.create(tmp_path / "o", arch=arch, symmetry=symmetry) as writer:
        writer.add(
            {name: array.astype(np.float32) for name, array in weights.items()}, [{"id": f"o{at}"} for at in range(40)]
        )
    derive(tmp_path / "o", gauge="first-weight", certify="none")
    zoo = ckptzoo.open(tmp_path / "o")
    found = symmetries(zoo, "first-weight")
    blocks, inside = found.moves
    outer, perms = (np.asarray(zoo.group_element("first-weight")[f"{name}.perm"]) for name in ("conv1", "conv2"))
    assert (blocks.n, blocks.orders, inside.n, inside.orders) == (2, 1, 5, 2)
    assert blocks.moved.mean == (outer[:, 0] == 1).mean() and blocks.transpositions.mean == blocks.moved.mean
    each = [perms[:, at : at + 5] % 5 for at in (0, 5)]
    assert inside.transpositions.mean == pytest.approx(np.mean([transpositions(part) for part in each]))
    assert inside.tau.mean == pytest.approx(np.mean([kendall(part, np.tile(np.arange(5), (40, 1))) for part in each]))
    assert found.counts.permutations == 28_800 and found.counts.scaling_train == 12
    assert "28,800" in printed(found) and "12 dimensions (3.06%)" in printed(found)


def test_a_zoo_in_the_gauge_is_where_it_was(tmp_path: Path) -> None:
    symmetry, arch = archs.symmetry("optunet"), archs.architecture("optunet")
    assert symmetry is not None
    rng = np.random.default_rng(7)
    weights = {tensor.name: rng.normal(size=(5, *tensor.shape)).astype(np.float32) for tensor in arch.tensors}
    element = GroupElement.random(symmetry, 5, rng)
    for name, raw in (("one", weights), ("two", apply(element, weights, symmetry))):
        with ckptzoo.create(tmp_path / name, arch=arch, symmetry=symmetry) as writer:
            writer.add(raw, [{"id": f"o{at}"} for at in range(5)])
        derive(tmp_path / name, gauge="first-weight", certify="none")
    one = ckptzoo.open(tmp_path / "one")
    with ckptzoo.create(tmp_path / "three", arch=arch, symmetry=symmetry) as writer:
        writer.add(
            {key: np.array(one[key, "first-weight"]) for key in arch.names}, [{"id": f"o{at}"} for at in range(5)]
        )
    derive(tmp_path / "three", gauge="first-weight", certify="none")
    found = symmetries(ckptzoo.open(tmp_path / "three"), "first-weight")
    assert all(item.moved.most == 0 and item.tau.least == 1 and item.transpositions.most == 0 for item in found.moves)
    assert all(item.size == 0 for item in found.scalings)
    assert all(item.relative is not None and item.relative.most == 0 for item in found.distances)
    two = symmetries(ckptzoo.open(tmp_path / "two"), "first-weight")
    np.testing.assert_allclose(two.margins, symmetries(one, "first-weight").margins, rtol=1e-3)


def test_small_batches_give_the_same(sorted_units: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = np.random.default_rng(8).uniform(-0.9, 0.9, (30, 6))
    zoo = sorted_units(keys, 2.0)
    seen: list[tuple[int, int]] = []
    whole = symmetries(zoo, "first-weight")
    monkeypatch.setattr(module, "BATCH_BYTES", 6 * 8 * 8 * 4)
    pieces = symmetries(zoo, "first-weight", progress=lambda done, total: seen.append((done, total)))
    assert canonical(pieces.to_json()) == canonical(whole.to_json())
    assert len(seen) > 20 and seen[-1][0] == seen[-1][1] and seen == sorted(seen)


def test_a_selection_is_studied_on_its_own(sorted_units: Make) -> None:
    perms = np.array([[0, 1, 2, 3, 4], [1, 0, 2, 3, 4]])
    zoo = sorted_units(planted(perms), rows=lambda at: {"seed": at})
    found = symmetries(zoo.where("seed == 1"), "first-weight")
    assert found.checkpoints == 1 and found.moves[0].transpositions.mean == 1


def test_what_is_missing_is_said(sorted_units: Make) -> None:
    zoo = sorted_units(np.tile(KEYS, (2, 1)))
    with pytest.raises(ZooError, match=r"Run ckptzoo derive \S+units --gauge unit-norm"):
        symmetries(zoo, "unit-norm")
    for name in ("raw", "frist-weight"):
        with pytest.raises(UnknownNameError, match="first-weight"):
            symmetries(zoo, name)
    with pytest.raises(ZooError, match="expected at least one, got none"):
        symmetries(zoo.take(slice(0)), "first-weight")


def test_a_zoo_without_a_table_is_refused(make_zoo: Callable[..., tuple[Path, dict[str, np.ndarray]]]) -> None:
    path, _ = make_zoo()
    with pytest.raises(SymmetryError, match="symmetry table: expected one, got none"):
        symmetries(ckptzoo.open(path), "first-weight")


def test_nothing_in_the_gauge_is_still_told(sorted_units: Make, tmp_path: Path) -> None:
    zoo = sorted_units(np.tile(KEYS, (2, 1)))
    weights = {name: np.full_like(np.array(zoo[name]), np.nan) for name in zoo.arch.names}
    with ckptzoo.create(tmp_path / "nan", arch=zoo.arch, symmetry=zoo.symmetry) as writer:
        writer.add(weights, [{"id": "a"}, {"id": "b"}])
    derive(tmp_path / "nan", gauge="first-weight")
    found = symmetries(ckptzoo.open(tmp_path / "nan"), "first-weight")
    assert (found.gauged, found.left_out, found.moves, found.closest) == (0, 2, (), None)
    assert "0 checkpoints in it; 2 left as they were" in printed(found)
    assert [path.name for path in found.plot(tmp_path / "drawn")] == ["symmetries.json"]


def test_without_matplotlib_the_extra_is_named(
    sorted_units: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = symmetries(sorted_units(np.tile(KEYS, (2, 1))), "first-weight")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"ckptzoo\[plot\]"):
        found.plot(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_pictures_are_drawn_and_equal_for_equal_zoos(sorted_units: Make, tmp_path: Path) -> None:
    keys = np.random.default_rng(9).uniform(-0.9, 0.9, (50, 6))
    keys[0, 0] = keys[0, 1]
    found = symmetries(sorted_units(keys, 2.0), "first-weight")
    one = found.plot(tmp_path / "one")
    assert [path.name for path in one] == ["margins.png", "scales.png", "transpositions.png", "symmetries.json"]
    if ALL:
        for first, second in zip(one, found.plot(tmp_path / "two"), strict=True):
            assert first.read_bytes() == second.read_bytes()
    for path in one[:3]:
        assert imread(path).shape[1] == 1440 and share(path, plots.RAW_COLOUR) > 1e-4, path
    assert share(one[0], plots.DERIVED_COLOUR) > 1e-5, "the tied checkpoint is in the key"
    plain = json.loads(one[-1].read_bytes())
    assert plain == json.loads(canonical(found.to_json()))
    assert plain["ties"] == {"checkpoints": 1, "total": 1} and plain["moves"][0]["random"]["tau"] == 0


def test_large_counts_are_powers_of_ten(sorted_units: Make) -> None:
    found = symmetries(sorted_units(np.random.default_rng(0).uniform(-0.9, 0.9, (2, 40))), "first-weight")
    assert "10^47.91" in printed(found)
    assert found.to_json()["counts"]["permutations"] is None
