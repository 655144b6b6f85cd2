"""Claims of rows and files are compared with measured figures where their convention is known; else they are shown."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.hub.contributions.evaluation import EvaluatorPool
from ckptzoo.hub.contributions.report import ReviewCheck, summaries_markdown, summarize, unmeasured
from ckptzoo.hub.contributions.run_checks import check_accuracy, check_loss
from ckptzoo.loader import Zoo
from tests.support.derived_zoos import weights_of
from tests.support.effort import examples

ARCH = archs.architecture("mlp-4-5-3")


def zoo_of(path: Path, rows: list[dict[str, Any]]) -> Zoo:
    with ckptzoo.create(path, arch=ARCH) as writer:
        writer.add(weights_of(len(rows), 0, arch=ARCH), [{"id": f"m{at}", **row} for at, row in enumerate(rows)])
    return ckptzoo.open(path)


def facts(**values: Any) -> dict[str, str]:
    return {"extra": json.dumps({"facts": values})}


@pytest.mark.parametrize(
    ("row", "nll", "outcome", "words"),
    [
        ({}, 0.45, None, ""),
        ({"claimed_test_loss": 0.45}, 0.4529, "passed", ""),
        ({"claimed_test_loss": 1.3}, 0.45, "failed", "claimed_test_loss 1.3000, measured 0.4500"),
        # a loss of 500 may be rounded to three digits
        ({"claimed_test_loss": 501.0}, 500.0, "passed", ""),
        ({"claimed_test_loss": 0.45}, math.nan, "failed", "measured nan"),
        # what a file held may be another loss, unless its name says which
        (facts(test_loss=1.3), 0.45, "passed", "need not be the mean cross entropy"),
        (facts(test_loss=0.45), 0.45, "passed", ""),
        (facts(test_nll=1.3), 0.45, "failed", "measured"),
        (facts(**{"metrics/test_nll": "1.3"}), 0.45, "failed", "measured"),
        (facts(best_test_nll=1.3), 0.45, None, ""),
        ({"claimed_test_loss": 1.3, **facts(test_loss=1.3)}, 0.45, "passed", "need not be"),
        ({"claimed_test_loss": 1.3, **facts(test_nll=1.3)}, 0.45, "failed", "measured"),
        # a person's word goes before the file's
        ({"claimed_test_loss": 0.45, **facts(test_loss=1.3)}, 0.45, "passed", ""),
        ({"claimed_test_loss": 1.4, **facts(test_loss=0.45)}, 0.45, "failed", "1.4000"),
        ({"test_nll": 0.452}, 0.45, "failed", "test_nll 0.4520"),
        ({"test_nll": 0.4505}, 0.45, "passed", ""),
    ],
)
def test_losses(tmp_path: Path, row: dict[str, Any], nll: float, outcome: str | None, words: str) -> None:
    zoo = zoo_of(tmp_path / "zoo", [row])
    found = check_loss(zoo, {"m0": {"test_accuracy": 0.5, "test_nll": nll}})
    assert (None if found is None else found.outcome) == outcome and (found is None or words in found.detail)
    undone = check_loss(zoo, {})
    assert (undone is None) == (outcome is None) and (undone is None or undone.outcome == "not done")


@pytest.mark.parametrize("seed", range(examples(40, 3)))
def test_any_false_claim_of_any_row_fails_and_no_true_one_does(tmp_path: Path, seed: int) -> None:
    """Accuracies and losses are judged together, whoever says them and however many rows are measured."""
    rng = np.random.default_rng(np.random.SeedSequence((11, seed)))
    rows, measured, false = list[dict[str, Any]](), dict[str, dict[str, float]](), {"accuracy": False, "loss": False}
    for at in range(int(rng.integers(1, 5))):
        truth = {"test_accuracy": float(rng.uniform(0.1, 0.9)), "test_nll": float(rng.uniform(0.05, 3))}
        is_measured = bool(rng.random() < 0.7)
        row: dict[str, Any] = {}
        for kind, name, column in (
            ("accuracy", "test_acc", "claimed_test_accuracy"), ("loss", "test_nll", "claimed_test_loss")
        ):  # fmt: skip
            value = truth["test_accuracy" if kind == "accuracy" else "test_nll"]
            if rng.random() < 0.5:
                continue
            if lies := bool(rng.random() < 0.3):
                value += 0.05
            if rng.random() < 0.5:
                row[column] = value
            else:
                row["extra"] = json.dumps(
                    {"facts": json.loads(row.get("extra", '{"facts": {}}'))["facts"] | {name: value}}
                )
            false[kind] |= lies and is_measured
        if is_measured:
            measured[f"m{at}"] = truth
        rows.append(row)
    zoo, pool = zoo_of(tmp_path / "zoo", rows), EvaluatorPool(ARCH)
    loss = check_loss(zoo, measured)
    assert (check_accuracy(zoo, measured, pool).outcome == "failed") == false["accuracy"]
    assert (loss is not None and loss.outcome == "failed") == false["loss"]


def test_claims_that_nobody_measured_are_not_called_passed(tmp_path: Path) -> None:
    rows = [{"claimed_test_accuracy": 0.5, "claimed_test_loss": 1.25}, facts(test_acc=0.25), {}]
    zoo, pool = zoo_of(tmp_path / "zoo", rows), EvaluatorPool(ARCH)
    pool.measure(dict(weights_of(1, 0, arch=ARCH)), None)
    check = check_accuracy(zoo, {}, pool)
    assert check.outcome == "not done" and check.detail.startswith("claimed 25.00% to 50.00%, not measured: ")
    # the inputs of this network are no images
    assert "--inputs FILE.npz" in check.detail and "[evaluation]" not in check.detail
    images = EvaluatorPool(archs.architecture("optunet"))
    images.measure(dict(weights_of(1, 0, arch=images.arch)), None)
    assert "[evaluation] in contribution.toml" in check_accuracy(zoo, {}, images).detail
    entries = summarize(zoo, {}, {})
    assert "claimed, not measured" in unmeasured((check,), entries) and unmeasured((check,), entries[2:]) == ""
    assert unmeasured((ReviewCheck("accuracy", "passed", ""),), entries) == ""
    table = summaries_markdown(entries)
    assert "| claimed loss | measured loss |" in table and "| 50.00% | - | - | 1.2500 | - | yes |" in table
    assert "loss" not in summaries_markdown(entries[1:])
