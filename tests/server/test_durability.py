"""What was acknowledged survives the process, whenever it ends."""

import hashlib
import http.client
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptzoo.errors import ZooError
from ckptzoo.server.service import Service, database_of
from ckptzoo.server.store.blobs import Blobs
from ckptzoo.server.store.tokens import make_token
from tests.support.hosted import ZOO, commit_body

SERVE = "import sys; from ckptzoo.cli.serve import serve; serve(sys.argv[1:])"


@contextmanager
def process(root: Path, *options: str, file_size: int | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""

    def bounded() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs of a shell inherit that it is ignored
        if file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))

    command = [sys.executable, "-c", SERVE, "--root", str(root), "--port", "0", *options]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path.cwd(), preexec_fn=bounded
    )
    with started:
        assert started.stdout is not None and started.stderr is not None
        try:
            line = started.stdout.readline()
            assert "serving at" in line, line + started.stderr.read()
            yield started, line.split()[-1]
        finally:
            started.kill()


def token_for(root: Path) -> str:
    database = database_of(root)
    with database.writing() as connection:
        token = make_token(connection, "lab", "write")
    database.close()
    return token


class Client:
    """Commits files of its own one after the other, and remembers which were acknowledged."""

    def __init__(self, url: str, token: str, name: str, known: dict[str, bytes]) -> None:
        self.host, self.token, self.name, self.known = url.removeprefix("http://"), token, name, known
        self.commits: list[str] = []

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, timeout=20)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {self.token}"})
            answer = connection.getresponse()
            if answer.status == 302:
                return self.ask(method, answer.headers["Location"].partition(self.host)[2])
            return answer.status, answer.read()
        finally:
            connection.close()

    def push(self, number: int) -> None:
        """One large and one small file in one commit."""
        large = random.Random(f"{self.name}{number}").randbytes(200_000)
        small = f"{self.name} {number}".encode()
        oid, paths = hashlib.sha256(large).hexdigest(), (f"{self.name}/{number}.bin", f"{self.name}/{number}.txt")
        asked = json.dumps({"operation": "upload", "objects": [{"oid": oid, "size": len(large)}]}).encode()
        _, answer = self.ask("POST", f"/datasets/{ZOO}.git/info/lfs/objects/batch", asked)
        action = json.loads(answer)["objects"][0].get("actions")
        if action is not None:
            assert self.ask("PUT", action["upload"]["href"].partition(self.host)[2], large)[0] == 200
        lines = (
            {"key": "header", "value": {"summary": f"{self.name} {number}"}},
            {"key": "lfsFile", "value": {"path": paths[0], "algo": "sha256", "oid": oid}},
            {"key": "file", "value": {"path": paths[1], "content": small.decode()}},
        )
        status, answer = self.ask("POST", f"/api/datasets/{ZOO}/commit/main", commit_body(*lines))
        assert status == 200, answer
        self.commits.append(json.loads(answer)["commitOid"])
        self.known.update({paths[0]: large, paths[1]: small})

    def push_until_it_ends(self) -> None:
        try:
            for number in range(10**6):
                self.push(number)
        except (OSError, http.client.HTTPException, ValueError):
            return


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    """Three clients commit while the server is killed, twice; the third server has all that was acknowledged to any of them."""
    root, known, commits = tmp_path / "served", dict[str, bytes](), list[str]()
    token, rng = token_for(root), random.Random(seed)
    for turn in range(2):
        with process(root) as (server, url):
            clients = [Client(url, token, f"c{turn}{at}", known) for at in range(3)]
            body = json.dumps({"name": "zoo", "organization": "lab", "type": "dataset"}).encode()
            assert clients[0].ask("POST", "/api/repos/create", body)[0] in (200, 409)
            threads = [threading.Thread(target=client.push_until_it_ends) for client in clients]
            for thread in threads:
                thread.start()
            time.sleep(rng.uniform(0.2, 0.6))
            server.send_signal(signal.SIGKILL)
            for thread in threads:
                thread.join()
            commits += [oid for client in clients for oid in client.commits]
    with process(root) as (_, url):
        reader = Client(url, token, "reader", known)
        assert list((root / "incoming").iterdir()) == []
        for path, data in known.items():
            assert reader.ask("GET", f"/datasets/{ZOO}/resolve/main/{path}") == (200, data)
        history = json.loads(reader.ask("GET", f"/api/datasets/{ZOO}/commits/main")[1])
        titles = [item["title"] for item in history]
        assert len(set(titles)) == len(titles)
        assert len(known) == 2 * len(commits) > 0
        for oid in commits:
            assert reader.ask("GET", f"/api/datasets/{ZOO}/revision/{oid}")[0] == 200
        reader.push(0)
    for path in (root / "blobs").glob("*/*"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


def test_a_full_disk_is_said_and_harms_nothing(tmp_path: Path) -> None:
    root = tmp_path / "served"
    token, known = token_for(root), dict[str, bytes]()
    with process(root, file_size=150_000) as (_, url):
        client = Client(url, token, "c", known)
        body = json.dumps({"name": "zoo", "organization": "lab", "type": "dataset"}).encode()
        assert client.ask("POST", "/api/repos/create", body)[0] == 200
        with pytest.raises(AssertionError):
            client.push(0)
        data = random.Random("c0").randbytes(200_000)
        oid = hashlib.sha256(data).hexdigest()
        asked = json.dumps({"operation": "upload", "objects": [{"oid": oid, "size": len(data)}]}).encode()
        _, answer = client.ask("POST", f"/datasets/{ZOO}.git/info/lfs/objects/batch", asked)
        href = json.loads(answer)["objects"][0]["actions"]["upload"]["href"].partition(client.host)[2]
        status, answer = client.ask("PUT", href, data)
        assert status == 507 and b"disk is full" in answer
        assert list((root / "incoming").iterdir()) == []
    with process(root) as (_, url):
        client = Client(url, token, "c", known)
        client.push(0)
        assert client.ask("GET", f"/datasets/{ZOO}/resolve/main/c/0.bin") == (200, known["c/0.bin"])


def test_leftovers_are_removed_at_the_start(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    arriving = blobs.arrive(100)
    arriving.write(b"half")
    upload = blobs.begin_upload()
    part = blobs.arrive_part(upload, 10)
    assert len(list((tmp_path / "incoming").iterdir())) == 2
    kept = blobs.add(b"whole")
    again = Blobs(tmp_path)
    assert list((tmp_path / "incoming").iterdir()) == [] and again.path(kept).read_bytes() == b"whole"
    arriving.discard()
    part.discard()


def test_forgotten_parts_are_swept(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    old, new = blobs.begin_upload(), blobs.begin_upload()
    os.utime(tmp_path / "incoming" / f"parts-{old}", (0, 0))
    blobs.sweep(60)
    assert [path.name for path in (tmp_path / "incoming").iterdir()] == [f"parts-{new}"]


def test_one_process_serves_a_folder(tmp_path: Path) -> None:
    service = Service(tmp_path)
    with pytest.raises(ZooError, match="one that is running"):
        Service(tmp_path)
    service.close()
    Service(tmp_path).close()


def test_an_interrupted_server_ends_well(tmp_path: Path) -> None:
    with process(tmp_path) as (server, _):
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=20)
        assert (server.returncode in (0, -signal.SIGINT, 130, 1), out) == (True, "") and "Traceback" not in err
