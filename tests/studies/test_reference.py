"""The study of a reference posterior on planted chains: criteria, nearness by its definitions, and refusals."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import derive, predict
from ckptzoo.errors import ZooError
from ckptzoo.measure import convergence
from ckptzoo.studies import mmd
from ckptzoo.studies.ensemble_scores import log_softmax
from ckptzoo.studies.reference import ENSEMBLE, FLOOR, LARGEST_R_HAT, reference
from tests.support.effort import ALL
from tests.support.printed import printed

pytest.importorskip("arviz_stats.base", reason="the extra hmc is not installed")
ARCH = archs.architecture("mlp-6-3-4")
INPUTS = np.random.default_rng(5).normal(size=(20, 6)).astype(np.float32)
TARGETS = np.random.default_rng(7).integers(0, 4, 20)
JUDGED = 8
CHAINS, DRAWS = 4, 40
Weights = dict[str, np.ndarray]


def normal(count: int, seed: int) -> Weights:
    generator = np.random.default_rng(seed)
    return {item.name: generator.normal(size=(count, *item.shape)).astype(np.float32) for item in ARCH.tensors}


def permuted(weights: Weights, seed: int) -> Weights:
    """The same networks, the hidden neurons of each in an order of its own."""
    count = len(weights["fc1.bias"])
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(3), (count, 1)), axis=1)
    moved = {name: np.take_along_axis(weights[name], order[..., None], 1) for name in ("fc1.weight",)}
    moved["fc1.bias"] = np.take_along_axis(weights["fc1.bias"], order, 1)
    moved["fc2.weight"] = np.take_along_axis(weights["fc2.weight"], order[:, None], 2)
    return {**weights, **moved}


@pytest.fixture(autouse=True)
def few_inputs_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("ckptzoo.studies.reference"), "INPUTS", JUDGED)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., ckptzoo.Zoo]:
    def write(
        name: str, weights: Weights, chains: int | None = CHAINS, *, complete: bool = True, cut: int = 0
    ) -> ckptzoo.Zoo:
        count = len(weights["fc1.bias"])
        rows: list[dict[str, Any]] = [{"id": f"m{row}-1", "member": f"m{row}"} for row in range(count)]
        if chains is not None:
            # draws of a chain are written in another order than they were made in
            places = [(mode, draw) for mode in range(chains) for draw in reversed(range(count // chains))]
            rows = [
                {"id": f"{name}-{mode}-{draw}", "method": "hmc", "mode": f"m{mode}", "draw": draw, "step": 10 * draw}
                for mode, draw in places
            ]
            at = [mode * (count // chains) + draw for mode, draw in places]
            weights = {key: array[at] for key, array in weights.items()}
        with ckptzoo.create(tmp_path / name, arch=ARCH, symmetry=archs.symmetry("mlp-6-3-4")) as writer:
            writer.add({key: array[: count - cut] for key, array in weights.items()}, rows[: count - cut])
        if complete:
            derive(tmp_path / name, gauge="canonical")
            predict(tmp_path / name, INPUTS, set="own/test", targets=TARGETS)
        return ckptzoo.open(tmp_path / name)

    return write


def test_chains_of_independent_draws_differ_by_chance_alone(written: Callable[..., ckptzoo.Zoo]) -> None:
    weights = normal(CHAINS * DRAWS, 0)
    found = reference(written("same", weights), shuffles=5)
    assert (found.chains, found.draws, found.judged, found.inputs) == (CHAINS, DRAWS, JUDGED, 20)
    logits, sums = found.criteria
    assert (logits.of, logits.numbers, sums.numbers) == ("logits", JUDGED * 4, 8 + 4)
    for item in found.criteria:
        assert item.by_chance is not None and item.r_hat < 1 + 2 * (item.by_chance - 1)
        assert 0.7 < item.bulk.median / (CHAINS * DRAWS) < 1.3
        assert 0.5 < item.tail.median / (CHAINS * DRAWS) < 1.3
    # one chain is elsewhere in what its networks compute
    weights["fc2.bias"][:DRAWS, 1] += 4
    shifted = reference(written("shifted", weights), shuffles=5).criteria[0]
    assert shifted.by_chance is not None and shifted.r_hat > 1.2 > shifted.by_chance
    assert shifted.above > 0.25 and not shifted.met and shifted.bulk.least < 40


def test_r_hat_is_that_of_the_logits_in_the_order_of_steps_whatever_the_order_of_neurons(
    written: Callable[..., ckptzoo.Zoo],
) -> None:
    weights = normal(CHAINS * DRAWS, 1)
    # chains drift alike, so that the order of draws matters
    weights["fc2.bias"] += np.tile(np.linspace(0, 3, DRAWS), CHAINS)[:, None].astype(np.float32)
    one, other = (reference(written(f"zoo{seed}", permuted(weights, seed)), shuffles=0).criteria for seed in (0, 1))
    hidden = np.maximum(
        np.einsum("nd,khd->knh", INPUTS[:JUDGED], weights["fc1.weight"]) + weights["fc1.bias"][:, None], 0
    )
    logits = np.einsum("knh,kch->knc", hidden, weights["fc2.weight"]) + weights["fc2.bias"][:, None]
    expected = convergence(logits.reshape(CHAINS, DRAWS, -1))
    np.testing.assert_allclose(one[0].r_hats, np.sort(expected.rhat), atol=2e-3)
    assert one[0].bulk.least == pytest.approx(expected.ess.min(), rel=0.02) and one[0].r_hat > 1.05
    for first, second in zip(one, other, strict=True):
        np.testing.assert_allclose(first.r_hats, second.r_hats, atol=2e-3)


@pytest.mark.exhaustive
def test_nearness_is_what_it_is_defined_as(written: Callable[..., ckptzoo.Zoo], tmp_path: Path) -> None:
    weights = normal(CHAINS * DRAWS, 2)
    zoo = written("chains", weights)
    wide = {name: 3 * array for name, array in normal(60, 3).items()}
    members = written("members", wide, None)
    draws = written("swag", normal(60, 4), 6)
    found = reference(zoo, [members, draws], modes=3, draws=5, replicates=2, shuffles=0)
    assert [(item.label, item.modes, item.mode_count, item.draws) for item in found.entries] == [
        (FLOOR, "multi", 2, 15),
        (ENSEMBLE, "multi", 15, 15),
        ("hmc", "one", 1, 10),
        ("hmc", "multi", 3, 15),
    ]
    # m0 to m3 are where chains started
    used = [np.arange(4 + 15 * block, 19 + 15 * block) for block in range(2)]
    target = np.exp(log_softmax(np.asarray(zoo.predictions("own/test").logits))).mean(0)
    expected: dict[str, list[float]] = {"agreement": [], "variation": [], "canonical": [], "accuracy": []}
    for rows in used:
        some = members.take(rows)
        mean = np.exp(log_softmax(np.asarray(some.predictions("own/test").logits))).mean(0)
        expected["agreement"].append(100 * float((mean.argmax(1) == target.argmax(1)).mean()))
        expected["variation"].append(50 * float(np.abs(mean - target).sum(1).mean()))
        expected["canonical"].append(100 * mmd(zoo, some, "canonical", bandwidths="fixed").median)
        expected["accuracy"].append(100 * float((mean.argmax(1) == TARGETS).mean()))
    for name, values in expected.items():
        spread = found.entries[1].figures[name]
        assert (spread.count, spread.mean) == (2, pytest.approx(np.mean(values), rel=1e-6)), name
    # draws of the same distribution are as near as other chains; others are farther in everything
    floor, ensemble, _, same = (item.figures for item in found.entries)
    for name, worse in (("variation", 1), ("canonical", 1), ("agreement", -1)):
        assert worse * ensemble[name].mean > worse * same[name].mean, name
        assert abs(same[name].mean - floor[name].mean) < abs(ensemble[name].mean - floor[name].mean), name
    assert json.dumps(found.to_json()) and "total variation" in printed(found, 300)
    assert [path.name for path in found.plot(tmp_path / "pictures")] == ["reference.png", "reference.json"]
    if ALL:
        again = reference(zoo, [members, draws], modes=3, draws=5, replicates=2, shuffles=0)
        assert again.to_json() == found.to_json()


def test_the_verdict_says_which_numbers_are_above(written: Callable[..., ckptzoo.Zoo]) -> None:
    found = reference(written("chains", normal(CHAINS * 8, 0)), shuffles=1)
    assert not found.met and found.verdict().startswith(f"R-hat is not below {LARGEST_R_HAT} for every number: it reac")
    assert "random order" in found.verdict() and found.verdict() in printed(found, 300)


def test_what_is_refused(written: Callable[..., ckptzoo.Zoo]) -> None:
    weights = normal(CHAINS * 8, 0)
    zoo = written("chains", weights)
    for name, options, message in (
        ("one", {"chains": 1}, "chains: expected two or more of equal length, 4 draws or more, got 32"),
        ("unequal", {"cut": 1}, "chains: expected two or more of equal length, 4 draws or more, got 8, 8, 8, 7"),
        ("members", {"chains": None}, "chains: expected two or more of equal length, 4 draws or more, got none"),
        ("bare", {"complete": False}, "predictions: expected those on a set of inputs, got none"),
    ):
        with pytest.raises(ZooError, match=message):
            reference(written(name, weights, **options))
    with pytest.raises(ZooError, match="bare: predictions"):
        reference(zoo, [ckptzoo.open(zoo.contents.files.here.parent / "bare")], shuffles=0)  # type: ignore[union-attr]
    starts = written("starts", normal(4, 0), None)
    with pytest.raises(ZooError, match="usable members: expected 2 or more at which no chain started, got 0"):
        reference(zoo, [starts], shuffles=0)
