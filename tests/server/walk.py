"""One walk through the client library, for a process of its own: HF_ENDPOINT and HF_TOKEN say where and who.

Needs huggingface_hub and nothing else, so that any version of it can be asked.
"""

import hashlib
import tempfile
from pathlib import Path

import huggingface_hub
from huggingface_hub import CommitOperationAdd, HfApi, HfFileSystem, hf_hub_download, snapshot_download

REPO = "lab/walk"
SMALL, LARGE = b"---\nlicense: mit\n---\n# A zoo\n", hashlib.sha256(b"seed").digest() * 8000
FILES = {"README.md": SMALL, "parts/0/raw.safetensors": LARGE, "parts/0/index.parquet": LARGE[:999]}


def walk() -> None:
    api = HfApi()
    api.create_repo(REPO, repo_type="dataset")
    with tempfile.TemporaryDirectory() as folder:
        for name, data in FILES.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        first = api.upload_folder(repo_id=REPO, repo_type="dataset", folder_path=folder).oid
    down = Path(snapshot_download(REPO, repo_type="dataset", revision=first))
    assert {name: (down / name).read_bytes() for name in FILES} == FILES

    added = [CommitOperationAdd("parts/1/raw.safetensors", LARGE[::-1])]
    pull = api.create_commit(
        REPO, added, commit_message="A part", repo_type="dataset", create_pr=True, parent_commit=first
    )
    assert pull.pr_revision == "refs/pr/1" and pull.pr_num == 1
    found = hf_hub_download(REPO, "parts/1/raw.safetensors", repo_type="dataset", revision="refs/pr/1")
    assert Path(found).read_bytes() == LARGE[::-1]
    api.merge_pull_request(REPO, 1, repo_type="dataset")
    assert api.get_discussion_details(REPO, 1, repo_type="dataset").status == "merged"
    api.create_tag(REPO, tag="v1", repo_type="dataset")
    api.delete_file("parts/0/raw.safetensors", REPO, repo_type="dataset")

    files = HfFileSystem()
    root = f"datasets/{REPO}@v1"
    assert sorted(files.find(root)) == sorted(
        f"{root}/{name}" for name in [".gitattributes", *FILES, "parts/1/raw.safetensors"]
    )
    assert files.cat_file(f"{root}/parts/0/raw.safetensors", start=1000, end=70000) == LARGE[1000:70000]
    with files.open(f"{root}/parts/1/raw.safetensors", block_size=4096) as file:
        file.seek(-100, 2)
        assert file.read() == LARGE[::-1][-100:]
    with files.open(f"datasets/{REPO}/notes.txt", "wb") as file:
        file.write(b"a note")
    assert files.read_bytes(f"datasets/{REPO}/notes.txt") == b"a note"
    files.rm(f"datasets/{REPO}/notes.txt")
    assert not files.exists(f"datasets/{REPO}/notes.txt", refresh=True)
    api.delete_repo(REPO, repo_type="dataset")
    print(f"walked with {huggingface_hub.__version__}")


if __name__ == "__main__":
    walk()
