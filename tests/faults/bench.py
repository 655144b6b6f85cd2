"""A server with repositories for tests to use up, and checks of what an operation left there."""

import base64
import hashlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from huggingface_hub import snapshot_download

import ckptzoo
from ckptzoo.errors import IntegrityError, RemoteError
from ckptzoo.schema.layout import CROISSANT
from tests.support.hosted import Hosted, ask, commit_body
from tests.support.hub_zoos import files_of
from tests.support.server_layers import FaultPlan, InjectedFault

_APART = (".safetensors", ".parquet")
_NUMBERS = itertools.count(1)


def put(server: Hosted, repo: str, files: dict[str, bytes], *, role: str = "write", revision: str = "main") -> str:
    """Commit files as the client library does, large ones by LFS; the repository is created if there is none."""
    organization, name = repo.split("/")
    ask(server, "POST", "/api/repos/create", {"organization": organization, "name": name, "type": "dataset"})
    large = {name: data for name, data in files.items() if name.endswith(_APART)}
    oids = {name: hashlib.sha256(data).hexdigest() for name, data in large.items()}
    objects = [{"oid": oids[name], "size": len(data)} for name, data in large.items()]
    asked = {"operation": "upload", "objects": objects}
    answer = ask(server, "POST", f"/datasets/{repo}.git/info/lfs/objects/batch", asked, role=role).json()
    hrefs = {item["oid"]: item["actions"]["upload"]["href"] for item in answer["objects"] if "actions" in item}
    for name, data in large.items():
        if oids[name] in hrefs:
            assert ask(server, "PUT", hrefs[oids[name]], data, role=None).status == 200
    lines: list[dict[str, Any]] = [{"key": "header", "value": {"summary": "put"}}]
    for name, data in files.items():
        if name in large:
            facts = {"path": name, "algo": "sha256", "oid": oids[name], "size": len(data)}
            lines.append({"key": "lfsFile", "value": facts})
        else:
            content = base64.b64encode(data).decode()
            lines.append({"key": "file", "value": {"path": name, "content": content, "encoding": "base64"}})
    answer = ask(server, "POST", f"/api/datasets/{repo}/commit/{revision}", commit_body(*lines), role=role)
    assert answer.status == 200, answer.body
    return answer.json()["commitOid"]


class Bench:
    """A server for many runs, each with a repository and a folder of its own.

    Parameters
    ----------
    server
        its faults are off but within ``misbehaving``.
    folder
        for what runs write.
    """

    def __init__(self, server: Hosted, folder: Path) -> None:
        self.server, self.folder = server, folder

    def repo(self) -> str:
        """A name that no repository has."""
        return f"lab/r{next(_NUMBERS)}"

    def place(self) -> Path:
        """A path where nothing is."""
        return self.folder / f"p{next(_NUMBERS)}"

    @contextmanager
    def misbehaving(self, plan: FaultPlan, injected: list[InjectedFault]) -> Iterator[None]:
        """While this lasts, requests meet the faults of a plan, counted from 0; they are listed in ``injected``."""
        faults = self.server.faults
        faults.injected.clear()
        faults._count, faults.plan = 0, plan
        try:
            yield
        finally:
            faults.plan = FaultPlan()
            injected += faults.injected

    @property
    def asked(self) -> int:
        """How many requests of the last ``misbehaving`` could have met one of its faults."""
        return self.server.faults._count

    def downloaded(self, repo: str, revision: str = "main") -> Path:
        """A repository as the client library downloads it."""
        how: Any = {"repo_type": "dataset", "endpoint": self.server.url, "local_dir": self.place()}
        return Path(snapshot_download(repo, revision=revision, token=self.server.tokens["read"], **how))

    def commits(self, repo: str) -> list[str]:
        """The commits of main, the last first."""
        return [item.commit_id for item in self.server.api().list_repo_commits(repo, repo_type="dataset")]


def is_sound(folder: Path, ids: list[str]) -> None:
    """A downloaded zoo is right to the last byte, and holds these checkpoints, each once."""
    assert ckptzoo.verify(folder, deep=True) == []
    tables = [pq.read_table(path, columns=["id"]) for path in sorted(folder.glob("parts/*/metadata.parquet"))]
    assert sorted(name for table in tables for name in table["id"].to_pylist()) == sorted(ids)
    digests = [path.name.partition("-")[2] for path in folder.glob("parts/*")]
    assert len(set(digests)) == len(digests)
    assert sorted(ckptzoo.open(folder).ids) == sorted(ids)


def nothing_twice(server: Hosted, since: int, repo: str, *, on_their_way: int = 0) -> None:
    """By the ledger: no file that was acknowledged came again, and every acknowledged commit is another one.

    ``on_their_way`` is how many files may have come whole although the server was killed before it could say so.
    """
    mine = server.request_log.entries[since:]
    whole = [
        item.path for item in mine if item.operation in ("upload", "join") and item.finished and item.status == 200
    ]
    assert sum(count - 1 for count in Counter(whole).values()) <= on_their_way
    commits = [item.oid for item in server.request_log.acknowledged if item.repository == f"datasets/{repo}"]
    assert len(set(commits)) == len(commits)


def says_what_to_do(error: Exception, server: Hosted) -> None:
    """An error of ours that names what was expected, what came and what to do, and no secret."""
    assert isinstance(error, RemoteError | IntegrityError), repr(error)
    problems = error.problems if isinstance(error, IntegrityError) else (error.problem,)
    assert problems
    for problem in problems:
        assert all((problem.location, problem.what, problem.expected, problem.got)), error
        assert len(problem.next_step.split()) >= 2 and problem.next_step.endswith("."), error
    text = str(error)
    assert "expected" in text and "got" in text and len(text) < 4000
    assert "signature=" not in text and not [token for token in server.tokens.values() if token in text]


def settled(seconds: float = 10.0) -> None:
    """Wait until no thread of ours runs any more; raises if some go on."""
    until = time.monotonic() + seconds
    while left := [item.name for item in threading.enumerate() if item.name.startswith("ckptzoo")]:
        assert time.monotonic() < until, f"still running: {left}"
        time.sleep(0.005)


def same_files(one: Path, two: Path, *, but: str = "") -> None:
    """Two folders hold the same files, with the same bytes but for one; beside a page, croissant.json may be of one."""
    mine, theirs = files_of(one), files_of(two)
    if but == "README.md":  # a push makes both
        mine, theirs = ({name: data for name, data in some.items() if name != CROISSANT} for some in (mine, theirs))
    assert sorted(mine) == sorted(theirs)
    assert [name for name in mine if mine[name] != theirs[name] and name != but] == []
