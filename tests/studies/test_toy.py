"""What a study of two last-layer weights finds where scales, orders and modes are planted."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.errors import MissingExtraError, SymmetryError, ZooError
from ckptzoo.schema.documents import canonical
from ckptzoo.studies import toy as module
from ckptzoo.studies.toy import ORDERED, QUANTILES, SCALED, TRAINED, toy
from tests.support import effort
from tests.support.printed import printed

NAME = "mlp-2-2-1"


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., ckptzoo.Zoo]:
    """Make a zoo of these weights, with these columns in each row."""

    def make(
        weights: dict[str, np.ndarray],
        rows: Callable[[int], dict[str, Any]] = lambda _: {},
        *,
        arch: str = NAME,
        table: bool = True,
        name: str = "toy",
    ) -> ckptzoo.Zoo:
        count = len(weights["fc1.weight"])
        symmetry = archs.symmetry(arch) if table else None
        with ckptzoo.create(tmp_path / name, arch=archs.architecture(arch), symmetry=symmetry) as writer:
            stored = {key: value.astype(np.float32) for key, value in weights.items()}
            writer.add(stored, [{"id": f"t{at}", "train_loss": 0.001, **rows(at)} for at in range(count)])
        return ckptzoo.open(tmp_path / name)

    return make


def disguised(last: np.ndarray, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Networks whose last-layer weights are these (K, 2) where incoming norms are 3, and the scales they wear."""
    rng = np.random.default_rng(seed)
    K = len(last)
    scales = np.exp(rng.normal(size=(K, 2)))
    angles = rng.uniform(0, 2 * np.pi, (K, 2))
    incoming = 3 * scales[:, :, None] * np.stack([np.cos(angles), np.sin(angles)], axis=2)
    return {
        "fc1.weight": incoming,
        "fc1.bias": scales * rng.normal(size=(K, 2)),
        "fc2.weight": (last / scales)[:, None],
        "fc2.bias": rng.normal(size=(K, 1)),
    }, scales


