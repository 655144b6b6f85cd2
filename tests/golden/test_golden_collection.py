"""A collection of the first version stays readable, and is written with the same content again."""

import json
import shutil
from pathlib import Path

import numpy as np

import ckptzoo

GOLDEN = Path(__file__).parent / "v1-collection"


def test_the_golden_collection_reads_the_same() -> None:
    both = ckptzoo.open_collection(GOLDEN)
    assert [(entry.folder, entry.name, entry.checkpoints) for entry in both.entries] == [
        ("narrow", "golden-narrow", 2), ("wide", "golden-wide", 1),
    ]  # fmt: skip
    assert both.metadata["id"].to_pylist() == ["n0", "n1", "w0"]
    (wide,) = both.where("extra.width == 3")
    assert wide.ids == ["w0"] and np.array_equal(wide["fc.weight"][0], np.arange(6, dtype="f4").reshape(3, 2))


def test_it_is_written_with_the_same_content_again(tmp_path: Path) -> None:
    again = shutil.copytree(GOLDEN, tmp_path / "again")
    ckptzoo.write_collection(again)
    before, after = (json.loads((root / "collection.json").read_bytes()) for root in (GOLDEN, again))
    assert before["zoos"] == after["zoos"] and set(before) == set(after)
    assert ckptzoo.open_collection(again).metadata.equals(ckptzoo.open_collection(GOLDEN).metadata)
