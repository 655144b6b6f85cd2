"""``ckptzoo cache``: what it lists and what it removes, and that nothing else goes."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer

from ckptzoo.cli.cache import cache
from ckptzoo.remote.cache import Cache, RevisionRecord, blobs_of
from ckptzoo.remote.stores import FileEntry
from tests.cli.conftest import Cli

DAY = 86_400
HUB = "hf://datasets/lab/zoo"


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The command alone in a program, and a cache of three zoos: 3 blobs of 1 kB, 2 of 2 kB, and none."""
    app = typer.Typer()
    app.add_typer(cache)
    app.callback()(lambda: None)
    monkeypatch.setattr("ckptzoo.cli.app.app", app)
    root = tmp_path / "cache"
    monkeypatch.setenv("CKPTZOO_CACHE", str(root))
    monkeypatch.setenv("CKPTZOO_CACHE_SIZE", "1MB")
    fill(root, HUB, [1000, 1000, 1000], day=3)
    fill(root, f"{HUB} at http://lab:8000", [2000, 2000], day=5)
    fill(root, "https://host/zoos/old", [], day=1)
    return root


def fill(root: Path, address: str, sizes: Sequence[int], *, day: int) -> None:
    """A zoo in the cache whose blobs were last used on the days from this one on."""
    made = Cache(root, address, limit=10**6)
    made.remember("main", RevisionRecord("c0ffee" * 6 + "beef", {"zoo.json": FileEntry("zoo.json", 3, None)}))
    for number, nbytes in enumerate(sizes):
        data = hashlib.shake_128(f"{address}{number}".encode()).digest(nbytes)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        made.write(digest, data)
        used = (day + number) * DAY
        path = next(blob.path for blob in blobs_of(made.folder) if digest[7:] in blob.path.name)
        os.utime(path, (used, used))


def left(root: Path) -> list[int]:
    return sorted(blob.nbytes for blob in blobs_of(root))


def test_ls_lists_every_zoo_the_one_used_last_first(cli: Cli, command: Path) -> None:
    ended = cli("cache", "ls")
    assert ended.code == 0 and ended.err == ""
    head, *rows, total = ended.out.splitlines()
    assert head.split() == ["zoo", "size", "last", "used", "(UTC)", "revisions"]
    assert [row.split("  ")[0] for row in rows] == [f"{HUB} at http://lab:8000", HUB, "https://host/zoos/old"]
    assert rows[0].split()[-4:] == ["kB", "1970-01-07", "00:00", "c0ffeec0"]
    assert rows[1].split()[-4:] == ["kB", "1970-01-06", "00:00", "c0ffeec0"]
    assert "never" in rows[2]
    assert total == f"{command}: 3 zoos, 7 kB of at most 1 MB."


def test_ls_as_json(cli: Cli, command: Path) -> None:
    found = cli("cache", "ls", "--json").json
    assert (found["folder"], found["nbytes"], found["limit"]) == (str(command), 7000, 10**6)
    first, second, third = found["zoos"]
    assert first["zoo"] == f"{HUB} at http://lab:8000" and third["used"] is None
    assert (second["files"], second["nbytes"], second["gone"]) == (3, 3000, False)
    assert second["used"] == "1970-01-06T00:00:00+00:00"
    assert second["revisions"] == [{"revision": "c0ffee" * 6 + "beef", "asked": "main"}]


def test_a_cache_that_is_not_there(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CKPTZOO_CACHE", str(tmp_path / "none"))
    assert cli("cache", "ls").out == f"{tmp_path / 'none'}: 0 zoos, 0 B of at most 1 MB.\n"
    assert cli("cache", "prune", "--to", "1GB").out.endswith("0 files with 0 B removed.\n")
    assert not (tmp_path / "none").exists()


def test_a_zoo_that_is_gone_is_marked_and_kept(cli: Cli, command: Path) -> None:
    Cache(command, HUB, limit=10**6).mark_gone()
    assert f"{HUB} (not found when last opened; kept)" in cli("cache", "ls").out
    assert cli("cache", "prune", "--to", "0B").code == 0
    assert left(command) == [1000, 1000, 1000]
    assert "3 files with 3 kB removed" in cli("cache", "prune", "--zoo", HUB).out
    assert left(command) == []


@pytest.mark.parametrize(
    ("arguments", "files", "nbytes", "rest"),
    [
        (("--to", "5kB"), 2, 2000, [1000, 2000, 2000]),
        (("--to", "0B"), 5, 7000, []),
        (("--to", "1GiB"), 0, 0, [1000, 1000, 1000, 2000, 2000]),
        (("--zoo", HUB + " at http://lab:8000"), 2, 4000, [1000, 1000, 1000]),
        (("--zoo", "https://host/zoos/old/"), 0, 0, [1000, 1000, 1000, 2000, 2000]),
        (("--zoo", HUB + " at http://lab:8000", "--to", "1500"), 4, 6000, [1000]),
    ],
)
def test_prune_removes_what_a_dry_run_says(
    cli: Cli, command: Path, arguments: tuple[str, ...], files: int, nbytes: int, rest: list[int]
) -> None:
    before = left(command)
    dry = cli("cache", "prune", *arguments, "--dry-run", "--json").json
    assert dry == {"files": files, "folder": str(command), "nbytes": nbytes, "removed": False}
    assert left(command) == before
    assert cli("cache", "prune", *arguments, "--dry-run").out.endswith(" would be removed.\n")
    done = cli("cache", "prune", *arguments, "--json").json
    assert done == {**dry, "removed": True} and left(command) == rest


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "expected --to SIZE or --zoo ADDRESS, got neither"),
        (("--to", "much"), "--to: size: expected one such as 20GB"),
        (("--zoo", "lab/zoo"), "expected one zoo, got 2"),
        (("--zoo", "lab/zoos"), "zoo 'lab/zoos'"),
    ],
)
def test_prune_says_what_is_wrong(cli: Cli, command: Path, arguments: tuple[str, ...], said: str) -> None:
    ended = cli("cache", "prune", *arguments)
    assert ended.code == 2 and said in ended.line and len(left(command)) == 5
