"""What a comparison of two zoos finds: halves of one, a gauge, shifts, and the same numbers as from plain arrays."""

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.errors import IntegrityError, MissingExtraError, UnknownNameError, ZooError
from ckptzoo.measure import mmd2, mmd_test, p_value
from ckptzoo.schema.documents import canonical
from ckptzoo.studies import discrepancy as module
from ckptzoo.studies import mmd
from ckptzoo.studies.discrepancy import ComparedSet, Discrepancy, LayerDiscrepancy, measure_share
from ckptzoo.studies.plots import discrepancy as discrepancy_pictures
from tests.support.printed import printed

Make = Callable[..., tuple[ckptzoo.Zoo, dict[str, np.ndarray]]]


def halves(zoo: ckptzoo.Zoo) -> tuple[ckptzoo.Zoo, ckptzoo.Zoo]:
    return zoo.take(slice(0, None, 2)), zoo.take(slice(1, None, 2))


def test_halves_of_one_zoo_are_alike_and_a_gauge_is_seen(perceptrons: Make) -> None:
    one, two = halves(perceptrons(200)[0])
    for variant in ("raw", "first-weight"):
        alike = mmd(one, two, variant, permutations=99)
        assert alike.p is not None and alike.p > 0.02 and alike.null is not None
        assert abs(alike.median) < 3 * np.abs(alike.null).max()
        assert (alike.x.variant, alike.y.variant) == (variant, variant)
    apart = mmd(one, two, "raw", "first-weight", permutations=99)
    assert apart.p == 0.01 and apart.null is not None and apart.median > 5 * apart.null.max()
    assert all(item.p == 0.01 for item in apart.layers)


def test_a_shift_is_found_and_grows(perceptrons: Make, tmp_path: Path) -> None:
    zoo, weights = perceptrons(60, gauge=False)
    medians = []
    for shift in (0.0, 0.5, 1.0, 2.0):
        moved = {name: array + np.asarray(shift, array.dtype) for name, array in weights.items()}
        with ckptzoo.create(tmp_path / f"at-{shift}", arch=zoo.arch) as writer:
            writer.add(moved, [{"id": f"s{at}"} for at in range(60)])
        other = ckptzoo.open(tmp_path / f"at-{shift}").take(slice(30, 60))
        medians.append(mmd(zoo.take(slice(30)), other, bandwidths="fixed").median)
    assert medians == sorted(medians) and medians[-1] > 0.1 > 0.02 > abs(medians[0])


def test_the_figures_are_those_of_the_arrays(perceptrons: Make) -> None:
    zoo, weights = perceptrons(50, gauge=False)
    found = mmd(zoo.take(slice(30)), zoo.take(slice(30, 50)), permutations=19, seed=5)
    assert [item.name for item in found.layers] == ["hidden", "out"]
    assert [item.name for item in found.tensors] == ["hidden.weight", "hidden.bias", "out.weight"]
    assert found.left_out == ("steps",)
    flat = {name: array.reshape(50, -1).astype(float) for name, array in weights.items()}
    together = {
        "hidden": np.concatenate([flat["hidden.weight"], flat["hidden.bias"]], axis=1),
        "out": flat["out.weight"],
    }
    for item in found.layers:
        tested = mmd_test(together[item.name][:30], together[item.name][30:], permutations=19, seed=5)
        np.testing.assert_allclose(item.mmd2, tested.mmd2, atol=1e-12)
        assert item.null is not None and item.p == tested.p
        np.testing.assert_allclose(item.null, tested.null, atol=1e-12)
        assert item.parameters == together[item.name].shape[1]
    for item in found.tensors:
        np.testing.assert_allclose(item.mmd2, mmd2(flat[item.name][:30], flat[item.name][30:]), atol=1e-12)
    one, two = found.layers
    for name in ("median", "mean", "most"):
        assert getattr(found, name) == pytest.approx((9 * getattr(one, name) + 6 * getattr(two, name)) / 15)
    assert one.null is not None and two.null is not None
    assert found.p == p_value(found.median, (9 * one.null + 6 * two.null) / 15)


