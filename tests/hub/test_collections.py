"""A collection in a dataset repository: only the zoos that a condition needs are asked for, all at one commit."""

from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import CommitOperationAdd

import ckptzoo
from ckptzoo.cli.app import run
from ckptzoo.errors import OfflineError
from tests.loader.test_collection import NAMES, add
from tests.support.hosted import Hosted
from tests.support.hub_zoos import files_of

REPO = "lab/both"


def publish(server: Hosted, root: Path) -> None:
    ckptzoo.write_collection(root)
    api = server.api()
    api.create_repo(REPO, repo_type="dataset", exist_ok=True)
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    operations = [CommitOperationAdd(path.relative_to(root).as_posix(), path.read_bytes()) for path in files]
    api.create_commit(REPO, operations, commit_message="both", repo_type="dataset")


@pytest.mark.parametrize("address", [REPO, f"{REPO}@main", f"hf://datasets/{REPO}", f"hf://datasets/{REPO}/"])
@pytest.mark.sampled(2)
def test_zoos_of_a_repository_are_read_at_the_commit_of_the_collection(
    server: Hosted, tmp_path: Path, address: str
) -> None:
    root = tmp_path / "both"
    for folder, name in NAMES.items():
        add(root / folder, name, 3)
    publish(server, root)
    how = {"endpoint": server.url, "token": server.tokens["read"]}
    both = ckptzoo.open_collection(address, **how)
    expected = ckptzoo.open(root / "wide")["fc1.bias"][:]
    add(root / "wide", NAMES["wide"], 2, first=3)
    publish(server, root)
    since = len(server.request_log.entries)
    (wide,) = both.where("zoo == 'wide'")
    assert np.array_equal(wide["fc1.bias"][:], expected)
    assert not [item.path for item in server.request_log.entries[since:] if "narrow" in item.path]
    # other commits are not asked for: the commit is the one that the collection was read at
    assert not [item.path for item in server.request_log.entries[since:] if "/main" in item.path]
    assert len(ckptzoo.open_collection(address, **how).zoos["wide"]) == 5


def test_a_network_that_fails_is_no_reason_to_write_the_collection_again(
    server: Hosted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tmp_path / "both" / "wide", NAMES["wide"], 3)
    publish(server, tmp_path / "both")
    both = ckptzoo.open_collection(REPO, endpoint=server.url, token=server.tokens["read"])
    with monkeypatch.context() as patch, pytest.raises(OfflineError, match="Unset CKPTZOO_OFFLINE"):
        patch.setenv("CKPTZOO_OFFLINE", "1")
        both.zoos["wide"]
    assert len(both.zoos["wide"]) == 3


def test_a_collection_is_pulled(server: Hosted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "both"
    for folder, name in NAMES.items():
        add(root / folder, name, 3)
    publish(server, root)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    whole, few, none = (str(tmp_path / name) for name in ("whole", "few", "none"))
    assert run(["pull", REPO, "-o", whole]) == 0
    assert files_of(Path(whole)) == files_of(root) and ckptzoo.verify_collection(whole) == []
    add(root / "wide", NAMES["wide"], 2, first=3)
    publish(server, root)
    found = ckptzoo.pull_collection(REPO, whole)
    assert [(item.folder.name, len(item.parts)) for item in found] == [("narrow", 0), ("wide", 1)]
    assert files_of(Path(whole)) == files_of(root)
    assert run(["pull", REPO, "-o", few, "--where", "test_accuracy > 0.35", "--json"]) == 0
    assert ckptzoo.open_collection(few).metadata["id"].to_pylist() == ["m4"]
    assert run(["pull", REPO, "-o", none, "--where", "test_accuracy > 5"]) == 0 and not Path(none).exists()
    server.api().create_repo("lab/neither", repo_type="dataset")
    assert run(["pull", "lab/neither", "-o", none]) == 3
