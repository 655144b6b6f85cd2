"""Rows that others wrote into a zoo neither stand for members and draws of a build, nor stop it after training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from builders import posterior
from builders.build import build
from builders.metadata import member_id
from builders.posterior.build import build as build_draws
from builders.recipe import Recipe
from builders.train import Trainer
from ckptzoo.errors import IntegrityError
from tests.support.builds import QUIET

TOY = Recipe.load("toy").shortened(1)


def add(zoo: Path, *rows: dict[str, Any]) -> None:
    """Add checkpoints of zeros with these rows, as a merged contribution may."""
    with ckptzoo.append(zoo) as writer:
        for row in rows:
            writer.add({tensor.name: np.zeros(tensor.shape, tensor.dtype) for tensor in TOY.arch.tensors}, row)


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    build(TOY, tmp_path / "zoo", members=1, console=QUIET)
    return tmp_path / "zoo"


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def advance(*arguments: object) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(Trainer, "advance", advance)


def seeds(zoo: Path) -> list[int]:
    rows = ckptzoo.open(zoo).metadata.to_pylist()
    return sorted(row["seed"] for row in rows if row["commit"] is not None or row["builder"] is not None)


@pytest.mark.parametrize(
    "row",
    [
        {"id": f"{member_id(TOY, 1)}-{TOY.steps:06d}"},
        {"id": "other", "member": member_id(TOY, 1)},
        {"id": f"{member_id(TOY, 1)}-{TOY.steps:06d}", "member": "other", "seed": 1, "recipe_digest": TOY.digest},
    ],
    ids=["id", "member", "of another member"],
)
@pytest.mark.sampled(2)
def test_seeds_whose_ids_are_taken_are_left_out(zoo: Path, row: dict[str, Any]) -> None:
    add(zoo, row)
    built = build(TOY, zoo, members=3, console=QUIET)
    assert (built.members, built.held, seeds(zoo)) == (2, 3, [0, 2, 3])
    assert ckptzoo.verify(zoo) == []
    assert build(TOY, zoo, members=3, console=QUIET).part is None


def test_rows_that_only_say_that_the_recipe_made_them_are_no_members(zoo: Path) -> None:
    add(zoo, {"id": "ada/one", "member": "ada/one", "seed": 1, "recipe": TOY.name, "recipe_digest": TOY.digest})
    assert build(TOY, zoo, members=2, console=QUIET).held == 2
    assert seeds(zoo) == [0, 1] and len(ckptzoo.open(zoo)) == 3


def test_a_unit_that_is_taken_is_told_before_training(zoo: Path, no_training: None) -> None:
    unit = f"{TOY.prefix}-000001-000002"
    add(zoo, {"id": "ada/one", "unit": unit})
    with pytest.raises(IntegrityError, match=rf"what this build would add: .* 1 taken, such as '{unit}'"):
        build(TOY, zoo, members=3, console=QUIET)


def test_draws_that_are_taken_are_told_before_training(tmp_path: Path, no_training: None) -> None:
    model = posterior.get("dropout").load(TOY, None, None)
    draws = tmp_path / "draws"
    ckptzoo.create(draws, arch=TOY.arch)
    said = {"mode": f"{model.prefix}-000000", "draw": 0, "method": "dropout", "recipe_digest": model.digest, "seed": 0}
    add(draws, {"id": "ada/draw", **said})
    with pytest.raises(AssertionError, match="trained"):
        build_draws("dropout", TOY, draws, modes=1, draws=1, console=QUIET)
    other = tmp_path / "other"
    ckptzoo.create(other, arch=TOY.arch)
    add(other, {"id": f"{model.prefix}-000000-d00000"})
    with pytest.raises(IntegrityError, match=rf"1 taken, such as '{model.prefix}-000000-d00000'"):
        build_draws("dropout", TOY, other, modes=1, draws=1, console=QUIET)
