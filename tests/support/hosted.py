"""A server on a real port for one test, and clients for it."""

import base64
import hashlib
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from ckptzoo.server.app import Application
from ckptzoo.server.errors import ServerLimits
from ckptzoo.server.run import Serving
from ckptzoo.server.service import Service
from ckptzoo.server.store.tokens import make_token
from ckptzoo.server.testing import FaultPlan, Faults, RequestLog, layered

SMALL = ServerLimits(part_bytes=2**16, page=50)
ZOO = "lab/zoo"


@dataclass(frozen=True)
class Hosted:
    """A server that runs, its layers, and a token for each role."""

    url: str
    root: Path
    service: Service
    ledger: RequestLog
    faults: Faults
    tokens: dict[str, str]

    def api(self, role: str | None = "write") -> HfApi:
        """The client library with the token of a role, or with none."""
        return HfApi(endpoint=self.url, token=False if role is None else self.tokens[role])


@contextmanager
def hosted(
    root: Path, *, limits: ServerLimits = SMALL, plan: FaultPlan | None = None, port: int = 0, **options: Any
) -> Iterator[Hosted]:
    """Serve a folder for as long as the block lasts."""
    service = Service(root, limits=limits, **options)
    try:
        with service.database.writing() as connection:
            users = {"read": "reader", "contribute": "stranger", "write": "lab"}
            tokens = {role: make_token(connection, user, role) for role, user in users.items()}
        app = layered(Application(service), plan=plan, readable=True)
        with Serving(app.app, port=port) as url:
            yield Hosted(url, root, service, app.ledger, app.faults, tokens)
    finally:
        service.close()


@dataclass(frozen=True)
class Answer:
    """What came back; the names of the headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def ask(
    found: Hosted,
    method: str,
    path: str,
    body: bytes | dict[str, Any] | None = None,
    *,
    role: str | None = "write",
    **headers: str,
) -> Answer:
    """Send one request whose path is not touched on the way; redirects are not followed."""
    path = path.removeprefix(found.url)
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if role is not None:
        sent["Authorization"] = f"Bearer {found.tokens[role]}"
    connection = http.client.HTTPConnection(found.url.removeprefix("http://"), timeout=10)
    try:
        connection.request(method, path, data, sent)
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, response.read())
    finally:
        connection.close()


def push(found: Hosted, files: dict[str, bytes], repo: str = f"datasets/{ZOO}") -> str:
    """Commit files as a client does, large ones first; returns the commit."""
    lines: list[dict[str, Any]] = [{"key": "header", "value": {"summary": "push"}}]
    for path, data in files.items():
        if path.endswith(".safetensors"):
            oid = hashlib.sha256(data).hexdigest()
            asked = {"operation": "upload", "objects": [{"oid": oid, "size": len(data)}]}
            (item,) = ask(found, "POST", f"/{repo}.git/info/lfs/objects/batch", asked).json()["objects"]
            if "actions" in item:
                assert ask(found, "PUT", item["actions"]["upload"]["href"], data, role=None).status == 200
            lines.append({"key": "lfsFile", "value": {"path": path, "algo": "sha256", "oid": oid, "size": len(data)}})
        else:
            content = base64.b64encode(data).decode()
            lines.append({"key": "file", "value": {"path": path, "content": content, "encoding": "base64"}})
    answer = ask(found, "POST", f"/api/{repo}/commit/main", commit_body(*lines))
    assert answer.status == 200, answer.body
    return answer.json()["commitOid"]


def commit_body(*lines: dict[str, Any]) -> bytes:
    """The lines of a commit."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)
