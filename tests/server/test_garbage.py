"""What nothing names is removed, and nothing else: known answers, grace, and every interleaving with what clients do."""

import hashlib
import http.client
import json
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from ckptzoo.errors import ZooError
from ckptzoo.server.store import garbage
from ckptzoo.server.store.backup import back_up, problems
from ckptzoo.server.store.blobs import Blobs, locked
from ckptzoo.server.store.commits import History
from ckptzoo.server.store.database import Database
from ckptzoo.server.store.garbage import Collected, collect
from ckptzoo.server.store.git_objects import Trees
from ckptzoo.server.store.repositories import listed
from tests.server.test_command import run_serve
from tests.support.effort import ALL, examples
from tests.support.hosted import ZOO, Hosted, ask, hosted, push
from tests.support.server_process import PlainClient, server_process, token_for

NOW = timedelta(0)


def collected(server: Hosted, grace: timedelta = NOW, *, dry_run: bool = False) -> Collected:
    time.sleep(2 * garbage._TICK_SECONDS)  # so that nothing that was sent before is young
    return collect(server.root, server.service.database, grace=grace, dry_run=dry_run)


def unreadable(root: Path) -> list[str]:
    """What of all that every ref of every repository reaches cannot be read back; reads every byte."""
    found = [str(problem) for problem in problems(root)]
    database = Database(root / "hub.sqlite")
    with database.reading() as connection:
        for repository in listed(connection, "dataset"):
            history, trees = History(connection, repository.id), Trees(connection, repository.id)
            for name, oid in history.refs().items():
                for commit in history.log(oid, 10**6):
                    for path, node in trees.walk(commit.tree):
                        if node.folder:
                            continue
                        file = trees.file(node.oid)
                        blob = root / "blobs" / file.sha256[:2] / file.sha256
                        if not blob.is_file() or hashlib.sha256(blob.read_bytes()).hexdigest() != file.sha256:
                            found.append(f"{repository.name} {name} {commit.oid} {path}")
    database.close()
    return found


def counts(server: Hosted) -> dict[str, int]:
    with server.service.database.reading() as connection:
        tables = ("commits", "parents", "trees", "files", "contents")
        rows = {name: connection.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0] for name in tables}
    return {**rows, "blobs": len(list(server.root.glob("blobs/*/*")))}


def test_known_answers(zoo: Hosted) -> None:
    assert collected(zoo) == Collected(0, 0, 0, 0, 0, 0)
    push(zoo, {"a.txt": b"a", "x/y/b.safetensors": b"b" * 1000})
    kept = counts(zoo)
    # a repository that is removed: two commits, its folders, its files, one content, two blobs
    zoo.api().create_repo("lab/gone", repo_type="dataset")
    push(zoo, {"only.txt": b"here", "a.txt": b"a", "c.safetensors": b"c" * 2000}, "datasets/lab/gone")
    assert collected(zoo) == Collected(0, 0, 0, 0, 0, 0)
    zoo.api().delete_repo("lab/gone", repo_type="dataset")
    found = collected(zoo, dry_run=True)
    # the content went with its repository's rows; .gitattributes and a.txt are in the other one, and the first commit
    # is, too, where both were made within a second
    assert found == Collected(commits=found.commits, folders=1, files=2, contents=0, blobs=2, nbytes=2004)
    assert found.commits in (1, 2)
    assert collected(zoo) == found and counts(zoo) == kept
    # a branch that is squashed: three commits, and the folder before the last
    push(zoo, {"a.txt": b"another"})
    zoo.api().super_squash_history(ZOO, repo_type="dataset")
    found = collected(zoo)
    assert (found.commits, found.files, found.blobs, found.nbytes) == (3, 1, 1, 1)
    # an upload without a commit
    batch = {"operation": "upload", "objects": [{"oid": hashlib.sha256(b"d").hexdigest(), "size": 1}]}
    (item,) = ask(zoo, "POST", f"/datasets/{ZOO}.git/info/lfs/objects/batch", batch).json()["objects"]
    assert ask(zoo, "PUT", item["actions"]["upload"]["href"], b"d", role=None).status == 200
    assert collected(zoo) == Collected(0, 0, 0, contents=1, blobs=1, nbytes=1)
    assert collected(zoo) == Collected(0, 0, 0, 0, 0, 0) and unreadable(zoo.root) == []


