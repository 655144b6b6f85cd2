"""What a study of masses finds where the least mass is known."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.errors import MissingExtraError, SymmetryError, UnknownNameError, ZooError
from ckptzoo.schema.documents import canonical
from ckptzoo.studies import mass as module
from ckptzoo.studies.mass import FEW, mass, peak
from ckptzoo.studies.shared import plots
from ckptzoo.symmetry import min_mass
from tests.support import effort
from tests.support.pictures import share
from tests.support.printed import printed

Make = Callable[..., tuple[ckptzoo.Zoo, dict[str, np.ndarray]]]


def zoo_of(path: Path, name: str, count: int, *, table: bool = True, seed: int = 0) -> ckptzoo.Zoo:
    """Random networks of an architecture of the registry."""
    arch, rng = archs.architecture(name), np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}
    for tensor in arch.tensors:
        values = 1 + rng.normal(size=(count, *tensor.shape))
        weights[tensor.name] = (np.abs(values) if "running_var" in tensor.name else values).astype(tensor.dtype)
    with ckptzoo.create(path, arch=arch, symmetry=archs.symmetry(name) if table else None) as writer:
        writer.add(weights, [{"id": f"n{at}"} for at in range(count)])
    return ckptzoo.open(path)


def test_two_layers_have_their_least_mass_in_closed_form(perceptrons: Make) -> None:
    zoo, weights = perceptrons(40, gauge=False)
    found = mass(zoo)
    into = np.square(weights["hidden.weight"].astype(np.float64)).sum(axis=2)
    out_of = np.square(weights["out.weight"].astype(np.float64)).sum(axis=1)
    least = 2 * np.sqrt(into * out_of).sum(axis=1)
    np.testing.assert_allclose(found.before, (into + out_of).sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.after, least, rtol=1e-9)
    np.testing.assert_allclose(found.excess, 100 * ((into + out_of).sum(axis=1) / least - 1), rtol=1e-6)
    assert found.gap.max() <= 1e-10 and found.degenerate.sum() == 0
    hidden, out = found.layers
    scales = (out_of / into) ** 0.25
    bias = np.abs(weights["hidden.bias"])
    largest = np.maximum(np.abs(weights["hidden.weight"]).max(axis=2), bias)
    np.testing.assert_allclose(hidden.before, largest.max(axis=1), rtol=1e-6)
    np.testing.assert_allclose(hidden.after, (largest * scales).max(axis=1), rtol=1e-5)
    np.testing.assert_allclose(out.before, np.abs(weights["out.weight"]).max(axis=(1, 2)), rtol=1e-6)
    np.testing.assert_allclose(out.after, np.abs(weights["out.weight"] / scales[:, None]).max(axis=(1, 2)), rtol=1e-5)


@pytest.mark.exhaustive
def test_cvxpy_finds_the_same(perceptrons: Make) -> None:
    zoo, _ = perceptrons(9, gauge=False)
    assert mass(zoo).convex == ()
    found = mass(zoo, convex=3)
    assert [item.id for item in found.convex] == [zoo.ids[0], zoo.ids[4], zoo.ids[8]]
    for item in found.convex:
        assert item.mass == found.after[zoo.ids.index(item.id)] and item.gap <= 1e-10
        assert -item.gap <= item.difference <= item.convex_gap + 1e-12 and item.convex_gap < 1e-6
    assert [item["difference"] for item in found.to_json()["convex"]] == [item.difference for item in found.convex]
    assert "solved by cvxpy too" in printed(found, 120) and "solved by cvxpy too" not in printed(mass(zoo), 120)


def test_planted_excess_is_found(sorted_units: Callable[..., ckptzoo.Zoo]) -> None:
    scales = np.array([[1.0, 1, 1], [2, 2, 2], [3, 1, 0.5]])
    found = mass(sorted_units(np.zeros((3, 3)), scales * 2**-0.5))
    s = scales**2
    np.testing.assert_allclose(found.before, (2 / s + 2).sum(axis=1))
    np.testing.assert_allclose(found.after, (4 / scales).sum(axis=1), rtol=1e-9)
    assert found.excess[0] == pytest.approx(0, abs=1e-9) and found.excess[1] == pytest.approx(25, rel=1e-6)
    assert "25" in printed(found, 80)


def test_dead_channels_are_counted(perceptrons: Make, tmp_path: Path) -> None:
    zoo, weights = perceptrons(5, gauge=False)
    weights["hidden.weight"][2, 1] = weights["hidden.bias"][2, 1] = 0
    weights["out.weight"][4] = 0
    with ckptzoo.create(tmp_path / "dead", arch=zoo.arch, symmetry=zoo.symmetry) as writer:
        writer.add(weights, [{"id": f"d{at}"} for at in range(5)])
    found = mass(ckptzoo.open(tmp_path / "dead"))
    assert found.degenerate.tolist() == [0, 0, 1, 0, 3]
    assert "4 channels in 2 networks" in printed(found, 80)
    finite = [0, 1, 2, 3]
    assert np.isfinite(found.excess[finite]).all() and (found.excess[finite] >= -1e-9).all()
    json.loads(canonical(found.to_json()))


def test_what_is_left_out_is_counted(perceptrons: Make, tmp_path: Path) -> None:
    zoo, weights = perceptrons(6, gauge=False)
    weights["out.weight"][1, 0, 0] = np.inf
    rows: list[dict[str, Any]] = [{"id": f"q{at}", "member": f"m{min(at, 4)}", "step": at} for at in range(6)]
    rows[2]["diverged"] = True
    with ckptzoo.create(tmp_path / "odd", arch=zoo.arch, symmetry=zoo.symmetry) as writer:
        writer.add(weights, rows)
    odd = ckptzoo.open(tmp_path / "odd")
    found = mass(odd)
    assert (found.members, found.left_out) == (3, 2), "m4 counts once, at its last step"
    np.testing.assert_array_equal(found.before, mass(odd.take([0, 3, 5])).before)
    assert "2 checkpoints, diverged or not finite" in printed(found, 80)
    with pytest.raises(ZooError, match="networks: expected at least one that is finite"):
        mass(odd.take([1, 2]))


def test_figures_that_are_not_numbers_are_left_out(perceptrons: Make, tmp_path: Path) -> None:
    zoo, weights = perceptrons(3, gauge=False)
    weights["hidden.weight"][1] *= np.float32(1e-38)
    weights["out.weight"][1] *= np.float32(1e30)
    weights["hidden.bias"][1] *= np.float32(1e30)
    with ckptzoo.create(tmp_path / "far", arch=zoo.arch, symmetry=zoo.symmetry) as writer:
        writer.add(weights, [{"id": f"f{at}"} for at in range(3)])
    far = ckptzoo.open(tmp_path / "far")
    assert np.isfinite(min_mass(weights, zoo.symmetry).gap).tolist() == [True, False, True]
    found = mass(far)
    assert (found.members, found.left_out, found.worst in ("f0", "f2")) == (2, 1, True)
    assert [len(item.after) for item in found.layers] == [2, 2]
    with pytest.raises(ZooError, match="stay finite at the least mass, got none of 1"):
        mass(far.take([1]))


def test_loose_bounds_are_told(perceptrons: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    found = mass(perceptrons(3, gauge=False)[0])
    assert "not certified" not in printed(found, 80) and found.to_json()["gap"]["not_certified"] == 0
    monkeypatch.setattr(module, "TIGHT", 0.0)
    assert "3 networks, with a gap above 0" in printed(found, 80)


def test_optunets_are_set_beside_the_paper(tmp_path: Path, perceptrons: Make) -> None:
    zoo = zoo_of(tmp_path / "o", "optunet", 3)
    found = mass(zoo)
    made = min_mass({name: np.asarray(zoo[name]) for name in zoo.arch.names}, "optunet")
    np.testing.assert_array_equal(found.after, made.mass_after)
    assert [item.layer for item in found.layers] == ["conv1", "conv2", "fc"]
    np.testing.assert_allclose(found.layers[1].after, np.abs(made.weights["conv2.weight"]).max(axis=(1, 2, 3, 4)))
    assert "arXiv 2310.08287, figure 2" in printed(found, 80) and found.to_json()["paper"] is not None
    other = mass(perceptrons(3, gauge=False)[0])
    assert "arXiv" not in printed(other, 80) and other.to_json()["paper"] is None


def test_a_zoo_without_a_table_takes_that_of_its_architecture(tmp_path: Path) -> None:
    one, two = (mass(zoo_of(tmp_path / str(table), "optunet", 3, table=table)) for table in (True, False))
    np.testing.assert_array_equal(one.after, two.after)


@pytest.mark.parametrize("formulation", ["pinned", "eval_chain", "volume"])
def test_networks_with_normalisation(tmp_path: Path, formulation: str) -> None:
    zoo = zoo_of(tmp_path / "r", "resnet8-pad-3", 2)
    found = mass(zoo, formulation=formulation)
    assert found.formulation == formulation and formulation in printed(found, 80)
    assert (found.excess > 0).all() and found.gap.max() <= 1e-10
    convolutions = [item for item in found.layers if "conv" in item.layer]
    same = all(np.array_equal(item.before, item.after) for item in convolutions[1:-1])
    assert not same, "what reads a scaled channel is scaled"


def test_small_batches_give_the_same(perceptrons: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo, _ = perceptrons(30, gauge=False)
    whole = mass(zoo)
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(module, "BATCH_BYTES", 7 * zoo.arch.nbytes)
    pieces = mass(zoo, progress=lambda done, total: seen.append((done, total)))
    np.testing.assert_allclose(pieces.after, whole.after, rtol=1e-12)
    assert len(seen) == 5 and seen[-1] == (30 * zoo.arch.nbytes,) * 2 and seen == sorted(seen)


def test_what_is_missing_is_said(
    perceptrons: Make, make_zoo: Callable[..., tuple[Path, dict[str, np.ndarray]]]
) -> None:
    with pytest.raises(SymmetryError, match="symmetry table: expected one, got none"):
        mass(ckptzoo.open(make_zoo()[0]))
    zoo, _ = perceptrons(3, gauge=False)
    with pytest.raises(UnknownNameError, match="pinned"):
        mass(zoo, formulation="pined")
    with pytest.raises(ZooError, match="got none of 0"):
        mass(zoo.take(slice(0)))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
def test_the_peak_is_where_the_density_is_highest(scale: float) -> None:
    values = scale * np.random.default_rng(1).lognormal(0, 0.5, 40_000)
    assert peak(values) == pytest.approx(scale * np.exp(-0.25), rel=0.05)
    assert peak(np.append(values, [np.nan, np.inf, 1e9 * scale])) == pytest.approx(peak(values), rel=0.02)
    assert peak(values[: FEW - 1]) is None and peak(np.ones(100)) is None
    equal = scale * np.array([0.3, 0.1 + 0.2] * 50)
    assert equal.std() > 0 and peak(equal) is None
    assert peak(np.append(equal, [scale, 2 * scale])) == pytest.approx(0.3 * scale, rel=0.1)
    two = np.concatenate([np.random.default_rng(2).normal(at, 1, size) for at, size in ((0, 300), (9, 700))])
    assert peak(scale * np.abs(two)) == pytest.approx(9 * scale, rel=0.1)
    assert peak(scale * np.repeat([1.0, 2.0], [20, 30])) == pytest.approx(2 * scale, rel=0.1)


def test_the_peak_may_be_at_zero() -> None:
    values = np.random.default_rng(3).exponential(1, 4000)
    found = peak(values)
    assert found is not None and found < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("count", [60, 1, 2])
@pytest.mark.sampled(3)
def test_print_plot_and_json(perceptrons: Make, tmp_path: Path, count: int) -> None:
    found = mass(perceptrons(count, gauge=False, name="a" * 60)[0])
    first = found.plot(tmp_path / "one")
    assert [path.name for path in first] == ["mass.png", "mass.json"]
    if effort.ALL:
        assert first[0].read_bytes() == found.plot(tmp_path / "two")[0].read_bytes()
    for colour in (plots.RAW_COLOUR, plots.DERIVED_COLOUR):
        assert share(first[0], colour) > 1e-4
    plain = json.loads(first[1].read_bytes())
    assert plain == json.loads(canonical(found.to_json())) and plain["members"] == count
    assert (plain["excess_peak_percent"] is None) == (count < FEW) == ("peaks" not in printed(found, 80))
    assert plain["mass_after"]["most"] <= plain["mass_before"]["most"]
    assert "…" not in printed(found, 80)


def test_many_layers_are_thinned_out(perceptrons: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    found = mass(perceptrons(3, gauge=False)[0])
    monkeypatch.setattr(module, "MAX_ROWS", 1)
    assert "1 more layer not shown" in printed(found, 80) and "out, as trained" not in printed(found, 80)
    assert [item["layer"] for item in found.to_json()["largest"]] == ["hidden", "out"]


def test_without_matplotlib_the_extra_is_named(
    perceptrons: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = mass(perceptrons(3, gauge=False)[0])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"ckptzoo\[plot\]"):
        found.plot(tmp_path / "none")
    assert not (tmp_path / "none").exists()
