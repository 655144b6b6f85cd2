"""Numbers of parts: behind 999999 there is none, and nothing is written there that no reader would find."""

import pytest

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.format.files import Folder
from ckptzoo.format.part import read_part
from tests.conftest import MIXED, rows_of, weights_of


def numbered(path, number, tree="parts"):
    """Give the last part of a tree this number, which its digest does not cover."""
    last = max((path / tree).iterdir())
    last.rename(last.with_name(f"{number}{last.name[6:]}"))


def files_in(path):
    return sorted(file.relative_to(path).as_posix() for file in path.rglob("*"))


def test_nothing_is_added_behind_the_last_number(make_zoo):
    path, _ = make_zoo((2, 3))
    numbered(path, 999999)
    assert ckptzoo.verify(path) == [] and len(ckptzoo.open(path)) == 5
    before = files_in(path)
    with pytest.raises(ZooError, match=r"at most 999999, got 1000000\. Give 999999-"):
        ckptzoo.append(path).add(weights_of(MIXED, 1), rows_of(1, 9))
    assert files_in(path) == before
    numbered(path, "000007")
    with ckptzoo.append(path) as writer:
        writer.add(weights_of(MIXED, 1), rows_of(1, 9))
    assert len(ckptzoo.open(path)) == 6 and max((path / "parts").iterdir()).name.startswith("000008-")


def test_the_last_number_that_came_meanwhile(make_zoo):
    path, _ = make_zoo((2, 3))
    writer = ckptzoo.append(path)
    writer.add(weights_of(MIXED, 1), rows_of(1, 9))
    numbered(path, 999999)
    with pytest.raises(ZooError, match="at most 999999"):
        writer.commit()
    writer.discard()
    assert len(files_in(path / "parts")) == 2 * 4


@pytest.mark.filterwarnings("ignore:.*retracted:UserWarning")
def test_no_tombstone_behind_the_last_number(make_zoo):
    path, _ = make_zoo((2, 3))
    ckptzoo.retract(path, ["m00000"], reason="a test")
    numbered(path, 999999, "derived/retracted")
    with pytest.raises(ZooError, match="at most 999999"):
        ckptzoo.retract(path, ["m00001"], reason="a test")
    assert len(ckptzoo.open(path)) == 4


def test_a_sealed_part_is_never_to_be_removed(make_zoo):
    path, _ = make_zoo((2, 3))
    last = max((path / "parts").iterdir())
    numbered(path, 1000000)
    found = [str(problem) for problem in ckptzoo.verify(path)]
    assert len(found) == 1 and "Keep it" in found[0] and "Remove" not in found[0]
    numbered(path, 1000000 - 1)  # seven digits are gone: the name is that of another digest
    (max((path / "parts").iterdir())).rename(last)
    other = path.with_name("other")
    with ckptzoo.create(other, arch=MIXED) as writer:
        writer.add(weights_of(MIXED, 3), rows_of(3, 2, unit="unit-1"))
    twice = next((other / "parts").iterdir())
    twice.rename(path / "parts" / f"000003{twice.name[6:]}")
    found = [str(problem) for problem in ckptzoo.verify(path)]
    assert len(found) == 2 and all("Move the part" in text and "Remove" not in text for text in found)
    assert read_part(Folder(path), "parts", f"000003{twice.name[6:]}")