def test_what_is_young_stays(zoo: Hosted) -> None:
    zoo.api().create_repo("lab/gone", repo_type="dataset")
    push(zoo, {"c.safetensors": b"c" * 2000}, "datasets/lab/gone")
    zoo.api().delete_repo("lab/gone", repo_type="dataset")
    assert collected(zoo, timedelta(hours=1)).blobs == 0
    assert collected(zoo).blobs == 1


def test_what_need_not_be_sent_again_stays(zoo: Hosted) -> None:
    """A client is told that a content is there; its commit comes later."""
    oid = hashlib.sha256(b"d").hexdigest()
    batch = {"operation": "upload", "objects": [{"oid": oid, "size": 1}]}
    address = f"/datasets/{ZOO}.git/info/lfs/objects/batch"
    (item,) = ask(zoo, "POST", address, batch).json()["objects"]
    ask(zoo, "PUT", item["actions"]["upload"]["href"], b"d", role=None)
    time.sleep(0.3)
    assert "actions" not in ask(zoo, "POST", address, batch).json()["objects"][0]
    assert collected(zoo, timedelta(seconds=0.2)).blobs == 0
    push(zoo, {"d.safetensors": b"d"})
    # a blob that is gone from the disk is asked for again
    zoo.service.blobs.path(oid).unlink()
    assert "actions" in ask(zoo, "POST", address, batch).json()["objects"][0]


def test_new_repositories_begin_as_before(zoo: Hosted) -> None:
    zoo.api().delete_repo(ZOO, repo_type="dataset")
    collected(zoo)
    zoo.api().create_repo("lab/next", repo_type="dataset")
    assert unreadable(zoo.root) == []


