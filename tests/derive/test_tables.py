"""Where a zoo's symmetry table comes from, and how one is declared."""

from dataclasses import replace
from pathlib import Path

import pytest

import ckptzoo
from ckptzoo.derive import declare, dedupe, derive
from ckptzoo.derive.tables import symmetry_of
from ckptzoo.errors import SpecError, SymmetryError, ZooError
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import read_contents
from tests.support.derived_zoos import ARCH, TABLE, files_of, weights_of, written

UNKNOWN = replace(ARCH, forward=None)


def test_a_zoo_without_a_table_gets_the_registrys_when_it_is_derived(tmp_path: Path) -> None:
    path = written(tmp_path / "zoo", ARCH, weights_of(2, 0))
    before = files_of(path)
    assert symmetry_of(read_contents(Folder(path))) == TABLE
    dedupe(ckptzoo.open(path))
    assert files_of(path) == before
    derive(path, certify="none")
    assert ckptzoo.open(path).symmetry == TABLE
    assert ckptzoo.verify(path) == []


def test_a_declared_table_is_used(tmp_path: Path) -> None:
    path = written(tmp_path / "zoo", UNKNOWN, weights_of(2, 0))
    for call in (lambda: derive(path), lambda: dedupe(ckptzoo.open(path))):
        with pytest.raises(SymmetryError, match=r"symmetry table of optunet: expected one, got none.*derive\.declare"):
            call()
    declare(path, TABLE)
    assert ckptzoo.open(path).symmetry == TABLE
    done = derive(path)
    assert done.checkpoints == 2 and done.certified == ()
    rows = ckptzoo.open(path).variant_metadata("canonical")
    assert rows["certificate_random"].null_count == rows["certified"].null_count == 2
    assert ckptzoo.verify(path) == []
    with pytest.raises(ZooError, match="real inputs"):
        written(tmp_path / "other", UNKNOWN, weights_of(2, 1), symmetry=TABLE)
        derive(tmp_path / "other", inputs=weights_of(1, 0)["fc.weight"])


def test_a_table_is_declared_once(tmp_path: Path) -> None:
    path = written(tmp_path / "zoo", ARCH, weights_of(1, 0))
    declare(path, TABLE)
    before = files_of(path)
    declare(path, TABLE)
    signs = tuple(replace(group, scale="sign") for group in TABLE.groups)
    with pytest.raises(SymmetryError, match=f"expected none or .*, got {TABLE.digest}"):
        declare(path, replace(TABLE, groups=signs))
    assert files_of(path) == before


def test_a_table_of_another_architecture_is_refused_with_every_problem(tmp_path: Path) -> None:
    path = written(tmp_path / "zoo", UNKNOWN, weights_of(1, 0))
    before = files_of(path)
    moved = tuple(replace(action, tensor=f"{action.tensor}s") for action in TABLE.actions)
    with pytest.raises(SpecError) as refused:
        declare(path, replace(TABLE, actions=moved))
    assert len(refused.value.problems) == len(moved)
    assert files_of(path) == before
