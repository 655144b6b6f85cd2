"""Contributions that started from a member of the zoo are named, and pass."""

from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.hub.contributions import target_zoo
from ckptzoo.hub.contributions.independence import check_independence
from ckptzoo.hub.contributions.target_zoo import TargetZoo
from tests.support.derived_zoos import linked, weights_of, written

NAME = "mlp-8-10-3"


def zoos(folder: Path, name: str = NAME) -> tuple[ckptzoo.Zoo, ckptzoo.Zoo]:
    """A zoo of 20 members, and four further networks of which 0 and 2 began at its members 7 and 3."""
    arch, table = archs.architecture(name), archs.symmetry(name)
    members, fresh = (weights_of(count, seed, arch=arch) for count, seed in ((20, 1), (4, 2)))
    for place, member in ((0, 7), (2, 3)):
        for key in fresh:
            fresh[key][place] = members[key][member] + 0.2 * fresh[key][place]
    paths = [
        written(folder / title, arch, weights, symmetry=table)
        for title, weights in (("mine", fresh), ("theirs", members))
    ]
    return ckptzoo.open(paths[0]), ckptzoo.open(paths[1])


def test_dependent_checkpoints_are_named(tmp_path: Path) -> None:
    mine, theirs = zoos(tmp_path)
    found = check_independence(mine, TargetZoo(theirs))
    assert found is not None and (found.name, found.outcome) == ("independence", "passed")
    assert "0 and 7 (p " in found.detail and "2 and 3 (p " in found.detail
    assert "1 and " not in found.detail and "not independent of a member" in found.detail
    found = check_independence(mine, TargetZoo(theirs), without=("0", "2"))
    assert found is not None and found.outcome == "passed"
    assert found.detail == (
        "no sign of initial weights shared with members of the zoo: 2 checkpoints against 20 members"
    )


@pytest.mark.parametrize("name", ["mlp-4-3-3", f"gaussian-{NAME}"])
def test_what_cannot_be_tested_has_no_line(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = zoos(tmp_path, name)
    assert check_independence(mine, TargetZoo(theirs)) is None
    other, zoo = zoos(tmp_path / "known")
    assert check_independence(other, TargetZoo(zoo), without=other.ids) is None
    assert check_independence(other, TargetZoo(zoo.take(np.arange(0)))) is None
    monkeypatch.setattr(target_zoo, "COMPARED_BYTES", 0)
    assert check_independence(other, TargetZoo(zoo)) is None


def test_checkpoints_and_members_that_are_not_finite_take_no_part(tmp_path: Path) -> None:
    arch = archs.architecture(NAME)
    members, fresh = (weights_of(count, seed, arch=arch) for count, seed in ((20, 1), (4, 2)))
    members["fc1.weight"][5, 0, 0], fresh["fc1.weight"][1, 0, 0] = np.inf, np.nan
    table = archs.symmetry(NAME)
    theirs = ckptzoo.open(written(tmp_path / "theirs", arch, members, symmetry=table))
    mine = ckptzoo.open(written(tmp_path / "mine", arch, fresh, symmetry=table))
    found = check_independence(mine, TargetZoo(theirs))
    assert found is not None and found.detail.endswith("zoo: 3 checkpoints against 19 members")
    assert check_independence(mine.take(np.array([1])), TargetZoo(theirs)) is None
    # rows of linked zoos do not say it
    found = check_independence(mine, TargetZoo(ckptzoo.open(linked(tmp_path / "linked", arch, members))))
    assert found is not None and found.detail.endswith(
        "no sign of initial weights shared with members of the zoo: 3 checkpoints against 20 members"
    )


@pytest.mark.parametrize(("count", "done"), [(1, True), (2, False)])
def test_too_few_permutations_for_some_checkpoints(tmp_path: Path, count: int, done: bool) -> None:
    """Of 120 permutations the least p-value is 0.0083, adjusted for two checkpoints 0.017."""
    mine, theirs = zoos(tmp_path, "mlp-8-5-3")
    found = check_independence(mine.take(np.arange(count)), TargetZoo(theirs))
    assert found is not None and found.outcome == ("passed" if done else "not done")
    if not done:
        said = "2 checkpoints and 120 permutations of neurons: no p-value can be 0.01 or less"
        assert found.detail == f"{said}, adjusted for all checkpoints"


def test_wide_networks_are_compared(tmp_path: Path) -> None:
    mine, theirs = zoos(tmp_path, "mlp-8-256-3")
    found = check_independence(mine, TargetZoo(theirs))
    assert found is not None and "0 and 7 (p " in found.detail and "1 and " not in found.detail


def test_weights_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    mine, theirs = zoos(tmp_path)
    for shard in (tmp_path / "theirs").rglob("*.safetensors"):
        shard.unlink()
    found = check_independence(mine, TargetZoo(theirs))
    assert found is not None and found.outcome == "not done" and "safetensors" in found.detail
