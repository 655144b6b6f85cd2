"""Zoos with draws from approximate posteriors stay readable, beside parts that were written before they could say so."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import ckptzoo
from ckptzoo.format.files import Folder
from ckptzoo.format.part import stored_rows
from ckptzoo.schema.metadata import COLUMNS, LEAST

GOLDEN = Path(__file__).parent / "v1-draws"
"""Two independent members in a part without the columns, then three draws of SWAG and two of Laplace around each."""
DRAWS = ("method", "mode", "draw")


@pytest.mark.parametrize("snapshot", [True, False])
def test_the_golden_zoo_is_sound_and_reads_the_same(tmp_path: Path, snapshot: bool) -> None:
    path = shutil.copytree(GOLDEN, tmp_path / "zoo")
    if not snapshot:
        shutil.rmtree(path / "snapshots")
    assert ckptzoo.verify(path) == []
    zoo = ckptzoo.open(path)
    assert (zoo.contents.snapshot is not None) == snapshot
    assert zoo.revision == "sha256:26f2ce505d72e94b107e5d14bf1f38d4256d1948c9fe88a9de7b92c53aa83f91"
    rows = [tuple(row.values()) for row in zoo.metadata.select(DRAWS).to_pylist()]
    modes = ("golden-0", "golden-1")
    swag = [("swag", mode, number) for mode in modes for number in range(3)]
    assert rows == [(None, None, None)] * 2 + swag + [("laplace", mode, number) for mode in modes for number in (0, 1)]
    weights = np.random.default_rng(2310_08287).normal(size=16).astype("f4")
    assert np.asarray(zoo["fc.weight"])[:2].tobytes() == weights[:12].tobytes()


def test_a_part_without_the_columns_reads_as_null_and_one_with_them_as_it_is() -> None:
    zoo = ckptzoo.open(GOLDEN)
    old, new = zoo.contents.raw.parts
    names = [column.name for column in COLUMNS]
    assert stored_rows(Folder(GOLDEN), old).column_names == names[: LEAST["raw"]]
    assert stored_rows(Folder(GOLDEN), new).column_names == names and names[-3:] == list(DRAWS)
    assert all(zoo.metadata[name].null_count == 2 for name in DRAWS)
    assert zoo.where("method is None").ids == ["golden-0", "golden-1"]
    assert zoo.where("method == 'swag' and draw < 2").ids == [
        f"swag-golden-{mode}-{draw}" for mode in (0, 1) for draw in (0, 1)
    ]


def test_a_reader_written_from_the_page_alone() -> None:
    """docs/format.md, without ckptzoo: the layer of all draws of one method, block by block."""
    read: list[np.ndarray] = []
    for part in sorted((GOLDEN / "parts").iterdir()):
        rows = pq.read_table(part / "metadata.parquet")
        if "method" not in rows.column_names:
            continue
        places = [place for place, method in enumerate(rows["method"].to_pylist()) if method == "swag"]
        for block in pq.read_table(part / "index.parquet").to_pylist():
            if block["tensor"] == "fc.weight":
                data = (part / block["file"]).read_bytes()[block["offset"] : block["offset"] + block["nbytes"]]
                stack = np.frombuffer(data, block["dtype"]).reshape(block["shape"])
                start, stop = block["row_start"], block["row_stop"]
                read.append(stack[[place - start for place in places if start <= place < stop]])
    zoo = ckptzoo.open(GOLDEN)
    np.testing.assert_array_equal(np.concatenate(read), zoo.where("method == 'swag'")["fc.weight"][:])


def test_the_rows_of_old_and_new_parts_are_one_table() -> None:
    front = (GOLDEN / "README.md").read_text().partition("\n---\n")[0]
    assert all(f'name: "{name}"' in front for name in DRAWS), "or load_dataset refuses the part that has them"
    content = json.loads((GOLDEN / "zoo.json").read_bytes())
    assert content["version"] == 1
