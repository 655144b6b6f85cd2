"""Contributions that compute nearly what a checkpoint of the zoo does."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import predict
from ckptzoo.hub.contributions import near_copies, target_zoo
from ckptzoo.hub.contributions.duplicates import units
from ckptzoo.hub.contributions.report import ReviewCheck, check_lines
from ckptzoo.hub.contributions.review import Review
from ckptzoo.hub.push import push
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import weights_of
from tests.support.tampering import Tamper


@pytest.fixture
def tamper(server: Hosted, make_zoo: Callable[..., Path], tmp_path: Path) -> Tamper:
    """A zoo of 12 members."""
    return Tamper(server, make_zoo("zoo", (7, 5)), tmp_path)


def noisy(tamper: Tamper, amount: float, extra: str | None = None, part: int = 3) -> int:
    """A pull request of one of the zoo's checkpoints with noise, and of an independent one."""
    zoo, rng = ckptzoo.open(tamper.zoo), np.random.default_rng(1)
    copied = {name: zoo[name][8:9] for name in zoo.arch.names}
    noisy = {n: (a + amount * rng.standard_normal(a.shape)).astype(a.dtype) for n, a in copied.items()}
    weights = {name: np.concatenate([array, weights_of(1, 77)[name]]) for name, array in noisy.items()}
    rows: list[dict[str, Any]] = [
        {"id": f"stranger/{name}", "unit": unit, "license": "mit", "dataset": "mnist", "extra": extra}
        for name, unit in zip(("near", "far"), units(weights), strict=True)
    ]
    return tamper.propose(tamper.written(weights, rows, number=part))


def check(found: Review) -> ReviewCheck:
    (one,) = (item for item in found.checks if item.name == "near copies")
    return one


def test_a_noisy_copy_is_named_and_not_merged_unless_accepted(tamper: Tamper) -> None:
    number = noisy(tamper, 1e-4)
    found = tamper.review(number)
    assert found.merged is None and check(found).outcome == "failed"
    assert "stranger/near and m1-1: " in check(found).detail and "far" not in check(found).detail
    assert "--accept-near-copies" in check(found).detail
    accepted = tamper.review(number, accept_near_copies=True)
    assert accepted.merged is not None and check(accepted).detail.startswith("accepted: outputs nearer than")
    (starts,) = (item for item in accepted.checks if item.name == "independence")
    assert starts.outcome == "passed" and "stranger/near and m1-1 (p " in starts.detail


def test_every_one_of_ten_copies_is_named_with_its_distance(make_zoo: Callable[..., Path], tmp_path: Path) -> None:
    zoo, rng = ckptzoo.open(make_zoo("zoo", (7, 5))), np.random.default_rng(1)
    with ckptzoo.create(tmp_path / "copies", arch=zoo.arch) as writer:
        for row in range(10):
            noise = {name: 1e-4 * rng.standard_normal(zoo.arch[name].shape) for name in zoo.arch.names}
            weights = {name: (zoo[name][row] + noise[name]).astype(np.float32) for name in noise}
            writer.add(weights, {"id": f"copy-{row}"})
    found = near_copies.check_near_copies(ckptzoo.open(tmp_path / "copies"), target_zoo.TargetZoo(zoo))
    (line,) = check_lines([found])[1:]
    for row in range(10):
        assert re.search(rf"copy-{row} and {zoo.ids[row]}: \d", line)
    assert line.endswith("merge with --accept-near-copies if these are different networks.")


@pytest.mark.exhaustive
def test_independent_checkpoints_are_merged(tamper: Tamper) -> None:
    found = tamper.review(tamper.propose(tamper.part(50, 51)))
    assert found.merged is not None and check(found).outcome == "passed" and "none nearer" in check(found).detail


@pytest.mark.exhaustive
def test_small_zoos_are_not_compared(server: Hosted, make_zoo: Callable[..., Path], tmp_path: Path) -> None:
    found = Tamper(server, make_zoo("zoo"), tmp_path)
    done = found.review(found.propose(found.part(50)))
    assert done.merged is not None and check(done).outcome == "not done" and "fewer than 8" in check(done).detail


def test_a_large_zoo_is_compared_by_the_outputs_that_it_stores(tamper: Tamper, monkeypatch: pytest.MonkeyPatch) -> None:
    scaling = '{"evaluation":{"dataset":"mnist","mean":[0.0],"std":[1.0]}}'
    with ckptzoo.append(tamper.zoo) as writer:
        row = {"id": "scaled", "unit": "scaled", "dataset": "mnist", "license": "mit", "extra": scaling}
        writer.add(weights_of(1, 99), [row])
    published(tamper)
    number = noisy(tamper, 1e-4, scaling, part=4)
    monkeypatch.setattr(target_zoo, "COMPARED_BYTES", 13 * 1568 - 1)
    told = check(tamper.review(number, merge=False))
    assert told.outcome == "not done" and "it stores no outputs. Store outputs on a small set" in told.detail
    with np.load(tamper.data / "mnist_test.npz") as held:
        inputs = (held["images"][:, None] / 255.0).astype(np.float32)
        predict(tamper.zoo, inputs[:100], set="mnist/test-100", targets=held["labels"][:100])
    published(tamper)
    evaluated: list[list[str]] = []
    points = near_copies.points

    def counted(zoo: ckptzoo.Zoo, *arguments: Any, **options: Any) -> Any:
        evaluated.append(zoo.ids)
        return points(zoo, *arguments, **options)

    monkeypatch.setattr(near_copies, "points", counted)
    found = check(tamper.review(number, merge=False))
    assert found.outcome == "failed" and "stranger/near and m1-1: " in found.detail and "far" not in found.detail
    # of the zoo, the weights of candidates alone
    assert evaluated == [["stranger/near", "stranger/far"], ["m1-1"]]
    monkeypatch.setattr(near_copies, "COMPARED_BYTES", 13 * 100 * 10 * 2 - 1)
    told = check(tamper.review(number, merge=False))
    assert told.outcome == "not done" and "its outputs on mnist/test-100 have 26 kB" in told.detail


def published(tamper: Tamper) -> None:
    push(tamper.zoo, ZOO, endpoint=tamper.server.url, token=tamper.server.tokens["write"])
