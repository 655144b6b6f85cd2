"""The unmodified client library, call by call."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ckptzoo.hub.client import Client
from ckptzoo.remote.address import HubAddress
from ckptzoo.remote.hub_store import HubStore
from ckptzoo.remote.retry import RetryPolicy
from ckptzoo.server.store import accounts
from ckptzoo.server.store.audit import OPERATOR
from tests.support.hosted import SMALL, ZOO, Hosted, hosted

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning", "ignore:Hidden comments:UserWarning")
SET = {"repo_id": ZOO, "repo_type": "dataset"}


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def put(hosted: Hosted, files: dict[str, bytes], **options: object) -> str:
    """Commit files; returns the commit."""
    operations = [CommitOperationAdd(path, data) for path, data in files.items()]
    commit = hosted.api().create_commit(**SET, operations=operations, commit_message="some files", **options)
    return commit.oid


def get(hosted: Hosted, path: str, role: str | None = "write", **options: object) -> bytes:
    return Path(hosted.api(role).hf_hub_download(**SET, filename=path, **options)).read_bytes()


def test_repositories_are_made_listed_moved_hidden_and_removed(server: Hosted) -> None:
    api = server.api()
    assert api.whoami()["name"] == "lab"
    assert str(api.create_repo(ZOO, repo_type="dataset")).endswith("/datasets/lab/zoo")
    assert api.create_repo("mine", repo_type="dataset").repo_id == "lab/mine"
    assert api.create_repo(ZOO, repo_type="model").repo_id == ZOO
    assert api.create_repo(ZOO, repo_type="dataset", exist_ok=True).repo_id == ZOO
    with pytest.raises(HfHubHTTPError, match="already created"):
        api.create_repo(ZOO, repo_type="dataset")
    assert [found.id for found in api.list_datasets()] == ["lab/mine", "lab/zoo"]
    assert [found.id for found in api.list_datasets(search="ZO", limit=1)] == ["lab/zoo"]
    api.move_repo("lab/mine", "lab/yours", repo_type="dataset")
    assert not api.repo_exists("lab/mine", repo_type="dataset")
    api.update_repo_settings("lab/yours", repo_type="dataset", private=True)
    assert api.dataset_info("lab/yours").private
    assert [found.id for found in server.api(None).list_datasets()] == [ZOO]
    api.delete_repo("lab/yours", repo_type="dataset")
    with pytest.raises(RepositoryNotFoundError):
        api.dataset_info("lab/yours")


def test_files_small_large_and_in_parts_come_back(zoo: Hosted) -> None:
    files = {
        "README.md": b"---\nlicense: mit\ntags: [ckptzoo]\n---\n# hello\n",
        "weights/raw-00.safetensors": noise(1000),
        "weights/raw-01.safetensors": noise(5 * 2**16 + 17, 1),
        "empty": b"",
        "with space/\N{GREEK SMALL LETTER ALPHA}+%20#?.txt": "\N{SNOWMAN}".encode(),
    }
    oid = put(zoo, files)
    assert {path: get(zoo, path, None) for path in files} == files
    assert (
        zoo.request_log.count("part") == 6
        and zoo.request_log.count("join") == 1
        and zoo.request_log.count("upload") == 1
    )
    assert [(found.repository, found.oid) for found in zoo.request_log.acknowledged] == [(f"datasets/{ZOO}", oid)]
    info = zoo.api().dataset_info(ZOO, files_metadata=True)
    assert info.sha == oid and info.tags == ["ckptzoo", "license:mit"]
    assert info.siblings is not None
    sizes = {found.rfilename: found.size for found in info.siblings}
    assert sizes.pop(".gitattributes") and sizes == {path: len(data) for path, data in files.items()}


def test_files_too_many_for_one_answer_are_listed_by_pages(tmp_path: Path) -> None:
    files = {f"{name}/{at:03}.txt": b"x" for name in "ab" for at in range(60)}
    with hosted(tmp_path / "served", limits=replace(SMALL, listed_bytes=5000)) as server:
        server.api().create_repo(ZOO, repo_type="dataset")
        oid = put(server, files)
        info = server.api(None).dataset_info(ZOO, files_metadata=True)
        assert info.siblings is None and info.sha == oid
        snapshot = Path(server.api(None).snapshot_download(**SET))
        assert {path: (snapshot / path).read_bytes() for path in files} == files
        expected = {".gitattributes", *files}
        assert Client(server.url).files(ZOO).keys() == expected
        opened = HubStore.opened(HubAddress(ZOO), retry_policy=RetryPolicy(), endpoint=server.url)
        assert opened.entries.keys() == expected - {".gitattributes"}


def test_repositories_are_found_by_the_tags_of_their_cards(zoo: Hosted) -> None:
    put(zoo, {"README.md": b"---\ntags: [ckptzoo, arch:resnet18]\nlanguage: [en, de]\n---\n"})
    zoo.api().create_repo("lab/other", repo_type="dataset")
    for tags in (["ckptzoo"], ["arch:resnet18", "language:de"]):
        assert [found.id for found in zoo.api(None).list_datasets(filter=tags)] == [ZOO]
    assert list(zoo.api(None).list_datasets(filter=["ckptzoo", "arch:mlp"])) == []


def test_what_is_there_is_not_sent_again(zoo: Hosted) -> None:
    data = noise(3000)
    put(zoo, {"a.safetensors": data})
    put(zoo, {"b.safetensors": data})
    assert zoo.request_log.count("upload") == 1
    before = zoo.api().dataset_info(ZOO).sha
    put(zoo, {"b.safetensors": data})
    assert zoo.api().dataset_info(ZOO).sha == before and len(zoo.request_log.acknowledged) == 2


def test_ids_are_those_of_git(zoo: Hosted) -> None:
    put(zoo, {"plain.txt": b"hello\n", "w.safetensors": noise(10)})
    plain, large = zoo.api().get_paths_info(**SET, paths=["plain.txt", "w.safetensors", "missing"])
    assert plain.blob_id == hashlib.sha1(b"blob 6\0hello\n").hexdigest() == "ce013625030ba8dba906f756967f9e9ca394464a"
    assert large.lfs is not None and large.lfs.sha256 == hashlib.sha256(noise(10)).hexdigest()


def test_commits_add_copy_and_delete(zoo: Hosted) -> None:
    put(zoo, {"a/1.txt": b"1", "a/2.txt": b"2", "b/3.safetensors": noise(30), "c.txt": b"c"})
    operations = [
        CommitOperationDelete("a/", is_folder=True),
        CommitOperationDelete("c.txt"),
        CommitOperationCopy("b/3.safetensors", "d/4.safetensors"),
        CommitOperationAdd("c.txt/now-a-folder.txt", b"f"),
    ]
    zoo.api().create_commit(**SET, operations=operations, commit_message="change")
    found = sorted(zoo.api().list_repo_files(**SET))
    assert found == [".gitattributes", "b/3.safetensors", "c.txt/now-a-folder.txt", "d/4.safetensors"]
    assert get(zoo, "d/4.safetensors") == noise(30)
    with pytest.raises(EntryNotFoundError):
        zoo.api().delete_file("a/1.txt", **SET)
    with pytest.raises(HfHubHTTPError, match="got both"):
        put(zoo, {"b": b"a file where a folder is"})


def test_a_lost_race_is_412(zoo: Hosted) -> None:
    first = put(zoo, {"a.txt": b"1"})
    second = put(zoo, {"a.txt": b"2"}, parent_commit=first)
    with pytest.raises(HfHubHTTPError) as error:
        put(zoo, {"a.txt": b"3"}, parent_commit=first)
    assert error.value.response.status_code == 412
    assert zoo.api().dataset_info(ZOO).sha == second and get(zoo, "a.txt") == b"2"
    assert get(zoo, "a.txt", revision=first) == b"1"


def test_branches_tags_commits_and_squash(zoo: Hosted) -> None:
    api, first = zoo.api(), put(zoo, {"a.txt": b"1"})
    api.create_branch(**SET, branch="try/this")
    api.create_tag(**SET, tag="v1", tag_message="the first")
    put(zoo, {"a.txt": b"2"}, revision="try/this")
    assert [get(zoo, "a.txt", revision=name) for name in ("main", "v1", "try/this")] == [b"1", b"1", b"2"]
    refs = api.list_repo_refs(**SET)
    assert {found.name: found.target_commit == first for found in refs.branches} == {"main": True, "try/this": False}
    assert [found.ref for found in refs.tags] == ["refs/tags/v1"]
    with pytest.raises(HfHubHTTPError, match="already exists"):
        api.create_tag(**SET, tag="v1")
    with pytest.raises(RevisionNotFoundError):
        put(zoo, {"a.txt": b"3"}, revision="v1")
    titles = [found.title for found in api.list_repo_commits(**SET, revision="try/this")]
    assert titles == ["some files", "some files", "initial commit"]
    api.delete_tag(**SET, tag="v1")
    api.delete_branch(**SET, branch="try/this")
    api.super_squash_history(**SET, commit_message="one")
    assert [found.title for found in api.list_repo_commits(**SET)] == ["one"]
    assert get(zoo, "a.txt") == b"1"
    for gone in ("v1", "try/this", first):
        with pytest.raises(RevisionNotFoundError):
            api.list_repo_tree(**SET, revision=gone).__next__()


def test_history_has_pages(zoo: Hosted) -> None:
    for number in range(60):
        with zoo.service.database.writing() as connection:
            from ckptzoo.server.store.commits import MAIN, History

            history = History(connection, 1)
            head = history.resolve(MAIN)
            history.point(MAIN, history.add(head.tree, (head.oid,), author="lab", title=f"{number}"))
    titles = [found.title for found in zoo.api().list_repo_commits(**SET)]
    assert titles == [*map(str, range(59, -1, -1)), "initial commit"]


def test_trees_have_pages_and_last_commits(zoo: Hosted) -> None:
    names = [f"parts/{at:04d}/raw.txt" for at in range(70)] + ["parts.txt", "parts-a/x.txt"]
    first = put(zoo, {name: name.encode() for name in names})
    second = put(zoo, {"parts/0003/raw.txt": b"changed"})
    found = {entry.path for entry in zoo.api().list_repo_tree(**SET, recursive=True)}
    folders = {"parts", "parts-a", *(name.rsplit("/", 1)[0] for name in names[:70])}
    assert found == {*names, *folders, ".gitattributes"}
    assert zoo.request_log.count("tree") == 3
    below = list(zoo.api().list_repo_tree(**SET, path_in_repo="parts/0003", expand=True))
    assert [(entry.path, entry.last_commit["oid"]) for entry in below] == [("parts/0003/raw.txt", second)]
    above = zoo.api().list_repo_tree(**SET, expand=True)
    assert {entry.path: entry.last_commit["oid"] for entry in above if entry.path.startswith("parts")} == {
        "parts": second,
        "parts-a": first,
        "parts.txt": first,
    }
    with pytest.raises(EntryNotFoundError):
        list(zoo.api().list_repo_tree(**SET, path_in_repo="nothing"))


def test_folders_go_up_and_come_down(zoo: Hosted, tmp_path: Path) -> None:
    files = {"zoo.json": b"{}", "parts/0/raw.safetensors": noise(100), "parts/1/raw.safetensors": noise(70000, 1)}
    for name, data in files.items():
        path = tmp_path / "up" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    zoo.api().upload_folder(**SET, folder_path=tmp_path / "up", delete_patterns="*.old")
    down = Path(
        zoo.api(None).snapshot_download(**SET, local_dir=tmp_path / "down", allow_patterns=["parts/*", "zoo.json"])
    )
    assert {name: (down / name).read_bytes() for name in files} == files


def test_a_pull_request_from_a_stranger_is_merged(zoo: Hosted) -> None:
    put(zoo, {"a.txt": b"1", "b.txt": b"1"})
    stranger = zoo.api("contribute")
    with pytest.raises(HfHubHTTPError, match="may write"):
        stranger.upload_file(**SET, path_or_fileobj=b"x", path_in_repo="x.txt")
    proposal = stranger.create_commit(
        **SET,
        operations=[CommitOperationAdd("new.safetensors", noise(100)), CommitOperationAdd("b.txt", b"2")],
        commit_message="A part",
        commit_description="Two checkpoints.",
        create_pr=True,
    )
    assert proposal.pr_num == 1 and proposal.pr_revision == "refs/pr/1"
    stranger.upload_file(**SET, path_or_fileobj=b"more", path_in_repo="c.txt", revision="refs/pr/1")
    stranger.comment_discussion(**SET, discussion_num=1, comment="Please look.")
    assert get(zoo, "new.safetensors", revision="refs/pr/1") == noise(100)
    put(zoo, {"a.txt": b"2"})
    found = zoo.api().get_discussion_details(**SET, discussion_num=1)
    assert (found.status, found.target_branch, found.conflicting_files) == ("open", "refs/heads/main", [])
    assert found.diff is not None and "+2" in found.diff and "oid sha256:" in found.diff
    assert [event.type for event in found.events] == ["comment", "commit", "commit", "comment"]
    with pytest.raises(HfHubHTTPError, match="may write"):
        stranger.merge_pull_request(**SET, discussion_num=1)
    zoo.api().merge_pull_request(**SET, discussion_num=1, comment="Thanks.")
    names = ("a.txt", "b.txt", "c.txt", "new.safetensors")
    assert [get(zoo, name) for name in names] == [b"2", b"2", b"more", noise(100)]
    merged = zoo.api().get_discussion_details(**SET, discussion_num=1)
    assert merged.status == "merged" and merged.merge_commit_oid == zoo.api().dataset_info(ZOO).sha
    refs = zoo.api().list_repo_refs(**SET, include_pull_requests=True).pull_requests
    assert refs is not None and [found.ref for found in refs] == ["refs/pr/1"]
    with pytest.raises(HfHubHTTPError, match="merged"):
        put(zoo, {"late.txt": b""}, revision="refs/pr/1")


def test_a_conflict_is_reported_and_not_merged(zoo: Hosted) -> None:
    base = put(zoo, {"a.txt": b"1"})
    put(zoo, {"a.txt": b"theirs"}, create_pr=True, parent_commit=base)
    ours = put(zoo, {"a.txt": b"ours"})
    assert zoo.api().get_discussion_details(**SET, discussion_num=1).conflicting_files == ["a.txt"]
    with pytest.raises(HfHubHTTPError, match=r"conflicts in a\.txt"):
        zoo.api().merge_pull_request(**SET, discussion_num=1)
    assert zoo.api().dataset_info(ZOO).sha == ours


def test_discussions(zoo: Hosted) -> None:
    api, stranger = zoo.api(), zoo.api("contribute")
    draft = stranger.create_pull_request(**SET, title="A draft", description="To come.")
    assert draft.status == "draft" and draft.num == 1
    assert stranger.create_discussion(**SET, title="A question").num == 2
    assert stranger.rename_discussion(**SET, discussion_num=2, new_title="An answer").new_title == "An answer"
    comment = stranger.comment_discussion(**SET, discussion_num=2, comment="one")
    edited = stranger.edit_discussion_comment(**SET, discussion_num=2, comment_id=comment.id, new_content="two")
    assert edited.content == "two" and edited.edited
    with pytest.raises(HfHubHTTPError, match="stranger"):
        api.edit_discussion_comment(**SET, discussion_num=2, comment_id=comment.id, new_content="three")
    other = stranger.comment_discussion(**SET, discussion_num=2, comment="other")
    assert api.hide_discussion_comment(**SET, discussion_num=2, comment_id=other.id).hidden
    assert stranger.hide_discussion_comment(**SET, discussion_num=2, comment_id=comment.id).hidden
    assert api.change_discussion_status(**SET, discussion_num=2, new_status="closed").new_status == "closed"
    with pytest.raises(HfHubHTTPError, match="draft"):
        api.merge_pull_request(**SET, discussion_num=1)
    stranger.upload_file(**SET, path_or_fileobj=b"1", path_in_repo="a.txt", revision=draft.git_reference)
    stranger.change_discussion_status(**SET, discussion_num=1, new_status="open")
    api.merge_pull_request(**SET, discussion_num=1)
    found = {found.num: (found.title, found.status) for found in api.get_repo_discussions(**SET)}
    assert found == {1: ("A draft", "merged"), 2: ("An answer", "closed")}
    open_pulls = api.get_repo_discussions(**SET, discussion_type="pull_request", discussion_status="open")
    assert list(open_pulls) == []


def test_access(zoo: Hosted) -> None:
    put(zoo, {"a.txt": b"1"})
    zoo.api().update_repo_settings(ZOO, repo_type="dataset", private=True)
    with pytest.raises(RepositoryNotFoundError):
        zoo.api("read").auth_check(**SET)
    with zoo.service.database.writing() as connection:
        for account in ("reader", "stranger"):
            role = "read" if account == "reader" else "contribute"
            accounts.set_grant(connection, account, "lab", role, actor=OPERATOR)
    assert get(zoo, "a.txt", "read") == b"1"
    zoo.api("read").auth_check(**SET)
    zoo.api().auth_check(**SET, write=True)
    with pytest.raises(RepositoryNotFoundError):
        zoo.api(None).auth_check(**SET)
    with pytest.raises(HfHubHTTPError, match="may write"):
        zoo.api("contribute").auth_check(**SET, write=True)
    with pytest.raises(HfHubHTTPError, match="may contribute"):
        zoo.api("read").create_discussion(**SET, title="Hello")
    zoo.tokens["forged"] = "hf_" + "0" * 40
    with pytest.raises(HfHubHTTPError, match="Invalid"):
        zoo.api("forged").whoami()


def test_a_bad_card_is_refused(zoo: Hosted) -> None:
    for text in ("---\na: [\n---\n", "---\n- a\n---\n", "---\na: &x [1]\nb: [*x, *x]\n---\n"):
        with pytest.raises(ValueError, match="Invalid metadata"):
            zoo.api().upload_file(**SET, path_or_fileobj=text.encode(), path_in_repo="README.md")


def test_content_of_another_repository_has_to_be_sent(zoo: Hosted) -> None:
    """Whoever knows only the digest of a private file does not get it."""
    data = noise(500)
    put(zoo, {"secret.safetensors": data})
    zoo.api().create_repo("lab/other", repo_type="dataset")
    for _ in range(2):
        zoo.api().upload_file(
            repo_id="lab/other", repo_type="dataset", path_or_fileobj=data, path_in_repo="x.safetensors"
        )
    assert zoo.request_log.count("upload") == 2


def test_large_files_come_from_another_origin(zoo: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the hub: the address and the size are read off the redirect, and the token stays at home."""
    files = {"a.safetensors": noise(5000), "b.txt": b"small"}
    put(zoo, files)
    monkeypatch.setattr(zoo.service, "blobs_url", zoo.url.replace("127.0.0.1", "localhost"))
    assert {path: get(zoo, path) for path in files} == files
    found = [entry.status for entry in zoo.request_log.entries if entry.operation in ("resolve", "blob")]
    assert found == [302, 200, 200, 200]
