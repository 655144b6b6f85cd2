"""What a study of marginals finds where exchangeable and sorted channels are planted."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import derive
from ckptzoo.errors import MissingExtraError, SymmetryError, UnknownNameError, ZooError
from ckptzoo.measure.components import principal_components
from ckptzoo.schema.documents import canonical
from ckptzoo.studies import equal_marginals
from ckptzoo.studies import marginals as module
from ckptzoo.studies.marginals import marginals
from ckptzoo.studies.plots import marginals as pictures
from ckptzoo.studies.shared import plots
from ckptzoo.studies.shared.value_histograms import histograms
from tests.support.effort import ALL
from tests.support.printed import printed

Make = Callable[..., tuple[ckptzoo.Zoo, dict[str, np.ndarray]]]
Units = Callable[..., ckptzoo.Zoo]


def keys(count: int, n: int = 24) -> np.ndarray:
    return np.random.default_rng(count).uniform(-0.9, 0.9, (count, n))


def test_exchangeable_units_are_equal_until_a_gauge_sorts_them(sorted_units: Units) -> None:
    zoo = sorted_units(keys(400))
    found = marginals(zoo, "first-weight")
    hidden, out = found.tensors
    assert (found.members, found.left_out) == (400, 0)
    assert (hidden.orbits, hidden.within.pairs, hidden.across.pairs) == (2, 24, hidden.across.pairs)
    assert hidden.within.uniform("raw") > 0.05 and hidden.within.median("raw") > 0.2  # type: ignore[operator]
    assert hidden.within.share("first-weight") > 0.7  # type: ignore[operator]
    assert hidden.within.uniform("first-weight") < 1e-9  # type: ignore[operator]
    assert 20 <= hidden.across.pairs <= 24 and hidden.across.share("raw") == 1, "keys and sqrt(1 - key^2)"
    assert out.orbits == 2 and out.within.pairs == 24 and (out.within.p["raw"] == 1).all(), "all weights are 1"
    text = printed(found, 120)
    assert "Within orbits, raw: no more small p-values than equal marginals give" in text
    assert "Within orbits, first-weight: more small p-values than equal marginals give" in text


def test_equal_marginals_are_not_stated_of_few_members(sorted_units: Units) -> None:
    text = printed(marginals(sorted_units(keys(12)), "first-weight"), 120)
    assert "raw: not resolved with 12 members" in text and "equal marginals take 30 or more" in text
    assert "no more small" not in text


def test_units_that_stand_in_order_already_are_not_equal(sorted_units: Units) -> None:
    found = marginals(sorted_units(np.sort(keys(400), axis=1)), "first-weight").tensors[0]
    assert found.within.share("raw") > 0.7 and found.within.uniform("raw") < 1e-9  # type: ignore[operator]
    np.testing.assert_array_equal(found.within.p["raw"], found.within.p["first-weight"])


def test_densities_and_components_are_those_of_the_weights(perceptrons: Make) -> None:
    zoo, weights = perceptrons(60)
    found = marginals(zoo, "first-weight")
    assert [item.histogram.tensor for item in found.tensors] == ["hidden.weight", "hidden.bias", "out.weight"]
    assert [item.orbits for item in found.tensors] == [2, 1, 2]
    expected = histograms(zoo, ["hidden.bias"], ("raw", "first-weight"), None)[0]
    np.testing.assert_array_equal(found.tensors[1].histogram.edges, expected.edges)
    assert found.tensors[1].histogram.sd["raw"] == pytest.approx(weights["hidden.bias"].std(dtype=float), rel=1e-9)
    assert [(item.layer, item.parameters, item.members) for item in found.layers] == [("hidden", 9, 60), ("out", 6, 60)]
    flat = np.asarray(zoo["out.weight", "first-weight"]).reshape(60, -1)
    np.testing.assert_allclose(
        found.layers[1].components["first-weight"].variances, principal_components(flat).variances
    )


def test_the_seed_decides_and_nothing_else(perceptrons: Make) -> None:
    zoo, _ = perceptrons(40)
    one, same, other = (marginals(zoo, "first-weight", seed=seed) for seed in (3, 3, 4))
    assert canonical(one.to_json()) == canonical(same.to_json())
    assert (one.within.p["raw"] != other.within.p["raw"]).any()


def test_each_member_counts_once_and_those_that_failed_are_left_out(perceptrons: Make) -> None:
    zoo, weights = perceptrons(60, rows=lambda at: {"member": f"m{at // 2}", "step": at % 2, "diverged": at in (7, 8)})
    found = marginals(zoo, "first-weight")
    assert (found.members, found.left_out) == (29, 1), "member 3 diverged in its last step, member 4 in its first"
    kept = np.delete(weights["out.weight"][1::2], 3, axis=0)
    assert found.tensors[2].histogram.mean["raw"] == pytest.approx(kept.mean(dtype=float), abs=1e-9)
    assert "29 members of perceptron; 1 left out" in printed(found, 120)


def test_checkpoints_that_are_not_finite_are_left_out(perceptrons: Make, tmp_path: Path) -> None:
    zoo, weights = perceptrons(20, gauge=False)
    poisoned = {name: value.copy() for name, value in weights.items()}
    poisoned["hidden.weight"][4] = np.nan
    poisoned["hidden.bias"][9, 1] = np.inf
    path = tmp_path / "poisoned"
    with ckptzoo.create(path, arch=zoo.arch, symmetry=zoo.symmetry) as writer:
        writer.add(poisoned, [{"id": f"p{at}"} for at in range(20)])
    derive(path, gauge="first-weight")
    found = marginals(ckptzoo.open(path), "first-weight")
    assert (found.members, found.left_out) == (18, 2)
    exact = np.delete(weights["hidden.weight"], [4, 9], axis=0)
    assert found.tensors[0].histogram.mean["raw"] == pytest.approx(exact.mean(dtype=float), abs=1e-9)
    json.loads(canonical(found.to_json()))


@pytest.mark.slow
@pytest.mark.parametrize(("count", "files"), [(1, 2), (2, 3), (7, 3), (8, 4)])
@pytest.mark.sampled(4)
def test_few_members_are_said_to_be_too_few(perceptrons: Make, tmp_path: Path, count: int, files: int) -> None:
    found = marginals(perceptrons(count)[0], "first-weight")
    assert found.within.pairs == (0 if count < equal_marginals.LEAST else 2 + 1 + 2)
    said = f"Too few members to compare marginals: expected 8 or more, got {count}." in printed(found, 80)
    assert said == (count < 8)
    made = found.plot(tmp_path / "pictures")
    names = ["marginals.png", "pvalues.png", "components.png", "marginals.json"]
    kept = {2: [0, 3], 3: [0, 2, 3], 4: [0, 1, 2, 3]}[files]
    assert [path.name for path in made] == [names[at] for at in kept]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_networks_of_many_tensors_are_thinned_out_in_print_and_pictures(tmp_path: Path) -> None:
    name, rng = "resnet14-pad-4", np.random.default_rng(0)
    arch = archs.architecture(name)
    weights = {}
    for tensor in arch.tensors:
        drawn = rng.normal(size=(10, *tensor.shape))
        weights[tensor.name] = (np.abs(drawn) + 0.5 if tensor.name.endswith("var") else drawn).astype(tensor.dtype)
    with ckptzoo.create(tmp_path / "resnets", arch=arch, symmetry=archs.symmetry(name)) as writer:
        writer.add(weights, [{"id": f"r{at}"} for at in range(10)])
    derive(tmp_path / "resnets", gauge="first-weight", store="element", certify="none")
    found = marginals(ckptzoo.open(tmp_path / "resnets"), "first-weight")
    assert len(found.tensors) == sum(tensor.kind == "parameter" for tensor in arch.tensors) > module.MAX_ROWS
    assert max(item.within.pairs for item in found.tensors) == equal_marginals.MAX_PAIRS == 200
    assert found.within.uniform("raw") > 0.01  # type: ignore[operator]
    text = printed(found, 120)
    rows = sum(item.within.pairs > 0 for item in found.tensors)
    assert f"and {rows - module.MAX_ROWS} more tensors" in text
    assert f"and {len(found.layers) - module.MAX_ROWS} more layers" in text
    assert len(text.splitlines()) < 4 * module.MAX_ROWS
    drawn = pictures.densities("r", 10, [item.histogram for item in found.tensors])
    assert len(drawn.axes) == len(pictures.components("r", 10, found.layers).axes) == pictures.MAX_PANELS


@pytest.mark.slow
@pytest.mark.exhaustive
def test_pictures_show_both_variants_and_equal_results_give_equal_bytes(perceptrons: Make, tmp_path: Path) -> None:
    zoo, _ = perceptrons(80, name="$a long name_" + "x" * 90)
    one = marginals(zoo, "first-weight").plot(tmp_path / "one")
    if ALL:
        for first, second in zip(one, marginals(zoo, "first-weight").plot(tmp_path / "two"), strict=True):
            assert first.read_bytes() == second.read_bytes()
    for path in one[:3]:
        image = imread(path)[..., :3]
        assert image.shape[1] == 1440 and 400 < image.shape[0] < 1100
        for colour in (plots.RAW_COLOUR, plots.DERIVED_COLOUR):
            assert (np.abs(image - to_rgb(colour)) < 0.02).all(axis=-1).mean() > 5e-4, (path, colour)


def test_progress_ends_at_the_total(perceptrons: Make) -> None:
    seen: list[tuple[int, int]] = []
    marginals(perceptrons(20)[0], "first-weight", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == 20 * (6 + 3 + 6) * 4 * 2 * 2
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_json_and_tables_agree(sorted_units: Units) -> None:
    found = marginals(sorted_units(keys(64)), "first-weight")
    plain = json.loads(canonical(found.to_json()))
    assert plain["members"] == 64 and plain["level"] == 0.05
    hidden = plain["tensors"][0]
    assert hidden["within"]["below"]["first-weight"] == found.tensors[0].within.share("first-weight")
    assert plain["within"]["pairs"] == hidden["within"]["pairs"] + plain["tensors"][1]["within"]["pairs"]
    layer = plain["layers"][0]["components"]["raw"]
    assert layer["needed"]["0.9"] == found.layers[0].components["raw"].needed(0.9)
    assert sum(layer["variances"]) == pytest.approx(layer["total"])
    assert plain["layers"][1]["components"]["raw"]["needed"]["0.9"] is None, "constant weights"
    text = printed(found, 120)
    for word in ("hidden.weight", f"{hidden['within']['below']['raw']:.1%}", f"{layer['needed']['0.9']}", "64 members"):
        assert word in text, text
    assert "across orbits" not in text and "Across orbits" in text


def test_what_cannot_be_studied_is_said(perceptrons: Make, tmp_path: Path) -> None:
    zoo, weights = perceptrons(10, rows=lambda at: {"diverged": at < 5})
    with pytest.raises(ZooError, match="expected 'canonical' among them"):
        marginals(zoo)
    with pytest.raises(UnknownNameError):
        marginals(zoo, "raw")
    with pytest.raises(ZooError, match=r"members: expected at least one .* got none of 5"):
        marginals(zoo.where("seed < 5"), "first-weight")
    with ckptzoo.create(tmp_path / "bare", arch=zoo.arch) as writer:
        writer.add(weights, [{"id": f"p{at}"} for at in range(10)])
    with pytest.raises(SymmetryError, match="symmetry table"):
        marginals(ckptzoo.open(tmp_path / "bare"), "first-weight")


@pytest.mark.parametrize(("package", "extra"), [("scipy.stats", "stats"), ("matplotlib", "plot")])
def test_a_missing_extra_is_named(
    perceptrons: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    zoo, _ = perceptrons(8)
    found = marginals(zoo, "first-weight")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"ckptzoo\[{extra}\]"):
        marginals(zoo, "first-weight").plot(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert found.members == 8
