"""``ckptzoo serve`` in a process of its own, and a client that needs no library."""

import hashlib
import http.client
import json
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ckptzoo.server.service import database_of
from ckptzoo.server.store.tokens import make_token
from tests.support.hosted import ZOO, commit_body

SERVE = (sys.executable, "-m", "ckptzoo", "serve")


@contextmanager
def server_process(
    root: Path, *options: str, file_size: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""

    def bounded() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs of a shell inherit that it is ignored
        if file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))

    command = [*SERVE, "--root", str(root), "--port", "0", *options]
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
    """A token that may write to the server of this folder, which need not run."""
    database = database_of(root)
    with database.writing() as connection:
        token = make_token(connection, "lab", "write")
    database.close()
    return token


class PlainClient:
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
