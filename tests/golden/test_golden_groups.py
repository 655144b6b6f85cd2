"""A zoo whose snapshot has several groups of rows stays readable: from the snapshot, column by column, and without."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import read_trees

GOLDEN = Path(__file__).parent / "v1-groups"
"""Seven checkpoints in parts of 3, 2 and 2, and groups of 3 and 4 rows."""


@pytest.mark.parametrize("snapshot", [True, False])
def test_the_golden_zoo_is_sound_and_reads_the_same(tmp_path: Path, snapshot: bool) -> None:
    path = shutil.copytree(GOLDEN, tmp_path / "zoo")
    if not snapshot:
        shutil.rmtree(path / "snapshots")
        (path / "listing.json").unlink()
    assert ckptzoo.verify(path) == []
    zoo = ckptzoo.open(path)
    assert zoo.revision == "sha256:41ef059e7124ae29902df41c5d3614d88413c082734eb26439095710cb77f8d8"
    weights = np.random.default_rng(2310_08287).normal(size=(7, 2)).astype("f4")
    assert np.array_equal(zoo["a"][:], weights) and zoo.ids == [f"golden-{at}" for at in range(7)]
    assert zoo.column("test_accuracy").to_pylist() == [at / 8 for at in range(7)]
    assert zoo.column("extra.n").to_pylist() == list(range(7))
    assert zoo.where("recipe == 'x' and test_accuracy > 0.2").ids == ["golden-2", "golden-4", "golden-6"]
    assert zoo.last_steps().ids == [f"golden-{at}" for at in (1, 3, 5, 6)]
    assert zoo[5].row == zoo.metadata.to_pylist()[5] and zoo[5].row["unit"] == "unit-2"
    used = zoo.contents.snapshot
    assert (used is not None) == snapshot
    if used is not None:
        parts = zoo.contents.raw.parts
        assert used.checked_parts == tuple(part.name for part in parts)
        assert sum(len(own) for _, _, own in used.pieces("parts", parts)) == 3


def test_every_group_is_that_of_its_parts(tmp_path: Path) -> None:
    """The rows that the groups have are those of the parts, group by group."""
    files = Folder(GOLDEN)
    used = ckptzoo.open(GOLDEN).contents.snapshot
    assert used is not None
    copied, actual = used.tree("parts"), read_trees(files)["parts"]
    assert copied.metadata.equals(actual.metadata) and copied.index.equals(actual.index)
