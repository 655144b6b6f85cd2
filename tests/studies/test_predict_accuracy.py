"""What the study of accuracies finds in zoos whose figures are known functions of the weights."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs, derive
from ckptzoo.cli.app import run
from ckptzoo.errors import ZooError
from ckptzoo.schema.documents import canonical
from ckptzoo.studies.predict_accuracy import (
    BY_CHECKPOINT,
    BY_MEMBER,
    COPIES,
    FLAT,
    RIDGE,
    SQUARES,
    STATISTICS,
    TREES,
    PredictAccuracy,
    predict_accuracy,
    statistics,
)
from tests.support.printed import printed

pytest.importorskip("sklearn")
NAME, COUNT = "mlp-3-4-2", 240
Made = Callable[..., ckptzoo.Zoo]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """``made(figures, steps=1, noise=0.0)``: networks whose accuracy is a function of their weights (N, P)."""

    def make(figure: Callable[[np.ndarray], np.ndarray], steps: int = 1, noise: float = 0.0) -> ckptzoo.Zoo:
        arch, draw = archs.architecture(NAME), np.random.default_rng(0)
        members = COUNT // steps
        drawn = {t.name: draw.standard_normal((members, *t.shape)) for t in arch.tensors}
        weights = {name: np.repeat(array, steps, axis=0) for name, array in drawn.items()}
        weights = {n: (a + noise * draw.standard_normal(a.shape)).astype("f4") for n, a in weights.items()}
        values = figure(np.concatenate([array.reshape(COUNT, -1) for array in weights.values()], axis=1))
        values = (values - values.min()) / np.ptp(values)
        rows = [
            {
                "id": f"m{at // steps}-{at % steps}",
                "member": f"m{at // steps}",
                "step": at % steps,
                "test_accuracy": value,
            }
            for at, value in enumerate(values.tolist())
        ]
        with ckptzoo.create(tmp_path / "zoo", arch=arch, symmetry=archs.symmetry(NAME)) as writer:
            writer.add(weights, rows)
        derive.derive(tmp_path / "zoo", gauge="canonical")
        return ckptzoo.open(tmp_path / "zoo")

    return make


def r2(found: PredictAccuracy, variant: str, features: str, regressor: str = RIDGE, split: str = BY_MEMBER) -> float:
    score = found.score(variant, features, regressor, split)
    assert score is not None
    return score.r2.mean


def test_what_is_linear_in_the_weights_or_their_squares_is_found(made: Made) -> None:
    linear = np.random.default_rng(1).standard_normal(26)
    found = predict_accuracy(made(lambda flat: flat @ linear), splits=2, copies=0)
    assert r2(found, "raw", FLAT) > 0.999 and r2(found, "raw", STATISTICS) < 0.9
    assert {score.split for score in found.scores} == {BY_MEMBER} and found.left_out == 0
    assert {(s.features, s.regressor) for s in found.scores} == {
        (STATISTICS, RIDGE), (STATISTICS, TREES), (FLAT, RIDGE), (SQUARES, RIDGE), (FLAT, TREES)
    }  # fmt: skip


def test_sums_of_squares_need_squares(made: Made) -> None:
    found = predict_accuracy(made(lambda flat: (flat**2).sum(axis=1)), splits=2)
    assert r2(found, "raw", SQUARES) > 0.999 and r2(found, "raw", FLAT) < 0.5
    score = found.score("raw", SQUARES, RIDGE)
    assert score is not None and score.tau.mean > 0.95
    # what permutations leave alone is found as well with permuted copies: here nothing linear is
    assert r2(found, "raw", COPIES) < 0.5 and found.score("canonical", COPIES, RIDGE) is None


@pytest.mark.exhaustive
def test_steps_of_one_member_on_both_sides_look_like_knowledge(made: Made) -> None:
    drawn = np.random.default_rng(2)
    found = predict_accuracy(made(lambda flat: np.repeat(drawn.random(20), 12), steps=12, noise=0.001), splits=3)
    assert found.members == 20 and found.checkpoints == COUNT
    assert r2(found, "raw", FLAT, split=BY_CHECKPOINT) > 0.9 and r2(found, "raw", FLAT) < 0.2
    said = printed(found, 200)
    assert "split by checkpoint" in said and "its own earlier and later weights" in said


def test_statistics_are_those_of_each_tensor(made: Made) -> None:
    zoo = made(lambda flat: flat[:, 0])
    made_statistics, bias = statistics(zoo, "raw"), np.asarray(zoo["fc1.bias"][:]).astype(float)
    assert made_statistics.shape == (COUNT, 7 * 4)
    expected = [bias.mean(1), bias.var(1), *np.quantile(bias, (0, 0.25, 0.5, 0.75, 1), axis=1)]
    np.testing.assert_allclose(made_statistics[:, 7:14], np.stack(expected, axis=1), rtol=1e-12)


@pytest.mark.exhaustive
def test_equal_seeds_give_equal_results_and_the_command_writes_them(made: Made, tmp_path: Path) -> None:
    zoo = made(lambda flat: flat[:, 0])
    seen: list[tuple[int, int]] = []
    found = [predict_accuracy(zoo, splits=2, seed=3, progress=lambda *at: seen.append(at)).to_json() for _ in range(2)]
    assert canonical(found[0]) == canonical(found[1]) and seen[-1] == (22, 22)
    command = ["study", "predict-accuracy", str(zoo.path), "--splits", "2", "--seed", "3", "-o", str(tmp_path / "out")]
    assert run(command) == 0
    written = json.loads((tmp_path / "out" / "predict-accuracy.json").read_bytes())
    assert written == json.loads(canonical(found[0]))
    assert (tmp_path / "out" / "predict-accuracy.png").stat().st_size > 10_000


def test_targets_that_say_nothing_are_refused(made: Made) -> None:
    zoo = made(lambda flat: flat[:, 0])
    for target, words in (
        ("contributor", "20 or more usable"),
        ("none", "a column of numbers"),
        ("id", "a column of numbers"),
    ):
        with pytest.raises(ZooError, match=words):
            predict_accuracy(zoo, target=target)
    with pytest.raises(ZooError, match="got 5 of 5"):
        predict_accuracy(zoo[:5])
    with pytest.raises(ZooError, match="one value for all"):
        predict_accuracy(zoo, target="step")
