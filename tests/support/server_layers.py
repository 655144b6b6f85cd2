"""Layers around the application for tests: a log of the requests, and faults that are injected on purpose.

::

    AbortableConnections   lets the layers inside reset the connection
    RequestLog             what was requested and answered, and which commits were acknowledged
    Faults                 what bad networks and overloaded servers do, the same for the same seed
    the application

``layered`` puts them together. They know nothing of the application: what a request is for (``operation_of``) and
which commit it made are read from the method, the path and the answer. ``ckptzoo serve --faults`` and ``--ledger`` use
them too.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ckptzoo.errors import Problem, UnknownNameError, ZooError

_OPERATIONS = (
    ("blob", "GET|HEAD", r"/_blobs/.*"),
    ("part", "PUT", r"/_uploads/[^/]+/part"),
    ("join", "POST", r"/_uploads/[^/]+/join"),
    ("upload", "PUT", r"/_uploads/[^/]+"),
    ("batch", "POST", r".*\.git/info/lfs/objects/batch"),
    ("verify", "POST", r".*\.git/info/lfs/verify"),
    ("resolve", "GET|HEAD", r"/(?!api/).*/resolve/.*"),
    ("preupload", "POST", r"/api/.*/preupload/.*"),
    ("commit", "POST", r"/api/.*/commit/[^/]+"),
    ("merge", "POST", r"/api/.*/discussions/\d+/merge"),
    ("discussion", "GET|POST", r"/api/.*/discussions(?:/.*)?"),
    ("tree", "GET", r"/api/.*/tree/.*"),
    ("paths", "POST", r"/api/.*/paths-info/.*"),
    ("refs", "GET", r"/api/.*/(?:refs|commits/[^/]+)"),
    ("create", "POST", r"/api/repos/create"),
    ("info", "GET", r"/api/(?:models|datasets|spaces)(?:/.*)?"),
    ("other", ".*", r".*"),
)
_COMPILED = tuple((name, re.compile(methods), re.compile(path)) for name, methods, path in _OPERATIONS)
OPERATIONS = tuple(name for name, _, _ in _OPERATIONS)
"""What requests are for: faults can be limited to some, and the log counts by them."""
_FILES = frozenset({"resolve", "blob"})
_SIGNED = frozenset({"blob", "upload", "part"})
_READS = _FILES | {"tree", "paths", "info", "refs"}
_WRITES = frozenset({"upload", "part", "join", "verify", "commit", "merge", "discussion", "create"})
_ALL = frozenset(OPERATIONS)
FAULT_KINDS = {
    "short": (_READS, "half of the body, with a Content-Length that agrees"),
    "whole": (_FILES, "200 with the whole file where a range was asked for"),
    "wrong": (_FILES, "one byte of the body is another"),
    "stale": (_FILES, "the ETag of other content"),
    "expired": (_SIGNED, "403, as for a signed address that has expired"),
    "limited": (_ALL, "429, with the time to wait in a ratelimit header"),
    "broken": (_ALL, "500, 502, 503 or 504"),
    "reset": (_ALL, "the connection is reset before the answer, or in the middle of its body"),
    "lost": (_WRITES, "the request is carried out, then the connection is reset before the answer"),
    "stall": (_ALL, "nothing for a while, then a reset"),
    "trickle": (_READS, "the body in small pieces with pauses"),
    "conflict": (frozenset({"commit"}), "412, as for a race that was lost"),
}
"""Each kind of fault: the operations that it can happen to, and what happens."""
_ETAGS = (b"etag", b"x-linked-etag")
"""The second names the content behind a redirect."""
_TRICKLE_PIECES = 20
"""A body that trickles is sent in this many pieces."""
_LOOPBACK = ("127.0.0.1", "::1")
_COMMIT = re.compile(r"/api/(.+)/commit/[^/]+")
_MAX_ANSWER = 2**16
"""Bytes of an answer that are kept to find the commit in it."""


def operation_of(method: str, raw_path: str) -> str:
    """What a request is for: one of ``OPERATIONS``.

    >>> operation_of("PUT", "/_uploads/0123"), operation_of("GET", "/api/datasets/lab/zoo")
    ('upload', 'info')
    """
    return next(name for name, methods, path in _COMPILED if methods.fullmatch(method) and path.fullmatch(raw_path))


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """Which requests get which fault.

    Request number i (from 0, counting those that one of the kinds can happen to) gets a fault where ``i`` is in ``at``,
    or, without ``at``, where ``u(sha256(seed:i)) < rate``; the same digest chooses among the kinds.

    Parameters
    ----------
    seed
        of the choice.
    rate
        the share of requests, from 0 to 1.
    at
        the numbers of the requests, instead of a rate.
    kinds, operations
        the faults, and what they are limited to; all without.
    limit
        after this many faults there are no more.
    wait
        seconds: of a stall, of all pauses of a trickle together, and the whole ones that a 429 names.

    Raises
    ------
    UnknownNameError
        No such kind or operation.
    ZooError
        The rate is not between 0 and 1.
    """

    seed: int = 0
    rate: float = 0.0
    at: tuple[int, ...] | None = None
    kinds: tuple[str, ...] = tuple(FAULT_KINDS)
    operations: tuple[str, ...] = OPERATIONS
    limit: int | None = None
    wait: float = 1.0

    def __post_init__(self) -> None:
        for what, known, given in (
            ("kind", tuple(FAULT_KINDS), self.kinds),
            ("operation", OPERATIONS, self.operations),
        ):
            for name in given:
                if name not in known:
                    raise UnknownNameError("faults", what, name, known)
        if not 0 <= self.rate <= 1:
            raise ZooError(Problem("faults", "rate", "0 to 1", repr(self.rate), "Choose another."))

    def choose(self, number: int, kinds: tuple[str, ...]) -> str | None:
        """The fault that request ``number`` gets, None for none."""
        digest = hashlib.sha256(f"{self.seed}:{number}".encode()).digest()
        draw = int.from_bytes(digest[:8], "big") / 2**64
        hit = draw < self.rate if self.at is None else number in self.at
        return kinds[int.from_bytes(digest[8:16], "big") % len(kinds)] if hit else None


@dataclass(frozen=True)
class InjectedFault:
    """A fault that was injected; ``number`` counts the requests that it could have happened to."""

    number: int
    kind: str
    operation: str
    path: str


class Faults:
    """The layer that injects faults.

    Parameters
    ----------
    app
        the application, or the layer, inside.
    plan
        which requests get which fault.

    Attributes
    ----------
    injected
        the faults that happened, in order.
    """

    def __init__(self, app: ASGIApp, plan: FaultPlan) -> None:
        self._app, self.plan = app, plan
        self.injected: list[InjectedFault] = []
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, or inject its fault."""
        path = scope["raw_path"].decode("latin-1")
        operation = operation_of(scope["method"], path)
        kinds = tuple(kind for kind in self.plan.kinds if self._applies(kind, operation, scope))
        limit_reached = self.plan.limit is not None and len(self.injected) >= self.plan.limit
        if not kinds or limit_reached:
            await self._app(scope, receive, send)
            return
        number, self._count = self._count, self._count + 1
        kind = self.plan.choose(number, kinds)
        if kind is None:
            await self._app(scope, receive, send)
            return
        self.injected.append(InjectedFault(number, kind, operation, path))
        await self._inject(kind, number, scope, receive, send)

    def _applies(self, kind: str, operation: str, scope: Scope) -> bool:
        if operation not in self.plan.operations or operation not in FAULT_KINDS[kind][0]:
            return False
        if kind == "whole":
            return any(name == b"range" for name, _ in scope["headers"])
        return scope["method"] != "HEAD" or kind not in ("short", "wrong", "trickle")

    async def _inject(self, kind: str, number: int, scope: Scope, receive: Receive, send: Send) -> None:
        wait = self.plan.wait
        if kind == "whole":
            headers = [item for item in scope["headers"] if item[0] != b"range"]
            await self._app({**scope, "headers": headers}, receive, send)
        elif kind == "expired":
            await _answer(receive, send, 403, "The address has expired. Ask for a new one.")
        elif kind == "limited":
            # draft-ietf-httpapi-ratelimit-headers-09, as huggingface_hub parses it: no requests are left for t seconds
            seconds = b'"resolvers";r=0;t=%d' % round(wait)
            await _answer(receive, send, 429, "Too many requests.", (b"ratelimit", seconds))
        elif kind == "broken":
            await _answer(receive, send, (500, 502, 503, 504)[number % 4], "A fault that was asked for.")
        elif kind == "conflict":
            await _answer(receive, send, 412, "A commit has happened since.")
        elif kind == "stall":
            await asyncio.sleep(wait)
            await _abort(scope)
        else:
            try:
                await self._app(scope, receive, _AlteredAnswer(kind, number, scope, send, wait))
            except _AnswerEnded:
                if kind != "short":
                    await _abort(scope)


