"""Releases of the first version open the same checkpoints, and are written with the same bytes."""

import shutil
from pathlib import Path

import pytest

import ckptzoo
from ckptzoo.schema.release import decode, encode

GOLDEN = Path(__file__).parent / "v1-releases"
pytestmark = pytest.mark.filterwarnings("ignore:.*retracted:UserWarning")


@pytest.mark.parametrize(
    ("name", "ids"),
    [("2026-11", ["a", "b"]), ("2026-12", ["a", "b", "c"]), ("v1.0.1", ["b", "c"]), ("stable", ["b", "c"])],
)
def test_the_golden_releases_open_the_same(name: str, ids: list[str]) -> None:
    assert ckptzoo.open(GOLDEN, revision=name).ids == ids and ckptzoo.verify(GOLDEN) == []


def test_they_are_written_with_the_same_bytes_again(tmp_path: Path) -> None:
    for path in (GOLDEN / "releases").iterdir():
        assert encode(decode(path.read_bytes(), location=path.name)) == path.read_bytes()
    again = shutil.copytree(GOLDEN, tmp_path / "again")
    newest = ckptzoo.open(again).releases[-1]
    assert ckptzoo.release(again, newest.name, newest.notes) == newest
    assert {path.name for path in (again / "releases").iterdir()} == {"2026-11.json", "2026-12.json", "v1.0.1.json"}
