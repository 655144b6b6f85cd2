"""A layer that writes down what was asked, what was answered, and which commits were acknowledged.

It knows nothing of the application behind it: commits are read off the answers that went out.
"""

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ckptzoo.server.operations import operation_of

_LOOPBACK = ("127.0.0.1", "::1")
_COMMIT = re.compile(r"/api/(.+)/commit/[^/]+")
_MAX_ANSWER = 2**16


@dataclass(frozen=True)
class Entry:
    """One request and its answer.

    ``path`` is as it came, without the query; ``range`` is the header; ``received`` and ``sent`` count the bytes of
    the bodies; ``status`` is 0 where nothing was answered; ``finished`` says whether the answer was sent whole.
    """

    operation: str
    method: str
    path: str
    range: str | None
    status: int
    received: int
    sent: int
    finished: bool


@dataclass(frozen=True)
class Acknowledged:
    """A commit whose answer was sent whole: the repository as addresses name it, and the commit."""

    repository: str
    oid: str


@dataclass
class _Tally:
    """What has gone by so far of one request."""

    status: int = 0
    announced: int = -1
    received: int = 0
    sent: int = 0
    finished: bool = False
    answer: bytearray = field(default_factory=bytearray)


class Ledger:
    """The layer; put it outside of everything that changes answers.

    Parameters
    ----------
    app : what it stands around.
    readable : also answer ``GET /_ledger`` to clients on the same machine. Behind a proxy every client is on it.

    Attributes
    ----------
    entries : every request, in the order of their ends; written before the last piece of the answer goes out, so
        that a client who has an answer finds it here.
    acknowledged : every commit that was acknowledged, in order.
    """

    def __init__(self, app: ASGIApp, *, readable: bool = False) -> None:
        self._app, self._readable = app, readable
        self.entries: list[Entry] = []
        self.acknowledged: list[Acknowledged] = []

    def count(self, *operations: str) -> int:
        """How many requests were one of these operations."""
        return sum(entry.operation in operations for entry in self.entries)

    def sent(self, *operations: str) -> int:
        """Bytes of the bodies that were sent in answer to these operations."""
        return sum(entry.sent for entry in self.entries if entry.operation in operations)

    def to_json(self) -> dict[str, Any]:
        """Everything, as ``GET /_ledger`` answers."""
        return {
            "entries": [asdict(entry) for entry in self.entries],
            "acknowledged": [asdict(commit) for commit in self.acknowledged],
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on and write it down."""
        method, path = scope["method"], scope["raw_path"].decode("latin-1")
        if self._readable and path == "/_ledger" and (scope.get("client") or ("",))[0] in _LOOPBACK:
            await JSONResponse(self.to_json())(scope, receive, send)
            return
        tally = _Tally()

        async def receiving() -> Message:
            message = await receive()
            tally.received += len(message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                tally.status = message["status"]
                tally.announced = int(dict(message["headers"]).get(b"content-length", b"-1"))
            elif message["type"] == "http.response.body":
                body = message.get("body", b"")
                tally.sent += len(body) if method != "HEAD" else 0
                tally.answer += body[: _MAX_ANSWER - len(tally.answer)]
                if not tally.finished and (not message.get("more_body", False) or tally.sent == tally.announced):
                    tally.finished = True
                    self._write(scope, tally)
            await send(message)

        try:
            await self._app(scope, receiving, sending)
        finally:
            if not tally.finished:
                self._write(scope, tally)

    def _write(self, scope: Scope, tally: _Tally) -> None:
        method, path = scope["method"], scope["raw_path"].decode("latin-1")
        asked = dict(scope["headers"]).get(b"range", b"").decode("latin-1") or None
        counted = (tally.status, tally.received, tally.sent, tally.finished)
        self.entries.append(Entry(operation_of(method, path), method, path, asked, *counted))
        found = _COMMIT.fullmatch(path)
        if found is not None and method == "POST" and tally.status == 200 and tally.finished:
            self.acknowledged.append(Acknowledged(found[1], json.loads(tally.answer)["commitOid"]))
