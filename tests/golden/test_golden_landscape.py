"""Landscape figures of the first version stay readable, and say what is measured again."""

import hashlib
import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import ckptzoo
from ckptzoo.derive.hessians import Hessians
from ckptzoo.schema.metadata import LANDSCAPE_COLUMNS
from tests.support.derived_zoos import inputs_of

GOLDEN = Path(__file__).parent / "v1-landscape"


def test_the_golden_figures_are_those_of_the_networks() -> None:
    assert ckptzoo.verify(GOLDEN) == []
    zoo = ckptzoo.open(GOLDEN)
    assert zoo.landscapes == ("own/test", "own/test-6")
    exact, estimated = (zoo.landscape(name).to_pydict() for name in zoo.landscapes)
    inputs = inputs_of(zoo.arch, 8).astype(np.float32)
    good = [0, 1, 2, 4]
    weights = {name: np.asarray(zoo[name][good]) for name in zoo.arch.names}
    losses, matrices = Hessians(zoo.arch, inputs, np.arange(8) % 3).matrices(weights)
    tops, traces = np.linalg.eigvalsh(matrices)[:, -1], np.trace(matrices, axis1=1, axis2=2)
    for name, expected in (("loss", losses), ("hessian_trace", traces), ("hessian_top", tops)):
        np.testing.assert_allclose([exact[name][at] for at in good], expected, rtol=1e-9)
        assert math.isnan(exact[name][3])
    assert exact["hessian_trace_error"] == exact["hessian_top_error"] == [None] * 5
    assert [value is None for value in estimated["loss"]] == [False, True, True, True, False]
    assert all(estimated[f"hessian_{name}_error"][4] > 0 for name in ("trace", "top"))


def test_the_page_lists_the_columns_in_their_order() -> None:
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    section = text.partition("## Landscape figures\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE)
    assert listed == [(column.name, column.type) for column in LANDSCAPE_COLUMNS]


def test_a_reader_written_from_the_page_alone() -> None:
    """docs/format.md, without ckptzoo."""
    units: dict[str, str] = {}
    for part in (GOLDEN / "parts").iterdir():
        digest = json.loads(pq.read_metadata(part / "index.parquet").metadata[b"ckptzoo"])["digest"]
        units |= dict.fromkeys(pq.read_table(part / "metadata.parquet")["id"].to_pylist(), digest)
    zoo = json.loads((GOLDEN / "zoo.json").read_bytes())["digest"]
    for path in (GOLDEN / "landscape").iterdir():
        data = path.read_bytes()
        file = pq.ParquetFile(io.BytesIO(data))
        facts = json.loads(file.metadata.metadata[b"ckptzoo"])
        seal = facts["seal"]
        assert hashlib.sha256(data.replace(seal.encode(), b"0" * 64)).hexdigest() == seal and path.stem == seal[:16]
        assert (facts["format"], facts["version"], facts["kind"]) == ("ckptzoo", 1, "landscape")
        assert facts["zoo"] == zoo and facts["loss"] == "cross-entropy"
        inputs = np.random.default_rng(1).standard_normal((facts["examples"], 5)).astype("<f4")
        shaped = f"{inputs.shape}\n".encode() + inputs.tobytes()
        labels = (np.arange(len(inputs)) % 3).astype("<i8").tobytes()
        for name, content in (("inputs", shaped), ("targets", labels)):
            assert facts[name] == "sha256:" + hashlib.sha256(content).hexdigest()
        for row in file.read().to_pylist():
            assert units[row["id"]] == row["unit"]
            assert (row["hessian_trace_error"] is None) == (facts["probes"] == 0)