class _AlteredAnswer:
    """A ``send`` that alters the answer on its way to the client."""

    def __init__(self, kind: str, number: int, scope: Scope, send: Send, wait: float) -> None:
        self._kind, self._number, self._scope, self._send, self._wait = kind, number, scope, send, wait
        self._size, self._sent = 0, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._start(message)
        else:
            await self._body(message)

    async def _start(self, message: Message) -> None:
        headers = dict(message["headers"])
        self._size = int(headers.get(b"content-length", b"0"))
        if self._kind == "lost" or (self._kind == "reset" and self._size == 0):
            raise _AnswerEnded
        if self._kind == "short":
            headers[b"content-length"] = str(self._size // 2).encode()
        if self._kind == "stale":
            headers.update({name: b'"%040x"' % self._number for name in _ETAGS if name in headers})
        await self._send({**message, "headers": list(headers.items())})

    async def _body(self, message: Message) -> None:
        data = message.get("body", b"")
        start, self._sent = self._sent, self._sent + len(data)
        middle = self._size // 2
        if self._kind in ("short", "reset") and self._sent >= middle:
            more_body = self._kind == "reset"
            await self._send({**message, "body": data[: middle - start], "more_body": more_body})
            raise _AnswerEnded
        if self._kind == "wrong" and start <= middle < self._sent:
            position = middle - start
            data = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        if self._kind == "trickle" and data:
            step = -(-self._size // _TRICKLE_PIECES)
            for position in range(0, len(data), step):
                await self._send({**message, "body": data[position : position + step], "more_body": True})
                await asyncio.sleep(self._wait / _TRICKLE_PIECES)
            data = b""
        await self._send({**message, "body": data})


class _AnswerEnded(Exception):
    """The answer ends here, whatever the application still wants to send."""


async def _answer(receive: Receive, send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    """Read the request to its end, and answer in place of the application."""
    while (await receive()).get("more_body", False):
        pass
    body = json.dumps({"error": text}).encode()
    plain: Iterable[tuple[bytes, bytes]] = (
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-error-message", text.encode()),
    )
    await send({"type": "http.response.start", "status": status, "headers": [*plain, *headers]})
    await send({"type": "http.response.body", "body": body})


async def _abort(scope: Scope) -> None:
    scope["ckptzoo.abort"]()
    await asyncio.sleep(0.01)  # the reset is carried out by the event loop


@dataclass(frozen=True)
class LoggedRequest:
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
class AcknowledgedCommit:
    """A commit whose answer was sent whole: the repository as addresses name it, and the commit's id."""

    repository: str
    oid: str


@dataclass
class _Tally:
    """What has passed so far of one request and its answer."""

    status: int = 0
    announced: int = -1
    received: int = 0
    sent: int = 0
    finished: bool = False
    answer: bytearray = field(default_factory=bytearray)


class RequestLog:
    """The layer that logs requests; put it outside of everything that changes answers.

    Parameters
    ----------
    app
        the application, or the layer, inside.
    readable
        also answer ``GET /_ledger`` to clients on the same machine. Behind a proxy every client is on it.

    Attributes
    ----------
    entries
        every request, in the order of their ends; added before the last piece of the answer is sent, so that a client
        who has an answer finds it here.
    acknowledged
        every commit that was acknowledged, in order.
    """

    def __init__(self, app: ASGIApp, *, readable: bool = False) -> None:
        self._app, self._readable = app, readable
        self.entries: list[LoggedRequest] = []
        self.acknowledged: list[AcknowledgedCommit] = []

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
        """Pass one request on and log it."""
        method, path = scope["method"], scope["raw_path"].decode("latin-1")
        if self._readable and path == "/_ledger" and (scope.get("client") or ("",))[0] in _LOOPBACK:
            await JSONResponse(self.to_json())(scope, receive, send)
            return
        tally = _Tally()

        async def logged_receive() -> Message:
            message = await receive()
            tally.received += len(message.get("body", b""))
            return message

        async def logged_send(message: Message) -> None:
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
            await self._app(scope, logged_receive, logged_send)
        finally:
            if not tally.finished:
                self._write(scope, tally)

    def _write(self, scope: Scope, tally: _Tally) -> None:
        method, path = scope["method"], scope["raw_path"].decode("latin-1")
        range_header = dict(scope["headers"]).get(b"range", b"").decode("latin-1") or None
        counts = (tally.status, tally.received, tally.sent, tally.finished)
        self.entries.append(LoggedRequest(operation_of(method, path), method, path, range_header, *counts))
        commit = _COMMIT.fullmatch(path)
        if commit is not None and method == "POST" and tally.status == 200 and tally.finished:
            self.acknowledged.append(AcknowledgedCommit(commit[1], json.loads(tally.answer)["commitOid"]))


class AbortableConnections:
    """The outermost layer, which lets those inside reset the connection (with uvicorn, whose transport it uses)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        # uvicorn passes a bound method of its request cycle, which has the connection's transport.
        scope["ckptzoo.abort"] = getattr(send, "__self__").transport.abort  # noqa: B009
        await self._app(scope, receive, send)


@dataclass(frozen=True)
class Layered:
    """The application to serve, and the two layers that know what happened."""

    app: ASGIApp
    request_log: RequestLog
    faults: Faults


def layered(app: ASGIApp, *, plan: FaultPlan | None = None, readable: bool = False) -> Layered:
    """Put faults around an application, and the log around both, so that it has what clients see.

    Parameters
    ----------
    plan
        which requests get which fault; none without.
    readable
        answer ``GET /_ledger`` with the log, to clients on the same machine.
    """
    faults = Faults(app, plan or FaultPlan())
    request_log = RequestLog(faults, readable=readable)
    return Layered(AbortableConnections(request_log), request_log, faults)
