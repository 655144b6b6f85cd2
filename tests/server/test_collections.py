"""The page of a collection: its zoos, what is missing or has changed, and documents that anybody may have written."""

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete

import ckptzoo
from tests.support.derived_zoos import weights_of
from tests.support.hosted import Hosted
from tests.support.pages import Browser

REPO = "lab/both"
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


def collection(root: Path) -> Path:
    for width in (5, 7, 9):
        arch = ckptzoo.archs.architecture(f"mlp-4-{width}-3")
        with ckptzoo.create(root / f"w{width}", arch=arch) as writer:
            writer.add(weights_of(2, width, arch=arch), [{"id": f"m{at}"} for at in range(2)])
    ckptzoo.write_collection(root)
    return root


def test_zoos_are_links_and_what_differs_is_said(server: Hosted, tmp_path: Path) -> None:
    root = collection(tmp_path / "both")
    ckptzoo.push_collection(root, REPO, endpoint=server.url, token=server.tokens["write"])
    browser, address = Browser(server), f"/datasets/{REPO}"
    page = browser.get(address).text
    assert page.count(f'href="{address}/tree/main/w') == 3 and "Not as the collection says" not in page
    assert f"ckptzoo pull {REPO} -o both" in page and "ckptzoo contribute" not in page
    assert "3 zoos" in browser.get("/").text
    inside = browser.get(f"{address}/tree/main/w7").text
    assert f"hf://datasets/{REPO}/w7" in inside and "mlp-4-7-3" in inside
    shutil.copytree(root / "w5", tmp_path / "more")
    with ckptzoo.append(root / "w7") as writer:
        writer.add(weights_of(1, 1, arch=ckptzoo.archs.architecture("mlp-4-7-3")), [{"id": "late"}])
    api = server.api()
    old = api.list_repo_files(REPO, repo_type="dataset")
    changes = [CommitOperationDelete(name) for name in old if name.startswith("w9/")]
    for folder, place in ((root / "w7", "w7"), (tmp_path / "more", "more")):
        files = [path for path in folder.rglob("*") if path.is_file()]
        changes += [CommitOperationAdd(f"{place}/{path.relative_to(folder)}", path.read_bytes()) for path in files]
    api.create_commit(REPO, changes, commit_message="by hand", repo_type="dataset")
    page = browser.get(address).text
    for state, folder in (("changed", "w7"), ("missing", "w9"), ("not in it", "more")):
        assert f"{folder}</a> <span>{state}" in page or f"{folder} <span>{state}" in page, state
    assert f'href="{address}/tree/main/w9"' not in page and "ckptzoo card" not in page
    ckptzoo.hub.rewrite(REPO, endpoint=server.url, token=server.tokens["write"])
    page = browser.get(address).text
    assert "Not as the collection says" not in page and page.count(f'href="{address}/tree/main/') >= 3


HOSTILE = [
    b"", b"{", b"[]", b"null", b'{"zoos": 3}', b'{"zoos": [3]}', b'{"zoos": [{}]}', b"[" * 100_000,
    json.dumps({"zoos": [{"folder": "a", "checkpoints": True}]}).encode(),
    json.dumps({"zoos": [{"folder": "../a", "checkpoints": 1}]}).encode(),
    json.dumps({"zoos": [{"folder": "a/b", "checkpoints": 1}]}).encode(),
    json.dumps({"zoos": [{"folder": "a", "checkpoints": 1}] * 2}).encode(),
    json.dumps({"zoos": [{"folder": "javascript:alert(1)", "checkpoints": 1}]}).encode(),
    json.dumps({"zoos": [{"folder": "<script>alert(1)</script>", "checkpoints": 1}]}).encode(),
    json.dumps({"zoos": [{"folder": "https://user:secret@host", "checkpoints": 1}]}).encode(),
    json.dumps({"zoos": [{"folder": str(at), "checkpoints": 10**30} for at in range(5000)]}).encode(),
    json.dumps({"zoos": [{"folder": "x" * 5000, "checkpoints": -1}]}).encode(),
    b" " * (2**22 + 1),
]  # fmt: skip


def test_documents_of_anybody_do_no_harm(server: Hosted) -> None:
    api, browser = server.api(), Browser(server)
    api.create_repo(REPO, repo_type="dataset")
    for document in HOSTILE:
        operation = [CommitOperationAdd("collection.json", document)]
        api.create_commit(REPO, operation, commit_message="x", repo_type="dataset")
        answer = browser.get(f"/datasets/{REPO}")
        assert answer.status == 200 and len(answer.text) < 40_000, document[:100]
        assert "<script" not in answer.text and "javascript:alert(1)</a>" not in answer.text
        assert "cannot be read" in answer.text or "not in the repository" in answer.text
        assert browser.get("/").status == 200
