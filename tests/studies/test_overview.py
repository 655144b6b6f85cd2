"""What an overview finds in zoos whose weights are known."""

import json
from collections.abc import Callable

import numpy as np
import pytest

import ckptzoo
from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.schema.documents import canonical
from ckptzoo.studies import overview as module
from ckptzoo.studies.overview import overview
from tests.support.printed import printed

Make = Callable[..., tuple[ckptzoo.Zoo, dict[str, np.ndarray]]]


def test_marginals_are_those_of_every_weight(perceptrons: Make) -> None:
    zoo, weights = perceptrons()
    found = overview(zoo)
    assert [item.tensor for item in found.marginals] == ["hidden.weight", "out.weight"]
    for item in found.marginals:
        for variant in ("raw", "first-weight"):
            exact = np.asarray(zoo[item.tensor, variant]).astype(np.float64)
            assert item.mean[variant] == pytest.approx(exact.mean(), abs=1e-9)
            assert item.sd[variant] == pytest.approx(exact.std(), rel=1e-9)
            inside = item.heights[variant] @ np.diff(item.edges)
            assert 0.99 < inside <= 1
        np.testing.assert_array_equal(zoo[item.tensor], weights[item.tensor])
    low, high = np.quantile(np.asarray(zoo["hidden.weight"]), [0.001, 0.999])
    assert found.marginals[0].edges[0] < low < high < found.marginals[0].edges[-1]


def test_the_gauge_breaks_the_symmetry_of_the_cloud(perceptrons: Make) -> None:
    zoo, _ = perceptrons(3000)
    found = overview(zoo).pair
    assert found is not None and found.names == ("out.weight[0, 0]", "out.weight[0, 2]")
    np.testing.assert_array_equal(found.points["raw"], np.asarray(zoo["out.weight"])[:, 0, [0, 2]])
    np.testing.assert_array_equal(
        found.points["first-weight"], np.asarray(zoo["out.weight", "first-weight"])[:, 0, [0, 2]]
    )
    assert abs(found.above("raw") - 0.5) < 4 * 0.5 / np.sqrt(3000)
    raw, derived = (np.asarray(zoo["hidden.weight", name])[:, :, 0] for name in ("raw", "first-weight"))
    assert (np.diff(derived, axis=1) >= 0).all() and not (np.diff(raw, axis=1) >= 0).all()


def test_pair_figures_have_known_answers() -> None:
    points = np.array([[0.0, 1.0], [1.0, 3.0], [2.0, 2.0], [3.0, 0.0]])
    found = module.WeightPair(("a", "b"), {"raw": points, "same": np.ones((3, 2)), "line": points[:, [0, 0]]})
    assert found.above("raw") == 0.625
    assert found.correlation("raw") == pytest.approx(np.corrcoef(points.T)[0, 1])
    assert found.above("same") == 0.5 and np.isnan(found.correlation("same"))
    assert found.correlation("line") == pytest.approx(1)


def test_diverged_and_not_finite_are_left_out_and_counted(perceptrons: Make) -> None:
    zoo, weights = perceptrons(40, gauge=False)
    poisoned = {name: array.copy() for name, array in weights.items()}
    poisoned["hidden.weight"][3] = 1e9
    poisoned["hidden.weight"][5] = np.nan
    rows = [{**row, "diverged": row["seed"] == 3, "finite": None} for row in zoo.metadata.to_pylist()]
    rows[3]["test_accuracy"] = None
    with ckptzoo.create(zoo.path.parent / "bad", arch=zoo.arch) as writer:
        writer.add(poisoned, rows)
    found = overview(ckptzoo.open(zoo.path.parent / "bad"))
    kept = np.delete(weights["hidden.weight"], [3, 5], axis=0).astype(np.float64)
    assert found.shown == 38 and found.marginals[0].mean["raw"] == pytest.approx(kept.mean(), abs=1e-9)
    assert len(found.accuracies) == 38 and len(found.diverged) == 2
    held = found.inventory
    assert (held.checkpoints, held.diverged, held.not_finite) == (40, 1, 1)
    assert held.test_accuracy is not None and held.test_accuracy.count == 38


def test_each_member_counts_once_with_its_last_step(perceptrons: Make) -> None:
    zoo, weights = perceptrons(30, rows=lambda at: {"member": f"m{at % 10}", "step": at}, gauge=False)
    found = overview(zoo)
    assert (found.shown, found.inventory.members, found.inventory.checkpoints) == (10, 10, 30)
    assert found.marginals[0].mean["raw"] == pytest.approx(weights["hidden.weight"][20:].mean(dtype=float), abs=1e-9)