def trained(count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Perceptrons trained by SGD on two Gaussian classes, and their training losses."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(2, 200, 2)) + np.array([-2.2, 2.2])[:, None, None]
    x, y = x.reshape(400, 2), np.repeat([0.0, 1.0], 200)
    bound = 2**-0.5
    W1, b1, W2, b2 = (rng.uniform(-bound, bound, (count, *shape)) for shape in ((2, 2), (2,), (2,), ()))
    for _ in range(400):
        rows = rng.integers(0, 400, (count, 10))
        before = np.einsum("kbi,khi->kbh", x[rows], W1) + b1[:, None]
        hidden = np.maximum(before, 0)
        logit = np.einsum("kbh,kh->kb", hidden, W2) + b2[:, None]
        error = (1 / (1 + np.exp(-logit.clip(-500, 500))) - y[rows]) / 10
        back = error[:, :, None] * W2[:, None] * (before > 0)
        W2 -= 2 * np.einsum("kb,kbh->kh", error, hidden)
        b2 -= 2 * error.sum(axis=1)
        W1 -= 2 * np.einsum("kbh,kbi->khi", back, x[rows])
        b1 -= 2 * back.sum(axis=1)
    logit = np.einsum("kbh,kh->kb", np.maximum(np.einsum("bi,khi->kbh", x, W1) + b1[:, None], 0), W2) + b2[:, None]
    losses = (np.logaddexp(0, logit) - y * logit).mean(axis=1)
    return {"fc1.weight": W1, "fc1.bias": b1, "fc2.weight": W2[:, None], "fc2.bias": b2[:, None]}, losses


def test_planted_scales_and_orders_are_removed(written: Callable[..., ckptzoo.Zoo]) -> None:
    last = np.random.default_rng(1).normal(0, 2, (200, 2))
    weights, _ = disguised(last)
    raw, scaled, ordered = toy(written(weights)).panels
    assert [panel.name for panel in (raw, scaled, ordered)] == [TRAINED, SCALED, ORDERED]
    np.testing.assert_allclose(raw.points, weights["fc2.weight"][:, 0], rtol=1e-6)
    np.testing.assert_allclose(scaled.points, last, rtol=1e-5)
    np.testing.assert_allclose(ordered.points, np.sort(last, axis=1), rtol=1e-5)
    assert scaled.above == (last[:, 1] > last[:, 0]).mean() and ordered.above == 1
    np.testing.assert_allclose(ordered.quantiles, np.quantile(np.sort(last, axis=1), QUANTILES, axis=0), rtol=1e-5)


def test_the_norm_divides_the_weights(written: Callable[..., ckptzoo.Zoo]) -> None:
    zoo = written(disguised(np.random.default_rng(1).normal(size=(60, 2)))[0])
    three, half = toy(zoo), toy(zoo, norm=0.5)
    assert (three.norm, half.norm) == (3, 0.5)
    np.testing.assert_allclose(half.panels[1].points, 6 * three.panels[1].points)
    assert np.array_equal(half.panels[0].points, three.panels[0].points)


def test_planted_modes_are_folded(written: Callable[..., ckptzoo.Zoo]) -> None:
    rng = np.random.default_rng(2)
    places = np.array([(-3, 1.0), (1, -3), (2, 2)])[rng.choice(3, 1500, p=[0.4, 0.4, 0.2])]
    found = toy(written(disguised(places + 0.2 * rng.normal(size=(1500, 2)))[0]))
    _, scaled, ordered = found.panels
    assert [peak.share for peak in scaled.density.peaks] == pytest.approx([0.4, 0.4, 0.2], abs=0.03)
    assert [peak.share for peak in ordered.density.peaks] == pytest.approx([0.8, 0.2], abs=0.03)
    np.testing.assert_allclose(ordered.density.peaks[0].place, (-3, 1), atol=0.2)
    shares = " ".join(f"{100 * peak.share:.0f}" for peak in scaled.density.peaks)
    assert shares in printed(found, 80) and "An estimate takes" not in printed(found, 80)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_trained_networks_have_fewer_modes_without_symmetries(written: Callable[..., ckptzoo.Zoo]) -> None:
    weights, losses = trained(1200)
    found = toy(written(weights, lambda at: {"train_loss": float(losses[at])}))
    assert found.dropped == (losses > 0.1).sum() and found.dropped < 0.03 * 1200
    raw, scaled, ordered = found.panels
    for panel in (raw, scaled):
        assert panel.above == pytest.approx(0.5, abs=4 * 0.5 / found.members**0.5)
    assert ordered.above == 1
    assert 1 <= len(ordered.density.peaks) < len(scaled.density.peaks)


def test_what_is_left_out_is_counted(written: Callable[..., ckptzoo.Zoo]) -> None:
    weights, _ = disguised(np.random.default_rng(3).normal(size=(10, 2)))
    weights["fc1.weight"][4] = np.nan
    odd: dict[int, dict[str, Any]] = {
        0: {"train_loss": 0.7},
        1: {"train_loss": 0.2},
        2: {"train_loss": None},
        3: {"diverged": True},
        5: {"train_loss": float("nan")},
    }
    zoo = written(weights, lambda at: odd.get(at, {}))
    found = toy(zoo)
    assert (found.members, found.dropped, found.left_out, found.unmeasured) == (6, 2, 2, 2)
    text = printed(found, 80)
    assert "2 of 8 (25.00%): training loss above 0.1" in text and "2 checkpoints, diverged" in text
    assert toy(zoo, loss=0.5).dropped == 1
    with pytest.raises(ZooError, match=r"at most 0\.01, got none of 2"):
        toy(zoo.take([0, 1]), loss=0.01)
    with pytest.raises(ZooError, match="expected at least one"):
        toy(zoo.take(slice(0)))
    with pytest.raises(ZooError, match="norm: expected a positive number, got 0"):
        toy(zoo, norm=0)


def test_the_last_step_of_a_member_counts(written: Callable[..., ckptzoo.Zoo]) -> None:
    last = np.random.default_rng(4).normal(size=(6, 2))
    zoo = written(disguised(last)[0], lambda at: {"member": f"m{at % 2}", "step": (5, 9, 1)[at // 2]})
    found = toy(zoo)
    assert found.members == 2
    np.testing.assert_allclose(found.panels[1].points, last[[2, 3]], rtol=1e-5)


def test_neurons_further_down_are_scaled_too(written: Callable[..., ckptzoo.Zoo]) -> None:
    arch = archs.architecture("mlp-3-4-2-1")
    rng = np.random.default_rng(5)
    weights = {tensor.name: rng.normal(size=(20, *tensor.shape)) for tensor in arch.tensors}
    found = toy(written(weights, arch=arch.name))
    first = np.linalg.norm(weights["fc1.weight"], axis=2)
    second = np.linalg.norm(weights["fc2.weight"] * first[:, None], axis=2)
    np.testing.assert_allclose(found.panels[1].points, weights["fc3.weight"][:, 0] * second / 3, rtol=1e-5)


def test_a_zoo_without_a_table_takes_that_of_its_architecture(written: Callable[..., ckptzoo.Zoo]) -> None:
    weights, _ = disguised(np.random.default_rng(6).normal(size=(5, 2)))
    with_table, without = toy(written(weights)), toy(written(weights, table=False, name="bare"))
    assert np.array_equal(with_table.panels[2].points, without.panels[2].points)


@pytest.mark.parametrize("arch", ["mlp-2-3-1", "mlp-2-2-2", "mlp-2-1", "mlp-tanh-2-2-1", "optunet"])
def test_other_networks_are_refused(tmp_path: Path, arch: str) -> None:
    declared = archs.architecture(arch)
    with ckptzoo.create(tmp_path / "z", arch=declared, symmetry=archs.symmetry(arch)) as writer:
        writer.add({item.name: np.ones((1, *item.shape), np.float32) for item in declared.tensors}, [{"id": "a"}])
    with pytest.raises(SymmetryError, match="last layer: expected one output that reads two exchangeable neurons"):
        toy(ckptzoo.open(tmp_path / "z"))


def test_an_unknown_architecture_is_refused(make_zoo: Callable[..., tuple[Path, dict[str, np.ndarray]]]) -> None:
    with pytest.raises(SymmetryError, match="symmetry table: expected one, got none"):
        toy(ckptzoo.open(make_zoo()[0]))


def test_small_batches_give_the_same(written: Callable[..., ckptzoo.Zoo], monkeypatch: pytest.MonkeyPatch) -> None:
    zoo = written(disguised(np.random.default_rng(7).normal(size=(90, 2)))[0])
    whole = canonical(toy(zoo).to_json())
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(module, "BATCH_BYTES", 30 * zoo.arch.nbytes)
    assert canonical(toy(zoo, progress=lambda done, total: seen.append((done, total))).to_json()) == whole
    assert len(seen) == 3 and seen[-1][0] == seen[-1][1] and seen == sorted(seen)


@pytest.mark.slow
@pytest.mark.parametrize("count", [400, 1, 2])
@pytest.mark.sampled(3)
def test_print_plot_and_json(written: Callable[..., ckptzoo.Zoo], tmp_path: Path, count: int) -> None:
    found = toy(written(disguised(np.random.default_rng(8).normal(size=(count, 2)))[0], name="a" * 60))
    text = printed(found, 80)
    assert "as trained" in text and "training loss above 0.1" in text
    first = found.plot(tmp_path / "one")
    assert [path.name for path in first] == ["toy.png", "toy.json"]
    if effort.ALL:
        assert first[0].read_bytes() == found.plot(tmp_path / "two")[0].read_bytes()
    plain = json.loads(first[1].read_bytes())
    assert plain == json.loads(canonical(found.to_json())) and plain["members"] == count
    known = [panel["modes"] is not None for panel in plain["panels"]]
    assert known == [count == 400] * 3


def test_without_matplotlib_the_extra_is_named(
    written: Callable[..., ckptzoo.Zoo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = toy(written(disguised(np.ones((2, 2)))[0]))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"ckptzoo\[plot\]"):
        found.plot(tmp_path / "none")
    assert not (tmp_path / "none").exists()
