"""``load_dataset`` reads what a card promises, in a process of its own, from a hub and from a folder."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.format.part import PartWriter
from ckptzoo.format.table import schema_of
from ckptzoo.hub.card import write
from ckptzoo.schema.card import Card
from ckptzoo.schema.metadata import COLUMNS, VARIANT_COLUMNS
from ckptzoo.symmetry import GroupElement
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_clients import END, run_client

pytestmark = pytest.mark.filterwarnings("ignore:.*retracted:UserWarning")
GOLDEN = Path(__file__).parents[2] / "golden/v1"

PROGRAM = """
import json, sys
from datasets import get_dataset_config_names, load_dataset
names = get_dataset_config_names(sys.argv[1])
found = {"configs": names, "default": len(load_dataset(sys.argv[1], split="train"))}
for name in names:
    plain = load_dataset(sys.argv[1], name, split="train")
    streamed = list(load_dataset(sys.argv[1], name, split="train", streaming=True))
    assert list(plain) == streamed, name
    found[name] = {"columns": plain.column_names, "rows": json.loads(json.dumps(list(plain), default=str))}
print(json.dumps(found))
"""


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """The golden zoo, whose variant lacks the last columns, and behind that a part with all of them."""
    path = tmp_path / "v1"
    shutil.copytree(GOLDEN, path)
    rng = np.random.default_rng(1)
    with ckptzoo.append(path) as writer:
        fresh = {t.name: rng.standard_normal((2, *t.shape)).astype(t.dtype) for t in writer.arch.tensors}
        writer.add(fresh, [{"id": "new-0"}, {"id": "new-1", "dataset": 'a "b": c', "test_accuracy": 0.25}])
    contents = ckptzoo.open(path).contents
    assert contents.symmetry is not None
    element = GroupElement.random(contents.symmetry, 2, rng).to_tensors()
    tensors = [ckptzoo.Tensor(name, array.shape[1:], array.dtype.name) for name, array in element.items()]
    raw = contents.raw.parts[-1].digest
    facts = {**contents.derived("first-weight").parts[0].facts, "raw": raw}
    schema = schema_of(VARIANT_COLUMNS)
    part = PartWriter(path / "derived/first-weight", sets={"g": tensors}, schema=schema, facts=facts)
    part.add({"g": element}, [{"id": f"new-{at}", "unit": raw, "clamped": at} for at in range(2)])
    part.commit(path, refuse=lambda _: None)
    write(path, Card("golden-v1", summary='A "quoted": summary.', license="apache-2.0", repository=ZOO))
    assert ckptzoo.verify(path) == []
    return path


def check_rows(found: dict[str, Any]) -> None:
    assert sorted(found["configs"]) == ["first-weight", "metadata", "retracted"]
    assert found["default"] == 5
    assert found["metadata"]["columns"] == [column.name for column in COLUMNS]
    rows = found["metadata"]["rows"]
    assert [row["id"] for row in rows] == ["golden-0", "golden-1", "golden-2", "new-0", "new-1"]
    assert rows[4]["test_accuracy"] == 0.25 and rows[4]["dataset"] == 'a "b": c'
    assert found["first-weight"]["columns"] == [column.name for column in VARIANT_COLUMNS]
    assert [row["clamped"] for row in found["first-weight"]["rows"]][-3:] == [None, 0, 1]
    assert [row["id"] for row in found["retracted"]["rows"]] == ["golden-1"]


@pytest.mark.exhaustive
def test_from_a_hub(server: Hosted, grown: Path, tmp_path: Path) -> None:
    server.api().create_repo(ZOO, repo_type="dataset")
    server.api().upload_folder(repo_id=ZOO, repo_type="dataset", folder_path=grown)
    check_rows(json.loads(run_client(server, tmp_path, sys.executable, "-c", PROGRAM + END, ZOO, role="read")))
    info = server.api("read").dataset_info(ZOO)
    assert {"ckptzoo", "arch:optunet", 'dataset:a "b": c', "license:apache-2.0"} <= set(info.tags or ())
    assert info.card_data is not None and info.card_data.to_dict()["ckptzoo"]["checkpoints"] == 4


@pytest.mark.exhaustive
def test_from_a_folder(server: Hosted, grown: Path, tmp_path: Path) -> None:
    check_rows(json.loads(run_client(server, tmp_path, sys.executable, "-c", PROGRAM + END, str(grown), role="read")))
