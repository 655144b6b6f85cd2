"""A hub's server on a real port for one test, and clients for it."""

import asyncio
import base64
import hashlib
import http.client
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn.server
from huggingface_hub import HfApi

from ckptzoo.server.app import Application
from ckptzoo.server.limits import ServerLimits
from ckptzoo.server.run import Serving
from ckptzoo.server.service import Service
from ckptzoo.server.store.tokens import make_token
from tests.support.server_layers import FaultPlan, Faults, RequestLog, layered


class _Asyncio:
    """asyncio as uvicorn's server uses it, which waits for nothing longer than a hundredth of a second.

    It looks ten times a second whether it has to end, and then waits for a tenth: 0.2 s at the end of every test.
    """

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)


setattr(uvicorn.server, "asyncio", _Asyncio())  # noqa: B010

SMALL = ServerLimits(part_bytes=2**16, page=50)
ZOO = "lab/zoo"


@dataclass(frozen=True)
class Hosted:
    """A server that runs, its request log and faults, and a token for each role."""

    url: str
    root: Path
    service: Service
    request_log: RequestLog
    faults: Faults
    tokens: dict[str, str]

    def api(self, role: str | None = "write") -> HfApi:
        """The client library with the token of a role, or with none."""
        return HfApi(endpoint=self.url, token=False if role is None else self.tokens[role])


@contextmanager
def hosted(
    root: Path,
    *,
    limits: ServerLimits = SMALL,
    plan: FaultPlan | None = None,
    port: int = 0,
    proxies: Sequence[str] = (),
    **options: Any,
) -> Iterator[Hosted]:
    """Serve a folder until the end of the block; the token of the role contribute belongs to ``stranger``."""
    service = Service(root, limits=limits, **options)
    try:
        with service.database.writing() as connection:
            users = {"read": "reader", "contribute": "stranger", "write": "lab"}
            tokens = {role: make_token(connection, user, role) for role, user in users.items()}
        app = layered(Application(service), plan=plan, readable=True)
        with Serving(app.app, port=port, limits=limits, proxies=proxies) as url:
            yield Hosted(url, root, service, app.request_log, app.faults, tokens)
    finally:
        service.close()


@dataclass(frozen=True)
class Answer:
    """A response; the names of its headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def ask(
    server: Hosted,
    method: str,
    path: str,
    body: bytes | dict[str, Any] | None = None,
    *,
    role: str | None = "write",
    **headers: str,
) -> Answer:
    """Send one request with the path exactly as given; redirects are not followed."""
    path = path.removeprefix(server.url)
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    request_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if role is not None:
        request_headers["Authorization"] = f"Bearer {server.tokens[role]}"
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    try:
        connection.request(method, path, data, request_headers)
        response = connection.getresponse()
        response_headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, response_headers, response.read())
    finally:
        connection.close()


def push(server: Hosted, files: dict[str, bytes], repo: str = f"datasets/{ZOO}", *, revision: str = "main") -> str:
    """Commit files as a client does, large ones first; returns the commit."""
    lines: list[dict[str, Any]] = [{"key": "header", "value": {"summary": "push"}}]
    for path, data in files.items():
        if path.endswith(".safetensors"):
            oid = hashlib.sha256(data).hexdigest()
            batch = {"operation": "upload", "objects": [{"oid": oid, "size": len(data)}]}
            (item,) = ask(server, "POST", f"/{repo.removeprefix('models/')}.git/info/lfs/objects/batch", batch).json()[
                "objects"
            ]
            if "actions" in item:
                assert ask(server, "PUT", item["actions"]["upload"]["href"], data, role=None).status == 200
            lines.append({"key": "lfsFile", "value": {"path": path, "algo": "sha256", "oid": oid, "size": len(data)}})
        else:
            content = base64.b64encode(data).decode()
            lines.append({"key": "file", "value": {"path": path, "content": content, "encoding": "base64"}})
    answer = ask(server, "POST", f"/api/{repo}/commit/{revision}", commit_body(*lines))
    assert answer.status == 200, answer.body
    return answer.json()["commitOid"]


def commit_body(*lines: dict[str, Any]) -> bytes:
    """The body of a commit request: one JSON object a line."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)
