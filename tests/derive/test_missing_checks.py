"""Equivalence checks of checkpoints that were derived without."""

from pathlib import Path
from typing import Any

import pytest

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.studies.inventory import inventory
from tests.support.derived_zoos import ARCH, files_of, fill, inputs_of, zoo_of

COLUMNS = ["certificate_random", "certificate_real", "certified"]


def checks(path: Path, gauge: str = "canonical") -> list[dict[str, Any]]:
    return ckptzoo.open(path).variant_metadata(gauge).select(["id", *COLUMNS]).to_pylist()


@pytest.mark.parametrize("store", ["weights", "element"])
@pytest.mark.sampled(2)
def test_checks_are_added_to_a_variant_and_equal_those_made_at_once(tmp_path: Path, store: str) -> None:
    at_once, later = (zoo_of(tmp_path / name, spoil=(1,)) for name in ("a", "b"))
    derive(at_once, certify="all", store=store)
    assert derive(later, certify="none", store=store).certified == ()
    before = files_of(later)
    assert all(row["certified"] is None for row in checks(later))
    added = derive(later, certify="all")
    assert (added.checkpoints, added.already, added.checked_later) == (0, 8, 6)
    assert added.certified[0].checkpoints == 6 and added.certified[0].random < 1e-6
    assert checks(later) == checks(at_once)
    assert {name: data for name, data in files_of(later).items() if name in before} == before  # nothing is rewritten
    assert ckptzoo.verify(later) == []
    again = derive(later, certify="all")
    assert (again.checked_later, again.certified) == (0, ())
    assert inventory(ckptzoo.open(later)).variants[1].certificate_random == added.certified[0].random


def test_real_inputs_are_added_and_what_is_there_stays(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo")
    derive(path)
    random = [row["certificate_random"] for row in checks(path)]
    added = derive(path, certify="all", inputs=inputs_of(ARCH, 5))
    assert added.checked_later == 8
    found = checks(path)
    assert [row["certificate_random"] for row in found] == random
    assert all(row["certificate_real"] < 1e-6 for row in found)


def test_new_parts_are_derived_and_checked_with_the_old_ones(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo")
    derive(path, certify="none")
    fill(path, (9,), start=2)
    both = derive(path, certify="sample")
    assert (both.checkpoints, both.checked_later, both.certified[0].checkpoints) == (9, 8, 16)
    assert [row["certified"] for row in checks(path)].count(None) == 1


def test_checks_belong_to_the_part_that_was_checked(tmp_path: Path) -> None:
    """Those of a variant that was removed are not those of the one that is made again."""
    path = zoo_of(tmp_path / "zoo")
    derive(path, certify="none", store="element")
    derive(path, certify="all")
    kept = path / "derived" / "canonical"
    kept.rename(tmp_path / "kept")
    derive(path, certify="none", store="weights")
    assert all(row["certified"] is None for row in checks(path))
    assert len(ckptzoo.open(path).measured) == 8


def test_without_a_rule_nothing_is_checked_again(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo")
    derive(path, certify="none")
    before = files_of(path)
    assert derive(path).checked_later == 0
    assert files_of(path) == before
