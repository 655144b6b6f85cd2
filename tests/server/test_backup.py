"""Backups of a folder that is served and written to: complete, repeatable, whole after a kill, and checked."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from ckptzoo.errors import ZooError
from ckptzoo.server.store.backup import DATABASE, back_up, problems, restore
from tests.server.test_command import run_serve
from tests.support.hosted import ZOO, Hosted, ask, hosted, push
from tests.support.server_process import PlainClient, server_process, token_for

FILES = {"a.safetensors": b"2" * 70_000, "b.txt": b"text"}


def test_what_was_acknowledged_before_a_backup_under_load_is_in_it(tmp_path: Path) -> None:
    root, known = tmp_path / "served", dict[str, bytes]()
    token = token_for(root)
    with server_process(root) as (_, url):
        clients = [PlainClient(url, token, f"c{at}", known) for at in range(3)]
        body = json.dumps({"name": "zoo", "organization": "lab", "type": "dataset"}).encode()
        assert clients[0].ask("POST", "/api/repos/create", body)[0] == 200
        threads = [threading.Thread(target=client.push_until_it_ends, daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        taken: list[tuple[Path, dict[str, bytes]]] = []
        for at in range(3):
            while len(known) < 4 * (at + 1):
                time.sleep(0.01)
            acknowledged = dict(known)
            back_up(root, tmp_path / f"backup-{at % 2}")  # the third goes on with the first
            taken = [item for item in taken if item[0].name != f"backup-{at % 2}"]
            taken.append((tmp_path / f"backup-{at % 2}", acknowledged))
    for thread in threads:
        thread.join()
    for backup, acknowledged in taken:
        again = tmp_path / f"again-{backup.name}"
        restore(backup, again)
        assert list(problems(again)) == [] == list(problems(backup))
        with server_process(again) as (_, url):
            reader = PlainClient(url, token, "reader", known)
            assert len(acknowledged) >= 4
            for path, data in acknowledged.items():
                assert reader.ask("GET", f"/datasets/{ZOO}/resolve/main/{path}") == (200, data)
            reader.push(0)


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """A folder with a repository, which is not served now."""
    with hosted(tmp_path / "served") as server:
        server.api().create_repo(ZOO, repo_type="dataset")
        push(server, FILES)
    return tmp_path / "served"


def read(server: Hosted, path: str) -> bytes:
    answer = ask(server, "GET", f"/datasets/{ZOO}/resolve/main/{path}")
    return ask(server, "GET", answer.headers["location"], role=None).body if answer.status == 302 else answer.body


def test_a_copy_on_another_file_system_and_a_repeated_backup(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    first = back_up(served, tmp_path / "backup")
    assert first.added == first.blobs > 2 and back_up(served, tmp_path / "backup").added == 0
    assert (tmp_path / "backup" / DATABASE).stat().st_mode & 0o077 == 0
    restore(tmp_path / "backup", tmp_path / "again")
    with hosted(tmp_path / "again") as server:
        assert {path: read(server, path) for path in FILES} == FILES


def test_what_is_wrong_is_named(served: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with pytest.raises(ZooError, match=r"hub\.sqlite: expected a file, got none"):
        back_up(tmp_path / "none", backup)
    back_up(served, backup)
    with pytest.raises(ZooError, match="expected a new one, got a server's folder"):
        restore(backup, served)
    (large,) = (path for path in backup.glob("blobs/*/*") if path.stat().st_size == 70_000)
    small = next(path for path in backup.glob("blobs/*/*") if path != large)
    data = large.read_bytes()
    large.unlink()  # it may be a link to the server's own
    large.write_bytes(data[:-1] + b"3")
    small.unlink()
    assert sorted(problem.location for problem in problems(backup)) == sorted(map(str, (large, small)))
    assert list(problems(served)) == []
    done = run_serve("restore", str(backup), "--root", str(tmp_path / "torn"))
    assert done.returncode != 0 and "blob: expected a file, got none" in " ".join(done.stderr.split())
    small.write_bytes(b"wrong")
    done = run_serve("restore", str(backup), "--root", str(tmp_path / "wrong"), "--verify", "--json")
    assert done.returncode == 1 and len(json.loads(done.stdout)["problems"]) == 2
    with closing(sqlite3.connect(backup / DATABASE)) as connection:
        connection.execute("PRAGMA user_version = 1")
    with pytest.raises(ZooError, match=r"tables: expected version 4, got 1\. Start ckptzoo serve once"):
        restore(backup, tmp_path / "old")
    (backup / DATABASE).write_bytes(b"no database" * 100)
    with pytest.raises(ZooError, match="database: expected one of SQLite"):
        restore(backup, tmp_path / "none")


KILLED = """
import os, signal, sys
from pathlib import Path
from ckptzoo.server.store import backup
replace, left = Path.replace, [int(sys.argv[3])]
def replaced(self, target):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return replace(self, target)
Path.replace = replaced
getattr(backup, sys.argv[4])(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("step", range(4))
def test_killed_between_any_two_files(served: Path, tmp_path: Path, step: int) -> None:
    def killed(source: Path, target: Path, what: str) -> None:
        command = [sys.executable, "-c", KILLED, str(source), str(target), str(step), what]
        assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL

    killed(served, tmp_path / "backup", "back_up")
    assert not (tmp_path / "backup" / DATABASE).exists()
    back_up(served, tmp_path / "backup")
    killed(tmp_path / "backup", tmp_path / "again", "restore")
    restore(tmp_path / "backup", tmp_path / "again")
    assert list(problems(tmp_path / "again")) == []
    assert not list(tmp_path.rglob(".backup-*"))


@pytest.mark.parametrize(("limit", "name"), [(60_000, "could not be copied"), (500_000, "blobs/")])
@pytest.mark.sampled(2)
def test_a_full_disk_leaves_the_earlier_backup(served: Path, tmp_path: Path, limit: int, name: str) -> None:
    """The limit on the size of one file ends writes as a full disk does."""
    backup = tmp_path / "backup"
    back_up(served, backup)
    before = (backup / DATABASE).read_bytes()
    with hosted(served) as server:
        push(server, {"c.safetensors": b"3" * 1_000_000})
    command = f"""
import os, resource, sys
def refused(*_, **__):
    raise OSError(18, "Invalid cross-device link")
os.link = refused
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit},) * 2)
from ckptzoo.cli import main
sys.exit(main())
"""
    words = ["serve", "backup", "--root", str(served), "--to", str(backup)]
    done = subprocess.run([sys.executable, "-c", command, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 4 and str(backup) in done.stderr and name in done.stderr, done.stderr
    assert (backup / DATABASE).read_bytes() == before and not list(backup.rglob(".backup-*"))
    assert list(problems(backup)) == []
    back_up(served, backup)
    assert list(problems(backup)) == []


def test_the_commands(served: Path, tmp_path: Path) -> None:
    made = run_serve("backup", "--root", str(served), "--to", str(tmp_path / "backup"))
    assert made.returncode == 0 and "files" in made.stdout, made.stderr
    done = run_serve("restore", str(tmp_path / "backup"), "--root", str(tmp_path / "again"), "--verify")
    assert done.returncode == 0, done.stderr
    again = run_serve("restore", str(tmp_path / "backup"), "--root", str(tmp_path / "again"))
    assert again.returncode != 0 and "Restore into another folder" in " ".join(again.stderr.split())
