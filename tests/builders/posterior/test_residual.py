"""Every posterior method of a ResNet with BatchNorm on colour images in real files, from members to draws."""

import dataclasses
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ckptzoo
from builders import posterior, sources
from builders.build import build as build_members
from builders.posterior.batch_norm import renewed_statistics
from builders.posterior.build import build
from builders.posterior.dropout import Dropout
from builders.posterior.method import SETTINGS
from builders.recipe import Recipe
from tests.support.builds import COLOUR, QUIET, small_cifar10

CHANGES: dict[str, dict[str, Any]] = {
    "csghmc": {"epochs": 4, "cycles": 2, "noisy": 1, "draws_per_cycle": 1, "step_size": 0.01},
    "sghmc": {"epochs": 4, "batch": 8, "burn_in": 1, "first_draw": 3, "every": 1},
    "dropout": {},
    "bnn": {},
    "swag": {"snapshots": 2, "distance": 1, "ramp": 1},
    "laplace": {},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with small_cifar10(tmp_path_factory.mktemp("data")) as path:
        yield path


@pytest.fixture(scope="module")
def members(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two members, at which some methods start."""
    path = tmp_path_factory.mktemp("members") / "zoo"
    build_members(COLOUR, path, members=2, folder=folder, console=QUIET)
    assert set(ckptzoo.open(path).metadata["unit"].to_pylist()) and not ckptzoo.verify(path)
    return path


@pytest.mark.parametrize("method", CHANGES)
@pytest.mark.sampled(6)
def test_draws_are_whole_checkpoints_with_statistics_of_their_own_weights(
    method: str, folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    start = request.getfixturevalue("members") if posterior.get(method).starts == "member" else None
    options: dict[str, Any] = {"modes": 2, "draws": 2, "start": start, "folder": folder, "changes": CHANGES[method]}
    built = build(method, COLOUR, tmp_path / "zoo", **options, console=QUIET)
    assert (built.draws, built.modes) == (4, 2)
    zoo = ckptzoo.open(tmp_path / "zoo")
    arch = COLOUR.arch
    draws = {name: torch.from_numpy(np.array(zoo[name][:])) for name in arch.names}
    assert all(tensor.isfinite().all() for tensor in draws.values())
    moved = [name for name in arch.names if not torch.equal(draws[name][0], draws[name][1])]
    if method in ("dropout", "laplace"):
        assert set(moved) <= {"linear.weight", "linear.bias"} and moved
        return
    assert set(moved) >= {tensor.name for tensor in arch.tensors if tensor.kind != "buffer"}
    expected = renewed_statistics(COLOUR, sources.load(COLOUR, folder), draws)
    for tensor in arch.tensors:
        if tensor.kind == "buffer":
            torch.testing.assert_close(draws[tensor.name], expected[tensor.name], rtol=1e-5, atol=1e-6)


def test_networks_that_begin_alike_share_settings() -> None:
    for architecture in ("resnet18-100", "resnet18-8-100"):
        assert Dropout.load(dataclasses.replace(COLOUR, architecture=architecture)).p == 0.5
    assert Dropout.load(Recipe.load("mnist-optunet")).p == 0.2


@pytest.mark.parametrize("path", sorted(SETTINGS.glob("*-*.toml")), ids=lambda path: path.stem)
def test_settings_of_an_architecture_are_taken_for_it_and_can_be_served(path: Path) -> None:
    method, _, family = path.stem.partition("-")
    recipe = dataclasses.replace(COLOUR, architecture=family if "-" in family else f"{family}-100")
    settings = tomllib.loads(path.read_text())
    model = posterior.get(method).load(recipe)
    assert {name: getattr(model, name) for name in settings} == settings
    # and the general ones for others
    other = posterior.get(method).load(Recipe.load("mnist-optunet"))
    assert {name: getattr(other, name) for name in settings} != settings
