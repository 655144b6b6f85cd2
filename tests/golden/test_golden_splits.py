"""Splits of the first version stay readable, select the same checkpoints, and are written with the same bytes."""

import shutil
from pathlib import Path

import pytest

import ckptzoo

GOLDEN = Path(__file__).parent / "v1-splits"


@pytest.mark.parametrize(
    ("name", "part", "ids"),
    [
        ("main", "train", ["m0-1", "m0-2", "m1-1", "m1-2", "m5-1", "m5-2", "d0", "d1"]),
        ("main", "val", ["m3-1", "m3-2"]), ("main", "test", ["m2-1", "m2-2", "m4-1", "m4-2"]),
        ("paper", "train", ["m0-2", "m1-2"]), ("paper", "test", ["m0-1"]),
    ],
)  # fmt: skip
def test_the_golden_splits_select_the_same(name: str, part: str, ids: list[str]) -> None:
    assert ckptzoo.open(GOLDEN).split(name, part).ids == ids and ckptzoo.verify(GOLDEN) == []


def test_they_are_written_with_the_same_bytes_again(tmp_path: Path) -> None:
    again = shutil.copytree(GOLDEN, tmp_path / "again")
    shutil.rmtree(again / "splits")
    ckptzoo.make_split(again, "main", {"train": 0.5, "val": 0.25, "test": 0.25}, seed=3)
    lists = {"train": ["m1-2", "m0-2"], "test": ["m0-1"]}
    ckptzoo.write_split(again, "paper", lists, allow_shared_members=True)
    for name in ("main.json", "paper.json"):
        assert (again / "splits" / name).read_bytes() == (GOLDEN / "splits" / name).read_bytes()