def test_blocks_of_columns_and_parts_change_rounding_alone(make_zoo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, weights = make_zoo((5, 1, 6, 4))
    zoo = ckptzoo.open(path)
    one, two = zoo.take([9, 3, 11, 0, 1]), zoo.take([2, 15, 7, 8])
    whole, seen = mmd(one, two), []
    monkeypatch.setattr(module, "BLOCK_BYTES", 9 * 4 * 3)
    cut = mmd(one, two, progress=lambda done, total: seen.append((done, total)))
    assert len(seen) == 4 + 2 + 2 and seen[-1][0] == seen[-1][1] == 9 * (48 + 10 + 12)
    assert all(before < behind for (before, _), (behind, _) in pairwise(seen))
    for left, right in zip(whole.tensors, cut.tensors, strict=True):
        np.testing.assert_allclose(left.mmd2, right.mmd2, atol=1e-12)
        rows = weights[left.name].astype(np.float64).reshape(16, -1)
        expected = mmd2(rows[[9, 3, 11, 0, 1]], rows[[2, 15, 7, 8]])
        np.testing.assert_allclose(left.mmd2, expected, atol=1e-12)
    assert [item.name for item in whole.tensors] == ["conv.weight", "half.weight", "brain.weight"]
    assert set(whole.left_out) == {"norm.running_var", "norm.num_batches_tracked", "flag"}


def test_torch_computes_the_same(make_zoo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo = ckptzoo.open(make_zoo((9, 6))[0])
    one, two = zoo.take(slice(7)), zoo.take(slice(7, 15))
    ours, theirs = (mmd(one, two, permutations=5, device=device) for device in (None, "cpu"))
    for left, right in zip(ours.layers, theirs.layers, strict=True):
        np.testing.assert_allclose(left.mmd2, right.mmd2, atol=1e-12)
        assert left.null is not None and right.null is not None
        np.testing.assert_allclose(left.null, right.null, atol=1e-12)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "ckptzoo.loader.torch")
    monkeypatch.delattr("ckptzoo.loader.torch")
    with pytest.raises(MissingExtraError, match=r"ckptzoo\[torch\]"):
        mmd(one, two, device="cpu")


def test_computed_weights_are_as_stored_ones(perceptrons: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = perceptrons(40)[0]
    computed = perceptrons(40, gauge=False, name="computed")[0]
    derive(computed.path, gauge="first-weight", store="element", certify="none")
    computed = computed.refresh()
    monkeypatch.setattr(module, "BLOCK_BYTES", 40 * 4)
    for order in (("raw", "first-weight"), ("first-weight", "raw")):
        one, two = (mmd(*halves(zoo), *order) for zoo in (stored, computed))
        for left, right in zip(one.layers, two.layers, strict=True):
            np.testing.assert_array_equal(left.mmd2, right.mmd2)


def test_last_steps_are_compared_and_what_is_not_finite_is_left_out(perceptrons: Make, tmp_path: Path) -> None:
    zoo, weights = perceptrons(30, gauge=False)
    weights["hidden.bias"][[4, 25, 29], 1] = np.nan
    rows = [{"id": f"n{at}", "member": f"m{at % 15}", "step": at // 15} for at in range(30)]
    with ckptzoo.create(tmp_path / "steps", arch=zoo.arch, symmetry=zoo.symmetry) as writer:
        writer.add(weights, rows)
    derive(tmp_path / "steps", gauge="first-weight")
    steps = ckptzoo.open(tmp_path / "steps")
    found = mmd(steps, zoo)
    assert found.x == ComparedSet("steps", "raw", 13, 2, 0) and found.y.checkpoints == 30
    expected = mmd2(weights["out.weight"][[*range(15, 25), 26, 27, 28]], np.asarray(zoo["out.weight"]))
    np.testing.assert_allclose(found.layers[1].mmd2, expected, atol=1e-12)
    assert "13 checkpoints; 2 left out, not finite" in printed(found)


def test_checkpoints_that_no_gauge_represents_are_counted(perceptrons: Make, tmp_path: Path) -> None:
    zoo, weights = perceptrons(20, gauge=False)
    weights["out.weight"][3] = 3e38
    with ckptzoo.create(tmp_path / "huge", arch=zoo.arch, symmetry=zoo.symmetry) as writer:
        writer.add(weights, [{"id": f"n{at}"} for at in range(20)])
    derive(tmp_path / "huge", gauge="first-weight")
    huge = ckptzoo.open(tmp_path / "huge")
    kept = int((~huge.variant_metadata("first-weight")["gauged"].to_numpy()).sum())
    found = mmd(*halves(huge), "first-weight")
    assert (found.x.kept, found.y.kept) == (0, kept) and kept == 1
    assert "1 as trained, not representable in the gauge" in printed(found)


def test_members_that_are_in_both_are_told(perceptrons: Make) -> None:
    zoo = perceptrons(20, gauge=False)[0]
    with pytest.warns(UserWarning, match="5 members of p are in both; the estimate is for independent draws"):
        found = mmd(zoo.take(slice(12)), zoo.take(slice(7, 20)))
    assert found.shared == 5 and "5 members" in printed(found)
    assert found.to_json()["shared"] == 5


def test_what_cannot_be_compared_is_said(perceptrons: Make, make_zoo: Any) -> None:
    zoo = perceptrons(10)[0]
    one, two = halves(zoo)
    other = ckptzoo.open(make_zoo()[0])
    with pytest.raises(
        ZooError, match=r"expected the same shapes, got hidden.weight \(3, 2\) and missing; hidden.bias"
    ):
        mmd(zoo, other)
    with pytest.raises(ZooError, match="expected 2 or more that are finite, got 1 of 1"):
        mmd(zoo.take([0]), zoo.take(slice(1, 10)))
    with pytest.raises(UnknownNameError, match="Did you mean first-weight"):
        mmd(one, two, "frist-weight")
    with pytest.raises(UnknownNameError, match="Did you mean paper"):
        mmd(one, two, bandwidths="papr")  # type: ignore[arg-type]
    with pytest.raises(ZooError, match="permutations: expected an integer, 0 or more, got int -1"):
        mmd(one, two, permutations=-1)
    none = ckptzoo.Architecture("none", (ckptzoo.Tensor("steps", (), "int64"),))
    path, _ = make_zoo((4,), none, "none")
    with pytest.raises(ZooError, match="got no floating-point parameter"):
        mmd(ckptzoo.open(path), ckptzoo.open(path))


def test_bandwidths_may_be_given(perceptrons: Make) -> None:
    one, two = halves(perceptrons(20, gauge=False)[0])
    kernels = np.geomspace(1, 20, 20)
    found = mmd(one, two, bandwidths=kernels)
    assert found.rule == "given" and all((item.bandwidths == kernels).all() for item in found.tensors)
    assert mmd(one, two, bandwidths="fixed").rule == "fixed"


@pytest.mark.slow
def test_the_result_is_printed_drawn_and_serialised(perceptrons: Make, tmp_path: Path) -> None:
    one, two = halves(perceptrons(40)[0])
    for permutations in (0, 9):
        found, again = (mmd(one, two, "raw", "first-weight", permutations=permutations) for _ in range(2))
        assert canonical(found.to_json()) == canonical(again.to_json())
        folder = tmp_path / str(permutations)
        files = found.plot(folder)
        assert [path.name for path in files] == ["mmd.png", "mmd.json"]
        assert [path.read_bytes() for path in files] == [path.read_bytes() for path in again.plot(tmp_path / "again")]
        content = json.loads(files[1].read_text())
        assert content == json.loads(json.dumps(found.to_json()))
        assert [item["name"] for item in content["layers"]] == ["hidden", "out"]
        assert (content["p"] is None) == (permutations == 0) and len(content["layers"][0]["mmd2"]) == 20
        lines = printed(found).splitlines()
        assert lines[0].split() == ["X", "p,", "raw:", "20", "checkpoints"]
        assert lines[-1].split()[:4] == ["weighted", "average", "15", f"{100 * found.median:.3f}"]
        assert lines[-1].split()[6:] == ([] if permutations == 0 else [f"{found.p:.3g}"])
        picture = imread(files[0])
        assert 300 < picture.shape[0] < picture.shape[1] == 1440


@pytest.mark.parametrize(
    "squares, spread, offset",
    # variances 2 and 8 of one column, means 3 apart: 4, 16 and 2 + 8 + 9; a target of one point; means that agree
    [((4, 16, 19), 2.0, 3 / 2**0.5), ((0, 1, 1), None, None), ((2, 2, 1.9), 1.0, 0.0)],
)
def test_spread_and_offset_are_in_units_of_the_first_sets_spread(
    squares: tuple[float, ...], spread: float | None, offset: float | None
) -> None:
    values = np.zeros(20)
    layer = LayerDiscrepancy("fc", 1, values, values, None, np.array(squares, np.float64))
    assert layer.spread == pytest.approx(spread) and layer.offset == pytest.approx(offset)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_many_layers_are_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.gamma(1, 0.1, (200, 20))
    layers = tuple(
        LayerDiscrepancy(f"block{at}." + "long" * 20, 10, row, row, None, row[:3]) for at, row in enumerate(values)
    )
    side = ComparedSet("name-" * 30, "a-gauge-with-a-long-name", 1000, 3, 0)
    found = Discrepancy(side, side, "deep", "paper", 0, 0, 0, layers, layers, ())
    heights = [imread(found.plot(tmp_path)[0]).shape[0]]
    few = Discrepancy(side, side, "deep", "paper", 0, 0, 0, layers[:62], layers[:62], ())
    heights.append(imread(few.plot(tmp_path)[0]).shape[0])
    assert 160 * 0.26 * discrepancy_pictures.MAX_ROWS < heights[0] < 160 * 30 and heights[1] < heights[0]


def test_without_matplotlib_the_install_command_is_named(
    perceptrons: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = mmd(*halves(perceptrons(8, gauge=False)[0]))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"ckptzoo\[plot\]"):
        found.plot(tmp_path)


def test_the_study_is_found_by_name_and_stays_light() -> None:
    code = (
        "import sys, ckptzoo\n"
        "assert 'mmd' in dir(ckptzoo.studies) and 'ckptzoo.studies.discrepancy' not in sys.modules\n"
        "assert ckptzoo.studies.mmd.__module__ == 'ckptzoo.studies.discrepancy'\n"
        "assert not hasattr(ckptzoo.studies, 'mdm')\n"
        "print([name for name in ('torch', 'scipy', 'matplotlib', 'sklearn') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "[]"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of about three columns, so that a tensor has several."""
    monkeypatch.setattr(module, "BLOCK_BYTES", 3 * 60 * 4)


def same(found: Discrepancy, expected: Discrepancy) -> bool:
    exchanges = all(
        np.array_equal(one.null, two.null)  # type: ignore[arg-type]
        for one, two in zip(found.layers, expected.layers, strict=True)
    )
    return exchanges and canonical(found.to_json()) == canonical(expected.to_json())


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.sampled(3)
def test_shares_have_the_bits_of_one_process(
    perceptrons: Make, tmp_path: Path, small_blocks: None, count: int, device: str | None
) -> None:
    one, two = halves(perceptrons(60)[0])
    expected = mmd(one, two, "raw", "first-weight", permutations=19, device=device)
    folder = tmp_path / "kept" / "distances"
    counts = [
        measure_share(one, two, folder, (number, count), "raw", "first-weight", device=device)
        for number in reversed(range(count))
    ]
    blocks = counts[-1][1]
    assert counts[-1][0] == blocks > 5 and len(list(folder.iterdir())) == blocks
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert same(mmd(one, two, "raw", "first-weight", permutations=19, device=device, saved_in=folder), expected)
    assert measure_share(one, two, folder, (0, 1), "raw", "first-weight", device=device) == (blocks, blocks)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_what_is_missing_is_measured_and_other_comparisons_are_told_apart(
    perceptrons: Make, tmp_path: Path, small_blocks: None
) -> None:
    one, two = halves(perceptrons(60)[0])
    found, count = measure_share(one, two, tmp_path / "kept", (1, 3))
    assert 0 < found < count
    assert same(mmd(one, two, saved_in=tmp_path / "kept"), mmd(one, two))
    assert len(list((tmp_path / "kept").iterdir())) == count
    for others in ((two, one), (one.take(slice(29)), two), (one, two.take(slice(None, None, -1)))):
        assert same(mmd(*others, saved_in=tmp_path / "kept"), mmd(*others))
    assert same(mmd(one, two, "first-weight", saved_in=tmp_path / "kept"), mmd(one, two, "first-weight"))
    assert len(list((tmp_path / "kept").iterdir())) == 5 * count


def test_damaged_distances_are_refused(perceptrons: Make, tmp_path: Path) -> None:
    one, two = halves(perceptrons(20)[0])
    measure_share(one, two, tmp_path / "kept")
    first, *_ = sorted((tmp_path / "kept").iterdir())
    whole = first.read_bytes()
    first.write_bytes(whole[:-9])
    with pytest.raises(IntegrityError, match=rf"{first.name}: block: expected .*\. Remove the file"):
        mmd(one, two, saved_in=tmp_path / "kept")
    # of another comparison under this name
    other = tmp_path / "other"
    measure_share(two, one, other)
    first.write_bytes(min(other.iterdir()).read_bytes())
    with pytest.raises(IntegrityError, match="got those of another one"):
        mmd(one, two, saved_in=tmp_path / "kept")
    first.write_bytes(whole)
    assert same(mmd(one, two, saved_in=tmp_path / "kept"), mmd(one, two))
