"""Whole programs in processes of their own, with nothing set but HF_ENDPOINT: clients of several versions, hf, datasets."""

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import CommitOperationAdd

import ckptzoo
from tests.support.effort import ALL
from tests.support.hosted import ZOO, Hosted, push
from tests.support.hub_clients import END, run_client

WALK = Path(__file__).with_name("walk.py")
OTHER = os.environ.get("CKPTZOO_HUB_CLIENT")


def test_the_client_that_is_installed(server: Hosted, tmp_path: Path) -> None:
    assert "walked with" in run_client(server, tmp_path, sys.executable, str(WALK))


@pytest.mark.skipif(OTHER is None, reason="CKPTZOO_HUB_CLIENT names no Python with another huggingface_hub")
def test_the_other_client(server: Hosted, tmp_path: Path) -> None:
    assert "walked with" in run_client(server, tmp_path, str(OTHER), str(WALK))


def test_the_command_line(server: Hosted, tmp_path: Path) -> None:
    hf = str(Path(sys.executable).with_name("hf"))
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "a.safetensors").write_bytes(bytes(range(256)) * 500)
    assert not ALL or "lab" in run_client(server, tmp_path, hf, "auth", "whoami")
    run_client(server, tmp_path, hf, "repos", "create", "cli", "--repo-type", "dataset")
    run_client(server, tmp_path, hf, "upload", "lab/cli", "up", "--repo-type", "dataset")
    run_client(
        server,
        tmp_path,
        hf,
        "download",
        "lab/cli",
        "--repo-type",
        "dataset",
        "--local-dir",
        "down",
        role="read",
        xet=True,
    )
    assert (tmp_path / "down" / "a.safetensors").read_bytes() == bytes(range(256)) * 500
    listed = json.loads(run_client(server, tmp_path, hf, "repos", "list", "--json"))
    assert [(item["id"], item["type"], item["visibility"]) for item in listed] == [("lab/cli", "dataset", "public")]


SNAPSHOT = """
from huggingface_hub import HfFileSystem, hf_hub_download, snapshot_download
folder = snapshot_download("lab/cli", repo_type="dataset")
print(open(f"{folder}/a.safetensors", "rb").read() == HfFileSystem().cat("datasets/lab/cli/a.safetensors"))
"""


@pytest.mark.exhaustive
def test_what_clients_do_where_hf_xet_is_installed_and_nothing_is_set(server: Hosted, tmp_path: Path) -> None:
    pytest.importorskip("hf_xet")
    hf = str(Path(sys.executable).with_name("hf"))
    data = bytes(range(256)) * 500
    server.api().create_repo("lab/cli", repo_type="dataset")
    push(server, {"a.safetensors": data, "a.txt": b"a"}, "datasets/lab/cli")
    run_client(
        server, tmp_path, hf, "download", "lab/cli", "--type", "dataset", "--local-dir", "down", role="read", xet=True
    )
    assert (tmp_path / "down/a.safetensors").read_bytes() == data
    assert run_client(server, tmp_path, sys.executable, "-c", SNAPSHOT, role=None, xet=True) == "True\n"
    (tmp_path / "up").mkdir()
    (tmp_path / "up/b.md").write_text("small")
    run_client(server, tmp_path, hf, "upload", "lab/cli", "up", "--type", "dataset", xet=True)
    (tmp_path / "up/b.safetensors").write_bytes(data)
    said = run_client(server, tmp_path, hf, "upload", "lab/cli", "up", "--type", "dataset", xet=True, fails=True)
    assert "/set-HF_HUB_DISABLE_XET=1" in said
    run_client(server, tmp_path, hf, "upload", "lab/cli", "up", "--type", "dataset")
    assert set(server.api().list_repo_files("lab/cli", repo_type="dataset")) >= {"a.txt", "b.md", "b.safetensors"}


@pytest.mark.exhaustive
def test_zoos_are_pushed_where_hf_xet_is_installed_and_nothing_is_set(server: Hosted, tmp_path: Path) -> None:
    """By ckptzoo, which asks no hub but huggingface.co for Xet storage."""
    command = [sys.executable, "-m", "ckptzoo"]
    zoo = str(Path(__file__).parents[2] / "cards/mnist-optunet-trajectories")
    run_client(server, tmp_path, *command, "push", zoo, ZOO, xet=True)
    program = f"import ckptzoo; print(len(ckptzoo.open({ZOO!r})))"
    assert (
        run_client(server, tmp_path, sys.executable, "-c", program, role="read", xet=True)
        == f"{len(ckptzoo.open(zoo))}\n"
    )


DATASETS = """
import json, sys
from datasets import load_dataset
plain = load_dataset("lab/zoo", "metadata", split="train")
streamed = load_dataset("lab/zoo", "metadata", split="train", streaming=True)
print(json.dumps([list(plain["id"]), [row["id"] for row in streamed]]))
"""
CARD = """---
configs:
- config_name: metadata
  data_files: parts/*/metadata.parquet
---
# A zoo
"""


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_datasets(zoo: Hosted, tmp_path: Path) -> None:
    operations = [CommitOperationAdd("README.md", CARD.encode())]
    for part in range(2):
        path = tmp_path / f"{part}.parquet"
        pq.write_table(pa.table({"id": [f"m{part}{row}" for row in range(3)]}), path)
        operations.append(CommitOperationAdd(f"parts/{part}/metadata.parquet", path.read_bytes()))
    zoo.api().create_commit(ZOO, operations, commit_message="rows", repo_type="dataset")
    ids = ["m00", "m01", "m02", "m10", "m11", "m12"]
    assert json.loads(run_client(zoo, tmp_path, sys.executable, "-c", DATASETS + END, role="read", xet=True)) == [
        ids,
        ids,
    ]