def test_a_selection_is_looked_at_on_its_own(perceptrons: Make) -> None:
    zoo, weights = perceptrons(50)
    found = overview(zoo.where("seed < 20"), "raw")
    assert found.variants == ("raw",) and found.inventory.total == 50 and found.inventory.checkpoints == 20
    assert found.marginals[1].mean["raw"] == pytest.approx(weights["out.weight"][:20].mean(dtype=float), abs=1e-9)


def test_many_checkpoints_give_a_seeded_sample_of_points(perceptrons: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_POINTS", 50)
    zoo, weights = perceptrons(200)
    one, same, other = (overview(zoo, seed=seed).pair for seed in (1, 1, 2))
    assert one is not None and same is not None and other is not None
    assert len(one.points["raw"]) == 50
    np.testing.assert_array_equal(one.points["first-weight"], same.points["first-weight"])
    assert (one.points["raw"] != other.points["raw"]).any()
    assert np.isin(one.points["raw"][:, 0], weights["out.weight"][:, 0, 0]).all()


def test_many_tensors_are_thinned_out_evenly(perceptrons: Make) -> None:
    arch = ckptzoo.Architecture("deep", tuple(ckptzoo.Tensor(f"l{at}.weight", (2, 2)) for at in range(60)))
    path = perceptrons(3, gauge=False)[0].path.parent / "deep"
    with ckptzoo.create(path, arch=arch) as writer:
        writer.add({name: np.ones((1, 2, 2), np.float32) for name in arch.names}, [{"id": "a"}])
    found = overview(ckptzoo.open(path))
    names = [item.tensor for item in found.marginals]
    assert len(names) == module.MAX_PANELS and names[0] == "l0.weight" and names[-1] == "l59.weight"
    assert len(found.left_out) == 60 - module.MAX_PANELS
    assert found.pair is not None and found.pair.names[0] == "l59.weight[0, 0]"


def test_networks_without_matrices_have_no_pair(perceptrons: Make) -> None:
    arch = ckptzoo.Architecture("scales", (ckptzoo.Tensor("norm.weight", (4,)), ckptzoo.Tensor("n", (), "int64")))
    path = perceptrons(3, gauge=False)[0].path.parent / "scales"
    with ckptzoo.create(path, arch=arch) as writer:
        writer.add({"norm.weight": np.ones((2, 4), np.float32), "n": np.ones(2, np.int64)}, [{"id": "a"}, {"id": "b"}])
    found = overview(ckptzoo.open(path))
    assert found.pair is None and [item.tensor for item in found.marginals] == ["norm.weight"]
    assert len(found.accuracies) == 0 and found.to_json()["test_accuracy"] is None


def test_convolutions_give_a_pair_where_there_is_no_matrix(perceptrons: Make) -> None:
    arch = ckptzoo.Architecture("conv", (ckptzoo.Tensor("c.weight", (2, 3, 2, 2), "float16"),))
    weights = np.arange(48, dtype=np.float16).reshape(2, 2, 3, 2, 2)
    path = perceptrons(3, gauge=False)[0].path.parent / "conv"
    with ckptzoo.create(path, arch=arch) as writer:
        writer.add({"c.weight": weights}, [{"id": "a"}, {"id": "b"}])
    found = overview(ckptzoo.open(path)).pair
    assert found is not None and found.names == ("c.weight[0, 0, 0, 0]", "c.weight[0, 2, 1, 1]")
    np.testing.assert_array_equal(found.points["raw"], [[0, 11], [24, 35]])


def test_progress_ends_at_the_total(perceptrons: Make) -> None:
    seen: list[tuple[int, int]] = []
    overview(perceptrons(20)[0], progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == 20 * (6 + 6) * 4 * 2
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_what_cannot_be_shown_is_said(perceptrons: Make) -> None:
    zoo, _ = perceptrons(10, rows=lambda at: {"diverged": at < 5})
    with pytest.raises(UnknownNameError, match="canonical"):
        overview(zoo, "canonical")
    with pytest.raises(ZooError, match="got none of 5"):
        overview(zoo.where("seed < 5"))


def test_json_and_tables_agree(perceptrons: Make) -> None:
    zoo, _ = perceptrons(30)
    found = overview(zoo)
    plain = json.loads(canonical(found.to_json()))
    assert plain["shown"] == 30 and plain["inventory"]["variants"][1]["name"] == "first-weight"
    assert plain["pair"]["above_diagonal"]["raw"] == found.pair.above("raw")  # type: ignore[union-attr]
    text = printed(found)
    for word in ("30 (30 members)", "out.weight", "first-weight: mean", f"{found.marginals[0].sd['raw']:.4g}"):
        assert word in text, text
