"""Predictions of version 1 stay readable for ever."""

import base64
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import ckptzoo
from ckptzoo.format.table import schema_of
from ckptzoo.schema.metadata import PREDICTION_COLUMNS

GOLDEN = Path(__file__).parent / "v1-predictions"
INPUTS = np.arange(12, dtype="f4").reshape(4, 3) / 8 - 0.5


@pytest.mark.parametrize("snapshot", [True, False])
def test_the_golden_zoo_is_sound_and_reads_the_same(tmp_path: Path, snapshot: bool) -> None:
    path = shutil.copytree(GOLDEN, tmp_path / "zoo")
    if not snapshot:
        shutil.rmtree(path / "snapshots")
    assert ckptzoo.verify(path) == []
    zoo = ckptzoo.open(path)
    assert (zoo.contents.snapshot is not None) == snapshot
    assert zoo.predicted == ("other/test", "some-data/test") and zoo.ids == ["golden-0", "golden-1", "golden-2"]
    held = zoo.predictions("some-data/test")
    assert held.targets is not None and held.targets.tolist() == [0, 1, 1, 0] and held.finite.tolist() == [True] * 3
    (weight, bias) = (np.asarray(zoo[name], np.float64) for name in zoo.arch.names)
    exact = np.einsum("ni,koi->kno", INPUTS, weight) + bias[:, None]
    np.testing.assert_allclose(np.asarray(held.logits), exact, rtol=2**-11, atol=1e-6)
    other = zoo.predictions("other/test")
    assert other.targets is None and not other.finite.any()
    assert np.isinf(np.asarray(other.logits)).any()
    assert zoo.contents.derived("predictions-other--test").metadata.schema.equals(schema_of(PREDICTION_COLUMNS))


def test_a_reader_written_from_the_page_alone() -> None:
    """docs/format.md, without ckptzoo."""
    raw = sorted((GOLDEN / "parts").iterdir())
    folders = sorted((GOLDEN / "derived" / "predictions-some-data--test").iterdir())
    read: list[np.ndarray] = []
    for part, origin in zip(folders, raw, strict=True):
        told, of = (
            json.loads(pq.read_metadata(path / "index.parquet").metadata[b"ckptzoo"]) for path in (part, origin)
        )
        facts = told["facts"]
        assert (facts["kind"], facts["set"], facts["outputs"]) == ("predictions", "some-data/test", "logits")
        assert facts["inputs"] == "sha256:" + hashlib.sha256(b"(4, 3)\n" + INPUTS.astype("<f4").tobytes()).hexdigest()
        assert list(base64.b64decode(facts["targets"])) == [0, 1, 1, 0]
        assert facts["raw"] == of["digest"]
        assert set(pq.read_table(part / "metadata.parquet")["unit"].to_pylist()) == {of["digest"]}
        (block,) = (row for row in pq.read_table(part / "index.parquet").to_pylist() if row["tensor"] == "logits")
        data = (part / block["file"]).read_bytes()[block["offset"] : block["offset"] + block["nbytes"]]
        assert hashlib.sha256(data).digest() == block["sha256"] and block["dtype"] == "float16"
        read.append(np.frombuffer(data, "<f2").reshape(block["shape"]))
        assert list(read[-1].shape[1:]) == [facts["examples"], facts["classes"]]
    np.testing.assert_array_equal(np.concatenate(read), ckptzoo.open(GOLDEN).predictions("some-data/test").logits[:])


def test_the_page_names_every_column() -> None:
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    assert all(column.name in page for column in PREDICTION_COLUMNS)