def test_a_commit_whose_file_is_gone_is_refused(zoo: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(self: Blobs, data: bytes) -> str:
        digest = original(self, data)
        collected(zoo)
        return digest

    original = Blobs.add
    monkeypatch.setattr(Blobs, "add", add)
    body = b'{"key":"header","value":{"summary":"x"}}\n{"key":"file","value":{"path":"a.txt","content":"eA=="}}\n'
    answer = ask(zoo, "POST", f"/api/datasets/{ZOO}/commit/main", body)
    assert answer.status == 503 and "no longer there" in answer.json()["error"] and "retry-after" in answer.headers
    monkeypatch.setattr(Blobs, "add", original)
    assert ask(zoo, "POST", f"/api/datasets/{ZOO}/commit/main", body).status == 200


def test_it_waits_for_a_backup(zoo: Hosted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo.api().create_repo("lab/gone", repo_type="dataset")
    push(zoo, {"c.safetensors": b"c" * 2000}, "datasets/lab/gone")
    zoo.api().delete_repo("lab/gone", repo_type="dataset")
    with locked(zoo.root, shared=True):
        waiting = threading.Thread(target=collected, args=(zoo,))
        waiting.start()
        time.sleep(0.3)
        assert waiting.is_alive()
    waiting.join(timeout=20)
    assert not waiting.is_alive() and collected(zoo).blobs == 0
    expected = pytest.raises(ZooError, match="expected nobody else who holds them")
    with locked(zoo.root, shared=True), expected, locked(zoo.root, seconds=0.1):
        pass


@pytest.mark.parametrize("seed", range(examples(4, 1)))
@pytest.mark.exhaustive
def test_beside_everything_that_clients_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Nothing is kept for longer than nothing, so that garbage is taken as early as it can be."""
    monkeypatch.setattr(garbage, "_WRITE_SECONDS", 0.001)
    monkeypatch.setattr(garbage, "_ROWS", 2)
    ends, acknowledged = threading.Event(), list[int]()
    with hosted(tmp_path / "served") as server:
        names = ("lab/one", "lab/two")

        def work(number: int) -> None:
            rng, api = random.Random(1000 * seed + number), server.api()
            while not ends.is_set():
                repo = rng.choice(names)
                kind = rng.choices(
                    ["create", "small", "large", "pull", "squash", "delete", "branch"], [2, 6, 6, 4, 1, 0.4, 1]
                )[0]
                # few contents, so that they go and come back
                data = bytes([rng.randrange(6)]) * 100
                try:
                    if kind == "create":
                        api.create_repo(repo, repo_type="dataset", exist_ok=True)
                    elif kind in ("small", "large"):
                        name = f"x/{rng.randrange(4)}.{'txt' if kind == 'small' else 'safetensors'}"
                        push(server, {name: data}, f"datasets/{repo}")
                    elif kind == "pull":
                        made = api.create_pull_request(repo, title="A pull request", repo_type="dataset")
                        revision = f"refs%2Fpr%2F{made.num}"
                        push(server, {f"{number}.txt": data}, f"datasets/{repo}", revision=revision)
                        api.change_discussion_status(repo, made.num, "open", repo_type="dataset")
                        if rng.random() < 0.7:
                            api.merge_pull_request(repo, made.num, repo_type="dataset")
                    elif kind == "squash":
                        api.super_squash_history(repo, repo_type="dataset")
                    elif kind == "branch":
                        api.create_branch(repo, branch="b", repo_type="dataset", exist_ok=True)
                        api.delete_branch(repo, branch="b", repo_type="dataset")
                    else:
                        api.delete_repo(repo, repo_type="dataset")
                    acknowledged.append(number)
                # a repository that somebody has removed, a lost race, a content that was taken: said, and not done
                except (AssertionError, KeyError, OSError):
                    continue

        workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for worker in workers:
            worker.start()
        began, removed = time.monotonic(), 0
        # on a busy machine clients leave little behind in 4 s
        while time.monotonic() < began + 4 or (removed <= 20 and time.monotonic() < began + 60):
            found = collect(server.root, server.service.database, grace=NOW)
            removed += found.commits + found.files + found.blobs
        ends.set()
        for worker in workers:
            worker.join()
        assert len(acknowledged) > 20 and removed > 20
        assert unreadable(server.root) == []
        with server.service.database.reading() as connection:
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        backup = tmp_path / "backup"
        back_up(server.root, backup)
        assert unreadable(backup) == []


_COLLECT = """
import sys
from datetime import timedelta
from pathlib import Path
from ckptzoo.server.service import database_of
from ckptzoo.server.store import garbage
garbage._ROWS, garbage._WRITE_SECONDS = 5, 0.0
root = Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(garbage.collect(root, database_of(root), grace=timedelta(0)), flush=True)
"""


@pytest.mark.exhaustive
def test_killed_at_any_moment(zoo: Hosted) -> None:
    push(zoo, {"a.txt": b"a", "b.safetensors": b"b" * 1000})
    zoo.api().create_repo("lab/gone", repo_type="dataset")
    for number in range(8):
        push(zoo, {f"{number}/{at}.txt": b"%d %d" % (number, at) for at in range(60)}, "datasets/lab/gone")
    zoo.api().delete_repo("lab/gone", repo_type="dataset")
    before = counts(zoo)
    for delay in (0.0, 0.01, 0.03, 0.06, 0.1, 0.15):
        process = subprocess.Popen(
            [sys.executable, "-c", _COLLECT, str(zoo.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        process.stdin.write("\n")
        process.stdin.flush()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert unreadable(zoo.root) == []
        push(zoo, {"a.txt": str(delay).encode()})
    assert collected(zoo, NOW).commits >= 0 and counts(zoo)["blobs"] < before["blobs"] - 400
    assert collected(zoo) == Collected(0, 0, 0, 0, 0, 0) and unreadable(zoo.root) == []


_COLLECT_ON = """
import sys
from datetime import timedelta
from pathlib import Path
from ckptzoo.server.service import database_of
from ckptzoo.server.store import garbage
garbage._ROWS, garbage._WRITE_SECONDS = 5, 0.0
root = Path(sys.argv[1])
database = database_of(root)
print("ready", flush=True)
while True:
    garbage.collect(root, database, grace=timedelta(0))
"""


class PersistentClient(PlainClient):
    """Goes on where a commit was refused, because its content was taken before it came."""

    def push_until_it_ends(self) -> None:
        for number in range(10**6):
            try:
                self.push(number)
            except AssertionError:
                continue
            except (OSError, http.client.HTTPException, ValueError):
                return


@pytest.mark.parametrize("seed", range(examples(2, 1)))
def test_server_and_collection_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    """What was acknowledged is read back from the next server, whatever both were doing."""
    root, known, rng = tmp_path / "served", dict[str, bytes](), random.Random(seed)
    token = token_for(root)
    body = json.dumps({"name": "zoo", "organization": "lab", "type": "dataset"}).encode()
    turns = 3 if ALL else 1
    for turn in range(turns):
        with server_process(root) as (server, url):
            clients = [PersistentClient(url, token, f"c{turn}{number}", known) for number in range(2)]
            assert clients[0].ask("POST", "/api/repos/create", body)[0] in (200, 409)
            command = [sys.executable, "-c", _COLLECT_ON, str(root)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as collecting:
                assert collecting.stdout is not None
                collecting.stdout.readline()
                threads = [threading.Thread(target=client.push_until_it_ends) for client in clients]
                for thread in threads:
                    thread.start()
                time.sleep(rng.uniform(0.5, 1.2))
                for process in rng.sample([server, collecting], 2):
                    process.send_signal(signal.SIGKILL)
                    time.sleep(rng.uniform(0, 0.02))
                for thread in threads:
                    thread.join()
    assert len(known) > 2 * turns and unreadable(root) == []
    with server_process(root) as (_, url):
        reader = PlainClient(url, token, "reader", known)
        for path, data in known.items():
            assert reader.ask("GET", f"/datasets/{ZOO}/resolve/main/{path}") == (200, data)


def test_an_upload_does_not_wait(zoo: Hosted) -> None:
    """The lock is held by who removes for a fraction of the time in which somebody would notice."""
    times: list[float] = []
    with closing(sqlite3.connect(zoo.root / "hub.sqlite")) as connection:
        rows = [(f"{number:040x}", 1, f"{number:064x}", 1) for number in range(40_000)]
        connection.executemany("INSERT INTO files VALUES (?, ?, ?, ?)", rows)
        connection.commit()
    thread = threading.Thread(target=collected, args=(zoo,))
    thread.start()
    while thread.is_alive():
        began = time.monotonic()
        push(zoo, {"a.txt": str(began).encode()})
        times.append(time.monotonic() - began)
    # half of the commits see nothing of it; one that waits does so for a transaction and SQLite's next look
    assert len(times) >= 3 and sorted(times)[len(times) // 2] < 1.0


def test_a_folder_that_was_never_served_has_nothing_to_remove(tmp_path: Path) -> None:
    assert run_serve("user", "--root", str(tmp_path / "new"), "ada").returncode == 0
    assert "removed 0 blobs" in run_serve("gc", "--root", str(tmp_path / "new")).stdout


def test_the_command(zoo: Hosted) -> None:
    done = run_serve("gc", "--root", str(zoo.root), "--dry-run", "--json")
    assert json.loads(done.stdout)["blobs"] == 0 and json.loads(done.stdout)["dry_run"] is True
    done = run_serve("gc", "--root", str(zoo.root), "--grace", "1h")
    assert "removed 0 blobs" in done.stdout
    for wrong in ("10m", "0h", "x", "", "1e9w"):
        assert run_serve("gc", "--root", str(zoo.root), "--grace", wrong).returncode == 2


def test_a_missing_lock_is_made(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    with locked(tmp_path):
        pass
    assert (tmp_path / "blobs.lock").stat().st_mode & 0o077 == 0
