"""Contributions that started from a member of the zoo are named, and pass."""

from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.hub.contributions import target_zoo
from ckptzoo.hub.contributions.independence import check_independence
from ckptzoo.hub.contributions.target_zoo import TargetZoo
from tests.support.derived_zoos import weights_of, written

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
