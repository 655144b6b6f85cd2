"""What an operator is told of a server's folder: sound ones, and each thing that may be wrong."""

import json
import resource
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from ckptzoo.checks import NOTE, OK, PROBLEM, Check
from ckptzoo.server import doctor
from ckptzoo.server.doctor import examine
from ckptzoo.server.store import accounts, tokens
from ckptzoo.server.store.audit import OPERATOR
from ckptzoo.server.store.database import set_setting
from tests.server.test_command import run_serve
from tests.support.hosted import ZOO, hosted, push
from tests.support.server_process import server_process, token_for

FILES = {"a.safetensors": b"2" * 70_000, "b.txt": b"text"}


def examined(root: Path) -> dict[str, Check]:
    return {check.name: check for check in examine(root)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a repository, which nobody serves now."""
    with hosted(tmp_path / "served") as server:
        server.api().create_repo(ZOO, repo_type="dataset")
        push(server, FILES)
    return tmp_path / "served"


def test_a_sound_folder_that_is_served(tmp_path: Path) -> None:
    root = tmp_path / "served"
    token_for(root)
    with server_process(root) as (_, url):
        checks = examined(root)
        assert {check.outcome for check in checks.values()} <= {OK, NOTE}
        assert checks["server"].detail.startswith(f"answers at {url} in")
        done = run_serve("doctor", "--root", str(root))
        assert done.returncode == 0 and f"answers at {url}" in done.stdout
    assert examined(root)["server"].outcome == NOTE


def corrupt(root: Path) -> None:
    data = bytearray((root / "hub.sqlite").read_bytes())
    data[4096 * 3 : 4096 * 4] = b"\xff" * 4096
    (root / "hub.sqlite").write_bytes(data)


def execute(statement: str) -> Callable[[Path], None]:
    def run(root: Path) -> None:
        with closing(sqlite3.connect(root / "hub.sqlite")) as connection:
            connection.execute(statement)
            connection.commit()

    return run


def large(root: Path) -> Path:
    return next(path for path in root.glob("blobs/*/*") if path.stat().st_size == 70_000)


@pytest.mark.parametrize(
    ("harm", "name", "detail"),
    [
        (lambda root: large(root).unlink(), "blobs", "1 blob missing or of another size"),
        (lambda root: large(root).write_bytes(b"short"), "blobs", "1 blob missing or of another size"),
        (lambda root: (root / "hub.sqlite").chmod(0o644), "permissions", "hub.sqlite has mode 644"),
        (lambda root: (root / "blobs").chmod(0o755), "permissions", "blobs has mode 755"),
        (corrupt, "database", "served"),
        (lambda root: (root / "hub.sqlite").write_bytes(b"no database" * 1000), "database", "not a database"),
        (execute("INSERT INTO refs VALUES (99, 'refs/heads/main', '0')"), "database", "without the rows"),
        (execute("PRAGMA user_version = 2"), "tables", "expected version 4, got 2"),
        (execute("PRAGMA user_version = 9"), "tables", "expected version 4, got 9"),
        (lambda root: (root / "hub.sqlite").unlink(), "folder", "expected hub.sqlite, got none"),
    ],
)
@pytest.mark.sampled(2)
def test_what_is_wrong_is_a_problem(folder: Path, harm: Callable[[Path], object], name: str, detail: str) -> None:
    assert PROBLEM not in {check.outcome for check in examine(folder)}
    harm(folder)
    checks = examined(folder)
    found = checks[name]
    assert found.outcome == PROBLEM and found.step and (detail in found.detail or name == "database")
    done = run_serve("doctor", "--root", str(folder), "--json")
    assert done.returncode == 1
    assert vars(found) in json.loads(done.stdout)["checks"]


def test_what_an_operator_may_want_to_know(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "blobs/00").mkdir(exist_ok=True)
    (folder / "blobs/00" / ("0" * 64)).write_bytes(b"left over")
    with hosted(folder) as server, server.service.database.writing() as connection:
        accounts.add(connection, "institute", accounts.ORGANISATION, actor=OPERATOR)
        tokens.make_token(connection, "lab", "read", expires=timedelta(seconds=-1))
        set_setting(connection, doctor.LAST_BACKUP, "2026-01-01T00:00:00+00:00 /backups")
    checks = examined(folder)
    assert "1 blob that no file names, 9 B" in checks["blobs"].detail and "serve gc" in checks["blobs"].step
    assert "without an administrator: institute" in checks["accounts"].detail
    assert "1 expired" in checks["tokens"].detail and checks["tokens"].outcome == NOTE
    assert checks["backup"].outcome == NOTE and checks["backup"].detail.startswith("/backups, ")
    done = run_serve("backup", "--root", str(folder), "--to", str(folder.parent / "backup"))
    assert done.returncode == 0
    assert examined(folder)["backup"] == Check("backup", OK, f"{folder.parent / 'backup'}, today")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 10**12 - 10**9, 10**9))
    assert examined(folder)["disk"].outcome == PROBLEM
    monkeypatch.setattr(doctor, "file_system_of", lambda path: "nfs4")
    assert "SQLite's log" in examined(folder)["file system"].step
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        assert examined(folder)["open files"].outcome == NOTE
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_server_that_does_not_answer_where_clients_look(folder: Path) -> None:
    with hosted(folder) as server:
        with server.service.database.writing() as connection:
            set_setting(connection, "address", "http://127.0.0.1:9")
        found = examined(folder)["server"]
    assert found.outcome == PROBLEM and "does not answer at http://127.0.0.1:9" in found.detail
