"""Ids, against git itself."""

import os
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ckptzoo.server.store.commits import MAIN, History
from ckptzoo.server.store.database import Database
from ckptzoo.server.store.git_objects import File, Node, Trees, object_id, pointer, tree_content, tree_nodes
from ckptzoo.server.store.repositories import create

FILES = {"a.b": b"1", "a/x": b"2", "a0": b"", "deep/er/file.txt": b"text\n", "\N{SNOWMAN}": bytes(range(256))}


def test_a_pointer_is_that_of_the_specification() -> None:
    digest = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
    expected = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize 12345\n"
    assert pointer(digest, 12345).decode() == expected


def test_known_ids() -> None:
    assert object_id("blob", b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert object_id("tree", tree_content({})) == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def test_folders_read_back_in_order() -> None:
    nodes = {"b": Node("1" * 40, False), "a": Node("2" * 40, True), "a.b": Node("3" * 40, False)}
    assert list(tree_nodes(tree_content(nodes)).items()) == [(name, nodes[name]) for name in ("a.b", "a", "b")]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_folders_and_commits_have_the_ids_that_git_gives_them(tmp_path: Path) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    stamp = f"{int(when.timestamp())} +0000"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "GIT_AUTHOR_DATE": stamp,
        "GIT_COMMITTER_DATE": stamp,
    }
    for role in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{role}_NAME": "lab", f"GIT_{role}_EMAIL": "lab@localhost"}

    def git(*arguments: str, text: str | None = None) -> str:
        command = ["git", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, input=text, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "--quiet")
    for name, data in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    git("add", *FILES)
    tree = git("write-tree")
    first = git("commit-tree", tree, text="one\n")
    second = git("commit-tree", tree, "-p", first, text="two\n\nwith more\n")

    database = Database(tmp_path / "db")
    with database.writing() as connection:
        trees = Trees(connection, 0)
        for data in FILES.values():
            trees.add_file(File.small(data))
        ours = trees.changed(None, {name: File.small(data).oid for name, data in FILES.items()})
        history = History(connection, create(connection, "dataset", "lab/zoo", private=False, author="lab").id)
        one = history.add(ours, (), author="lab", title="one", date=when)
        two = history.add(ours, (one,), author="lab", title="two", message="with more", date=when)
        history.point(MAIN, two)
    database.close()
    assert (ours, one, two) == (tree, first, second)
